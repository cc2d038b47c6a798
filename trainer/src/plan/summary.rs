//! The plan in a few lines: what `headlong train` says before it begins.

use super::Plan;
use crate::report::{bytes, count, some};
use std::fmt::Write as _;

impl Plan {
    /// The model, the memory, the division of the data and what is replicated: a line each.
    /// `headlong plan` has every table and what a step costs ([`Plan::to_text`]).
    pub fn summary(&self) -> String {
        let rows: u64 = self.tables.iter().map(|table| table.rows).sum();
        let mut text = format!(
            "  {} tables of dim {}: {} rows, {} parameters; {} dense\n",
            self.tables.len(),
            self.tables.first().map_or(0, |table| table.dim),
            count(rows),
            count(self.embedding_parameters.get()),
            count(self.dense_parameters.get())
        );
        self.write_machine(&mut text);
        // Writing to a string cannot fail.
        if let Some(dense_optimizer) = &self.dense_optimizer {
            let _ = writeln!(text, "  {}", dense_optimizer.to_text());
        }
        if let Some(division) = &self.division {
            let _ = writeln!(
                text,
                "  {} rows: {} steps of {} samples an epoch",
                count(division.data_rows),
                count(division.steps_per_epoch),
                count(self.samples_per_step.get())
            );
        }
        if let Some(hybrid) = &self.hybrid {
            let sent = hybrid.bytes_per_step;
            let _ = writeln!(
                text,
                "  {} rows replicated, {} for each rank; tables send {} a step",
                count(hybrid.frequent_rows),
                bytes(hybrid.replicated_bytes),
                bytes((sent.inter + sent.intra).round() as u64)
            );
        }
        text.push_str("  --dry-run shows every table and what a step costs\n");
        text
    }

    fn write_machine(&self, text: &mut String) {
        let ranks = if self.ranks > 1 {
            format!(" for each of {} ranks", self.ranks)
        } else {
            String::new()
        };
        let _ = write!(
            text,
            "  memory {}{ranks} of {} available",
            bytes(self.bytes_per_rank.get()),
            bytes(self.available_bytes)
        );
        if let Some(device) = &self.on_device {
            let (needed, free) = (bytes(device.needed_bytes.get()), bytes(device.free_bytes));
            let _ = write!(text, "; {}: {needed}{ranks} of {free} free", device.name);
        }
        if let Some(others) = self.eval_ranks {
            let _ = write!(text, "; {}", others.to_text());
        }
        let _ = writeln!(text, "; device {}, {}", self.device, some(self.threads, "thread"));
    }
}
