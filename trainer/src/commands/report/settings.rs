//! What the run was: its evaluations one by one, its files, and its whole configuration.

use super::html::{details, preformatted, section, table};
use crate::report::history::read::{Kept, Model};
use crate::report::{DataSummary, count};
use headlong_reader::io::DataFile;
use serde_json::Value;

/// The sections.
pub fn sections(kept: &Kept) -> String {
    let Some(model) = kept.models.last() else { return String::new() };
    let mut body = words(&facts(kept, model));
    for model in &kept.models {
        if !model.evals.is_empty() {
            let whose = match kept.models.len() {
                1 => String::new(),
                _ => format!(" of seed {}", model.start.seed),
            };
            body += &details(&format!("Evaluations{whose}"), &evaluations(model));
        }
    }
    let choices = choices(&model.start.plan);
    if !choices.is_empty() {
        body += &details("What the plan has chosen, and why", &words(&choices));
    }
    body += &details("Configuration", &preformatted(&toml_of(&model.start.config)));
    section("Run and configuration", &body)
}

/// A table of text, all of it to the left.
fn words(rows: &[Vec<String>]) -> String {
    let width = rows.first().map_or(0, Vec::len);
    format!("<div class=\"panel words\">{}</div>\n", table(&vec![""; width], rows))
}

fn facts(kept: &Kept, model: &Model) -> Vec<Vec<String>> {
    let start = &model.start;
    let mut rows = Vec::new();
    let mut row = |what: &str, said: String| rows.push(vec![what.to_owned(), said]);
    row("command", start.command.clone());
    row("program", format!("headlong {}", start.version));
    let DataSummary { train, train_rows, valid, valid_rows, synthetic, .. } = &start.data;
    let made = if *synthetic { ", made by the program" } else { "" };
    row("training data", files(train, *train_rows) + made);
    row("validation data", files(valid, *valid_rows));
    let seeds: Vec<String> = kept.models.iter().map(|model| model.start.seed.to_string()).collect();
    row(if seeds.len() == 1 { "seed" } else { "seeds" }, seeds.join(", "));
    for model in &kept.models {
        if let Some(done) = &model.done {
            row("weights", done.done.weights_digest.clone());
        }
    }
    rows
}

fn files(files: &[DataFile], rows: Option<u64>) -> String {
    let names: Vec<String> = files.iter().map(ToString::to_string).collect();
    let names = match &names[..] {
        [] => return "none".to_owned(),
        [first, rest @ ..] if rest.len() > 7 => format!("{first} and {} more", rest.len()),
        names => names.join(", "),
    };
    let rows = rows.map_or(String::new(), |rows| format!(" ({} rows)", count(rows)));
    format!("{names}{rows}")
}

fn evaluations(model: &Model) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let rows: Vec<Vec<String>> = model
        .evals
        .iter()
        .map(|at| {
            let metrics = &at.eval.metrics;
            vec![
                count(at.step),
                number(metrics.auc, 5),
                number(metrics.logloss, 5),
                number(metrics.ne, 5),
                number(metrics.calibration, 3),
                format!("{:.2} %", 100.0 * metrics.accuracy),
                count(metrics.eval_samples),
            ]
        })
        .collect();
    let head = ["step", "AUC", "log loss", "NE", "calibration", "accuracy", "samples"];
    table(&head, &rows)
}

fn choices(plan: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = plan["choices"].as_array().into_iter().flatten();
    all.map(|of| vec![text(&of["what"]), text(&of["chosen"]), text(&of["because"])]).collect()
}

/// A configuration as it stands in a file; keys that are not set are left out.
fn toml_of(config: &Value) -> String {
    let mut config = config.clone();
    drop_nulls(&mut config);
    toml::to_string(&config).unwrap_or_else(|_| format!("{config:#}"))
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_configuration_is_one_that_can_be_read_back() {
        let mut config = Config::from_toml("[train]\nbatch_size = 77\n", "a.toml").unwrap();
        let text = toml_of(&serde_json::to_value(&config).unwrap());
        let mut read = Config::from_toml(&text, "b.toml").unwrap();
        config.optimizer.resolve().unwrap();
        read.optimizer.resolve().unwrap();
        assert_eq!(read, config, "{text}");
    }

    #[test]
    fn many_files_are_counted() {
        let named: Vec<DataFile> =
            (0..24).map(|day| DataFile::from(format!("day_{day}"))).collect();
        assert_eq!(files(&named, Some(1000)), "day_0 and 23 more (1,000 rows)");
        assert_eq!(files(&named[..2], None), "day_0, day_1");
        assert_eq!(files(&[], None), "none");
    }
}
