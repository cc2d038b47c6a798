//! Some rows of a file, as text.

use super::records::{Place, Records};
use crate::error::Result;
use crate::excerpt::{Excerpt, Limits, OfText};
use crate::io::{Compression, DataFile, TextFile};

/// A long file is read at so many places.
const PLACES: u64 = 5;

/// Adds rows of a file whose columns are `names` to `excerpt`; `(separator, has_header)` says what
/// is between its fields, and whether its first record is the names.
pub(crate) fn read_some(
    path: &DataFile,
    names: &[String],
    (text, has_header): (OfText, bool),
    limits: Limits,
    excerpt: &mut Excerpt,
) -> Result<()> {
    let places = excerpt.places(names, path)?;
    let file = TextFile::look(path)?;
    let (stored, is_plain) = (file.stored_bytes(), file.compression() == Compression::Plain);
    // A row is at least as long as its separators; so this is no long file.
    let is_short = stored <= limits.bytes as u64 && stored / names.len() as u64 <= limits.rows;
    let parts = if is_plain && !is_short { PLACES } else { 1 };
    let separator = text.separator.unwrap_or(b',');
    let (limits, skips) = (limits.divided(parts as usize), text.skips_bad_rows);
    let mut some = Some { places: &places, limits, skips, excerpt };
    let (mut rows, mut bytes, mut is_whole) = (0, 0, true);
    for part in 0..parts {
        // The record that lies across a border, or begins there, belongs to the part before it.
        let from = stored / parts * part;
        let until = if part + 1 < parts { stored / parts * (part + 1) } else { u64::MAX };
        let place = Place { byte: from, ..Place::START };
        let mut records = Records::new(TextFile::open(path)?, separator, place)?;
        if part > 0 || has_header {
            let found = records.next();
            found.map(|_| ()).or_else(|error| if part > 0 { Ok(()) } else { Err(error) })?;
        }
        let from = records.end();
        let (read, is_end) = some.read(&mut records, until, part > 0)?;
        rows += read;
        bytes += match is_plain {
            true => records.end() - from,
            false => records.stored_bytes_read(),
        };
        is_whole &= is_end;
    }
    excerpt.rows += rows;
    let rows_of_file = rows as f64 * (stored as f64 / bytes.max(1) as f64);
    excerpt.rows_of_all += if is_whole { rows } else { (rows_of_file as u64).max(rows + 1) };
    Ok(())
}

struct Some<'a> {
    places: &'a [usize],
    limits: Limits,
    /// Whether records of another length are passed over, wherever they are.
    skips: bool,
    excerpt: &'a mut Excerpt,
}

impl Some<'_> {
    /// Adds records that begin at byte `until` or before, up to the limits: how many, and whether
    /// there are no more. After a jump into the middle, where a quote may be open, records that do
    /// not fit are passed over.
    fn read(&mut self, records: &mut Records, until: u64, has_jumped: bool) -> Result<(u64, bool)> {
        let (mut rows, mut bytes) = (0, 0);
        while rows < self.limits.rows && bytes < self.limits.bytes {
            // Note: where that byte is a line end, the next part passes over the record after it.
            if records.end() > until.saturating_add(1) {
                return Ok((rows, true));
            }
            match records.next() {
                Ok(true) => {}
                Ok(false) => return Ok((rows, true)),
                Err(_) if has_jumped => return Ok((rows, false)),
                Err(error) => return Err(error),
            }
            let (expected, found) = (self.places.len(), records.len());
            if expected != found {
                if has_jumped || self.skips {
                    continue;
                }
                let message = format!("expected {expected} fields as in the header, found {found}");
                return Err(records.bad(records.place().line, message));
            }
            for (field, place) in records.fields().zip(self.places) {
                self.excerpt.columns[*place].fields.push(field);
                bytes += field.len();
            }
            rows += 1;
        }
        Ok((rows, false))
    }
}
