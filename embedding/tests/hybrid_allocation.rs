//! After the first step nothing allocates, on many ranks either. One test only: the allocator
//! counts for the whole process.

#[cfg(test)]
mod common;

use common::{Jagged, matrix, random_bags, views};
use headlong_device::optimizer::Step;
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_device::{JaggedRef, Mat, Stream};
use headlong_embedding::hybrid::*;
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{Ids, Pooling, SetOptions, TableSpec};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RANKS: usize = 2;
const SAMPLES: usize = 512;

struct Rank {
    set: HybridSet,
    route: HybridRoute,
    vectors: Mat,
    ids: Vec<u64>,
    to_send: Vec<f32>,
    received: Vec<f32>,
    frequent: Vec<f32>,
}

/// Copies what each rank sends to each to where it belongs.
fn exchange<T: Copy>(sent: [(&[T], [usize; RANKS]); RANKS], received: [&mut [T]; RANKS]) {
    for (rank, out) in received.into_iter().enumerate() {
        let mut at = 0;
        for (buffer, counts) in &sent {
            let first: usize = counts[..rank].iter().sum();
            out[at..at + counts[rank]].copy_from_slice(&buffer[first..first + counts[rank]]);
            at += counts[rank];
        }
    }
}

fn step(
    stream: &Stream,
    ranks: &mut [Rank; RANKS],
    ids: &[Vec<JaggedRef>; RANKS],
    known: bool,
    number: u64,
) {
    for (rank, ids) in ranks.iter_mut().zip(ids) {
        rank.set.route(stream, ids, SAMPLES, &mut rank.route).expect("the stage succeeds");
    }
    let [one, two] = ranks;
    if known {
        let all: [&dyn Ids; RANKS] = [&ids[0], &ids[1]];
        one.set.accept_known(stream, &mut one.route, &all).expect("the stage succeeds");
        two.set.accept_known(stream, &mut two.route, &all).expect("the stage succeeds");
    } else {
        let counts = [&*one, &*two].map(|rank| {
            <[u32; 4]>::try_from(rank.route.request_counts()).expect("the stage succeeds")
        });
        for (owner, rank) in [&mut *one, &mut *two].into_iter().enumerate() {
            for (source, counts) in counts.iter().enumerate() {
                rank.route.asked_counts_mut()[2 * source..][..2]
                    .copy_from_slice(&counts[2 * owner..][..2]);
            }
        }
        for rank in [&mut *one, &mut *two] {
            let exchange = rank.route.id_exchange().expect("the stage succeeds");
            rank.ids[..exchange.requests.len()].copy_from_slice(exchange.requests);
        }
        let counts = [&mut *one, &mut *two].map(|rank| {
            two_of(rank.route.id_exchange().expect("the stage succeeds").request_counts)
        });
        let (a, b) = (
            one.route.id_exchange().expect("the stage succeeds"),
            two.route.id_exchange().expect("the stage succeeds"),
        );
        exchange([(&one.ids, counts[0]), (&two.ids, counts[1])], [a.asked, b.asked]);
        one.set.accept(stream, &mut one.route).expect("the stage succeeds");
        two.set.accept(stream, &mut two.route).expect("the stage succeeds");
    }
    for (rank, ids) in [&mut *one, &mut *two].into_iter().zip(ids) {
        let sent: usize = rank.route.vector_exchange().0.iter().sum();
        rank.set
            .answer(stream, &rank.route, &mut rank.to_send[..sent])
            .expect("the stage succeeds");
        rank.set
            .lookup_frequent(stream, ids, &rank.route, &rank.vectors)
            .expect("the stage succeeds");
    }
    let counts = [&*one, &*two].map(|rank| two_of(rank.route.vector_exchange().0));
    exchange(
        [(&one.to_send, counts[0]), (&two.to_send, counts[1])],
        [&mut one.received, &mut two.received],
    );
    for (rank, ids) in [&mut *one, &mut *two].into_iter().zip(ids) {
        let requested: usize = rank.route.vector_exchange().1.iter().sum();
        rank.set
            .pool(stream, ids, &rank.route, &rank.received[..requested], &rank.vectors)
            .expect("the stage succeeds");
        let to_owners = &mut rank.to_send[..requested];
        rank.set.reduce(stream, &rank.route, &rank.vectors, to_owners, &mut rank.frequent);
    }
    let counts = [&*one, &*two].map(|rank| two_of(rank.route.vector_exchange().1));
    exchange(
        [(&one.to_send, counts[0]), (&two.to_send, counts[1])],
        [&mut one.received, &mut two.received],
    );
    one.frequent.iter_mut().zip(&two.frequent).for_each(|(a, b)| *a += b);
    two.frequent.copy_from_slice(&one.frequent);
    for rank in [one, two] {
        let arrived: usize = rank.route.vector_exchange().0.iter().sum();
        let step = Step { learning_rate: 0.1, number };
        rank.set
            .update_infrequent(stream, &rank.route, &rank.received[..arrived], &step)
            .expect("the stage succeeds");
        rank.set
            .update_frequent(stream, &rank.frequent, 0..rank.frequent.len(), &step)
            .expect("the stage succeeds");
    }
}

fn two_of(counts: &[usize]) -> [usize; RANKS] {
    [counts[0], counts[1]]
}

#[test]
fn no_step_allocates() {
    let stream = Stream::cpu(2);
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("b", 60, 35) };
    let specs = [TableSpec::new("a", 100_000, 16), mean];
    let placements = vec![
        TablePlacement::RowWise { frequent: (0..500).collect(), placed: vec![(700, Owner(1))] },
        TablePlacement::RowWise { frequent: (0..10).collect(), placed: vec![] },
    ];
    let partition =
        Arc::new(Partition::new(&specs, RANKS, placements).expect("the stage succeeds"));
    for optimizer in every_optimizer() {
        let mut ranks = [0, 1].map(|rank| {
            let options = HybridOptions {
                set: SetOptions {
                    optimizer,
                    seed: 3,
                    max_samples: SAMPLES,
                    max_ids: &[SAMPLES, 4 * SAMPLES],
                    sum_blocks: 1,
                    frozen: false,
                },
                partition: Arc::clone(&partition),
                owner: Owner(rank),
                deduplicate: Deduplicate::Rank,
                slot_factor: DEFAULT_SLOT_FACTOR,
            };
            let set = HybridSet::new(&Default::default(), &stream, &specs, &options)
                .expect("the stage succeeds");
            let longest = set.max_requested_elements().max(set.max_asked_elements());
            Rank {
                route: set.new_route(),
                vectors: matrix(SAMPLES, set.width(), &vec![0.0; SAMPLES * set.width()]).1,
                ids: vec![0; 5 * SAMPLES],
                to_send: vec![0.0; longest],
                received: vec![0.0; longest],
                frequent: vec![0.0; set.frequent_len()],
                set,
            }
        });
        let batches = [1, 2, 3, 4].map(|seed| {
            [0, 10].map(|rank| {
                [
                    Jagged::new(&random_bags(seed + rank, SAMPLES, 100_000, 0)),
                    Jagged::new(&random_bags(seed + rank, SAMPLES, 60, 4)),
                ]
            })
        });
        let ids = batches.each_ref().map(|batch| batch.each_ref().map(|slice| views(slice)));
        // The first bags take what one-hot batches never need.
        step(&stream, &mut ranks, &ids[0], false, 1);
        let before = allocations();
        for (number, ids) in (2..).zip(&ids[1..]) {
            step(&stream, &mut ranks, ids, number == 3, number);
        }
        assert_eq!(
            allocations() - before,
            0,
            "allocations in three steps with {}",
            optimizer.name()
        );
    }
}
