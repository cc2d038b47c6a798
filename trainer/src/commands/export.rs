//! Exporting a checkpoint: an [ONNX file](onnx), what [`headlong.torch` reads](torch), or one
//! safetensors file with the names that the original DLRM gives its parameters, so that PyTorch
//! loads it with `load_state_dict`.
//!
//! | here | there (`dlrm_s_pytorch.py` of facebookresearch/dlrm) |
//! |---|---|
//! | table number t | `emb_l.{t}.weight`, shape [rows, dim] |
//! | `bottom.{i}.weight`, `bottom.{i}.bias` | `bot_l.{2i}.weight`, `bot_l.{2i}.bias`: activations count as layers there |
//! | `top.{i}.weight`, `top.{i}.bias` | `top_l.{2i}.weight`, `top_l.{2i}.bias` |
//!
//! Of an ensemble, model m has `models.{m}.` in front of these names, from 0: those of a
//! `ModuleList` called `models`.

mod hashed;
pub mod onnx;
pub mod torch;

use crate::error::{Error, Result};
use crate::state::checkpoint::{
    Cause, Checkpoint, CheckpointSink, Layout, Section, Select, TensorId,
};
use crate::state::digest::to_bytes;
use headlong_device::files::OutputFile;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Writes the weights of a model, or of all models of an ensemble, to the safetensors file
/// `output`, streaming, and returns the size of the file in bytes. All checksums are compared;
/// the file appears when it is complete.
pub fn export(models: &[Checkpoint], output: &Path) -> Result<u64> {
    let name = |layout: &Layout, tensor: TensorId| {
        original_name(layout, tensor).ok_or_else(|| {
            "the original DLRM has bottom and top layers and dense tables only".to_owned()
        })
    };
    write(models, output, &Extras::default(), &name)
}

/// What a safetensors file has besides weights.
#[derive(Default)]
struct Extras {
    /// Entries of its header.
    metadata: Vec<(&'static str, String)>,
    /// Bytes, by the name of their tensor.
    blobs: Vec<(&'static str, Vec<u8>)>,
}

/// What a tensor is called, or why there is no such name.
type Naming<'a> = &'a dyn Fn(&Layout, TensorId) -> Result<String, String>;

fn write(models: &[Checkpoint], output: &Path, extras: &Extras, name: Naming<'_>) -> Result<u64> {
    let (header, places) = header(models, extras, name)?;
    let file = OutputFile::create(output).map_err(Error::io("write", output))?;
    file.write_at(&header, 0).map_err(Error::io("write", output))?;
    let ends = places.iter().flat_map(BTreeMap::values).map(|place| place.end);
    let mut bytes = ends.max().unwrap_or(header.len() as u64);
    for (_, blob) in &extras.blobs {
        file.write_at(blob, bytes).map_err(Error::io("write", output))?;
        bytes += blob.len() as u64;
    }
    let file = write_weights(models, places, file, output)?;
    file.commit().map_err(Error::io("write", output))?;
    Ok(bytes)
}

/// Writes all weights of all models where `places` has them, and gives the file back.
fn write_weights(
    models: &[Checkpoint],
    places: Vec<Places>,
    mut file: OutputFile,
    output: &Path,
) -> Result<OutputFile> {
    for (model, places) in models.iter().zip(places) {
        let layout = model.manifest().layout.weights_only();
        let mut sink = ExportSink { layout, places, file, bytes: Vec::new(), failed: None };
        let loaded = model.load(&mut sink, Select::WeightsOnly);
        if let Some(source) = sink.failed {
            return Err(Error::io("write", output)(source));
        }
        loaded.map_err(Error::failed(context(model)))?;
        file = sink.file;
    }
    Ok(file)
}

fn context(model: &Checkpoint) -> String {
    format!("cannot export {}", model.path().display())
}

/// The original's name of a tensor; `None` where it has no such parameter.
fn original_name(layout: &Layout, tensor: TensorId) -> Option<String> {
    if tensor.section == Section::Tables {
        // Tables of other kinds than the original's, and the parts of such that share rows, are not
        // what it calls a table.
        let table = &layout.tables[tensor.index];
        return (!table.by_id && !table.name.contains('.'))
            .then(|| format!("emb_l.{}.weight", tensor.index));
    }
    let mut parts = layout.dense[tensor.index].name.split('.');
    let stack = match parts.next()? {
        "bottom" => "bot_l",
        "top" => "top_l",
        _ => return None,
    };
    let layer: u32 = parts.next()?.parse().ok()?;
    let what = parts.next().filter(|what| matches!(*what, "weight" | "bias"))?;
    parts.next().is_none().then(|| format!("{stack}.{}.{what}", layer.saturating_mul(2)))
}

/// Where the tensors of a model lie.
type Places = BTreeMap<TensorId, Place>;

/// Where a tensor lies in the exported file.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    end: u64,
    row_bytes: u64,
}

/// The header of the exported file, and where each tensor of each model lies behind it.
fn header(
    models: &[Checkpoint],
    extras: &Extras,
    name: Naming<'_>,
) -> Result<(Vec<u8>, Vec<Places>)> {
    let mut metadata = Map::from_iter([("format".to_owned(), json!("pt"))]);
    metadata.extend(extras.metadata.iter().map(|(key, text)| ((*key).to_owned(), json!(text))));
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), Value::Object(metadata));
    let mut places = Vec::new();
    let mut offset = 0;
    for (number, model) in models.iter().enumerate() {
        let prefix = prefix(models, number);
        places.push(add_entries(&mut entries, &mut offset, model, &|layout, tensor| {
            name(layout, tensor).map(|name| prefix.clone() + &name)
        })?);
    }
    for (name, blob) in &extras.blobs {
        let end = offset + blob.len() as u64;
        let entry = json!({ "dtype": "U8", "shape": [blob.len()], "data_offsets": [offset, end] });
        entries.insert((*name).to_owned(), entry);
        offset = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    let data = header.len() as u64;
    for place in places.iter_mut().flat_map(BTreeMap::values_mut) {
        place.start += data;
        place.end += data;
    }
    Ok((header, places))
}

/// What the names of model `number` begin with.
fn prefix(models: &[Checkpoint], number: usize) -> String {
    if models.len() > 1 { format!("models.{number}.") } else { String::new() }
}

/// Adds the tensors of a model, and says where each lies, counted from the header's end.
fn add_entries(
    entries: &mut Map<String, Value>,
    offset: &mut u64,
    model: &Checkpoint,
    name: Naming<'_>,
) -> Result<Places> {
    let layout = model.manifest().layout.weights_only();
    let mut places = BTreeMap::new();
    for tensor in layout.tensors().map_err(Error::failed(context(model)))? {
        let name = name(&layout, tensor.id).map_err(|reason| Error::Unsupported {
            feature: format!("exporting `{}`", tensor.name),
            reason,
        })?;
        let row_bytes = tensor.width * 4;
        let (start, end) = (*offset, *offset + tensor.rows * row_bytes);
        let entry = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end] });
        entries.insert(name, entry);
        places.insert(tensor.id, Place { start, end, row_bytes });
        *offset = end;
    }
    Ok(places)
}

/// Puts rows where they belong in the file, as they come.
struct ExportSink {
    layout: Layout,
    places: Places,
    file: OutputFile,
    bytes: Vec<u8>,
    /// Why the file cannot be written, where that has ended the loading.
    failed: Option<io::Error>,
}

impl CheckpointSink for ExportSink {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        let place = self.places[&tensor];
        to_bytes(values, &mut self.bytes);
        let written = self.file.write_at(&self.bytes, place.start + first_row * place.row_bytes);
        written.map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            Cause::from(io::Error::from(kind))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::checkpoint::DenseLayout;

    #[test]
    fn names_are_those_of_the_original() {
        let name = |of: &str| {
            let dense = vec![DenseLayout { name: of.into(), shape: vec![1], states: vec![] }];
            let layout = Layout { dense, tables: vec![] };
            original_name(&layout, TensorId { section: Section::Dense, index: 0, state: None })
        };
        assert_eq!(name("bottom.0.weight").as_deref(), Some("bot_l.0.weight"));
        assert_eq!(name("bottom.2.bias").as_deref(), Some("bot_l.4.bias"));
        assert_eq!(name("top.1.weight").as_deref(), Some("top_l.2.weight"));
        for other in
            ["cross.0.weight", "top.x.weight", "top.0", "top.0.weight.more", "top.0.scale", ""]
        {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
