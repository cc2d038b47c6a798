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
const TABLES: usize = 3;
const SAMPLES: usize = 512;

struct Rank {
    set: HybridSet,
    route: HybridRoute,
    vectors: Mat,
    ids: Vec<u64>,
    to_send: Mat,
    received: Mat,
    frequent: Mat,
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
        one.set.receive_known_requests(stream, &mut one.route, &all).expect("the stage succeeds");
        two.set.receive_known_requests(stream, &mut two.route, &all).expect("the stage succeeds");
    } else {
        let counts = [&*one, &*two].map(|rank| {
            <[u32; 2 * TABLES]>::try_from(rank.route.request_counts()).expect("the stage succeeds")
        });
        for (owner, rank) in [&mut *one, &mut *two].into_iter().enumerate() {
            for (source, counts) in counts.iter().enumerate() {
                rank.route.recv_counts_mut()[TABLES * source..][..TABLES]
                    .copy_from_slice(&counts[TABLES * owner..][..TABLES]);
            }
        }
        for rank in [&mut *one, &mut *two] {
            let exchange = rank.route.id_exchange().expect("the stage succeeds");
            rank.ids[..exchange.send.len()].copy_from_slice(exchange.send);
        }
        let counts = [&mut *one, &mut *two]
            .map(|rank| two_of(rank.route.id_exchange().expect("the stage succeeds").send_counts));
        let (a, b) = (
            one.route.id_exchange().expect("the stage succeeds"),
            two.route.id_exchange().expect("the stage succeeds"),
        );
        exchange([(&one.ids, counts[0]), (&two.ids, counts[1])], [a.receive, b.receive]);
        one.set.receive_requests(stream, &mut one.route).expect("the stage succeeds");
        two.set.receive_requests(stream, &mut two.route).expect("the stage succeeds");
    }
    for (rank, ids) in [&mut *one, &mut *two].into_iter().zip(ids) {
        rank.set.owner_lookup(stream, &rank.route, &rank.to_send).expect("the stage succeeds");
        rank.set
            .lookup_replicated(stream, ids, &rank.route, &rank.vectors)
            .expect("the stage succeeds");
    }
    exchange_rows(one, two, |route| route.vector_exchange().0);
    for (rank, ids) in [&mut *one, &mut *two].into_iter().zip(ids) {
        rank.set
            .pool(stream, ids, &rank.route, &rank.received, &rank.vectors)
            .expect("the stage succeeds");
        rank.set.reduce_rows(stream, &rank.route, &rank.vectors, &rank.to_send, &rank.frequent);
    }
    exchange_rows(one, two, |route| route.vector_exchange().1);
    {
        let (mut one, mut two) = (one.frequent.write::<f32>(), two.frequent.write::<f32>());
        one.data_mut().iter_mut().zip(two.data_mut()).for_each(|(a, b)| {
            *a += *b;
            *b = *a;
        });
    }
    for rank in [one, two] {
        let step = Step { learning_rate: 0.1, number };
        rank.set
            .update_owned(stream, &rank.route, &rank.received, &rank.received, &step)
            .expect("the stage succeeds");
        rank.set.update_replicated(stream, &rank.frequent, &step).expect("the stage succeeds");
    }
}

/// Copies rows, or gradients, of which each rank sends what `counts` says.
fn exchange_rows(one: &Rank, two: &Rank, counts: impl Fn(&HybridRoute) -> &[usize]) {
    let counts = [one, two].map(|rank| two_of(counts(&rank.route)));
    let sent = [one, two].map(|rank| rank.to_send.read::<f32>());
    let [mut first, mut second] = [one, two].map(|rank| rank.received.write::<f32>());
    exchange(
        [(sent[0].data(), counts[0]), (sent[1].data(), counts[1])],
        [first.data_mut(), second.data_mut()],
    );
}

fn two_of(counts: &[usize]) -> [usize; RANKS] {
    [counts[0], counts[1]]
}

#[test]
fn no_step_allocates() {
    let stream = Stream::cpu(2);
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("b", 60, 35) };
    let pooled = TableSpec::new("c", 900, 20);
    let specs = [TableSpec::new("a", 100_000, 16), mean, pooled];
    let placements = vec![
        TablePlacement::RowWise { frequent: (0..500).collect(), placed: vec![(700, Owner(1))] },
        TablePlacement::RowWise { frequent: (0..10).collect(), placed: vec![] },
        TablePlacement::by_formula(),
    ];
    let partition =
        Arc::new(Partition::new(&specs, RANKS, placements).expect("the stage succeeds"));
    let places = [PoolAt::Rank, PoolAt::Owner];
    for (optimizer, pool_at) in
        every_optimizer().into_iter().flat_map(|optimizer| places.map(|at| (optimizer, at)))
    {
        let mut ranks = [0, 1].map(|rank| {
            let options = HybridOptions {
                set: SetOptions {
                    optimizer,
                    seed: 3,
                    max_samples: SAMPLES,
                    max_ids: &[SAMPLES, 4 * SAMPLES, 6 * SAMPLES],
                    sum_blocks: 2,
                    frozen: false,
                    narrow: None,
                },
                partition: Arc::clone(&partition),
                owner: Owner(rank),
                deduplicate: Deduplicate::Rank,
                pool_at: &[PoolAt::Rank, PoolAt::Rank, pool_at],
                slots: SlotOptions::default(),
            };
            let set = HybridSet::new(&Default::default(), &stream, &specs, &options)
                .expect("the stage succeeds");
            let list = |len| matrix(len, 1, &vec![0.0; len]).1;
            let longest = set.max_recv_elements().max(set.max_send_elements());
            Rank {
                route: set.new_route().expect("there is memory"),
                vectors: matrix(SAMPLES, set.width(), &vec![0.0; SAMPLES * set.width()]).1,
                ids: vec![0; 17 * SAMPLES],
                to_send: list(longest),
                received: list(longest),
                frequent: list(set.frequent_len()),
                set,
            }
        });
        let batches = [1, 2, 3, 4].map(|seed| {
            [0, 10].map(|rank| {
                [
                    Jagged::new(&random_bags(seed + rank, SAMPLES, 100_000, 0)),
                    Jagged::new(&random_bags(seed + rank, SAMPLES, 60, 4)),
                    Jagged::new(&random_bags(seed + rank, SAMPLES, 900, 6)),
                ]
            })
        });
        let ids = batches.each_ref().map(|batch| batch.each_ref().map(|slice| views(slice)));
        // The first bags take what one-hot batches never need.
        step(&stream, &mut ranks, &ids[0], false, 1);
        let before = allocations();
        for (number, ids) in (2..).zip(&ids[1..]) {
            // Ids of bags that are pooled at the owner are exchanged.
            let known = number == 3 && pool_at == PoolAt::Rank;
            step(&stream, &mut ranks, ids, known, number);
        }
        assert_eq!(
            allocations() - before,
            0,
            "allocations in three steps with {}, pooled at {pool_at:?}",
            optimizer.name()
        );
    }
}
