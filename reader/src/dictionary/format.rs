//! The stored form of a dictionary; `docs/formats.md` has the layout.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

use super::{CountedFile, Dictionary, DictionaryColumn, DictionaryRule, MAX_DICTIONARY_ROWS};
use crate::error::{ReaderError, Result};
use crate::io::open_regular;
use crate::output::write_file;

/// The name of a dictionary in its folder.
pub const DICTIONARY_FILE: &str = "dictionary.hld";
const MAGIC: &[u8; 8] = b"HLDICT01";
/// The version that is written. Version 1 had neither settings nor identities of files.
const FORMAT_VERSION: u32 = 2;
const MOST_HEADER_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format_version: u32,
    min_count: u64,
    max_rows: Option<u64>,
    /// 16 hexadecimal digits.
    fingerprint: String,
    files: Vec<CountedFile>,
    #[serde(default)]
    settings: Value,
    columns: Vec<ColumnHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnHeader {
    name: String,
    rows: u64,
    distinct: u64,
    shared_count: u64,
}

impl Dictionary {
    /// Writes the dictionary, under a temporary name until it is whole.
    pub fn save(&self, path: &Path) -> Result<()> {
        write_file(path, |file| self.write(BufWriter::with_capacity(1 << 20, file)))
    }

    /// The bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("memory takes what is written");
        bytes
    }

    fn write(&self, output: impl Write) -> io::Result<()> {
        let header = serde_json::to_vec(&self.header())
            .expect("a struct of plain fields always becomes JSON");
        let mut output = Hashed::over(output);
        output.write(MAGIC)?;
        output.write(&(header.len() as u64).to_le_bytes())?;
        output.write(&header)?;
        for column in &self.columns {
            let words = column.ids.iter().chain(&column.counts);
            words.into_iter().try_for_each(|word| output.write(&word.to_le_bytes()))?;
        }
        output.finish()
    }

    fn header(&self) -> Header {
        let columns = self.columns.iter().enumerate();
        let columns = columns.map(|(index, column)| ColumnHeader {
            name: format!("C{}", index + 1),
            rows: column.rows(),
            distinct: column.distinct,
            shared_count: column.shared_count,
        });
        Header {
            format_version: FORMAT_VERSION,
            min_count: self.rule.min_count,
            max_rows: self.rule.max_rows,
            fingerprint: format!("{:016x}", self.fingerprint),
            files: self.files.clone(),
            settings: self.settings.clone(),
            columns: columns.collect(),
        }
    }

    /// Reads a dictionary (or the one in the folder `path`) and checks it: checksum, fingerprint,
    /// and that every id has one row.
    ///
    /// # Errors
    /// [`ReaderError::Open`]; [`ReaderError::Format`] naming the file and what does not fit.
    pub fn load(path: &Path) -> Result<Self> {
        let path = &file_of(path);
        let (file, length) = open_regular(path)?;
        Self::parse(path, BufReader::new(file), length)
    }

    /// As [`Dictionary::load`], with the bytes that were read.
    pub fn load_with_bytes(path: &Path) -> Result<(Self, Vec<u8>)> {
        let path = &file_of(path);
        let failed = |source| ReaderError::Open { file: path.clone(), source };
        let (file, length) = open_regular(path)?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(length as usize)
            .map_err(|error| failed(io::Error::other(error)))?;
        file.take(length).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(path, &bytes[..], length).map(|dictionary| (dictionary, bytes))
    }

    /// A dictionary from the bytes of its file; `path` is for messages.
    ///
    /// # Errors
    /// [`ReaderError::Format`], as those of [`Dictionary::load`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::parse(path, bytes, bytes.len() as u64)
    }

    /// Reads the `length` bytes of a dictionary; `path` is for messages.
    fn parse(path: &Path, input: impl Read, length: u64) -> Result<Self> {
        let bad = |message: String| ReaderError::Format { file: path.to_owned(), message };
        let short = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => bad("damaged dictionary: it ends too early".to_owned()),
            _ => bad(format!("cannot read: {error}")),
        };
        let mut input = Hashed::over(input);
        let magic: [u8; 8] = input.read().map_err(short)?;
        if magic != *MAGIC {
            return Err(bad(format!(
                "not a dictionary: expected it to begin with {:?}",
                MAGIC.escape_ascii().to_string()
            )));
        }
        let header_bytes = u64::from_le_bytes(input.read().map_err(short)?);
        if header_bytes > MOST_HEADER_BYTES.min(length) {
            return Err(bad(format!("damaged dictionary: a header of {header_bytes} bytes")));
        }
        let mut header = vec![0; header_bytes as usize];
        input.read_into(&mut header).map_err(short)?;
        let header: Header = serde_json::from_slice(&header)
            .map_err(|error| bad(format!("damaged header: {error}")))?;
        header.check(length - header_bytes).map_err(bad)?;
        let columns = header
            .columns
            .iter()
            .map(|column| input.read_column(column))
            .collect::<io::Result<Vec<_>>>();
        let columns = columns.map_err(short)?;
        let expected = input.hasher.digest();
        let found = u64::from_le_bytes(input.read().map_err(short)?);
        if expected != found {
            return Err(bad(format!(
                "damaged dictionary: checksum expected {expected:016x}, found {found:016x}"
            )));
        }
        // The checksum fits, so from here on only a program can have written something wrong.
        check_ids(&columns).map_err(bad)?;
        let rule = DictionaryRule { min_count: header.min_count, max_rows: header.max_rows };
        let dictionary = Self::new(rule, header.files, columns).with_settings(header.settings);
        let fingerprint = format!("{:016x}", dictionary.fingerprint);
        if fingerprint != header.fingerprint {
            let expected = header.fingerprint;
            return Err(bad(format!(
                "damaged dictionary: fingerprint expected {expected}, found {fingerprint}"
            )));
        }
        Ok(dictionary)
    }
}

/// The dictionary in the folder `path`, or `path` itself.
fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(DICTIONARY_FILE) } else { path.to_owned() }
}

impl Header {
    /// Sees that the columns have the bytes that follow the header, before memory is taken for
    /// them.
    fn check(&self, bytes_without_header: u64) -> std::result::Result<(), String> {
        if !(1..=FORMAT_VERSION).contains(&self.format_version) {
            return Err(format!(
                "format version: expected 1 to {FORMAT_VERSION}, found {}",
                self.format_version
            ));
        }
        if let Some(column) =
            self.columns.iter().find(|column| !(1..=MAX_DICTIONARY_ROWS).contains(&column.rows))
        {
            return Err(format!("damaged header: column {} of {} rows", column.name, column.rows));
        }
        let ids: u64 = self.columns.iter().map(|column| column.rows - 1).sum();
        // Magic, length of the header, ids with counts, checksum.
        let (expected, found) = (8 + 8 + ids * 16 + 8, bytes_without_header);
        if expected != found {
            return Err(format!(
                "damaged dictionary: expected {expected} bytes besides the header, found {found}"
            ));
        }
        Ok(())
    }
}

fn check_ids(columns: &[DictionaryColumn]) -> std::result::Result<(), String> {
    for (index, column) in columns.iter().enumerate() {
        let mut ids = column.ids.clone();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("damaged dictionary: column C{} repeats an id", index + 1));
        }
    }
    Ok(())
}

pub(super) struct Hashed<T> {
    inner: T,
    hasher: Xxh3Default,
}

impl<T> Hashed<T> {
    pub fn over(inner: T) -> Self {
        Self { inner, hasher: Xxh3Default::new() }
    }
}

impl<T: Write> Hashed<T> {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.inner.write_all(bytes)
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.inner.write_all(&self.hasher.digest().to_le_bytes())?;
        self.inner.flush()
    }
}

impl<T: Read> Hashed<T> {
    fn read_into(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    fn read_words(&mut self, count: u64) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count as usize * 8];
        self.read_into(&mut bytes)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect())
    }

    fn read_column(&mut self, header: &ColumnHeader) -> io::Result<DictionaryColumn> {
        let (ids, counts) = (self.read_words(header.rows - 1)?, self.read_words(header.rows - 1)?);
        Ok(DictionaryColumn {
            ids,
            counts,
            distinct: header.distinct,
            shared_count: header.shared_count,
        })
    }
}
