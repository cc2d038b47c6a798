//! `cargo xtask rxe`: our verbs against the real libibverbs and the kernel's Soft-RoCE, on a
//! machine without RDMA.
//!
//! A stock Debian kernel runs in QEMU under software emulation, and in it two `rdma_rxe` devices on
//! the two ends of a cable that leads nowhere else. Packages are downloaded and unpacked below the
//! target folder, never installed; nothing needs root, and the host's kernel needs no module. What
//! runs there is `rxe` (`comm/verbs/tests/rxe`) and `headlong` itself. It shows that the code
//! is right, never how fast it is.
//!
//! | file | does |
//! |---|---|
//! | [`packages`] | downloads and unpacks; prepares kernel and base of the guest once |
//! | [`device`] | puts the software CUDA device in it, for rails between devices |
//! | [`image`] | the guest's file system, as the kernel takes it |
//! | [`machine`] | boots, listens, gives up in time, tries again |
//! | [`limit`] | the time that all of it has |
//! | `guest/` | what runs as the guest's first process and after it |

mod device;
mod image;
mod limit;
mod machine;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::ci::Outcome;
use crate::cuda::Had;
use crate::process::{self, At as _, cargo};
use crate::require::Required;
use crate::soak::{about_this_machine, today};
use device::{Placed, Words};
use limit::Limit;
use machine::{Boot, Verdict};

/// Random exchanges in the step of `cargo xtask ci`.
const STEPS: u32 = 500;
/// Random exchanges of `--full`.
const FULL_STEPS: u32 = 10_000;

const PROGRAMS: [&str; 2] = ["examples/rxe", "headlong"];
/// The crate `ibverbs` next to our layer.
const LINKED: &str = "headlong-verbs/verbs-linked";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Two devices in one guest, and the crate `ibverbs` as the peer of our layer where it can be
    /// built: the step of `cargo xtask ci`.
    Devices,
    Guests,
    /// Both, and long, and [`Form::Cuda`].
    Full,
    /// The crate alone.
    Linked,
    /// Training with a software CUDA device for each rank, whose captured step drives the NICs.
    Cuda,
    /// How verbs do next to the other backends of the guest.
    Timings,
}

impl Form {
    fn num_steps(self) -> u32 {
        if self == Self::Full { FULL_STEPS } else { STEPS }
    }

    fn programs(self) -> &'static [&'static str] {
        if self == Self::Linked { &PROGRAMS[..1] } else { &PROGRAMS }
    }
}

struct Options {
    form: Form,
    steps: u32,
    /// A folder with the guest's programs; none: they are built.
    programs: Option<PathBuf>,
}

impl Options {
    fn new(form: Form) -> Self {
        Self { form, steps: form.num_steps(), programs: None }
    }

    /// The longest that the guests may take, each for itself. Emulated, a step of random sizes
    /// takes tens of milliseconds, and a few times as long on a busy machine.
    fn guest_limit(&self) -> Duration {
        Duration::from_secs(420) + Duration::from_millis(300) * self.steps
    }

    /// The longest that all of it may take, from the first package to the log.
    fn limit(&self) -> Limit {
        Limit::new(Duration::from_secs(15 * 60) + self.guest_limit())
    }
}

/// `cargo xtask rxe [--full | --two-guests | --linked | --cuda | --timings] [--steps N]
/// [--programs FOLDER]`.
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
            required.forbids(&format!("rxe: {reason}")).is_none()
        }
    })
}

/// The step of `cargo xtask ci`.
pub fn step(root: &Path, target: &Path) -> Result<Outcome> {
    check(root, target, &Options::new(Form::Devices))
}

fn parse(words: &[&str]) -> Result<Options> {
    let form = |word: &str| match word {
        "--full" => Some(Form::Full),
        "--two-guests" => Some(Form::Guests),
        "--linked" => Some(Form::Linked),
        "--cuda" => Some(Form::Cuda),
        "--timings" => Some(Form::Timings),
        _ => None,
    };
    let mut options =
        Options::new(words.iter().find_map(|word| form(word)).unwrap_or(Form::Devices));
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            word if form(word) == Some(options.form) => {}
            "--steps" => {
                let number = rest.next().context("--steps needs a number")?;
                options.steps = number.parse().with_context(|| format!("--steps {number}"))?;
                ensure!(options.steps > 0, "--steps 0 checks nothing");
            }
            "--programs" => {
                options.programs = Some(rest.next().context("--programs needs a folder")?.into())
            }
            word => {
                bail!(
                    "`rxe` takes --full, --two-guests, --linked, --cuda or --timings, --steps N \
                     and --programs FOLDER, not `{word}`"
                )
            }
        }
    }
    Ok(options)
}

fn check(root: &Path, target: &Path, options: &Options) -> Result<Outcome> {
    let limit = options.limit();
    let home = target.join("rxe");
    let base = match packages::prepare(&home, &limit)? {
        Had::Here(base) => base,
        Had::Not(reason) => {
            return Ok(Outcome::Skipped(format!("the guest of rxe cannot be had: {reason}")));
        }
    };
    println!("rxe: {:.0} s: the guest's packages are there", limit.seconds());
    let links = matches!(options.form, Form::Devices | Form::Linked) && options.programs.is_none();
    let lacks = lacks_of_linked().filter(|_| links);
    if let (Some(reason), Form::Linked) = (&lacks, options.form) {
        return Ok(Outcome::Skipped(reason.clone()));
    }
    let linked = links && lacks.is_none();
    let built = match &options.programs {
        Some(folder) => folder.clone(),
        None => build(root, target, (options.form, linked), &limit)?,
    };
    println!("rxe: {:.0} s: the programs are built", limit.seconds());
    let programs = strip(&built, options.form.programs(), &home.join("programs"))?;
    let trains = matches!(options.form, Form::Cuda | Form::Full);
    let mut words = match options.form {
        Form::Linked | Form::Timings => Words::new(),
        _ => match device::put((root, target, &base), &home.join("programs"), trains, &limit)? {
            Placed::With(words) => words,
            Placed::Not(reason) if options.form == Form::Cuda => {
                return Ok(Outcome::Skipped(reason));
            }
            Placed::Not(reason) => {
                println!("rxe: no devices, because {reason}");
                Words::new()
            }
        },
    };
    if linked {
        words.push(("rxe_linked", "1".to_owned()));
    }
    let image = home.join("guest.cpio");
    image::write(&base, &programs, &image)?;
    println!("rxe: {:.0} s: ready to boot", limit.seconds());
    let verdicts = boots(&base, &image, (options, &words), &limit)?;
    let log = home.join("last.log");
    let kept = match options.form {
        Form::Devices => log,
        Form::Guests => root.join(format!("benches/results/rxe-{}-two-guests.log", today(root))),
        Form::Linked => root.join(format!("benches/results/rxe-{}-linked.log", today(root))),
        Form::Cuda => root.join(format!("benches/results/rxe-{}-cuda.log", today(root))),
        Form::Timings => root.join(format!("benches/results/rxe-{}-timings.log", today(root))),
        Form::Full => {
            root.join(format!("benches/results/rxe-{}-{}-steps.log", today(root), options.steps))
        }
    };
    let outcome = conclude(verdicts, about_this_machine("cargo xtask rxe", root), &kept, &limit)?;
    Ok(lacks.map(Outcome::Skipped).into_iter().fold(outcome, Outcome::and))
}

/// Writes the log; what all boots came to.
fn conclude(
    verdicts: Vec<(String, Verdict)>,
    mut log: Vec<String>,
    kept: &Path,
    limit: &Limit,
) -> Result<Outcome> {
    let (mut failed, mut checks, mut boots) = (Vec::new(), 0, Vec::new());
    for (name, verdict) in verdicts {
        log.push(format!("\n== {name}: {}", verdict.words()));
        checks += verdict.num_passed();
        boots.push(format!("{:.0} s", verdict.seconds()));
        if !verdict.is_good() {
            failed.push(format!("{name}: {}", verdict.words()));
        }
        log.extend(verdict.lines);
    }
    let summary =
        format!("{checks} checks, {:.0} s, of which boots {}", limit.seconds(), boots.join(" + "));
    log.push(format!("\n{summary}, {} failed", failed.len()));
    process::write_lines(kept, &log)?;
    println!("rxe: log kept in {}", kept.display());
    Ok(match failed.is_empty() {
        true => Outcome::Passed(summary),
        false => Outcome::Failed(failed.join("; ")),
    })
}

/// Boots every guest that is asked for, one after another; two guests at a time where they are
/// joined.
fn boots(
    base: &Path,
    image: &Path,
    (options, words): (&Options, &Words),
    limit: &Limit,
) -> Result<Vec<(String, Verdict)>> {
    let boot = |script: &str| {
        let boot =
            Boot::new(base, image, script, options.guest_limit()).with("rxe_steps", options.steps);
        words.iter().fold(boot, |boot, (name, value)| boot.with(name, value))
    };
    let form = options.form;
    let singles = [
        ("the crate ibverbs", "linked.sh", form == Form::Linked),
        ("two devices", "two-devices.sh", matches!(form, Form::Devices | Form::Full)),
        ("timings", "timings.sh", form == Form::Timings),
        (
            "training on software devices",
            "cuda.sh",
            matches!(form, Form::Cuda | Form::Full) && !words.is_empty(),
        ),
    ];
    let mut verdicts = Vec::new();
    for (name, script, _) in singles.into_iter().filter(|(.., is_due)| *is_due) {
        verdicts.push((name.to_owned(), machine::run(&boot(script), limit)?));
    }
    if matches!(form, Form::Guests | Form::Full) {
        let [first, second] =
            machine::run_pair(&boot("two-guests.sh"), &base.join("cable"), limit)?;
        verdicts.push(("two guests, the first".to_owned(), first));
        verdicts.push(("two guests, the second".to_owned(), second));
    }
    Ok(verdicts)
}

/// Builds the programs that run in the guest; the folder they are in.
///
/// They are the very ones that the tests were built with: the whole workspace and a test among what
/// is built make cargo choose the same features of every dependency. Else it would compile the
/// workspace a second time. The checks may also have the crate `ibverbs` in them, `linked` with
/// libibverbs; `headlong` never has.
fn build(
    root: &Path,
    target: &Path,
    (form, linked): (Form, bool),
    limit: &Limit,
) -> Result<PathBuf> {
    let tests = ["build", "--release", "--workspace", "--test", "opening"];
    let shown = |what: &str, programs: &[&str]| -> Result<()> {
        let built = limit.show(what, cargo(&[&tests[..], programs].concat(), root))?;
        ensure!(built, "{what} has failed");
        Ok(())
    };
    let checks = ["--example", "rxe", "--features", LINKED];
    shown("building the guest's checks", if linked { &checks } else { &checks[..2] })?;
    if form != Form::Linked {
        shown("building the guest's headlong", &["--bin", "headlong"])?;
    }
    Ok(target.join("release"))
}

/// What the crate `ibverbs` needs to be built; what of it is missing.
fn lacks_of_linked() -> Option<String> {
    let has = |script: &str| process::answers("sh", &["-c", script]);
    let missing: Vec<&str> = [
        ("cmake", "command -v cmake"),
        ("libclang-dev", "ls /usr/lib/llvm-*/lib/libclang.so*"),
        ("libibverbs-dev", "ls /usr/include/infiniband/verbs.h"),
    ]
    .into_iter()
    .filter(|(_, script)| !has(script))
    .map(|(package, _)| package)
    .collect();
    let needs = format!("the crate ibverbs needs Debian's {}", missing.join(", "));
    (!missing.is_empty()).then_some(needs)
}

/// Copies the programs without what only a debugger reads.
fn strip(built: &Path, programs: &[&str], to: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(to).at(to)?;
    // Without `strip` the guest only takes longer to load.
    let can_strip = process::answers("strip", &["--version"]);
    let copy = |name: &&str| {
        let from = built.join(name);
        let to = to.join(from.file_name().context("a program has a name")?);
        fs::copy(&from, &to).at(&from)?;
        if can_strip {
            ensure!(
                Command::new("strip").arg(&to).status()?.success(),
                "{} cannot be stripped",
                to.display()
            );
        }
        Ok(to)
    };
    programs.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_their_own_steps_unless_told_otherwise() {
        let asked = |words: &[&str]| parse(words).map(|options| (options.form, options.steps)).ok();
        assert_eq!(asked(&[]), Some((Form::Devices, STEPS)));
        assert_eq!(asked(&["--full"]), Some((Form::Full, FULL_STEPS)));
        assert_eq!(asked(&["--steps", "7", "--full"]), Some((Form::Full, 7)));
        assert_eq!(asked(&["--two-guests"]), Some((Form::Guests, STEPS)));
        assert_eq!(asked(&["--linked"]), Some((Form::Linked, STEPS)));
        assert_eq!(asked(&["--cuda"]), Some((Form::Cuda, STEPS)));
        assert_eq!(asked(&["--timings"]), Some((Form::Timings, STEPS)));
        for wrong in [&["--steps"][..], &["--steps", "0"], &["--fast"], &["--full", "--two-guests"]]
        {
            assert_eq!(asked(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_step_has_time_for_every_part_and_no_more() {
        let options = Options::new(Form::Devices);
        assert!(
            options.limit().left() > options.guest_limit() + machine::longest_wait_for_a_shell()
        );
        assert!(options.limit().left() < Duration::from_secs(30 * 60));
    }
}
