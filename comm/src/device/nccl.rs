//! Collectives by NCCL, each rank with a device of its own.
//!
//! The order of sums of f32 is NCCL's: the same on all ranks, and the same again for the same
//! ranks, sizes and version. Sums of bf16 are of `narrow`: NCCL's own would be rounded in its
//! order.

mod narrow;

use super::peer::bind;
use super::{
    Blocks, DeviceCollectives, DeviceSizes, Parts, SumLen, end, end_closing, hear_culprit,
    own_stream,
};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::options::{Feature, NcclOptions};
use crate::readable::text;
use crate::topology::{Rank, Topology};
use crate::transport::Transport;
use headlong_device::cuda::{self, CudaDevice, CudaStream, DevicePtr};
use headlong_device::{DType, Stream};
use narrow::Received;
use nccl_rs::{
    Capabilities, Comm, Config, Data, DataType, Group, Library, ReduceOp, Search, UniqueId, Version,
};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    peer: Rank,
    at: DevicePtr,
    bytes: usize,
}

impl Piece {
    pub(super) fn new(peer: Rank, at: DevicePtr, bytes: usize) -> Self {
        Self { peer, at, bytes }
    }
}

/// One rank's end of NCCL's collectives.
pub struct NcclCollectives {
    comm: Comm,
    transport: Arc<dyn Transport>,
    device: CudaDevice,
    /// Where sums of bf16 are made, if there are any.
    received: Option<Received>,
}

impl NcclCollectives {
    /// Comes together with all ranks: rank 0 makes NCCL's unique id and sends it to all.
    pub(super) fn attach(communicator: &Communicator, cuda: &CudaStream) -> Result<Self> {
        let options = communicator.options();
        let NcclOptions { collnet, nvls } = options.nccl;
        let config = Config { deadline: options.deadline, collnet, nvls, ..Config::default() };
        let opened = open(cuda.device()).and_then(|library| {
            has_nodes_for(collnet, communicator.topology())?;
            config.check(&library).map_err(text)?;
            Ok(library)
        });
        let library = communicator.agree("NCCL", opened)?;
        let id = exchange_id(communicator, &library)?;
        let (rank, num_ranks) = (communicator.rank().0, communicator.num_ranks());
        let comm = bind(cuda)
            .and_then(|()| Comm::init(&library, &id, rank, num_ranks, config).map_err(text));
        let comm = communicator.agree("NCCL", comm)?;
        let (transport, device) = (communicator.transport().clone(), cuda.device().clone());
        Ok(Self { comm, transport, device, received: None })
    }

    /// As [`NcclCollectives::attach`], with room for sums of up to such sizes.
    pub(super) fn attach_for_sums(
        communicator: &Communicator,
        cuda: &CudaStream,
        sizes: DeviceSizes,
    ) -> Result<Self> {
        let who = (communicator.topology(), communicator.rank());
        let are_narrow = sizes.have_narrow_sums();
        let received = are_narrow.then(|| Received::new(cuda, who, sizes)).transpose();
        let received = communicator.agree("room for sums of bf16", received)?;
        Ok(Self { received, ..Self::attach(communicator, cuda)? })
    }

    /// Enqueues sends and receives as one group: pieces between two ranks pair up in their order,
    /// and may be none.
    pub(super) fn exchange(
        &self,
        cuda: &CudaStream,
        sends: impl Iterator<Item = Piece>,
        receives: impl Iterator<Item = Piece>,
    ) -> Result<(), String> {
        bind(cuda)?;
        let stream = cuda.raw();
        let enqueued = self.comm.group(|group| {
            for Piece { peer, at, bytes } in sends.filter(|piece| piece.bytes > 0) {
                // SAFETY: see below, at the operations.
                unsafe { group.send(bytes_of(at, at, bytes, stream), peer.0) }?;
            }
            for Piece { peer, at, bytes } in receives.filter(|piece| piece.bytes > 0) {
                // SAFETY: likewise.
                unsafe { group.receive(bytes_of(at, at, bytes, stream), peer.0) }?;
            }
            Ok(())
        });
        enqueued.map_err(|error| {
            if error.is_remote() {
                // Who failed first is then the job's error, whatever the caller ends it with.
                let _ = hear_culprit(&*self.transport);
            }
            text(error)
        })
    }

    /// Enqueues a group about so many elements; where that fails, the job ends.
    fn enqueue(
        &self,
        operation: &str,
        stream: &Stream,
        count: usize,
        body: impl FnOnce(&Group<'_>, RawStream) -> nccl_rs::Result<()>,
    ) -> Result<()> {
        self.check_transport()?;
        if count == 0 {
            return Ok(());
        }
        let cuda = own_stream(stream, &self.device, operation);
        bind(cuda).or_else(|reason| end(self, operation, reason))?;
        self.comm
            .group(|group| body(group, cuda.raw()))
            .or_else(|error| self.end_by(operation, &error))
    }

    /// Ends the job with what NCCL says. Of a peer that is gone NCCL may name a rank that left
    /// because another had died: the transport, which knows who was first, is given time to say so.
    fn end_by(&self, operation: &str, error: &nccl_rs::Error) -> Result<()> {
        if error.is_remote() {
            hear_culprit(&*self.transport).or_else(|_| self.check_transport())?;
        }
        end(self, operation, error.to_string())
    }

    /// Has `call` called before NCCL lets go of what waits on streams.
    pub(super) fn before_abort(&self, call: impl Fn() + Send + Sync + 'static) {
        self.comm.before_abort(call);
    }

    /// The job's first error, as far as this rank has heard of one.
    fn check_transport(&self) -> Result<()> {
        self.transport.check().inspect_err(|_| {
            // The job has failed elsewhere: nothing here may wait for it any longer.
            let _ = self.comm.abort();
        })
    }
}

type RawStream = *mut std::ffi::c_void;

/// `count` bytes from one place to another.
fn bytes_of(from: DevicePtr, to: DevicePtr, count: usize, stream: RawStream) -> Data {
    Data { from: from.0, to: to.0, count, kind: DataType::U8, stream }
}

/// The ranks whose parts are not empty.
fn of_ranks(parts: Parts<'_>) -> impl Iterator<Item = Rank> {
    (0..parts.num_ranks()).map(Rank).filter(move |&rank| !parts.range(rank).is_empty())
}

// SAFETY, of all calls of a group below: the stream is alive and of the communicator's device
// (`enqueue`); the memory is the caller's by the contract of `DeviceCollectives`, and the driver
// refuses addresses that it does not know.
impl DeviceCollectives for NcclCollectives {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Sizes are the host's to say, so blocks travel as long as they can be.
    fn all_to_all_v(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        let Blocks { from, to, stride, bytes_per_peer: bytes, .. } = blocks;
        let ranks = self.num_ranks();
        self.enqueue("all_to_all", stream, bytes, |group, stream| {
            if stride == bytes {
                // SAFETY: see above.
                return unsafe { group.all_to_all(bytes_of(from, to, bytes, stream)) };
            }
            (0..ranks).try_for_each(|peer| {
                let (from, to) = (from.offset(peer * stride), to.offset(peer * stride));
                let block = bytes_of(from, to, bytes, stream);
                // SAFETY: see above.
                unsafe { group.send(block, peer).and_then(|()| group.receive(block, peer)) }
            })
        })
    }

    fn sends_what_counts(&self) -> bool {
        false
    }

    fn all_reduce(&self, stream: &Stream, data: DevicePtr, len: SumLen) -> Result<()> {
        if len.narrow > 0 {
            return self.sum_narrow(stream, data, len);
        }
        self.enqueue("all_reduce", stream, len.exact, |group, stream| {
            let (at, count, kind) = (data.0, len.exact, DataType::F32);
            // SAFETY: see above.
            unsafe {
                group.all_reduce(Data { from: at, to: at, count, kind, stream }, ReduceOp::SUM)
            }
        })
    }

    /// In f32 each part is a sum that NCCL makes for its rank; as one group.
    fn reduce_to_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        if parts.dtype == DType::Bf16 {
            return self.sum_narrow_parts(stream, parts);
        }
        self.enqueue("reduce_to_parts", stream, parts.bytes(), |group, stream| {
            of_ranks(parts).try_for_each(|rank| {
                let (at, count, kind) = (parts.at(rank).0, parts.len(rank).exact, DataType::F32);
                let data = Data { from: at, to: at, count, kind, stream };
                // SAFETY: see above.
                unsafe { group.reduce(data, ReduceOp::SUM, rank.0) }
            })
        })
    }

    fn gather_parts(&self, stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(self.num_ranks());
        self.enqueue("gather_parts", stream, parts.bytes(), |group, stream| {
            of_ranks(parts).try_for_each(|rank| {
                let (at, bytes) = (parts.at(rank), parts.range(rank).len());
                // SAFETY: see above.
                unsafe { group.broadcast(bytes_of(at, at, bytes, stream), rank.0) }
            })
        })
    }

    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes_per_rank: usize,
    ) -> Result<()> {
        self.enqueue("all_gather", stream, bytes_per_rank, |group, stream| {
            // SAFETY: see above.
            unsafe { group.all_gather(bytes_of(from, to, bytes_per_rank, stream)) }
        })
    }

    fn broadcast(&self, stream: &Stream, root: Rank, data: DevicePtr, bytes: usize) -> Result<()> {
        assert!(root.0 < self.num_ranks(), "there are {} ranks, no {root}", self.num_ranks());
        self.enqueue("broadcast", stream, bytes, |group, stream| {
            // SAFETY: see above.
            unsafe { group.broadcast(bytes_of(data, data, bytes, stream), root.0) }
        })
    }

    fn check(&self) -> Result<()> {
        self.check_transport()?;
        self.comm.check().or_else(|error| self.end_by("an exchange between devices", &error))
    }

    fn abort(&self, error: CommError) {
        self.transport.abort(error);
        // What NCCL says to that changes nothing any more.
        let _ = self.comm.abort();
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.transport.check()?;
        let Self { comm, transport, received, .. } = *self;
        drop(received);
        comm.close().or_else(|error| end_closing(&*transport, "closing NCCL", error.to_string()))
    }
}

/// The NCCL that collectives would use on this machine, for a look before a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its file.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
    /// What it can do beyond what every version can.
    pub capabilities: Capabilities,
    /// Whether there is a plugin for sums in the network's switches (CollNet, SHARP); else what was
    /// looked at.
    pub collnet: Result<(), String>,
}

/// Opens NCCL and asks what it is; it makes nothing.
///
/// # Errors
/// What is missing, and where it was looked for.
pub fn report() -> Result<Report, String> {
    let found = cuda::Library::Nccl.find().path.ok();
    let search = found.map_or_else(Search::default, |path| Search::in_directories([path]));
    let library = Library::open(&search).map_err(text)?;
    let (path, version) = (library.path().to_path_buf(), library.version());
    Ok(Report {
        path,
        version,
        capabilities: library.capabilities(),
        collnet: nccl_rs::collnet_plugin(),
    })
}

/// Switches of the network add up between nodes: NCCL leaves them alone where there is one.
fn has_nodes_for(collnet: Feature, topology: &Topology) -> Result<(), String> {
    match collnet == Feature::Require && topology.num_nodes() < 2 {
        true => Err(
            "comm.nccl.collnet = \"require\": CollNet adds up between nodes, and all ranks are on \
             one"
            .to_owned(),
        ),
        false => Ok(()),
    }
}

/// NCCL, of the kind that fits the device; else what is missing, and where it was looked for.
fn open(device: &CudaDevice) -> Result<Arc<Library>, String> {
    let found = cuda::Library::Nccl.find();
    let search = match &found.path {
        Ok(path) => Search::in_directories([path]).and_nowhere_else(),
        Err(reason) if device.is_software() => return Err(reason.clone()),
        Err(_) => Search::default(),
    };
    let library = Library::open(&search).map_err(text)?;
    // The software device cannot carry NVIDIA's NCCL, and the software NCCL no GPU's memory.
    let is_software = cuda::Library::Nccl.symbol(c"softcudaNcclIsSoftware").is_ok();
    if is_software != device.is_software() {
        let kind = if is_software { "the software NCCL" } else { "no software NCCL" };
        return Err(format!("{} is {kind}, but the device is {device}", library.path().display()));
    }
    Ok(library)
}

/// The id that rank 0 has made, and with it that all have the same version.
fn exchange_id(communicator: &Communicator, library: &Library) -> Result<UniqueId> {
    let is_first = communicator.rank() == Rank(0);
    let made = match is_first {
        true => UniqueId::new(library).map_err(text),
        false => Ok(UniqueId::from_bytes([0; UniqueId::BYTES])),
    };
    let mut bytes = communicator.agree("NCCL", made)?.to_bytes();
    // Who has the id can join.
    let sealed = communicator.sealed();
    communicator.broadcast(Rank(0), &mut bytes)?;
    drop(sealed);
    let own = library.version().to_string();
    let mut first = [0_u8; 16];
    first[..own.len().min(16)].copy_from_slice(&own.as_bytes()[..own.len().min(16)]);
    communicator.broadcast(Rank(0), &mut first)?;
    let first = String::from_utf8_lossy(&first).trim_end_matches('\0').to_owned();
    let same = match first == own {
        true => Ok(()),
        false => {
            Err(format!("{} is NCCL {own}, that of rank 0 is {first}", library.path().display()))
        }
    };
    communicator.agree("NCCL", same)?;
    Ok(UniqueId::from_bytes(bytes))
}
