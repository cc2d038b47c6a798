//! The same loop between devices.

use crate::{Settings, say};
use headlong_comm::{CommError, Communicator};
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, DeviceMemory, Event, testing};
use headlong_device::error::DeviceError;
use headlong_device::pool::Pool;
use std::sync::Arc;
use std::thread::sleep;

/// Exchanges, sums up and gathers on a device, and compares what has come.
pub fn steps(
    settings: &Settings,
    communicator: &Communicator,
    ordinal: u32,
) -> Result<(), CommError> {
    let failed = |error: DeviceError| CommError::Device {
        seen_by: communicator.rank(),
        operation: format!("cuda:{ordinal}"),
        reason: error.to_string(),
    };
    let device = CudaDevice::open(ordinal).map_err(failed)?;
    let stream = Stream::cuda(&device, Arc::new(Pool::new(1))).map_err(failed)?;
    let collectives = communicator.attach_device(&stream)?;
    let (rank, ranks, len) = (communicator.rank(), communicator.num_ranks(), settings.elements);
    say(rank, &format!("attached {device}: {}", collectives.name()));
    let own = vec![rank.0 as f32; ranks * len];
    let from = testing::upload(&device, &own).map_err(failed)?;
    let exchanged = testing::upload(&device, &vec![-1.0_f32; ranks * len]).map_err(failed)?;
    let sum = testing::upload(&device, &own[..len]).map_err(failed)?;
    for step in 0..settings.steps {
        say(rank, &format!("step {step}"));
        sleep(settings.step);
        sum.write(0, testing::bytes_of(&own[..len])).map_err(failed)?;
        collectives.all_to_all(&stream, from.ptr(), exchanged.ptr(), len * 4)?;
        collectives.all_reduce_f32(&stream, sum.ptr(), len)?;
        let done = Event::new(&device).map_err(failed)?;
        stream.cuda_body().record(&done);
        collectives.wait(&done, settings.deadlines.operation)?;
        let read = |memory: &DeviceMemory| testing::download::<f32>(memory).map_err(failed);
        let expected = (ranks * (ranks - 1) / 2) as f32;
        let is_right = read(&sum)?.iter().all(|sum| *sum == expected)
            && read(&exchanged)?.iter().enumerate().all(|(at, value)| *value == (at / len) as f32);
        assert!(is_right, "rank {}: wrong numbers in step {step}", rank.0);
    }
    collectives.close()
}
