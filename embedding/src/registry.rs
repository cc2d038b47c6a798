//! Kinds of tables by name, so that a configuration can ask for a table its author wrote.

use crate::error::{EmbeddingError, Result};
use crate::init::InitialValues;
use crate::table::{EmbeddingTable, MemoryNeeds, TableSpec};
use crate::tables::dense::DenseKind;
use headlong_device::Stream;
use headlong_device::optimizer::Optimizer;
use std::collections::BTreeMap;
use std::sync::Arc;

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

    /// Initial values of the model's table: those of local row `r` are its elements from `row_of_local(r) · dim` on.
    pub fn initial_values(&self, spec: &TableSpec) -> InitialValues {
        let rows = self.shard.map_or(spec.rows, |shard| shard.table_rows);
        InitialValues::new(&TableSpec { rows, ..spec.clone() }, self.seed, self.table_index)
    }
}

/// Builds tables of one kind.
pub trait TableKind: Send + Sync {
    /// Memory that [`Self::build`] will take; pure. The default is that of a dense table.
    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        spec.dense_memory(optimizer)
    }

    /// Whether tables of this kind show their rows ([`EmbeddingTable::plain_rows`]). Others get a staging matrix of one
    /// vector per id, which is counted in the set's memory.
    fn shows_rows(&self) -> bool {
        false
    }

    /// Builds one table, all its memory taken and initialised.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for what the kind lacks, [`EmbeddingError::Device`] for memory.
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

/// The kinds a program knows.
#[derive(Clone)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<dyn TableKind>>,
}

impl Default for Registry {
    /// The kinds of this crate: `dense`.
    fn default() -> Self {
        let mut registry = Self { kinds: BTreeMap::new() };
        registry.register("dense", DenseKind);
        registry
    }
}

impl Registry {
    /// Adds a kind, or replaces it.
    pub fn register(&mut self, kind: &str, builder: impl TableKind + 'static) {
        self.kinds.insert(kind.to_owned(), Arc::new(builder));
    }

    /// The kind that `spec` asks for.
    ///
    /// # Errors
    /// [`EmbeddingError::UnknownKind`], with the kinds there are.
    pub fn kind(&self, spec: &TableSpec) -> Result<&dyn TableKind> {
        self.kinds.get(&spec.kind).map(Arc::as_ref).ok_or_else(|| EmbeddingError::UnknownKind {
            table: spec.name.clone(),
            kind: spec.kind.clone(),
            known: self.kinds.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}
