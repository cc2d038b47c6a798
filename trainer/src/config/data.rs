//! `[data]`: which files, what is in them, in which order.

use super::Config;
use super::validate::quoted;
use crate::error::{Error, Result};
use headlong_reader::IdPolicy;
use headlong_reader::formats::Format;
use headlong_reader::formats::part::Holdout;
pub use headlong_reader::formats::part::HoldoutBy;
use headlong_reader::hashing::HashFunction;
use headlong_reader::io::DataFile;
use headlong_reader::times::TimeColumn;
pub use headlong_reader::{BadRowPolicy, DenseTransform};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

settings! {
    /// The files and the meaning of their columns.
    pub struct DataConfig ["data"] {
        /// Training files (text, .gz, .zst, or a binary format), read in this order.
        ///
        /// Empty: the synthetic data set, where `synthetic.enabled`.
        pub train: Vec<DataFile>,
        /// Validation files.
        pub valid: Vec<DataFile>,
        /// Share of the training rows that is held out to validate on, where no validation file is
        /// named.
        ///
        /// Then `valid` names the training files.
        pub holdout: f64 = 0.0,
        /// Which rows are held out: "random" ones, or the "last" of the files.
        pub holdout_by: HoldoutBy = HoldoutBy::Random,
        /// Which of the disjoint random parts of that share is held out; 0: the first.
        pub holdout_fold: u64 = 0,
        /// With `holdout`: share of the training rows that is left for a test, neither trained on
        /// nor validated on.
        ///
        /// They are those that `holdout` of the same share holds out, with no test of its own.
        pub holdout_test: f64 = 0.0,
        /// The format of all of them: "auto", or one of docs/formats.md: "criteo", "csv",
        /// "parquet", "headlong", "mlperf", "raw", "npy", "split".
        pub format: FormatChoice = FormatChoice::Auto,
        /// Dense columns; 0: no bottom network, only the embeddings meet.
        pub num_dense: usize = 13,
        /// Categorical columns, parts of times and bins (`[[column]]`), each with a table.
        pub num_sparse: usize = 26,
        /// Ids a sample in each column, 0: any number; empty: what the files say, else
        /// tables.max_ids_per_sample.
        ///
        /// Where any number is allowed, memory is planned for `tables.max_ids_per_sample` on
        /// average.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub hotness: Vec<u32>,
        /// What the columns of files with a header are. They also give `num_dense` and
        /// `num_sparse`.
        #[serde(skip_serializing_if = "ColumnsConfig::is_empty")]
        pub columns: ColumnsConfig,
        /// In which order samples are trained on: "sequential", "batches" (in random order) or
        /// "samples" (in random order within windows).
        pub order: OrderChoice = OrderChoice::Sequential,
        /// Decides a random order.
        pub order_seed: u64 = 1,
        /// `order = "samples"`: samples held in memory, among which any can come next.
        pub order_window: u64 = 262_144,
        /// How a raw id becomes a row index: "hash", "admitted", "dictionary", "modulo" or "rows"
        /// (the file has rows already).
        pub ids: Ids = Ids::Hash,
        /// Name of the hash of ids = "hash".
        ///
        /// It is kept in the checkpoint.
        pub hash: String = "murmur3-fmix64".to_owned(),
        /// `admitted`, `dictionary`: an id seen this often gets a row of its own.
        pub min_count: u32 = 3,
        /// Folder of `headlong data build-dictionary`; unset: train builds one where
        /// ids = "dictionary".
        ///
        /// It lies in `run.output_dir` then.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::paths::optional")]
        pub dictionary: Option<PathBuf>,
        /// What is done to an integer before it enters the model: "ln(x+1)", "ln(x+3)",
        /// "file-minimum" or "none".
        ///
        /// It is kept in the checkpoint.
        pub dense_transform: DenseTransform = DenseTransform::LnPlus1,
        /// What a malformed line of text does: "error" or "skip" (counted and reported).
        pub on_bad_row: BadRowPolicy = BadRowPolicy::Error,
        /// Batches that are read ahead.
        pub prefetch_batches: usize = 4,
        /// Where data is kept between epochs: "off", "host", "device" or "auto" ("host" where it
        /// fits).
        ///
        /// "device", with run.device = "cuda": batches as they were staged, on the device of each
        /// rank. Those of evaluations from the second one on, and those of training from the second
        /// epoch that begins, where data.order is not "samples", come from there, with no reader.
        pub cache: CacheData = CacheData::Off,
        /// Not set but found: whether columns of a file that have no place are ignored, because
        /// it is predicted and not trained on.
        #[serde(skip)]
        pub ignores_others: bool,
    }
}

/// How a raw id becomes a row index. The reader's [`IdPolicy`] has the numbers of `data.hash` and
/// `data.min_count` in it, too ([`Config::id_policy`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ids {
    /// Hashed into the table's rows: no state, collisions possible.
    Hash,
    /// One pass: an id gets a row of its own at its `min_count`-th sight; before that its column's
    /// shared row.
    Admitted,
    /// Two passes: ids seen at least `min_count` times have rows of their own, the others share
    /// one.
    Dictionary,
    /// The id modulo the table's rows, missing = 0: the original DLRM, MLPerf.
    Modulo,
    /// The file has rows already; one beyond the table is an error.
    Rows,
}

/// Where data is kept between epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CacheData {
    /// Nowhere: every epoch reads the files.
    Off,
    /// In main memory.
    Host,
    /// In the memory of the devices, as batches.
    Device,
    /// In main memory, where it fits.
    Auto,
}

impl CacheData {
    /// Whether decoded data is to be in main memory, so that it comes in any order.
    pub(crate) fn is_on_host(self) -> bool {
        matches!(self, Self::Host | Self::Auto)
    }
}

/// The format of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FormatChoice {
    /// Told from the first file.
    #[default]
    Auto,
    /// This one.
    Of(Format),
}

impl TryFrom<String> for FormatChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            name => name
                .parse()
                .map(Self::Of)
                .map_err(|error: headlong_reader::ReaderError| error.to_string()),
        }
    }
}

impl From<FormatChoice> for String {
    fn from(choice: FormatChoice) -> Self {
        match choice {
            FormatChoice::Auto => "auto".to_owned(),
            FormatChoice::Of(format) => format.name().to_owned(),
        }
    }
}

/// In which order samples are trained on. The reader's [`Order`](headlong_reader::order::Order) has
/// the numbers of `data.order_seed` and `data.order_window` in it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderChoice {
    /// As they lie in the files.
    Sequential,
    /// Batches in a random order, another one each epoch; a batch keeps its samples.
    Batches,
    /// Samples in a random order, within windows.
    Samples,
}

settings! {
    /// What the columns of a file with a header are: `[data.columns]`. Every column of the file is
    /// named here, or ignored.
    #[derive(Eq)]
    pub struct ColumnsConfig ["data.columns"] {
        /// Files with a header: the column that holds 0 or 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub label: Option<String>,
        /// Files with a header: the column that says how much each sample counts, 0 or more.
        ///
        /// A sample's loss and gradient are multiplied by it, and the mean over the batch is taken
        /// by samples, not by weights: weights that are 1 on average keep the learning rate what
        /// it is. Metrics are weighted by it, too. The model does not see it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub weight: Option<String>,
        /// Files with a header: columns of numbers.
        ///
        /// In the order the model has them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub dense: Vec<String>,
        /// Files with a header: columns of ids or words, each with a table.
        ///
        /// In the order of their tables: the first one's table is `C1`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub categorical: Vec<String>,
        /// Text files with a header: the character between fields; unset: what the header has of
        /// tab, comma, semicolon and |.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub separator: Option<char>,
        /// Of these, the ones with several values in a field.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub lists: Vec<String>,
        /// The character between such values; unset: |.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub list_separator: Option<char>,
        /// Columns that `headlong predict` writes next to its predictions, such as a row's id.
        ///
        /// The model does not see them, unless they are categorical or dense, too.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub carry: Vec<String>,
        /// The column of groups, such as users, within which `headlong eval` takes an AUC, too.
        ///
        /// The model does not see it, unless it is categorical or dense, too.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub group: Option<String>,
        /// Files with a header: columns that are not used; "*" means all others.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ignored: Vec<String>,
    }
}

impl ColumnsConfig {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Config {
    /// Takes the numbers of columns from those that are named, with tables of `[[column]]`. Without
    /// dense columns there is no bottom network.
    pub(super) fn resolve_columns(&mut self) {
        let more = self.num_binned() + self.num_parts();
        let data = &mut self.data;
        if !data.columns.is_empty() {
            (data.num_dense, data.num_sparse) =
                (data.columns.dense.len(), data.columns.categorical.len() + more);
        }
        if data.num_dense == 0 {
            self.model.bottom = vec![self.model.dim];
        }
    }

    /// Rows that are held out are those of the training files.
    pub(crate) fn resolve_holdout(&mut self) {
        if self.data.holdout > 0.0 && self.data.valid.is_empty() {
            self.data.valid = self.data.train.clone();
        }
    }

    /// Which rows of the training files are held out, where any are.
    pub fn holdout(&self) -> Option<Holdout> {
        let data = &self.data;
        let (share, by) = (data.holdout, data.holdout_by);
        let (fold, test) = (data.holdout_fold, data.holdout_test);
        (share > 0.0).then_some(Holdout { share, by, fold, test })
    }

    /// Holds no rows out any more.
    pub(crate) fn clear_holdout(&mut self) {
        let data = &mut self.data;
        (data.holdout, data.holdout_fold, data.holdout_test) = (0.0, 0, 0.0);
    }

    /// How ids become row indices, by the reader's name.
    pub fn id_policy(&self) -> IdPolicy {
        match self.data.ids {
            Ids::Hash => IdPolicy::Hash { function: HashFunction::default() },
            Ids::Admitted => IdPolicy::Admitted { min_count: self.data.min_count },
            Ids::Dictionary => IdPolicy::Dictionary,
            Ids::Modulo => IdPolicy::Modulo,
            Ids::Rows => IdPolicy::Rows,
        }
    }

    /// What messages call a categorical column: its table, and its name where files have one.
    pub fn column_name(&self, column: usize) -> String {
        let table = format!("C{}", column + 1);
        let categorical = &self.data.columns.categorical;
        let of_parts = || {
            let part = column.checked_sub(categorical.len())?;
            self.times().iter().flat_map(TimeColumn::table_names).nth(part)
        };
        match (categorical.get(column).cloned().or_else(of_parts), self.binned_name(column)) {
            (Some(name), _) => format!("{table} (`{name}`)"),
            (None, Some(name)) => format!("{table} (`{name}` bins)"),
            (None, None) => table,
        }
    }

    /// Most ids of a bag of `column`, on average over a batch.
    pub fn max_ids_per_sample(&self, column: usize) -> usize {
        let read = match self.data.hotness.get(column) {
            None | Some(0) => self.tables.max_ids_per_sample.max(1),
            Some(&count) => count as usize,
        };
        read.max(self.generated_ids(column).unwrap_or(1))
    }

    pub(super) fn validate_data(&self) -> Result<()> {
        let data = &self.data;
        if !data.hotness.is_empty() && data.hotness.len() != data.num_sparse {
            let (expected, found) = (data.num_sparse, data.hotness.len());
            let message = format!("expected {expected} numbers (data.num_sparse), found {found}");
            return Err(Error::config("data.hotness", message));
        }
        if !(0.0..1.0).contains(&data.holdout) {
            let message = format!("expected a share, 0 to below 1, found {}", data.holdout);
            return Err(Error::config("data.holdout", message));
        }
        self.validate_folds()?;
        if data.holdout > 0.0 && data.valid != data.train {
            return Err(Error::contradiction(
                format!("data.holdout = {}", data.holdout),
                "data.valid",
                "rows are either held out of the training files, or files of their own",
            ));
        }
        let kept = matches!(data.cache, CacheData::Host | CacheData::Device);
        if data.ids == Ids::Admitted && (kept || data.order != OrderChoice::Sequential) {
            let (key, value) = match kept {
                true => ("data.cache", quoted(&data.cache)),
                false => ("data.order", quoted(&data.order)),
            };
            return Err(Error::contradiction(
                "data.ids = \"admitted\"",
                format!("{key} = {value}"),
                "ids are admitted while text is read, from front to back in every epoch",
            ));
        }
        let drift = self.hybrid.repartition_drift;
        if data.cache == CacheData::Device && drift > 0.0 {
            return Err(Error::contradiction(
                "data.cache = \"device\"",
                format!("hybrid.repartition_drift = {drift}"),
                "rows are counted as batches are read, and batches on the device are not",
            ));
        }
        data.columns.validate(self.num_binned() + self.num_parts() > 0)
    }

    fn validate_folds(&self) -> Result<()> {
        let DataConfig { holdout, holdout_by, holdout_fold, holdout_test, .. } = self.data;
        if !(0.0..1.0).contains(&holdout_test) {
            let message = format!("expected a share, 0 to below 1, found {holdout_test}");
            return Err(Error::config("data.holdout_test", message));
        }
        if holdout == 0.0 {
            return match (holdout_fold, holdout_test) {
                (0, 0.0) => Ok(()),
                (0, _) => Err(Error::config(
                    "data.holdout_test",
                    "nothing is held out to validate on: set data.holdout",
                )),
                _ => {
                    Err(Error::config("data.holdout_fold", "nothing is held out: set data.holdout"))
                }
            };
        }
        if holdout_by == HoldoutBy::Last && holdout_fold > 0 {
            let message =
                format!("expected 0 with data.holdout_by = \"last\", found {holdout_fold}");
            return Err(Error::config("data.holdout_fold", message));
        }
        // A share such as 0.1 is not exactly a tenth.
        let end = holdout_test + (holdout_fold as f64 + 1.0) * holdout;
        match end > 1.0 + 1e-9 {
            true => Err(Error::config(
                "data.holdout_fold",
                format!(
                    "fold {holdout_fold} of {holdout} after a test of {holdout_test} ends at \
                     {end}: expected at most 1"
                ),
            )),
            false => Ok(()),
        }
    }
}

impl ColumnsConfig {
    /// The lists that give a column a place, by their names.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let roles = [
            ("label", self.label.as_slice()),
            ("weight", self.weight.as_slice()),
            ("dense", &self.dense),
            ("categorical", &self.categorical),
            ("ignored", &self.ignored),
        ];
        roles.into_iter()
    }

    fn validate(&self, has_others: bool) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if self.categorical.is_empty() && !has_others {
            let message =
                "expected at least one column: the model is made of the tables of such columns";
            return Err(Error::config("data.columns.categorical", message));
        }
        if let Some(name) = self.lists.iter().find(|name| !self.categorical.contains(name)) {
            let message = format!("`{name}` is not one of data.columns.categorical");
            return Err(Error::config("data.columns.lists", message));
        }
        for (key, separator) in
            [("separator", self.separator), ("list_separator", self.list_separator)]
        {
            let wrong = |one: &char| !one.is_ascii() || matches!(one, '"' | '\n' | '\r');
            if let Some(found) = separator.filter(wrong) {
                let key = format!("data.columns.{key}");
                let message = format!("expected an ASCII character, no quote, found {found:?}");
                return Err(Error::config(key, message));
            }
        }
        let twice = |(at, name): &(usize, &String)| self.carry[..*at].contains(name);
        if let Some((_, name)) = self.carry.iter().enumerate().find(twice) {
            return Err(Error::config("data.columns.carry", format!("`{name}` is named twice")));
        }
        if let Some(weight) = self.weight.as_ref().filter(|_| self.label.is_none()) {
            let message = format!("`{weight}` weighs labels, and data.columns.label is not set");
            return Err(Error::config("data.columns.weight", message));
        }
        let carried = self.carry.iter().map(|name| (name, "carry"));
        let mut others = carried.chain(self.group.iter().map(|name| (name, "group")));
        if let Some((name, role)) = others.find(|(name, _)| Some(*name) == self.weight.as_ref()) {
            let message = format!("column `{name}` is named in data.columns.weight, too");
            return Err(Error::config(format!("data.columns.{role}"), message));
        }
        let mut named = Vec::new();
        for (role, columns) in self.roles() {
            for column in columns {
                if let Some((_, other)) = named.iter().find(|(name, _)| *name == column) {
                    let message =
                        format!("column `{column}` is named in data.columns.{other}, too");
                    return Err(Error::config(format!("data.columns.{role}"), message));
                }
                named.push((column, role));
            }
        }
        Ok(())
    }
}
