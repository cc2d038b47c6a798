//! Rows to files: blocks of rows in parallel, written in order, under a temporary name until they
//! are whole.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use flate2::{Compression, GzBuilder};
use headlong_device::pool::Pool;

use super::quality::Scored;
use super::truth::{Row, Truth};
use crate::error::{Result, refuse};
use crate::output::write_file;

/// Rows of one task; in compressed files also the rows of one gzip member, so part of the format.
const BLOCK_ROWS: u64 = 8192;
const BLOCKS_PER_THREAD: usize = 2;
const ROW_BYTES: usize = 256;
/// Level of compression: the data is for one machine's own use, so speed counts.
const GZIP_LEVEL: u32 = 3;

pub(super) struct FileTask<'a> {
    pub truth: &'a Truth,
    pub stream: u64,
    pub rows: u64,
    pub gzip: bool,
    pub file: &'a Path,
    pub pool: &'a Pool,
    /// Whether the rows' true logits are wanted: 16 bytes a row.
    pub keeps_scores: bool,
}

pub(super) struct Written {
    /// Rows with label 1.
    pub clicks: u64,
    /// Label and true logit of each row, in order, where they are kept.
    pub scored: Vec<Scored>,
    pub bytes: u64,
}

#[derive(Default)]
struct Block {
    text: Vec<u8>,
    stored: Vec<u8>,
    scored: Vec<Scored>,
}

/// Writes all rows of a file; `progress` hears the rows written so far.
pub(super) fn write_rows(task: &FileTask<'_>, progress: &mut dyn FnMut(u64)) -> Result<Written> {
    let num_blocks = task.rows.div_ceil(BLOCK_ROWS);
    let mut blocks: Vec<Mutex<Block>> = Vec::new();
    blocks.resize_with(task.pool.threads() * BLOCKS_PER_THREAD, Mutex::default);
    let mut written = Written { clicks: 0, scored: Vec::new(), bytes: 0 };
    let kept = if task.keeps_scores { task.rows } else { 0 };
    let room =
        usize::try_from(kept).ok().map(|kept| written.scored.try_reserve_exact(kept).is_ok());
    if room != Some(true) {
        refuse!("synthetic rows: the system refuses memory for the scores of {kept} rows");
    }
    let mut rows = 0;
    write_file(task.file, |file| {
        for first in (0..num_blocks).step_by(blocks.len()) {
            let count = (num_blocks - first).min(blocks.len() as u64) as usize;
            task.pool.run(count, &|index| {
                // Only a panic poisons the lock, and `run` passes panics on.
                let mut block = blocks[index].lock().unwrap_or_else(PoisonError::into_inner);
                block.fill(task, (first + index as u64) * BLOCK_ROWS);
            });
            for block in &mut blocks[..count] {
                let block = block.get_mut().unwrap_or_else(PoisonError::into_inner);
                let bytes = if task.gzip { &block.stored } else { &block.text };
                file.write_all(bytes)?;
                written.bytes += bytes.len() as u64;
                rows += block.scored.len() as u64;
                written.clicks += block.scored.iter().filter(|scored| scored.1 == 1).count() as u64;
                if task.keeps_scores {
                    written.scored.extend_from_slice(&block.scored);
                }
            }
            progress(rows);
        }
        Ok(())
    })?;
    Ok(written)
}

impl Block {
    fn fill(&mut self, task: &FileTask<'_>, first_row: u64) {
        self.text.clear();
        self.text.reserve(BLOCK_ROWS as usize * ROW_BYTES);
        self.scored.clear();
        for index in first_row..(first_row + BLOCK_ROWS).min(task.rows) {
            let row = task.truth.row(task.stream, index);
            push_row(&mut self.text, &row);
            self.scored.push((row.logit, row.label));
        }
        if task.gzip {
            self.stored.clear();
            // No name and no time, so that the bytes depend on the rows alone. Each block is a
            // member of its own.
            let mut encoder =
                GzBuilder::new().write(&mut self.stored, Compression::new(GZIP_LEVEL));
            encoder.write_all(&self.text).expect("writing to memory does not fail");
            encoder.finish().expect("writing to memory does not fail");
        }
    }
}

fn push_row(text: &mut Vec<u8>, row: &Row) {
    text.push(b'0' + row.label);
    for value in row.dense {
        text.push(b'\t');
        if let Some(value) = value {
            push_integer(text, value);
        }
    }
    for value in row.sparse {
        text.push(b'\t');
        if let Some(value) = value {
            let digit = |place: u32| b"0123456789abcdef"[(value >> (4 * place) & 15) as usize];
            text.extend_from_slice(&[7, 6, 5, 4, 3, 2, 1, 0].map(digit));
        }
    }
    text.push(b'\n');
}

fn push_integer(text: &mut Vec<u8>, value: i64) {
    if value < 0 {
        text.push(b'-');
    }
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_as_criteo_writes_them() {
        let mut row = Row { label: 1, ..Row::default() };
        row.dense[0] = Some(0);
        row.dense[1] = Some(-2);
        row.dense[12] = Some(i64::from(i32::MAX));
        row.sparse[0] = Some(0x0000_00fe);
        row.sparse[25] = Some(u32::MAX);
        let mut text = Vec::new();
        push_row(&mut text, &row);
        let empty = |count| "\t".repeat(count);
        let expected =
            format!("1\t0\t-2{}\t2147483647\t000000fe{}\tffffffff\n", empty(10), empty(24));
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
