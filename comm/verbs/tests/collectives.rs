//! Collectives over verbs give the bits of threads: two nodes of two ranks, sizes from nothing to
//! many slots, any model.

use crate::verbs_support::{Reach, job, settings};
use headlong_comm::testing::sim::Random;
use headlong_comm::{AllReduce, AllToAll, CommError, CommOptions, Communicator, Topology};
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{Signal, VerbsSettings};
use std::thread;

/// Steps of a run.
const STEPS: u64 = 20;

/// Elements: none, one, a slot filled to the last byte, one more, several slots.
fn length(random: &mut Random) -> usize {
    const SLOT: u64 = 4096 / 4;
    [0, 1, random.below(SLOT), SLOT, SLOT + 1, random.below(6 * SLOT)][random.below(6) as usize]
        as usize
}

/// Sums, parts for everybody, parts of any size: everything that a rank has received in all steps.
fn steps(communicator: &Communicator, seed: u64) -> Result<Vec<u32>, CommError> {
    let (me, ranks) = (communicator.rank().0, communicator.num_ranks());
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for step in 0..STEPS {
        let value = |from: usize, at: usize| ((from * 131 + at + step as usize) as f32).sin() * 1e3;
        let mut sum: Vec<f32> = (0..length(&mut random)).map(|at| value(me, at)).collect();
        communicator.all_reduce(&mut sum)?;
        all.extend(sum.iter().map(|value| value.to_bits()));
        let counts: Vec<Vec<usize>> =
            (0..ranks).map(|_| (0..ranks).map(|_| length(&mut random)).collect()).collect();
        let send: Vec<f32> = (0..counts[me].iter().sum()).map(|at| value(me, at)).collect();
        let expected: Vec<usize> = counts.iter().map(|row| row[me]).collect();
        let mut recv = vec![0.0f32; expected.iter().sum()];
        communicator.all_to_all_v(&send, &counts[me], &mut recv, &expected)?;
        all.extend(recv.iter().map(|value| value.to_bits()));
        if step % 5 == 4 {
            communicator.barrier()?;
        }
    }
    communicator.close()?;
    Ok(all)
}

fn results(communicators: Vec<Communicator>, seed: u64) -> Vec<Vec<u32>> {
    thread::scope(|scope| {
        let runs: Vec<_> = communicators
            .iter()
            .map(|communicator| {
                scope.spawn(move || steps(communicator, seed).expect("all is well"))
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).collect()
    })
}

#[test]
fn every_bit_is_that_of_threads() {
    let models = [NetworkModel::CALM, NetworkModel::ROUGH];
    let signals = [Signal::Immediate, Signal::Atomic];
    for (seed, (model, signal)) in
        (0..).zip(models.into_iter().flat_map(|model| signals.map(|signal| (model, signal))))
    {
        let all_reduce = if seed % 2 == 0 { AllReduce::Auto } else { AllReduce::Flat };
        let one_step_bytes = [None, Some(0)][seed as usize / 2];
        let options = CommOptions {
            all_to_all: AllToAll::Hierarchical,
            all_reduce,
            one_step_bytes,
            ..CommOptions::default()
        };
        let reach = if seed < 2 { Reach::All } else { Reach::OtherNodes };
        let fabric = Fabric::rails(seed, model, 2, 2);
        let transports = job(&fabric, (2, 2), reach, &VerbsSettings { signal, ..settings() });
        let over_verbs: Vec<_> = transports
            .iter()
            .map(|rank| Communicator::new(rank.clone(), options.clone()))
            .collect();
        let by_threads = Communicator::local(&Topology::from_node_sizes(&[2, 2]), options);
        assert!(
            results(over_verbs, seed) == results(by_threads, seed),
            "seed {seed}: {model:?}, {signal:?}: other bits than between threads"
        );
        drop(transports);
        assert_eq!(fabric.violations(), Vec::<String>::new(), "seed {seed}");
    }
}
