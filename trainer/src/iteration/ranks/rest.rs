//! How a group's memory is given back: devices of several ranks write into each other's, so none of
//! it goes before all are at rest.
//!
//! That matters where a rank has failed. Its own device is waited for by the rank that frees its
//! memory; those of its peers may then still be on their way to the barrier before which they
//! write.

use crate::iteration::worker::RankWorker;
use headlong_device::cuda::CudaDevice;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often the peers are polled meanwhile.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until the devices of all these ranks have done what they were given, as long as ranks wait
/// for each other. False: a device still works, and its memory and that of its peers has to stay.
pub(super) fn quiesce(workers: &[&RankWorker]) -> bool {
    let among: Vec<_> = workers.iter().filter_map(|worker| worker.model().devices()).collect();
    let devices: Vec<CudaDevice> =
        workers.iter().filter_map(|worker| worker.cuda_device()).collect();
    let Some(first) = workers.first().filter(|_| !among.is_empty()) else { return true };
    let patience = first.model().config.comm.deadline();
    let (at_rest, heard) = sync_channel(1);
    let wait = move || {
        // A device that has failed is at rest.
        devices.iter().for_each(|device| drop(device.synchronize()));
        // No one listens any more where it took too long.
        let _ = at_rest.send(());
    };
    if std::thread::Builder::new().name("devices-at-rest".into()).spawn(wait).is_err() {
        return false;
    }
    let started = Instant::now();
    loop {
        // In a job that has failed, this lets a rank's streams pass what they wait for.
        among.iter().for_each(|devices| drop(devices.check()));
        match heard.recv_timeout(PAUSE) {
            Err(RecvTimeoutError::Timeout) if started.elapsed() < patience => {}
            outcome => return outcome.is_ok(),
        }
    }
}
