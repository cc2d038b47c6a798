//! What only an allocator that counts can tell. It counts for the whole process, so the tests run
//! one after the other.

#[cfg(test)]
mod common;

use common::whole::{Broken, Shape, WholeKind};
use common::{Jagged, matrix, random_bags, views};
use headlong_device::Stream;
use headlong_device::optimizer::Step;
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_embedding::testing::{check_table, every_optimizer};
use headlong_embedding::{EmbeddingSet, Grain, Pooling, SetOptions, TableSpec};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn tables_say_how_much_they_allocate() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut wrong = Vec::new();
    let spec = TableSpec { grain: Grain::Whole, ..TableSpec::new("own", 5000, 16) };
    // The sums of two hashed rows are so small that they may be wrong by more than they take.
    for shape in Shape::ALL.into_iter().filter(|&shape| shape != Shape::DoubleHash) {
        check_table(&WholeKind { shape, broken: Broken::Nothing }, &spec);
        std::panic::set_hook(Box::new(|_| {}));
        for broken in [Broken::MemoryIsHalf, Broken::MemoryGrows] {
            let checked =
                catch_unwind(AssertUnwindSafe(|| check_table(&WholeKind { shape, broken }, &spec)));
            let panic = checked.err();
            let found =
                panic.and_then(|panic| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            if !found.contains("and has allocated") {
                wrong.push(format!("{shape:?} {broken:?}: {found}"));
            }
        }
        let _ = std::panic::take_hook();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_step_allocates() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
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
            narrow: None,
        };
        let set = EmbeddingSet::new(&stream, &specs, &options).unwrap();
        let mut route = set.new_route().expect("there is memory");
        let batches = [1, 2, 3].map(|seed| {
            [
                Jagged::new(&random_bags(seed, 1024, 100_000, 0)),
                Jagged::new(&random_bags(seed, 1024, 60, 4)),
            ]
        });
        let ids = batches.each_ref().map(|batch| views(batch));
        let (_arena, vectors) = matrix(1024, set.width(), &vec![0.0; 1024 * set.width()]);
        let before = allocations();
        for (number, ids) in (1..).zip(&ids) {
            set.route(&stream, ids, &mut route).unwrap();
            set.lookup(&stream, ids, &vectors).unwrap();
            set.update(&stream, &route, &vectors, &Step { learning_rate: 0.1, number }).unwrap();
        }
        assert_eq!(
            allocations() - before,
            0,
            "allocations in three steps with {}",
            optimizer.name()
        );
    }
}
