//! One rank's tables on any stream, and the oracle next to them.

use super::ranks::Bags;
use super::{bits, ranks::Batch};
use headlong_device::cuda::{DeviceMemory, DeviceStep};
use headlong_device::dtype::Element;
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{Arena, ArenaPlan, DType, Mat, Stream, bf16};
use headlong_embedding::hybrid::{
    Deduplicate, HybridOptions, HybridRoute, HybridSet, Owner, Partition, PoolAt, SlotOptions,
};
use headlong_embedding::oracle::OracleTable;
use headlong_embedding::{Registry, SetOptions, TableSpec};
use std::sync::Arc;

/// A matrix in an arena of its own, in the stream's memory.
pub fn matrix_on<T: Element>(
    stream: &Stream,
    rows: usize,
    cols: usize,
    values: &[T],
) -> (Arena, Mat) {
    let mut plan = ArenaPlan::new("test");
    let slot = plan.matrix("matrix", T::DTYPE, rows, cols);
    let arena = plan.freeze_on(stream).unwrap();
    let mat = arena.mat(slot);
    mat.copy_from(values).unwrap();
    (arena, mat)
}

/// Gradients of vectors, rounded to `dtype`, f32 or bf16.
pub fn gradients_on(
    stream: &Stream,
    dtype: DType,
    rows: usize,
    cols: usize,
    values: &[f32],
) -> (Arena, Mat) {
    if dtype == DType::F32 {
        return matrix_on(stream, rows, cols, values);
    }
    let rounded: Vec<_> = values.iter().map(|&value| bf16::round(value)).collect();
    matrix_on(stream, rows, cols, &rounded)
}

/// Writes a step to device memory, as kernels read it.
pub fn upload_step(memory: &DeviceMemory, step: &Step, optimizer: &Optimizer) {
    let words = DeviceStep::new(step, optimizer).words();
    memory.write(0, &words.map(u32::to_ne_bytes).concat()).unwrap();
}

/// What a set is built for.
#[derive(Clone)]
pub struct Plan<'a> {
    pub specs: &'a [TableSpec],
    pub optimizer: Optimizer,
    pub max_samples: usize,
    pub max_ids: &'a [usize],
    pub frozen: bool,
}

impl Plan<'_> {
    /// The same as options of a rank whose sums have so many blocks.
    pub fn set(&self, sum_blocks: usize) -> SetOptions<'_> {
        SetOptions {
            optimizer: self.optimizer,
            seed: 11,
            max_samples: self.max_samples,
            max_ids: self.max_ids,
            sum_blocks,
            frozen: self.frozen,
            narrow: None,
        }
    }
}

/// The crate's kinds, and one of our own.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register("quotient_remainder", super::quotient_remainder::QuotientRemainder);
    registry
}

pub struct SingleRank {
    pub set: HybridSet,
    pub route: HybridRoute,
    pub stream: Stream,
    pub samples: usize,
    /// Element type of the gradients of vectors.
    pub gradients: DType,
}

impl SingleRank {
    pub fn new(stream: &Stream, plan: &Plan) -> Self {
        Self::pooling((&[], 1), stream, plan)
    }

    /// With sums of bags as so many sum blocks of owners have them.
    pub fn pooling(
        (pool_at, sum_blocks): (&[PoolAt], usize),
        stream: &Stream,
        plan: &Plan,
    ) -> Self {
        let options = HybridOptions {
            set: plan.set(sum_blocks),
            partition: Arc::new(Partition::row_wise(plan.specs, 1)),
            owner: Owner(0),
            deduplicate: Deduplicate::Rank,
            pool_at,
            slots: SlotOptions::default(),
        };
        let set = HybridSet::new(&registry(), stream, plan.specs, &options).unwrap();
        let route = set.new_route().unwrap();
        Self { set, route, stream: stream.clone(), samples: 0, gradients: DType::F32 }
    }

    /// Routes the batch and returns its vectors.
    pub fn forward(&mut self, bags: &[Bags]) -> Vec<f32> {
        self.samples = bags[0].bags.len();
        let (_arena, vectors) = self.matrix(&vec![f32::NAN; self.samples * self.set.width()]);
        Batch::new(bags).with(|ids| {
            self.route.stage(ids).unwrap();
            self.route.copy(&self.stream);
            self.set.route(&self.stream, ids, self.samples, &mut self.route).unwrap();
            self.set.pool(&self.stream, ids, &self.route, &vectors, &vectors).unwrap();
        });
        self.stream.synchronize().unwrap();
        self.set.check_flags().unwrap();
        vectors.to_vec().unwrap()
    }

    /// One step on the batch that was routed.
    pub fn backward(&self, d_vectors: &[f32], step: &Step) {
        let (samples, width) = (self.samples, self.set.width());
        let (_arena, d_vectors) =
            gradients_on(&self.stream, self.gradients, samples, width, d_vectors);
        self.set.update_owned(&self.stream, &self.route, &d_vectors, &d_vectors, step).unwrap();
        self.stream.synchronize().unwrap();
    }

    fn matrix(&self, values: &[f32]) -> (Arena, Mat) {
        matrix_on(&self.stream, self.samples, self.set.width(), values)
    }

    /// Tensor number `tensor` of table `table`.
    pub fn tensor(&self, table: usize, tensor: usize) -> Vec<f32> {
        let spec = &self.set.tensors(table)[tensor];
        let mut rows = vec![f32::NAN; spec.rows as usize * spec.cols];
        self.set.export_rows(table, tensor, 0, &mut rows).unwrap();
        rows
    }

    /// Everything the tables hold.
    pub fn tensors(&self) -> Vec<Vec<f32>> {
        let tables = 0..self.set.specs().len();
        let each =
            tables.flat_map(|table| (0..self.set.tensors(table).len()).map(move |i| (table, i)));
        each.map(|(table, tensor)| self.tensor(table, tensor)).collect()
    }
}

/// The oracle's tables.
pub fn oracle(plan: &Plan) -> Vec<OracleTable> {
    let table = |(index, spec)| OracleTable::new(spec, plan.optimizer, 11, index as u64);
    plan.specs.iter().enumerate().map(table).collect()
}

/// Asserts equal bits, and says where they are not.
pub fn assert_bits(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    let (got_bits, expected_bits) = (bits(got), bits(expected));
    if let Some(at) = (0..got.len()).find(|&at| got_bits[at] != expected_bits[at]) {
        panic!("{what}: element {at} of {}: got {}, expected {}", got.len(), got[at], expected[at]);
    }
}

/// Asserts that numbers differ by no more than `relative` of their size, or `absolute`.
pub fn assert_near(got: &[f32], expected: &[f32], relative: f32, absolute: f32, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let bound = absolute + relative * expected.abs();
        assert!(
            (got - expected).abs() <= bound,
            "{what}: element {at}: got {got}, expected {expected}"
        );
    }
}
