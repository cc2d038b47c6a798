//! The slow, obvious version: what every op of this crate is measured against.
//!
//! One object holds everything (many ranks: [`OracleRanks`]); a row is a list of numbers in a map,
//! a bag is a list of row indices, and each stage is a few lines that say what the op computes.
//! Sums are f32 in the order that the ops promise, so results are compared bit for bit;
//! [`OracleTable::exact_gradients`] is the f64 sum for bounds.

mod ranks;

pub use ranks::{OracleBags, OracleRanks, Request};

use crate::init::InitialValues;
use crate::table::{Pooling, TableSpec};
use headlong_device::DType;
use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::rng::CounterRng;
use std::collections::{BTreeMap, HashMap};

/// A batch of one table: the row indices of each sample.
pub type Bags = [Vec<u64>];

/// One row: its weights and optimiser states.
#[derive(Debug, Clone, PartialEq)]
pub struct OracleRow {
    /// `dim` weights.
    pub weights: Vec<f32>,
    /// Each state of the optimiser, `dim` or one number.
    pub states: Vec<Vec<f32>>,
}

/// One table, its rows made when first asked for.
#[derive(Debug, Clone)]
pub struct OracleTable {
    spec: TableSpec,
    optimizer: Optimizer,
    initial: InitialValues,
    seed: u64,
    table_index: u64,
    rows: HashMap<u64, OracleRow>,
}

impl OracleTable {
    /// Table number `table_index` of a model under `seed`.
    pub fn new(spec: &TableSpec, optimizer: Optimizer, seed: u64, table_index: u64) -> Self {
        let initial = InitialValues::new(spec, seed, table_index);
        Self { spec: spec.clone(), optimizer, initial, seed, table_index, rows: HashMap::new() }
    }

    /// Row `row` as it is now.
    pub fn row(&mut self, row: u64) -> &mut OracleRow {
        let dim = self.spec.dim;
        self.rows.entry(row).or_insert_with(|| {
            let mut weights = vec![0.0; dim];
            self.initial.fill(row * dim as u64, &mut weights);
            if self.spec.dtype == DType::Bf16 {
                weights.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
            }
            let width = |state: StateWidth| if state == StateWidth::PerRow { 1 } else { dim };
            let states = self.optimizer.states();
            OracleRow {
                weights,
                states: states.iter().map(|s| vec![s.initial; width(s.width)]).collect(),
            }
        })
    }

    /// The factor of a bag's rows: 1 for sums, one over the bag's length for means.
    fn factor(&self, bag: &[u64]) -> f32 {
        match self.spec.pooling {
            Pooling::Sum => 1.0,
            Pooling::Mean => 1.0 / bag.len() as f32,
        }
    }

    /// One pooled vector per sample.
    pub fn lookup(&mut self, bags: &Bags) -> Vec<Vec<f32>> {
        let mut vectors = Vec::new();
        for bag in bags {
            let mut vector: Option<Vec<f32>> = None;
            for &row in bag {
                let weights = self.row(row).weights.clone();
                vector = Some(match vector {
                    None => weights,
                    Some(sum) => sum.iter().zip(&weights).map(|(a, b)| a + b).collect(),
                });
            }
            let factor = self.factor(bag);
            let vector = vector.unwrap_or_else(|| vec![0.0; self.spec.dim]);
            vectors.push(if bag.is_empty() {
                vector
            } else {
                vector.iter().map(|x| x * factor).collect()
            });
        }
        vectors
    }

    /// The gradient of each row that occurs: per block of samples in sample order, then over all
    /// blocks in the tree.
    pub fn gradients(
        &self,
        bags: &Bags,
        d_vectors: &[Vec<f32>],
        sum_blocks: usize,
    ) -> BTreeMap<u64, Vec<f32>> {
        let block_len = crate::update::sum_block_len(bags.len(), sum_blocks);
        let zeros = vec![0.0; self.spec.dim];
        let mut blocks_of_rows: BTreeMap<u64, Vec<Vec<f32>>> = BTreeMap::new();
        for (sample, bag) in bags.iter().enumerate() {
            for &row in bag {
                let blocks =
                    blocks_of_rows.entry(row).or_insert_with(|| vec![zeros.clone(); sum_blocks]);
                let sum = &mut blocks[sample / block_len];
                let factor = self.factor(bag);
                sum.iter_mut().zip(&d_vectors[sample]).for_each(|(sum, g)| *sum += g * factor);
            }
        }
        blocks_of_rows.into_iter().map(|(row, blocks)| (row, tree_sum(blocks))).collect()
    }

    /// The gradient of each row that occurs, and the sum of the magnitudes of its terms, in f64.
    pub fn exact_gradients(
        &self,
        bags: &Bags,
        d_vectors: &[Vec<f32>],
    ) -> BTreeMap<u64, (Vec<f64>, Vec<f64>)> {
        let zeros = vec![0.0_f64; self.spec.dim];
        let mut sums = BTreeMap::new();
        for (bag, d_vector) in bags.iter().zip(d_vectors) {
            let factor = match self.spec.pooling {
                Pooling::Sum => 1.0,
                Pooling::Mean => 1.0 / bag.len() as f64,
            };
            for &row in bag {
                let (sum, magnitude) =
                    sums.entry(row).or_insert_with(|| (zeros.clone(), zeros.clone()));
                for (column, &g) in d_vector.iter().enumerate() {
                    sum[column] += f64::from(g) * factor;
                    magnitude[column] += (f64::from(g) * factor).abs();
                }
            }
        }
        sums
    }

    /// One optimiser step on each row that occurs.
    pub fn update(&mut self, bags: &Bags, d_vectors: &[Vec<f32>], step: &Step, sum_blocks: usize) {
        let optimizer = self.optimizer;
        for (row, gradient) in self.gradients(bags, d_vectors, sum_blocks) {
            self.step(row, &gradient, &optimizer, step);
        }
    }

    /// One optimiser step on one row.
    fn step(&mut self, row: u64, gradient: &[f32], optimizer: &Optimizer, step: &Step) {
        let held = self.row(row);
        let mut states = held.states.iter_mut();
        let first = states.next().map_or(&mut [][..], |state| state);
        let second = states.next().map_or(&mut [][..], |state| state);
        optimizer.apply(step, &mut held.weights, first, second, gradient);
        if self.spec.dtype == DType::Bf16 {
            let exact = self.row(row).weights.clone();
            let rounded =
                exact.iter().enumerate().map(|(column, &x)| self.by_chance(x, step, row, column));
            let rounded = rounded.collect();
            self.row(row).weights = rounded;
        }
    }

    /// A weight as bf16: of its two neighbours the upper one with the probability that keeps the
    /// mean. A number of 16 bits decides, which belongs to seed, step, table, row and column; eight
    /// columns share the four words of one counter.
    fn by_chance(&self, weight: f32, step: &Step, row: u64, column: usize) -> f32 {
        let numbers = CounterRng::new(self.seed, step.number << 32 | self.table_index);
        let words = numbers.bits(row * self.spec.dim.div_ceil(8) as u64 + column as u64 / 8);
        let bytes = words.map(u32::to_le_bytes).concat();
        let random = u16::from_le_bytes([bytes[2 * (column % 8)], bytes[2 * (column % 8) + 1]]);
        // The bits of a float rise with its magnitude: the lower half says how far it is beyond the
        // smaller neighbour.
        let (smaller, beyond) = (weight.to_bits() & 0xffff_0000, weight.to_bits() & 0xffff);
        let up = beyond + u32::from(random) > 0xffff;
        f32::from_bits(if up { smaller + 0x1_0000 } else { smaller })
    }
}

/// Neighbours first: 0+1, 2+3, …, then (0+1)+(2+3), …; a part without a neighbour waits.
pub fn tree_sum(mut parts: Vec<Vec<f32>>) -> Vec<f32> {
    while parts.len() > 1 {
        parts = parts
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => left.iter().zip(right).map(|(a, b)| a + b).collect(),
                one => one.concat(),
            })
            .collect();
    }
    parts.pop().unwrap_or_default()
}
