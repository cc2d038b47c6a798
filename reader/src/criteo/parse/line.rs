//! The format, defined: one line, field by field, in plain Rust.
//!
//! Everything else is measured against this file. It is also what names a fault, so messages do not
//! depend on which body ran.

use memchr::memchr;

use super::fault::{BadLine, Excerpt, Fault, FaultKind};
use super::{BadRowPolicy, MAX_LINE_BYTES, MISSING_DENSE, MOST_FAULTS, RawBlock};
use crate::schema::{Column, Schema};

/// Parses all lines of `text` and appends to `block`.
pub fn parse_lines(schema: &Schema, policy: BadRowPolicy, text: &[u8], block: &mut RawBlock) {
    let mut start = 0;
    while start < text.len() {
        let end = memchr(b'\n', &text[start..]).map_or(text.len(), |length| start + length);
        let next = (end + 1).min(text.len());
        if !push_line(schema, policy, &text[start..end], next as u32, block) {
            return;
        }
        start = next;
    }
}

/// Parses one line (without its `\n`) that ends before byte `line_end` of the block, and appends it
/// to `block` as a sample or as a bad line. Says whether to go on.
pub fn push_line(
    schema: &Schema,
    policy: BadRowPolicy,
    line: &[u8],
    line_end: u32,
    block: &mut RawBlock,
) -> bool {
    let result = append_sample(schema, line, block);
    block.num_lines += 1;
    match result {
        Ok(()) => {
            block.line_ends.push(line_end);
            block.num_samples += 1;
            true
        }
        Err(fault) => {
            drop_partial_sample(schema, block);
            let line = block.num_lines as u32 - 1;
            block.bad_lines.push(BadLine { line, samples_before: block.num_samples as u32 });
            if block.faults.len() < MOST_FAULTS {
                block.faults.push(fault);
            }
            policy == BadRowPolicy::Skip
        }
    }
}

/// Appends the fields of `line`; on a fault some of them may be left behind.
fn append_sample(schema: &Schema, line: &[u8], block: &mut RawBlock) -> Result<(), Fault> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    check_shape(schema, line)?;
    let mut fields = line.split(|&byte| byte == b'\t');
    let mut next_field = || fields.next().unwrap_or_default();
    if schema.labelled {
        block.labels.push(parse_label(next_field())?);
    }
    for index in 0..schema.num_dense {
        block.dense.push(parse_integer(next_field(), Column::Dense(index as u16))?);
    }
    let mut missing = 0_u64;
    for index in 0..schema.num_sparse {
        let field = next_field();
        missing |= (field.is_empty() as u64) << index;
        block.sparse.push(parse_category(field, Column::Sparse(index as u16))?);
    }
    block.sparse_missing.push(missing);
    Ok(())
}

/// Cuts the buffers back to whole samples.
pub fn drop_partial_sample(schema: &Schema, block: &mut RawBlock) {
    let num_samples = block.num_samples;
    block.labels.truncate(if schema.labelled { num_samples } else { 0 });
    block.dense.truncate(num_samples * schema.num_dense);
    block.sparse.truncate(num_samples * schema.num_sparse);
    block.sparse_missing.truncate(num_samples);
}

/// Refuses lines that are too long or have the wrong number of columns, before any field is looked
/// at.
fn check_shape(schema: &Schema, line: &[u8]) -> Result<(), Fault> {
    if line.len() > MAX_LINE_BYTES {
        let kind = FaultKind::LineTooLong { limit: MAX_LINE_BYTES };
        return Err(Fault { kind, found: Excerpt::of(line) });
    }
    let found = 1 + memchr::memchr_iter(b'\t', line).count();
    if found != schema.num_columns() {
        let kind = FaultKind::ColumnCount { schema: *schema, found: found as u32 };
        return Err(Fault { kind, found: Excerpt::of(line) });
    }
    Ok(())
}

fn parse_label(field: &[u8]) -> Result<u8, Fault> {
    match field {
        b"0" => Ok(0),
        b"1" => Ok(1),
        _ => Err(Fault { kind: FaultKind::Label, found: Excerpt::of(field) }),
    }
}

/// An optional `-`, then digits; nothing is [`MISSING_DENSE`], whose own value is out of range.
fn parse_integer(field: &[u8], column: Column) -> Result<i32, Fault> {
    if field.is_empty() {
        return Ok(MISSING_DENSE);
    }
    let (negative, digits) = match field.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, field),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Fault { kind: FaultKind::NotInteger(column), found: Excerpt::of(field) });
    }
    let mut magnitude = 0_i32;
    for digit in digits {
        let appended =
            magnitude.checked_mul(10).and_then(|tens| tens.checked_add((digit - b'0') as i32));
        magnitude = appended.ok_or_else(|| Fault {
            kind: FaultKind::IntegerRange(column),
            found: Excerpt::of(field),
        })?;
    }
    Ok(if negative { -magnitude } else { magnitude })
}

/// Up to eight hexadecimal digits of either case; nothing is 0.
fn parse_category(field: &[u8], column: Column) -> Result<u32, Fault> {
    let mut value = 0_u32;
    for &byte in field {
        let digit = char::from(byte).to_digit(16);
        let digit = digit
            .ok_or_else(|| Fault { kind: FaultKind::NotHex(column), found: Excerpt::of(field) })?;
        value = value << 4 | digit;
    }
    if field.len() > 8 {
        return Err(Fault { kind: FaultKind::HexTooLong(column), found: Excerpt::of(field) });
    }
    Ok(value)
}
