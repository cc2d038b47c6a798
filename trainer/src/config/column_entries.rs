//! What single dense columns have otherwise than `data.dense_transform` says, which of them have a
//! table of bins, and which columns are points in time, whose parts have tables: `[[column]]`, one
//! section for each.
//!
//! ```toml
//! [[column]]
//! name = "I1"
//! bins = "ln2"
//!
//! [[column]]
//! name = "I2"
//! transform = "none"
//! mean = 5.5
//! scale = 2.0
//! bins = "edges"
//! edges = [0, 1, 10]
//! ```

use super::render::lines_of;
use super::{ColumnsConfig, Config, DenseTransform, keys};
use crate::error::{Error, Result};
use headlong_reader::columns::{BinnedColumn, Bins, ColumnFunction, DenseColumns, SharedColumns};
use headlong_reader::times::{TimeColumn, TimePart};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::sync::Arc;

entry! {
    /// What one dense column has otherwise than the others, or what is taken of a column of points
    /// in time.
    ///
    /// `data.num_sparse` counts the tables of bins and of parts, too: it grows by them where a file
    /// sets columns by name, and by those of bins where it leaves it out.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    pub struct ColumnEntry ["column"] {
        /// Which column: one of `data.columns.dense`, or `I1` for the first where none is named;
        /// with `parts` one that has no other place.
        pub name: String,
        /// What is done to its numbers. Unset: `data.dense_transform`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub transform: Option<DenseTransform>,
        /// Taken from what the transform gives. With it or `scale`, a missing value counts as the
        /// mean. Unset: 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mean: Option<f64>,
        /// What is left is divided by this. Unset: 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scale: Option<f64>,
        /// How its numbers, as they are in the file, are cut into bins, which have a table.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bins: Option<BinsName>,
        /// `bins = "edges"`: a number's bin is how many of these are at or below it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub edges: Vec<f64>,
        /// What of a point in time has a table, each part one: `when.hour` and so on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub parts: Vec<TimePart>,
    }
}

/// How numbers are cut into bins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinsName {
    /// `⌊ln(x)²⌋ + 2` above 2, the whole part of x at or below.
    Ln2,
    /// By `edges`.
    Edges,
}

impl ColumnEntry {
    /// The entry as TOML, a line for each key.
    fn lines(&self) -> Vec<String> {
        lines_of(self, Self::KEYS)
    }

    /// The entry as TOML, on lines of its own.
    pub(crate) fn to_toml(&self) -> String {
        format!("\n[[column]]\n{}\n", self.lines().join("\n"))
    }

    /// The entry in one line, as checkpoints record it.
    pub(crate) fn in_words(&self) -> String {
        self.lines().join(", ")
    }

    /// Its bins, where it has some.
    fn reader_bins(&self) -> Option<Bins> {
        Some(match self.bins? {
            BinsName::Ln2 => Bins::Ln2,
            BinsName::Edges => Bins::Edges(self.edges.clone()),
        })
    }

    fn refuse(&self, key: &str, message: impl Display) -> Result<()> {
        let message = format!("column `{}`: {message}", self.name);
        Err(Error::config(format!("column.{key}"), message))
    }

    /// Whether it is of points in time.
    fn is_time(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Checks a section of points in time.
    fn validate_parts(&self, columns: &ColumnsConfig) -> Result<()> {
        if columns.is_empty() {
            return self.refuse("parts", "they are of columns with names: set data.columns.label");
        }
        let twice = self.parts.iter().enumerate();
        if let Some((_, part)) = twice.clone().find(|(at, part)| self.parts[..*at].contains(part)) {
            return self.refuse("parts", format!("`{}` is named twice", part.name()));
        }
        let bare = Self { name: self.name.clone(), parts: self.parts.clone(), ..Self::default() };
        if *self != bare {
            let message = "a column of times has no number: leave transform, mean, scale, bins and \
                           edges out";
            return self.refuse("parts", message);
        }
        match columns.roles().find(|(_, names)| names.contains(&self.name)) {
            Some((role, _)) => {
                self.refuse("parts", format!("it is named in data.columns.{role}, too"))
            }
            None => Ok(()),
        }
    }

    /// Finite numbers are seen to where all of the configuration are.
    fn validate(&self) -> Result<()> {
        let refuse = |key: &str, message: String| self.refuse(key, message);
        if self.transform == Some(DenseTransform::FileMinimum) {
            let message = "\"file-minimum\" is of all columns of a file: take another one, or mean \
                           and scale";
            return refuse("transform", message.to_owned());
        }
        if let Some(scale) = self.scale.filter(|scale| *scale <= 0.0) {
            return refuse("scale", format!("expected a number above 0, found {scale}"));
        }
        match (self.bins, &self.edges[..]) {
            (Some(BinsName::Edges), []) => {
                refuse("edges", "bins = \"edges\" needs at least one".to_owned())
            }
            (Some(BinsName::Edges), edges) => {
                match edges.windows(2).find(|pair| pair[0] >= pair[1]) {
                    Some(pair) => refuse(
                        "edges",
                        format!("expected ascending numbers, found {} after {}", pair[1], pair[0]),
                    ),
                    None => Ok(()),
                }
            }
            (_, []) => Ok(()),
            (_, _) => refuse("edges", "they are used with bins = \"edges\" alone".to_owned()),
        }
    }
}

impl Config {
    /// Tables of bins.
    pub fn num_binned(&self) -> usize {
        self.column.iter().filter(|entry| entry.bins.is_some()).count()
    }

    /// Columns of points in time, in the order of their tables, which come after those of
    /// categorical columns.
    pub fn times(&self) -> Vec<TimeColumn> {
        let times = self.column.iter().filter(|entry| entry.is_time());
        let time = |entry: &ColumnEntry| TimeColumn {
            name: entry.name.clone(),
            parts: entry.parts.clone(),
        };
        times.map(time).collect()
    }

    /// Tables of parts of points in time.
    pub(crate) fn num_parts(&self) -> usize {
        self.column.iter().map(|entry| entry.parts.len()).sum()
    }

    /// What tables other than those of bins are of: categorical columns, then parts of times.
    pub(crate) fn table_names(&self) -> Vec<String> {
        let times = self.times();
        let parts = times.iter().flat_map(TimeColumn::table_names);
        self.data.columns.categorical.iter().cloned().chain(parts).collect()
    }

    /// What dense columns are called.
    pub(crate) fn dense_names(&self) -> Vec<String> {
        match self.data.columns.is_empty() {
            true => (1..=self.data.num_dense).map(|number| format!("I{number}")).collect(),
            false => self.data.columns.dense.clone(),
        }
    }

    /// The dense column whose bins are in the table of `column`.
    pub(super) fn binned_name(&self, column: usize) -> Option<&str> {
        let mut binned = self.column.iter().filter(|entry| entry.bins.is_some());
        let first = self.data.num_sparse.checked_sub(self.num_binned())?;
        binned.nth(column.checked_sub(first)?).map(|entry| entry.name.as_str())
    }

    /// What becomes of each dense column, where something is said of single ones.
    pub fn dense_columns(&self) -> SharedColumns {
        if !self.has_dense_entries() {
            return None;
        }
        let (names, transform) = (self.dense_names(), self.data.dense_transform);
        let function = |name: &String| {
            let entry = self.column.iter().find(|entry| entry.name == *name);
            let standard = entry.filter(|entry| entry.mean.is_some() || entry.scale.is_some());
            ColumnFunction {
                transform: entry.and_then(|entry| entry.transform).unwrap_or(transform),
                standard: standard
                    .map(|entry| (entry.mean.unwrap_or(0.0), entry.scale.unwrap_or(1.0))),
            }
        };
        let binned = |entry: &ColumnEntry| {
            let column = names.iter().position(|name| *name == entry.name)?;
            Some(BinnedColumn { column, bins: entry.reader_bins()? })
        };
        Some(Arc::new(DenseColumns::new(
            transform,
            names.iter().map(function).collect(),
            self.column.iter().filter_map(binned).collect(),
        )))
    }

    fn has_dense_entries(&self) -> bool {
        !self.column.iter().all(ColumnEntry::is_time)
    }

    /// Checks each entry, and what it says together with the rest.
    pub(super) fn validate_columns(&self) -> Result<()> {
        let names = self.dense_names();
        for (index, entry) in self.column.iter().enumerate() {
            if entry.is_time() {
                entry.validate_parts(&self.data.columns)?;
            } else if !names.contains(&entry.name) {
                let nearest = keys::nearest(&entry.name, names.iter().map(String::as_str));
                let meant =
                    nearest.map_or(String::new(), |name| format!(": did you mean `{name}`?"));
                let message = format!("no dense column `{}`{meant}", entry.name);
                return Err(Error::config("column.name", message));
            }
            if self.column[..index].iter().any(|other| other.name == entry.name) {
                let message = format!("column `{}` has two sections", entry.name);
                return Err(Error::config("column.name", message));
            }
            entry.validate()?;
        }
        if self.has_dense_entries() && self.data.dense_transform == DenseTransform::FileMinimum {
            return Err(Error::contradiction(
                "data.dense_transform = \"file-minimum\"",
                "[[column]]",
                "columns that are transformed one by one have no minimum of a file",
            ));
        }
        self.validate_num_sparse()
    }

    fn validate_num_sparse(&self) -> Result<()> {
        let (found, bins) = (self.data.num_sparse, self.num_binned());
        let (categorical, parts) = (self.data.columns.categorical.len(), self.num_parts());
        let expected = categorical + parts + bins;
        let of_parts = if parts > 0 { format!(", {parts} of parts") } else { String::new() };
        let message = match self.data.columns.is_empty() {
            _ if bins + parts == 0 => return Ok(()),
            true if found >= bins => return Ok(()),
            true => format!("expected at least the {bins} tables of bins, found {found}"),
            false if found == expected => return Ok(()),
            false => format!(
                "expected {expected} ({categorical} categorical columns, {bins} tables of \
                 bins{of_parts}), found {found}"
            ),
        };
        Err(Error::config("data.num_sparse", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[column]]\n\
                        name = \"I2\"\n\
                        transform = \"none\"\n\
                        scale = 4.0\n\
                        bins = \"edges\"\n\
                        edges = [0, 1.5]\n\
                        \n\
                        [[column]]\n\
                        name = \"I1\"\n\
                        bins = \"ln2\"\n";

    fn read(text: &str) -> Config {
        Config::from_toml(text, "a.toml").unwrap()
    }

    #[test]
    fn entries_add_tables_in_their_order_and_once() {
        let config = read(TEXT);
        config.validate().unwrap();
        assert_eq!(config.data.num_sparse, 28);
        assert_eq!(config.column_name(26), "C27 (`I2` bins)");
        assert_eq!(
            (&*config.column_name(27), &*config.column_name(25)),
            ("C28 (`I1` bins)", "C26")
        );
        let mut shown = read(&config.to_commented_toml());
        assert_eq!(shown, config, "{}", config.to_commented_toml());
        shown.set_all(&["train.batch_size=64"]).unwrap();
        assert_eq!((shown.data.num_sparse, &shown.column), (28, &config.column));
        let columns = config.dense_columns().unwrap();
        let bins: Vec<_> = columns.bins.iter().map(|binned| binned.column).collect();
        assert_eq!((columns.functions.len(), bins), (13, vec![1, 0]));
        assert_eq!(columns.functions[1].number(Some(6.0)), 1.5);
        assert_eq!(columns.functions[1].number(None), 0.0);
    }

    #[test]
    fn named_columns_count_their_bins() {
        let text = "[data.columns]\nlabel = \"y\"\ndense = [\"age\"]\ncategorical = [\"city\"]\n\
                    [[column]]\nname = \"age\"\nbins = \"ln2\"\n";
        let mut config = read(text);
        config.validate().unwrap();
        assert_eq!((config.data.num_sparse, &*config.column_name(1)), (2, "C2 (`age` bins)"));
        assert_eq!(read(&config.to_commented_toml()), config);
        config.data.num_sparse = 1;
        let message = config.validate().unwrap_err().to_string();
        assert!(
            message.contains("expected 2 (1 categorical columns, 1 tables of bins)"),
            "{message}"
        );
    }

    const TIMES: &str = "[data.columns]\n\
                         label = \"y\"\n\
                         dense = [\"age\"]\n\
                         categorical = [\"city\"]\n\
                         [[column]]\n\
                         name = \"age\"\n\
                         bins = \"ln2\"\n\
                         [[column]]\n\
                         name = \"when\"\n\
                         parts = [\"hour\", \"weekday\"]\n";

    #[test]
    fn parts_of_times_have_tables_between_categories_and_bins() {
        let mut config = read(TIMES);
        config.validate().unwrap();
        let names: Vec<_> = (0..config.data.num_sparse).map(|at| config.column_name(at)).collect();
        assert_eq!(
            names,
            ["C1 (`city`)", "C2 (`when.hour`)", "C3 (`when.weekday`)", "C4 (`age` bins)"]
        );
        assert_eq!(read(&config.to_commented_toml()), config);
        assert_eq!(config.dense_columns().unwrap().bins.len(), 1);
        config.column.remove(0);
        assert_eq!(config.dense_columns(), None);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("1 categorical columns, 0 tables of bins, 2 of parts"), "{error}");
        let message = |text: &str, other: &str| {
            let config = Config::from_toml(&TIMES.replace(text, other), "a.toml");
            config.and_then(|config| config.validate()).unwrap_err().to_string()
        };
        for (text, other, words) in [
            ("\"weekday\"", "\"minute\"", "unknown variant `minute`"),
            ("\"weekday\"", "\"hour\"", "column `when`: `hour` is named twice"),
            ("\"when\"", "\"city\"", "it is named in data.columns.categorical, too"),
            ("parts =", "scale = 2\nparts =", "a column of times has no number"),
        ] {
            let found = message(text, other);
            assert!(found.contains(words), "{other}: {found}");
        }
    }

    #[test]
    fn wrong_entries_are_named() {
        let message = |entry: &str| {
            let config = Config::from_toml(&format!("[[column]]\n{entry}\n"), "a.toml");
            config.and_then(|config| config.validate()).unwrap_err().to_string()
        };
        for (entry, words) in [
            ("name = \"I14\"", "no dense column `I14`: did you mean"),
            (
                "name = \"I1\"\nbin = \"ln2\"",
                "unknown key `column.bin`: did you mean `column.bins`?",
            ),
            ("name = \"I1\"\n[[column]]\nname = \"I1\"", "`I1` has two sections"),
            ("name = \"I1\"\nscale = 0", "above 0, found 0"),
            ("name = \"I1\"\nmean = nan", "`column.mean`: expected a finite number"),
            ("name = \"I1\"\ntransform = \"file-minimum\"", "all columns of a file"),
            ("name = \"I1\"\nbins = \"edges\"", "needs at least one"),
            ("name = \"I1\"\nbins = \"edges\"\nedges = [1, 1]", "found 1 after 1"),
            (
                "name = \"I1\"\nbins = \"edges\"\nedges = [inf]",
                "`column.edges`: expected a finite number",
            ),
            ("name = \"I1\"\nedges = [1]", "with bins = \"edges\" alone"),
            (
                "name = \"I1\"\n[data]\nnum_sparse = 26\ndense_transform = \"file-minimum\"",
                "minimum",
            ),
            ("name = \"I1\"\nbins = \"ln2\"\n[data]\nnum_sparse = 0", "data.num_sparse"),
        ] {
            let found = message(entry);
            assert!(found.contains(words), "{entry}: {found}");
        }
        let single = Config::from_toml("[column]\nname = \"I1\"\n", "a.toml").unwrap_err();
        assert!(single.to_string().contains("write `[[column]]`"), "{single}");
    }
}
