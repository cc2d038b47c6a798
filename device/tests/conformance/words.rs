//! Stream memory operations: streams that write words and wait for words, which is how ranks wait
//! for each other over peer memory. Two streams of one device, eagerly and in graphs.

use super::{Code, Rig, driver, raw, rig, says, sys, words_of};
use headlong_device::cuda::{CudaStream, DeviceMemory, Graph};

const EQUAL: u32 = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;

fn write(on: &CudaStream, words: &DeviceMemory, index: usize, value: u32) {
    let at = words.ptr().offset(4 * index).0;
    says!(driver!(cuStreamWriteValue32_v2(raw(on), at, value, 0)), Code::CUDA_SUCCESS);
}

fn wait(on: &CudaStream, words: &DeviceMemory, index: usize, value: u32) {
    let at = words.ptr().offset(4 * index).0;
    says!(driver!(cuStreamWaitValue32_v2(raw(on), at, value, EQUAL)), Code::CUDA_SUCCESS);
}

/// What a rank does at barrier `which` with one peer: it sets the word that the peer waits for, and
/// waits for its own, which it clears. Two barriers in turn have words of their own, so that none
/// is set again before it is cleared.
fn meet(on: &CudaStream, words: &DeviceMemory, which: usize, own: usize) {
    write(on, words, 2 * which + 1 - own, 1);
    wait(on, words, 2 * which + own, 1);
    write(on, words, 2 * which + own, 0);
}

#[test]
fn a_stream_goes_on_when_another_has_written_the_word_it_waits_for() {
    let Some(rig) = rig() else { return };
    let (words, a, b) = (rig.zeros(2), rig.words(&[1; 128]), rig.zeros(128));
    wait(&rig.first, &words, 0, 1);
    rig.scale(&rig.first, &b, &a, 0);
    rig.scale(&rig.second, &a, &a, 1);
    write(&rig.second, &words, 0, 1);
    rig.second.synchronize().unwrap();
    rig.finish();
    assert_eq!(words_of(&b), [12; 128], "the write is seen after what came before it");
}

/// Each stream's graph changes what the other's reads behind the barrier, so an early passage shows
/// in the sums.
#[test]
fn graphs_on_two_streams_meet_at_words_at_each_replay() {
    let Some(rig) = rig() else { return };
    let words = rig.zeros(4);
    let [a, b] = [rig.words(&[1; 128]), rig.words(&[1; 128])];
    let [to_a, to_b] = [rig.zeros(128), rig.zeros(128)];
    // Two barriers: behind the first what the peer made is read, behind the second it may change.
    let one = |rig: &Rig, on: &CudaStream, own: usize| -> Graph {
        let (mine, theirs, to) = if own == 0 { (&a, &b, &to_a) } else { (&b, &a, &to_b) };
        on.capture(|| {
            rig.scale(on, mine, mine, 1);
            meet(on, &words, 0, own);
            rig.scale(on, to, theirs, 0);
            meet(on, &words, 1, own);
            Ok(())
        })
        .expect("a graph of stream memory operations")
    };
    let graphs = [one(&rig, &rig.first, 0), one(&rig, &rig.second, 1)];
    let mut expected = 1_u32;
    for replay in 0..20 {
        graphs[0].launch(&rig.first);
        graphs[1].launch(&rig.second);
        expected = expected.wrapping_mul(3).wrapping_add(1);
        rig.second.synchronize().unwrap();
        rig.finish();
        let third = expected.wrapping_mul(3);
        for to in [&to_a, &to_b] {
            assert_eq!(words_of(to), [third; 128], "replay {replay}");
        }
    }
    assert_eq!(words_of(&words), [0; 4]);
}
