//! The page of a report: what was reached, the curves of training, and the sections of its other
//! files. Everything is in it; it loads nothing, and has no script.

use super::html::{escape, paragraph, section, span};
use super::rows::Found;
use super::{costs, curves, quality, settings};
use crate::metrics::EvalMetrics;
use crate::report::history::read::{Kept, Model};
use crate::report::{count, some};
use chrono::{DateTime, Datelike as _, Timelike as _};
use std::fmt::Write as _;

/// What a report is made of.
pub struct Report<'a> {
    /// What the run is called: its folder.
    pub name: &'a str,
    pub kept: &'a Kept,
    /// What the rows say, or why they say nothing.
    pub rows: Result<Found, String>,
}

impl Report<'_> {
    /// The page.
    pub fn to_html(&self) -> String {
        let name = escape(self.name);
        let sections = [
            section("Learning curves", &curves::charts(self.kept)),
            quality::sections(&self.rows),
            costs::sections(self.kept),
            settings::sections(self.kept),
        ];
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
             name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta \
             http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
             'unsafe-inline'\">\n<title>{name} · Headlong</title>\n<style>\n{}</style>\n</head>\n\
             <body>\n<main>\n{}{}{}<footer>Made by headlong {}. Point at a curve or a bar for \
             its values.</footer>\n</main>\n</body>\n</html>\n",
            include_str!("style.css"),
            self.head(),
            self.tiles(),
            sections.concat(),
            env!("CARGO_PKG_VERSION"),
        )
    }

    fn head(&self) -> String {
        let mut text = format!("<header>\n<h1>{}</h1>\n", escape(self.name));
        let kept = self.kept;
        let mut said = vec![outcome(kept)];
        let begun = kept.models.iter().filter_map(|model| model.processes.first()).next();
        said.extend(begun.and_then(|process| date(process.started_unix_s)));
        let resumed: Vec<String> = kept.models.iter().filter_map(resumed).collect();
        said.extend(resumed);
        if kept.is_cut {
            said.push("the last line of the history is cut off".to_owned());
        }
        text += &paragraph("lead", &said.join(" · "));
        text.push_str("</header>\n");
        let warnings: Vec<&String> = kept.models.iter().flat_map(|model| &model.warnings).collect();
        if !warnings.is_empty() {
            text.push_str("<ul class=\"warnings\">\n");
            for warning in warnings.iter().take(8) {
                let _ = writeln!(text, "<li>{}</li>", escape(warning));
            }
            if let Some(more) = warnings.len().checked_sub(8).filter(|&more| more > 0) {
                let _ = writeln!(text, "<li>and {more} more in the history</li>");
            }
            text.push_str("</ul>\n");
        }
        text
    }

    fn tiles(&self) -> String {
        let mut text = "<div class=\"tiles\">\n".to_owned();
        let mut tile = |what: &str, value: String, small: &str| {
            let _ = writeln!(
                text,
                "<div class=\"tile\"><span>{what}</span><b>{}</b><small>{}</small></div>",
                escape(&value),
                escape(small)
            );
        };
        let metrics = headline(self.kept);
        let of = |get: fn(&EvalMetrics) -> Option<f64>| match &metrics {
            Some((metrics, _)) => {
                get(metrics).map_or("–".to_owned(), |value| format!("{value:.5}"))
            }
            None => "–".to_owned(),
        };
        let whose = metrics.as_ref().map_or("never evaluated", |(_, whose)| whose);
        tile("AUC", of(|metrics| metrics.auc), whose);
        tile("Log loss", of(|metrics| metrics.logloss), "nats");
        tile("Normalised entropy", of(|metrics| metrics.ne), "below 1: better than the base rate");
        let models = &self.kept.models;
        let reached = models.iter().map(Model::reached);
        let (steps, samples) =
            reached.fold((0, 0), |(steps, samples), of| (steps + of.0, samples + of.1));
        tile("Samples trained", short(samples), &format!("{} steps", count(steps)));
        let wall: f64 = models.iter().map(wall_s).sum();
        tile("Wall time", span(wall), if models.len() > 1 { "all models" } else { "" });
        let rates: Vec<f64> = models.iter().filter_map(rate).collect();
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let rate = if rates.is_empty() { "–".to_owned() } else { short(mean as u64) };
        tile("Samples a second", rate, "evaluations included");
        text + "</div>\n"
    }
}

/// The metrics that a reader looks for first, and whose they are.
pub fn headline(kept: &Kept) -> Option<(EvalMetrics, String)> {
    if let Some(eval) = &kept.ensemble {
        return Some((eval.metrics, format!("mean of {}", some(kept.models.len(), "model"))));
    }
    // Of several models, those that have ended are what is applied.
    let ended = kept.models.iter().rev().find(|model| model.done.is_some());
    let model = ended.or(kept.models.last())?;
    let (step, metrics) = model.of_kept_weights()?;
    let step = count(step);
    let whose = match asked_for(kept) {
        1 => format!("of the weights of step {step}"),
        _ => format!("seed {}, step {step}", model.start.seed),
    };
    Some((metrics, whose))
}

/// How a run has ended.
fn outcome(kept: &Kept) -> String {
    let mut said: Vec<String> = kept
        .models
        .iter()
        .map(|model| match &model.done {
            Some(done) => done.done.reason.clone(),
            None => "not ended: it continues, was killed or has failed".to_owned(),
        })
        .collect();
    said.dedup();
    let (begun, all) = (kept.models.len(), asked_for(kept));
    let models = match begun {
        _ if all == 1 => String::new(),
        _ if begun == all => format!("{all} models: "),
        _ => format!("{begun} of {all} models: "),
    };
    models + &said.join(", ")
}

/// How many models the run is to train.
fn asked_for(kept: &Kept) -> usize {
    let seeds = kept.models.last().and_then(|model| model.start.config["train"]["seeds"].as_u64());
    kept.models.len().max(seeds.unwrap_or(1) as usize)
}

fn resumed(model: &Model) -> Option<String> {
    let steps: Vec<String> = model
        .processes
        .iter()
        .filter(|process| process.from_step > 0)
        .map(|process| count(process.from_step))
        .collect();
    (!steps.is_empty()).then(|| format!("resumed at step {}", steps.join(", ")))
}

/// Seconds of the process that trained last.
fn wall_s(model: &Model) -> f64 {
    let whole = model.times.as_ref().map(|times| times.preparation_s + times.training_s);
    whole.unwrap_or(model.last_time_s)
}

fn rate(model: &Model) -> Option<f64> {
    model.done.as_ref().map(|done| done.done.samples_per_s)
}

/// A large count in few letters.
fn short(number: u64) -> String {
    match number {
        0..100_000 => count(number),
        100_000..10_000_000 => format!("{:.0}k", number as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1}M", number as f64 / 1e6),
        _ => format!("{:.1}G", number as f64 / 1e9),
    }
}

/// A point in time, to the minute.
fn date(unix_s: u64) -> Option<String> {
    let at = DateTime::from_timestamp(i64::try_from(unix_s).ok()?, 0)?;
    let (year, month, day) = (at.year(), at.month(), at.day());
    Some(format!("begun {year}-{month:02}-{day:02} {:02}:{:02} UTC", at.hour(), at.minute()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_and_dates_are_short() {
        let shown = [99_999, 400_000, 45_840_617, 4_195_197_692, 64_000_000_000].map(short);
        assert_eq!(shown, ["99,999", "400k", "45.8M", "4195.2M", "64.0G"]);
        assert_eq!(date(1_795_746_600).unwrap(), "begun 2026-11-27 02:30 UTC");
    }
}
