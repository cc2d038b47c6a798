//! A set and its oracle side by side.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub mod cases;
pub mod custom;
pub mod device;
pub mod device_ranks;
pub mod quotient_remainder;
pub mod ranks;
pub mod whole;

use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::rng::CounterRng;
use headlong_device::{Arena, ArenaPlan, DType, JaggedRef, Mat, Stream};
use headlong_embedding::oracle::OracleTable;
use headlong_embedding::{EmbeddingSet, Route, SetOptions, TableSpec};

/// Bags of one table for one batch.
#[derive(Debug, Clone)]
pub struct Jagged {
    pub values: Vec<u64>,
    pub offsets: Vec<u32>,
}

impl Jagged {
    pub fn new(bags: &[Vec<u64>]) -> Self {
        let mut offsets = vec![0];
        bags.iter().for_each(|bag| offsets.push(offsets[offsets.len() - 1] + bag.len() as u32));
        Self { values: bags.concat(), offsets }
    }

    pub fn view(&self) -> JaggedRef<'_> {
        JaggedRef::new(&self.values, &self.offsets)
    }
}

pub fn views(ids: &[Jagged]) -> Vec<JaggedRef<'_>> {
    ids.iter().map(Jagged::view).collect()
}

/// Bags of `0 ..= longest` skewed row indices (`1` each for `longest == 0`), many of them repeated.
pub fn random_bags(seed: u64, samples: usize, rows: u64, longest: u64) -> Vec<Vec<u64>> {
    let rng = CounterRng::new(seed, rows);
    let bag = |sample: u64| {
        let [words, ..] = rng.bits(sample << 20);
        let len = if longest == 0 { 1 } else { u64::from(words) % (longest + 1) };
        let row = |i: u64| {
            let u = f64::from(rng.uniform((sample << 20) + 4 * i + 4));
            ((u * u * u * rows as f64) as u64).min(rows - 1)
        };
        (0..len).map(row).collect()
    };
    (0..samples as u64).map(bag).collect()
}

/// A matrix in an arena of its own.
pub fn matrix(rows: usize, cols: usize, values: &[f32]) -> (Arena, Mat) {
    let mut plan = ArenaPlan::new("test");
    let slot = plan.matrix("matrix", DType::F32, rows, cols);
    let arena = plan.freeze().unwrap();
    let mat = arena.mat(slot);
    mat.write::<f32>().data_mut().copy_from_slice(values);
    (arena, mat)
}

pub struct Pair {
    pub set: EmbeddingSet,
    pub oracle: Vec<OracleTable>,
    pub specs: Vec<TableSpec>,
    pub sum_blocks: usize,
    pub route: Route,
}

impl Pair {
    pub fn new(
        stream: &Stream,
        specs: &[TableSpec],
        optimizer: Optimizer,
        sum_blocks: usize,
    ) -> Self {
        let max_ids = vec![20_000; specs.len()];
        let options = SetOptions {
            optimizer,
            seed: 11,
            max_samples: 4096,
            max_ids: &max_ids,
            sum_blocks,
            frozen: false,
            narrow: None,
        };
        let set = EmbeddingSet::new(stream, specs, &options).unwrap();
        let oracle = specs
            .iter()
            .enumerate()
            .map(|(t, s)| OracleTable::new(s, optimizer, 11, t as u64))
            .collect();
        let route = set.new_route().unwrap();
        Self { set, oracle, specs: specs.to_vec(), sum_blocks, route }
    }

    /// Makes all weights small integers, on both sides.
    pub fn with_integer_weights(mut self) -> Self {
        for (table, spec) in self.specs.iter().enumerate() {
            let values = headlong_device::testing::small_integers(
                table as u64,
                spec.rows as usize * spec.dim,
            );
            self.set.write_rows(table, 0, 0, &values).unwrap();
            for (row, weights) in values.chunks(spec.dim).enumerate() {
                self.oracle[table].row(row as u64).weights = weights.to_vec();
            }
        }
        self
    }

    /// Lookup on both sides, equal bit for bit.
    pub fn lookup(&mut self, stream: &Stream, bags: &[Vec<Vec<u64>>]) {
        let ids: Vec<_> = bags.iter().map(|bags| Jagged::new(bags)).collect();
        let samples = bags[0].len();
        let (_arena, vectors) =
            matrix(samples, self.set.width(), &vec![f32::NAN; samples * self.set.width()]);
        self.set.lookup(stream, &views(&ids), &vectors).unwrap();
        let got = vectors.read::<f32>();
        let mut column = 0;
        for (table, spec) in self.specs.iter().enumerate() {
            for (sample, expected) in self.oracle[table].lookup(&bags[table]).iter().enumerate() {
                let got = &got.row(sample)[column..column + spec.dim];
                assert_eq!(
                    bits(got),
                    bits(expected),
                    "table {table}, sample {sample}: {got:?} {expected:?}"
                );
            }
            column += spec.dim;
        }
    }

    /// One update on both sides.
    pub fn update(
        &mut self,
        stream: &Stream,
        bags: &[Vec<Vec<u64>>],
        d_vectors: &[f32],
        step: &Step,
    ) {
        let ids: Vec<_> = bags.iter().map(|bags| Jagged::new(bags)).collect();
        let samples = bags[0].len();
        let (_arena, mat) = matrix(samples, self.set.width(), d_vectors);
        self.set.route(stream, &views(&ids), &mut self.route).unwrap();
        self.set.update(stream, &self.route, &mat, step).unwrap();
        let mut column = 0;
        for (table, spec) in self.specs.iter().enumerate() {
            let rows = d_vectors.chunks(self.set.width());
            let part: Vec<_> = rows.map(|row| row[column..column + spec.dim].to_vec()).collect();
            self.oracle[table].update(&bags[table], &part, step, self.sum_blocks);
            column += spec.dim;
        }
    }

    /// The weights of all tables.
    pub fn weight_bits(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for (table, spec) in self.specs.iter().enumerate() {
            let mut rows = vec![0.0; spec.rows as usize * spec.dim];
            self.set.read_rows(table, 0, 0, &mut rows).unwrap();
            all.extend(bits(&rows));
        }
        all
    }

    /// All rows and states on both sides are equal bit for bit.
    pub fn assert_equal(&mut self) {
        for (table, spec) in self.specs.iter().enumerate() {
            for row in 0..spec.rows {
                let expected = self.oracle[table].row(row).clone();
                let tensors = std::iter::once(&expected.weights).chain(&expected.states);
                for (tensor, expected) in tensors.enumerate() {
                    let mut got = vec![0.0; expected.len()];
                    self.set.read_rows(table, tensor, row, &mut got).unwrap();
                    assert_eq!(
                        bits(&got),
                        bits(expected),
                        "table {table}, tensor {tensor}, row {row}: {got:?} {expected:?}"
                    );
                }
            }
        }
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
