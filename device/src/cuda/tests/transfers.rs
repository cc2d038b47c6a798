//! Memory and arenas on a device, copies to and fro.

use crate::cuda::testing::{device, download, stream, upload};
use crate::cuda::{DeviceMemory, Event, Pinned};
use crate::{ArenaPlan, DType, Device, DeviceError};

#[test]
fn device_memory_is_zeroed_and_keeps_what_is_written() {
    let Some(device) = device() else { return };
    let memory = DeviceMemory::new(&device, "zeroed", 1000).unwrap();
    assert!(download::<u32>(&memory).unwrap().iter().all(|&word| word == 0));
    memory.write(8, &[1, 2, 3]).unwrap();
    let mut read = [9; 5];
    memory.read(7, &mut read).unwrap();
    assert_eq!(read, [0, 1, 2, 3, 0]);
    assert_eq!(memory.ptr().0 % 256, 0, "aligned for every kind of access");
}

#[test]
fn too_much_memory_is_refused_with_the_numbers() {
    let Some(device) = device() else { return };
    let (_, total) = device.memory();
    match DeviceMemory::new(&device, "tables", total * 2) {
        Err(DeviceError::OutOfDeviceMemory { what, bytes, total: said, device: name, .. }) => {
            assert_eq!((what.as_str(), bytes, said), ("tables", total * 2, total));
            assert!(name.starts_with("cuda:0 ("), "{name}");
        }
        other => panic!("expected out of memory, got {other:?}"),
    }
    // The device is as good as before.
    DeviceMemory::new(&device, "small", 64).unwrap();
}

#[test]
fn pinned_copies_run_in_order_with_kernels_and_fills() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let device = stream.device();
    let mut host = Pinned::new(device, 4096).unwrap();
    for (i, value) in host.as_mut_slice::<u32>().iter_mut().enumerate() {
        *value = i as u32;
    }
    let back = Pinned::new(device, 4096).unwrap();
    let (a, b) = (
        DeviceMemory::new(device, "a", 4096).unwrap(),
        DeviceMemory::new(device, "b", 4096).unwrap(),
    );
    stream.copy_to_device(a.ptr(), &host, 0..4096);
    stream.copy(b.ptr(), a.ptr(), 4096);
    stream.fill_bytes(b.ptr().offset(400), 0xff, 8);
    stream.copy_to_host(&back, 0..4096, b.ptr());
    let done = Event::new(device).unwrap();
    stream.record(&done);
    stream.check().unwrap();
    done.synchronize().unwrap();
    assert!(done.query().unwrap());
    let got = back.as_slice::<u32>();
    for (i, &value) in got.iter().enumerate() {
        let expected = if i == 100 || i == 101 { u32::MAX } else { i as u32 };
        assert_eq!(value, expected, "word {i}");
    }
}

#[test]
fn arenas_on_a_device_are_read_and_written_as_a_whole() {
    let Some(stream) = stream() else { return };
    let mut plan = ArenaPlan::new("activations");
    let a = plan.matrix("a", DType::F32, 3, 5);
    let b = plan.matrix("b", DType::U64, 2, 2);
    let mut other = ArenaPlan::new("gradients");
    let c = other.matrix("c", DType::F32, 4, 4);
    let (whole, [first, second]) = ArenaPlan::freeze_together_on([plan, other], &stream).unwrap();
    let (a, b, c) = (first.mat(a), first.mat(b), second.mat(c));
    assert!(a.is_on_device() && whole.is_on_device());
    assert_eq!(stream.device(), Device::Cuda(0));
    let values: Vec<f32> = (0..15).map(|i| i as f32).collect();
    a.copy_from(&values).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), values);
    // A block of it: only that is written.
    a.columns(1, 2).rows_range(1, 2).copy_from(&[-1.0, -2.0, -3.0, -4.0_f32]).unwrap();
    assert_eq!(a.columns(0, 4).rows_range(1, 1).to_vec::<f32>().unwrap(), [5.0, -1.0, -2.0, 8.0]);
    assert_eq!(b.to_vec::<u64>().unwrap(), [0; 4]);
    assert_eq!(a.device_ptr().offset(4 * 6), a.columns(1, 2).rows_range(1, 2).device_ptr());
    assert_eq!(whole.device_ptr(), a.device_ptr());
    second.copy_from(&[7.0_f32; 16]).unwrap();
    assert_eq!(c.to_vec::<f32>().unwrap(), [7.0; 16]);
    assert_eq!(b.rows_range(2, 0).to_vec::<u64>().unwrap(), []);
    assert_eq!(second.to_vec::<f32>().unwrap().len(), 16);
}

#[test]
fn a_host_guard_on_device_memory_says_what_to_do() {
    let Some(stream) = stream() else { return };
    let mut plan = ArenaPlan::new("test");
    let a = plan.matrix("pooled", DType::F32, 3, 5);
    let a = plan.freeze_on(&stream).unwrap().mat(a);
    let panic = std::panic::catch_unwind(|| drop(a.read::<f32>())).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("slot `pooled` lies on cuda:0") && message.contains("device_ptr()"),
        "{message}"
    );
    // The refused guard left the slot free.
    a.copy_from(&[0.0_f32; 15]).unwrap();
}

#[test]
fn uploads_come_back() {
    let Some(device) = device() else { return };
    let values: Vec<u64> = (0..100).map(|i| i * i).collect();
    assert_eq!(download::<u64>(&upload(&device, &values).unwrap()).unwrap(), values);
    assert_eq!(download::<u64>(&upload::<u64>(&device, &[]).unwrap()).unwrap(), []);
}
