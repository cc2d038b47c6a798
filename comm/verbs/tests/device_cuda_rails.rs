//! Strips between nodes over NICs, which proxies drive as the devices tell them: the same
//! results as over anything else, captured and replayed without the host; and a peer that is gone,
//! or never comes, ends every rank with a reason.

#[path = "../../tests/device_support/mod.rs"]
mod device_support;

use device_support::{
    Memory, TURN, download, finish, has_devices, replay_all, stream_on, uneven, upload,
};
use headlong_comm::testing::{run_communicators, run_ranks};
use headlong_comm::{AllToAll, CommError, CommOptions, Communicator, Feature, Rank, Topology};
use headlong_device::Stream;
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{VerbsRails, VerbsSettings};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// Runs `work` once for each rank, over the NICs of `fabric`.
fn on_rails<R: Send>(
    fabric: &Arc<Fabric>,
    nodes: &[usize],
    deadline: Duration,
    work: impl Fn(&Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    let settings = VerbsSettings { retries: 2, ..VerbsSettings::default() };
    on_rails_with(fabric, nodes, (&settings, deadline), work)
}

fn on_rails_with<R: Send>(
    fabric: &Arc<Fabric>,
    nodes: &[usize],
    (settings, deadline): (&VerbsSettings, Duration),
    work: impl Fn(&Communicator, Stream) -> R + Sync,
) -> Vec<R> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = CommOptions {
        deadline,
        all_to_all: AllToAll::Hierarchical,
        // More than a few numbers are added up in two steps, where there are three nodes or more.
        one_step_bytes: Some(100),
        ..CommOptions::default()
    };
    let topology = Topology::from_node_sizes(nodes);
    let communicators = Communicator::local(&topology, options).into_iter().map(|communicator| {
        let node = topology.node_of(communicator.rank());
        let rails = VerbsRails::new(fabric.provider(node), settings.clone(), 1);
        communicator.with_rails(Arc::new(rails))
    });
    run_communicators(communicators.collect(), |communicator| {
        work(communicator, stream_on(communicator.rank().0 as u32))
    })
}

#[test]
fn every_operation_over_nics() {
    if !has_devices(8) {
        return;
    }
    let kinds = [
        (&[2, 2][..], Feature::Require, "verbs, GPUDirect"),
        (&[2, 2], Feature::Off, "verbs through host memory"),
        (&[4, 4], Feature::Auto, "verbs, GPUDirect"),
        (&[3, 3], Feature::Auto, "verbs, GPUDirect"),
        (&[2, 2, 2], Feature::Off, "verbs through host memory"),
    ];
    for (nodes, gpudirect, name) in kinds {
        let fabric = Fabric::rails(7, NetworkModel::ROUGH, nodes.len(), nodes[0]);
        let settings = VerbsSettings { gpudirect, ..VerbsSettings::default() };
        on_rails_with(&fabric, nodes, (&settings, LONG), |communicator, stream| {
            let (rank, ranks) = (communicator.rank().0, communicator.num_ranks());
            let collectives =
                communicator.attach_device(&stream).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(collectives.name(), format!("hierarchical: peer memory, {name}"));
            for len in [1, 5, 1031] {
                let memory = Memory::new(&stream, ranks, len);
                memory.fill(rank, 1, ranks, len);
                memory.enqueue(&*collectives, &stream, len).unwrap();
                finish(&*collectives, &stream).unwrap();
                memory.verify(rank, 1, ranks, len);
            }
            collectives.close().unwrap();
        });
        assert_eq!(fabric.violations(), Vec::<String>::new());
    }
}

/// More exchanges than there are triggers in the ring, several times around the slots.
#[test]
fn a_captured_step_drives_the_nics_again_at_each_replay() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(3, NetworkModel::ROUGH, 2, 2);
    on_rails(&fabric, &[2, 2], LONG, |communicator, stream| {
        replay_all(communicator.attach_device(&stream).unwrap(), &stream, 20);
    });
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

/// Replays that no one waits for between them: slots take turns while strips are on their way.
#[test]
fn replays_one_after_another_keep_to_the_slots() {
    if !has_devices(6) {
        return;
    }
    for nodes in [&[2, 2][..], &[2, 2, 2]] {
        let fabric = Fabric::rails(11, NetworkModel::ROUGH, nodes.len(), 2);
        on_rails(&fabric, nodes, LONG, |communicator, stream| {
            let collectives = communicator.attach_device(&stream).unwrap();
            let memory = upload(&stream, &[1.0; 300]);
            let cuda = stream.cuda_body();
            let body = || {
                collectives.all_reduce_f32(&stream, memory.ptr(), 300).expect("enqueued");
                Ok(())
            };
            let graph = cuda.capture(body).unwrap();
            for _ in 0..9 {
                graph.launch(cuda);
            }
            finish(&*collectives, &stream).unwrap();
            assert_eq!(download(&memory), [(2.0 * nodes.len() as f32).powi(9); 300]);
            collectives.close().unwrap();
        });
        assert_eq!(fabric.violations(), Vec::<String>::new());
    }
}

#[test]
fn without_gpudirect_strips_go_through_the_host_or_not_at_all() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(7, NetworkModel::CALM, 2, 2);
    fabric.refuse_dmabufs();
    let attached = |gpudirect| {
        let settings = VerbsSettings { gpudirect, ..VerbsSettings::default() };
        on_rails_with(&fabric, &[2, 2], (&settings, LONG), |communicator, stream| {
            let collectives =
                communicator.attach_device(&stream).map_err(|error| error.to_string());
            collectives.map(|collectives| {
                let name = collectives.name().to_owned();
                collectives.close().unwrap();
                name
            })
        })
    };
    let refused = "registering a dmabuf: operation not supported";
    for name in attached(Feature::Auto) {
        let name = name.unwrap();
        assert!(name.contains("verbs through host memory (no GPUDirect: "), "{name}");
        assert!(name.contains(refused), "{name}");
    }
    for error in attached(Feature::Require) {
        let error = error.unwrap_err();
        assert!(error.contains("rank 0: `comm.verbs.gpudirect = \"require\"`: "), "{error}");
        assert!(error.contains(refused), "{error}");
    }
}

#[test]
fn sums_over_nics_have_the_bits_of_sums_between_hosts() {
    if !has_devices(8) {
        return;
    }
    for nodes in [&[2, 2][..], &[4, 4], &[3, 3], &[2, 2, 2], &[2, 2, 2, 2]] {
        let between_hosts = run_ranks(&Topology::from_node_sizes(nodes), |communicator| {
            let mut data = uneven(communicator.rank().0);
            communicator.all_reduce(&mut data).unwrap();
            data
        });
        let fabric = Fabric::rails(5, NetworkModel::CALM, nodes.len(), nodes[0]);
        let sums = on_rails(&fabric, nodes, LONG, |communicator, stream| {
            let own = uneven(communicator.rank().0);
            let memory = upload(&stream, &own);
            let collectives = communicator.attach_device(&stream).expect("attached");
            collectives.all_reduce_f32(&stream, memory.ptr(), own.len()).expect("enqueued");
            finish(&*collectives, &stream).expect("done");
            collectives.close().expect("closed");
            download(&memory)
        });
        assert_eq!(sums, between_hosts, "{nodes:?}");
    }
}

/// After a failure no one knows when peers have ended: what they may still read or write stays
/// where it is.
fn keep_for_peers<T>(memory: T) {
    std::mem::forget(memory);
}

#[test]
fn a_node_that_is_switched_off_is_named_on_all_ranks() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(2, NetworkModel::CALM, 2, 2);
    let ends = on_rails(&fabric, &[2, 2], LONG, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        let memory = upload(&stream, &[1.0; 64]);
        collectives.all_reduce_f32(&stream, memory.ptr(), 64).expect("enqueued");
        finish(&*collectives, &stream).expect("all is well so far");
        communicator.barrier().expect("all is well so far");
        fabric.kill_node(1);
        let started = Instant::now();
        let enqueued = collectives.all_reduce_f32(&stream, memory.ptr(), 64);
        let error =
            enqueued.and_then(|()| finish(&*collectives, &stream)).expect_err("a node is gone");
        assert!(started.elapsed() < LONG / 2, "the NIC's answer came before the deadline");
        let _ = stream.synchronize();
        keep_for_peers((collectives, memory));
        error
    });
    assert!(ends.iter().all(|error| error == &ends[0]), "{ends:?}");
    assert!(matches!(ends[0], CommError::Device { .. }), "{ends:?}");
    let text = ends[0].to_string();
    assert!(text.contains("the rail to rank") && text.contains("no answer"), "{text}");
}

#[test]
fn a_nic_that_breaks_while_no_device_works_is_named_on_all_ranks() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(2, NetworkModel::CALM, 2, 2);
    let ends = on_rails(&fabric, &[2, 2], LONG, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        communicator.barrier().expect("all is well so far");
        if communicator.rank() == Rank(0) {
            fabric.port_down(1, "fake1", 1);
        }
        let started = Instant::now();
        let mut told = Ok(());
        while told.is_ok() && started.elapsed() < LONG / 4 {
            std::thread::sleep(Duration::from_millis(2));
            // Nothing is enqueued, and the collectives are not asked.
            told = communicator.check();
        }
        keep_for_peers(collectives);
        told.expect_err("all hear of it").to_string()
    });
    assert!(ends.iter().all(|text| text == &ends[0]), "{ends:?}");
    assert!(ends[0].contains("rank 3: ") && ends[0].contains("fake1: port 1 is down"), "{ends:?}");
}

#[test]
fn a_port_that_comes_back_before_the_nic_gives_up_ends_nothing() {
    if !has_devices(4) {
        return;
    }
    let model = NetworkModel { retry: 1 << 40, ..NetworkModel::CALM };
    let fabric = Fabric::rails(2, model, 2, 2);
    on_rails(&fabric, &[2, 2], LONG, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        let memory = upload(&stream, &[1.0; 300]);
        for round in 1..=3 {
            communicator.barrier().expect("all is well");
            if communicator.rank() == Rank(3) {
                fabric.port_down(1, "fake1", 1);
            }
            communicator.barrier().expect("all is well");
            let begun = Instant::now();
            collectives.all_reduce_f32(&stream, memory.ptr(), 300).expect("enqueued");
            if communicator.rank() == Rank(3) {
                std::thread::sleep(Duration::from_millis(200));
                fabric.port_up(1, "fake1", 1);
            }
            finish(&*collectives, &stream).expect("all is well");
            if [Rank(1), Rank(3)].contains(&communicator.rank()) {
                assert!(begun.elapsed() >= Duration::from_millis(150), "nothing passes meanwhile");
            }
            assert_eq!(download(&memory), [4.0_f32.powi(round); 300]);
        }
        collectives.close().expect("closed");
    });
}

#[test]
fn a_rank_that_never_begins_an_exchange_is_named_at_the_deadline() {
    if !has_devices(4) {
        return;
    }
    // Kernels are compiled before the clock runs.
    on_rails(&Fabric::rails(2, NetworkModel::CALM, 2, 2), &[2, 2], LONG, |communicator, stream| {
        communicator.attach_device(&stream).expect("attached").close().expect("closed");
    });
    let (fabric, deadline) =
        (Fabric::rails(2, NetworkModel::CALM, 2, 2), Duration::from_millis(1500));
    let ends = on_rails(&fabric, &[2, 2], deadline, |communicator, stream| {
        let collectives = communicator.attach_device(&stream).expect("attached");
        let memory = upload(&stream, &[1.0; 64]);
        let mut told = Ok(());
        if communicator.topology().node_of(communicator.rank()) == 0 {
            told = collectives.all_reduce_f32(&stream, memory.ptr(), 64);
            told = told.and_then(|()| finish(&*collectives, &stream));
        }
        while told.is_ok() {
            std::thread::sleep(Duration::from_millis(2));
            told = collectives.check();
        }
        let _ = stream.synchronize();
        keep_for_peers((collectives, memory));
        told.expect_err("it ends with an error")
    });
    assert!(ends.iter().all(|error| error == &ends[0]), "{ends:?}");
    let text = ends[0].to_string();
    let named = [2, 3].iter().any(|rank| text.contains(&format!("from rank {rank} in time")));
    assert!(named && text.contains("exchange number 1 "), "{text}");
}

#[test]
fn nodes_of_several_sizes_are_refused_with_a_reason() {
    if !has_devices(3) {
        return;
    }
    let fabric = Fabric::rails(2, NetworkModel::CALM, 2, 2);
    let texts = on_rails(&fabric, &[2, 1], LONG, |communicator, stream| {
        communicator.attach_device(&stream).map(|_| ()).unwrap_err().to_string()
    });
    assert!(
        texts.iter().all(|text| text.contains("nodes of one size, and these have [2, 1] ranks")),
        "{texts:?}"
    );
    assert!(texts.iter().all(|text| text.contains(&format!("{}:", Rank(0)))), "{texts:?}");
}
