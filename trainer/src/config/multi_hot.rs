//! `[multi_hot]`: several ids a sample, made of one while it is read.

use super::Config;
use crate::error::{Error, Result};
use crate::system::machine::Machine;
use headlong_planner::count::Count;
use headlong_reader::multi_hot::{Distribution, MAX_ROWS, MLPERF_SIZES, MultiHot, MultiHotSpec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

settings! {
    /// How one-hot data is made multi-hot; nothing is done where `sizes` is empty.
    #[derive(Eq)]
    pub struct MultiHotConfig ["multi_hot"] {
        /// Ids a sample in each column, made of the one that the file has: a list, "mlperf" (214),
        /// or empty: as the file.
        pub sizes: MultiHotSizes,
        /// How they are drawn: "uniform" or "pareto".
        pub distribution: Distribution,
        /// Where numpy's generator starts; MLPerf: 0.
        pub seed: u32,
        /// Most memory for what is drawn, in MiB; 0: all that it takes. Changes no id.
        pub memory_mib: u64,
        /// Not set but found ([`crate::data::is_drawn`]): all of the data is multi-hot already, so
        /// nothing is drawn.
        #[serde(skip)]
        pub is_idle: bool,
    }
}

impl MultiHotConfig {
    /// Most bytes for what is drawn, where there is a bound.
    pub fn memory_bytes(&self) -> Option<u64> {
        memory_bytes(self.memory_mib)
    }
}

/// The bound that `mib` MiB are: none where it is 0.
pub(crate) fn memory_bytes(mib: u64) -> Option<u64> {
    (mib > 0).then_some(mib.saturating_mul(1 << 20))
}

/// Ids a sample in each column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MultiHotSizes {
    /// One count per categorical column; empty: what the files have.
    List(Vec<u32>),
    /// `"mlperf"`: those of DLRM-DCNv2 on Criteo's 26 columns, 214 in all.
    Named(String),
}

impl Default for MultiHotSizes {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl MultiHotSizes {
    /// The counts.
    ///
    /// # Errors
    /// [`Error::Config`] for a name that is none.
    pub fn counts(&self) -> Result<&[u32]> {
        match self {
            Self::List(counts) => Ok(counts),
            Self::Named(name) if name == "mlperf" => Ok(&MLPERF_SIZES),
            Self::Named(name) => {
                let message = format!("expected a list or \"mlperf\", found \"{name}\"");
                Err(Error::config("multi_hot.sizes", message))
            }
        }
    }
}

impl Config {
    /// Ids a sample that are made of one in the table of `column`, where they are.
    pub fn generated_ids(&self, column: usize) -> Option<usize> {
        let counts = self.multi_hot.sizes.counts().ok()?;
        counts.get(column).map(|&count| count as usize)
    }

    /// What a checkpoint records of it: `; multi-hot uniform, seed 0 [3, 2, …]`, or nothing.
    pub(crate) fn multi_hot_text(&self) -> String {
        match self.multi_hot.sizes.counts() {
            Ok(counts) if !counts.is_empty() => {
                let MultiHotConfig { distribution, seed, .. } = self.multi_hot;
                let distribution = format!("{distribution:?}").to_lowercase();
                format!("; multi-hot {distribution}, seed {seed} {counts:?}")
            }
            _ => String::new(),
        }
    }

    pub(super) fn validate_multi_hot(&self) -> Result<()> {
        let counts = self.multi_hot.sizes.counts()?;
        let expected = self.data.num_sparse;
        if !counts.is_empty() && (counts.len() != expected || counts.contains(&0)) {
            let message = format!("expected {expected} counts of at least 1, found {counts:?}");
            return Err(Error::config("multi_hot.sizes", message));
        }
        if counts.is_empty() {
            return Ok(());
        }
        let rows = self.given_rows()?.map_or(Ok(Vec::new()), |_| self.table_rows(None))?;
        if let Some(column) = rows.iter().position(|&rows| rows > MAX_ROWS) {
            let (table, rows) = (self.column_name(column), rows[column]);
            let message =
                format!("table {table}: ids are drawn for {MAX_ROWS} rows at most, found {rows}");
            return Err(Error::config("tables.rows", message));
        }
        match self.raw_columns().first() {
            Some(column) => Err(Error::contradiction(
                "multi_hot.sizes",
                format!("[[table]] C{}", column + 1),
                "ids are made of rows, and this table is keyed by raw ids",
            )),
            None => Ok(()),
        }
    }

    /// What is drawn for the rows of each table takes so many bytes.
    pub fn multi_hot_bytes(&self, table_rows: &[u64]) -> u64 {
        let MultiHotConfig { sizes, is_idle, .. } = &self.multi_hot;
        let counts = sizes.counts().ok().filter(|_| !is_idle).unwrap_or_default();
        MultiHot::bytes_needed(table_rows, counts, self.multi_hot.memory_bytes())
    }

    /// The bags of all rows of tables of `table_rows` rows, where ids are made: drawn now.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] before any is drawn; memory that the system refuses.
    pub fn multi_hot_bags(&self, table_rows: &[u64]) -> Result<Option<Arc<MultiHot>>> {
        let MultiHotConfig { distribution, seed, .. } = self.multi_hot;
        let memory_bytes = self.multi_hot.memory_bytes();
        let sizes = self.multi_hot.sizes.counts()?.to_vec();
        if sizes.is_empty() || self.multi_hot.is_idle {
            return Ok(None);
        }
        check_memory(table_rows, &sizes, memory_bytes, "multi_hot.memory_mib")?;
        let bags =
            MultiHot::new(table_rows, &MultiHotSpec { sizes, distribution, seed, memory_bytes });
        bags.map(|bags| Some(Arc::new(bags)))
            .map_err(Error::failed("multi-hot ids cannot be drawn"))
    }
}

/// Refuses what is more than the machine has, naming the setting that bounds it.
///
/// # Errors
/// [`Error::DoesNotFit`].
pub(crate) fn check_memory(
    rows: &[u64],
    sizes: &[u32],
    memory_bytes: Option<u64>,
    setting: &str,
) -> Result<()> {
    let needed = Count::from(MultiHot::bytes_needed(rows, sizes, memory_bytes));
    let help =
        || format!("`{setting}` bounds what is drawn for multi-hot ids, and changes none of them");
    Ok(needed.must_fit(Machine::detect().usable_bytes(), help)?)
}
