//! Buffers on CUDA devices, exchanged over their own memory or by NCCL.
//!
//! A sample is from the call to the moment at which the host sees the device done: it holds the
//! launch, and it is what a host waits that needs the result. With -G it is one launch of a graph
//! of captured calls.

use super::operation::{Case, Operation, Place};
use super::subject::Subject;
use headlong_comm::{BetweenDevices, CommError, Communicator, DeviceCollectives, Result};
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, DeviceMemory, Event, Graph};
use headlong_device::error::DeviceError;
use headlong_device::pool::Pool;
use std::sync::Arc;
use std::time::Duration;

/// One rank's device and its end of the collectives.
pub struct OnDevice {
    stream: Stream,
    device: CudaDevice,
    collectives: Box<dyn DeviceCollectives>,
    deadline: Duration,
    /// Calls of a sample are captured, this many.
    captured: Option<usize>,
}

pub fn has_devices(ranks: usize) -> std::result::Result<(), String> {
    let count = CudaDevice::count().map_err(|error| error.to_string())? as usize;
    let enough = count >= ranks;
    enough
        .then_some(())
        .ok_or_else(|| format!("{ranks} ranks need a CUDA device each, and there are {count}"))
}

/// What the collectives between devices do not have.
pub fn supports(
    operation: Operation,
    dtype: super::dtype::Dtype,
) -> std::result::Result<(), String> {
    match operation {
        Operation::AllReduce if dtype != super::dtype::Dtype::Float => {
            Err("between devices, sums are of float alone".to_owned())
        }
        Operation::AllReduce
        | Operation::AllGather
        | Operation::Broadcast
        | Operation::AllToAll => Ok(()),
        other => Err(format!("between devices there is no {}", other.name())),
    }
}

impl OnDevice {
    /// All ranks call it.
    ///
    /// # Errors
    /// [`CommError::Rendezvous`] where it cannot be had, the same on all ranks.
    pub fn attach(communicator: &Communicator, captured: Option<usize>) -> Result<Self> {
        let ordinal = communicator.topology().local_index(communicator.rank()) as u32;
        let failed = |error: DeviceError| failure(communicator, error);
        let device = CudaDevice::open(ordinal).map_err(failed)?;
        let stream = Stream::cuda(&device, Arc::new(Pool::new(1))).map_err(failed)?;
        let collectives = communicator.attach_device(&stream)?;
        let deadline = communicator.options().deadline;
        let wants_memory = communicator.options().between_devices == BetweenDevices::Auto;
        if wants_memory && collectives.name() == "nccl" {
            collectives.close()?;
            let reason = "the devices cannot use each other's memory".to_owned();
            return Err(CommError::Rendezvous { reason });
        }
        Ok(Self { stream, device, collectives, deadline, captured })
    }

    pub fn buffers<'c>(
        &'c self,
        communicator: &'c Communicator,
        case: Case,
    ) -> Result<DeviceBuffers<'c>> {
        let memory = |what: &str, len: usize| {
            DeviceMemory::new(&self.device, what, len * size_of::<f32>())
                .map_err(|error| failure(communicator, error))
        };
        Ok(DeviceBuffers {
            on: self,
            communicator,
            case,
            send: memory("bench send", case.send_len())?,
            recv: memory("bench receive", case.recv_len())?,
            data: memory("bench in place", case.size_len())?,
            graph: None,
        })
    }

    /// Ends the collectives with all ranks.
    pub fn close(self) -> Result<()> {
        self.collectives.close()
    }
}

fn failure(communicator: &Communicator, error: DeviceError) -> CommError {
    let (seen_by, operation) = (communicator.rank(), "headlong bench".to_owned());
    CommError::Device { seen_by, operation, reason: error.to_string() }
}

pub struct DeviceBuffers<'c> {
    on: &'c OnDevice,
    communicator: &'c Communicator,
    case: Case,
    send: DeviceMemory,
    recv: DeviceMemory,
    /// Of calls in place.
    data: DeviceMemory,
    graph: Option<(Place, Graph)>,
}

impl DeviceBuffers<'_> {
    fn enqueue(&self, place: Place) -> Result<()> {
        let OnDevice { stream, collectives, .. } = self.on;
        let copy = |to: &DeviceMemory, from: &DeviceMemory| {
            stream.cuda_body().copy(to.ptr(), from.ptr(), from.bytes());
        };
        let part = self.data.bytes() / self.case.ranks;
        let (result, is_out) =
            if place == Place::Out { (&self.recv, true) } else { (&self.data, false) };
        match self.case.operation {
            Operation::AllReduce => {
                if is_out {
                    copy(&self.recv, &self.send);
                }
                collectives.all_reduce_f32(stream, result.ptr(), self.case.count)
            }
            Operation::Broadcast => {
                if is_out && self.case.me == self.case.root.0 {
                    copy(&self.recv, &self.send);
                }
                collectives.broadcast(stream, self.case.root, result.ptr(), result.bytes())
            }
            Operation::AllGather => {
                let own = self.data.ptr().offset(self.case.me * part);
                let from = if is_out { self.send.ptr() } else { own };
                collectives.all_gather(stream, from, result.ptr(), part)
            }
            _ => {
                if !is_out {
                    copy(&self.send, &self.data);
                }
                collectives.all_to_all(stream, self.send.ptr(), result.ptr(), part)
            }
        }
    }

    fn capture(&self, place: Place, calls: usize) -> Result<Graph> {
        let mut enqueued = Ok(());
        let captured = self.on.stream.cuda_body().capture(|| {
            enqueued = (0..calls).try_for_each(|_| self.enqueue(place));
            Ok(())
        });
        enqueued?;
        captured.map_err(|error| failure(self.communicator, error))
    }

    fn wait(&self) -> Result<()> {
        let done =
            Event::new(&self.on.device).map_err(|error| failure(self.communicator, error))?;
        self.on.stream.cuda_body().record(&done);
        self.on.collectives.wait(&done, self.on.deadline)
    }

    fn write(&self, memory: &DeviceMemory, offset: usize, values: &[f32]) -> Result<()> {
        let bytes = zerocopy::IntoBytes::as_bytes(values);
        memory.write(offset, bytes).map_err(|error| failure(self.communicator, error))
    }
}

impl Subject for DeviceBuffers<'_> {
    fn fill(&mut self, place: Place) -> Result<()> {
        let mut values = vec![0.0_f32; self.case.send_len()];
        self.case.fill(&mut values);
        match (place, self.case.operation) {
            (Place::Out, _) => self.write(&self.send, 0, &values)?,
            (Place::In, Operation::AllGather) => {
                let part = self.data.bytes() / self.case.ranks;
                self.write(&self.data, self.case.me * part, &values)?;
            }
            (Place::In, _) => self.write(&self.data, 0, &values)?,
        }
        // Several captured calls in place add up what they have added up: one call is checked, not
        // they.
        self.graph = self.graph.take().filter(|_| self.on.captured == Some(1));
        // What was right in the last call must not pass for a result of the next.
        self.write(&self.recv, 0, &vec![99.0; self.case.recv_len()])?;
        // Peers write into this rank's memory: no one begins before all have filled theirs.
        self.communicator.barrier()
    }

    fn prepare(&mut self, place: Place) -> Result<()> {
        if place == Place::In {
            self.write(&self.data, 0, &vec![0.0; self.case.size_len()])?;
        }
        self.graph = None;
        if let Some(calls) = self.on.captured {
            self.graph = Some((place, self.capture(place, calls)?));
        }
        self.communicator.barrier()
    }

    fn call(&mut self, place: Place) -> Result<()> {
        match &self.graph {
            Some((captured, graph)) if *captured == place => {
                graph.launch(self.on.stream.cuda_body())
            }
            _ => self.enqueue(place)?,
        }
        self.wait()
    }

    fn wrong(&mut self, place: Place) -> Result<u64> {
        let memory = if place == Place::Out { &self.recv } else { &self.data };
        let mut found = vec![0.0_f32; self.case.recv_len()];
        let bytes = zerocopy::IntoBytes::as_mut_bytes(found.as_mut_slice());
        memory.read(0, bytes).map_err(|error| failure(self.communicator, error))?;
        Ok(self.case.wrong(&found))
    }
}
