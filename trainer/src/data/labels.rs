//! Labels, and the weights of samples: which files have them, and which are expected to.

use super::{block_options, format_of, open_source};
use crate::config::Config;
use crate::error::{Error, Result};
use headlong_reader::criteo::has_label;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use headlong_reader::samples::DataSchema;
use std::slice;

/// Refuses weights of data whose format has none.
pub(super) fn check_format(config: &Config, format: Format) -> Result<()> {
    let holds_weights = matches!(format, Format::Csv | Format::Parquet | Format::Headlong);
    match &config.data.columns.weight {
        Some(weight) if !holds_weights => Err(Error::config(
            "data.columns.weight",
            format!(
                "the weights of samples (column `{weight}`) are read from csv, parquet and \
                 headlong, and the data is {format}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses data without labels, and data with other weights than the configuration names.
pub(super) fn check(config: &Config, schema: &DataSchema) -> Result<()> {
    let columns = &config.data.columns;
    if !schema.labelled {
        let label = columns.label.as_deref().unwrap_or("label");
        let message =
            format!("the data has no labels: expected a column `{label}` (data.columns.label)");
        return Err(Error::config("data.train", message));
    }
    if columns.weight == schema.weight {
        return Ok(());
    }
    let shown = |weight: &Option<String>| match weight {
        Some(column) => format!("those of column `{column}`"),
        None => "none".to_owned(),
    };
    let (expected, found) = (shown(&columns.weight), shown(&schema.weight));
    let message = format!("expected weights: {expected}, the data has {found}");
    Err(Error::config("data.columns.weight", message))
}

/// Whether the samples of `file` have labels.
pub fn is_labelled(config: &Config, file: &DataFile) -> Result<bool> {
    let files = slice::from_ref(file);
    if format_of(config, files)? != Format::Criteo {
        return Ok(open_source(config, files, 1)?.schema().labelled);
    }
    let schema = block_options(config, true, 1).schema;
    has_label(file, &schema).map_err(Error::failed(match config.num_binned() {
        0 => "the data cannot be read".to_owned(),
        bins => format!(
            "the data cannot be read as lines of {} categories (data.num_sparse = {}, of which \
             {bins} are tables of bins)",
            schema.num_sparse, config.data.num_sparse
        ),
    }))
}

/// Takes no labels from files, nor weights: nothing is done with those that there may be, and they
/// may be empty.
pub fn ignore_labels(config: &mut Config) {
    (config.data.columns.label, config.data.columns.weight) = (None, None);
}

/// Whether lines of `file` begin with a label that is to be skipped. Other formats say what their
/// columns are.
pub fn has_labels_to_skip(config: &Config, file: &DataFile) -> Result<bool> {
    let is_text = format_of(config, slice::from_ref(file))? == Format::Criteo;
    Ok(is_text && is_labelled(config, file)?)
}
