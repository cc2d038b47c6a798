//! Some columns of a file, as text, record by record.

use super::OneFile;
use super::judge::Judge;
use super::records::Records;
use crate::convert::Described;
use crate::error::Result;
use crate::formats::carried::places;
use crate::io::DataFile;

/// Fields of columns, of the records that are samples.
pub(in crate::formats) struct CarriedText {
    file: OneFile,
    judge: Option<Judge>,
    records: Records,
    places: Vec<usize>,
}

impl CarriedText {
    /// Opens a file for its columns `names`.
    pub fn open(path: &DataFile, names: &[String], described: &Described) -> Result<Self> {
        let columns = described.delimited(std::slice::from_ref(path))?;
        let policy = described.text.on_bad_row;
        let file = OneFile::open(path, &columns, false, policy)?;
        let places = places(names, &file.header, path)?;
        let judge = Judge::new(policy, &columns, file.is_labelled());
        Ok(Self { records: file.records(None)?, file, judge, places })
    }

    /// As [`Carried::next`](crate::formats::carried::Carried::next).
    pub fn next(&mut self, row: &mut Vec<String>) -> Result<bool> {
        if !self.file.next_sample(&mut self.records, &mut self.judge, &mut |_| {})? {
            return Ok(false);
        }
        let fields: Vec<&[u8]> = self.records.fields().collect();
        row.clear();
        for &place in &self.places {
            let text = str::from_utf8(fields[place]).map_err(|_| {
                let column = &self.file.header[place];
                let message = format!("column `{column}` is carried and is not UTF-8");
                self.records.bad(self.records.place().line, message)
            })?;
            row.push(text.to_owned());
        }
        Ok(true)
    }
}
