//! What is exported to ONNX predicts as the program does, in onnxruntime.

#![cfg(test)]

use crate::python_support::python;
use crate::run_support::{Place, Run};
use headlong_device::rng::CounterRng;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROWS: u64 = 10_000;

/// Inputs. Of points in time it is what has a table.
const NAMES: [&str; 6] = ["age", "price", "film", "genres", "country", "seen_at.hour"];

/// Films that were watched or not: numbers, ids and lists, each missing at times; as columns, too.
fn films() -> (String, Map<String, Value>) {
    let random = CounterRng::new(7, 4);
    let mut text = "watched,age,price,film,genres,country,seen_at\n".to_owned();
    let mut columns = NAMES.map(|_| Vec::new());
    for row in 0..ROWS {
        let draw = |column: u64, most: f32| (random.uniform(row * 16 + column) * most) as u64;
        let age = (draw(0, 9.0) > 0).then(|| draw(1, 95.0) as i64 - 4);
        let price = (draw(2, 5.0) > 0).then(|| draw(3, 9000.0) as f64 / 100.0);
        // Above what signed integers hold, too.
        let film = (draw(4, 20.0) > 0).then(|| draw(5, 300.0) * 61_489_146_912_365_173);
        let genres: Vec<u64> = (0..draw(6, 4.0)).map(|which| draw(7 + which, 12.0)).collect();
        let country = (draw(11, 6.0) > 0).then(|| draw(12, 40.0));
        let seconds = (draw(14, 8.0) > 0).then(|| draw(15, 9_000_000.0) + 1_700_000_000);
        let hour = seconds.map_or(0, |seconds| seconds / 3600 % 24 + 1);
        let taste = u64::from(film.is_some_and(|film| film % 3 == 0)) * 40;
        let watched = u8::from(draw(13, 100.0) < 20 + taste + 10 * (genres.len() as u64 % 2));
        let list: Vec<String> = genres.iter().map(u64::to_string).collect();
        let field = |value: Option<String>| value.unwrap_or_default();
        text += &format!(
            "{watched},{},{},{},{},{},{}\n",
            field(age.map(|age| age.to_string())),
            field(price.map(|price| price.to_string())),
            field(film.map(|film| film.to_string())),
            list.join("|"),
            field(country.map(|country| country.to_string())),
            field(seconds.map(|seconds| seconds.to_string()))
        );
        let of_row =
            [json!(age), json!(price), json!(film), json!(genres), json!(country), json!(hour)];
        columns.iter_mut().zip(of_row).for_each(|(column, value)| column.push(value));
    }
    let columns = NAMES.map(str::to_owned).into_iter().zip(columns.map(Value::Array)).collect();
    (text, columns)
}

/// Where columns come from, and what has been made of them.
struct Films {
    place: Place,
    data: PathBuf,
    columns: PathBuf,
    python: PathBuf,
}

impl Films {
    /// None where no Python has what it needs.
    fn new() -> Option<Self> {
        let python = python(&["numpy", "onnxruntime"])?;
        let place = Place::new("unused.txt");
        let (data, columns) = (place.path("films.csv"), place.path("columns.json"));
        let (text, values) = films();
        std::fs::write(&data, text).unwrap();
        std::fs::write(&columns, Value::Object(values).to_string()).unwrap();
        Some(Self { place, data, columns, python })
    }

    /// Trains by `config`, and compares what is exported.
    fn check(&self, name: &str, config: &str, arguments: &[&str]) {
        let (file, folder) = (self.place.path("films.toml"), self.place.path(name));
        std::fs::write(&file, config).unwrap();
        let train = Run::new("train").path("--config", &file).path("--data", &self.data);
        let train = train.path("--output-dir", &self.place.path("output"));
        let widths = ["--set", "model.dim=8", "--set", "model.bottom=[16,8]"];
        let train = train.with(&widths).with(&["--set", "model.top=[16,1]"]).with(arguments);
        let train = train.with(&["--steps", "40", "--batch-size", "500"]);
        train.path("--checkpoint-dir", &folder).succeeds();
        let models = [folder.join("seed-2"), folder.clone()];
        models.iter().filter(|folder| folder.exists()).for_each(|folder| self.compare(folder));
    }

    fn compare(&self, folder: &Path) {
        let difference = compare(&self.python, &self.place, folder, &self.data, &self.columns);
        assert!(difference < 1e-6, "{}: {difference}", folder.display());
    }
}

/// Exports and predicts; the largest difference of two probabilities.
fn compare(python: &Path, place: &Place, folder: &Path, data: &Path, columns: &Path) -> f64 {
    let (model, predictions) = (place.path("model.onnx"), place.path("predictions.csv"));
    Run::new("checkpoint").path("export", folder).path("--output", &model).succeeds();
    let predict = Run::new("predict").path("--checkpoint", folder).path("--data", data);
    predict.path("--output", &predictions).succeeds();
    difference(python, &model, columns, &predictions)
}

fn difference(python: &Path, model: &Path, columns: &Path, predictions: &Path) -> f64 {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/check_onnx.py");
    let ended = Command::new(python).arg(script).args([model, columns, predictions]).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8(ended.stdout).unwrap();
    let numbers: Vec<f64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(numbers[0] >= 300.0, "{said}");
    numbers[1]
}

const COLUMNS: &str = "[data.columns]\n\
                       label = \"watched\"\n\
                       categorical = [\"film\", \"genres\", \"country\"]\n\
                       lists = [\"genres\"]\n";

fn with_numbers(more: &str) -> String {
    format!("{COLUMNS}dense = [\"age\", \"price\"]\n{more}")
}

fn without_times(more: &str) -> String {
    with_numbers(&format!("ignored = [\"seen_at\"]\n{more}"))
}

const STANDARD_AND_BINS: &str = "[tables]\n\
                                 rows = [500, 9, 40, 25, 200, 6]\n\
                                 max_ids_per_sample = 4\n\
                                 pooling = \"mean\"\n\
                                 [[column]]\n\
                                 name = \"age\"\n\
                                 transform = \"none\"\n\
                                 bins = \"ln2\"\n\
                                 [[column]]\n\
                                 name = \"price\"\n\
                                 mean = 3.0\n\
                                 scale = 0.7\n\
                                 bins = \"edges\"\n\
                                 edges = [0.5, 10.0, 42.0, 89.99]\n\
                                 [[column]]\n\
                                 name = \"seen_at\"\n\
                                 parts = [\"hour\"]\n";

#[test]
fn hashed_ids_bins_times_and_means_of_lists() {
    let Some(films) = Films::new() else { return };
    films.check("dot", &with_numbers(STANDARD_AND_BINS), &["--learning-rate", "0.1"]);
}

#[test]
fn a_cross_network_on_a_dictionary_and_rows_of_bf16() {
    let Some(films) = Films::new() else { return };
    let tables = "[tables]\nrows = \"dictionary\"\ndtype = \"bf16\"\nmax_ids_per_sample = 4\n\
                  [model]\ninteraction = \"cross\"\ncross_layers = 2\ncross_rank = 8\n";
    let ids = ["--set", "data.ids=dictionary", "--set", "data.min_count=30"];
    films.check("cross", &without_times(tables), &ids);
}

#[test]
fn ids_modulo_rows_and_vectors_side_by_side() {
    let Some(films) = Films::new() else { return };
    let tables = "[tables]\nrows = [301, 7, 40]\nmax_ids_per_sample = 4\n\
                  [model]\ninteraction = \"cat\"\n";
    let how = ["--set", "data.ids=modulo", "--set", "data.dense_transform=ln(x+3)"];
    films.check("cat", &without_times(tables), &how);
}

/// Ids with and without rows; one model and several, each of which has initial values of its own.
#[test]
fn tables_of_raw_ids() {
    let Some(films) = Films::new() else { return };
    let tables = "[tables]\nrows = [400, 5, 40]\nmax_ids_per_sample = 4\npooling = \"mean\"\n\
                  [[table]]\nname = \"C1\"\nkind = \"hashed\"\nrows = 400\n\
                  options = { min_count = 20 }\n\
                  [[table]]\nname = \"C2\"\nkind = \"hashed\"\nrows = 5\n\
                  [[table]]\nname = \"C3\"\nkind = \"hashed\"\nrows = 40\n\
                  options = { min_count = 9999 }\n";
    for seeds in ["1", "2"] {
        let how = ["--learning-rate", "0.1", "--seeds", seeds];
        films.check(&format!("raw-{seeds}"), &without_times(tables), &how);
    }
}

/// Without a bottom network; each model, and their mean.
#[test]
fn an_ensemble_is_one_file() {
    let Some(films) = Films::new() else { return };
    let tables = "[tables]\nrows = [500, 9, 40]\nmax_ids_per_sample = 4\n";
    films.check("ensemble", &format!("{COLUMNS}ignored = [\"*\"]\n{tables}"), &["--seeds", "3"]);
}

/// The validation rows as columns, whose names are the format's.
fn columns_of_criteo(place: &Place) -> PathBuf {
    let mut columns = Map::new();
    for line in std::fs::read_to_string(&place.valid).unwrap().lines() {
        for (index, field) in line.split('\t').enumerate().skip(1) {
            let (name, value) = match index {
                1..14 => (format!("I{index}"), field.parse::<i64>().ok()),
                _ => (format!("C{}", index - 13), i64::from_str_radix(field, 16).ok()),
            };
            let column = columns.entry(name).or_insert_with(|| json!([]));
            column.as_array_mut().unwrap().push(json!(value));
        }
    }
    let file = place.path("columns.json");
    std::fs::write(&file, Value::Object(columns).to_string()).unwrap();
    file
}

/// Weights in a file of their own are the same, which replaces no other file.
#[test]
fn criteos_text() {
    let Some(python) = python(&["numpy", "onnxruntime"]) else { return };
    let place = Place::new("rows.txt");
    let folder = place.path("checkpoints");
    let ids = ["--set", "data.ids=dictionary", "--set", "tables.rows=dictionary"];
    let train = place.train().path("--checkpoint-dir", &folder).with(&ids);
    train.with(&["--set", "data.min_count=2"]).succeeds();
    let file = columns_of_criteo(&place);
    let inside = compare(&python, &place, &folder, &place.valid, &file);
    assert!(inside < 1e-6, "{inside}");
    let models = [headlong::state::checkpoint::open(&folder).unwrap()];
    let large = place.path("large.onnx");
    headlong::commands::export::onnx::export_with(&models, &large, 1000).unwrap();
    assert!(place.path("large.onnx.data").metadata().unwrap().len() > 1000);
    let outside = difference(&python, &large, &file, &place.path("predictions.csv"));
    assert_eq!(outside, inside);
    headlong::commands::export::onnx::export_with(&models, &large, 1000).unwrap();
    let (mine, data) = (place.path("mine.onnx"), place.path("mine.onnx.data"));
    std::fs::write(&data, "mine").unwrap();
    let refused = headlong::commands::export::onnx::export_with(&models, &mine, 1000).unwrap_err();
    assert!(refused.to_string().contains("mine.onnx.data is there"), "{refused}");
    assert_eq!(std::fs::read_to_string(&data).unwrap(), "mine");
    assert!(!mine.exists());
    // And the comparison can tell.
    let other = place.path("other");
    place.train().path("--checkpoint-dir", &other).with(&ids).with(&["--seed", "2"]).succeeds();
    Run::new("checkpoint").path("export", &other).path("--output", &large).succeeds();
    assert!(difference(&python, &large, &file, &place.path("predictions.csv")) > 1e-3);
}

#[test]
fn admitted_ids() {
    let Some(python) = python(&["numpy", "onnxruntime"]) else { return };
    let place = Place::new("rows.txt");
    let folder = place.path("checkpoints");
    let ids = ["--set", "data.ids=admitted", "--set", "data.min_count=3"];
    place.train().path("--checkpoint-dir", &folder).with(&ids).succeeds();
    let file = columns_of_criteo(&place);
    let difference = compare(&python, &place, &folder, &place.valid, &file);
    assert!(difference < 1e-6, "{difference}");
}

#[test]
fn what_a_graph_cannot_say_is_refused_by_name() {
    let place = Place::new("rows.txt");
    let export = |name: &str, how: &[&str]| {
        let folder = place.path(name);
        place.train().path("--checkpoint-dir", &folder).with(how).succeeds();
        Run::new("checkpoint").path("export", &folder).with(&["--format", "onnx"])
    };
    let rows = "1,1700000000,3\n0,1700003600,4\n".repeat(40);
    let text = format!("label,seen_at,seen_at.hour\n{rows}");
    let (data, folder) = (place.path("twice.csv"), place.path("twice"));
    std::fs::write(&data, text).unwrap();
    let config = "[data.columns]\nlabel = \"label\"\ncategorical = [\"seen_at.hour\"]\n\
                  [[column]]\nname = \"seen_at\"\nparts = [\"hour\"]\n[tables]\nrows = [9, 30]\n";
    std::fs::write(place.path("twice.toml"), config).unwrap();
    let train = Run::new("train").path("--config", &place.path("twice.toml"));
    let train = train.path("--data", &data).path("--output-dir", &place.path("output"));
    train.path("--checkpoint-dir", &folder).with(&["--steps", "2"]).succeeds();
    let twice = Run::new("checkpoint").path("export", &folder).with(&["--format", "onnx"]);
    twice.fails(2, &["column `seen_at.hour`", "ONNX", "another input"]);
    let minimum = export("minimum", &["--set", "data.dense_transform=file-minimum"]);
    minimum.fails(2, &["file-minimum", "ONNX", "whole file"]);
    for name in ["model.pt", "model"] {
        let unknown = Run::new("checkpoint").path("export", &folder);
        unknown.path("--output", &place.path(name)).fails(2, &[name, ".onnx", "--format"]);
    }
}
