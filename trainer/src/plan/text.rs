//! The plan as text.

use super::Plan;
use crate::report::{bytes, count};
use std::fmt::Write as _;

/// Tables whose rows are printed one by one; the rest is one line.
const SHOWN_TABLES: usize = 8;

impl Plan {
    /// The plan for people: the largest tables, the memory by use, a step's cost, the division of the data.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write_tables(&mut text);
        self.write_memory(&mut text);
        self.write_step(&mut text);
        if let Some(hybrid) = &self.hybrid {
            text += &hybrid.to_text();
        }
        text
    }

    fn write_tables(&self, text: &mut String) {
        let mut tables: Vec<_> = self.tables.iter().collect();
        tables.sort_by_key(|table| std::cmp::Reverse(table.rows));
        let mut line = |name: &str, rows: u64, weights: u64, state: u64| {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {name:<22} {:>15} {:>12} {:>12}",
                count(rows),
                bytes(weights),
                bytes(state)
            );
        };
        let head = tables.len().min(SHOWN_TABLES);
        for table in &tables[..head] {
            line(&table.name, table.rows, table.weight_bytes, table.state_bytes);
        }
        let sum = |of: fn(&super::TablePlan) -> u64, tables: &[&super::TablePlan]| -> u64 {
            tables.iter().map(|table| of(table)).sum()
        };
        for (name, tables) in [
            (format!("{} smaller tables", tables.len() - head), &tables[head..]),
            ("all tables".into(), &tables[..]),
        ] {
            if !tables.is_empty() {
                let rows = sum(|table| table.rows, tables);
                line(
                    &name,
                    rows,
                    sum(|table| table.weight_bytes, tables),
                    sum(|table| table.state_bytes, tables),
                );
            }
        }
        let dim = self.tables.first().map_or(0, |table| table.dim);
        text.insert_str(0, &format!("  {:<22} {:>15} {:>12} {:>12}\n", "table", "rows", "weights", "state"));
        text.insert_str(0, &format!("tables of dim {dim}\n"));
    }

    fn write_memory(&self, text: &mut String) {
        let memory = &self.memory;
        let host =
            [("reader", memory.reader_bytes), ("ids", memory.id_map_bytes), ("other", memory.other_bytes)];
        let model = [
            ("tables", memory.table_weight_bytes + memory.table_state_bytes),
            ("dense network", memory.dense_bytes),
            ("exchange", memory.exchange_bytes),
            ("activations", memory.activation_bytes),
        ];
        let fits = |fits| if fits { "fits" } else { "DOES NOT FIT" };
        let ranks = if self.ranks > 1 { format!(" a rank, {} ranks,", self.ranks) } else { String::new() };
        let mut on_host = listed(&host);
        match &self.on_device {
            Some(device) => {
                let (needed, free) = (bytes(device.needed_bytes), bytes(device.free_bytes));
                let (name, uses) = (&device.name, listed(&model));
                let fits = fits(device.fits());
                let _ = writeln!(text, "{name}: {needed}{ranks} of {free} free ({fits}): {uses}, work space");
            }
            None => on_host = format!("{}, {on_host}", listed(&model)),
        }
        let (needed, available) = (bytes(self.bytes_per_rank), bytes(self.available_bytes));
        let _ = writeln!(
            text,
            "memory {needed}{ranks} of {available} available ({}): {on_host}",
            fits(self.fits)
        );
    }

    fn write_step(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "parameters {} in tables, {} dense; device {}, {} threads",
            count(self.embedding_parameters),
            count(self.dense_parameters),
            self.device,
            self.threads
        );
        let cost = &self.cost;
        let _ = writeln!(
            text,
            "step of {} samples: {:.2} GFLOP, {} of rows, {} of dense data; estimate {:.0} us, {} samples/s",
            count(self.samples_per_step),
            cost.flops_per_step as f64 / 1e9,
            bytes(cost.table_bytes_per_step),
            bytes(cost.dense_bytes_per_step),
            cost.predicted_step_us,
            count(cost.predicted_samples_per_s as u64)
        );
        if let Some(division) = &self.division {
            let _ = writeln!(
                text,
                "data {} rows: {} steps an epoch, the last of {} samples, none lost; batch size {} would divide them",
                count(division.data_rows),
                count(division.steps_per_epoch),
                count(division.last_step_samples),
                count(division.nearest_dividing_batch_size)
            );
        }
    }
}

/// Sizes by name, without those that are nothing.
fn listed(uses: &[(&str, u64)]) -> String {
    let listed = uses.iter().filter(|(_, size)| *size > 0);
    listed.map(|(name, size)| format!("{name} {}", bytes(*size))).collect::<Vec<_>>().join(", ")
}
