//! Layers of configuration into one: defaults, preset or file, `--set`, flags.

use super::ranges::expected;
use super::render::find;
use super::{ColumnEntry, Config, TableEntry, keys};
use crate::error::{Error, Result};
use crate::system::input::read_text;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// The key of a file that asks for the rest to be chosen from a look at the data.
const AUTO: &str = "auto";

impl Config {
    /// Reads a TOML text over the defaults. `place` names it in errors (a file name).
    ///
    /// # Errors
    /// [`Error::UnknownKey`] and [`Error::Toml`] with `place:line`; [`Error::Config`] for an
    /// impossible optimiser.
    pub fn from_toml(text: &str, place: &str) -> Result<Self> {
        check_keys(text, place)?;
        let mut config = Self::of_text(text).map_err(|error| value_error(&error, text, place))?;
        config.optimizer.resolve()?;
        if !sets_num_sparse(text) {
            config.data.num_sparse += config.num_binned();
        }
        config.resolve_columns();
        Ok(config)
    }

    /// Takes what `text` sets, a configuration that has been read, and keeps the rest.
    ///
    /// # Errors
    /// Settings of an optimiser that has none such.
    pub(crate) fn overlay(&mut self, text: &str) -> Result<()> {
        let table = toml::from_str::<Table>(text).unwrap_or_default();
        for key in &*keys::KEYS {
            find(&table, key.path).map_or(Ok(()), |value| self.set(key.path, value.clone()))?;
        }
        let of_text = Self::from_toml(text, "--config")?;
        for entry in of_text.column {
            match self.column.iter_mut().find(|chosen| chosen.name == entry.name) {
                Some(chosen) => *chosen = entry,
                None => self.column.push(entry),
            }
        }
        if !of_text.table.is_empty() {
            self.table = of_text.table;
        }
        self.resolve_columns();
        self.optimizer.resolve()
    }

    /// Reads a TOML file over the defaults.
    ///
    /// # Errors
    /// As [`Config::from_toml`], and [`Error::Config`] where the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_file_with_text(path).map(|(config, _)| config)
    }

    /// The same, and its text.
    pub(crate) fn from_file_with_text(path: &Path) -> Result<(Self, String)> {
        let text = read_text(path).map_err(|error| {
            Error::config("--config", format!("cannot read {}: {error}", path.display()))
        })?;
        Ok((Self::from_toml(&text, &path.display().to_string())?, text))
    }

    /// Applies `--set KEY=VALUE` arguments in order. A value is TOML; what is not TOML is taken as
    /// a string, so that quotes lost to the shell are no error.
    ///
    /// # Errors
    /// [`Error::UnknownKey`] with the nearest key, [`Error::Toml`] where the type is wrong,
    /// [`Error::Contradiction`] for two values of one key.
    pub fn set_all<S: AsRef<str>>(&mut self, arguments: &[S]) -> Result<()> {
        let mut settings: Vec<(&'static str, Value, &str)> = Vec::new();
        for argument in arguments {
            let argument = argument.as_ref();
            let Some((key, text)) = argument.split_once('=') else {
                return Err(Error::Usage(format!("--set expects KEY=VALUE, found \"{argument}\"")));
            };
            let key = keys::resolve(key.trim(), "--set")?;
            let (text, value) = (text.trim(), parse_value(text.trim()));
            match settings.iter().find(|(other, ..)| *other == key) {
                Some((_, other, written)) if *other != value => {
                    let [first, second] = [written, text].map(|text| format!("--set {key}={text}"));
                    return Err(Error::contradiction(first, second, "both set it; leave one out"));
                }
                // The same words twice: scripts put what they have together.
                Some(_) => {}
                None => settings.push((key, value, text)),
            }
        }
        settings.into_iter().try_for_each(|(key, value, _)| self.set(key, value))?;
        self.resolve_columns();
        self.optimizer.resolve()
    }

    fn set(&mut self, key: &str, value: Value) -> Result<()> {
        match key {
            // The settings of the former optimiser go with its name.
            "optimizer.sparse.name" => self.optimizer.sparse.replace("adagrad"),
            "optimizer.dense.name" => self.optimizer.dense.replace("adagrad"),
            _ => {}
        }
        let mut table = self.to_table();
        insert(&mut table, key, value.clone());
        *self = Self::of_text(&table.to_string()).map_err(|error| Error::Toml {
            place: format!("--set {key}"),
            message: match expected(key) {
                Some(expected) => format!("expected {expected}; found {}", shown(&value)),
                None => no_word(key, &value.to_string(), &error)
                    .unwrap_or_else(|| error.message().to_owned()),
            },
        })?;
        Ok(())
    }

    /// The configuration as a TOML table; unset keys are absent.
    pub fn to_table(&self) -> Table {
        Table::try_from(self).expect("every field of a configuration has a TOML form")
    }

    /// Every configuration is read here: what reads a hundred fields is compiled once.
    fn of_text(text: &str) -> Result<Self, toml::de::Error> {
        toml::Deserializer::parse(text).and_then(Self::deserialize)
    }
}

impl<'de> Deserialize<'de> for Config {
    /// By way of a TOML text, whatever the form that it comes in.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Table::deserialize(deserializer)?.to_string();
        Self::of_text(&text).map_err(|error| D::Error::custom(error.message()))
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// A TOML value, or the text itself as a string.
fn parse_value(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}\n"));
    // Note: one key alone, lest a line break smuggle in a second one.
    let single =
        parsed.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    single.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Which words the key takes, of which `text` is none, where `error` does not say so; none of a key
/// that takes something else.
fn no_word(key: &str, text: &str, error: &toml::de::Error) -> Option<String> {
    if error.message().starts_with("unknown variant") {
        return None;
    }
    let mut table = Config::default().to_table();
    insert(&mut table, key, Value::String(text.to_owned()));
    let message = Config::of_text(&table.to_string()).err()?.message().to_owned();
    message.starts_with("unknown variant").then_some(message)
}

/// A value as it was written: numbers that TOML has no room for came as words.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.parse::<i128>().is_ok() => text.clone(),
        value => value.to_string(),
    }
}

/// Puts `value` at the dotted `path`, making tables on the way.
fn insert(table: &mut Table, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// What there is to say of each key of `text` that is gone.
pub(crate) fn former_keys(text: &str) -> Vec<String> {
    let table = toml::from_str::<Table>(text).unwrap_or_default();
    keys::FORMER
        .iter()
        .filter(|(path, _)| {
            let (section, key) = path.split_once('.').unwrap_or(("", path));
            table.get(section).is_some_and(|section| section.get(key).is_some())
        })
        .map(|(path, reason)| format!("`{path}` is gone: {reason}"))
        .collect()
}

/// Whether `text` asks for what it does not set to be chosen as `--auto` does.
pub(crate) fn asks_for_auto(text: &str) -> bool {
    toml::from_str::<Table>(text)
        .is_ok_and(|table| table.get(AUTO).and_then(Value::as_bool) == Some(true))
}

/// Whether `text` says how many tables there are, those of bins among them.
fn sets_num_sparse(text: &str) -> bool {
    let table = toml::from_str::<Table>(text).unwrap_or_default();
    table.get("data").is_some_and(|data| data.get("num_sparse").is_some())
}

/// Refuses the first key of `text` that is not known.
fn check_keys(text: &str, place: &str) -> Result<()> {
    let table = DeTable::parse(text).map_err(|error| toml_error(&error, text, place))?;
    check_table("", table.get_ref(), text, place)
}

fn check_table(prefix: &str, table: &DeTable<'_>, text: &str, place: &str) -> Result<()> {
    // The map is ordered by name; errors come in the order of the file.
    let mut entries: Vec<(&Spanned<_>, &Spanned<DeValue<'_>>)> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let name: &str = key.get_ref();
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let here = || format!("{place}:{}", line_of(text, key.span().start));
        let lists = [("table", TableEntry::KEYS), ("column", ColumnEntry::KEYS)];
        if let Some(list) = lists.into_iter().find(|(list, _)| *list == path) {
            check_entries(list, value.get_ref(), text, place)?;
            continue;
        }
        if keys::former(&path).is_some() {
            continue;
        }
        if path == AUTO {
            if !matches!(value.get_ref(), DeValue::Boolean(_)) {
                let message = "`auto`: expected true or false".to_owned();
                return Err(Error::Toml { place: here(), message });
            }
            continue;
        }
        if !keys::is_known(&path) {
            return Err(keys::unknown(here(), &path));
        }
        match (keys::is_section(&path), value.get_ref()) {
            (true, DeValue::Table(inner)) => check_table(&path, inner, text, place)?,
            (true, _) => {
                return Err(Error::Toml {
                    place: here(),
                    message: format!("`{path}` is a section, not a value: write `[{path}]`"),
                });
            }
            (false, DeValue::Table(_)) => {
                return Err(Error::Toml {
                    place: here(),
                    message: format!("`{path}` is a value, not a section: write `{path} = ...`"),
                });
            }
            (false, _) => {}
        }
    }
    Ok(())
}

/// Refuses the first key of a `[[table]]` or `[[column]]` that is not known.
fn check_entries(
    (list, known): (&str, &[&str]),
    entries: &DeValue<'_>,
    text: &str,
    place: &str,
) -> Result<()> {
    let at = |position: usize| format!("{place}:{}", line_of(text, position));
    let DeValue::Array(entries) = entries else {
        let message =
            format!("`{list}` is a list of sections: write `[[{list}]]`, once for each {list}");
        return Err(Error::Toml { place: place.to_owned(), message });
    };
    for entry in entries.iter() {
        let DeValue::Table(entry_keys) = entry.get_ref() else {
            let message = format!("`{list}` is a list of sections: write `[[{list}]]`");
            return Err(Error::Toml { place: at(entry.span().start), message });
        };
        let unknown = entry_keys.keys().filter(|key| !known.contains(&&**key.get_ref()));
        if let Some(key) = unknown.min_by_key(|key| key.span().start) {
            let nearest = keys::nearest(key.get_ref(), known.iter().copied());
            return Err(Error::UnknownKey {
                place: at(key.span().start),
                key: format!("{list}.{}", key.get_ref()),
                nearest: nearest.map(|nearest| format!("{list}.{nearest}")),
            });
        }
    }
    Ok(())
}

/// A value of a known key that has another type, or is too large: says what the key takes, where
/// that is a number.
fn value_error(error: &toml::de::Error, text: &str, place: &str) -> Error {
    let key =
        error.span().and_then(|span| key_at("", DeTable::parse(text).ok()?.get_ref(), span.start));
    let key = key.as_deref();
    if let Some(expected) = key.and_then(expected) {
        return located(error, &format!("expected {expected}; found"), text, place);
    }
    let found = error.span().and_then(|span| text.get(span));
    match key.zip(found).and_then(|(key, found)| no_word(key, found, error)) {
        Some(message) => located(error, &format!("{message} in"), text, place),
        None => toml_error(error, text, place),
    }
}

/// The key whose value lies at a byte of the text.
fn key_at(prefix: &str, table: &DeTable<'_>, position: usize) -> Option<String> {
    let (key, value) = table.iter().find(|(_, value)| match value.get_ref() {
        DeValue::Table(inner) => key_at("", inner, position).is_some(),
        _ => value.span().contains(&position),
    })?;
    let path = if prefix.is_empty() {
        key.get_ref().to_string()
    } else {
        format!("{prefix}.{}", key.get_ref())
    };
    match value.get_ref() {
        DeValue::Table(inner) => key_at(&path, inner, position),
        _ => Some(path),
    }
}

fn toml_error(error: &toml::de::Error, text: &str, place: &str) -> Error {
    located(error, &format!("{} in", error.message().trim()), text, place)
}

fn located(error: &toml::de::Error, message: &str, text: &str, place: &str) -> Error {
    let line = error.span().map(|span| line_of(text, span.start));
    let place = line.map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
    // The library's message names neither the key nor the found value; the line shows both.
    let shown = line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default().trim();
    Error::Toml { place, message: format!("{message} `{shown}`") }
}

/// Line of a byte position, counted from 1.
fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Compress, EvalEvery, HybridMode, Ids, TableRows};

    fn message(text: &str) -> String {
        Config::from_toml(text, "a.toml").unwrap_err().to_string()
    }

    /// Configurations that were written before, those in checkpoints among them, go on.
    #[test]
    fn a_key_that_is_gone_is_ignored_in_a_file_and_explained_on_the_command_line() {
        let text = "[comm]\nslot_factor = 4.0\nids = \"known\"\n";
        let config = Config::from_toml(text, "a.toml").unwrap();
        let rest = Config::from_toml("[comm]\nids = \"known\"\n", "a.toml").unwrap();
        assert_eq!(config, rest);
        let message = Config::default().set_all(&["comm.slot_factor=4"]).unwrap_err().to_string();
        let gone = "`comm.slot_factor` is gone: slots between";
        assert!(message.contains(gone), "{message}");
        let notes = [text, "[comm]\nids = \"known\"\n"].map(former_keys);
        assert!(notes[0].len() == 1 && notes[0][0].starts_with(gone), "{notes:?}");
        assert!(notes[1].is_empty(), "{notes:?}");
    }

    #[test]
    fn an_unknown_key_names_file_line_path_and_the_nearest() {
        assert_eq!(
            message("[model]\ndim = 8\n\n[train]\nbatch_sise = 512\n"),
            "a.toml:5: unknown key `train.batch_sise`: did you mean `train.batch_size`?"
        );
        assert_eq!(
            message("[trian]\nseed = 1\n"),
            "a.toml:1: unknown key `trian`: did you mean `train`?"
        );
        assert!(
            message("zebra = 1\n")
                .starts_with("a.toml:1: unknown key `zebra`; `headlong config show`")
        );
        assert!(message("[optimizer.sparse]\nbeta3 = 1\n").contains("`optimizer.sparse.beta3`"));
    }

    #[test]
    fn a_wrong_type_names_file_and_line() {
        let text = message("[train]\nseed = 1\nbatch_size = \"many\"\n");
        assert!(text.starts_with("a.toml:3: ") && text.contains("batch_size = \"many\""), "{text}");
        assert!(message("[train\n").starts_with("a.toml:1: "));
    }

    #[test]
    fn what_is_none_of_a_keys_words_is_told_them() {
        let words = "unknown variant `0`, expected one of `auto`, `pairs`, `tiles`";
        let set = Config::default().set_all(&["train.bf16_sums=0"]).unwrap_err().to_string();
        assert!(set.contains(words), "{set}");
        let text = message("[train]\nseed = 1\nbf16_sums = 0\n");
        assert!(text.starts_with(&format!("a.toml:3: {words} in `bf16_sums = 0`")), "{text}");
        let text = message("[train]\nbf16_sums = \"both\"\n");
        assert!(text.contains("unknown variant `both`, expected one of"), "{text}");
        assert!(message("train = 3\n").contains("is a section"));
        assert!(message("[train.seed]\nx = 1\n").contains("is a value"));
    }

    #[test]
    fn set_takes_toml_and_bare_words() {
        let mut config = Config::default();
        config
            .set_all(&[
                "train.batch_size=64",
                "data.ids = dictionary",
                "tables.rows=[1, 2]",
                "eval.every=0.25",
                "run.hybrid=rows=7",
                "data.dense_transform=ln(x+3)",
                "optimizer.sparse.name=\"ftrl\"",
                "optimizer.sparse.lambda1=0.5",
            ])
            .unwrap();
        assert_eq!(config.train.batch_size, 64);
        assert_eq!(config.data.ids, Ids::Dictionary);
        assert_eq!(config.tables.rows, TableRows::List(vec![1, 2]));
        assert_eq!(config.eval.every, EvalEvery::EpochFraction(0.25));
        assert_eq!(config.run.hybrid, HybridMode::Rows(7));
        assert_eq!(config.optimizer.sparse.settings.lambda1, Some(0.5));
        assert_eq!(config.optimizer.sparse.settings.epsilon, None);
    }

    #[test]
    fn set_names_what_is_wrong() {
        let error =
            |argument: &str| Config::default().set_all(&[argument]).unwrap_err().to_string();
        assert_eq!(
            error("train.batch_sise=3"),
            "--set: unknown key `train.batch_sise`: did you mean `train.batch_size`?"
        );
        assert!(error("train=3").contains("`train` is a section"));
        assert!(error("train.batch_size").contains("KEY=VALUE"));
        assert!(error("train.batch_size=-3").starts_with("--set train.batch_size: "));
        assert!(error("data.ids=3").starts_with("--set data.ids: "));
        assert!(error("run.hybrid=some").contains("rows=N"));
    }

    #[test]
    fn numbers_out_of_range_say_what_the_key_takes() {
        let set = |argument: &str| Config::default().set_all(&[argument]).unwrap_err().to_string();
        assert_eq!(
            set("train.steps=18446744073709551615"),
            "--set train.steps: expected a whole number, at least 1; found 18446744073709551615"
        );
        assert!(set("train.batch_size=-3").ends_with("1 to 1073741824; found -3"));
        assert!(set("train.batch_size=many").ends_with("found \"many\""));
        assert!(set("model.top=[-1]").contains("each 1 to"));
        assert_eq!(
            message("[train]\nseed = 1\nsteps = 18446744073709551616\n"),
            "a.toml:3: expected a whole number, at least 1; found `steps = 18446744073709551616`"
        );
        assert!(message("[eval]\nevery = \"often\"\n").contains("fraction of an epoch"));
        assert!(message("[multi_hot]\nseed = 5000000000\n").contains("0 to 4294967295"));
        assert!(message("[run]\nhybrid = 3\n").starts_with("a.toml:2: "));
    }

    #[test]
    fn what_was_written_as_json_is_read_again() {
        for config in [Config::default(), Config::default().with_every_key_set()] {
            let json = serde_json::to_value(&config).unwrap();
            assert_eq!(serde_json::from_value::<Config>(json).unwrap(), config);
        }
        let wrong = serde_json::json!({ "train": { "batch_size": "many" } });
        let error = serde_json::from_value::<Config>(wrong).unwrap_err().to_string();
        assert!(error.contains("string \"many\""), "{error}");
    }

    #[test]
    fn two_values_of_one_key_are_refused() {
        let set = |arguments: &[&str]| Config::default().set_all(arguments);
        let message = set(&["train.sum_blocks=2", "sum_blocks=4"]).unwrap_err().to_string();
        let both = ["--set train.sum_blocks=2", "--set train.sum_blocks=4"];
        assert!(both.iter().all(|one| message.contains(one)), "{message}");
        set(&["train.seed=4", "train.seed=4"]).unwrap();
    }

    #[test]
    fn every_field_is_a_key_and_every_key_a_field() {
        let full = Config::default().with_every_key_set();
        let mut fields = Vec::new();
        collect("", &full.to_table(), &mut fields);
        let mut known: Vec<String> = keys::KEYS.iter().map(|key| key.path.to_owned()).collect();
        // The two optimisers share one settings type; FTRL is only for tables, LAMB for the rest.
        let others = ["dense.beta", "dense.lambda1", "dense.lambda2", "sparse.weight_decay"];
        fields.retain(|path| {
            path.strip_prefix("optimizer.").is_none_or(|setting| !others.contains(&setting))
        });
        fields.sort();
        known.sort();
        assert_eq!(fields, known);
    }

    fn collect(prefix: &str, table: &Table, fields: &mut Vec<String>) {
        for (key, value) in table {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Table(inner) => collect(&path, inner, fields),
                _ => fields.push(path),
            }
        }
    }

    impl Config {
        /// Every optional key set to something.
        pub(in crate::config) fn with_every_key_set(mut self) -> Self {
            self.tables.max_rows = Some(1);
            self.data.dictionary = Some("d".into());
            self.data.hotness = vec![1];
            self.data.columns = crate::config::ColumnsConfig {
                label: Some("y".into()),
                weight: Some("w".into()),
                dense: vec!["x".into()],
                categorical: vec!["c".into()],
                lists: vec!["c".into()],
                separator: Some('\t'),
                carry: vec!["id".to_owned()],
                group: Some("user".to_owned()),
                list_separator: Some(';'),
                ignored: vec!["*".into()],
            };
            self.hybrid.latency_table = Some("l".into());
            self.comm.tuning = Some("t".into());
            self.comm.compress = Some(Compress::None);
            self.comm.verbs.gid_index = Some(1);
            self.train.steps = Some(1);
            self.train.sparse_learning_rate = Some(1.0);
            self.train.clip_norm = Some(1.0);
            self.train.sum_blocks = Some(1);
            self.train.bf16_sums = super::super::Bf16Sums::Pairs;
            self.train.hugectr_compat = true;
            self.eval.target_auc = Some(0.8);
            self.eval.patience = Some(3);
            self.checkpoint.dir = Some("c".into());
            self.checkpoint.snapshot_dir = Some("s".into());
            self.run.kernels = Some("k".into());
            self.run.algorithms = Some("a".into());
            self.run.threads = Some(1);
            self.run.eval_ranks = Some(1);
            self.run.eval_processes = Some(1);
            let settings = super::super::OptimizerSettings {
                epsilon: Some(1.0),
                initial_accumulator: Some(1.0),
                beta1: Some(1.0),
                beta2: Some(1.0),
                weight_decay: Some(1.0),
                beta: Some(1.0),
                lambda1: Some(1.0),
                lambda2: Some(1.0),
            };
            self.optimizer.sparse.settings = settings;
            self.optimizer.dense.settings = settings;
            self.optimizer.dense.sharded = Some(super::super::Sharded::Auto);
            self
        }
    }
}
