//! What the exchange of a plan takes, as text and as JSON.

use super::count::Counted;
use super::subject::{Messages, Step};
use crate::commands::bench::collectives::backend::Backend;
use crate::commands::bench::collectives::job::Answer;
use crate::commands::bench::collectives::statistics::{Average, Figures, PERCENTILES};
use crate::config::Config;
use crate::error::{Error, Result};
use headlong_embedding::hybrid::split::Split;
use serde_json::{Value, json};
use std::fmt::Write as _;

pub struct Report<'a> {
    pub config: &'a Config,
    pub split: &'a Split,
    pub counted: &'a Counted,
    pub answers: &'a [(Backend, Answer)],
    /// What was not to be had, and why.
    pub skipped: &'a [(Backend, String)],
}

/// A table's part in what is sent.
struct TableShare {
    rows: f64,
    bytes: f64,
    share: f64,
}

impl Report<'_> {
    fn messages(&self) -> &Messages {
        &self.counted.messages
    }

    /// Bytes of a step over all ranks that each table causes: its rows as ids, vectors and
    /// gradients, its frequent rows in the all-reduce.
    fn tables(&self) -> Vec<TableShare> {
        let ranks = self.messages().ranks as f64;
        let id = if self.messages().ids_travel { 8.0 } else { 0.0 };
        let bytes =
            self.split.tables.iter().zip(&self.counted.rows_of_table).map(|(table, rows)| {
                let frequent = table.frequent_rows as f64 * (table.dim + 1) as f64 * 4.0;
                rows * (id + 2.0 * table.dim as f64 * 4.0) + 2.0 * (ranks - 1.0) * frequent
            });
        let bytes: Vec<f64> = bytes.collect();
        let sum = bytes.iter().sum::<f64>().max(1.0);
        let rows = self.counted.rows_of_table.iter();
        bytes
            .iter()
            .zip(rows)
            .map(|(&bytes, &rows)| TableShare { rows, bytes, share: bytes / sum })
            .collect()
    }

    fn predicted_us(&self, step: Step) -> f64 {
        let times = &self.split.times;
        match step {
            Step::Ids => times.ids_us,
            Step::Vectors => times.forward_us,
            Step::Gradients => times.backward_us,
            Step::AllReduce => times.all_reduce_us,
        }
    }

    pub fn text(&self) -> String {
        let (messages, run) = (self.messages(), &self.config.run);
        let mut text = format!(
            "# headlong bench exchange: {} ranks, {} samples a step, {} batches; ids {}, {} \
             exchange, {} frequent rows\n\
             # {:<12} {:>12} {:>10} {:>10} {:>14} {:>14} {:>7}\n",
            run.ranks,
            self.config.train.batch_size * self.config.train.accumulate,
            messages.rows.len(),
            if messages.ids_travel { "exchanged" } else { "known to all" },
            if messages.hierarchical { "hierarchical" } else { "flat" },
            self.split.frequent_rows(),
            "table",
            "rows",
            "frequent",
            "sent/step",
            "bytes/step",
            "planned",
            "share"
        );
        for (table, part) in self.split.tables.iter().zip(self.tables()) {
            let _ = writeln!(
                text,
                "  {:<12} {:>12} {:>10} {:>10.1} {:>14.0} {:>14.0} {:>6.2}%",
                table.name,
                table.rows,
                table.frequent_rows,
                part.rows,
                part.bytes,
                table.traffic.total(),
                part.share * 100.0
            );
        }
        self.answers
            .iter()
            .for_each(|(backend, answer)| text.push_str(&self.steps_text(*backend, answer)));
        for (backend, reason) in self.skipped {
            let _ = writeln!(text, "# {}: skipped: {reason}", backend.name());
        }
        text
    }

    fn steps_text(&self, backend: Backend, answer: &Answer) -> String {
        let mut text = format!(
            "# over {}\n\
             # {:<11} {:>12} {:>12} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>6}\n",
            backend.name(),
            "step",
            "bytes/rank",
            "largest(B)",
            "time(us)",
            "#wrong",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
            "predicted",
            "n"
        );
        let mut sum = 0.0;
        for (step, figures) in self.figures(answer) {
            let known = |percentile: f64| {
                figures
                    .latency
                    .percentile(percentile)
                    .map_or_else(|| "–".to_owned(), |us| format!("{us:.2}"))
            };
            let [p50, p90, p99, p999] = PERCENTILES.map(known);
            let largest = self
                .messages()
                .largest(step)
                .map_or_else(|| "–".to_owned(), |bytes| bytes.to_string());
            let wrong = figures.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
            sum += figures.latency.nearest_rank(50.0);
            let _ = writeln!(
                text,
                "  {:<11} {:>12.0} {largest:>12} {:>10.2} {wrong:>7} {p50:>9} {p90:>9} {p99:>9} \
                 {p999:>9} {:>10.2} {:>9.2} {:>6}",
                step.name(),
                self.messages().bytes(step) / self.messages().ranks as f64,
                figures.time_us,
                figures.latency.max(),
                self.predicted_us(step),
                figures.latency.len()
            );
        }
        let _ =
            writeln!(text, "# sum of the medians: {sum:.2} us, nothing hidden behind computation");
        text
    }

    fn figures<'b>(&'b self, answer: &'b Answer) -> impl Iterator<Item = (Step, Figures)> + 'b {
        let figures =
            answer.cases.iter().map(|case| Figures::new(&case.places[0].1, Average::Mean));
        self.messages().steps().into_iter().zip(figures)
    }

    pub fn document(&self) -> Value {
        let tables = self.split.tables.iter().zip(self.tables()).map(|(table, part)| {
            json!({
                "name": table.name, "rows": table.rows, "frequent_rows": table.frequent_rows,
                "dim": table.dim,
                "rows_sent_per_step": part.rows, "bytes_per_step": part.bytes,
                "planned_bytes_per_step": table.traffic.total(), "share": part.share,
            })
        });
        let steps = self.answers.iter().flat_map(|(backend, answer)| {
            self.figures(answer).map(move |(step, figures)| {
                let [p50, p90, p99, p999] =
                    PERCENTILES.map(|percentile| figures.latency.percentile(percentile));
                json!({
                    "backend": backend.name(), "step": step.name(), "procs": self.messages().ranks,
                    "bytes_per_step": self.messages().bytes(step),
                    "largest_message_bytes": self.messages().largest(step),
                    "time_us": figures.time_us, "p50_us": p50, "p90_us": p90, "p99_us": p99,
                    "p99_9_us": p999,
                    "max_us": figures.latency.max(), "reps": figures.latency.len(),
                    "wrong": figures.wrong,
                    "predicted_us": self.predicted_us(step),
                })
            })
        });
        let skipped = |(backend, reason): &(Backend, String)| {
            let backend = backend.name();
            json!({"backend": backend, "reason": reason})
        };
        json!({
            "bench": "exchange", "schema": 1, "ranks": self.messages().ranks,
            "batches": self.messages().rows.len(),
            "batch_size": self.config.train.batch_size, "variant": self.split.variant,
            "all_reduce_bytes": self.messages().reduced * 4,
            "tables": tables.collect::<Vec<_>>(), "steps": steps.collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
        })
    }

    /// Whether everything has arrived as it was sent.
    pub fn check(&self) -> Result<()> {
        let figures = self.answers.iter().flat_map(|(_, answer)| self.figures(answer));
        match figures.filter_map(|(_, figures)| figures.wrong).sum::<u64>() {
            0 => Ok(()),
            wrong => Err(Error::Failed {
                context: "headlong bench exchange".to_owned(),
                source: format!("{wrong} elements have arrived wrong").into(),
            }),
        }
    }
}
