//! One rank's tables on a CUDA device and on the CPU: the same bodies of tests, against the oracle and against each other.

#[cfg(test)]
mod common;

#[cfg(test)]
mod cuda_tests {
    use super::common::device::{Alone, Plan, assert_bits, assert_near, oracle};
    use super::common::ranks::Bags;
    use super::common::{Jagged, random_bags, views};
    use headlong_device::Stream;
    use headlong_device::cuda::testing::{stream, streams};
    use headlong_device::optimizer::{Optimizer, Step};
    use headlong_device::testing::{small_integers, uniform};
    use headlong_embedding::hybrid::{Deduplicate, HybridOptions, HybridSet, Owner, Partition};
    use headlong_embedding::testing::every_optimizer;
    use headlong_embedding::{Pooling, Registry, SetOptions, TableSpec};
    use std::sync::Arc;

    fn mean(name: &str, rows: u64, dim: usize) -> TableSpec {
        TableSpec { pooling: Pooling::Mean, ..TableSpec::new(name, rows, dim) }
    }

    /// One-hot, one-hot, means of 0 to 4 ids, weighted sums of 0 to 3, sums of 0 to 2.
    fn batch(specs: &[TableSpec], seed: u64, samples: usize) -> Vec<Bags> {
        let longest = [0, 0, 4, 3, 2];
        let tables = specs.iter().zip(longest).enumerate().map(|(table, (spec, longest))| {
            let bags = random_bags(seed, samples, spec.rows, longest);
            let mut numbers = uniform(seed + 7, bags.concat().len()).into_iter();
            let weights = bags.iter().map(|bag| bag.iter().map(|_| numbers.next().unwrap()).collect());
            Bags { weights: (table == 3).then(|| weights.collect()), bags }
        });
        tables.collect()
    }

    /// Batches of several sizes through every optimiser: vectors, then all rows and states.
    fn check_steps(stream: &Stream, dims: [usize; 5], optimizer: Optimizer) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let specs = [
            TableSpec::new("a", 3, dims[0]),
            TableSpec::new("b", 500, dims[1]),
            mean("c", 40, dims[2]),
            TableSpec::new("d", 300, dims[3]),
            TableSpec::new("e", 1, dims[4]),
        ];
        let plan =
            Plan { specs: &specs, optimizer, max_samples: 150, max_ids: &[150, 150, 600, 600, 600], frozen: false };
        let mut alone = Alone::new(stream, &plan);
        let mut vectors = Vec::new();
        for (number, samples) in [(1, 150), (2, 61), (3, 7), (4, 0), (5, 150)] {
            vectors.push(alone.forward(&batch(&specs, number, samples)));
            let d_vectors = uniform(number, samples * alone.set.width());
            alone.backward(&d_vectors, &Step { learning_rate: 0.1, number });
        }
        (vectors, alone.tensors())
    }

    /// A row's gradients are added in another order where it has more than 32 entries. The sums differ by at most
    /// `n · 2^-24 · Σ|g|` with n ≤ 600 entries of |g| < 1, hence 2.2e-2 at worst and far less in fact; optimisers that divide by
    /// a root of squares take it on relatively.
    fn assert_equal_steps(dims: [usize; 5], optimizer: Optimizer) {
        let all = streams();
        let [cpu, cuda] = &all[..] else { return };
        let (expected, got) = (check_steps(cpu, dims, optimizer), check_steps(cuda, dims, optimizer));
        assert_bits(&got.0[0], &expected.0[0], "vectors of the first step");
        for (step, (got, expected)) in got.0.iter().zip(&expected.0).enumerate() {
            assert_near(got, expected, 1e-4, 1e-4, &format!("{optimizer:?}: vectors of step {step}"));
        }
        for (tensor, (got, expected)) in got.1.iter().zip(&expected.1).enumerate() {
            assert_near(got, expected, 1e-4, 1e-4, &format!("{optimizer:?}: tensor {tensor}"));
        }
    }

    #[test]
    fn every_optimizer_steps_as_on_the_cpu() {
        for optimizer in every_optimizer() {
            assert_equal_steps([16; 5], optimizer);
        }
    }

    #[test]
    fn dims_of_every_kind_step_as_on_the_cpu() {
        for optimizer in [Optimizer::Sgd, Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 }] {
            assert_equal_steps([16, 20, 33, 70, 1], optimizer);
        }
    }
}
