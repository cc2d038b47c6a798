//! Columns that a model does not see, next to the samples that the others become: ids of rows that
//! predictions are named by, groups and slices that metrics are taken over.

use std::collections::VecDeque;

use super::Format;
use super::delimited::{self, CarriedText};
use super::frame::{self, CarriedFrame};
use super::parquet::{self, CarriedParquet};
use crate::convert::Described;
use crate::error::{ReaderError, Result, refuse};
use crate::io::DataFile;

/// Some columns of files, as text, row by row from front to back: as many as there are samples.
pub struct Carried {
    format: Format,
    files: VecDeque<DataFile>,
    names: Vec<String>,
    described: Described,
    open: Option<Open>,
}

enum Open {
    Text(Box<CarriedText>),
    Parquet(Box<CarriedParquet>),
    Frame(CarriedFrame),
}

impl Carried {
    /// Columns `names` of `files`, which are opened one after another.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for a format whose columns have no names, and for a pipe, which can
    /// be read once.
    pub fn new(
        format: Format,
        files: &[DataFile],
        names: &[String],
        described: &Described,
    ) -> Result<Self> {
        let list = names.join("`, `");
        if !matches!(format, Format::Csv | Format::Parquet) {
            refuse!("`{list}`: columns are carried from csv and parquet, and the data is {format}");
        }
        if let Some(file) = files.iter().find(|file| file.is_stream()) {
            refuse!("{file}: `{list}` cannot be carried from a pipe, which is read once");
        }
        let (files, names) = (files.iter().cloned().collect(), names.to_vec());
        Ok(Self { format, files, names, described: described.clone(), open: None })
    }

    /// Fills `row` with the fields of the next row, in the order of the names; a missing one is
    /// empty. False after the last.
    ///
    /// # Errors
    /// A column that a file does not have; what is wrong with the file.
    pub fn next(&mut self, row: &mut Vec<String>) -> Result<bool> {
        loop {
            let more = match &mut self.open {
                None => false,
                Some(Open::Text(text)) => text.next(row)?,
                Some(Open::Parquet(rows)) => rows.next(row)?,
                Some(Open::Frame(rows)) => rows.next(row),
            };
            if more {
                return Ok(true);
            }
            let Some(file) = self.files.pop_front() else { return Ok(false) };
            self.open = Some(match (self.format, file.frame()) {
                (_, Some(frame)) => Open::Frame(CarriedFrame::open(&file, frame, &self.names)?),
                (Format::Parquet, None) => {
                    Open::Parquet(Box::new(CarriedParquet::open(&file, &self.names)?))
                }
                _ => {
                    let text = CarriedText::open(&file, &self.names, &self.described)?;
                    Open::Text(Box::new(text))
                }
            });
        }
    }
}

/// The names of a file's columns; none where its format has no names.
///
/// # Errors
/// Those of opening.
pub fn names_of(format: Format, file: &DataFile, described: &Described) -> Result<Vec<String>> {
    if let Some(frame) = file.frame() {
        return Ok(frame::names_of(&**frame));
    }
    match format {
        _ if file.is_stream() => Ok(Vec::new()),
        Format::Csv => {
            let separator = described.columns.as_ref().and_then(|columns| columns.separator);
            delimited::header(file, separator).map(|(names, _)| names)
        }
        Format::Parquet => parquet::names_of(file),
        _ => Ok(Vec::new()),
    }
}

/// Where `names` are in `header`.
pub(super) fn places(names: &[String], header: &[String], file: &DataFile) -> Result<Vec<usize>> {
    let place = |name: &String| {
        header.iter().position(|column| column == name).ok_or_else(|| {
            let found = header.join("`, `");
            let message = format!("header: expected a column `{name}`, found `{found}`");
            ReaderError::format(file.name(), message)
        })
    };
    names.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BadRowPolicy;
    use crate::criteo::BlockOptions;
    use crate::formats::named::{DenseReading, NamedColumns, Others};
    use crate::io::testing::write;

    fn rows(mut carried: Carried) -> Vec<String> {
        let (mut all, mut row) = (Vec::new(), Vec::new());
        while carried.next(&mut row).unwrap() {
            all.push(row.join(" "));
        }
        all
    }

    #[test]
    fn fields_are_carried_as_they_are_written_and_none_of_skipped_rows() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str, text: &str| write(folder.path(), name, text.as_bytes());
        let files = [
            text("a.csv", "id,label,C1,who\n7,1,3,\"a, b\"\n8,maybe,3,c\n9,0,3,\n"),
            text("b.csv", "who,C1,label,id\nx,1,0,\"q\"\n"),
        ];
        let mut columns =
            NamedColumns::by_convention(&["label".to_owned(), "C1".to_owned()], READING, &[]);
        columns.place_others(Others::Ignored, &[], |_| unreachable!());
        let described = Described {
            columns: Some(columns),
            text: BlockOptions { on_bad_row: BadRowPolicy::Skip, ..BlockOptions::default() },
            ..Described::default()
        };
        let names = ["who".to_owned(), "id".to_owned()];
        let carried = |names: &[String], format| Carried::new(format, &files, names, &described);
        assert_eq!(rows(carried(&names, Format::Csv).unwrap()), ["a, b 7", " 9", "x q"]);
        let mut none = carried(&["whom".to_owned()], Format::Csv).unwrap();
        let error = none.next(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("expected a column `whom`, found `id`, `label`"), "{error}");
        let bytes = [write(folder.path(), "c.csv", b"id,label,C1,who\n7,1,3,\xe9x\n")];
        let mut other = Carried::new(Format::Csv, &bytes, &names, &described).unwrap();
        let error = other.next(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("line 2: column `who` is carried and is not UTF-8"), "{error}");
        let error = carried(&names, Format::Criteo).err().unwrap().to_string();
        assert!(error.contains("the data is criteo"), "{error}");
    }

    const READING: DenseReading = DenseReading::Integers;
}
