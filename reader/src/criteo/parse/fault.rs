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

/// The ways in which a line is not a row; shown as what comes before the text at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum FaultKind {
    /// Too few or too many columns.
    #[error("expected {} tab-separated columns, found {found} in", schema.num_columns())]
    ColumnCount { schema: Schema, found: u32 },
    /// The label is neither 0 nor 1.
    #[error("column label: expected 0 or 1, found")]
    Label,
    /// Not an integer.
    #[error("column {0}: expected an integer or nothing, found")]
    NotInteger(Column),
    /// An integer that 32 bits do not hold.
    #[error("column {0}: expected an integer from -{most} to {most}, found", most = i32::MAX)]
    IntegerRange(Column),
    /// Not hexadecimal.
    #[error("column {0}: expected up to 8 hexadecimal digits or nothing, found")]
    NotHex(Column),
    /// More than eight hexadecimal digits.
    #[error("column {0}: expected up to 8 hexadecimal digits, found more in")]
    HexTooLong(Column),
    /// Longer than any row.
    #[error("expected a row of at most {limit} bytes, found a longer line:")]
    LineTooLong { limit: usize },
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind, self.found)?;
        let FaultKind::ColumnCount { schema, found } = self.kind else { return Ok(()) };
        if found == 1 && self.found.has_comma() {
            let hint = " (is it CSV? --data-format csv reads it; in `headlong data`, --from csv)";
            return formatter.write_str(hint);
        }
        match (schema.labelled, schema.num_columns()) {
            (true, expected) if found as usize + 1 == expected => {
                write!(formatter, " (rows without a label?)")
            }
            (false, expected) if found as usize == expected + 1 => {
                write!(formatter, " (rows with a label?)")
            }
            _ => Ok(()),
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

    fn has_comma(&self) -> bool {
        self.bytes[..self.kept as usize].contains(&b',')
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
