//! Initial values on the processor: counters worked on side by side.

use super::InitialValues;
use crate::kind::TableEnv;
use crate::rows::RowElement;
use headlong_device::rng::CounterRng;
use headlong_device::{DType, Mat, vectorized};

/// Counters worked on side by side: the four words of each become four neighbouring elements.
const LANES: usize = 16;

/// Elements that one task writes: a mebibyte, and a multiple of the generator's group.
const CHUNK: usize = 1 << 18;

/// Fills the rows of `weights`, in parallel on the stream's pool.
pub(super) fn initialise(env: &TableEnv, values: &InitialValues, weights: &Mat) {
    let dim = weights.cols();
    let rows_at_once = (CHUNK / dim).max(1);
    if weights.dtype() == DType::Bf16 {
        let mut weights = weights.write::<half::bf16>();
        env.stream.pool().chunks_mut(weights.data_mut(), rows_at_once * dim, |chunk, out| {
            let mut wide = vec![0.0; out.len()];
            fill_chunk(env, values, (dim, chunk * rows_at_once), &mut wide);
            out.iter_mut().zip(wide).for_each(|(out, value)| *out = RowElement::nearest(value));
        });
        return;
    }
    env.stream.pool().chunks_mut(
        weights.write::<f32>().data_mut(),
        rows_at_once * dim,
        |chunk, out| {
            fill_chunk(env, values, (dim, chunk * rows_at_once), out);
        },
    );
}

/// The rows from local row `first` on.
fn fill_chunk(
    env: &TableEnv,
    values: &InitialValues,
    (dim, first): (usize, usize),
    out: &mut [f32],
) {
    let first = first as u64;
    match env.shard {
        None => values.fill(first * dim as u64, out),
        Some(_) => values.fill_rows(dim, |index| env.row_of_local(first + index), out),
    }
}

/// Sets every element of `state` to `value`.
pub(super) fn fill(env: &TableEnv, state: &Mat, value: f32) {
    env.stream.pool().chunks_mut(state.write::<f32>().data_mut(), CHUNK, |_, out| out.fill(value));
}

impl InitialValues {
    /// Fills `out` with the values of raw id `id`.
    pub fn fill_id(&self, id: u64, out: &mut [f32]) {
        if self.are_zero() {
            return out.fill(0.0);
        }
        CounterRng::new(self.seed_of_ids, id).fill_uniform(0, -self.bound, self.bound, out);
    }

    /// Fills `out` with the elements from `first_element` on, counted row by row:
    /// `row · dim + column`.
    pub fn fill(&self, first_element: u64, out: &mut [f32]) {
        if self.are_zero() {
            return out.fill(0.0);
        }
        // Up to the first element whose counter starts a group of four.
        let head =
            (first_element.next_multiple_of(4) - first_element).min(out.len() as u64) as usize;
        let (head, body) = out.split_at_mut(head);
        self.rng.fill_uniform(first_element, -self.bound, self.bound, head);
        let first_element = first_element + head.len() as u64;
        fill_groups(&self.rng, first_element / 4, self.bound, body);
        let done = body.len() / (4 * LANES) * (4 * LANES);
        let tail = &mut body[done..];
        self.rng.fill_uniform(first_element + done as u64, -self.bound, self.bound, tail);
    }

    /// Fills `out`, rows of `dim` elements, with the values of the rows `row_of(0)`, `row_of(1)`, …
    pub fn fill_rows(&self, dim: usize, row_of: impl Fn(u64) -> u64, out: &mut [f32]) {
        if self.are_zero() {
            return out.fill(0.0);
        }
        let groups_of_row = dim / 4;
        if !dim.is_multiple_of(4) || groups_of_row > COUNTERS {
            for (index, row) in (0..).zip(out.chunks_exact_mut(dim)) {
                self.fill(row_of(index) * dim as u64, row);
            }
            return;
        }
        // Counters of as many whole rows as the buffer takes, worked on side by side.
        let mut counters = [0; COUNTERS];
        let rows_at_once = COUNTERS / groups_of_row;
        for (first, rows) in (0..).step_by(rows_at_once).zip(out.chunks_mut(rows_at_once * dim)) {
            let num_rows = rows.len() / dim;
            for (row, counters) in
                (first..).zip(counters.chunks_exact_mut(groups_of_row).take(num_rows))
            {
                let counter = row_of(row) * groups_of_row as u64;
                counters.iter_mut().zip(counter..).for_each(|(to, counter)| *to = counter);
            }
            fill_counters(&self.rng, &counters[..num_rows * groups_of_row], self.bound, rows);
        }
    }
}

/// Counters that [`InitialValues::fill_rows`] works on at once.
const COUNTERS: usize = 512;

#[inline(always)]
fn fill_lanes(rng: &CounterRng, counter_of: impl Fn(usize) -> u64, bound: f32, values: &mut [f32]) {
    let scale = bound - -bound;
    let mut words = [[0_u32; 4]; LANES];
    for (lane, words) in words.iter_mut().enumerate() {
        *words = rng.bits(counter_of(lane));
    }
    for (value, word) in values.iter_mut().zip(words.as_flattened()) {
        *value = -bound + scale * ((word >> 8) as f32 * (1.0 / (1 << 24) as f32));
    }
}

vectorized! {
    /// Whole groups of `4 · LANES` elements, from counter `first_counter` on; what is left over
    /// stays untouched.
    fn fill_groups(rng: &CounterRng, first_counter: u64, bound: f32, out: &mut [f32]) {
        for (group, values) in out.chunks_exact_mut(4 * LANES).enumerate() {
            let counter = first_counter + (group * LANES) as u64;
            fill_lanes(rng, |lane| counter + lane as u64, bound, values);
        }
    }

    /// Four values for each of `counters`.
    fn fill_counters(rng: &CounterRng, counters: &[u64], bound: f32, out: &mut [f32]) {
        for (counters, values) in counters.chunks(LANES).zip(out.chunks_mut(4 * LANES)) {
            fill_lanes(rng, |lane| counters[lane.min(counters.len() - 1)], bound, values);
        }
    }
}
