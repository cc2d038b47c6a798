//! What was measured, as a table in the columns of nccl-tests, and as JSON.

use super::measure::{Operation, Timing};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One size of one operation over one transport.
#[derive(Debug, Clone)]
pub struct Row {
    /// The transport's name.
    pub backend: &'static str,
    /// What was called.
    pub operation: Operation,
    /// How many ranks called it.
    pub ranks: usize,
    /// Bytes of one rank's buffer.
    pub bytes: usize,
    /// Wrong elements, where asked.
    pub wrong: Option<u64>,
    /// Times of rank 0, microseconds, rising.
    times_us: Vec<f64>,
    mean_us: f64,
    /// Median of the slowest rank's times.
    slowest_p50_us: f64,
}

impl Row {
    /// Sums up one size.
    pub fn new(backend: &'static str, operation: Operation, ranks: usize, timing: &Timing) -> Self {
        let us = |ns: &[u64]| {
            let mut us: Vec<f64> = ns.iter().map(|&ns| ns as f64 * 1e-3).collect();
            us.sort_by(f64::total_cmp);
            us
        };
        let times_us = us(&timing.first_rank_ns);
        Self {
            backend,
            operation,
            ranks,
            bytes: timing.bytes,
            wrong: timing.wrong,
            mean_us: times_us.iter().sum::<f64>() / times_us.len().max(1) as f64,
            slowest_p50_us: median(&us(&timing.slowest_ns)),
            times_us,
        }
    }

    /// Median time of rank 0, microseconds.
    pub fn p50_us(&self) -> f64 {
        median(&self.times_us)
    }

    /// The time that a share of the calls does not exceed: the nearest rank, on all samples.
    fn percentile_us(&self, share: f64) -> f64 {
        let at = (share * self.times_us.len() as f64).ceil() as usize;
        self.times_us.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    /// Whether there are enough samples for a percentile to mean something.
    fn has(&self, share: f64) -> bool {
        self.times_us.len() as f64 * (1.0 - share) >= 10.0 - 1e-9
    }

    /// Gigabytes per second at the mean time.
    fn algorithm_gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.mean_us * 1e-3
    }

    fn line(&self) -> String {
        let reduction = if self.operation.reduces() { "sum" } else { "none" };
        let algorithm = self.algorithm_gb_per_s();
        let bus = algorithm * self.operation.bus_factor(self.ranks);
        let wrong = self.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
        let known = |share| {
            if self.has(share) { format!("{:.2}", self.percentile_us(share)) } else { "-".to_owned() }
        };
        format!(
            "{:>12} {:>12} {:>8} {:>6} {:>6} {:>10.2} {:>8.2} {:>8.2} {:>7} {:>10.2} {:>10} {:>10} {:>10.2} {:>7}",
            self.bytes,
            self.bytes / 4,
            "float",
            reduction,
            if self.operation == Operation::Broadcast { 0 } else { -1 },
            self.mean_us,
            algorithm,
            bus,
            wrong,
            self.p50_us(),
            known(0.9),
            known(0.99),
            self.percentile_us(1.0),
            self.times_us.len()
        )
    }

    fn json(&self) -> Value {
        let p50 = self.p50_us();
        json!({
            "lib": "headlong", "backend": self.backend, "op": self.operation.name(), "procs": self.ranks,
            "bytes": self.bytes, "reps": self.times_us.len(), "p50_us": p50, "p90_us": self.percentile_us(0.9),
            "p99_us": self.percentile_us(0.99), "min_us": self.percentile_us(0.0), "max_us": self.percentile_us(1.0),
            "mean_us": self.mean_us, "slowest_rank_p50_us": self.slowest_p50_us,
            "gb_per_s": self.bytes as f64 / p50 * 1e-3, "wrong": self.wrong,
        })
    }
}

fn median(rising: &[f64]) -> f64 {
    match rising.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => rising[len / 2],
        len => (rising[len / 2 - 1] + rising[len / 2]) / 2.0,
    }
}

/// Everything as one document.
pub fn document(rows: &[Row]) -> Value {
    json!({ "bench": "collectives", "schema": 1, "rows": rows.iter().map(Row::json).collect::<Vec<_>>() })
}

/// Everything as a table.
pub fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    for rows in rows.chunk_by(|one, other| (one.backend, one.operation) == (other.backend, other.operation)) {
        let first = &rows[0];
        let _ = writeln!(
            text,
            "# headlong bench {} over {}, {} ranks; times on rank 0, size: one rank's buffer\n\
             # {:>10} {:>12} {:>8} {:>6} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>10} {:>10} {:>10} {:>7}\n\
             # {:>10} {:>12} {:>8} {:>6} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>10} {:>10} {:>10}",
            first.operation.name(),
            first.backend,
            first.ranks,
            "size",
            "count",
            "type",
            "redop",
            "root",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "p50",
            "p90",
            "p99",
            "max",
            "n",
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
            "(us)",
            "(us)",
            "(us)",
            "(us)",
        );
        rows.iter().for_each(|row| text.extend([row.line(), "\n".to_owned()]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(first_rank_ns: Vec<u64>) -> Row {
        let slowest_ns = first_rank_ns.iter().map(|ns| ns + 1000).collect();
        let timing = Timing { bytes: 1 << 20, first_rank_ns, slowest_ns, wrong: Some(0) };
        Row::new("local", Operation::AllReduce, 4, &timing)
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let row = row((1..=100).rev().map(|us| us * 1000).collect());
        assert_eq!((row.p50_us(), row.percentile_us(0.9), row.percentile_us(0.99)), (50.5, 90.0, 99.0));
        assert_eq!((row.percentile_us(0.0), row.percentile_us(1.0), row.slowest_p50_us), (1.0, 100.0, 51.5));
        assert!(row.has(0.9) && !row.has(0.99), "a hundred samples have no 99th percentile");
    }

    #[test]
    fn bus_bandwidth_counts_what_the_wire_must_carry() {
        let row = row(vec![1_000_000; 10]);
        assert!((row.algorithm_gb_per_s() - 1.048576).abs() < 1e-9);
        assert_eq!(Operation::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Operation::AllToAll.bus_factor(4), 0.75);
        let found = text(std::slice::from_ref(&row));
        assert!(found.contains("1048576") && found.contains("1.57"), "{found}");
        assert_eq!(document(&[row])["rows"][0]["p50_us"], 1000.0);
    }
}
