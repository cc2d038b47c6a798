//! The curves of training, over steps.

use super::chart::{Axis, Chart, Curve, Numbers};
use super::html::paragraph;
use crate::metrics::EvalMetrics;
use crate::report::count;
use crate::report::history::read::{Kept, Model, StepAt};

/// A moving mean is over so many parts of the curve.
const PARTS_OF_MEAN: usize = 25;

/// Colours of curves; models beyond share the last one.
const COLOURS: [&str; 6] = ["c1", "c2", "c3", "c4", "c5", "c6"];

/// The charts of a run.
pub fn charts(kept: &Kept) -> String {
    let models = &kept.models[..];
    let rate = of_steps(models, |at| at.samples_per_s);
    let rate_note = "Between two lines of the log, with waiting and evaluations.";
    let charts = [
        loss(models),
        Chart {
            note: best(models),
            ..chart("AUC", "of the validation data", of_evaluations(models, |of| of.auc))
        },
        Chart {
            y: Axis { label: "samples a second", numbers: Numbers::Count, from_zero: true },
            note: rate_note.to_owned(),
            ..chart("Throughput", "", rate)
        },
        Chart {
            y: Axis { label: "of the last step", numbers: Numbers::Plain, from_zero: true },
            ..chart("Learning rate", "", of_steps(models, |at| at.learning_rate))
        },
    ];
    let drawn: String = charts.iter().map(Chart::draw).collect();
    match drawn.is_empty() {
        true => paragraph("missing", "The run has ended before its first line of progress."),
        false => format!("<div class=\"grid\">\n{drawn}</div>\n"),
    }
}

/// Training and validation of one model; of several the training of each.
fn loss(models: &[Model]) -> Chart {
    let mut curves = Vec::new();
    let mut window = 1;
    for (index, model) in models.iter().enumerate() {
        let points = points(&model.steps, |at| at.loss);
        let mean_over = points.len() / PARTS_OF_MEAN;
        let is_single = models.len() == 1;
        let name = |what: &str| if is_single { what.to_owned() } else { seed(model) };
        if mean_over > 1 {
            window = window.max(mean_over);
            let mean = moving_mean(&points, mean_over);
            if is_single {
                curves.push(curve(name("training"), "c1 faint", points));
            }
            curves.push(curve(name("moving mean"), colour(index), mean));
        } else {
            curves.push(curve(name("training"), colour(index), points));
        }
    }
    let is_log_loss = models.iter().all(|model| model.start.config["model"]["loss"] != "mse");
    if let ([model], true) = (models, is_log_loss) {
        let validation = evaluated(model, |metrics| metrics.logloss);
        let (name, class) = ("validation".to_owned(), "c2".to_owned());
        curves.push(Curve { name, class, ..validation });
    }
    let note = match window {
        1 => String::new(),
        _ => format!("The moving mean is over {window} lines of the log."),
    };
    let label = if is_log_loss { "log loss" } else { "mean squared error" };
    Chart { note, ..chart("Loss", label, curves) }
}

/// Which evaluation of a single model was the best one.
fn best(models: &[Model]) -> String {
    let found = if let [model] = models { model.best() } else { None };
    let told = |(step, metrics): (u64, EvalMetrics)| {
        let auc = metrics.auc.map_or("undefined".to_owned(), |auc| format!("{auc:.5}"));
        format!("Best evaluation: step {}, AUC {auc}.", count(step))
    };
    found.map_or(String::new(), told)
}

fn of_evaluations(models: &[Model], get: fn(&EvalMetrics) -> Option<f64>) -> Vec<Curve> {
    let of = |(index, model): (usize, &Model)| {
        let name = name_among(models, model);
        Curve { name, class: colour(index).to_owned(), ..evaluated(model, get) }
    };
    models.iter().enumerate().map(of).collect()
}

fn evaluated(model: &Model, get: fn(&EvalMetrics) -> Option<f64>) -> Curve {
    let found = model.evals.iter().filter_map(|at| Some((at.step, get(&at.eval.metrics)?)));
    let found: Vec<(u64, f64)> = found.collect();
    let told = |&(step, value): &(u64, f64)| format!("step {}: {value:.5}", count(step));
    Curve {
        told: found.iter().map(told).collect(),
        points: found.iter().map(|&(step, value)| (step as f64, value)).collect(),
        ..Curve::default()
    }
}

fn of_steps(models: &[Model], get: fn(&StepAt) -> Option<f64>) -> Vec<Curve> {
    let of = |(index, model): (usize, &Model)| {
        let name = name_among(models, model);
        curve(name, colour(index), points(&model.steps, get))
    };
    models.iter().enumerate().map(of).collect()
}

/// A chart over steps.
fn chart(title: &'static str, label: &'static str, curves: Vec<Curve>) -> Chart {
    let x = Axis { label: "step", numbers: Numbers::Count, from_zero: false };
    let y = Axis { label, numbers: Numbers::Plain, from_zero: false };
    Chart { title, note: String::new(), x, y, curves, has_diagonal: false }
}

fn curve(name: String, class: &str, points: Vec<(f64, f64)>) -> Curve {
    Curve { name, class: class.to_owned(), points, told: Vec::new() }
}

fn colour(model: usize) -> &'static str {
    COLOURS[model.min(COLOURS.len() - 1)]
}

/// What tells a model from the others; nothing where it is the only one.
fn name_among(models: &[Model], model: &Model) -> String {
    if models.len() == 1 { String::new() } else { seed(model) }
}

fn seed(model: &Model) -> String {
    format!("seed {}", model.start.seed)
}

fn points(steps: &[StepAt], get: impl Fn(&StepAt) -> Option<f64>) -> Vec<(f64, f64)> {
    steps.iter().filter_map(|at| Some((at.step as f64, get(at)?))).collect()
}

/// Of each point the mean of it and those before it, `over` in all.
fn moving_mean(points: &[(f64, f64)], over: usize) -> Vec<(f64, f64)> {
    let mean = |at: usize| {
        let window = &points[(at + 1).saturating_sub(over)..=at];
        let sum: f64 = window.iter().map(|point| point.1).sum();
        (points[at].0, sum / window.len() as f64)
    };
    (over.min(points.len()).saturating_sub(1)..points.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_mean_is_of_what_came_before() {
        let points: Vec<(f64, f64)> = (1..=5).map(|at| (f64::from(at), f64::from(at))).collect();
        assert_eq!(moving_mean(&points, 3), [(3.0, 2.0), (4.0, 3.0), (5.0, 4.0)]);
        assert_eq!(moving_mean(&points[..2], 3), [(2.0, 1.5)]);
        assert_eq!(moving_mean(&[], 3), []);
    }
}
