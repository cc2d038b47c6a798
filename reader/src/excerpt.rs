//! A bounded part of the rows of files, field by field, as text: for a look at data of which no one
//! has said yet what its columns are.

use crate::criteo::detect::has_label;
use crate::error::{ReaderError, Result, invalid};
use crate::formats::{Format, delimited, frame, names_of, parquet};
use crate::io::DataFile;
use crate::schema::Schema;
use std::collections::{HashMap, HashSet};

/// What is between the values of a list that comes from a format with lists of its own.
pub const UNIT_SEPARATOR: u8 = 0x1f;

/// How much is read at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows of all files together.
    pub rows: u64,
    /// Bytes of all their fields.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rows: 200_000, bytes: 64 << 20 }
    }
}

impl Limits {
    /// An equal part of it.
    pub(crate) fn divided(self, parts: usize) -> Self {
        let parts = parts.max(1);
        Self { rows: (self.rows / parts as u64).max(1), bytes: (self.bytes / parts).max(1) }
    }
}

/// How text is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfText {
    /// What is between fields; none: what the header has.
    pub separator: Option<u8>,
    /// Whether rows of another length than the header are passed over.
    pub skips_bad_rows: bool,
}

/// Fields of one column, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Fields {
    /// Adds one.
    pub fn push(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
        self.ends.push(self.bytes.len());
    }

    /// All of them, without blanks around them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(&start, &end)| self.bytes[start..end].trim_ascii())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A column as it lies in the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawColumn {
    /// Its name.
    pub name: String,
    /// Its fields, where it can be read.
    pub fields: Fields,
    /// What it holds, where that cannot be read.
    pub refused: Option<&'static str>,
    /// Whether its fields are lists, with [`UNIT_SEPARATOR`] between their values.
    pub is_list: bool,
}

/// Some rows, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The columns, in the order of the first file.
    pub columns: Vec<RawColumn>,
    /// Rows that were read.
    pub rows: u64,
    /// Rows of all files: counted where all were read, else estimated.
    pub rows_of_all: u64,
}

impl Excerpt {
    /// Keeps the rows that `keep` says.
    pub fn retain(&mut self, keep: &[bool]) {
        for column in self.columns.iter_mut().filter(|column| column.fields.len() == keep.len()) {
            let mut kept = Fields::default();
            let rows = column.fields.iter().zip(keep).filter(|(_, keep)| **keep);
            rows.for_each(|(field, _)| kept.push(field));
            column.fields = kept;
        }
        let gone = keep.iter().filter(|keep| !**keep).count() as u64;
        (self.rows, self.rows_of_all) = (self.rows - gone, self.rows_of_all - gone);
    }

    /// Whether it has every row.
    pub fn is_whole(&self) -> bool {
        self.rows == self.rows_of_all
    }

    /// The place of each of a file's columns. The first file says which there are.
    pub(crate) fn places(&mut self, names: &[String], file: &DataFile) -> Result<Vec<usize>> {
        let bad = |message| ReaderError::Format { file: file.name(), message };
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(bad(format!("header: column `{twice}` is there several times")));
        }
        if self.columns.is_empty() {
            let column = |name: &String| RawColumn { name: name.clone(), ..RawColumn::default() };
            self.columns = names.iter().map(column).collect();
        }
        if let Some(missing) = self.columns.iter().find(|column| !seen.contains(&column.name)) {
            return Err(bad(format!("header: expected a column `{}`", missing.name)));
        }
        let places = self.columns.iter().enumerate();
        let places: HashMap<&String, usize> =
            places.map(|(place, column)| (&column.name, place)).collect();
        names
            .iter()
            .map(|name| {
                places.get(name).copied().ok_or_else(|| {
                    bad(format!("header: column `{name}` is not in the files before"))
                })
            })
            .collect()
    }
}

/// Reads a part of `files`: the first rows, and where files are long and can be read at any place,
/// rows of a few places further on.
///
/// # Errors
/// Those of reading; [`ReaderError::Pipe`]; [`ReaderError::Format`] for files without rows or
/// labels; [`ReaderError::Invalid`] for formats whose columns have no names.
pub fn excerpt(
    format: Format,
    files: &[DataFile],
    limits: Limits,
    text: OfText,
) -> Result<Excerpt> {
    DataFile::refuse_pipes(files, "a part of it is looked at before all of it is read")?;
    let limits = limits.divided(files.len());
    let mut excerpt = Excerpt::default();
    for file in files {
        if let Some(rows) = file.frame() {
            frame::read_some(file, &**rows, limits, &mut excerpt)?;
            continue;
        }
        match format {
            Format::Csv => {
                let (names, separator) = delimited::header(file, text.separator)?;
                check_names(&names, file)?;
                let text = OfText { separator: Some(separator), ..text };
                delimited::read_some(file, &names, (text, true), limits, &mut excerpt)?;
            }
            Format::Criteo => {
                if !has_label(file, &Schema::criteo_unlabelled())? {
                    return Err(ReaderError::Format {
                        file: file.name(),
                        message: "expected rows with labels, found none".to_owned(),
                    });
                }
                let text = OfText { separator: Some(b'\t'), ..text };
                delimited::read_some(file, &criteo_names(), (text, false), limits, &mut excerpt)?;
            }
            Format::Parquet => parquet::read_some(file, limits, &mut excerpt)?,
            other => {
                return Err(invalid!(
                    "columns are told of csv, parquet and criteo, and these files are {other}"
                ));
            }
        }
    }
    match excerpt.rows {
        0 => Err(invalid!("{}: expected at least one row, found none", names_of(files))),
        _ => Ok(excerpt),
    }
}

/// Refuses what cannot be a header.
fn check_names(names: &[String], file: &DataFile) -> Result<()> {
    let is_bad = |name: &String| {
        name.is_empty() || name.contains(char::REPLACEMENT_CHARACTER) || name.contains('\0')
    };
    if names.is_empty() {
        return Err(ReaderError::format(file.name(), "expected the names of columns, found none"));
    }
    let numbers = names.iter().filter(|name| name.parse::<f64>().is_ok()).count();
    match names.iter().position(is_bad) {
        None if 2 * numbers > names.len() => Err(ReaderError::Format {
            file: file.name(),
            message: format!(
                "line 1 looks like a row, not like names of columns ({}): write their names above \
                 it",
                names.join(", ").chars().take(60).collect::<String>()
            ),
        }),
        Some(at) => Err(ReaderError::Format {
            file: file.name(),
            message: format!(
                "line 1: expected the names of columns, found none in field {}: is it a text file \
                 with a header?",
                at + 1
            ),
        }),
        None => Ok(()),
    }
}

fn criteo_names() -> Vec<String> {
    let integers = (1..=13).map(|column| format!("I{column}"));
    let ids = (1..=26).map(|column| format!("C{column}"));
    std::iter::once("label".to_owned()).chain(integers).chain(ids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limits: Limits) -> Result<Excerpt> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, text).unwrap();
        excerpt(Format::Csv, &[path.into()], limits, OfText::default())
    }

    #[test]
    fn a_small_file_is_read_whole() {
        let found = read("a,b\n1,\"x,\ny\"\n2,\n", Limits::default()).unwrap();
        assert!(found.is_whole() && found.rows == 2);
        let fields: Vec<_> = found.columns[1].fields.iter().collect();
        assert_eq!(fields, [&b"x,\ny"[..], b""]);
    }

    #[test]
    fn of_a_long_file_rows_of_several_places_are_read_and_all_are_estimated() {
        let rows: String = (0..50_000).map(|row| format!("{row},w\n")).collect();
        let found =
            read(&format!("n,word\n{rows}"), Limits { rows: 1000, bytes: 1 << 20 }).unwrap();
        assert!(!found.is_whole() && found.rows <= 1000 && found.rows > 900, "{}", found.rows);
        assert!(found.rows_of_all.abs_diff(50_000) < 8000, "{}", found.rows_of_all);
        let last: u64 = found.columns[0]
            .fields
            .iter()
            .map(|field| std::str::from_utf8(field).unwrap().parse::<u64>().unwrap())
            .max()
            .unwrap();
        assert!(last > 35_000, "{last}");
    }

    #[test]
    fn a_file_that_is_read_in_parts_gives_each_row_once() {
        for (rows, end) in (90..130_u64).zip(["\n", "\r\n"].into_iter().cycle()) {
            let text: String = (0..rows).map(|row| format!("{row},w{end}")).collect();
            let found = read(&format!("n,word\n{text}"), Limits { rows: 2 * rows, bytes: 1 << 20 });
            let found = found.unwrap();
            let numbers = found.columns[0].fields.iter();
            let numbers: Vec<_> =
                numbers.map(|n| std::str::from_utf8(n).unwrap().parse::<u64>().unwrap()).collect();
            assert_eq!(numbers, (0..rows).collect::<Vec<_>>());
            assert!(found.is_whole());
        }
    }

    #[test]
    fn what_has_no_header_or_no_rows_is_refused() {
        for (text, words) in [
            ("a,b\n", "expected at least one row"),
            ("a,a\n1,2\n", "several times"),
            ("a,\u{fffd}\n1,2\n", "expected the names of columns"),
            ("a,b\n1\n", "expected 2 fields as in the header, found 1"),
        ] {
            let message = read(text, Limits::default()).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
