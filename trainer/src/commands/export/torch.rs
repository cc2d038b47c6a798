//! Exporting a model, or an ensemble, for `headlong.torch`: a safetensors file of all weights, by
//! the names of the module's parameters, and all that makes rows of columns.
//!
//! | tensor | is |
//! |---|---|
//! | `emb_l.{t}.weight`, `bot_l.…`, `top_l.…` | as [the original's](super) |
//! | `cross.{i}.v.weight`, `cross.{i}.w.weight`, `cross.{i}.w.bias` | a layer of the cross network |
//! | `emb_l.{t}.entry` | of a table of kind `hashed`, what its checkpoint has |
//! | `headlong.config`, `headlong.dictionary`, `headlong.ids` | files of the checkpoint, as bytes |
//!
//! `headlong.model` of the metadata is JSON: what the network is.

use super::hashed::HashedTable;
use super::{Extras, original_name, write};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::run::session::{CONFIG_BLOB, DICTIONARY_BLOB, IDS_BLOB, config_of};
use crate::state::checkpoint::{Checkpoint, Layout, Section, TableFingerprint, TensorId};
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;

/// Version of what is written.
const VERSION: u32 = 1;

/// Tensors of bytes, and the files of the checkpoint that they are.
const BLOBS: [(&str, &str); 3] = [
    ("headlong.config", CONFIG_BLOB),
    ("headlong.dictionary", DICTIONARY_BLOB),
    ("headlong.ids", IDS_BLOB),
];

/// Writes a model, or all models of an ensemble, and returns the bytes written.
pub fn export(models: &[Checkpoint], output: &Path) -> Result<u64> {
    let config = config_of(&models[0])?;
    let mut extras = Extras {
        metadata: vec![("headlong.model", network(models, &config)?.to_string())],
        blobs: Vec::new(),
    };
    for (tensor, file) in BLOBS {
        let blob = models[0].blob(file).map_err(Error::failed(super::context(&models[0])))?;
        let Some(mut blob) = blob else { continue };
        let (mut bytes, path) = (Vec::new(), models[0].path().join(file));
        blob.read_to_end(&mut bytes).map_err(Error::io("read", &path))?;
        extras.blobs.push((tensor, bytes));
    }
    write(models, output, &extras, &|layout, tensor| parameter_name(&config, layout, tensor))
}

/// What a module is made of, besides the shapes of its parameters.
fn network(models: &[Checkpoint], config: &Config) -> Result<Value> {
    let tables = &models[0].manifest().state.model.tables;
    let table = |(column, table): (usize, &TableFingerprint)| {
        json!({
            "name": config.column_name(column),
            "rows": table.rows,
            "pooling": config.table_spec(column, table.rows).pooling,
        })
    };
    // The initial values of ids that a table does not hold are those of each model's seed.
    let hashed = |model: &Checkpoint| {
        let of_seed = config_of(model)?.train.seed;
        let of_table = |(column, table): (usize, &TableFingerprint)| {
            HashedTable::of(config, column, table.rows, of_seed).map(|hashed| {
                // As text: not every reader of JSON has integers of 64 bits.
                let seed = hashed.seed.to_string();
                json!({ "head": hashed.head, "seed": seed, "bound": hashed.bound })
            })
        };
        Ok(json!(tables.iter().enumerate().map(of_table).collect::<Vec<_>>()))
    };
    Ok(json!({
        "version": VERSION,
        "dense": config.data.num_dense,
        "dim": config.model.dim,
        "interaction": config.model.interaction,
        "tables": tables.iter().enumerate().map(table).collect::<Vec<_>>(),
        "hashed": models.iter().map(hashed).collect::<Result<Vec<_>>>()?,
    }))
}

/// The name of a parameter of the module.
fn parameter_name(config: &Config, layout: &Layout, tensor: TensorId) -> Result<String, String> {
    if let Some(name) = original_name(layout, tensor) {
        return Ok(name);
    }
    match tensor.section {
        Section::Dense => {
            let name = &layout.dense[tensor.index].name;
            match name.starts_with("cross.") {
                true => Ok(name.clone()),
                false => Err("the module has no such parameter".to_owned()),
            }
        }
        Section::Tables => {
            let table = &layout.tables[tensor.index];
            match table.by_id && HashedTable::of(config, tensor.index, 1, 0).is_some() {
                true => Ok(format!("emb_l.{}.entry", tensor.index)),
                false => Err("the module has tables of the kinds `dense` and `hashed`".to_owned()),
            }
        }
    }
}
