//! A picture of the trials: the score of each after so many epochs.

use super::journal::{Journal, Scored};
use super::plan::Plan;
use super::score::{name, value};
use super::search::Found;
use crate::metrics::EvalMetric;
use crate::report::svg;
use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const TOP: f64 = 48.0;
const LEFT: f64 = 80.0;
/// Of all scores, the worst are drawn on the border: the best are what one looks at.
const SHARE_OFF: f64 = 0.25;

/// The picture.
pub fn draw(journal: &Journal, plan: &Plan, found: &Found, metric: EvalMetric) -> String {
    let bottom = TOP + HEIGHT;
    let mut text = svg::begin(LEFT + WIDTH + 30.0, bottom + 50.0, 12);
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{} of {} trials on \
         fold 0</text><text x=\"{LEFT}\" y=\"38\" fill=\"#333\">dashed: the base; blue: trial {}, \
         the best</text>",
        name(metric),
        found.settings.len(),
        found.best.0
    );
    let across = |rung: usize| LEFT + WIDTH * (rung as f64 + 0.5) / plan.rungs.len() as f64;
    for (rung, epochs) in plan.rungs.iter().enumerate() {
        svg::upright(&mut text, across(rung), [TOP, bottom], bottom + 17.0, epochs);
    }
    let (low, high) = limits(journal, metric);
    // Upwards is better.
    let place = |value: f64| match metric {
        EvalMetric::Auc => (value - low) / (high - low),
        EvalMetric::LogLoss => (high - value) / (high - low),
    };
    let up = |value: f64| bottom - HEIGHT * place(value).clamp(0.0, 1.0);
    for part in 0..=4 {
        let value = low + (high - low) * f64::from(part) / 4.0;
        let y = up(value);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/><text \
             x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{value:.4}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            y + 4.0
        );
    }
    // The base and the best come last, over the others.
    let mut order: Vec<usize> = (1..found.settings.len()).collect();
    order.retain(|&trial| trial != found.best.0);
    order.push(0);
    order.extend((found.best.0 != 0).then_some(found.best.0));
    for trial in order {
        let points = plan.rungs.iter().enumerate().filter_map(|(rung, &epochs)| {
            let mut lines = journal.lines().iter();
            let line = lines.find(|line| {
                (line.trial, line.scored) == (trial, Scored::Fold(0)) && line.epochs == epochs
            })?;
            Some((across(rung), up(value(&line.metrics?, metric)?)))
        });
        let points: Vec<(f64, f64)> = points.collect();
        line(&mut text, &points, trial, found.best.0);
    }
    let _ = writeln!(
        text,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" \
         stroke=\"#999\"/><text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#333\">\
         epochs</text>",
        LEFT + WIDTH / 2.0,
        bottom + 36.0
    );
    text + svg::END
}

/// The lowest and the highest value that are shown.
fn limits(journal: &Journal, metric: EvalMetric) -> (f64, f64) {
    let of_fold = journal.lines().iter().filter(|line| line.scored == Scored::Fold(0));
    let mut values: Vec<f64> = of_fold.filter_map(|line| value(&line.metrics?, metric)).collect();
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values.get(((values.len().max(1) - 1) as f64 * part) as usize).copied();
    let (low, high) = match metric {
        EvalMetric::Auc => (at(SHARE_OFF), at(1.0)),
        EvalMetric::LogLoss => (at(0.0), at(1.0 - SHARE_OFF)),
    };
    let (low, high) = low.zip(high).unwrap_or((0.0, 1.0));
    let room = (0.05 * (high - low)).max(1e-4);
    (low - room, high + room)
}

fn line(text: &mut String, points: &[(f64, f64)], trial: usize, best: usize) {
    let (colour, width, dashes) = match trial {
        trial if trial == best => ("#0072b2", 2.5, ""),
        0 => ("#000", 2.0, " stroke-dasharray=\"5 4\""),
        _ => ("#999", 0.8, " stroke-opacity=\"0.6\""),
    };
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"\
         {dashes}><title>trial {trial}</title></polyline>",
        path.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>");
    }
}
