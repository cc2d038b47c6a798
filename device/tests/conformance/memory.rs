//! Allocations, copies, fills.

use super::{Code, args, driver, raw, rig, says, sys, words_of};
use headlong_device::cuda::{DeviceMemory, Pinned};

#[test]
fn a_copy_far_outside_its_allocation_is_refused() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(64);
    let host = [0_u8; 512];
    // Far: a GPU rounds allocations up, and others lie near.
    let far = a.ptr().0 + (1 << 44);
    let code = driver!(cuMemcpyHtoDAsync_v2(far, host.as_ptr().cast(), 512, raw(&rig.first)));
    says!(code, Code::CUDA_ERROR_INVALID_VALUE);
    says!(driver!(cuMemsetD8Async(far, 0, 512, raw(&rig.first))), Code::CUDA_ERROR_INVALID_VALUE);
    rig.finish();
}

#[test]
fn memory_that_a_device_does_not_have_is_out_of_memory() {
    let Some(rig) = rig() else { return };
    let total = rig.device.memory().1;
    let mut address = 0;
    says!(driver!(cuMemAlloc_v2(&mut address, total + (1 << 30))), Code::CUDA_ERROR_OUT_OF_MEMORY);
    let error = DeviceMemory::new(&rig.device, "the big table", total + (1 << 30)).unwrap_err();
    assert!(error.to_string().contains("the big table"), "{error}");
}

#[test]
fn freed_memory_is_free_again_and_freed_once() {
    let Some(rig) = rig() else { return };
    let before = rig.device.memory().0;
    let mut address = 0;
    says!(driver!(cuMemAlloc_v2(&mut address, 64 << 20)), Code::CUDA_SUCCESS);
    assert!(rig.device.memory().0 < before);
    says!(driver!(cuMemFree_v2(address)), Code::CUDA_SUCCESS);
    says!(rig.device.memory().0, before);
    says!(driver!(cuMemFree_v2(address)), Code::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_pageable_source_is_read_at_the_call_and_a_pageable_destination_complete_at_return() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(256);
    let mut host = [5_u32; 256];
    let code =
        driver!(cuMemcpyHtoDAsync_v2(a.ptr().0, host.as_ptr().cast(), 1024, raw(&rig.first)));
    says!(code, Code::CUDA_SUCCESS);
    host.fill(6);
    rig.scale(&rig.first, &a, &a, 0);
    let code =
        driver!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), a.ptr().0, 1024, raw(&rig.first)));
    assert_eq!((code, host), (Code::CUDA_SUCCESS, [15; 256]));
}

#[test]
fn pinned_memory_moves_both_ways_in_stream_order() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(256);
    let from = Pinned::new(&rig.device, 1024).unwrap();
    let to = Pinned::new(&rig.device, 1024).unwrap();
    from.put(0, &[7_u32; 256]);
    rig.first.copy_to_device(a.ptr(), &from, 0..1024);
    rig.scale(&rig.first, &a, &a, 1);
    rig.first.copy_to_host(&to, 0..1024, a.ptr());
    rig.finish();
    assert_eq!(to.as_slice::<u32>(), [22; 256]);
}

#[test]
fn kernels_reach_pinned_memory() {
    let Some(rig) = rig() else { return };
    let (a, host) = (rig.zeros(1), Pinned::new(&rig.device, 64).unwrap());
    let arguments = super::Args { to: host.device_visible(), ..args(&a, &a, 31) };
    rig.run("store", 32, arguments);
    rig.finish();
    assert_eq!(host.as_slice::<u32>()[0], 31);
}

#[test]
fn fills_write_bytes_and_words() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(64);
    rig.first.fill_bytes(a.ptr(), 0xab, 128);
    let code = driver!(cuMemsetD32Async(a.ptr().0 + 128, 0x0102_0304, 16, raw(&rig.first)));
    says!(code, Code::CUDA_SUCCESS);
    rig.finish();
    let words = words_of(&a);
    assert_eq!(
        [words[0], words[31], words[32], words[47], words[48]],
        [0xabab_abab, 0xabab_abab, 0x0102_0304, 0x0102_0304, 0]
    );
}
