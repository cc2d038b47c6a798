//! The hybrid split for people and for programs: what each table keeps on every rank, what that
//! serves, what it saves.

use crate::report::{bytes, count, short_time};
use headlong_embedding::hybrid::split::{Split, TableSplit};
use headlong_embedding::hybrid::traffic::{Exchange, Hops, IdSource, Merge, Variant};
use headlong_planner::tables::percent;
use serde::Serialize;
use std::fmt::Write as _;

/// Tables that are printed one by one; the rest is one line.
const SHOWN_TABLES: usize = 12;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HybridPlan {
    /// The way rows are exchanged, in words.
    pub exchange: String,
    /// Whether equal rows are merged, how vectors travel, and how ids get known.
    pub way: Variant,
    pub tables: Vec<TableSplit>,
    /// Rows that every rank holds.
    pub frequent_rows: u64,
    /// Bytes that replicas take on each rank: rows, optimiser state, gradients.
    pub replicated_bytes: u64,
    /// Bytes of rows and states on the rank that holds most, replicas and their gradients included.
    pub table_bytes_per_rank: u64,
    /// Bytes that tables cause in a step, over all ranks.
    pub bytes_per_step: Hops,
    /// The same for pure model parallelism: a vector for every lookup, and its gradient back.
    pub pure_bytes_per_step: Hops,
    /// Traffic of the busiest owner over the mean.
    pub owner_imbalance: f64,
    /// Predicted time of exchange and row updates in a step.
    pub exchange_us: f64,
}

impl HybridPlan {
    /// What `split` says.
    pub fn new(split: &Split) -> Self {
        Self {
            exchange: in_words(split.variant),
            way: split.variant,
            tables: split.tables.clone(),
            frequent_rows: split.frequent_rows(),
            replicated_bytes: split.replicated_bytes,
            table_bytes_per_rank: split.bytes_per_rank,
            bytes_per_step: split.traffic.of_embeddings(),
            pure_bytes_per_step: split.pure_traffic.of_embeddings(),
            owner_imbalance: split.owner_imbalance,
            exchange_us: split.times.total_us(),
        }
    }

    /// A table for people: per table the frequent rows, the share of its lookups that they serve,
    /// what is saved against pure model parallelism, and the memory of a rank.
    pub fn to_text(&self) -> String {
        let mut tables: Vec<&TableSplit> = self.tables.iter().collect();
        tables.sort_by(|one, other| saved(other).total_cmp(&saved(one)));
        let (shown, rest) = tables.split_at(tables.len().min(SHOWN_TABLES));
        let mut text = line(
            &["hybrid", "frequent", "of rows", "serve", "sent/step", "saved/step", "per rank"]
                .map(String::from),
        );
        shown.iter().for_each(|table| text += &row(&table.name, &[table]));
        if !rest.is_empty() {
            text += &row(&format!("{} other tables", rest.len()), rest);
        }
        text += &row("all tables", &tables);
        self.write_summary(&mut text);
        text
    }

    fn write_summary(&self, text: &mut String) {
        let (sent, pure) = (self.bytes_per_step, self.pure_bytes_per_step);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "exchange: {}; estimate {} a step",
            self.exchange,
            short_time(self.exchange_us)
        );
        let _ = writeln!(
            text,
            "tables send {} between nodes and {} inside them in a step (pure model-parallel: {} \
             and {}); busiest owner {:.1} % above the mean",
            whole(sent.inter),
            whole(sent.intra),
            whole(pure.inter),
            whole(pure.intra),
            percent(self.owner_imbalance - 1.0)
        );
    }
}

fn saved(table: &TableSplit) -> f64 {
    table.pure_traffic.total() - table.traffic.total()
}

fn row(name: &str, tables: &[&TableSplit]) -> String {
    let sum = |of: fn(&TableSplit) -> u64| -> u64 { tables.iter().map(|table| of(table)).sum() };
    let sent: f64 = tables.iter().map(|table| table.traffic.total()).sum();
    let saved: f64 = tables.iter().map(|table| saved(table)).sum();
    // Pure model parallelism sends one vector for each lookup, so its bytes weigh the tables by
    // lookups and width.
    let weight: f64 = tables.iter().map(|table| table.pure_traffic.total()).sum();
    let served: f64 =
        tables.iter().map(|table| table.covered_share * table.pure_traffic.total()).sum();
    // No table at all sums up to −0.
    let share = if weight > 0.0 { served / weight + 0.0 } else { 0.0 };
    line(&[
        name.to_owned(),
        count(sum(|table| table.frequent_rows)),
        count(sum(|table| table.rows)),
        format!("{:.1} %", share * 100.0),
        whole(sent),
        if saved < 0.0 { format!("-{}", whole(-saved)) } else { whole(saved) },
        bytes(sum(|table| table.bytes_per_rank)),
    ])
}

fn line(cells: &[String; 7]) -> String {
    let [name, frequent, rows, share, sent, saved, memory] = cells;
    format!(
        "  {name:<16} {frequent:>11} {rows:>13} {share:>8} {sent:>12} {saved:>12} {memory:>12}\n"
    )
}

fn whole(number: f64) -> String {
    bytes(number.round() as u64)
}

pub fn in_words(way: Variant) -> String {
    let merge = match way.merge {
        Merge::Off => "one vector a lookup",
        Merge::Rank => "equal rows merged on each rank",
        Merge::Node => "equal rows merged on each node",
    };
    let exchange = match (way.merge, way.exchange) {
        (Merge::Node, _) => "along rails",
        (_, Exchange::Flat) => "flat",
        (_, Exchange::Hierarchical) => "hierarchical",
    };
    let ids = match way.ids {
        IdSource::Exchange => "ids exchanged",
        IdSource::Known => "ids known to all",
    };
    format!("{merge}, {exchange}, {ids}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_device::optimizer::Optimizer;
    use headlong_embedding::TableSpec;
    use headlong_embedding::hybrid::cost::Costs;
    use headlong_embedding::hybrid::split::{HybridMode, SplitOptions, split};
    use headlong_embedding::hybrid::statistics::{Collector, StatisticsOptions};
    use headlong_embedding::hybrid::traffic::Cluster;

    fn plan(num_tables: usize) -> HybridPlan {
        let specs: Vec<_> = (1..=num_tables)
            .map(|column| TableSpec::new(&format!("C{column}"), 1000, 16))
            .collect();
        let mut collector = Collector::new(&specs, &StatisticsOptions::default());
        for table in 0..num_tables {
            // Half of the lookups are row 7, the others differ.
            let rows: Vec<u64> =
                (0..400).map(|index| if index % 2 == 0 { 7 } else { index }).collect();
            collector.add(table, &rows);
        }
        collector.end_batch(400);
        let mut options = SplitOptions::new(&specs, Cluster::even(2, 2), 400, &Optimizer::Sgd);
        options.mode = HybridMode::Rows(num_tables as u64);
        HybridPlan::new(&split(&collector.finish(), &Costs::tcp(), &options).unwrap())
    }

    #[test]
    fn each_table_says_what_it_keeps_and_saves() {
        let plan = plan(2);
        let text = plan.to_text();
        let cells = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let (table, all) = (cells("C1"), cells("all tables"));
        assert_eq!(table[1..3], ["1", "1,000"]);
        let share: f64 = table[3].parse().unwrap();
        assert!((49.0..52.0).contains(&share), "{text}");
        assert_eq!(all[2..4], ["2", "2,000"]);
        assert!(
            text.contains("equal rows merged on each") && text.contains("pure model-parallel"),
            "{text}"
        );
        assert!(plan.bytes_per_step.total() < plan.pure_bytes_per_step.total());
    }

    #[test]
    fn many_tables_end_in_one_line() {
        let text = plan(20).to_text();
        assert!(text.contains("8 other tables"), "{text}");
        assert_eq!(text.lines().count(), 1 + SHOWN_TABLES + 1 + 1 + 2);
    }

    #[test]
    fn programs_get_the_same_numbers() {
        let document = serde_json::to_value(plan(1)).unwrap();
        assert_eq!(document["frequent_rows"], 1);
        assert_eq!(document["tables"][0]["frequent_rows"], 1);
        assert!(document["bytes_per_step"]["inter"].as_f64().unwrap() > 0.0);
        assert!(document["way"]["merge"].is_string());
    }
}
