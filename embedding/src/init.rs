//! Initial values: a function of seed, table, row and column, whoever asks and wherever the row lies.

use crate::table::{Init, TableSpec};
use headlong_device::rng::CounterRng;
use headlong_device::vectorized;

/// Keeps the tables' random streams apart from those of other rooms under the same seed.
const STREAM_OF_TABLES: u64 = 0x7461_626c_0000_0000;

/// Counters worked on side by side: the four words of each become four neighbouring elements.
const LANES: usize = 16;

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

    /// Fills `out` with the values of raw id `id`.
    pub fn fill_id(&self, id: u64, out: &mut [f32]) {
        if self.are_zero() {
            return out.fill(0.0);
        }
        CounterRng::new(self.seed_of_ids, id).fill_uniform(0, -self.bound, self.bound, out);
    }

    /// Whether all values are zero, as fresh memory is.
    pub fn are_zero(&self) -> bool {
        self.bound == 0.0
    }

    /// Fills `out` with the elements from `first_element` on, counted row by row: `row · dim + column`.
    pub fn fill(&self, first_element: u64, out: &mut [f32]) {
        if self.are_zero() {
            return out.fill(0.0);
        }
        // Up to the first element whose counter starts a group of four.
        let head = (first_element.next_multiple_of(4) - first_element).min(out.len() as u64) as usize;
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
            for (row, counters) in (first..).zip(counters.chunks_exact_mut(groups_of_row).take(num_rows)) {
                let counter = row_of(row) * groups_of_row as u64;
                counters.iter_mut().zip(counter..).for_each(|(to, counter)| *to = counter);
            }
            fill_counters(&self.rng, &counters[..num_rows * groups_of_row], self.bound, rows);
        }
    }
}

/// Counters that [`InitialValues::fill_rows`] works on at once.
const COUNTERS: usize = 512;

/// The values of one group of lanes, by its counters.
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
    /// Whole groups of `4 · LANES` elements, from counter `first_counter` on; what is left over stays untouched.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_values() {
        let values = InitialValues::new(&TableSpec::new("t", 400, 5), 7, 3);
        let mut whole = vec![0.0; 2000];
        values.fill(0, &mut whole);
        assert!(whole.iter().all(|x| x.abs() <= 0.05));
        assert!(whole.iter().any(|x| *x < -0.04) && whole.iter().any(|x| *x > 0.04));
        for (first, len) in [(0, 2000), (1, 1999), (3, 5), (7, 130), (64, 64), (1030, 900), (1999, 1)] {
            let mut part = vec![9.0; len];
            values.fill(first as u64, &mut part);
            assert_eq!(part, whole[first..first + len], "elements {first}+{len}");
        }
    }

    /// Rows in any order, and dims that fill groups of lanes or do not: what `fill` says of each row.
    #[test]
    fn rows_one_by_one_are_the_same_values() {
        for dim in [1, 4, 5, 16, 20, 128, 2052] {
            let values = InitialValues::new(&TableSpec::new("t", 1 << 40, dim), 7, 3);
            let row_of = |index: u64| (index * 0x0004_0001 + 5) % (1 << 34);
            for rows in [0, 1, 3, 150] {
                let mut out = vec![9.0; rows * dim];
                values.fill_rows(dim, row_of, &mut out);
                for (index, row) in (0..).zip(out.chunks(dim)) {
                    let mut expected = vec![0.0; dim];
                    values.fill(row_of(index) * dim as u64, &mut expected);
                    assert_eq!(row, expected, "row {index} of dim {dim}");
                }
            }
        }
    }

    #[test]
    fn seed_and_table_matter_and_zeros_are_zero() {
        let spec = TableSpec::new("t", 100, 4);
        let first = |seed, table| {
            let mut out = [0.0; 4];
            InitialValues::new(&spec, seed, table).fill(40, &mut out);
            out
        };
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(1, 0), first(1, 1));
        let zeros = TableSpec { init: Init::Zeros, ..spec.clone() };
        let mut out = [1.0; 3];
        InitialValues::new(&zeros, 1, 0).fill(2, &mut out);
        assert_eq!(out, [0.0; 3]);
    }
}
