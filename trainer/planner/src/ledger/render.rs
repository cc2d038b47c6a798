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
            if let (Some(launches), Some(megabytes)) = (number(launches), number(megabytes)) {
                kept.insert(format!("{model}: {stage}, {kernel}"), (launches, megabytes));
            }
        }
        Self(kept)
    }

    /// Rows of `self` that have more launches or bytes than the same of `before`, or are new.
    pub fn risen(&self, before: &Self) -> Vec<String> {
        let risen = self.0.iter().filter_map(|(name, now)| match before.0.get(name) {
            Some(kept) if !is_more(now, kept) => None,
            Some(kept) => Some(compared(name, now, kept)),
            None => Some(format!("{name}: new")),
        });
        risen.collect()
    }

    /// Rows of `before` that have more launches or bytes than the same of `self`.
    pub fn fallen(&self, before: &Self) -> Vec<String> {
        let fallen = self.0.iter().filter_map(|(name, now)| {
            let kept = before.0.get(name)?;
            is_more(kept, now).then(|| compared(name, now, kept))
        });
        fallen.collect()
    }

    /// Rows of `before` that are none of `self`.
    pub fn gone(&self, before: &Self) -> Vec<String> {
        let gone = before.0.keys().filter(|name| !self.0.contains_key(*name));
        gone.map(|name| format!("{name}: kept, and made no more")).collect()
    }

    /// Whether there is no row: what was parsed is no ledger.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn is_more(&(launches, megabytes): &(f64, f64), &(l, m): &(f64, f64)) -> bool {
    launches > l || megabytes > m * ROUNDING
}

fn compared(name: &str, (launches, megabytes): &(f64, f64), (l, m): &(f64, f64)) -> String {
    format!("{name}: {launches} launches, {megabytes} MB; kept {l}, {m}")
}

/// A table for each ledger, and what their columns mean.
pub fn render(ledgers: &[Ledger]) -> String {
    let mut text = String::from(
        "Predictions, made by `cargo xtask ledger`; no time here was measured. Bytes: read and \
         written,\neach once a launch. Roofline: the larger of bytes at 4.3 TB/s and operations \
         at 790 TFLOP/s.\nExpected: the roofline at the part of it that the kind of kernel \
         reaches, \
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

/// Sums by stage, for a page of documentation: of the larger batch in full.
pub fn summary(ledgers: &[Ledger]) -> String {
    let mut text = String::from(
        "| step | launches | MB | GFLOP | critical path, us | target, us |\n\
         |---|---|---|---|---|---|\n",
    );
    for ledger in ledgers {
        let sums = |of: fn(&Row) -> f64| -> f64 { ledger.rows.iter().map(of).sum() };
        let target = ledger.target_us.map_or("-".to_owned(), |target| format!("{target:.0}"));
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} | {:.0} | {target} |",
            ledger.name,
            sums(|row| row.launches),
            sums(Row::bytes) / 1e6,
            sums(|row| row.flops) / 1e9,
            ledger.critical_us(),
        );
    }
    for ledger in ledgers.iter().filter(|ledger| ledger.target_us.is_some()) {
        let _ = write!(
            text,
            "\n{}, by stage:\n\n| stage | launches | MB | GFLOP | roofline us | expected us |\n\
             |---|---|---|---|---|---|\n",
            ledger.name
        );
        text.push_str(&stages(ledger));
    }
    text
}

fn stages(ledger: &Ledger) -> String {
    let on_path: Vec<&str> = ledger.path.iter().flatten().copied().collect();
    let mut order = on_path.clone();
    for row in &ledger.rows {
        if !order.contains(&row.stage) {
            order.push(row.stage);
        }
    }
    let mut text = String::new();
    for stage in order {
        let sum = |of: fn(&Row) -> f64| -> f64 {
            ledger.rows.iter().filter(|row| row.stage == stage).map(of).sum()
        };
        let hidden = if on_path.contains(&stage) { "" } else { " (hidden)" };
        let _ = writeln!(
            text,
            "| {stage}{hidden} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
            sum(|row| row.launches),
            sum(Row::bytes) / 1e6,
            sum(|row| row.flops) / 1e9,
            sum(Row::roofline_us),
            sum(Row::expected_us),
        );
    }
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
    use crate::ledger::{Model, all};

    /// Bytes and launches may fall: then `cargo xtask ledger` keeps the new ones. It refuses ones
    /// that have risen.
    #[test]
    fn the_kept_ledger_is_todays() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/results/ledger.txt");
        let kept = std::fs::read_to_string(kept).expect("it is kept");
        let today = render(&all());
        let risen = Kept::parse(&today).risen(&Kept::parse(&kept));
        assert!(risen.is_empty(), "bytes or launches have risen: {risen:#?}");
        assert!(today == kept, "benches/results/ledger.txt is old: `cargo xtask ledger`");
    }

    #[test]
    fn targets_and_sums_are_where_they_belong() {
        let all = all();
        let targets = |ledger: &Ledger| ledger.target_us.map(|us| (ledger.name.clone(), us));
        let named = [("C1 at 65536", 3300.0), ("embedding step, 104857 ids a table", 500.0)];
        let named = named.map(|(name, us)| (name.to_owned(), us));
        assert_eq!(all.iter().filter_map(targets).collect::<Vec<_>>(), named);
        for ledger in &all {
            let roofline: f64 = ledger
                .path
                .iter()
                .flatten()
                .flat_map(|stage| {
                    ledger.rows.iter().filter(move |row| row.stage == *stage).map(Row::roofline_us)
                })
                .sum();
            let critical = ledger.critical_us();
            assert!(
                critical > 0.9 * roofline && critical < 2.0 * roofline + 100.0,
                "{}",
                ledger.name
            );
        }
    }

    #[test]
    fn more_bytes_or_launches_are_found_and_fewer_are_not() {
        let ledger = Ledger::of(&Model::embedding_step(1000));
        let kept = Kept::parse(&render(std::slice::from_ref(&ledger)));
        assert_eq!(kept.0.len(), 6);
        let changed = |change: fn(&mut Row)| {
            let mut ledger = ledger.clone();
            change(&mut ledger.rows[2]);
            let now = Kept::parse(&render(&[ledger]));
            [now.risen(&kept), now.fallen(&kept), now.gone(&kept)].map(|rows| rows.len())
        };
        assert_eq!(changed(|_| {}), [0, 0, 0]);
        assert_eq!(changed(|row| row.launches += 1.0), [1, 0, 0]);
        assert_eq!(changed(|row| row.read *= 1.2), [1, 0, 0]);
        assert_eq!(changed(|row| row.read *= 0.8), [0, 1, 0]);
        assert_eq!(changed(|row| row.kernel = "another"), [1, 0, 1]);
        let renamed = Ledger { name: "another".to_owned(), ..ledger.clone() };
        let renamed = Kept::parse(&render(&[renamed]));
        assert_eq!((renamed.risen(&kept).len(), renamed.gone(&kept).len()), (6, 6));
        assert!(Kept::parse("another file\n| a | b |\n").is_empty());
    }
}
