//! Statistics as bytes: `docs/formats.md`, "Statistics of rows".

use super::{RowCount, RowSample, Statistics, StatisticsError, TableStatistics};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"HLSTATS1";
const VERSION: u32 = 1;
/// Magic, version and checksum.
const FRAME_BYTES: usize = 8 + 4 + 8;

impl Statistics {
    /// The bytes that [`Self::from_bytes`] takes. Equal statistics have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        for number in
            [self.num_batches, self.num_samples, self.batch_size, self.tables.len() as u64]
        {
            put_number(&mut bytes, number);
        }
        for table in &self.tables {
            put_number(&mut bytes, table.name.len() as u64);
            bytes.extend(table.name.as_bytes());
            // 0 stands for "any number", which no table of rows has.
            for number in [table.rows.unwrap_or(0), table.lookups, table.error_bound] {
                put_number(&mut bytes, number);
            }
            put_rows(&mut bytes, &table.counted);
            match &table.sample {
                None => put_number(&mut bytes, 0),
                Some(sample) => {
                    put_number(&mut bytes, u64::from(sample.level) + 1);
                    put_rows(&mut bytes, &sample.rows);
                }
            }
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// Statistics from the bytes of [`Self::to_bytes`].
    ///
    /// # Errors
    /// [`StatisticsError`]: other bytes, another version, cut or damaged ones.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatisticsError> {
        let begin = &bytes[..bytes.len().min(MAGIC.len())];
        if begin != MAGIC {
            return Err(StatisticsError::Magic { expected: MAGIC, found: begin.to_vec() });
        }
        if bytes.len() < FRAME_BYTES {
            return Err(StatisticsError::Truncated { what: "the header", position: bytes.len() });
        }
        let (body, checksum) = bytes.split_at(bytes.len() - 8);
        let (head, _) = body.split_at(12);
        let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if found != VERSION {
            return Err(StatisticsError::Version { expected: VERSION, found });
        }
        let mut stored = [0; 8];
        stored.copy_from_slice(checksum);
        let (expected, found) = (u64::from_le_bytes(stored), xxh3_64(body));
        if expected != found {
            return Err(StatisticsError::Checksum { expected, found });
        }
        let mut source = Source { bytes: body, position: head.len() };
        let statistics = source.statistics()?;
        if source.position != body.len() {
            let reason = format!("{} bytes after the end", body.len() - source.position);
            return Err(StatisticsError::Invalid { reason });
        }
        Ok(statistics)
    }
}

/// Seven bits a byte, low ones first, the eighth says that more follow (LEB128).
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The number of rows, then for each how far its count falls, and its row: from the one before
/// where counts are equal.
fn put_rows(bytes: &mut Vec<u8>, rows: &[RowCount]) {
    put_number(bytes, rows.len() as u64);
    let mut last = RowCount { row: 0, count: rows.first().map_or(0, |row| row.count) };
    put_number(bytes, last.count);
    for row in rows {
        put_number(bytes, last.count - row.count);
        put_number(bytes, if row.count == last.count { row.row - last.row } else { row.row });
        last = *row;
    }
}

struct Source<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Source<'_> {
    fn number(&mut self, what: &'static str) -> Result<u64, StatisticsError> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let Some(&byte) = self.bytes.get(self.position) else {
                return Err(StatisticsError::Truncated { what, position: self.position });
            };
            self.position += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(StatisticsError::Invalid { reason: format!("{what} has more than 64 bits") })
    }

    /// A number of things that take at least one byte each.
    fn length(&mut self, what: &'static str) -> Result<usize, StatisticsError> {
        let length = self.number(what)?;
        if length > (self.bytes.len() - self.position) as u64 {
            return Err(StatisticsError::Truncated { what, position: self.bytes.len() });
        }
        Ok(length as usize)
    }

    fn statistics(&mut self) -> Result<Statistics, StatisticsError> {
        let num_batches = self.number("the number of batches")?;
        let num_samples = self.number("the number of samples")?;
        let batch_size = self.number("the batch size")?;
        let num_tables = self.length("the number of tables")?;
        let tables = (0..num_tables).map(|_| self.table()).collect::<Result<_, _>>()?;
        Ok(Statistics { num_batches, num_samples, batch_size, tables })
    }

    fn table(&mut self) -> Result<TableStatistics, StatisticsError> {
        let length = self.length("a table's name")?;
        let name = self.bytes[self.position..][..length].to_vec();
        self.position += length;
        let name = String::from_utf8(name).map_err(|_| StatisticsError::Invalid {
            reason: "a table's name is not UTF-8".to_owned(),
        })?;
        let rows = self.number("a table's rows")?;
        let lookups = self.number("a table's lookups")?;
        let error_bound = self.number("a table's error bound")?;
        let counted = self.rows()?;
        let level = self.number("the level of a sample")?;
        let sample = match level {
            0 => None,
            1..=64 => Some(RowSample { level: (level - 1) as u32, rows: self.rows()? }),
            _ => {
                let reason = format!("table `{name}`: sample of level {level}");
                return Err(StatisticsError::Invalid { reason });
            }
        };
        let total = counted.iter().try_fold(0_u64, |sum, row| sum.checked_add(row.count));
        if total.is_none_or(|total| total > lookups) {
            let reason = format!("table `{name}`: its rows have more lookups than its {lookups}");
            return Err(StatisticsError::Invalid { reason });
        }
        let rows = (rows > 0).then_some(rows);
        if let Some(outside) = counted.iter().find(|row| rows.is_some_and(|rows| row.row >= rows)) {
            let reason = format!("table `{name}`: row {} of {rows:?}", outside.row);
            return Err(StatisticsError::Invalid { reason });
        }
        Ok(TableStatistics { name, rows, lookups, counted, error_bound, sample })
    }

    fn rows(&mut self) -> Result<Vec<RowCount>, StatisticsError> {
        let length = self.length("the number of rows")?;
        let mut last = RowCount { row: 0, count: self.number("the largest count")? };
        let mut rows: Vec<RowCount> = Vec::with_capacity(length);
        let unsorted = || StatisticsError::Invalid {
            reason: "counts do not fall, or rows do not rise".to_owned(),
        };
        for index in 0..length {
            let fall = self.number("a count")?;
            let count = last.count.checked_sub(fall).ok_or_else(unsorted)?;
            let row = self.number("a row")?;
            let row = if fall == 0 { last.row.checked_add(row).ok_or_else(unsorted)? } else { row };
            if fall == 0 && index > 0 && row == last.row {
                return Err(unsorted());
            }
            last = RowCount { row, count };
            rows.push(last);
        }
        Ok(rows)
    }
}
