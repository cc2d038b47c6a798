//! The chooser behind `headlong train --auto`: what columns are and how to train, each choice with
//! its reason.
//!
//! [`choose`] looks at summaries of columns, wherever these come from; [`files`] has them made of
//! a bounded part of the training files. [`Choices::apply`] is all that knows the keys of a
//! configuration, and [`text`] prints one with the reasons.

mod bad_rows;
pub mod files;
mod kinds;
mod label;
pub mod text;
mod training;

use crate::config::{BinsName, ColumnEntry, Config, DenseTransform};
use crate::error::{Error, Result};
use crate::metrics::columns::summary::ColumnSummary;
use headlong_reader::columns::Bins;
use headlong_reader::excerpt::OfText;
use headlong_reader::times::TimePart;
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
    /// Columns that were asked to be left out.
    pub ignored: &'a [String],
    /// What is between the fields of text, and whether bad rows are skipped, where that was said.
    pub text: OfText,
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
    /// What a person has to look at.
    pub warnings: Vec<String>,
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
    /// A point in time.
    Time,
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
    /// What is taken of a point in time.
    pub parts: Vec<TimePart>,
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

/// How many ids a part of a time has, a missing one's included.
fn num_ids(part: TimePart) -> u64 {
    match part {
        TimePart::Hour => 25,
        TimePart::Weekday => 8,
        TimePart::Day => 32,
        TimePart::Month => 13,
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
    label::label_of(&look.columns, asked.label, asked.ignored)
}

/// Chooses what columns are and how to train.
///
/// # Errors
/// As [`label()`]; [`Error::Config`] where nothing is left to learn from.
pub fn choose(look: &Look, asked: &Asked<'_>) -> Result<Choices> {
    let (label, why) = label(look, asked)?;
    refuse_unknown(look, asked.ignored)?;
    let mut columns = Vec::new();
    for (at, column) in look.columns.iter().enumerate() {
        let mut choice = match look.is_criteo {
            true => kinds::of_criteo(column),
            false => kinds::choose(column, look.is_whole),
        };
        if at == label {
            choice.become_of_kind(Kind::Label, why.clone());
        } else if asked.ignored.contains(&choice.name) {
            choice.become_of_kind(Kind::Ignored, "asked for by data.columns.ignored".to_owned());
        }
        columns.push(choice);
    }
    if let Some(asked) = asked.weight {
        let (at, why) = label::weight_of(look, label, asked)?;
        columns[at].become_of_kind(Kind::Weight, why);
    }
    kinds::agree_on_a_separator(&mut columns);
    let warnings = leaks(look, &mut columns);
    let of_kind = |kinds: &[Kind]| columns.iter().filter(|c| kinds.contains(&c.kind)).count();
    let (dense, ids) = (of_kind(&[Kind::Dense]), of_kind(&[Kind::Categorical, Kind::List]));
    let parts = columns.iter().flat_map(|column| column.parts.iter().copied().map(num_ids));
    if dense + ids + parts.clone().count() == 0 {
        let message = "no column is left to learn from: all others are constant, unique or dates";
        return Err(Error::config("--auto", message));
    }
    let seen = look.columns[label].present.max(1);
    let times = look.rows as f64 / seen as f64;
    let is_ids = |choice: &ColumnChoice| matches!(choice.kind, Kind::Categorical | Kind::List);
    let pairs = look.columns.iter().zip(&columns).filter(|(_, choice)| is_ids(choice));
    let ids_of_each = pairs.clone().map(|(column, _)| column.distinct_in(times));
    // After the tables of ids come those of parts of times, and of bins.
    let bins = columns.iter().filter_map(|column| Some(num_bins(&column.number.as_ref()?.bins)));
    let values: Vec<u64> = ids_of_each.chain(parts.clone()).chain(bins).collect();
    let ids_of_a_row = pairs.map(|(column, _)| column.list.map_or(1.0, |list| list.mean + 1.0));
    let ids_of_a_row = ids_of_a_row.sum::<f64>() + parts.count() as f64;
    let bytes_of_a_row = 4.0 * (1.0 + dense as f64) + 8.0 * ids_of_a_row;
    let facts = Facts {
        rows: look.rows,
        has_valid: asked.has_valid,
        keeps_models: asked.keeps_models,
        usable_bytes: asked.usable_bytes,
        decoded_bytes: (bytes_of_a_row * look.rows as f64) as u64,
    };
    let settings = training::settings(&columns, &values, &facts);
    let name = (!look.is_criteo).then(|| look.columns[label].name.clone());
    let weight = asked.weight.map(str::to_owned);
    Ok(Choices { label: name, weight, columns, settings, warnings })
}

/// Refuses to leave out what is not there: its name may have been mistyped.
fn refuse_unknown(look: &Look, ignored: &[String]) -> Result<()> {
    let is_there = |name: &String| look.columns.iter().any(|column| column.name == *name);
    let message = match ignored.iter().find(|name| *name != "*" && !is_there(name)) {
        None if ignored.is_empty() || !look.is_criteo => return Ok(()),
        None => "Criteo's text has no names, and all of its columns are used".to_owned(),
        Some(name) => {
            let names = look.columns.iter().map(|column| column.name.as_str());
            format!("there is no column `{name}` among {}", label::listed(names))
        }
    };
    Err(Error::config("data.columns.ignored", message))
}

/// Warnings of columns that the model uses and that alone tell the label.
fn leaks(look: &Look, columns: &mut [ColumnChoice]) -> Vec<String> {
    let used =
        look.columns.iter().zip(columns).filter(|(_, choice)| {
            matches!(choice.kind, Kind::Dense | Kind::Categorical | Kind::List)
        });
    let leaks = used.filter_map(|(column, choice)| Some((column.leak?, choice)));
    leaks
        .map(|(auc, choice)| {
            choice.reason += &format!("; Note: it alone tells the label (AUC {auc:.3})");
            let name = &choice.name;
            format!(
                "column `{name}` alone tells the label (AUC {auc:.3}): was it known before the \
                 click? It stays a feature; --set 'data.columns.ignored=[\"{name}\"]' leaves it out"
            )
        })
        .collect()
}

impl Choices {
    /// Gives columns that are left out their place in `config`, where they have none: what a person
    /// has set takes the place of what was chosen.
    pub fn ignore_others(&self, config: &mut Config) {
        let columns = &mut config.data.columns;
        for choice in self.columns.iter().filter(|choice| choice.kind == Kind::Ignored) {
            if self.label.is_some() && columns.roles().all(|(_, role)| !role.contains(&choice.name))
            {
                columns.ignored.push(choice.name.clone());
            }
        }
    }

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
    /// Makes it another thing than what it looked like.
    fn become_of_kind(&mut self, kind: Kind, reason: String) {
        (self.kind, self.reason, self.longest) = (kind, reason, 1);
        (self.number, self.list_separator) = (None, None);
        self.parts.clear();
    }

    /// What a configuration says of a column of numbers or times.
    fn entry(&self) -> Option<ColumnEntry> {
        if self.kind == Kind::Time {
            let (name, parts) = (self.name.clone(), self.parts.clone());
            return Some(ColumnEntry { name, parts, ..ColumnEntry::default() });
        }
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
            parts: Vec::new(),
        })
    }
}
