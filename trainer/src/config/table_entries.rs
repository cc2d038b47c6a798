//! What single tables have otherwise than `[tables]` says: `[[table]]`, one section for each.
//!
//! ```toml
//! [[table]]
//! name = "C3"
//! kind = "hashed"
//! rows = 100_000
//! options = { min_count = 2, eviction = "lru" }
//! ```

use super::render::lines_of;
use super::{Config, DType, DeviceChoice, PoolAtChoice, keys};
use crate::error::{Error, Result};
use headlong_embedding::hybrid::split::PlacementChoice;
pub use headlong_embedding::{Grain, Keys, Pooling};
use headlong_embedding::{Registry, TableSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The kind of tables that no entry gives another.
const DEFAULT_KIND: &str = "dense";

entry! {
    /// What one table has otherwise than the others.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    pub struct TableEntry ["table"] {
        /// Which table: `C1` for the first categorical column.
        pub name: String,
        /// Kind of the table: `dense`, `hashed`, or what the program has registered. Unset:
        /// `dense`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub kind: Option<String>,
        /// Rows, whatever `tables.rows` and `tables.max_rows` say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub rows: Option<u64>,
        /// How the vectors of one bag become one. Unset: `tables.pooling`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pooling: Option<Pooling>,
        /// What its rows are stored in. Unset: `tables.dtype`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dtype: Option<DType>,
        /// Where its rows lie, where there are several ranks. Unset: as the split decides.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub placement: Option<PlacementName>,
        /// Where its bags become vectors. Unset: `comm.pool_at`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pool_at: Option<PoolAtChoice>,
        /// Whether rows stand for themselves or share storage. Unset: what the kind is known to
        /// have, else `rows`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub grain: Option<Grain>,
        /// What the table is keyed by. Unset: what the kind is known to want, else `rows`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub keys: Option<Keys>,
        /// Settings that only this kind of table has.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub options: BTreeMap<String, toml::Value>,
    }
}

/// Where the rows of a table lie. A [`PlacementChoice`] may name a rank, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementName {
    /// As the split decides.
    Auto,
    /// All on every rank.
    DataParallel,
    /// Each on one rank.
    RowWise,
    /// All on one rank.
    TableWise,
}

impl TableEntry {
    /// The entry as TOML, on lines of its own.
    pub(crate) fn to_toml(&self) -> String {
        format!("\n[[table]]\n{}\n", lines_of(self, Self::KEYS).join("\n"))
    }

    fn text_options(&self) -> BTreeMap<String, String> {
        let text =
            |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.options.iter().map(|(name, value)| (name.clone(), text(value))).collect()
    }
}

impl Config {
    /// The column of the table `name`.
    fn column_of(&self, name: &str) -> Option<usize> {
        let number: usize = name.strip_prefix('C')?.parse().ok()?;
        let column = number.checked_sub(1).filter(|&column| column < self.data.num_sparse)?;
        // `C03` and `C+3` are no names.
        (name == format!("C{number}")).then_some(column)
    }

    /// What is said of the table of `column` alone.
    pub fn table_entry(&self, column: usize) -> Option<&TableEntry> {
        self.table.iter().find(|entry| self.column_of(&entry.name) == Some(column))
    }

    /// The table of `column`, with `rows` rows, as everything together describes it.
    pub fn table_spec(&self, column: usize, rows: u64) -> TableSpec {
        let spec = TableSpec::new(&format!("C{}", column + 1), rows, self.model.dim);
        let entry = self.table_entry(column).cloned().unwrap_or_default();
        let kind = entry.kind.clone().unwrap_or_else(|| DEFAULT_KIND.to_owned());
        let able = Registry::default().abilities(&kind);
        let only_grain = able.and_then(|able| <[Grain; 1]>::try_from(able.grains).ok());
        let only_keys = able.and_then(|able| <[Keys; 1]>::try_from(able.keys).ok());
        TableSpec {
            pooling: entry.pooling.unwrap_or(self.tables.pooling),
            dtype: entry.dtype.unwrap_or(self.tables.dtype),
            grain: entry.grain.or(only_grain.map(|[grain]| grain)).unwrap_or_default(),
            keys: entry.keys.or(only_keys.map(|[keys]| keys)).unwrap_or_default(),
            options: entry.text_options(),
            kind,
            ..spec
        }
    }

    /// Whether the table of `column` is keyed by raw ids.
    pub fn is_raw(&self, column: usize) -> bool {
        self.table_spec(column, 1).keys == Keys::RawIds
    }

    /// Columns whose tables are keyed by raw ids.
    pub fn raw_columns(&self) -> Vec<usize> {
        (0..self.data.num_sparse).filter(|&column| self.is_raw(column)).collect()
    }

    /// Where each table may lie.
    pub fn placement_choices(&self) -> Vec<PlacementChoice> {
        let choice =
            |column: usize| match self.table_entry(column).and_then(|entry| entry.placement) {
                None | Some(PlacementName::Auto) => PlacementChoice::Auto,
                Some(PlacementName::DataParallel) => PlacementChoice::DataParallel,
                Some(PlacementName::RowWise) => PlacementChoice::RowWise,
                Some(PlacementName::TableWise) => PlacementChoice::TableWise(None),
            };
        (0..self.data.num_sparse).map(choice).collect()
    }

    /// `rows` with those of entries in their places.
    pub(super) fn with_entry_rows(&self, mut rows: Vec<u64>) -> Vec<u64> {
        for (column, rows) in rows.iter_mut().enumerate() {
            *rows = self.table_entry(column).and_then(|entry| entry.rows).unwrap_or(*rows);
        }
        rows
    }

    /// Refuses entries of tables that there are not, and two of one table.
    pub(super) fn check_entry_names(&self) -> Result<()> {
        for (index, entry) in self.table.iter().enumerate() {
            if self.column_of(&entry.name).is_none() {
                let names: Vec<String> =
                    (1..=self.data.num_sparse).map(|number| format!("C{number}")).collect();
                let nearest = keys::nearest(&entry.name, names.iter().map(String::as_str));
                let meant =
                    nearest.map_or(String::new(), |name| format!(": did you mean `{name}`?"));
                let message =
                    format!("no table `{}`, there are C1 to C{}{meant}", entry.name, names.len());
                return Err(Error::config("table.name", message));
            }
            if self.table[..index].iter().any(|other| other.name == entry.name) {
                return Err(Error::config(
                    "table.name",
                    format!("table {} has two sections", entry.name),
                ));
            }
        }
        Ok(())
    }

    /// Whether each table can be stored as it is asked to.
    fn validate_dtypes(&self) -> Result<()> {
        let registry = Registry::default();
        let mut first = None;
        for column in 0..self.data.num_sparse {
            let spec = self.table_spec(column, 1);
            let is_own = self.table_entry(column).is_some_and(|entry| entry.dtype.is_some());
            let key = if is_own { "table.dtype" } else { "tables.dtype" };
            let refuse = |reason: &str| {
                let (name, dtype) = (&spec.name, spec.dtype.name());
                let message = format!("table {name} cannot be stored in {dtype}: {reason}");
                Err(Error::config(key, message))
            };
            let able = registry.abilities(&spec.kind).map_or(&[][..], |able| able.dtypes);
            if !able.is_empty() && !able.contains(&spec.dtype) {
                let kind = &spec.kind;
                return refuse(&format!(
                    "tables of kind `{kind}` hold f32; say `dtype = \"f32\"` in a `[[table]]` of \
                     its own"
                ));
            }
            if self.run.device != DeviceChoice::Cuda && spec.dtype == DType::F16 {
                return refuse("a processor has f32 and bf16");
            }
            if self.run.device == DeviceChoice::Cuda
                && *first.get_or_insert(spec.dtype) != spec.dtype
            {
                return refuse("on a CUDA device all tables are stored alike");
            }
        }
        Ok(())
    }

    /// Checks each entry, and what it says together.
    pub(super) fn validate_entries(&self) -> Result<()> {
        self.check_entry_names()?;
        self.validate_dtypes()?;
        for entry in &self.table {
            let Some(column) = self.column_of(&entry.name) else { continue };
            let spec = self.table_spec(column, entry.rows.unwrap_or(1));
            let contradiction = match entry.placement {
                Some(PlacementName::DataParallel) if spec.keys == Keys::RawIds => {
                    "a table keyed by raw ids has no replica: its owners decide which ids it \
                     holds"
                }
                Some(PlacementName::RowWise) if spec.grain == Grain::Whole => {
                    "rows that share storage cannot be divided among ranks"
                }
                _ => continue,
            };
            let placement = toml::Value::try_from(entry.placement)
                .map_or_else(|_| String::new(), |v| v.to_string());
            return Err(Error::contradiction(
                format!("table {}: placement = {placement}", entry.name),
                format!("kind = \"{}\"", spec.kind),
                contradiction,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[tables]\n\
                        max_rows = 50\n\
                        pooling = \"mean\"\n\
                        \n\
                        [[table]]\n\
                        name = \"C3\"\n\
                        kind = \"hashed\"\n\
                        rows = 900\n\
                        options = { eviction = \"lfu\", min_count = 2 }\n\
                        \n\
                        [[table]]\n\
                        name = \"C5\"\n\
                        pooling = \"sum\"\n\
                        placement = \"table_wise\"\n";

    #[test]
    fn entries_describe_single_tables() {
        let config = Config::from_toml(TEXT, "a.toml").unwrap();
        config.validate().unwrap();
        let rows = config.table_rows(None).unwrap();
        assert_eq!((rows[2], rows[4]), (900, 50), "an entry stands above max_rows");
        let spec = config.table_spec(2, rows[2]);
        assert_eq!(
            (spec.kind.as_str(), spec.keys, spec.grain),
            ("hashed", Keys::RawIds, Grain::Rows)
        );
        assert_eq!(
            (spec.options["min_count"].as_str(), spec.options["eviction"].as_str()),
            ("2", "lfu")
        );
        assert_eq!(spec.pooling, Pooling::Mean);
        assert_eq!(config.table_spec(4, 50).pooling, Pooling::Sum);
        assert_eq!(config.raw_columns(), [2]);
        assert_eq!(config.placement_choices()[4], PlacementChoice::TableWise(None));
    }

    #[test]
    fn rows_are_stored_as_one_table_or_all_are_told() {
        let text = "[tables]\ndtype = \"bf16\"\n\n[[table]]\nname = \"C3\"\ndtype = \"f32\"\n";
        let mut config = Config::from_toml(text, "a.toml").unwrap();
        config.validate().unwrap();
        assert_eq!(config.table_spec(2, 10).dtype, DType::F32);
        let spec = config.table_spec(0, 10);
        assert_eq!(
            (spec.dtype, spec.dense_memory(&config.optimizer.sparse.optimizer()).weight_bytes),
            (DType::Bf16, 320)
        );
        assert_eq!(Config::from_toml(&config.to_commented_toml(), "shown").unwrap(), config);
        config.run.device = DeviceChoice::Cuda;
        let mixed = config.validate().unwrap_err().to_string();
        assert!(mixed.contains("stored alike"), "{mixed}");
        let hashed = "[tables]\ndtype = \"bf16\"\n\n[[table]]\nname = \"C3\"\nkind = \"hashed\"\n";
        let hashed =
            Config::from_toml(hashed, "a.toml").unwrap().validate().unwrap_err().to_string();
        assert!(hashed.contains("C3") && hashed.contains("`dtype = \"f32\"`"), "{hashed}");
        let half = "[tables]\ndtype = \"f16\"\n\n[run]\ndevice = \"cpu\"\n";
        let half = Config::from_toml(half, "a.toml").unwrap().validate().unwrap_err().to_string();
        assert!(half.contains("a processor has f32 and bf16"), "{half}");
    }

    #[test]
    fn what_is_shown_reads_back_and_takes_further_settings() {
        let mut config = Config::from_toml(TEXT, "a.toml").unwrap();
        config.set_all(&["train.batch_size=64"]).unwrap();
        let text = config.to_commented_toml();
        assert_eq!(Config::from_toml(&text, "shown").unwrap(), config, "{text}");
    }

    #[test]
    fn wrong_entries_are_named() {
        let message = |text: &str| {
            let config = Config::from_toml(text, "a.toml");
            config.and_then(|config| config.validate()).unwrap_err().to_string()
        };
        let unknown = message("[[table]]\nname = \"C1\"\nknd = \"hashed\"\n");
        assert_eq!(unknown, "a.toml:3: unknown key `table.knd`: did you mean `table.kind`?");
        assert!(message("[table]\nname = \"C1\"\n").contains("write `[[table]]`"));
        let name = message("[[table]]\nname = \"C27\"\n");
        assert!(name.contains("no table `C27`, there are C1 to C26: did you mean `C2"), "{name}");
        let twice = message("[[table]]\nname = \"C1\"\n[[table]]\nname = \"C1\"\n");
        assert!(twice.contains("C1 has two sections"), "{twice}");
        let replica =
            "[[table]]\nname = \"C1\"\nkind = \"hashed\"\nplacement = \"data_parallel\"\n";
        assert!(message(replica).contains("has no replica"), "{}", message(replica));
        let divided =
            "[[table]]\nname = \"C1\"\nkind = \"x\"\ngrain = \"whole\"\nplacement = \"row_wise\"\n";
        assert!(message(divided).contains("cannot be divided"), "{}", message(divided));
    }
}
