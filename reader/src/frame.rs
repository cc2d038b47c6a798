//! Rows in memory that someone else owns, such as a data frame: read where they are.
//!
//! Their columns have names, and are read by the same code as those of Parquet: the same values
//! give the same samples.

use std::ops::Range;

use ::bytes::Bytes;

use crate::times::Clock;

/// A table in memory, which does not change while it is read.
pub trait Frame: Send + Sync {
    /// Its columns, in their order.
    fn columns(&self) -> &[FrameColumn];

    /// How many rows there are.
    fn num_rows(&self) -> u64;

    /// Bytes that it takes in memory, about.
    fn bytes(&self) -> u64;

    /// The values of a column in `rows`, which are there.
    fn read(&self, column: usize, rows: Range<u64>) -> FrameValues;
}

/// A column of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameColumn {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: FrameKind,
}

/// What a column of a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A number or a truth value a row.
    Numbers,
    /// A text a row.
    Words,
    /// A point in time a row.
    Times,
    /// Any number of values a row.
    Lists,
    /// What cannot be read, and what to write in its place.
    Refused(&'static str, &'static str),
}

/// Values of some rows of a column.
#[derive(Clone, Debug)]
pub struct FrameValues {
    /// Those that are there.
    pub values: Values,
    /// Whether each value is there, where one may not be: 1, or 0. Of lists always, for each
    /// element: 2, or 1 where the element is not there; and 0 for a list without elements.
    pub defined: Vec<i16>,
    /// Of lists: 0 where an entry of `defined` begins a row, else 1.
    pub repeated: Vec<i16>,
}

/// Values of one type.
#[derive(Clone, Debug)]
pub enum Values {
    /// Truth values.
    Bools(Vec<bool>),
    /// Integers.
    Integers(Vec<i64>),
    /// Integers without a sign.
    Unsigned(Vec<u64>),
    /// Numbers of 32 bits.
    Floats(Vec<f32>),
    /// Numbers of 64 bits.
    Doubles(Vec<f64>),
    /// Points in time, and what they count.
    Times(Vec<i64>, Clock),
    /// Text, as UTF-8 or any bytes.
    Words(Vec<Bytes>),
}
