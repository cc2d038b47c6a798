//! The chooser behind `headlong train --auto`: what columns are and how to train, each choice with
//! its reason.
//!
//! [`choose`] looks at summaries of columns, wherever these come from; [`files`] makes them of a
//! bounded part of the training files. [`Choices::apply`] is all that knows the keys of a
//! configuration, and [`text`] prints one with the reasons.

pub mod files;
mod kinds;
mod label;
pub mod summary;
pub mod text;
mod training;

use crate::config::{BinsName, ColumnEntry, Config, DenseTransform};
use crate::error::{Error, Result};
use headlong_reader::columns::Bins;
use summary::ColumnSummary;
use toml::Value;

/// What is looked at.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Every column, the label among them.
    pub columns: Vec<ColumnSummary>,
    /// Rows of all files, as far as is known.
    pub rows: u64,
    /// Whether all of them were looked at.
    pub is_whole: bool,
    /// Whether the columns are those of Criteo's text, which have no names and always the same use.
    pub is_criteo: bool,
}

/// What a run is about, besides its data.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// The label, where it was named.
    pub label: Option<&'a str>,
    /// The column of weights, where samples have some.
    pub weight: Option<&'a str>,
    /// Whether there are validation files.
    pub has_valid: bool,
    /// Whether there is a folder for models, and one process that could train several.
    pub keeps_models: bool,
    /// Bytes of memory that a run can take.
    pub usable_bytes: u64,
}

/// What was chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choices {
    /// The label's column; none in Criteo's text, where it has its place.
    pub label: Option<String>,
    /// The column of weights, where there is one.
    pub weight: Option<String>,
    /// Every column, in the order of the file.
    pub columns: Vec<ColumnChoice>,
    /// Every setting other than those of columns.
    pub settings: Vec<Setting>,
}

/// What a column is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is learned.
    Label,
    /// How much a row counts.
    Weight,
    /// A number.
    Dense,
    /// An id or a word.
    Categorical,
    /// Several ids or words in a field.
    List,
    /// Nothing.
    Ignored,
}

/// What was chosen for a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnChoice {
    /// Its name.
    pub name: String,
    /// What it is used as.
    pub kind: Kind,
    /// Why.
    pub reason: String,
    /// Different values seen.
    pub num_values: u64,
    /// Most values seen in one field.
    pub longest: u64,
    /// The share of empty fields.
    pub missing_share: f64,
    /// How a number enters the model.
    pub number: Option<NumberChoice>,
    /// What is between the values of a list in text.
    pub list_separator: Option<u8>,
}

/// How a number enters the model.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberChoice {
    /// What is done to it first.
    pub transform: DenseTransform,
    /// What is then subtracted.
    pub mean: f64,
    /// What it is then divided by.
    pub scale: f64,
    /// The bins of the table next to it.
    pub bins: Bins,
}

/// How many bins there are, a missing value's included.
fn num_bins(bins: &Bins) -> u64 {
    match bins {
        // Of numbers up to 10⁹.
        Bins::Ln2 => 432,
        Bins::Edges(edges) => edges.len() as u64 + 2,
    }
}

/// A key, its value, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The dotted key.
    pub key: &'static str,
    /// Its value.
    pub value: Value,
    /// Why.
    pub reason: String,
}

/// What the choice of settings depends on.
struct Facts {
    rows: u64,
    has_valid: bool,
    keeps_models: bool,
    usable_bytes: u64,
    decoded_bytes: u64,
}

/// The names of `columns`, where the label is, or why there is none: what has to be known before
/// [`ColumnSummary::look_at_order`].
///
/// # Errors
/// [`Error::Config`] where no column is the label, or several could be.
pub fn label(look: &Look, asked: &Asked<'_>) -> Result<(usize, String)> {
    if look.is_criteo {
        return match asked.label {
            None => Ok((0, "the first column of Criteo's text".to_owned())),
            Some(_) => Err(Error::config(
                "--label",
                "Criteo's text has no names, and its label is the first column: leave it out",
            )),
        };
    }
    label::label_of(&look.columns, asked.label)
}

/// Chooses what columns are and how to train.
///
/// # Errors
/// As [`label()`]; [`Error::Config`] where nothing is left to learn from.
pub fn choose(look: &Look, asked: &Asked<'_>) -> Result<Choices> {
    let (label, why) = label(look, asked)?;
    let mut columns = Vec::new();
    for (at, column) in look.columns.iter().enumerate() {
        let mut choice = match look.is_criteo {
            true => kinds::of_criteo(column),
            false => kinds::choose(column, look.is_whole),
        };
        if at == label {
            (choice.kind, choice.reason, choice.number) = (Kind::Label, why.clone(), None);
        }
        columns.push(choice);
    }
    if let Some(asked) = asked.weight {
        let (at, why) = label::weight_of(look, label, asked)?;
        let choice = &mut columns[at];
        (choice.kind, choice.reason, choice.number) = (Kind::Weight, why, None);
        choice.list_separator = None;
    }
    kinds::agree_on_a_separator(&mut columns);
    let of_kind = |kinds: &[Kind]| columns.iter().filter(|c| kinds.contains(&c.kind)).count();
    let (dense, ids) = (of_kind(&[Kind::Dense]), of_kind(&[Kind::Categorical, Kind::List]));
    if dense + ids == 0 {
        let message = "no column is left to learn from: all others are constant, unique or dates";
        return Err(Error::config("--auto", message));
    }
    let seen = look.columns[label].present.max(1);
    let times = look.rows as f64 / seen as f64;
    let is_ids = |choice: &ColumnChoice| matches!(choice.kind, Kind::Categorical | Kind::List);
    let pairs = look.columns.iter().zip(&columns).filter(|(_, choice)| is_ids(choice));
    let ids_of_each = pairs.clone().map(|(column, _)| column.distinct_in(times));
    // Tables of bins stand behind those of ids.
    let bins = columns.iter().filter_map(|column| Some(num_bins(&column.number.as_ref()?.bins)));
    let values: Vec<u64> = ids_of_each.chain(bins).collect();
    let ids_of_a_row = pairs.map(|(column, _)| column.list.map_or(1.0, |list| list.mean + 1.0));
    let bytes_of_a_row = 4.0 * (1.0 + dense as f64) + 8.0 * ids_of_a_row.sum::<f64>();
    let facts = Facts {
        rows: look.rows,
        has_valid: asked.has_valid,
        keeps_models: asked.keeps_models,
        usable_bytes: asked.usable_bytes,
        decoded_bytes: (bytes_of_a_row * look.rows as f64) as u64,
    };
    let settings = training::settings(&columns, &values, &facts);
    let name = (!look.is_criteo).then(|| look.columns[label].name.clone());
    Ok(Choices { label: name, weight: asked.weight.map(str::to_owned), columns, settings })
}

impl Choices {
    /// The configuration: what was chosen over the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] where the columns make no model.
    pub fn apply(&self) -> Result<Config> {
        let names = |kinds: &[Kind]| -> Vec<String> {
            let of_kind = self.columns.iter().filter(|column| kinds.contains(&column.kind));
            of_kind.map(|column| column.name.clone()).collect()
        };
        let ids = names(&[Kind::Categorical, Kind::List]);
        let mut config = Config::default();
        if self.label.is_some() {
            let columns = &mut config.data.columns;
            columns.label.clone_from(&self.label);
            columns.weight.clone_from(&self.weight);
            columns.dense = names(&[Kind::Dense]);
            columns.categorical = ids;
            columns.lists = names(&[Kind::List]);
            columns.ignored = names(&[Kind::Ignored]);
            let separator = self.columns.iter().find_map(|column| column.list_separator);
            columns.list_separator = separator.map(char::from);
        }
        // Each number has a transform of its own: what is made of the files keeps them as they are.
        config.data.dense_transform = DenseTransform::Identity;
        config.column = self.columns.iter().filter_map(ColumnChoice::entry).collect();
        if self.label.is_none() {
            config.data.num_sparse += config.num_binned();
        }
        let settings = self.settings.iter();
        let settings: Vec<String> =
            settings.map(|setting| format!("{}={}", setting.key, setting.value)).collect();
        config.set_all(&settings)?;
        Ok(config)
    }
}

impl ColumnChoice {
    /// What a configuration says of a column of numbers.
    fn entry(&self) -> Option<ColumnEntry> {
        let number = self.number.as_ref().filter(|_| self.kind == Kind::Dense)?;
        let (bins, edges) = match &number.bins {
            Bins::Ln2 => (BinsName::Ln2, Vec::new()),
            Bins::Edges(edges) => (BinsName::Edges, edges.clone()),
        };
        Some(ColumnEntry {
            name: self.name.clone(),
            transform: Some(number.transform),
            mean: Some(number.mean),
            scale: Some(number.scale),
            bins: (bins == BinsName::Ln2 || !edges.is_empty()).then_some(bins),
            edges,
        })
    }
}
