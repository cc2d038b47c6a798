//! Some columns of a file, as text, row by row.

use super::column::Column;
use super::contained::contained;
use super::read::{Opened, bad, refused_type};
use crate::error::Result;
use crate::excerpt::UNIT_SEPARATOR;
use crate::formats::carried::places;
use crate::io::DataFile;

/// The names of a file's columns.
pub(in crate::formats) fn names_of(file: &DataFile) -> Result<Vec<String>> {
    Ok(Opened::open(file.system_path())?.names())
}

const ROWS_AT_A_TIME: usize = 4096;

/// Fields of columns, from the first row group to the last. Those of a list have `|` between them.
pub(in crate::formats) struct CarriedParquet {
    file: DataFile,
    opened: Opened,
    leaves: Vec<usize>,
    /// The row group at hand, and the rows of it that were decoded.
    group: usize,
    decoded: usize,
    /// What was decoded last, a list for each column, and how many rows of it were given out.
    fields: Vec<Vec<String>>,
    given: usize,
    readers: Vec<::parquet::column::reader::ColumnReader>,
}

impl CarriedParquet {
    /// Opens a file for its columns `names`.
    pub fn open(file: &DataFile, names: &[String]) -> Result<Self> {
        let opened = Opened::open(file.system_path())?;
        let leaves = places(names, &opened.names(), file)?;
        for (&leaf, name) in leaves.iter().zip(names) {
            if let Some((what, _)) = refused_type(&opened.leaves()[leaf]) {
                return Err(bad(&file.name(), format!("column `{name}`: {what} are not carried")));
            }
        }
        let fields = vec![Vec::new(); leaves.len()];
        let (group, decoded, given) = (0, 0, 0);
        let file = file.clone();
        Ok(Self { file, opened, leaves, group, decoded, fields, given, readers: Vec::new() })
    }

    /// As [`Carried::next`](crate::formats::carried::Carried::next).
    pub fn next(&mut self, row: &mut Vec<String>) -> Result<bool> {
        while self.fields.first().is_none_or(|fields| self.given == fields.len()) {
            if !self.decode()? {
                return Ok(false);
            }
        }
        row.clear();
        row.extend(self.fields.iter_mut().map(|fields| std::mem::take(&mut fields[self.given])));
        self.given += 1;
        Ok(true)
    }

    /// Decodes the next rows; false after the last.
    fn decode(&mut self) -> Result<bool> {
        let groups = self.opened.metadata.row_groups();
        let Some(rows) = groups.get(self.group).map(|group| group.num_rows().max(0) as usize)
        else {
            return Ok(false);
        };
        let (name, group) = (self.file.name(), self.group);
        let failed = |error| bad(&name, format!("row group {group}: {error}"));
        if self.decoded == 0 {
            let open = |&leaf: &usize| self.opened.column(group, leaf);
            self.readers =
                self.leaves.iter().map(open).collect::<Result<_, _>>().map_err(failed)?;
        }
        let count = ROWS_AT_A_TIME.min(rows - self.decoded);
        for ((reader, &leaf), fields) in
            self.readers.iter_mut().zip(&self.leaves).zip(&mut self.fields)
        {
            let descriptor = &self.opened.leaves()[leaf];
            let column = contained(|| Column::read(reader, descriptor, count)).map_err(failed)?;
            fields.clear();
            column.texts(count, &mut |text| {
                fields.push(String::from_utf8_lossy(text).replace(UNIT_SEPARATOR as char, "|"));
            });
        }
        (self.given, self.decoded) = (0, self.decoded + count);
        if self.decoded == rows {
            (self.group, self.decoded) = (self.group + 1, 0);
        }
        Ok(true)
    }
}
