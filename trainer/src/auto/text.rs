//! A chosen configuration as text that can be read back, each choice with its reason.

use super::files::OfFiles;
use super::{ColumnChoice, Kind, Setting};
use crate::config::{Config, find, keys};
use toml::{Table, Value};

/// The name of the file that keeps what was chosen.
pub const FILE_NAME: &str = "auto.toml";

/// Keys that follow from the names of columns.
const COUNTED: [&str; 2] = ["data.num_dense", "data.num_sparse"];
const MOST_COLUMNS: usize = 96;

/// `config`, which came of `chosen` and of what the user said besides: every key that was chosen or
/// is not as by default.
pub fn to_toml(config: &Config, chosen: &OfFiles) -> String {
    head(chosen) + &of_settings(config, &chosen.choices.settings)
}

/// `config` with the reasons of `settings`.
pub(crate) fn of_settings(config: &Config, settings: &[Setting]) -> String {
    let (table, by_default) = (config.to_table(), defaults());
    let mut text = String::new();
    let mut section = "";
    for key in &*keys::KEYS {
        let Some(value) = find(&table, key.path) else { continue };
        let setting = settings.iter().find(|setting| setting.key == key.path);
        let is_chosen = setting.is_some_and(|setting| same(&setting.value, value));
        // Rows that are held out are of the training files, whichever these are.
        if key.path == "data.valid" && config.data.holdout > 0.0 {
            continue;
        }
        let is_counted = COUNTED.contains(&key.path) && !config.data.columns.is_empty();
        if is_counted || !is_chosen && find(&by_default, key.path) == Some(value) {
            continue;
        }
        let (path, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if path != section {
            text.push_str(&format!("\n[{path}]\n"));
            section = path;
        }
        let line = format!("{name} = {value}");
        let why = match setting {
            Some(setting) if is_chosen => setting.reason.as_str(),
            Some(_) => "not chosen but asked for",
            None => key.meaning.as_str(),
        };
        match line.len() <= 36 && 40 + why.len() <= MOST_COLUMNS {
            true => text.push_str(&format!("{line:<36}  # {why}\n")),
            false => text.push_str(&format!("{}{line}\n", comment(why))),
        }
    }
    config.column.iter().for_each(|entry| text.push_str(&entry.to_toml()));
    config.table.iter().for_each(|entry| text.push_str(&entry.to_toml()));
    text
}

fn defaults() -> Table {
    let mut config = Config::default();
    // What an optimiser has by default depends on its name, which is written.
    let _ = config.optimizer.resolve();
    config.to_table()
}

/// Whether two values are the same, where one is written as a whole number.
fn same(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
    one == other || number(one).is_some() && number(one) == number(other)
}

/// What was looked at, and what each column is.
fn head(chosen: &OfFiles) -> String {
    let (seen, all) = chosen.rows;
    let rows = match seen == all {
        true => format!("all {all} rows"),
        false => format!("{seen} rows of about {all}"),
    };
    let mut text =
        format!("# Chosen by `headlong train --auto` from {rows} ({}).\n#\n", chosen.format);
    let columns = &chosen.choices.columns;
    let width = columns.iter().map(|column| shown(&column.name).chars().count()).max().unwrap_or(0);
    for column in columns {
        let name = shown(&column.name);
        let (kind, facts, reason) = (kind(column), facts(column), &column.reason);
        let line = format!("{name:<width$}  {kind:<11}  {facts}: {}", shown(reason));
        text.push_str(&comment(&line));
    }
    text
}

/// A comment, in lines that end at column 96 or before.
fn comment(text: &str) -> String {
    let (mut lines, mut length) = ("#".to_owned(), 1);
    for word in text.split(' ') {
        let width = word.chars().count() + 1;
        if length + width > MOST_COLUMNS {
            lines.push_str("\n#    ");
            length = 5;
        }
        lines.push(' ');
        lines.push_str(word);
        length += width;
    }
    lines + "\n"
}

/// A name in a comment: on one line.
fn shown(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn kind(column: &ColumnChoice) -> &'static str {
    match column.kind {
        Kind::Label => "label",
        Kind::Weight => "weight",
        Kind::Dense => "number",
        Kind::Categorical => "categorical",
        Kind::List => "list",
        Kind::Time => "time",
        Kind::Ignored => "ignored",
    }
}

fn facts(column: &ColumnChoice) -> String {
    let values = match column.num_values {
        1 => "1 value".to_owned(),
        many => format!("{many} values"),
    };
    match column.missing_share {
        0.0 => values,
        share => format!("{values}, {:.1} % missing", share * 100.0),
    }
}
