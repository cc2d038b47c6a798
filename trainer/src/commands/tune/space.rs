//! The settings that are tried: a list of values or a range for each key, and how those of a trial
//! are drawn from them.

use crate::config::{Config, Ids, Interaction, TableRows, find, keys};
use crate::error::{Error, Result};
use headlong_device::rng::CounterRng;
use serde_json::Map;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// What is no key of a configuration but can be tried: false leaves out the tables of bins that
/// `[[column]]` sections ask for.
const BINS: &str = "column.bins";
/// Sections and keys that can be tried; of these, not [`DECIDED`].
const OPEN: [&str; 7] =
    ["model", "tables", "optimizer", "multi_hot", "train", "data.min_count", "data.ids"];
/// Keys that `tune` sets itself, or that change what is measured.
const DECIDED: [&str; 6] =
    ["train.epochs", "train.steps", "train.seed", "train.seeds", "train.log_every", "model.loss"];
/// Redraws of a trial that is one of the earlier ones.
const MOST_DRAWS: u64 = 50;

/// What is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    dimensions: Vec<Dimension>,
}

#[derive(Debug, Clone, PartialEq)]
struct Dimension {
    key: String,
    values: Values,
}

#[derive(Debug, Clone, PartialEq)]
enum Values {
    List(Vec<Value>),
    /// From the first number to the second.
    Uniform(f64, f64),
    /// The same, every factor as often as any other.
    LogUniform(f64, f64),
}

/// The settings of a trial that are not those of the base, in the order of the space.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings(pub Vec<(String, Value)>);

impl Space {
    /// What is tried of a configuration where nothing is said.
    pub fn of(base: &Config) -> Self {
        let (model, train) = (&base.model, &base.train);
        let mut dimensions = Vec::new();
        let mut add = |key: &str, values| {
            dimensions.push(Dimension { key: key.to_owned(), values });
        };
        let rate = train.learning_rate;
        add("train.learning_rate", around(rate));
        add("train.sparse_learning_rate", around(train.sparse_learning_rate.unwrap_or(rate)));
        let batch = train.batch_size as i64;
        add("train.batch_size", list([batch / 2, batch, batch * 2, batch * 4], |&size| size > 0));
        if matches!(base.data.ids, Ids::Dictionary | Ids::Admitted) {
            add("data.min_count", list([1, 2, 3, 5, 10], |_| true));
        }
        add("model.dim", list([4, 8, 16, 32], |_| true));
        let dim = model.dim as i64;
        if base.data.num_dense > 0 {
            add("model.bottom", lists(&[&[dim], &[32, dim], &[64, dim], &[128, 64, dim]]));
        }
        add("model.top", lists(&[&[1], &[32, 1], &[64, 32, 1], &[128, 64, 1]]));
        let vectors = base.data.num_sparse + usize::from(base.data.num_dense > 0);
        if model.interaction != Interaction::Cross && vectors > 1 {
            add("model.interaction", list(["dot", "cat"], |_| true));
        }
        let adagrad = ["adagrad", "rowwise_adagrad"];
        if adagrad.contains(&base.optimizer.sparse.name.as_str()) {
            add("optimizer.sparse.name", list(adagrad, |_| true));
        }
        // A model has one table at least.
        let is_left = (1..base.data.num_sparse).contains(&base.num_binned());
        if is_left && !matches!(base.tables.rows, TableRows::List(_)) {
            add(BINS, list([true, false], |_| true));
        }
        Self { dimensions }
    }

    /// Reads a space of TOML; `place` names it in errors.
    ///
    /// # Errors
    /// [`Error::UnknownKey`] and [`Error::Toml`] with the line.
    pub fn from_toml(text: &str, place: &str) -> Result<Self> {
        let parsed = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            toml_error(format!("{place}:{line}"), error.message().trim())
        })?;
        let mut reader = SpaceReader { text, place, found: Vec::new() };
        reader.section("", parsed.get_ref())?;
        reader.found.sort_by_key(|(at, _)| *at);
        let dimensions: Vec<_> = reader.found.into_iter().map(|(_, found)| found).collect();
        match dimensions.is_empty() {
            true => {
                Err(toml_error(place.to_owned(), "expected keys with values to try, found none"))
            }
            false => Ok(Self { dimensions }),
        }
    }

    /// The space as TOML that reads back to it.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for Dimension { key, values } in &self.dimensions {
            let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
            if path != section {
                text.push_str(&format!("[{path}]\n"));
                section = path;
            }
            let values = match values {
                Values::List(values) => Value::Array(values.clone()).to_string(),
                Values::Uniform(low, high) => range("uniform", *low, *high),
                Values::LogUniform(low, high) => range("log_uniform", *low, *high),
            };
            text.push_str(&format!("{name} = {values}\n"));
        }
        text
    }

    /// Refuses values that the base configuration cannot have.
    ///
    /// # Errors
    /// [`Error::Config`] with the key and the value.
    pub fn check(&self, base: &Config) -> Result<()> {
        for Dimension { key, values } in &self.dimensions {
            let values = match values {
                Values::List(values) => values.clone(),
                Values::Uniform(low, high) | Values::LogUniform(low, high) => {
                    vec![Value::Float(*low), Value::Float(*high)]
                }
            };
            for value in values {
                let shown = format!("{key} = {value}");
                let settings = Settings(vec![(key.clone(), value)]);
                settings
                    .apply(base)
                    .and_then(|config| config.validate())
                    .map_err(|error| Error::config("--space", format!("{shown}: {error}")))?;
            }
        }
        Ok(())
    }

    /// The settings of trial number `trial`: each key keeps the value that `centre` has for it, or
    /// gets one of the space, one time in two. `earlier` trials are not tried again.
    pub fn draw(
        &self,
        base: &Config,
        (seed, trial): (u64, usize),
        centre: &Settings,
        earlier: &[Settings],
    ) -> Settings {
        let random = CounterRng::new(seed, trial as u64);
        let mut drawn = centre.clone();
        for attempt in 0..MOST_DRAWS {
            drawn = Settings(
                self.dimensions
                    .iter()
                    .enumerate()
                    .filter_map(|(index, dimension)| {
                        let at = 2 * (attempt * self.dimensions.len() as u64 + index as u64);
                        let value = match random.uniform(at) < 0.5 {
                            true => centre.get(&dimension.key)?.clone(),
                            false => dimension.values.at(random.uniform(at + 1)),
                        };
                        dimension.differs(base, &value).then(|| (dimension.key.clone(), value))
                    })
                    .collect(),
            );
            // What a configuration cannot be is not tried either.
            let fits = drawn.apply(base).and_then(|config| config.validate()).is_ok();
            if fits && !earlier.contains(&drawn) {
                break;
            }
        }
        drawn
    }
}

impl Dimension {
    /// Whether `value` is not what the base has.
    fn differs(&self, base: &Config, value: &Value) -> bool {
        match self.key.as_str() {
            BINS => value == &Value::Boolean(false),
            key => find(&base.to_table(), key) != Some(value),
        }
    }
}

impl Values {
    /// The value at `part` of the way, 0 to below 1.
    fn at(&self, part: f32) -> Value {
        let part = f64::from(part);
        match self {
            Self::List(values) => values[(part * values.len() as f64) as usize].clone(),
            Self::Uniform(low, high) => Value::Float(rounded(low + part * (high - low))),
            Self::LogUniform(low, high) => Value::Float(rounded(low * (high / low).powf(part))),
        }
    }
}

impl Settings {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    /// The configuration that `base` becomes.
    ///
    /// # Errors
    /// Values of another type than the key's.
    pub fn apply(&self, base: &Config) -> Result<Config> {
        let mut config = base.clone();
        if self.get(BINS).is_some() {
            if config.data.columns.is_empty() {
                config.data.num_sparse -= config.num_binned();
            }
            config.column.iter_mut().for_each(|entry| {
                (entry.bins, entry.edges) = (None, Vec::new());
            });
        }
        let keys = self.0.iter().filter(|(key, _)| key != BINS);
        let set: Vec<String> = keys.map(|(key, value)| format!("{key}={value}")).collect();
        config.set_all(&set)?;
        let (dim, interaction) = (config.model.dim, config.model.interaction);
        if let Some(last) =
            config.model.bottom.last_mut().filter(|_| interaction == Interaction::Dot)
        {
            *last = dim;
        }
        Ok(config)
    }

    /// The keys of a configuration that are set, where a reader finds them.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        let known = |key: &String| keys::KEYS.iter().find(|known| known.path == key);
        self.0.iter().filter_map(move |(key, _)| known(key).map(|known| known.path))
    }

    /// In a line, as the table has them.
    pub fn in_words(&self) -> String {
        let words: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        words.join("  ")
    }

    pub fn to_json(&self) -> Map<String, serde_json::Value> {
        let value = |value: &Value| serde_json::to_value(value).unwrap_or_default();
        self.0.iter().map(|(key, set)| (key.clone(), value(set))).collect()
    }
}

/// From a quarter to four times a rate.
fn around(rate: f64) -> Values {
    Values::LogUniform(rounded(rate / 4.0), rounded(rate * 4.0))
}

fn list<T: Into<Value>, const N: usize>(values: [T; N], keep: impl Fn(&T) -> bool) -> Values {
    Values::List(values.into_iter().filter(|value| keep(value)).map(Into::into).collect())
}

fn lists(values: &[&[i64]]) -> Values {
    Values::List(values.iter().map(|list| Value::from(list.to_vec())).collect())
}

fn range(name: &str, low: f64, high: f64) -> String {
    format!("{{ {name} = [{}, {}] }}", Value::Float(low), Value::Float(high))
}

/// To three digits: a reader compares them, and no digit of a sum depends on the machine.
fn rounded(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

/// Line of a byte position, counted from 1.
fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

fn toml_error(place: String, message: &str) -> Error {
    Error::Toml { place, message: message.to_owned() }
}

/// Reads a space with the places of its keys.
struct SpaceReader<'a> {
    text: &'a str,
    place: &'a str,
    found: Vec<(usize, Dimension)>,
}

impl SpaceReader<'_> {
    fn section(&mut self, prefix: &str, table: &DeTable<'_>) -> Result<()> {
        for (key, value) in table.iter() {
            let (name, at) = (key.get_ref(), key.span().start);
            let path =
                if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
            match value.get_ref() {
                DeValue::Table(inner) if keys::is_section(&path) || path == "column" => {
                    self.section(&path, inner)?;
                }
                _ => {
                    self.check_key(&path, at)?;
                    let values = self.values(&path, value)?;
                    let is_flag = |values: &[Value]| values.iter().all(Value::is_bool);
                    if path == BINS && !matches!(&values, Values::List(list) if is_flag(list)) {
                        let found = &self.text[value.span()];
                        let message = format!("`{BINS}`: expected [true, false], found `{found}`");
                        return Err(self.wrong(at, &message));
                    }
                    self.found.push((at, Dimension { key: path, values }));
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, at: usize, message: &str) -> Error {
        toml_error(format!("{}:{}", self.place, line_of(self.text, at)), message)
    }

    fn check_key(&self, path: &str, at: usize) -> Result<()> {
        if path == BINS {
            return Ok(());
        }
        if !keys::KEYS.iter().any(|key| key.path == path) {
            return Err(keys::unknown(format!("{}:{}", self.place, line_of(self.text, at)), path));
        }
        let is_of = |open: &str| path == open || path.starts_with(&format!("{open}."));
        if DECIDED.contains(&path) || !OPEN.into_iter().any(is_of) {
            let message = format!(
                "`{path}` is not tried: it decides no more than how, where or on what a trial \
                 runs, or `tune` chooses it by itself"
            );
            return Err(self.wrong(at, &message));
        }
        Ok(())
    }

    fn values(&self, path: &str, value: &Spanned<DeValue<'_>>) -> Result<Values> {
        let at = value.span().start;
        let line = &self.text[value.span()];
        let expected = || {
            let message = format!(
                "`{path}`: expected a list of values, {{ uniform = [LOW, HIGH] }} or \
                 {{ log_uniform = [LOW, HIGH] }}, found `{line}`"
            );
            self.wrong(at, &message)
        };
        let parsed =
            toml::from_str::<Table>(&format!("value = {line}\n")).map_err(|_| expected())?;
        match parsed.get("value") {
            Some(Value::Array(values)) if !values.is_empty() => Ok(Values::List(values.clone())),
            Some(Value::Table(table)) if table.len() == 1 => {
                let number = |value: &Value| {
                    value.as_float().or(value.as_integer().map(|whole| whole as f64))
                };
                let bounds = |name: &str| -> Option<(f64, f64)> {
                    match table.get(name)?.as_array()?.as_slice() {
                        [low, high] => Some((number(low)?, number(high)?)),
                        _ => None,
                    }
                };
                match (bounds("uniform"), bounds("log_uniform")) {
                    (Some((low, high)), _) if low < high => Ok(Values::Uniform(low, high)),
                    (_, Some((low, high))) if 0.0 < low && low < high => {
                        Ok(Values::LogUniform(low, high))
                    }
                    _ => Err(expected()),
                }
            }
            _ => Err(expected()),
        }
    }
}
