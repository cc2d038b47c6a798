//! Tutorials, followed in an empty folder each.
//!
//! A block of `console` holds commands, after `$ `, and what they print: each line below a command
//! must be a line of its output, in this order. `…` stands for any part of a line; between two
//! lines the program may have printed others. A block whose first line is a comment with a file's
//! name is that file. A block of `console,needs-criteo` is followed where Criteo's sample lies next
//! to the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::super::pages::{self, Block};
use super::super::{Outcome, Workshop};
use crate::process::{self, At as _};

/// The pages that are followed: all tutorials, and the first page.
const PAGES: [&str; 6] = [
    "docs/quick-start.md",
    "docs/tutorials/criteo.md",
    "docs/tutorials/own-csv.md",
    "docs/tutorials/own-table.md",
    "docs/tutorials/pandas.md",
    "docs/tutorials/two-machines.md",
];

const SAMPLE: &str = "../shared/data/criteo";
const NEEDS_SAMPLE: &str = "console,needs-criteo";

/// How an example is run from a clone, and where it lies once it is built with the tests: `cargo
/// run` would build what it is made of again, with other features.
const EXAMPLE: &str = "cargo run --release -p headlong --example ";

/// Where programs and data are.
struct Machine {
    /// Folders of programs, which come before those of `PATH`.
    programs: Vec<PathBuf>,
    examples: PathBuf,
    sample: Option<PathBuf>,
    has_wheel: bool,
}

impl Machine {
    fn of(workshop: &Workshop) -> Self {
        let release = workshop.target().join("release");
        // The step `python` has installed the wheel there.
        let python = workshop.scratch().join("python/environment/bin");
        let import = "import headlong, pandas, sklearn";
        let has_wheel = python.join("python").exists()
            && process::answers(&python.join("python").to_string_lossy(), &["-c", import]);
        let sample = workshop.root.join(SAMPLE);
        Self {
            programs: vec![release.clone(), python],
            examples: release.join("examples"),
            sample: sample.is_dir().then_some(sample),
            has_wheel,
        }
    }

    /// The command as it is run here.
    fn script(&self, command: &str) -> String {
        let here = format!("{}/", self.examples.display());
        let command =
            command.replace(&format!("{EXAMPLE}05_own_program --"), &(here + "05_own_program"));
        let programs: Vec<String> =
            self.programs.iter().map(|folder| folder.display().to_string()).collect();
        format!("PATH=\"{}:$PATH\"\n{command}", programs.join(":"))
    }
}

/// Follows every tutorial.
pub fn follow_all(workshop: &Workshop) -> Result<Outcome> {
    let machine = Machine::of(workshop);
    ensure!(
        machine.programs[0].join("headlong").exists() && machine.examples.exists(),
        "the program and its examples are not built: the step `examples` builds them"
    );
    let (mut commands, mut faults) = (0, Vec::new());
    let mut skips = Vec::new();
    for name in PAGES {
        if name.contains("pandas") && !machine.has_wheel {
            skips.push("the wheel needs to be installed, by the step python".to_owned());
            continue;
        }
        let path = workshop.root.join(name);
        let text = fs::read_to_string(&path).at(&path)?;
        let folder = workshop.scratch().join("tutorials").join(path.file_stem().context(name)?);
        process::fresh_folder(&folder)?;
        match follow(&text, &folder, &machine) {
            Ok(ran) => commands += ran,
            Err(error) => faults.push(format!("{name}: {error:#}")),
        }
        // Models and data: what is left would be as large as what is built.
        fs::remove_dir_all(&folder).at(&folder)?;
    }
    if !faults.is_empty() {
        return Ok(Outcome::Failed(faults.join("; ")));
    }
    let mut remark = format!("{commands} commands of {} pages", PAGES.len());
    if machine.sample.is_none() {
        let reason = format!("{SAMPLE} is absent, which one command needs");
        match workshop.required.forbids(&reason) {
            Some(_) => skips.push(reason),
            // All pages were followed: that one is said to have been left out, no more.
            None => remark += &format!(" ({reason})"),
        }
    }
    let passed = Outcome::Passed(remark);
    Ok(skips.into_iter().map(Outcome::Skipped).fold(passed, Outcome::and))
}

/// Follows `page` in `folder`; how many commands ran.
fn follow(page: &str, folder: &Path, machine: &Machine) -> Result<usize> {
    let mut ran = 0;
    for block in pages::blocks(page) {
        if let Some((name, text)) = block.file() {
            fs::write(folder.join(name), text).with_context(|| name.to_owned())?;
        } else if block.language == "console" {
            ran += follow_block(&block, folder, machine)?;
        } else if block.language == NEEDS_SAMPLE
            && let Some(sample) = &machine.sample
        {
            for file in ["train.txt.gz", "valid.txt.gz"] {
                std::os::unix::fs::symlink(sample.join(file), folder.join(file))
                    .with_context(|| file.to_owned())?;
            }
            ran += follow_block(&block, folder, machine)?;
        }
    }
    Ok(ran)
}

fn follow_block(block: &Block<'_>, folder: &Path, machine: &Machine) -> Result<usize> {
    let exchanges = exchanges(block)?;
    for Exchange { command, printed } in &exchanges {
        let script = machine.script(command);
        let finished = process::read(process::command("sh", &["-ec", &script], folder), |_| true)?;
        ensure!(finished.success, "`{command}` fails");
        if let Some(missing) = first_missing(printed, &finished.lines) {
            bail!("`{command}` does not print `{missing}`, or not in this order");
        }
    }
    Ok(exchanges.len())
}

/// A command, and the lines that the page says it prints.
struct Exchange<'a> {
    command: String,
    printed: Vec<&'a str>,
}

fn exchanges<'a>(block: &Block<'a>) -> Result<Vec<Exchange<'a>>> {
    let mut exchanges: Vec<Exchange<'a>> = Vec::new();
    let mut continues = false;
    for line in &block.lines {
        let start = line.strip_prefix("$ ");
        match (start, exchanges.last_mut()) {
            (Some(command), _) => {
                exchanges.push(Exchange { command: command.to_owned(), printed: Vec::new() });
            }
            (None, Some(last)) if continues => last.command += &format!("\n{line}"),
            (None, Some(last)) => last.printed.push(*line),
            (None, None) => bail!("a block of console begins with `{line}`, not with `$ `"),
        }
        continues = (start.is_some() || continues) && line.ends_with('\\');
    }
    Ok(exchanges)
}

/// The first line of `printed` that is not in `lines` after those before it.
fn first_missing<'a>(printed: &[&'a str], lines: &[String]) -> Option<&'a str> {
    let mut rest = lines.iter();
    printed
        .iter()
        .find(|wanted| **wanted != "…" && !rest.any(|line| fits(wanted.trim(), line.trim())))
        .copied()
}

/// Whether `line` is `pattern`, in which `…` stands for any part.
fn fits(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else { return pattern == line };
    let Some(after) = line.strip_prefix(first) else { return false };
    let starts = after.char_indices().map(|(at, _)| at).chain([after.len()]);
    starts.into_iter().any(|at| fits(rest, &after[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_of_the_page_is_found_in_the_output() {
        assert!(fits("AUC 0.80", "AUC 0.80"));
        assert!(!fits("AUC 0.80", "AUC 0.801") && !fits("AUC 0.80", "the AUC 0.80"));
        assert!(fits("AUC 0.8…", "AUC 0.801") && fits("…0.8…", "AUC 0.801"));
        assert!(
            fits("step … AUC …4", "step 4, AUC 0.44") && !fits("step … AUC …4", "step 4, AUC 5")
        );
        assert!(!fits("AUC 0.8…", "AUC 0.701") && !fits("…s", "3 s, 4"));
    }

    #[test]
    fn lines_are_found_in_their_order() {
        let output = lines("plan\nstep 1\nstep 2\ndone");
        assert_eq!(first_missing(&["plan", "…", "step 2"], &output), None);
        assert_eq!(first_missing(&["step 2", "step 1"], &output), Some("step 1"));
        assert_eq!(first_missing(&["step 1", "step 1"], &output), Some("step 1"));
    }

    #[test]
    fn a_block_is_commands_with_what_they_print() {
        let page = "```console\n$ one \\\n    two\nthree\n$ four\n```\n";
        let blocks = pages::blocks(page);
        let exchanges = exchanges(&blocks[0]).unwrap();
        let found: Vec<_> =
            exchanges.iter().map(|one| (one.command.as_str(), one.printed.clone())).collect();
        assert_eq!(found, [("one \\\n    two", vec!["three"]), ("four", vec![])]);
        assert!(super::exchanges(&pages::blocks("```console\nthree\n```\n")[0]).is_err());
    }

    #[test]
    fn a_page_that_says_what_is_not_printed_fails() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            programs: Vec::new(),
            examples: PathBuf::new(),
            sample: None,
            has_wheel: false,
        };
        let follow = |page: &str| follow(page, folder.path(), &machine);
        let page = "```toml\n# a.toml\n[a]\n```\n```console\n$ cat a.toml\n[a]\n```\n";
        assert_eq!(follow(page).unwrap(), 1);
        let error = follow("```console\n$ echo 3\n4\n```\n").unwrap_err().to_string();
        assert!(error.contains("does not print `4`"), "{error}");
        assert!(follow("```console\n$ false\n```\n").is_err());
        assert_eq!(follow("```console,needs-criteo\n$ false\n```\n").unwrap(), 0);
    }

    /// Every tutorial is followed, runs something, and says what is printed.
    #[test]
    fn every_tutorial_is_one_of_those_that_are_followed() {
        let root = crate::workspace_root();
        let files = fs::read_dir(root.join("docs/tutorials")).unwrap();
        let mut found: Vec<String> =
            files.map(|file| crate::tidy::text::relative(&root, &file.unwrap().path())).collect();
        found.sort();
        assert_eq!(found, PAGES[1..]);
        for name in PAGES {
            let text = fs::read_to_string(root.join(name)).unwrap();
            let blocks = pages::blocks(&text);
            let all = blocks.iter().filter(|block| block.language.starts_with("console"));
            let exchanges: Vec<_> = all.flat_map(|block| exchanges(block).unwrap()).collect();
            let says = exchanges.iter().filter(|exchange| !exchange.printed.is_empty()).count();
            assert!(exchanges.len() >= 3 && says >= 2, "{name}");
        }
    }
}
