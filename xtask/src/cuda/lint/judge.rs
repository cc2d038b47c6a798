//! Machine code held against what it must keep, and what is printed of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::expected::{EXPECTED, Expected, Grid, KNOWN, Known, OF_MUTANTS, RESIDENT, Rule};
use super::sass::Width;
use super::{Facts, Row, occupancy};

/// A finding, before it is known whether it is a known one.
struct Finding<'a> {
    row: &'a Row,
    rule: Rule,
    limit: u32,
    found: u32,
}

impl Finding<'_> {
    /// The line: kernel, architecture, expected, found.
    fn line(&self) -> String {
        let Row { kernel, architecture, constants, .. } = self.row;
        let Self { rule, limit, found, .. } = self;
        let bound = if rule.is_met(0, 1) { "at most" } else { "at least" };
        let rule = rule.name();
        format!(
            "{kernel} for {architecture}: {rule}: expected {bound} {limit}, found {found} \
             ({constants})"
        )
    }

    fn is(&self, known: &Known) -> bool {
        known.kernel == self.row.kernel
            && known.rule == self.rule
            && self.rule.is_met(self.found, known.worst)
            && known.architectures.contains(&self.row.architecture.as_str())
            && (known.only.is_empty() || has(self.row, known.only))
    }
}

/// Lines about known faults, and about others.
pub fn judge(seen: &[(Row, Facts)]) -> (Vec<String>, Vec<String>) {
    judge_by(seen, EXPECTED, KNOWN)
}

fn judge_by(
    seen: &[(Row, Facts)],
    expected: &[Expected],
    known: &[Known],
) -> (Vec<String>, Vec<String>) {
    let findings: Vec<Finding<'_>> =
        seen.iter().flat_map(|(row, facts)| findings(row, facts, expected)).collect();
    let is_known = |finding: &&Finding<'_>| known.iter().any(|known| finding.is(known));
    let mut faults: Vec<String> =
        findings.iter().filter(|finding| !is_known(finding)).map(Finding::line).collect();
    let mut lines = Vec::new();
    for known in known {
        let (kernel, rule) = (known.kernel, known.rule.name());
        let of_one = findings.iter().filter(|finding| finding.is(known));
        let found: Vec<u32> = of_one.map(|finding| finding.found).collect();
        if found.is_empty() {
            faults.push(format!("{kernel}: {rule}: no longer a fault: take it off the list"));
        } else {
            let (found, reason) = (range(found), known.reason);
            let architectures = known.architectures.join(", ");
            lines.push(format!("known: {kernel} for {architectures}: {rule}: {found}: {reason}"));
        }
    }
    let covers = |expected: &&Expected| seen.iter().any(|(row, _)| expected.is_for(row));
    let unused = expected.iter().filter(|expected| !covers(expected));
    faults.extend(unused.map(|one| format!("{} {}: not compiled", one.kernel, one.only)));
    (lines, faults)
}

/// A line for each grid that is not that of the launch: waves would be of other grids than those
/// that the program launches.
pub fn grid_faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for Expected { kernel, grid, .. } in EXPECTED {
        let Some(Grid { per_multiprocessor, file }) = grid else { continue };
        let entry = format!("\"{}\"", kernel.rsplit(':').next().unwrap_or(kernel));
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        let number = per_multiprocessor.to_string();
        let says = |line: &str| {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
            match *per_multiprocessor {
                RESIDENT => line.contains("run_resident") && line.contains(&entry),
                _ => line.to_lowercase().contains("multiprocessor") && words.any(|w| w == number),
            }
        };
        if !text.lines().any(says) {
            let blocks = if *per_multiprocessor == RESIDENT { "resident" } else { &number };
            faults.push(format!("{file} launches no grid of {blocks} blocks a multiprocessor"));
        }
    }
    faults
}

/// Which rules a mutant breaks, each once.
pub fn rules_broken_by_a_mutant(row: &Row, facts: &Facts) -> Vec<Rule> {
    let mut rules: Vec<Rule> =
        findings(row, facts, OF_MUTANTS).iter().map(|finding| finding.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

fn has(row: &Row, constant: &str) -> bool {
    row.constants.split(' ').any(|word| word == constant)
}

impl Expected {
    fn is_for(&self, row: &Row) -> bool {
        self.kernel == row.kernel
            && (self.only.is_empty() || has(row, self.only))
            && !self.except.iter().any(|constant| has(row, constant))
    }

    fn loads_in_flight(&self, facts: &Facts) -> u32 {
        match self.width {
            Width::Sixteen => facts.in_flight.most,
            Width::Eight => facts.half_in_flight.most,
        }
    }

    /// Per cent of stores that are as wide; a hundred where there are none.
    fn wide_stores(&self, facts: &Facts) -> u32 {
        let counts = &facts.counts;
        let wide = match self.width {
            Width::Sixteen => counts.wide_stores,
            Width::Eight => counts.half_wide_stores,
        };
        (100 * wide).checked_div(counts.stores).unwrap_or(100)
    }
}

fn findings<'a>(row: &'a Row, facts: &Facts, expected: &[Expected]) -> Vec<Finding<'a>> {
    let resident = blocks(row, facts);
    let mut values = vec![
        (Rule::Spills, 0, row.spill_bytes),
        (Rule::LocalMemory, 0, facts.counts.local),
        // A block that does not fit cannot be launched.
        (Rule::Blocks, 1, resident),
    ];
    for one in expected.iter().filter(|one| one.is_for(row)) {
        values.extend([
            (Rule::LoadsInFlight, one.loads_in_flight, one.loads_in_flight(facts)),
            (Rule::WideStores, one.wide_stores, one.wide_stores(facts)),
            (Rule::Tensor, one.tensor, facts.counts.tensor),
            (Rule::Blocks, one.blocks, resident),
        ]);
    }
    let broken = values.into_iter().filter(|(rule, limit, found)| !rule.is_met(*found, *limit));
    broken.map(|(rule, limit, found)| Finding { row, rule, limit, found }).collect()
}

/// Blocks that a multiprocessor holds, by registers, threads and static shared memory.
fn blocks(row: &Row, facts: &Facts) -> u32 {
    occupancy::blocks(&row.architecture, threads(facts), row.registers, row.shared_bytes)
        .unwrap_or(0)
}

/// Without bounds a block may have as many threads as there can be.
fn threads(facts: &Facts) -> u32 {
    facts.threads.unwrap_or(1024)
}

/// A line for each architecture and each line of the table, over all its instances.
pub fn table(seen: &[(Row, Facts)]) -> Vec<String> {
    let mut lines = vec![line(
        ["arch", "kernel", "registers", "blocks", "warps", "waves"],
        ["flight", "wide stores %", "tensor", "loops", "instances"],
    )];
    let mut groups: BTreeMap<(&str, usize), Vec<&(Row, Facts)>> = BTreeMap::new();
    for one in seen {
        let Some(index) = EXPECTED.iter().position(|expected| expected.is_for(&one.0)) else {
            continue;
        };
        groups.entry((&one.0.architecture, index)).or_default().push(one);
    }
    lines.extend(
        groups.into_iter().map(|((architecture, index), group)| {
            group_line(architecture, &EXPECTED[index], &group)
        }),
    );
    lines
}

fn group_line(architecture: &str, expected: &Expected, group: &[&(Row, Facts)]) -> String {
    let over = |value: &dyn Fn(&Row, &Facts) -> u32| {
        range(group.iter().map(|(row, facts)| value(row, facts)).collect())
    };
    let waves = expected.grid.as_ref().map_or(String::new(), |grid| {
        let most = group.iter().map(|(row, facts)| blocks(row, facts)).min().unwrap_or(0).max(1);
        match grid.per_multiprocessor {
            RESIDENT => "1.0".to_owned(),
            number => format!("{:.1}", f64::from(number) / f64::from(most)),
        }
    });
    let loops = group.iter().map(|(_, facts)| match expected.width {
        Width::Sixteen => &facts.in_flight.loops,
        Width::Eight => &facts.half_in_flight.loops,
    });
    let loops = range(loops.flatten().copied().collect());
    let kernel = format!("{} {}", expected.kernel, expected.only);
    line(
        [
            architecture,
            &kernel,
            &over(&|row, _| row.registers),
            &over(&blocks),
            &over(&|row, facts| blocks(row, facts) * threads(facts).div_ceil(32)),
            &waves,
        ],
        [
            &over(&|_, facts| expected.loads_in_flight(facts)),
            &over(&|_, facts| expected.wide_stores(facts)),
            &over(&|_, facts| facts.counts.tensor),
            &loops,
            &group.len().to_string(),
        ],
    )
}

fn line(first: [&str; 6], rest: [&str; 5]) -> String {
    let [architecture, kernel, registers, blocks, warps, waves] = first;
    let [flight, stores, tensor, loops, instances] = rest;
    format!(
        "{architecture:7} {kernel:44} {registers:>9} {blocks:>6} {warps:>6} {waves:>5} \
         {flight:>6} {stores:>13} {tensor:>6} {loops:>5} {instances:>9}"
    )
}

/// `3`, or `3-8`.
fn range(values: Vec<u32>) -> String {
    match (values.iter().min(), values.iter().max()) {
        (Some(least), Some(most)) if least != most => format!("{least}-{most}"),
        (Some(least), _) => least.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::expected::{ALL, NOTHING};
    use super::super::flow::InFlight;
    use super::super::sass::Counts;
    use super::*;

    const ONE: &[Expected] = &[Expected {
        kernel: "a:b",
        except: &["DIM=0"],
        loads_in_flight: 4,
        wide_stores: 100,
        ..NOTHING
    }];

    fn seen(in_flight: u32, constants: &str) -> (Row, Facts) {
        let row = Row {
            architecture: "sm_80".to_owned(),
            kernel: "a:b".to_owned(),
            constants: constants.to_owned(),
            registers: 40,
            spill_bytes: 0,
            shared_bytes: 0,
            file: String::new(),
        };
        let in_flight = InFlight { most: in_flight, loops: vec![] };
        let counts = Counts { stores: 2, wide_stores: 2, ..Counts::default() };
        (row, Facts { threads: Some(256), in_flight, counts, ..Facts::default() })
    }

    #[test]
    fn a_failing_line_names_kernel_architecture_expected_and_found() {
        let (known, faults) = judge_by(&[seen(1, "DIM=8"), seen(4, "DIM=4")], ONE, &[]);
        let line = "a:b for sm_80: loads in flight: expected at least 4, found 1 (DIM=8)";
        assert_eq!((known, faults), (vec![], vec![line.to_owned()]));
        let (_, faults) = judge_by(&[seen(1, "DIM=0")], ONE, &[]);
        assert_eq!(faults, ["a:b : not compiled"]);
    }

    #[test]
    fn a_known_fault_is_none_until_it_is_worse_or_mended() {
        let known = |worst| {
            let (rule, reason) = (Rule::LoadsInFlight, "because");
            [Known { kernel: "a:b", only: "DIM=8", architectures: ALL, rule, worst, reason }]
        };
        let (lines, faults) = judge_by(&[seen(2, "DIM=8")], ONE, &known(2));
        assert!(
            faults.is_empty() && lines[0].ends_with("loads in flight: 2: because"),
            "{lines:?}"
        );
        let (_, faults) = judge_by(&[seen(1, "DIM=8"), seen(2, "DIM=8")], ONE, &known(2));
        assert!(faults[0].contains("found 1"), "{faults:?}");
        let (_, faults) = judge_by(&[seen(4, "DIM=8")], ONE, &known(2));
        assert!(faults[0].contains("no longer a fault"), "{faults:?}");
        let (_, faults) = judge_by(&[seen(2, "DIM=4"), seen(2, "DIM=8")], ONE, &known(2));
        assert!(faults[0].contains("DIM=4"), "{faults:?}");
    }

    #[test]
    fn what_every_kernel_must_keep_needs_no_line() {
        let (mut row, mut facts) = seen(0, "");
        (row.spill_bytes, facts.counts.local, facts.threads) = (8, 3, Some(1024));
        row.registers = 128;
        let rules: Vec<Rule> =
            findings(&row, &facts, &[]).iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, [Rule::Spills, Rule::LocalMemory, Rule::Blocks]);
    }

    #[test]
    fn grids_are_those_of_the_launches() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        assert_eq!(grid_faults(root), Vec::<String>::new());
        assert_eq!(grid_faults(&root.join("docs")).len(), EXPECTED.len());
    }
}
