//! Kinds of tables by name, so that a configuration can ask for a table its author wrote.

use crate::error::{EmbeddingError, Result};
use crate::kind::{Abilities, TableKind};
use crate::table::TableSpec;
use crate::tables::dense::DenseKind;
use crate::tables::hashed::HashedKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kinds a program knows.
#[derive(Clone)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<dyn TableKind>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Default for Registry {
    /// The kinds of this crate: `dense` and `hashed`.
    fn default() -> Self {
        let mut registry = Self { kinds: BTreeMap::new() };
        registry.register("dense", DenseKind);
        registry.register("hashed", HashedKind);
        registry
    }
}

impl Registry {
    /// Adds a kind, or replaces it.
    pub fn register(&mut self, kind: &str, builder: impl TableKind + 'static) {
        self.kinds.insert(kind.to_owned(), Arc::new(builder));
    }

    /// The kind that `spec` asks for, which can build such tables.
    ///
    /// # Errors
    /// [`EmbeddingError::UnknownKind`], with the kinds there are; [`EmbeddingError::Spec`] for what
    /// the kind's tables cannot be.
    pub fn kind(&self, spec: &TableSpec) -> Result<&dyn TableKind> {
        let kind = self.kinds.get(&spec.kind).ok_or_else(|| EmbeddingError::UnknownKind {
            table: spec.name.clone(),
            kind: spec.kind.clone(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })?;
        match kind.abilities().refusal(spec) {
            None => Ok(kind.as_ref()),
            Some(reason) => Err(spec.refused(reason)),
        }
    }

    /// As [`Self::kind`], of tables on a CUDA device.
    pub fn kind_on_cuda(&self, spec: &TableSpec) -> Result<&dyn TableKind> {
        let kind = self.kind(spec)?;
        let devices = kind.abilities().devices;
        if devices.contains(&"cuda") {
            return Ok(kind);
        }
        let reason = format!(
            "tables of kind `{}` run on {}, not on a CUDA device",
            spec.kind,
            devices.join(" and ")
        );
        Err(spec.refused(reason))
    }

    /// What tables of kind `kind` can be, where it is known.
    pub fn abilities(&self, kind: &str) -> Option<Abilities> {
        self.kinds.get(kind).map(|kind| kind.abilities())
    }

    /// The names of all kinds, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }
}
