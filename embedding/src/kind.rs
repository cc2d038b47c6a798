//! A kind of tables: what its tables can be, and how one is built.

use crate::error::Result;
use crate::table::{EmbeddingTable, Grain, Keys, MemoryNeeds, TableSpec};
use headlong_device::optimizer::Optimizer;
use headlong_device::{DType, Stream};

/// What a table is built with, besides its description.
#[derive(Debug)]
pub struct TableEnv<'a> {
    /// Where initialisation runs; memory is first touched by its threads.
    pub stream: &'a Stream,
    /// The sparse optimiser whose state the table keeps.
    pub optimizer: &'a Optimizer,
    /// Seed of the run.
    pub seed: u64,
    /// Position of the table in its model: with the seed it names the table's random numbers.
    pub table_index: u64,
    /// Which rows of the model's table this one holds; `None` for all of them.
    pub shard: Option<Shard<'a>>,
}

/// The part of a table that one owner builds: [`TableSpec::rows`] counts its local rows.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    /// Rows of the model's table, which bound the initial values.
    pub table_rows: u64,
    /// Row index of a local row. Initial values go by it, so that they do not depend on placement.
    pub row_of_local: &'a (dyn Fn(u64) -> u64 + Sync),
}

impl std::fmt::Debug for Shard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("table_rows", &self.table_rows).finish_non_exhaustive()
    }
}

impl TableEnv<'_> {
    /// Row index, in the model's table, of local row `local_row` of the table that is built.
    pub fn row_of_local(&self, local_row: u64) -> u64 {
        self.shard.map_or(local_row, |shard| (shard.row_of_local)(local_row))
    }
}

/// What tables of a kind can be. A description that asks for something else is refused before any
/// memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// What may be placed on its own.
    pub grains: &'static [Grain],
    /// What they are keyed by.
    pub keys: &'static [Keys],
    /// Element types of their rows.
    pub dtypes: &'static [DType],
    /// Devices that they run on.
    pub devices: &'static [&'static str],
    /// Names of the settings that they have ([`TableSpec::options`]); `None` leaves the check to
    /// the kind.
    pub options: Option<&'static [&'static str]>,
}

impl Abilities {
    /// Everything that there is, in f32; the kind itself refuses what it lacks.
    pub const ANY: Self = Self {
        grains: &[Grain::Rows, Grain::Whole],
        keys: &[Keys::RowIndices, Keys::RawIds],
        dtypes: &[DType::F32],
        devices: &["cpu"],
        options: None,
    };

    /// What is wrong with `spec`, if anything.
    pub(crate) fn refusal(&self, spec: &TableSpec) -> Option<String> {
        let kind = &spec.kind;
        if !self.keys.contains(&spec.keys) {
            let found = keys_text(spec.keys);
            let able =
                self.keys.iter().map(|&keys| keys_text(keys)).collect::<Vec<_>>().join(" or ");
            return Some(format!("a {kind} table is keyed by {able}, got keys = {found}"));
        }
        if !self.grains.contains(&spec.grain) {
            let able = match self.grains {
                [Grain::Whole] => {
                    "rows of a table of kind {kind} share storage: it has grain = whole"
                }
                _ => "every row of a table of kind {kind} stands for itself: it has grain = rows",
            };
            return Some(able.replace("{kind}", kind));
        }
        if !self.dtypes.contains(&spec.dtype) {
            let able =
                self.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
            return Some(format!("a {kind} table holds {able}, got dtype = {}", spec.dtype.name()));
        }
        if !self.devices.contains(&"cpu") {
            return Some(format!(
                "a {kind} table runs on {}, this build on cpu",
                self.devices.join(", ")
            ));
        }
        let known = self.options?;
        let unknown = spec.options.keys().find(|name| !known.contains(&name.as_str()))?;
        let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Some(format!("a {kind} table has no option `{unknown}`; it has: {has}"))
    }
}

fn keys_text(keys: Keys) -> &'static str {
    match keys {
        Keys::RowIndices => "row indices",
        Keys::RawIds => "raw ids",
    }
}

/// Builds tables of one kind.
pub trait TableKind: Send + Sync {
    /// What tables of this kind can be.
    fn abilities(&self) -> Abilities {
        Abilities::ANY
    }

    /// What [`Self::build`] would refuse of a description besides what [`Self::abilities`] tell:
    /// the value of an option, say. Pure; `headlong plan` and `config check` refuse by it what
    /// `train` would.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`](crate::EmbeddingError::Spec).
    fn check(&self, spec: &TableSpec) -> Result<()> {
        spec.check()
    }

    /// Memory that [`Self::build`] will take; pure. The default is that of a dense table.
    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        spec.dense_memory(optimizer)
    }

    /// Whether tables of this kind show their rows ([`EmbeddingTable::plain_rows`]). Others get a
    /// staging matrix of one vector per id, which is counted in the set's memory.
    fn shows_rows(&self) -> bool {
        false
    }

    /// Builds one table, all its memory taken and initialised.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`](crate::EmbeddingError::Spec) for what the kind lacks,
    /// [`EmbeddingError::Device`](crate::EmbeddingError::Device) for memory.
    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>>;
}

impl<F> TableKind for F
where
    F: Fn(&TableSpec, &TableEnv) -> Result<Box<dyn EmbeddingTable>> + Send + Sync,
{
    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        self(spec, env)
    }
}
