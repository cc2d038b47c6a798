//! Which device of its machine a rank works on, and the streams that it has there.

use crate::config::{Config, DeviceChoice, ScheduleChoice};
use crate::error::{Error, Result};
use crate::report::output::say;
use crate::system::machine::unusable;
use crate::system::places;
use headlong_comm::Communicator;
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, CudaFiles};
use headlong_device::pool::Pool;
use std::sync::Arc;

/// The stream that a rank works on. Ranks of a machine take its CUDA devices in their order: those
/// of a node, or all ranks where they are threads of one process, whatever nodes they play; behind
/// `taken` ones where there are enough.
pub(super) fn stream_of(
    config: &Config,
    communicator: &Communicator,
    threads: usize,
    taken: usize,
) -> Result<Stream> {
    if config.run.device != DeviceChoice::Cuda {
        return Ok(Stream::cpu(threads));
    }
    let (local, ranks) = place_on_machine(communicator);
    let devices = CudaDevice::count().map_err(unusable)? as usize;
    let ordinal = if crate::system::machine::has_devices_besides(devices, taken, ranks) {
        taken + local
    } else {
        local
    };
    if ordinal >= devices {
        return Err(Error::unsupported(
            format!("run.device = \"cuda\" with {ranks} ranks on a machine"),
            format!("each rank has a device of its own, and this machine has {devices}"),
        ));
    }
    let (kernels, algorithms) = (config.run.kernels.clone(), config.run.algorithms.clone());
    let device = CudaDevice::open(ordinal as u32).map_err(unusable)?;
    let device = device.with_files(CudaFiles { kernels, algorithms });
    let pool = Arc::new(Pool::new(threads));
    let stream =
        |high| Stream::cuda_with_priority(&device, Arc::clone(&pool), high).map_err(unusable);
    // Whatever others wait for goes first; weight gradients fill the gaps.
    match config.run.schedule_used() {
        ScheduleChoice::Serial => stream(true),
        _ => Ok(stream(true)?.with_side_stream(stream(false)?)),
    }
}

/// Keeps each thread that helps a rank on a processor of its own, or says why they run anywhere.
/// Where something else has given this process a part of the machine, that part is the rank's, else
/// the ranks of the machine divide it.
pub(super) fn bind(stream: &Stream, communicator: &Communicator) {
    let (local, ranks) = place_on_machine(communicator);
    let alone = communicator.transport().name() != "local" && places::is_bound();
    let (local, ranks) = if alone { (0, 1) } else { (local, ranks) };
    let pool = stream.pool();
    let enough = |processors: Vec<usize>| match (pool.threads(), processors.len()) {
        (threads, found) if found < threads => {
            Err(format!("a rank of {threads} threads, processors for it: {found}"))
        }
        // The first one is left to the rank's own thread.
        _ => pool.bind(&processors[1..]).map_err(|error| error.to_string()),
    };
    let places = places::places(ranks).map(|places| places.of_threads(local));
    if let Err(reason) = places.and_then(enough) {
        say(format_args!("note: run.bind: {reason}: threads run on any processor"));
    }
}

/// The number of a rank among those of its machine, and how many these are.
pub(super) fn place_on_machine(communicator: &Communicator) -> (usize, usize) {
    let (rank, topology) = (communicator.rank(), communicator.topology());
    match communicator.transport().name() {
        "local" => (rank.0, topology.num_ranks()),
        _ => (topology.local_index(rank), topology.node_size(topology.node_of(rank))),
    }
}
