//! Launches, and what threads of a block do together.

use super::{Rig, args, rig, words_of};
use headlong_device::cuda::{CudaStream, Define, Launch};

#[test]
fn arguments_are_copied_at_the_launch() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(1);
    let mut arguments = args(&a, &a, 11);
    rig.run("store", 32, arguments);
    arguments.value = 12;
    rig.finish();
    assert_eq!((words_of(&a)[0], arguments.value), (11, 12));
}

#[test]
fn shapes_that_no_device_has_are_refused() {
    let Some(rig) = rig() else { return };
    let a = rig.zeros(1);
    let refused = |entry: &'static str, threads: u32, shared: u32| {
        let stream = CudaStream::new(&rig.device).unwrap();
        let shape = Launch::new(1, threads).with_shared(shared);
        stream.run(&super::KERNELS, &[], entry, shape, &args(&a, &a, 1));
        stream.check().is_err()
    };
    assert!(refused("store", 2048, 0), "threads");
    assert!(refused("store", 32, 1 << 20), "shared memory");
    assert!(refused("bounded", 128, 0), "more threads than __launch_bounds__ says");
    assert!(!refused("bounded", 64, 0));
    rig.device.synchronize().unwrap();
    assert_eq!(words_of(&a), [1]);
}

#[test]
fn blocks_share_memory_of_fixed_and_of_chosen_size() {
    let Some(rig) = rig() else { return };
    let numbers: Vec<u32> = (0..256).collect();
    for (entry, bytes) in [("reverse_block", 0), ("reverse_dynamic", 1024)] {
        let (from, to) = (rig.words(&numbers), rig.zeros(256));
        rig.run_with(&[], entry, Launch::new(1, 256).with_shared(bytes), args(&to, &from, 0));
        rig.finish();
        assert!(words_of(&to).into_iter().rev().eq(0..256), "{entry}");
    }
}

#[test]
fn each_block_has_shared_memory_of_its_own() {
    let Some(rig) = rig() else { return };
    let to = rig.zeros(256);
    rig.run_with(&[], "blocks_apart", Launch::new(4, 64), args(&to, &to, 0));
    rig.finish();
    assert!(words_of(&to).into_iter().eq((0..256).map(|i| i % 64)));
}

#[test]
fn warps_shuffle_vote_match_and_add() {
    let Some(rig) = rig() else { return };
    let out = rig.zeros(256);
    rig.run("collectives", 32, args(&out, &out, 0));
    rig.finish();
    for (lane, got) in words_of(&out).chunks(8).enumerate() {
        let lane = lane as u32;
        let up = if lane < 3 { lane } else { lane - 3 };
        let down = if lane > 27 { lane } else { lane + 4 };
        let ballot = (0..32).filter(|l| l % 3 == 0).map(|l| 1_u32 << l).sum();
        let same = 0xff << (lane / 8 * 8);
        assert_eq!(
            got,
            [50, up, down, lane ^ 1, lane / 8 * 8 + 2, ballot, same, 496],
            "lane {lane}"
        );
    }
}

#[test]
fn lanes_of_a_mask_meet_without_the_others() {
    let Some(rig) = rig() else { return };
    let out = rig.zeros(32);
    rig.run("half_warps", 32, args(&out, &out, 0));
    rig.finish();
    assert!(words_of(&out).into_iter().eq((0..32).map(|lane| lane ^ 8)));
}

#[test]
fn barriers_of_a_block_count_votes() {
    let Some(rig) = rig() else { return };
    let out = rig.zeros(3);
    rig.run("votes", 256, args(&out, &out, 0));
    rig.finish();
    assert_eq!(words_of(&out), [50, 1, 0]);
}

#[test]
fn atomics_lose_nothing() {
    let Some(rig) = rig() else { return };
    let out = rig.zeros(8);
    rig.run_with(&[], "atomics", Launch::new(4, 128), args(&out, &out, 0));
    rig.finish();
    let xor = (0..512).fold(0, |a, b| a ^ b);
    assert_eq!(words_of(&out), [512, 511, xor, 1, 7, 0, 0, 512]);
}

/// The three parts that the kernel `staged` finds in shared memory after a wait that leaves `open`
/// groups of copies, or without one (-1).
pub fn staged(rig: &Rig, open: i64) -> [Vec<u32>; 3] {
    let numbers: Vec<u32> = (0..384).collect();
    let (from, to) = (rig.words(&numbers), rig.zeros(384));
    let define = [Define { name: "OPEN", value: open }];
    rig.run_with(&define, "staged", Launch::new(1, 32), args(&to, &from, 0));
    rig.finish();
    let words = words_of(&to);
    [0, 1, 2].map(|part| words[128 * part..128 * (part + 1)].to_vec())
}

/// What the first two groups of `staged` bring.
pub fn groups() -> [Vec<u32>; 2] {
    [(0..128).collect(), (128..252).chain([0; 4]).collect()]
}

#[test]
fn asynchronous_copies_are_there_after_the_wait_for_their_group() {
    let Some(rig) = rig() else { return };
    let [first, second] = groups();
    assert_eq!(staged(&rig, 1)[0], first);
    assert_eq!(staged(&rig, 0)[..2], [first, second]);
}
