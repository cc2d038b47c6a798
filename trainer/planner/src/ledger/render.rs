//! The ledger as text, and what is kept of it.

use super::{Kind, Ledger, Row};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Bytes and launches of the rows of a kept ledger, by model, stage, kernel and part.
#[derive(Debug, Default, PartialEq)]
pub struct Kept(BTreeMap<String, (f64, f64)>);

/// Rounding of what is kept.
const ROUNDING: f64 = 1.001;

impl Kept {
    /// Of a text of [`render`].
    pub fn parse(text: &str) -> Self {
        let (mut kept, mut model) = (BTreeMap::new(), "");
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                model = title;
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, stage, kernel, launches, megabytes, ..] = cells[..] else { continue };
            if let (Ok(launches), Ok(megabytes)) = (launches.parse(), megabytes.parse()) {
                kept.insert(format!("{model}: {stage}, {kernel}"), (launches, megabytes));
            }
        }
        Self(kept)
    }

    /// Rows of `self` that have more launches or bytes than the same of `before`, or are new where
    /// their model is not.
    pub fn risen(&self, before: &Self) -> Vec<String> {
        let model = |name: &str| name.split(": ").next().unwrap_or(name).to_owned();
        let is_known = |name: &str| before.0.keys().any(|kept| model(kept) == model(name));
        let risen =
            self.0.iter().filter_map(|(name, &(launches, megabytes))| match before.0.get(name) {
                Some(&(l, m)) if launches <= l && megabytes <= m * ROUNDING => None,
                Some(&(l, m)) => {
                    Some(format!("{name}: {launches} launches, {megabytes} MB; kept {l}, {m}"))
                }
                None if is_known(name) => Some(format!("{name}: new")),
                None => None,
            });
        risen.collect()
    }
}

/// A table for each ledger, and what their columns mean.
pub fn render(ledgers: &[Ledger]) -> String {
    let mut text = String::from(
        "Predictions, made by `cargo xtask ledger`; no time here was measured. Bytes: read and \
         written,\neach once a launch. Roofline: the larger of bytes at 4.3 TB/s and operations \
         at 790 TFLOP/s.\nExpected: the roofline at the part of it that the kind of kernel reaches, \
         and 1.3 us a launch:\n\n",
    );
    for kind in [Kind::Rows, Kind::Stream, Kind::Product, Kind::Interaction, Kind::Ids] {
        let (part, source) = kind.efficiency();
        let _ = writeln!(text, "- {kind:?}: {:.0} % ({source})", 100.0 * part);
    }
    for ledger in ledgers {
        text.push_str(&table(ledger));
    }
    text
}

fn table(ledger: &Ledger) -> String {
    let mut text = format!("\n## {}\n\n", ledger.name);
    text.push_str(
        "| stage | kernel | launches | MB | GFLOP | roofline us | expected us | above 1.3x |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    ledger.rows.iter().filter(|row| row.launches > 0.0).for_each(|row| text.push_str(&line(row)));
    let sums = |of: fn(&Row) -> f64| -> f64 { ledger.rows.iter().map(of).sum() };
    let _ = write!(
        text,
        "\nAll: {} launches, {:.0} MB, {:.0} GFLOP. Critical path: **{:.0} us**",
        sums(|row| row.launches),
        sums(Row::bytes) / 1e6,
        sums(|row| row.flops) / 1e9,
        ledger.critical_us(),
    );
    if let Some(target) = ledger.target_us {
        let met = if ledger.critical_us() <= target { "met" } else { "missed" };
        let _ = write!(text, "; target {target:.0} us: {met}");
    }
    text.push_str(".\n");
    text
}

fn line(row: &Row) -> String {
    let kernel = match row.part.is_empty() {
        true => row.kernel.to_owned(),
        false => format!("product {}", row.part),
    };
    format!(
        "| {} | {kernel} | {} | {:.3} | {:.1} | {:.1} | {:.1} | {} |\n",
        row.stage,
        row.launches,
        row.bytes() / 1e6,
        row.flops / 1e9,
        row.roofline_us(),
        row.expected_us(),
        row.reason().unwrap_or(""),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Model;

    #[test]
    fn more_bytes_or_launches_are_found_and_fewer_are_not() {
        let ledger = Ledger::of(&Model::embedding_step(1000));
        let kept = Kept::parse(&render(std::slice::from_ref(&ledger)));
        assert_eq!(kept.0.len(), 9);
        let changed = |change: fn(&mut Row)| {
            let mut ledger = ledger.clone();
            change(&mut ledger.rows[2]);
            Kept::parse(&render(&[ledger])).risen(&kept).len()
        };
        assert_eq!(changed(|_| {}), 0);
        assert_eq!(changed(|row| row.launches += 1.0), 1);
        assert_eq!(changed(|row| row.read *= 1.2), 1);
        assert_eq!(changed(|row| row.read *= 0.8), 0);
        assert_eq!(changed(|row| row.kernel = "another"), 1);
    }
}
