//! The kinds of tables that a program has registered, and what a configuration asks of them.

use super::{Config, DeviceChoice, TableEntry, keys};
use crate::error::{Error, Result};
use headlong_embedding::{Registry, TableKind, TableSpec};

impl Config {
    /// As [`Config::validate`], in a program that has registered the kinds of `registry`: a kind
    /// that is not registered is refused, and so is what tables of a kind cannot be. Entries say
    /// afterwards what their kind leaves no choice of: `grain` and `keys`.
    ///
    /// # Errors
    /// As [`Config::validate`]; the first table that the program cannot build, by name.
    pub fn validate_with(&mut self, registry: &Registry) -> Result<()> {
        self.check_entry_names()?;
        self.table.iter_mut().try_for_each(|entry| complete(entry, registry))?;
        self.validate()?;
        match self.table_rows(None) {
            Ok(rows) => self.check_tables(&rows, registry),
            // The dictionary decides, and is not there: what depends on rows is checked with the
            // plan.
            Err(_) => (0..self.data.num_sparse).try_for_each(|column| {
                self.kind_of(&self.table_spec(column, 1), registry).map(drop)
            }),
        }
    }

    fn kind_of<'a>(&self, spec: &TableSpec, registry: &'a Registry) -> Result<&'a dyn TableKind> {
        Ok(match self.run.device {
            DeviceChoice::Cuda => registry.kind_on_cuda(spec)?,
            DeviceChoice::Cpu | DeviceChoice::Auto => registry.kind(spec)?,
        })
    }

    /// Checks each table of `table_rows` rows by its kind.
    ///
    /// # Errors
    /// What the kind refuses, by table and reason.
    pub fn check_tables(&self, table_rows: &[u64], registry: &Registry) -> Result<()> {
        for (column, &rows) in table_rows.iter().enumerate() {
            let spec = self.table_spec(column, rows);
            self.kind_of(&spec, registry)?.check(&spec)?;
        }
        Ok(())
    }
}

/// Writes down what the kind of `entry` decides.
fn complete(entry: &mut TableEntry, registry: &Registry) -> Result<()> {
    let Some(kind) = &entry.kind else { return Ok(()) };
    let Some(able) = registry.abilities(kind) else {
        return Err(unknown(&entry.name, kind, registry));
    };
    if let (None, &[grain]) = (entry.grain, able.grains) {
        entry.grain = Some(grain);
    }
    if let (None, &[keys]) = (entry.keys, able.keys) {
        entry.keys = Some(keys);
    }
    Ok(())
}

fn unknown(table: &str, kind: &str, registry: &Registry) -> Error {
    let known = registry.names().collect::<Vec<_>>().join(", ");
    let help = match keys::nearest(kind, registry.names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => {
            "a kind of your own is known to the program that registers it (docs/custom-tables.md)"
                .to_owned()
        }
    };
    let message = format!("table {table}: no table kind `{kind}`; known kinds: {known}: {help}");
    Error::config("table.kind", message)
}
