//! Collectives over verbs give the bits of threads: two nodes of two ranks, sizes from nothing to
//! many slots, any model.

use crate::verbs_support::{Reach, controls, job, settings};
use headlong_comm::testing::sim::Random;
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::{ChooseOptions, Wanted, choose};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{AllReduce, AllToAll, CommError, CommOptions, Communicator, Topology};
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{Signal, VerbsNetwork, VerbsSettings};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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

/// Ranks that sleep at their NICs' events, over a fabric whose time passes whether they look or
/// not.
#[test]
fn every_bit_is_that_of_threads_where_ranks_sleep() {
    let options = CommOptions { one_step_bytes: Some(0), ..CommOptions::default() };
    let fabric = Fabric::rails(5, NetworkModel::ROUGH, 2, 2);
    fabric.enable_events();
    let is_over = AtomicBool::new(false);
    let (over_verbs, by_threads) = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fabric.pass();
                thread::sleep(Duration::from_micros(20));
            }
        });
        let _over = OnDrop(&is_over);
        let transports = job(&fabric, (2, 2), Reach::OtherNodes, &settings());
        let ranks = transports.iter().map(|rank| Communicator::new(rank.clone(), options.clone()));
        let over_verbs = results(ranks.collect(), 5);
        let by_threads = Communicator::local(&Topology::from_node_sizes(&[2, 2]), options.clone());
        (over_verbs, results(by_threads, 5))
    });
    assert!(over_verbs == by_threads, "other bits than between threads");
    assert!(fabric.shown() > 10, "no rank slept at its NIC: {} completions shown", fabric.shown());
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

/// More ranks than exchange all with each other: NICs join those of a rail alone.
#[test]
fn a_large_job_is_joined_along_its_rails() {
    const NODES: usize = 9;
    const PER_NODE: usize = 8;
    let options = CommOptions::default();
    let fabric = Fabric::rails(6, NetworkModel::CALM, NODES, 2);
    let choice = |control: Arc<TcpTransport>| {
        let node = control.topology().node_of(control.rank());
        let local_index = control.topology().local_index(control.rank());
        let patient = VerbsSettings { patience: Duration::from_secs(60), ..settings() };
        let network = VerbsNetwork::new(patient, fabric.provider(node), local_index);
        let choose_options = ChooseOptions {
            wanted: Wanted::Auto,
            network: Some(&network),
            exchanges: Some(&options),
        };
        let chosen = choose(control, &choose_options).expect("a common way");
        Communicator::new(chosen.transport, options.clone())
    };
    let controls = controls(NODES, PER_NODE, Duration::from_secs(60));
    let sums = thread::scope(|scope| {
        let ranks = controls.into_iter().map(|control| {
            scope.spawn(|| {
                let rank = choice(control);
                assert_eq!(rank.transport().name(), "shm+verbs");
                let me = rank.rank().0 as u64;
                let mut sum = vec![me; 1000];
                rank.all_reduce(&mut sum).expect("all is well");
                let sent: Vec<u64> =
                    (0..rank.num_ranks() as u64).map(|to| 1000 * me + to).collect();
                let mut received = vec![0; sent.len()];
                rank.all_to_all(&sent, &mut received).expect("all is well");
                let expected: Vec<u64> =
                    (0..rank.num_ranks() as u64).map(|from| 1000 * from + me).collect();
                assert_eq!(received, expected);
                rank.close().expect("all end together");
                sum[999]
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<u64>>()
    });
    assert_eq!(sums, vec![71 * 72 / 2; NODES * PER_NODE]);
    assert_eq!(fabric.queue_pairs(), NODES * PER_NODE * (NODES - 1));
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

/// Set when it is dropped, after a panic, too.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
