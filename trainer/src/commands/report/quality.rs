//! How good the model is, by the rows of the validation data: calibration, lift, and what each
//! column is worth.

use super::chart::{Axis, Chart, Curve, Numbers};
use super::html::{Bar, bars, details, paragraph, section, table};
use super::rows::{Found, Importance};
use crate::commands::slices::Tenth;
use crate::report::{count, some};

/// So many columns are shown as bars; all are in the table.
const MOST_BARS: usize = 20;

/// The sections, or why there are none.
pub fn sections(rows: &Result<Found, String>) -> String {
    let found = match rows {
        Ok(found) => found,
        Err(why) => {
            let missing = paragraph("missing", why);
            return section("Calibration and lift", &missing)
                + &section("Column importance", &missing);
        }
    };
    section("Calibration and lift", &calibration_and_lift(found))
        + &section("Column importance", &importance(found))
}

/// Which rows and which weights were looked at, and what `eval` would print of them.
fn whose(found: &Found) -> String {
    let metrics = &found.metrics;
    let rows = count(metrics.eval_samples);
    let rows = match found.is_all {
        true => format!("all {rows} rows of the validation data"),
        false => format!("the first {rows} rows of the validation data"),
    };
    let whose = match found.models {
        1 => format!("the checkpoint of step {}", count(found.step)),
        models => format!("the mean of {}", some(models, "model")),
    };
    let number = |value: Option<f64>| value.map_or("undefined".to_owned(), |of| format!("{of:.5}"));
    format!(
        "By {whose}, on {rows}: AUC {}, log loss {}, normalised entropy {}.",
        number(metrics.auc),
        number(metrics.logloss),
        number(metrics.ne)
    )
}

fn calibration_and_lift(found: &Found) -> String {
    let metrics = &found.metrics;
    if found.tenths.is_empty() {
        return paragraph("missing", "No row has a prediction that is a number.");
    }
    let calibration = metrics.calibration.map_or("undefined".to_owned(), |of| format!("{of:.3}"));
    let error = metrics.calibration_error;
    let error = error.map_or("undefined".to_owned(), |of| format!("{of:.5}"));
    let predicted = metrics.mean_prediction.unwrap_or(f64::NAN);
    let note = format!(
        "A point is a tenth of the rows, by prediction. Calibration {calibration}: {:.2} % \
         predicted over {:.2} % clicked. Expected calibration error {error}.",
        100.0 * predicted,
        100.0 * metrics.base_rate
    );
    let rate = |label| Axis { label, numbers: Numbers::Percent, from_zero: false };
    let told = |(index, tenth): (usize, &Tenth)| {
        format!(
            "tenth {}: {:.2} % predicted, {:.2} % clicked, {} rows",
            index + 1,
            100.0 * tenth.mean_prediction,
            100.0 * tenth.rate,
            count(tenth.samples)
        )
    };
    let calibration = Chart {
        title: "Calibration",
        note,
        x: rate("mean prediction"),
        y: rate("click rate"),
        curves: vec![Curve {
            name: "tenths of the rows".to_owned(),
            class: "c1".to_owned(),
            points: found.tenths.iter().map(|of| (of.mean_prediction, of.rate)).collect(),
            told: found.tenths.iter().enumerate().map(told).collect(),
        }],
        has_diagonal: true,
    };
    let lift = format!("<div class=\"panel\"><h3>Lift</h3>\n{}</div>\n", lift(found));
    let remark = found.remark.as_deref().map(|remark| paragraph("missing", remark));
    let rows = remark.unwrap_or_default() + &paragraph("lead", &whose(found));
    format!(
        "{rows}<div class=\"grid\">\n{}{}{lift}</div>\n",
        calibration.draw(),
        gains(found).draw()
    )
}

/// Which share of all clicks the rows with the highest predictions have.
fn gains(found: &Found) -> Chart {
    let weight: f64 = found.tenths.iter().map(|tenth| tenth.weight).sum();
    let clicks: f64 = found.tenths.iter().map(|tenth| tenth.weight * tenth.rate).sum();
    let (mut points, mut told) = (vec![(0.0, 0.0)], vec!["no rows".to_owned()]);
    let (mut rows, mut caught) = (0.0, 0.0);
    for tenth in found.tenths.iter().rev() {
        rows += tenth.weight;
        caught += tenth.weight * tenth.rate;
        let point = (rows / weight.max(f64::MIN_POSITIVE), caught / clicks.max(f64::MIN_POSITIVE));
        told.push(format!(
            "the highest {:.1} % of the rows have {:.1} % of the clicks",
            100.0 * point.0,
            100.0 * point.1
        ));
        points.push(point);
    }
    let share = |label| Axis { label, numbers: Numbers::Percent, from_zero: true };
    Chart {
        title: "Cumulative gains",
        note: "Rows in the order of their predictions, the highest first; dashed: by chance."
            .to_owned(),
        x: share("share of rows"),
        y: share("share of clicks"),
        curves: vec![Curve { name: String::new(), class: "c1".to_owned(), points, told }],
        has_diagonal: true,
    }
}

/// Click rate of each tenth over that of all.
fn lift(found: &Found) -> String {
    let base = found.metrics.base_rate;
    let of = |tenth: &Tenth| if base > 0.0 { tenth.rate / base } else { 0.0 };
    let most = found.tenths.iter().map(of).fold(0.0, f64::max);
    let all = found.tenths.len();
    let bar = |(index, tenth): (usize, &Tenth)| Bar {
        name: match index {
            0 => "highest tenth".to_owned(),
            index if index + 1 == all => "lowest tenth".to_owned(),
            index => format!("tenth {}", index + 1),
        },
        kind: String::new(),
        share: of(tenth) / most.max(f64::MIN_POSITIVE),
        value: format!("{:.2} ×", of(tenth)),
        told: format!(
            "{} rows: {:.2} % clicked, {:.2} % of all rows",
            count(tenth.samples),
            100.0 * tenth.rate,
            100.0 * base
        ),
        colour: None,
    };
    let listed: Vec<Bar> = found.tenths.iter().rev().enumerate().map(bar).collect();
    let what = format!("click rate of a tenth over that of all, {:.2} %", 100.0 * base);
    paragraph("legend", &what) + &bars(&listed)
}

fn importance(found: &Found) -> String {
    let number =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:+.5}"));
    let share = |column: &Importance| column.auc_loss.unwrap_or(0.0);
    let most = found.importance.iter().map(share).fold(0.0, f64::max);
    let bar = |column: &Importance| Bar {
        name: column.column.name.clone(),
        kind: column.column.kind.to_owned(),
        share: share(column) / most.max(f64::MIN_POSITIVE),
        value: number(column.auc_loss),
        told: format!(
            "{} shuffled: AUC {} lower, log loss {} higher",
            column.column.name,
            number(column.auc_loss),
            number(column.logloss_rise)
        ),
        colour: None,
    };
    let listed: Vec<Bar> = found.importance.iter().take(MOST_BARS).map(bar).collect();
    let rows: Vec<Vec<String>> = found
        .importance
        .iter()
        .map(|column| {
            let Importance { column, auc_loss, logloss_rise } = column;
            vec![
                column.name.clone(),
                column.kind.to_owned(),
                number(*auc_loss),
                number(*logloss_rise),
            ]
        })
        .collect();
    let note = "By how much the AUC falls when the values of one column are shuffled among these \
                rows and all else stays. Of columns that say the same, each seems worth little.";
    let every = format!("All {}, with log loss", some(found.importance.len(), "column"));
    format!("<div class=\"panel\">\n{}", paragraph("legend", note))
        + &bars(&listed)
        + "</div>\n"
        + &details(&every, &table(&["column", "kind", "AUC lost", "log loss gained"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{EvalMetrics, Scores};

    fn found() -> Found {
        let mut scores = Scores::default();
        let logits: Vec<f32> = (0..100).map(|row| row as f32 / 10.0 - 5.0).collect();
        // Of the highest tenth all, of the next a half.
        let labels: Vec<f32> =
            (0..100).map(|row| f32::from(row >= 90 || row >= 80 && row % 2 == 0)).collect();
        scores.extend(&logits, &labels);
        let metrics = EvalMetrics::of(&scores.tally());
        let tenths = crate::commands::slices::tenths(&mut scores);
        Found {
            metrics,
            tenths,
            importance: Vec::new(),
            is_all: false,
            step: 7,
            models: 1,
            remark: None,
        }
    }

    #[test]
    fn gains_and_lift_are_of_the_highest_predictions_first() {
        let found = found();
        let points = &gains(&found).curves[0].points;
        let expected = [(0.0, 0.0), (0.1, 10.0 / 15.0), (0.2, 1.0), (0.3, 1.0)];
        for (point, expected) in points.iter().zip(expected) {
            assert!((point.0 - expected.0).abs() < 1e-12 && (point.1 - expected.1).abs() < 1e-12);
        }
        assert_eq!(points.len(), 11);
        let lift = lift(&found);
        let values: Vec<&str> = lift
            .split("class=\"value\">")
            .skip(1)
            .filter_map(|rest| rest.split('<').next())
            .collect();
        assert_eq!(values[..3], ["6.67 ×", "3.33 ×", "0.00 ×"]);
        assert!(lift.contains("10 rows: 50.00 % clicked, 15.00 % of all rows"), "{lift}");
    }

    #[test]
    fn which_rows_were_looked_at_is_said() {
        let text = whose(&found());
        assert!(text.contains("step 7, on the first 100 rows of the validation data"), "{text}");
    }
}
