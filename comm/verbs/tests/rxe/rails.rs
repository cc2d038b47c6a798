//! Rails between devices, over real NICs: the devices are those of the software device, ranks are
//! threads, two to a "node".

use headlong_comm::testing::run_communicators;
use headlong_comm::{
    AllToAll, Blocks, CommError, CommOptions, Communicator, DeviceCollectives, Topology,
};
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, Event, testing};
use headlong_device::pool::Pool;
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::nic::Provider;
use headlong_verbs::sys::Verbs;
use headlong_verbs::{VerbsRails, VerbsSettings};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [usize; 2] = [2, 2];
const RANKS: usize = 4;
/// Numbers of a rank for another one.
const LEN: usize = 1031;
/// How often the captured step is launched.
const ROUNDS: usize = 12;
/// Emulated, and between busy neighbours.
const LONG: Duration = Duration::from_secs(60);
/// The room of a block, and what one claims.
const ROOM: u32 = 16;
const CLAIMED: u32 = 20;

/// The NICs of two nodes, and how they are used.
type OfNodes = [(Arc<dyn Provider>, VerbsSettings); 2];

/// Where NICs are taken from.
pub enum Nics<'a> {
    /// One real device for each node.
    Devices([&'a str; 2]),
    /// A fabric inside this process: it compiles the kernels for later, and shows that the checks
    /// themselves are right.
    Fake,
}

impl Nics<'_> {
    /// What carries between nodes, by node.
    fn of_nodes(&self) -> Result<OfNodes, String> {
        let settings = |devices| VerbsSettings { devices, timeout: 19, ..VerbsSettings::default() };
        match self {
            Nics::Devices(names) => {
                let verbs = Verbs::open().map_err(|error| error.to_string())?;
                Ok(names.map(|name| {
                    (verbs.clone() as Arc<dyn Provider>, settings(vec![name.to_owned()]))
                }))
            }
            Nics::Fake => {
                let fabric = Fabric::rails(1, NetworkModel::ROUGH, NODES.len(), 1);
                Ok([0, 1]
                    .map(|node| (fabric.provider(node) as Arc<dyn Provider>, settings(vec![]))))
            }
        }
    }
}

/// Runs all checks.
pub fn run(nics: &Nics) -> Result<(), String> {
    let found = CudaDevice::count().map_err(|error| error.to_string())?;
    if (found as usize) < RANKS {
        return Err(format!("rails: {found} CUDA devices, and {RANKS} are needed"));
    }
    let of_nodes = nics.of_nodes()?;
    let checks: [(&str, Check); 2] = [
        (
            "a captured step exchanges between devices of two nodes, and every number arrives",
            replays,
        ),
        (
            "a size over a slot's capacity is the same error on all ranks, and writes nothing \
             outside",
            too_long,
        ),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        let begin = Instant::now();
        match check(&of_nodes) {
            Ok(()) => println!("TEST ok   rails: {name} ({:.1} s)", begin.elapsed().as_secs_f64()),
            Err(reason) => {
                println!("TEST FAIL rails: {name}: {reason}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("rails: {} checks failed", failed.len())) }
}

type Check = fn(&OfNodes) -> Result<(), String>;

/// Runs `work` on every rank.
fn on_ranks<R: Send>(
    nics: &OfNodes,
    work: impl Fn(&Communicator, &Stream, &dyn DeviceCollectives) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let options = CommOptions {
        deadline: LONG,
        all_to_all: AllToAll::Hierarchical,
        ..CommOptions::default()
    };
    let topology = Topology::from_node_sizes(&NODES);
    let communicators = Communicator::local(&topology, options).into_iter().map(|communicator| {
        let (provider, settings) = &nics[topology.node_of(communicator.rank())];
        communicator.with_rails(Arc::new(VerbsRails::new(provider.clone(), settings.clone(), 1)))
    });
    let ends = run_communicators(communicators.collect(), |communicator| -> Result<R, String> {
        let rank = communicator.rank().0 as u32;
        let device = CudaDevice::open(rank).map_err(|error| error.to_string())?;
        let stream =
            Stream::cuda(&device, Arc::new(Pool::new(1))).map_err(|error| error.to_string())?;
        let collectives = communicator.attach_device(&stream).map_err(|error| error.to_string())?;
        if rank == 0 {
            println!("  {}", collectives.name());
        }
        if !collectives.name().starts_with("hierarchical: peer memory, verbs") {
            return Err(format!("it is not over NICs: {}", collectives.name()));
        }
        let end = work(communicator, &stream, &*collectives);
        // After a failure no one knows what peers still read: what they may stays.
        match communicator.check() {
            Ok(()) => collectives.close().map_err(|error| error.to_string())?,
            Err(_) => std::mem::forget((collectives, stream)),
        }
        end
    });
    ends.into_iter().collect()
}

fn finish(collectives: &dyn DeviceCollectives, stream: &Stream) -> Result<(), CommError> {
    let cuda = stream.cuda_body();
    let done = Event::new(cuda.device()).expect("an event");
    cuda.record(&done);
    collectives.wait(&done, LONG)
}

/// Small whole numbers, whose sums are exact in any order.
fn number(rank: usize, round: usize, at: usize) -> f32 {
    ((rank * 131 + round * 17 + at * 7) % 251) as f32 - 125.0
}

fn replays(nics: &OfNodes) -> Result<(), String> {
    on_ranks(nics, |communicator, stream, collectives| {
        let (me, cuda) = (communicator.rank().0, stream.cuda_body());
        let upload =
            |values: &[f32]| testing::upload(cuda.device(), values).expect("device memory");
        let (from, to, sum) =
            (upload(&[0.0; RANKS * LEN]), upload(&[-1.0; RANKS * LEN]), upload(&[0.0; LEN]));
        let graph = cuda.capture(|| {
            collectives.all_to_all(stream, from.ptr(), to.ptr(), LEN * 4).expect("enqueued");
            collectives.all_reduce_f32(stream, sum.ptr(), LEN).expect("enqueued");
            Ok(())
        });
        let graph = graph.map_err(|error| error.to_string())?;
        for round in 0..ROUNDS {
            let own: Vec<f32> = (0..RANKS * LEN).map(|at| number(me, round, at)).collect();
            from.write(0, testing::bytes_of(&own)).map_err(|error| error.to_string())?;
            sum.write(0, testing::bytes_of(&own[..LEN])).map_err(|error| error.to_string())?;
            graph.launch(cuda);
            finish(collectives, stream).map_err(|error| error.to_string())?;
            let read = |memory| testing::download::<f32>(memory).map_err(|error| error.to_string());
            let exchanged = |at: usize| number(at / LEN, round, me * LEN + at % LEN);
            let summed = |at: usize| (0..RANKS).map(|rank| number(rank, round, at)).sum::<f32>();
            let is_right = read(&to)?.iter().enumerate().all(|(at, found)| *found == exchanged(at))
                && read(&sum)?.iter().enumerate().all(|(at, found)| *found == summed(at));
            if !is_right {
                return Err(format!("rank {me}: wrong numbers in round {round}"));
            }
        }
        Ok(())
    })
    .map(drop)
}

/// Rank 1 claims more for the last rank, on the other node, than a block has room for.
fn too_long(nics: &OfNodes) -> Result<(), String> {
    let ends = on_ranks(nics, |communicator, stream, collectives| {
        let device = stream.cuda_body().device();
        let floats = RANKS * ROOM as usize / 4;
        let upload = |values: &[f32]| testing::upload(device, values).expect("device memory");
        let (from, to) = (upload(&vec![7.0; floats]), upload(&vec![-1.0; floats + 4]));
        let mut counts = [ROOM; RANKS];
        if communicator.rank().0 == 1 {
            counts[RANKS - 1] = CLAIMED;
        }
        let lengths = testing::upload(device, &counts).expect("device memory");
        let blocks = Blocks {
            from: from.ptr(),
            to: to.ptr(),
            stride: ROOM as usize,
            bytes_per_peer: ROOM as usize,
            lengths: lengths.ptr(),
        };
        let begin = Instant::now();
        let enqueued = collectives.all_to_all_v(stream, blocks);
        let mut told = enqueued.and_then(|()| finish(collectives, stream));
        // Ranks that have nothing to do with the block hear of it from the others.
        while told.is_ok() && begin.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(2));
            told = collectives.check();
        }
        let _ = stream.synchronize();
        let found = testing::download::<f32>(&to).map_err(|error| error.to_string())?;
        let is_inside = found[floats..].iter().all(|canary| *canary == -1.0)
            && found[..floats].iter().all(|value| [7.0, -1.0].contains(value));
        std::mem::forget((from, to, lengths));
        match (told, is_inside) {
            (Err(error), true) => Ok(error),
            (Ok(()), _) => Err("it was no error".to_owned()),
            (Err(_), false) => Err(format!("it has written outside: {found:?}")),
        }
    })?;
    println!("  all ranks: {}", ends[0]);
    let text = ends[0].to_string();
    let is_named =
        text.contains(&format!("{CLAIMED} bytes")) && text.contains(&format!("room for {ROOM}"));
    match is_named && ends.iter().all(|end| *end == ends[0]) {
        true => Ok(()),
        false => Err(format!("ranks say: {ends:?}")),
    }
}
