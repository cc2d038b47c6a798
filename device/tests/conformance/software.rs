//! What only the software device shows. Five mistakes of a kind that a GPU mostly forgives: each
//! must show under some seed of a few, and its correct twin under none. Further: counts of calls,
//! injected faults, diagnoses, sanitizers.

use super::kernels::{groups, staged};
use super::{Code, Rig, args, capture, in_a_child, is_child, rig, sanitizer, words_of};
use headlong_device::cuda::{CudaDevice, Define, Launch, Pinned};
use std::ffi::{CStr, c_char, c_void};

/// What libcuda.so.1 of the software device exports beyond the driver's interface
/// (device/softcuda/README.md).
struct Software {
    seed: extern "C" fn(u64),
    count: extern "C" fn(*const c_char) -> u64,
    reset: extern "C" fn(),
}

/// A rig whose device is the software device.
fn software() -> Option<(Rig, Software)> {
    let rig = rig()?;
    if !rig.device.is_software() {
        eprintln!("skipped, because only the software device has seeds and counts");
        return None;
    }
    // SAFETY: the device is open, so the library is loaded: this only finds it again.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null());
    let symbol = |name: &CStr| -> *mut c_void {
        // SAFETY: a handle of dlopen and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    };
    // SAFETY: the functions' types are those of device/softcuda/driver_calls.cpp.
    let software = unsafe {
        Software {
            seed: std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(symbol(c"softcudaSeed")),
            count: std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> u64>(symbol(
                c"softcudaCallCount",
            )),
            reset: std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(
                c"softcudaCallsReset",
            )),
        }
    };
    Some((rig, software))
}

/// Runs both versions under a range of seeds: `body(rig, true)` must be right always,
/// `body(rig, false)` wrong at least once.
fn mutation(body: fn(&Rig, bool) -> bool) {
    let Some((rig, software)) = software() else { return };
    let mut found = Vec::new();
    for seed in 1..=16 {
        (software.seed)(seed);
        assert!(body(&rig, true), "the correct version fails under seed {seed}");
        if sanitizer().is_some() {
            continue; // which would report the mistakes
        }
        (software.seed)(seed);
        if !body(&rig, false) {
            found.push(seed);
        }
        rig.device.synchronize().expect("work without an error");
    }
    (software.seed)(0);
    eprintln!("found under seeds {found:?} of 1 to 16");
    assert!(!found.is_empty() || sanitizer().is_some(), "no seed shows the mistake");
}

#[test]
fn a_forgotten_join_shows() {
    mutation(|rig, join| {
        let (a, b, c) = (rig.words(&[1; 64]), rig.zeros(64), rig.zeros(64));
        let (fork, back) = (rig.event(), rig.event());
        rig.first.record(&fork);
        rig.second.wait(&fork);
        rig.scale(&rig.second, &b, &a, 1);
        rig.second.record(&back);
        rig.scale(&rig.first, &c, &a, 0);
        if join {
            rig.first.wait(&back);
        }
        rig.scale(&rig.first, &c, &b, 0);
        rig.finish();
        words_of(&c) == [12; 64]
    });
}

#[test]
fn a_forgotten_wait_for_a_free_buffer_shows() {
    // Batches go through one buffer: the copy of the next must wait until the last has been used.
    mutation(|rig, wait| {
        let (buffer, sums) = (rig.zeros(64), rig.zeros(4 * 64));
        let staging = Pinned::new(&rig.device, 4 * 256).unwrap();
        for batch in 0..4 {
            staging.put(256 * batch, &[batch as u32; 64]);
        }
        let events: Vec<_> = (0..8).map(|_| rig.event()).collect();
        for batch in 0..4 {
            if wait && batch > 0 {
                rig.second.wait(&events[2 * batch - 1]);
            }
            rig.second.copy_to_device(buffer.ptr(), &staging, 256 * batch..256 * (batch + 1));
            rig.second.record(&events[2 * batch]);
            rig.first.wait(&events[2 * batch]);
            let out = super::Args { to: sums.ptr().offset(256 * batch), ..args(&sums, &buffer, 0) };
            rig.run("scale", 64, out);
            rig.first.record(&events[2 * batch + 1]);
        }
        rig.finish();
        words_of(&sums).chunks(64).enumerate().all(|(batch, sum)| sum == [3 * batch as u32; 64])
    });
}

/// Runs a kernel with or without its barrier.
fn with_barrier(rig: &Rig, entry: &'static str, threads: u32, barrier: bool) -> Vec<u32> {
    let numbers: Vec<u32> = (0..threads).collect();
    let (from, to) = (rig.words(&numbers), rig.zeros(threads as usize));
    let define = [Define { name: "BARRIER", value: i64::from(barrier) }];
    rig.run_with(&define, entry, Launch::new(1, threads), args(&to, &from, 0));
    rig.finish();
    words_of(&to)
}

#[test]
fn a_missing_block_barrier_shows() {
    mutation(|rig, barrier| {
        with_barrier(rig, "reverse_block", 256, barrier).into_iter().rev().eq(0..256)
    });
}

#[test]
fn a_missing_warp_barrier_shows() {
    mutation(|rig, barrier| {
        with_barrier(rig, "rotate_warp", 32, barrier)
            .into_iter()
            .eq((0..32).map(|lane| (lane + 1) % 32))
    });
}

#[test]
fn an_unjoined_capture_shows() {
    mutation(|rig, join| capture::fork(rig, join) == Code::CUDA_SUCCESS);
}

#[test]
fn a_forgotten_join_inside_a_graph_shows() {
    // The branch comes back at the end of the capture, but what needs its result does not wait for
    // it.
    mutation(|rig, join| {
        let (a, b, c) = (rig.words(&[1; 64]), rig.zeros(64), rig.zeros(64));
        let (fork, back) = (rig.event(), rig.event());
        let body = || {
            rig.first.record(&fork);
            rig.second.wait(&fork);
            rig.scale(&rig.second, &b, &a, 1);
            rig.second.record(&back);
            if join {
                rig.first.wait(&back);
            }
            rig.scale(&rig.first, &c, &b, 0);
            rig.first.wait(&back);
            Ok(())
        };
        let warm = rig.first.capture(body).unwrap();
        warm.launch(&rig.first);
        rig.finish();
        words_of(&c) == [12; 64]
    });
}

#[test]
fn a_replayed_graph_is_one_call() {
    let Some((rig, software)) = software() else { return };
    let (a, done) = (rig.words(&[0; 64]), rig.event());
    let graph = rig.first.capture(|| {
        for _ in 0..20 {
            rig.scale(&rig.first, &a, &a, 1);
        }
        Ok(())
    });
    let graph = graph.unwrap();
    (software.reset)();
    for _ in 0..10 {
        graph.launch(&rig.first);
        rig.first.record(&done);
    }
    let count = |name: &CStr| (software.count)(name.as_ptr());
    assert_eq!(
        (count(c"cuGraphLaunch"), count(c"cuEventRecord"), count(c"cuLaunchKernel")),
        (10, 10, 0)
    );
    let contexts = count(c"cuCtxSetCurrent") + count(c"cuCtxGetCurrent");
    assert_eq!(count(c"*") - contexts, 20, "no other calls");
    rig.finish();
}

#[test]
fn fresh_shared_memory_is_poisoned_at_each_block() {
    let Some((rig, _software)) = software() else { return };
    let out = rig.zeros(128);
    rig.run_with(&[], "stale_shared", Launch::new(4, 32), args(&out, &out, 5));
    rig.finish();
    assert_eq!(words_of(&out), [0xcbcb_cbcb; 128]);
}

#[test]
fn asynchronous_copies_are_not_there_before_the_wait_for_their_group() {
    let Some((rig, _software)) = software() else { return };
    let ([first, second], nothing) = (groups(), vec![u32::MAX; 128]);
    for forgotten in [-1, 2] {
        assert_eq!(staged(&rig, forgotten), [(); 3].map(|()| nothing.clone()), "{forgotten}");
    }
    assert_eq!(staged(&rig, 1), [first.clone(), nothing.clone(), nothing.clone()]);
    // No wait is for copies that have not been committed.
    assert_eq!(staged(&rig, 0), [first, second, nothing]);
}

/// One launch that the device must not survive, in a process of its own, whose message must hold
/// `says`.
fn dies(test: &str, entry: &'static str, value: u32, says: &str) {
    if !is_child() {
        return in_a_child(&format!("software::{test}"), &[], says);
    }
    let Some((rig, _software)) = software() else { return println!("{says}") };
    let a = rig.zeros(64);
    rig.run(entry, 64, args(&a, &a, value));
    assert!(rig.first.synchronize().is_err());
}

#[test]
fn a_barrier_that_not_all_threads_reach_is_reported() {
    dies("a_barrier_that_not_all_threads_reach_is_reported", "divergent_barrier", 40, "deadlock");
}

#[test]
fn a_shuffle_from_outside_the_mask_is_reported() {
    dies("a_shuffle_from_outside_the_mask_is_reported", "outside_the_mask", 0, "outside its mask");
}

#[test]
fn an_injected_fault_is_an_illegal_address_that_names_its_kernel() {
    let test = "software::an_injected_fault_is_an_illegal_address_that_names_its_kernel";
    if !is_child() {
        return in_a_child(test, &[("SOFTCUDA_FAULT", "scale:4")], "SOFTCUDA_FAULT: scale");
    }
    let Some((rig, _software)) = software() else { return println!("SOFTCUDA_FAULT: scale") };
    // The first launch was the rig's own.
    let a = rig.words(&[1; 64]);
    rig.scale(&rig.first, &a, &a, 0);
    rig.scale(&rig.first, &a, &a, 0);
    rig.finish();
    rig.scale(&rig.first, &a, &a, 0);
    let error = rig.first.synchronize().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
}

#[test]
fn a_setting_that_makes_no_sense_is_refused_by_its_name() {
    let test = "software::a_setting_that_makes_no_sense_is_refused_by_its_name";
    if is_child() {
        let refused = CudaDevice::open(0).unwrap_err().to_string();
        assert!(refused.contains("CUDA_ERROR_INVALID_VALUE"), "{refused}");
        return;
    }
    if software().is_none() {
        return;
    }
    for (variable, value) in [
        ("SOFTCUDA_SEED", "banana"),
        ("SOFTCUDA_DEVICES", "-1"),
        ("SOFTCUDA_DEVICES", "257"),
        ("SOFTCUDA_TIMEOUT_S", "5s"),
        ("SOFTCUDA_MEMORY_MIB", "0"),
        ("SOFTCUDA_FAULT", "lookup"),
        ("SOFTCUDA_FAULT", "lookup:3,adam:0"),
        ("SOFTCUDA_METER", "/proc/none/meter"),
        ("SOFTCUDA_CALLS", "/proc"),
    ] {
        let says = format!("softcuda: {variable}={value}: ");
        in_a_child(test, &[(variable, value)], &says);
    }
}

// Mistakes for the sanitizers, which end the process with a report:
// device/softcuda/run-sanitized.sh says how to run them.

#[test]
#[ignore = "AddressSanitizer must report it: device/softcuda/run-sanitized.sh self-test"]
fn a_read_past_the_end_of_an_allocation() {
    let Some((rig, _software)) = software() else { return };
    let (a, b) = (rig.zeros(1), rig.zeros(25));
    rig.run("read_past_the_end", 32, args(&a, &b, 0));
    rig.finish();
}

#[test]
#[ignore = "AddressSanitizer must report it: device/softcuda/run-sanitized.sh self-test"]
fn a_read_past_the_end_of_shared_memory() {
    let Some((rig, _software)) = software() else { return };
    let a = rig.zeros(32);
    rig.run("shared_past_the_end", 32, args(&a, &a, 1));
    rig.finish();
}

#[test]
#[ignore = "ThreadSanitizer must report it: device/softcuda/run-sanitized.sh self-test"]
fn a_removed_barrier() {
    let Some((rig, _software)) = software() else { return };
    with_barrier(&rig, "reverse_block", 256, false);
}

#[test]
#[ignore = "ThreadSanitizer must report it: device/softcuda/run-sanitized.sh self-test"]
fn a_removed_wait_between_streams() {
    let Some((rig, _software)) = software() else { return };
    let (a, b) = (rig.words(&[1; 64]), rig.zeros(64));
    rig.scale(&rig.first, &b, &a, 0);
    rig.scale(&rig.second, &a, &b, 0);
    rig.device.synchronize().unwrap();
}

#[test]
#[ignore = "ThreadSanitizer must report it: device/softcuda/run-sanitized.sh self-test"]
fn blocks_that_write_one_word() {
    let Some((rig, _software)) = software() else { return };
    let a = rig.zeros(64);
    rig.run_with(&[], "same_word", Launch::new(4, 32), args(&a, &a, 0));
    rig.first.synchronize().unwrap();
}
