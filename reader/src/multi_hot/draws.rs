//! The numbers drawn for the rows of one table: all of them in memory, or made again when they are
//! asked for.
//!
//! A table that is not kept has marks, copies of the generator at every so many rows. A row's
//! numbers are made again from the mark before it, which takes a few microseconds; those of rows
//! that come often lie in a cache. What comes out is the same.

use std::sync::{Mutex, PoisonError};

use super::mt19937::{MARK_WORDS, Mt19937};
use super::{Distribution, PARETO_SHAPE, invalid};
use crate::error::Result;

pub(super) const NUMBER_BYTES: u64 = 4;
const MARK_BYTES: u64 = MARK_WORDS as u64 * NUMBER_BYTES;
/// What is said of rows in the cache: no row lies there.
const NO_ROW: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub rows: u64,
    pub per_row: u64,
    pub distribution: Distribution,
}

impl Shape {
    pub fn numbers(&self) -> u64 {
        self.rows.saturating_mul(self.per_row)
    }

    pub fn bytes(&self) -> u64 {
        self.numbers().saturating_mul(NUMBER_BYTES)
    }

    fn draw(&self, random: &mut Mt19937) -> u32 {
        match self.distribution {
            Distribution::Uniform => random.below(self.rows),
            Distribution::Pareto => {
                to_i32(random.pareto(PARETO_SHAPE)).rem_euclid(self.rows as i64) as u32
            }
        }
    }

    fn skip(&self, random: &mut Mt19937, numbers: u64) {
        match self.distribution {
            Distribution::Uniform => random.skip_below(self.rows, numbers),
            // Two words make a number of 53 bits.
            Distribution::Pareto => random.skip_bits(2 * numbers),
        }
    }
}

/// As numpy's `astype(int32)` on x86-64: the fraction is cut off, and what does not fit becomes the
/// smallest number.
fn to_i32(value: f64) -> i64 {
    let fits = value < 2_147_483_648.0;
    i64::from(if fits { value as i32 } else { i32::MIN })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    All,
    /// A mark every so many rows, and a cache of so many rows.
    Marks {
        rows_per_mark: u64,
        cached_rows: u64,
    },
}

/// How tables are held in `memory_bytes`: small ones whole, up to half of it; of what is left one
/// half is for marks, the other for caches, in proportion to the numbers. Each table gets one mark
/// at least, so a bound of less than that is missed by these.
pub(super) fn hold(shapes: &[Shape], memory_bytes: Option<u64>) -> Vec<Holding> {
    let all: u64 = shapes.iter().map(Shape::bytes).fold(0, u64::saturating_add);
    let Some(memory) = memory_bytes.filter(|&memory| memory < all) else {
        return vec![Holding::All; shapes.len()];
    };
    let mut order: Vec<usize> = (0..shapes.len()).collect();
    order.sort_by_key(|&table| shapes[table].bytes());
    let (mut kept, mut holding) = (0, vec![None; shapes.len()]);
    for table in order {
        let bytes = shapes[table].bytes();
        if kept + bytes <= memory / 2 {
            kept += bytes;
            holding[table] = Some(Holding::All);
        }
    }
    let half = (memory - kept) / 2;
    let share = |shape: &Shape| half as f64 * shape.bytes() as f64 / (all - kept) as f64;
    let marked = |shape: &Shape| {
        let marks = (share(shape) as u64 / MARK_BYTES).clamp(1, shape.rows);
        let cached_rows = share(shape) as u64 / ((shape.per_row + 1) * NUMBER_BYTES);
        Holding::Marks {
            rows_per_mark: shape.rows.div_ceil(marks),
            cached_rows: cached_rows.min(shape.rows),
        }
    };
    holding
        .into_iter()
        .zip(shapes)
        .map(|(held, shape)| held.unwrap_or_else(|| marked(shape)))
        .collect()
}

pub(super) fn bytes(shape: &Shape, holding: Holding) -> u64 {
    match holding {
        Holding::All => shape.bytes(),
        Holding::Marks { rows_per_mark, cached_rows } => {
            shape.rows.div_ceil(rows_per_mark) * MARK_BYTES
                + cached_rows * (shape.per_row + 1) * NUMBER_BYTES
        }
    }
}

#[derive(Debug)]
pub(super) enum Draws {
    All(Vec<u32>),
    Marked(Marked),
}

impl Draws {
    /// Draws them, which leaves `random` after the last.
    pub fn new(shape: Shape, holding: Holding, random: &mut Mt19937) -> Result<Self> {
        match holding {
            Holding::All => {
                let mut numbers = room(shape.numbers(), &shape)?;
                numbers.extend((0..shape.numbers()).map(|_| shape.draw(random)));
                Ok(Self::All(numbers))
            }
            Holding::Marks { rows_per_mark, cached_rows } => {
                let mut marks =
                    room(shape.rows.div_ceil(rows_per_mark) * MARK_WORDS as u64, &shape)?;
                for first in (0..shape.rows).step_by(rows_per_mark as usize) {
                    random.mark(&mut marks);
                    shape.skip(random, rows_per_mark.min(shape.rows - first) * shape.per_row);
                }
                let cache = Mutex::new(Cache::new(&shape, cached_rows)?);
                Ok(Self::Marked(Marked { shape, rows_per_mark, marks, cache }))
            }
        }
    }

    pub fn fill(&self, rows: &[u64], per_row: usize, to: &mut Vec<u64>) {
        match self {
            Self::All(numbers) => {
                for &row in rows {
                    to.push(row);
                    to.extend(
                        numbers[row as usize * per_row..][..per_row]
                            .iter()
                            .map(|&number| u64::from(number)),
                    );
                }
            }
            Self::Marked(marked) => marked.fill(rows, to),
        }
    }
}

/// Numbers that are made again.
#[derive(Debug)]
pub(super) struct Marked {
    shape: Shape,
    rows_per_mark: u64,
    marks: Vec<u32>,
    cache: Mutex<Cache>,
}

impl Marked {
    fn fill(&self, rows: &[u64], to: &mut Vec<u64>) {
        // What a panic has left half done is a row that the cache does not name.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        for &row in rows {
            to.push(row);
            let numbers = cache.get(row, |random, numbers| self.make(row, random, numbers));
            to.extend(numbers.iter().map(|&number| u64::from(number)));
        }
    }

    fn make(&self, row: u64, random: &mut Mt19937, numbers: &mut [u32]) {
        assert!(row < self.shape.rows, "row {row} of a table of {} rows", self.shape.rows);
        let mark = (row / self.rows_per_mark) as usize;
        random.go_to(&self.marks[mark * MARK_WORDS..][..MARK_WORDS]);
        self.shape.skip(random, row % self.rows_per_mark * self.shape.per_row);
        numbers.iter_mut().for_each(|number| *number = self.shape.draw(random));
    }
}

/// Rows that were asked for last: each has one place.
#[derive(Debug)]
struct Cache {
    rows: Vec<u32>,
    numbers: Vec<u32>,
    per_row: usize,
    random: Mt19937,
}

impl Cache {
    /// Room for `places` rows, one at least.
    fn new(shape: &Shape, places: u64) -> Result<Self> {
        let places = places.max(1);
        let (mut rows, mut numbers) = (room(places, shape)?, room(places * shape.per_row, shape)?);
        rows.resize(places as usize, NO_ROW);
        numbers.resize((places * shape.per_row) as usize, 0);
        Ok(Self { rows, numbers, per_row: shape.per_row as usize, random: Mt19937::new(0) })
    }

    fn get(&mut self, row: u64, make: impl FnOnce(&mut Mt19937, &mut [u32])) -> &[u32] {
        // Fibonacci hashing: neighbouring rows, which are alike frequent in some data, lie apart.
        let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = ((u128::from(hash) * self.rows.len() as u128) >> 64) as usize;
        let numbers = &mut self.numbers[place * self.per_row..][..self.per_row];
        if u64::from(self.rows[place]) != row {
            self.rows[place] = NO_ROW;
            make(&mut self.random, numbers);
            self.rows[place] = row as u32;
        }
        numbers
    }
}

/// An empty list of `count` numbers' memory.
fn room(count: u64, shape: &Shape) -> Result<Vec<u32>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count as usize).map_err(|_| {
        let (needed, size) = (count.saturating_mul(NUMBER_BYTES), shape.per_row + 1);
        invalid(format!(
            "multi-hot: the system refuses {needed} bytes for a table of {} rows of {size} ids",
            shape.rows
        ))
    })?;
    Ok(list)
}
