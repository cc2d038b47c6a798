//! A table under test, on any device: built, asked, stepped, saved.

use super::MOST_SIGHTS;
use crate::checkpoint::SavedRows;
use crate::cuda::{CudaStep, CudaTable, DeviceRows};
use crate::error::Result;
use crate::hybrid::mix;
use crate::kind::{Shard, TableEnv, TableKind};
use crate::table::{EmbeddingTable, Keys, Rows, SparseStep, TableSpec};
use headlong_device::cuda::testing::{download, upload};
use headlong_device::cuda::{CudaStream, DevicePtr, DeviceStep, OptimizerConstants};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::bytes_held;
use headlong_device::{MatMut, MatRef, Stream};

/// A table under test.
pub(super) struct Subject {
    pub(super) table: Box<dyn EmbeddingTable>,
    pub(super) spec: TableSpec,
    pub(super) optimizer: Optimizer,
    stream: Stream,
    /// Bytes that building it and its steps have allocated and not freed, where the allocator
    /// counts.
    held: Option<i64>,
}

/// What a table is built with that decides its initial values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) seed: u64,
    pub(super) table_index: u64,
    pub(super) shard: Option<Shard<'a>>,
}

impl Origin<'_> {
    pub(super) const FIRST: Self = Self { seed: 5, table_index: 2, shard: None };
    pub(super) const OTHER: Self = Self { seed: 6, table_index: 2, shard: None };
}

impl Subject {
    pub(super) fn new(
        kind: &dyn TableKind,
        spec: &TableSpec,
        optimizer: Optimizer,
        stream: &Stream,
        origin: Origin,
    ) -> Self {
        let Origin { seed, table_index, shard } = origin;
        let env = TableEnv { stream, optimizer: &optimizer, seed, table_index, shard };
        let before = bytes_held();
        let table = kind.build(spec, &env).unwrap_or_else(|error| {
            panic!("a table with {} is not built: {error}", optimizer.name())
        });
        let held = bytes_held().zip(before).map(|(after, before)| after - before);
        Self { table, spec: spec.clone(), optimizer, stream: stream.clone(), held }
    }

    /// Bytes that the table holds by the allocator's count, where it counts.
    pub(super) fn held(&self) -> Option<u64> {
        self.held.map(|held| u64::try_from(held).unwrap_or(0))
    }

    /// Unique rows, rising, the first and the last among them.
    pub(super) fn some_rows(&self) -> Vec<u64> {
        if self.spec.keys == Keys::RawIds {
            // Fewer than there are rows, from all over the numbers.
            let count = (self.spec.rows / 2).clamp(1, 60);
            let mut ids: Vec<u64> = (1..count).map(mix).chain([u64::MAX]).collect();
            ids.sort_unstable();
            return ids;
        }
        let step = (self.spec.rows / 60).max(1);
        let mut rows: Vec<u64> = (0..self.spec.rows - 1).step_by(step as usize).collect();
        rows.push(self.spec.rows - 1);
        rows
    }

    /// Runs the CUDA body on `rows` in device memory and on `values` (vectors or gradients) next to
    /// them, which are returned.
    fn on_device(
        &self,
        table: &dyn CudaTable,
        rows: &[u64],
        values: &[f32],
        body: impl FnOnce(&dyn CudaTable, &CudaStream, DeviceRows, DevicePtr) -> Result<()>,
    ) -> Vec<f32> {
        let fails = |error| panic!("the device fails: {error}");
        let stream = self.stream.cuda_body();
        // Room for more rows than there are, as in a set.
        let capacity = rows.len() + 7;
        let mut words: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        words.resize(capacity, u32::MAX);
        let list = upload(stream.device(), &words).unwrap_or_else(fails);
        let count = upload(stream.device(), &[rows.len() as u32]).unwrap_or_else(fails);
        let values = upload(stream.device(), values).unwrap_or_else(fails);
        let rows = DeviceRows { rows: list.ptr(), count: count.ptr(), capacity };
        body(table, stream, rows, values.ptr())
            .unwrap_or_else(|error| panic!("the CUDA body fails: {error}"));
        stream.synchronize().unwrap_or_else(|error| panic!("the CUDA body fails: {error}"));
        download(&values).unwrap_or_else(|error| panic!("the device fails: {error}"))
    }

    pub(super) fn lookup(&mut self, rows: &[u64]) -> Vec<f32> {
        if let Some(table) = self.table.cuda() {
            let out = vec![f32::NAN; rows.len() * self.spec.dim];
            return self.on_device(table, rows, &out, |table, stream, rows, to| {
                table.lookup(stream, rows, to)
            });
        }
        let mut out = vec![f32::NAN; rows.len() * self.spec.dim];
        let view = MatMut::new(&mut out, rows.len(), self.spec.dim);
        self.table
            .lookup(&self.stream, Rows::new(rows), view)
            .unwrap_or_else(|error| panic!("lookup fails: {error}"));
        out
    }

    pub(super) fn apply(&mut self, rows: &[u64], gradients: &[f32], step: Step) {
        if let Some(table) = self.table.cuda() {
            let step = CudaStep {
                optimizer: self.optimizer,
                constants: OptimizerConstants::new(&self.optimizer),
                device: DevicePtr::NULL,
                host: DeviceStep::new(&step, &self.optimizer),
            };
            let body = |table: &dyn CudaTable, stream: &CudaStream, rows, gradients| {
                table.apply(stream, rows, gradients, &step)
            };
            self.on_device(table, rows, gradients, body);
            return;
        }
        let gradients = MatRef::new(gradients, rows.len(), self.spec.dim);
        let step = SparseStep { optimizer: &self.optimizer, step: &step };
        let before = bytes_held();
        self.table
            .apply(&self.stream, Rows::new(rows), gradients, &step)
            .unwrap_or_else(|error| panic!("apply fails: {error}"));
        let grown = bytes_held().zip(before).map_or(0, |(after, before)| after - before);
        self.held = self.held.map(|held| held + grown);
    }

    /// Steps of zero gradients, which move nothing, until a table that counts sights has seen
    /// enough.
    pub(super) fn make_known(&mut self, rows: &[u64]) {
        if self.spec.keys == Keys::RawIds {
            let zeros = vec![0.0; rows.len() * self.spec.dim];
            (1..=MOST_SIGHTS)
                .for_each(|number| self.apply(rows, &zeros, Step { learning_rate: 0.25, number }));
        }
    }

    pub(super) fn save(&self) -> SavedRows {
        let mut saved = SavedRows::default();
        self.table.save(&mut saved).unwrap_or_else(|error| panic!("save fails: {error}"));
        saved
    }

    pub(super) fn load(&mut self, saved: &SavedRows) {
        self.table.load(&mut saved.clone()).unwrap_or_else(|error| panic!("load fails: {error}"));
    }
}
