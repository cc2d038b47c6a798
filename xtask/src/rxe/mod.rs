//! `cargo xtask rxe`: our verbs against the real libibverbs and the kernel's Soft-RoCE, on a machine without RDMA.
//!
//! A stock Debian kernel runs in QEMU under software emulation, and in it two `rdma_rxe` devices on the two ends of a cable
//! that leads nowhere else. Packages are downloaded and unpacked below the target folder, never installed; nothing needs
//! root, and the host's kernel needs no module. What runs there is `comm-rxe` (`comm/src/bin/comm-rxe`) and `headlong`
//! itself. It shows that the code is right, never how fast it is.
//!
//! | file | does |
//! |---|---|
//! | [`packages`] | downloads and unpacks; prepares kernel and base of the guest once |
//! | [`image`] | the guest's file system, as the kernel takes it |
//! | [`machine`] | boots, listens, gives up in time, tries again |
//! | `guest/` | what runs as the guest's first process and behind it |

mod image;
mod machine;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::ci::Outcome;
use crate::cuda::Had;
use crate::process::{self, cargo};
use crate::require::Required;
use crate::soak::{about_this_machine, today};
use machine::{Boot, Verdict};

/// Random exchanges in the step of `cargo xtask ci`.
const STEPS: u32 = 500;
/// Random exchanges of `--full`.
const FULL_STEPS: u32 = 10_000;

/// What runs in the guest.
const PROGRAMS: [&str; 2] = ["comm-rxe", "headlong"];

/// What is asked for.
struct Options {
    steps: u32,
    full: bool,
    /// `headlong train` over verbs, too.
    train: bool,
    /// A folder with the guest's programs; none: they are built.
    programs: Option<PathBuf>,
}

/// `cargo xtask rxe [--full] [--train] [--steps N] [--programs FOLDER]`.
pub fn run(root: &Path, target: &Path, words: &[&str]) -> Result<bool> {
    let options = parse(words)?;
    let required = Required::from_environment()?;
    Ok(match check(root, target, &options)? {
        Outcome::Passed(summary) => {
            println!("rxe: passed: {summary}");
            true
        }
        Outcome::Failed(summary) => {
            println!("rxe: FAILED: {summary}");
            false
        }
        Outcome::Skipped(reason) => {
            println!("rxe: skipped, because {reason}");
            !required.wants("rxe")
        }
    })
}

/// The step of `cargo xtask ci`.
pub fn step(root: &Path, target: &Path) -> Result<Outcome> {
    check(root, target, &Options { steps: STEPS, full: false, train: false, programs: None })
}

fn parse(words: &[&str]) -> Result<Options> {
    let mut options = Options { steps: 0, full: false, train: false, programs: None };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--full" => options.full = true,
            "--train" => options.train = true,
            "--steps" => {
                let number = rest.next().context("--steps needs a number")?;
                options.steps = number.parse().with_context(|| format!("--steps {number}"))?;
            }
            "--programs" => options.programs = Some(rest.next().context("--programs needs a folder")?.into()),
            word => bail!("`rxe` takes --full, --train, --steps N and --programs FOLDER, not `{word}`"),
        }
    }
    if options.steps == 0 {
        options.steps = if options.full { FULL_STEPS } else { STEPS };
    }
    Ok(options)
}

fn check(root: &Path, target: &Path, options: &Options) -> Result<Outcome> {
    let started = Instant::now();
    let home = target.join("rxe");
    let base = match packages::prepare(&home)? {
        Had::Here(base) => base,
        Had::Not(reason) => return Ok(Outcome::Skipped(format!("the guest of rxe cannot be had: {reason}"))),
    };
    let built = match &options.programs {
        Some(folder) => folder.clone(),
        None => build(root, target)?,
    };
    let programs = strip(&built, &home.join("programs"))?;
    let image = home.join("guest.cpio");
    image::write(&base, &programs, &image)?;
    println!("rxe: ready to boot after {:.0} s", started.elapsed().as_secs_f64());
    let mut log = about_this_machine("cargo xtask rxe", root);
    let verdicts = boots(&base, &image, options)?;
    let mut failed = Vec::new();
    let mut checks = 0;
    for (name, verdict) in verdicts {
        log.push(format!("\n== {name}: {}", verdict.words()));
        checks += verdict.num_passed();
        if !verdict.is_good() {
            failed.push(format!("{name}: {}", verdict.words()));
        }
        log.extend(verdict.lines);
    }
    let took = started.elapsed().as_secs_f64();
    log.push(format!("\n{checks} checks passed, {} boots failed, {took:.0} s", failed.len()));
    let kept = match options.full {
        true => root.join(format!("benches/results/rxe-{}.log", today()?)),
        false => home.join("last.log"),
    };
    process::write_lines(&kept, &log)?;
    println!("rxe: log kept in {}", kept.display());
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{checks} checks, {} steps", options.steps)),
        false => Outcome::Failed(failed.join("; ")),
    })
}

/// Boots every guest that is asked for, one after another; the last form is two guests at a time.
fn boots(base: &Path, image: &Path, options: &Options) -> Result<Vec<(String, Verdict)>> {
    // Emulated, a step of random sizes takes tens of milliseconds, on a busy machine a few times as long.
    let limit = Duration::from_secs(300) + Duration::from_millis(300) * options.steps;
    let boot = |script: &str| {
        Boot::new(base, image, script, limit)
            .with("rxe_steps", options.steps)
            .with("rxe_train", u8::from(options.train))
    };
    let mut verdicts = vec![("two devices".to_owned(), machine::run(&boot("two-devices.sh"))?)];
    if options.full {
        let [first, second] = machine::run_pair(&boot("two-guests.sh"), &base.join("cable"))?;
        verdicts.push(("two guests, the first".to_owned(), first));
        verdicts.push(("two guests, the second".to_owned(), second));
    }
    Ok(verdicts)
}

/// Builds the programs that run in the guest; the folder they are in.
fn build(root: &Path, target: &Path) -> Result<PathBuf> {
    // All of the workspace decides the features, as in the tests: nothing is built twice.
    let mut arguments = vec!["build", "--release", "--workspace"];
    arguments.extend(PROGRAMS.iter().flat_map(|program| ["--bin", program]));
    ensure!(process::show(cargo(&arguments, root))?, "the guest's programs cannot be built");
    Ok(target.join("release"))
}

/// Copies the programs without what only a debugger reads.
fn strip(built: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    // Without `strip` the guest only takes longer to load.
    let can_strip = process::answers("strip", &["--version"]);
    let copy = |name: &&str| {
        let (from, to) = (built.join(name), to.join(name));
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
        if can_strip {
            ensure!(
                Command::new("strip").arg(&to).status()?.success(),
                "{} cannot be stripped",
                to.display()
            );
        }
        Ok(to)
    };
    PROGRAMS.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_form_has_more_steps_unless_told_otherwise() {
        let steps = |words: &[&str]| parse(words).map(|options| (options.full, options.steps)).ok();
        assert_eq!(steps(&[]), Some((false, STEPS)));
        assert_eq!(steps(&["--full"]), Some((true, FULL_STEPS)));
        assert_eq!(steps(&["--full", "--steps", "7"]), Some((true, 7)));
        assert_eq!((steps(&["--steps"]), steps(&["--fast"])), (None, None));
    }
}
