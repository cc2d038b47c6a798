//! What is wrong with a line: column, expected, found.

use std::fmt;

use crate::schema::{Column, Schema};

/// Where a bad line of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its index in the block, from 0, counting all lines.
    pub line: u32,
    /// Samples of the block before it.
    pub samples_before: u32,
}

/// What is wrong with a line; shown as `column C3: expected …, found "…"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was expected.
    pub kind: FaultKind,
    /// The text at fault.
    pub found: Excerpt,
}

/// The ways in which a line is not a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Too few or too many columns.
    ColumnCount {
        /// What was expected.
        schema: Schema,
        /// Columns found.
        found: u32,
    },
    /// The label is neither 0 nor 1.
    Label,
    /// Not an integer.
    NotInteger(Column),
    /// An integer that 32 bits do not hold.
    IntegerRange(Column),
    /// Not hexadecimal.
    NotHex(Column),
    /// More than eight hexadecimal digits.
    HexTooLong(Column),
    /// Longer than any row.
    LineTooLong {
        /// The most bytes a line may have.
        limit: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.found;
        match self.kind {
            FaultKind::ColumnCount { schema, found: count } => {
                let expected = schema.num_columns();
                write!(
                    formatter,
                    "expected {expected} tab-separated columns, found {count} in {found}"
                )?;
                match schema.labelled {
                    true if count as usize + 1 == expected => {
                        write!(formatter, " (rows without a label?)")
                    }
                    false if count as usize == expected + 1 => {
                        write!(formatter, " (rows with a label?)")
                    }
                    _ => Ok(()),
                }
            }
            FaultKind::Label => write!(formatter, "column label: expected 0 or 1, found {found}"),
            FaultKind::NotInteger(column) => {
                write!(formatter, "column {column}: expected an integer or nothing, found {found}")
            }
            FaultKind::IntegerRange(column) => {
                let most = i32::MAX;
                write!(
                    formatter,
                    "column {column}: expected an integer from -{most} to {most}, found {found}"
                )
            }
            FaultKind::NotHex(column) => {
                write!(
                    formatter,
                    "column {column}: expected up to 8 hexadecimal digits or nothing, found {found}"
                )
            }
            FaultKind::HexTooLong(column) => {
                write!(
                    formatter,
                    "column {column}: expected up to 8 hexadecimal digits, found more in {found}"
                )
            }
            FaultKind::LineTooLong { limit } => {
                write!(
                    formatter,
                    "expected a row of at most {limit} bytes, found a longer line: {found}"
                )
            }
        }
    }
}

/// The first bytes of a text at fault, kept in place so that bad lines cost no allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Excerpt {
    bytes: [u8; Excerpt::LENGTH],
    kept: u8,
    cut: bool,
}

impl Excerpt {
    /// The most bytes kept.
    pub const LENGTH: usize = 38;

    /// The beginning of `text`.
    pub fn of(text: &[u8]) -> Self {
        let kept = text.len().min(Self::LENGTH);
        let mut bytes = [0; Self::LENGTH];
        bytes[..kept].copy_from_slice(&text[..kept]);
        Self { bytes, kept: kept as u8, cut: text.len() > kept }
    }
}

/// Quoted, with control characters and bytes that are not ASCII escaped, and `…` where it was cut.
impl fmt::Display for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.bytes[..self.kept as usize].escape_ascii();
        write!(formatter, "\"{text}{}\"", if self.cut { "…" } else { "" })
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
