//! The plan as text.

use super::{Count, Plan};
use crate::report::{bytes, count, short_time, some};
use std::fmt::Write as _;

/// Tables whose rows are printed one by one; the rest is one line.
const SHOWN_TABLES: usize = 8;

impl Plan {
    /// The plan for people: the largest tables, the memory by use, a step's cost, the division of
    /// the data.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write_tables(&mut text);
        self.write_memory(&mut text);
        self.write_step(&mut text);
        if let Some(hybrid) = &self.hybrid {
            text += &hybrid.to_text();
        }
        self.choices.iter().for_each(|choice| text += &choice.to_text());
        text
    }

    fn write_tables(&self, text: &mut String) {
        let mut tables: Vec<_> = self.tables.iter().collect();
        tables.sort_by_key(|table| std::cmp::Reverse(table.rows));
        let mut line = |name: &str, rows: Count, weights: Count, state: Count| {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {name:<22} {:>15} {:>12} {:>12}",
                count(rows.get()),
                bytes(weights.get()),
                bytes(state.get())
            );
        };
        let head = tables.len().min(SHOWN_TABLES);
        for table in &tables[..head] {
            line(&table.name, table.rows.into(), table.weight_bytes, table.state_bytes);
        }
        let sum = |of: fn(&super::TablePlan) -> Count, tables: &[&super::TablePlan]| -> Count {
            tables.iter().map(|table| of(table)).sum()
        };
        for (name, tables) in [
            (format!("{} other tables", tables.len() - head), &tables[head..]),
            ("all tables".into(), &tables[..]),
        ] {
            if !tables.is_empty() {
                let rows = sum(|table| table.rows.into(), tables);
                line(
                    &name,
                    rows,
                    sum(|table| table.weight_bytes, tables),
                    sum(|table| table.state_bytes, tables),
                );
            }
        }
        let dim = self.tables.first().map_or(0, |table| table.dim);
        text.insert_str(
            0,
            &format!("  {:<22} {:>15} {:>12} {:>12}\n", "table", "rows", "weights", "state"),
        );
        text.insert_str(0, &format!("tables of dim {dim}\n"));
    }

    fn write_memory(&self, text: &mut String) {
        let memory = &self.memory;
        let locked = self.network.filter(|network| network.locks);
        let host = [
            ("reader", memory.reader_bytes),
            ("ids", memory.id_map_bytes),
            ("other", memory.other_bytes),
            ("locked for NICs", Count::from(locked.map_or(0, |network| network.locked_bytes))),
        ];
        let model = [
            ("tables", memory.table_weight_bytes + memory.table_state_bytes),
            ("dense network", memory.dense_bytes),
            ("exchange", memory.exchange_bytes),
            ("activations", memory.activation_bytes),
            ("batches that stay", memory.kept_batch_bytes),
        ];
        let fits = |fits| if fits { "fits" } else { "DOES NOT FIT" };
        let ranks = match (self.ranks, self.ranks_here) {
            (1, _) => String::new(),
            (all, here) if all == here => format!(" a rank, {all} ranks,"),
            (all, here) => format!(" a rank, {here} of {all} ranks here,"),
        };
        let mut on_host = listed(&host);
        match &self.on_device {
            Some(device) => {
                let (needed, free) = (bytes(device.needed_bytes.get()), bytes(device.free_bytes));
                let (name, uses) = (&device.name, listed(&model));
                let fits = fits(self.fits_on_device());
                let _ = writeln!(
                    text,
                    "{name}: {needed}{ranks} of {free} free ({fits}): {uses}, work space, \
                     libraries"
                );
            }
            None => on_host = format!("{}, {on_host}", listed(&model)),
        }
        let (needed, available) = (bytes(self.bytes_per_rank.get()), bytes(self.available_bytes));
        let _ = writeln!(
            text,
            "memory {needed}{ranks} of {available} available ({}): {on_host}",
            fits(self.fits_on_host())
        );
        if let Some(snapshots) = self.snapshots {
            let _ = writeln!(text, "{}", snapshots.to_text());
        }
        if let Some(others) = self.eval_ranks {
            let together = bytes(self.bytes_here().get());
            let _ = writeln!(text, "evaluation: {}, {together} together", others.to_text());
        }
    }

    fn write_step(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "parameters {} in tables, {} dense; device {}, {}",
            count(self.embedding_parameters.get()),
            count(self.dense_parameters.get()),
            self.device,
            some(self.threads, "thread")
        );
        if let Some(dense_optimizer) = &self.dense_optimizer {
            let _ = writeln!(text, "{}", dense_optimizer.to_text());
        }
        let cost = &self.cost;
        let estimate = match cost.predicted() {
            Some((us, samples_per_s)) => format!(
                "estimate for f32 on the processor {}, {} samples/s",
                short_time(us),
                count(samples_per_s as u64)
            ),
            None => "no estimate for a device here (`plan --cluster` has one)".to_owned(),
        };
        let _ = writeln!(
            text,
            "step of {} samples: {:.2} GFLOP, {} of rows, {} of dense data; {estimate}",
            count(self.samples_per_step.get()),
            cost.flops_per_step.as_f64() / 1e9,
            bytes(cost.table_bytes_per_step.get()),
            bytes(cost.dense_bytes_per_step.get())
        );
        if let Some(network) = &self.network {
            let _ = writeln!(text, "{}", network.to_text());
        }
        if let Some(division) = &self.division {
            let _ = writeln!(text, "{}", division.to_text());
        }
    }
}

/// Sizes by name, without those that are nothing.
fn listed(uses: &[(&str, Count)]) -> String {
    let listed = uses.iter().filter(|(_, size)| *size > 0);
    listed
        .map(|(name, size)| format!("{name} {}", bytes(size.get())))
        .collect::<Vec<_>>()
        .join(", ")
}
