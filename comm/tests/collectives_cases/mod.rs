//! What every collective must do, over ranks of any kind: compared with a slow oracle.
#![allow(dead_code, reason = "each test uses a part")]

use headlong_comm::testing::run_ranks_with;
use headlong_comm::transport::Transport;
use headlong_comm::{
    AllReduce, AllToAll, CommError, CommOptions, Communicator, Element, Rank, Topology,
};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The ranks of a job, for one case after the other.
pub trait Ranks {
    fn topology(&self) -> &Topology;

    /// Runs `work` on all ranks; what each did must have worked.
    fn run<R: Send>(
        &self,
        options: &CommOptions,
        work: impl Fn(&Communicator) -> headlong_comm::Result<R> + Sync,
    ) -> Vec<R>;
}

/// New threads for each case.
pub struct Threads(pub Topology);

impl Ranks for Threads {
    fn topology(&self) -> &Topology {
        &self.0
    }

    fn run<R: Send>(
        &self,
        options: &CommOptions,
        work: impl Fn(&Communicator) -> headlong_comm::Result<R> + Sync,
    ) -> Vec<R> {
        let results = run_ranks_with(&self.0, options.clone(), work);
        results.into_iter().map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
    }
}

/// Ranks that have come together once, for all cases.
pub struct Kept(pub Vec<Arc<dyn Transport>>);

impl Ranks for Kept {
    fn topology(&self) -> &Topology {
        self.0[0].topology()
    }

    fn run<R: Send>(
        &self,
        options: &CommOptions,
        work: impl Fn(&Communicator) -> headlong_comm::Result<R> + Sync,
    ) -> Vec<R> {
        let work = &work;
        let one = |transport: &Arc<dyn Transport>| {
            let communicator = Communicator::new(transport.clone(), options.clone());
            let worked = std::panic::AssertUnwindSafe(|| work(&communicator));
            let result = std::panic::catch_unwind(worked);
            if result.is_err() {
                let reason = "it has panicked".to_owned();
                communicator.abort(CommError::Aborted { culprit: communicator.rank(), reason });
            }
            result
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> =
                self.0.iter().map(|transport| scope.spawn(move || one(transport))).collect();
            runs.into_iter().map(|run| run.join().and_then(|result| result)).collect()
        });
        // A panic is the cause; what the others say of it is not.
        let (whole, panics): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        if let Some(Err(panic)) = panics.into_iter().next() {
            std::panic::resume_unwind(panic);
        }
        let results = whole.into_iter().flatten();
        results.map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
    }
}

/// Small steps and chunks, so that short data goes every way.
pub fn options() -> impl Strategy<Value = CommOptions> {
    let ways =
        prop_oneof![Just(AllToAll::Flat), Just(AllToAll::Hierarchical), Just(AllToAll::Auto)];
    let one_step = prop_oneof![Just(None), Just(Some(0)), Just(Some(300))];
    let reduces = prop_oneof![Just(AllReduce::Flat), Just(AllReduce::Auto)];
    (ways, reduces, one_step, 1usize..2000).prop_map(
        |(all_to_all, all_reduce, one_step_bytes, chunk_bytes)| CommOptions {
            all_to_all,
            all_reduce,
            one_step_bytes,
            chunk_bytes,
            deadline: Duration::from_secs(20),
            ..CommOptions::default()
        },
    )
}

/// Lengths around nothing, around segments, and above what is copied into a slot.
pub fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..5, 30usize..300, 2000usize..3000]
}

/// Numbers of elements from each rank to each.
pub fn counts(ranks: usize) -> impl Strategy<Value = Vec<Vec<usize>>> {
    let count = prop_oneof![Just(0usize), 1usize..9, 500usize..900];
    prop::collection::vec(prop::collection::vec(count, ranks), ranks)
}

/// Numbers whose sums are exact, in any order, and fit into every type.
fn small<T: From<u8>>(rank: usize, i: usize) -> T {
    T::from(((rank * 7 + i * 3) % 5) as u8)
}

fn sums<T: From<u8> + std::ops::Add<Output = T>>(ranks: usize, len: usize) -> Vec<T> {
    (0..len)
        .map(|i| {
            (0..ranks)
                .map(|rank| small::<T>(rank, i))
                .reduce(|a, b| a + b)
                .expect("at least one rank")
        })
        .collect()
}

pub fn reduce_everything<T: Element + From<u8> + std::ops::Add<Output = T>>(
    job: &impl Ranks,
    options: &CommOptions,
    len: usize,
) {
    let ranks = job.topology().num_ranks();
    job.run(options, |communicator| {
        let me = communicator.rank().0;
        let mine: Vec<T> = (0..len).map(|i| small(me, i)).collect();
        let mut data = mine.clone();
        communicator.all_reduce(&mut data)?;
        assert_eq!(data, sums::<T>(ranks, len), "all_reduce");
        let all: Vec<T> = (0..len * ranks).map(|i| small(me, i)).collect();
        communicator.reduce_scatter(&all, &mut data)?;
        assert_eq!(data, sums::<T>(ranks, len * ranks)[me * len..][..len], "reduce_scatter");
        Ok(())
    });
}

pub fn move_everything<T: Element + From<u8>>(job: &impl Ranks, options: &CommOptions, len: usize) {
    let ranks = job.topology().num_ranks();
    let part = |rank: usize| -> Vec<T> { (0..len).map(|i| small(rank, i)).collect() };
    job.run(options, |communicator| {
        let me = communicator.rank().0;
        let mut all = vec![T::default(); ranks * len];
        communicator.all_gather(&part(me), &mut all)?;
        let gathered: Vec<T> = (0..ranks).flat_map(part).collect();
        assert_eq!(all, gathered, "all_gather");
        for root in 0..ranks {
            let mut data = part(me);
            communicator.broadcast(Rank(root), &mut data)?;
            assert_eq!(data, part(root), "broadcast from {root}");
        }
        let (next, previous) = (Rank((me + 1) % ranks), Rank((me + ranks - 1) % ranks));
        let mut received = vec![T::default(); len];
        communicator
            .send_receive(Some((next, &part(me)[..])), Some((previous, &mut received[..])))?;
        assert_eq!(received, part(previous.0), "send_receive");
        communicator.barrier()
    });
}

/// The element number `i` of those that go from one rank to another.
pub fn routed(from: usize, to: usize, i: usize) -> u64 {
    (from * 1000 + to) as u64 * 1_000_000 + i as u64
}

/// Parts of `counts[from][to]` elements, then equal ones.
pub fn parts_of_any_size(job: &impl Ranks, options: &CommOptions, counts: &[Vec<usize>]) {
    let ranks = job.topology().num_ranks();
    job.run(options, |communicator| {
        let me = communicator.rank().0;
        let send: Vec<u64> =
            (0..ranks).flat_map(|to| (0..counts[me][to]).map(move |i| routed(me, to, i))).collect();
        let from = |from: usize| (0..counts[from][me]).map(move |i| routed(from, me, i));
        let expected: Vec<u64> = (0..ranks).flat_map(from).collect();
        let recv_counts: Vec<usize> = (0..ranks).map(|from| counts[from][me]).collect();
        let mut recv = vec![u64::MAX; expected.len()];
        for _ in 0..2 {
            recv.fill(u64::MAX);
            communicator.all_to_all_v(&send, &counts[me], &mut recv, &recv_counts)?;
            assert_eq!(recv, expected);
        }
        let len = counts[0][0];
        let send: Vec<u64> =
            (0..ranks).flat_map(|to| (0..len).map(move |i| routed(me, to, i))).collect();
        let expected: Vec<u64> =
            (0..ranks).flat_map(|from| (0..len).map(move |i| routed(from, me, i))).collect();
        let mut recv = vec![u64::MAX; ranks * len];
        communicator.all_to_all(&send, &mut recv)?;
        assert_eq!(recv, expected);
        Ok(())
    });
}

/// The bits of the sum are those of the tree over ranks, in whatever way it is made.
pub fn bits_of_the_tree(job: &impl Ranks, options: &CommOptions, len: usize, chunk: usize) {
    let ranks = job.topology().num_ranks();
    let power = |rank: usize, i: usize| 10f32.powi((rank as i32 * 5 + i as i32) % 7);
    let value = |rank: usize, i: usize| ((rank * 131 + i) as f32).sin() * power(rank, i);
    let part = |i: usize| (0..ranks).map(|rank| value(rank, i)).collect::<Vec<_>>();
    let expected: Vec<u32> = (0..len).map(|i| tree(part(i), |sum| sum).to_bits()).collect();
    let to_bf16 = |value| half::bf16::from_f32(value).to_f32();
    let in_bf16: Vec<u32> = (0..len).map(|i| tree(part(i), to_bf16).to_bits()).collect();
    job.run(options, |communicator| {
        let mine: Vec<f32> = (0..len).map(|i| value(communicator.rank().0, i)).collect();
        let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let mut data = mine.clone();
        communicator.all_reduce(&mut data)?;
        assert_eq!(bits(&data), expected);
        for (narrow, expected) in [(false, &expected), (true, &in_bf16)] {
            data.copy_from_slice(&mine);
            let mut final_bits = Vec::new();
            let mut done = |range: Range<usize>, data: &mut [f32]| {
                assert_eq!(
                    (range.start, data.len()),
                    (final_bits.len(), len),
                    "rising, nothing left out, all of it shown"
                );
                final_bits.extend(bits(&data[range]));
            };
            match narrow {
                false => communicator.all_reduce_chunks(&mut data, chunk, &mut done)?,
                true => communicator.all_reduce_chunks_as_bf16(&mut data, chunk, &mut done)?,
            }
            assert_eq!(&final_bits, expected, "as bf16: {narrow}");
            data.copy_from_slice(&mine);
            let bounds = bounds(ranks, len, chunk);
            match narrow {
                false => communicator.reduce_to_parts(&mut data, &bounds)?,
                true => communicator.reduce_to_parts_as_bf16(&mut data, &bounds)?,
            }
            let own = bounds[communicator.rank().0]..bounds[communicator.rank().0 + 1];
            assert_eq!(bits(&data[own.clone()]), expected[own.clone()], "own part");
            // What the others have is to come from them.
            data[..own.start].fill(f32::NAN);
            data[own.end..].fill(f32::NAN);
            communicator.gather_parts(&mut data, &bounds)?;
            assert_eq!(&bits(&data), expected, "all parts, as bf16: {narrow}");
        }
        Ok(())
    });
}

/// Where parts begin and end: even ones, ones drawn by `seed`, some of them empty.
fn bounds(ranks: usize, len: usize, seed: usize) -> Vec<usize> {
    let drawn = |rank: usize| (rank * 7919 + seed * 104_729) % (len + 1);
    let mut bounds: Vec<usize> = (0..=ranks)
        .map(|rank| if seed.is_multiple_of(2) { rank * len / ranks } else { drawn(rank) })
        .collect();
    (bounds[0], bounds[ranks]) = (0, len);
    bounds.sort_unstable();
    bounds
}

/// Rounds the parts, and each sum.
fn tree(mut parts: Vec<f32>, round: impl Fn(f32) -> f32) -> f32 {
    parts.iter_mut().for_each(|part| *part = round(*part));
    let mut distance = 1;
    while distance < parts.len() {
        for into in (0..parts.len() - distance).step_by(2 * distance) {
            parts[into] = round(parts[into] + parts[into + distance]);
        }
        distance *= 2;
    }
    parts[0]
}
