//! Initial values: a function of seed, table, row and column, wherever the row
//! lies.
//!
//! Element `c` of row `r` of table `t` is `low + (high - low)·u`, where `u` is uniform number
//! `r·dim + c` of stream `t` of the counter-based generator ([`headlong_device::rng`]) and `low`,
//! `high` are what [`Init`] says. Product and sum are rounded one after the other, then to the
//! table's element type, to nearest: the same bits on the processor and on a device, for any
//! partition of the rows.
//!
//! Shapes: `weights` is `local rows × dim`; what row of the model a local row is,
//! [`TableEnv::row_of_local`] says. On the CPU it blocks until done; on a device it enqueues one
//! kernel for every 65,536 rows of a shard, or one for all rows, and waits for them. Errors: what
//! the device reports. Source: `dlrm_s_pytorch.py`, `create_emb` (Naumov et al., arXiv 1906.00091).

mod cpu;
pub(crate) mod cuda;
#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::kind::TableEnv;
use crate::table::{Init, TableSpec};
use headlong_device::Mat;
use headlong_device::rng::CounterRng;

/// Keeps the tables' random streams apart from those of other crates under the same seed.
const STREAM_OF_TABLES: u64 = 0x7461_626c_0000_0000;

/// The initial weights of one table.
#[derive(Debug, Clone, Copy)]
pub struct InitialValues {
    rng: CounterRng,
    /// Of raw ids, each of which is a stream of its own: every one of the 2⁶⁴ has its own numbers.
    seed_of_ids: u64,
    bound: f32,
}

impl InitialValues {
    /// Those of table number `table_index` of the model under `seed`.
    pub fn new(spec: &TableSpec, seed: u64, table_index: u64) -> Self {
        let bound = match spec.init {
            Init::UniformByRows => (1.0 / (spec.rows as f64).sqrt()) as f32,
            Init::Uniform { bound } => bound,
            Init::Zeros => 0.0,
        };
        let rng = CounterRng::new(seed, STREAM_OF_TABLES | table_index);
        let [low, high, ..] = rng.bits(u64::MAX);
        Self { rng, seed_of_ids: u64::from(high) << 32 | u64::from(low), bound }
    }

    /// Those of raw ids, for programs that make the same: id `i` has uniform numbers 0, 1, … of
    /// stream `i` under this seed, scaled from [0, 1) to [-bound, bound), which is the second.
    pub fn of_ids(&self) -> (u64, f32) {
        (self.seed_of_ids, self.bound)
    }

    /// Whether all values are zero, as fresh memory is.
    pub fn are_zero(&self) -> bool {
        self.bound == 0.0
    }
}

impl TableEnv<'_> {
    /// Initial values of the model's table: those of local row `r` are its elements from
    /// `row_of_local(r) · dim` on.
    pub fn initial_values(&self, spec: &TableSpec) -> InitialValues {
        let rows = self.shard.map_or(spec.rows, |shard| shard.table_rows);
        InitialValues::new(&TableSpec { rows, ..spec.clone() }, self.seed, self.table_index)
    }
}

/// Writes the initial values of the rows that `env` says lie here to `weights`,
/// `spec.rows × spec.dim`, which are zero before.
pub(crate) fn initialise(env: &TableEnv, spec: &TableSpec, weights: &Mat) -> Result<()> {
    let values = env.initial_values(spec);
    if values.are_zero() {
        // Fresh memory is not touched: on a processor it takes no pages before it is written.
        return Ok(());
    }
    match env.stream.as_cuda() {
        Some(stream) => cuda::initialise(stream, env, &values, weights),
        None => {
            cpu::initialise(env, &values, weights);
            Ok(())
        }
    }
}

/// Sets every element of an optimiser's state, f32 and zero before, to `value`.
pub(crate) fn fill_state(env: &TableEnv, state: &Mat, value: f32) -> Result<()> {
    match env.stream.as_cuda() {
        _ if value == 0.0 => Ok(()),
        Some(stream) => cuda::fill(stream, state, value),
        None => {
            cpu::fill(env, state, value);
            Ok(())
        }
    }
}
