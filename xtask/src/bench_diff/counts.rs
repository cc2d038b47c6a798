//! Instructions of every benchmark, counted by callgrind, next to the counts that were kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ci::Outcome;
use crate::process::{self, At as _, command};

/// Where counts are kept, from the workspace's root.
const KEPT: &str = "benches/results/instructions.txt";

/// Instruction sets that callgrind knows, and what is counted of each, as `--only` takes it: work
/// that is the same in every run and takes callgrind a second. Portable processors have no fused
/// multiply-add: products there are a call of a function each.
const COUNTED: [(&str, &[&str]); 2] = [
    (
        "avx2",
        &["parse/lines", "route/", "lookup/", "update/", "interaction", "32x13x512", "32x512x256"],
    ),
    ("portable", &["parse/lines", "route/", "lookup/", "update/", "32x13x512"]),
];

/// The function that every counted body is called from. `--dump-after` takes no pattern.
const BODY: &str = "headlong_benches::harness::counted_instructions";

/// How far a count may rise: by the compiler that the counts were kept with, and by another one.
const TOLERANCE: (f64, f64) = (1.02, 1.15);

/// Counts by `instruction set` and `benchmark`.
type Counts = BTreeMap<(String, String), u64>;

/// What was kept: counts, and the compiler they belong to.
struct Kept {
    compiler: String,
    counts: Counts,
}

pub fn check(root: &Path, program: &Path) -> Result<Outcome> {
    if let Some(reason) = cannot_count() {
        return Ok(Outcome::Skipped(reason));
    }
    let kept = Kept::read(root)?;
    let compiler = compiler()?;
    let factor = if compiler == kept.compiler { TOLERANCE.0 } else { TOLERANCE.1 };
    let counts = count_all(program)?;
    let (text, slower) = compare(&kept.counts, &counts, factor);
    print!("{text}");
    Ok(match slower.as_slice() {
        [] => Outcome::Passed(format!("{} instruction counts as kept or lower", counts.len())),
        slower => Outcome::Failed(format!(
            "{} of {} benchmarks take more than {factor} times the instructions kept in {KEPT}: \
             {}. If that is meant, `cargo xtask bench-diff --keep` keeps the new counts",
            slower.len(),
            counts.len(),
            slower.join(", ")
        )),
    })
}

pub fn keep(root: &Path, program: &Path) -> Result<Outcome> {
    if let Some(reason) = cannot_count() {
        return Ok(Outcome::Skipped(reason));
    }
    let kept = Kept { compiler: compiler()?, counts: count_all(program)? };
    fs::write(root.join(KEPT), kept.text()).context(KEPT)?;
    Ok(Outcome::Passed(format!("{} instruction counts kept in {KEPT}", kept.counts.len())))
}

fn cannot_count() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some("instruction counts were kept for x86-64".to_owned());
    }
    (!process::answers("valgrind", &["--version"])).then(|| "valgrind is not installed".to_owned())
}

fn compiler() -> Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("rustc --version")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Kept {
    fn read(root: &Path) -> Result<Self> {
        let path = root.join(KEPT);
        let text = fs::read_to_string(&path).at(&path)?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut kept = Self { compiler: String::new(), counts: Counts::new() };
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(compiler) = line.strip_prefix("# compiler: ") {
                compiler.clone_into(&mut kept.compiler);
            } else if !line.starts_with('#') && !line.is_empty() {
                let mut words = line.splitn(3, ' ');
                let (count, set, name) = (words.next(), words.next(), words.next());
                let count = count.and_then(|count| count.parse().ok());
                let (Some(count), Some(set), Some(name)) = (count, set, name) else {
                    anyhow::bail!(
                        "{KEPT}: line {number}: expected `COUNT SET BENCHMARK`, found `{line}`"
                    );
                };
                kept.counts.insert((set.to_owned(), name.to_owned()), count);
            }
        }
        Ok(kept)
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Instructions of one call of each benchmark on tiny data, counted by callgrind: \
             `cargo xtask bench-diff --keep`.\n\
             # compiler: {}\n",
            self.compiler
        );
        for ((set, name), count) in &self.counts {
            writeln!(text, "{count} {set} {name}").expect("writing to a string never fails");
        }
        text
    }
}

fn count_all(program: &Path) -> Result<Counts> {
    let folder = std::env::temp_dir().join(format!("headlong-counts-{}", std::process::id()));
    let mut counts = Counts::new();
    for (set, all) in COUNTED {
        for only in all {
            fs::create_dir_all(&folder).at(&folder)?;
            let found = count(program, set, only, &folder);
            fs::remove_dir_all(&folder).at(&folder)?;
            counts.extend(found?.into_iter().map(|(name, count)| ((set.to_owned(), name), count)));
        }
    }
    Ok(counts)
}

/// Counts the benchmarks `only`: callgrind counts inside [`BODY`] alone, and writes a file at its
/// every end.
fn count(program: &Path, set: &str, only: &str, folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut counted =
        command("valgrind", &["--tool=callgrind", "--quiet", "--collect-atstart=no"], folder);
    counted.args([format!("--toggle-collect={BODY}"), format!("--dump-after={BODY}")]);
    counted.arg("--callgrind-out-file=out").arg(program);
    counted.args(["--count", "--threads", "1", "--isa", set, "--only", only]);
    let finished = process::read(counted, |_| false)?;
    ensure!(finished.success, "counting {only} with {set} failed:\n{}", finished.lines.join("\n"));
    let names = finished.lines.iter().filter_map(|line| line.strip_prefix("counted "));
    let total = |(number, name): (usize, &str)| {
        let path = folder.join(format!("out.{number}"));
        let text =
            fs::read_to_string(&path).with_context(|| format!("callgrind's count of {name}"))?;
        Ok((
            name.to_owned(),
            total_of(&text).with_context(|| format!("no total in the count of {name}"))?,
        ))
    };
    (1..).zip(names).map(total).collect()
}

fn total_of(text: &str) -> Option<u64> {
    let totals = text
        .lines()
        .find_map(|line| line.strip_prefix("summary:").or(line.strip_prefix("totals:")));
    totals?.split_whitespace().next()?.parse().ok()
}

/// A table of both counts, and the names of what rose by more than `factor`, came or went.
fn compare(kept: &Counts, counts: &Counts, factor: f64) -> (String, Vec<String>) {
    let mut text = format!("{:<52} {:>14} {:>14}  ratio\n", "instructions", "kept", "now");
    let mut slower = Vec::new();
    for ((set, name), &now) in counts {
        let was = kept.get(&(set.clone(), name.clone())).copied();
        let ratio = was.map_or(f64::INFINITY, |was| now as f64 / was as f64);
        let title = format!("{name}, {set}");
        let was = was.map_or("none".to_owned(), |was| was.to_string());
        writeln!(text, "{title:<52} {was:>14} {now:>14}  {ratio:.3}")
            .expect("writing to a string never fails");
        if ratio > factor {
            slower.push(title);
        }
    }
    let gone = kept.keys().filter(|key| !counts.contains_key(*key));
    slower.extend(gone.map(|(set, name)| format!("{name}, {set} (no longer there)")));
    (text, slower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> Counts {
        all.iter().map(|&(name, count)| (("avx2".to_owned(), name.to_owned()), count)).collect()
    }

    #[test]
    fn what_rose_came_or_went_is_named_and_nothing_else() {
        let kept = counts(&[("same", 100), ("slower", 100), ("faster", 100), ("gone", 5)]);
        let now = counts(&[("same", 101), ("slower", 103), ("faster", 50), ("new", 7)]);
        let (text, slower) = compare(&kept, &now, 1.02);
        assert_eq!(slower, ["new, avx2", "slower, avx2", "gone, avx2 (no longer there)"]);
        assert!(text.contains("faster, avx2") && text.contains("0.500"), "{text}");
        assert!(compare(&kept, &kept, 1.02).1.is_empty());
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = Kept {
            compiler: "rustc 1.0".to_owned(),
            counts: counts(&[("linear/forward 2x3", 12)]),
        };
        let again = Kept::parse(&kept.text()).unwrap();
        assert_eq!((again.compiler, again.counts), (kept.compiler, kept.counts));
        let error = Kept::parse("# text\n12 avx2").err().unwrap().to_string();
        assert!(error.contains("line 2") && error.contains("12 avx2"), "{error}");
    }

    #[test]
    fn callgrinds_total_is_found() {
        assert_eq!(total_of("events: Ir\nsummary: 1234\n\nfn=(1)\n"), Some(1234));
        assert_eq!(total_of("events: Ir\ntotals: 77\n"), Some(77));
        assert_eq!(total_of("fn=(1)\n"), None);
    }
}
