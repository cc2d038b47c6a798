//! After the first step nothing allocates. One test only: the allocator counts for the whole process.

#[cfg(test)]
mod common;

use common::{Jagged, matrix, random_bags, views};
use headlong_device::Stream;
use headlong_device::optimizer::Step;
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{EmbeddingSet, Pooling, SetOptions, TableSpec};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn no_step_allocates() {
    let stream = Stream::cpu(2);
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("b", 60, 35) };
    let specs = [TableSpec::new("a", 100_000, 16), mean];
    for optimizer in every_optimizer() {
        let options = SetOptions {
            optimizer,
            seed: 3,
            max_samples: 1024,
            max_ids: &[1024, 4096],
            sum_blocks: 4,
            frozen: false,
        };
        let set = EmbeddingSet::new(&stream, &specs, &options).unwrap();
        let mut route = set.new_route();
        let batches = [1, 2, 3].map(|seed| {
            [Jagged::new(&random_bags(seed, 1024, 100_000, 0)), Jagged::new(&random_bags(seed, 1024, 60, 4))]
        });
        let ids = batches.each_ref().map(|batch| views(batch));
        let (_arena, vectors) = matrix(1024, set.width(), &vec![0.0; 1024 * set.width()]);
        let before = allocations();
        for (number, ids) in (1..).zip(&ids) {
            set.route(&stream, ids, &mut route).unwrap();
            set.lookup(&stream, ids, &vectors).unwrap();
            set.update(&stream, &route, &vectors, &Step { learning_rate: 0.1, number }).unwrap();
        }
        assert_eq!(allocations() - before, 0, "allocations in three steps with {}", optimizer.name());
    }
}
