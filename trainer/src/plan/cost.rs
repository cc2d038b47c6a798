//! What a step costs, by counting, and how long it would take on a machine that does each at its
//! full rate.

use super::Count;
use super::memory::activations_per_sample;
use crate::config::Config;
use crate::iteration::arithmetic::Arithmetic;
use crate::system::machine::Machine;
use headlong_embedding::hybrid::split::Split;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepCost {
    /// Floating-point operations of one step, a multiply-add counted as two.
    pub flops_per_step: Count,
    /// Bytes of rows and their optimiser state that are read and written in one step, if none stays
    /// in a cache.
    pub table_bytes_per_step: Count,
    /// Bytes of dense weights, state and activations that are read and written in one step.
    pub dense_bytes_per_step: Count,
    /// An estimate for f32 on the processor: operations at its rate, then the bytes of the tables
    /// at its memory's; nothing overlaps. None where the model is on a device, of whose rates
    /// nothing is known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_step_us: Option<f64>,
    /// The same: samples of a step by its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_samples_per_s: Option<f64>,
}

impl StepCost {
    pub(super) fn new(
        config: &Config,
        dense_parameters: Count,
        machine: &Machine,
        threads: usize,
    ) -> Self {
        let samples = config.samples_per_step();
        let flops_per_step = samples * Arithmetic::of(config).training_flop();
        let table_bytes_per_step = samples * table_bytes_per_sample(config);
        let dense_state = dense_parameters * config.optimizer.dense.optimizer().state_bytes(1, 1);
        // Weights forward and backward, gradients written and read, weights and state updated;
        // activations written and read forward and backward, by batch.
        let dense_bytes_per_step = dense_parameters * config.train.accumulate * 16_u64
            + dense_parameters * 8_u64
            + dense_state * 2_u64
            + samples * activations_per_sample(config) * 16_u64;
        // More threads than cores do not help.
        let cores = threads.min(machine.cores).max(1) as f64;
        let is_known = machine.device.is_none();
        let seconds = flops_per_step.as_f64() / (machine.core_flops * cores)
            + (table_bytes_per_step + dense_bytes_per_step).as_f64() / machine.memory_bytes_per_s;
        Self {
            flops_per_step,
            table_bytes_per_step,
            dense_bytes_per_step,
            predicted_step_us: is_known.then_some(seconds * 1e6),
            predicted_samples_per_s: is_known.then(|| samples.as_f64() / seconds),
        }
    }
}

impl StepCost {
    /// With the time of exchanges between ranks, which nothing hides in this estimate. Ranks share
    /// the machine, so all else stays.
    pub(super) fn with_exchange(mut self, split: Option<&Split>) -> Self {
        let (Some(split), Some((us, per_s))) = (split, self.predicted()) else { return self };
        let with_exchange = us + split.times.total_us() - split.times.rows_us;
        self.predicted_step_us = Some(with_exchange);
        self.predicted_samples_per_s = Some(per_s * us / with_exchange);
        self
    }

    /// Microseconds of a step and samples a second, where they are predicted.
    pub fn predicted(&self) -> Option<(f64, f64)> {
        self.predicted_step_us.zip(self.predicted_samples_per_s)
    }
}

/// One row per table is read forward, its gradient written and read, and row and state read and
/// written by the update.
fn table_bytes_per_sample(config: &Config) -> Count {
    let gradient = config.model.dim as u64 * 4;
    let state = config.optimizer.sparse.optimizer().state_bytes(1, config.model.dim);
    let rows = (0..config.data.num_sparse).map(|column| {
        let row = (config.model.dim * config.table_spec(column, 1).dtype.bytes()) as u64;
        row + 2 * gradient + 2 * (row + state)
    });
    rows.sum()
}
