//! Sizes that no one would write: a plan and a run agree on each, and neither falls over.

use crate::run_support::{Ended, Place};
use clap::Parser as _;
use headlong::Registry;
use headlong::commands::cli::{Cli, Command};
use headlong::commands::plan::PlanArguments;
use headlong::commands::train_arguments::TrainArguments;
use headlong::error::Result;
use headlong::plan::Plan;
use headlong::run::outlook::{Outlook, Place as Ranks};
use headlong::system::machine::Machine;
use headlong_device::rng::CounterRng;
use std::process::Command as Process;
use std::time::{Duration, Instant};

const CONFIGURATIONS: u64 = 300;
/// Of these, so many are tried by processes with little memory, too.
const BY_PROCESSES: u64 = 30;
/// What a plan or a refusal may take, on a machine that does other things, too.
const LONGEST: Duration = Duration::from_secs(10);
/// Runs that need less than this are run.
const SMALL_BYTES: u64 = 200 << 20;
/// What the shell grants a process: KiB.
const GRANTED_KIB: u64 = 3 << 20;

/// Keys that decide sizes, and their values in force.
const KEYS: [(&str, u64); 22] = [
    ("tables.rows", 1000),
    ("tables.max_rows", 500),
    ("tables.max_ids_per_sample", 1),
    ("data.num_sparse", 26),
    ("data.num_dense", 13),
    ("data.prefetch_batches", 4),
    ("data.order_window", 256),
    ("model.dim", 8),
    ("model.bottom", 16),
    ("model.top", 16),
    ("model.cross_layers", 3),
    ("model.cross_rank", 8),
    ("train.batch_size", 64),
    ("train.accumulate", 1),
    ("train.sum_blocks", 1),
    ("train.steps", 1),
    ("eval.batch_size", 64),
    ("run.ranks", 1),
    ("run.threads", 1),
    ("run.eval_ranks", 1),
    ("multi_hot.memory_mib", 0),
    ("synthetic.train_rows", 1000),
];

/// The numbers of one configuration.
struct Draw {
    random: CounterRng,
    drawn: u64,
}

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.drawn += 1;
        (f64::from(self.random.uniform(self.drawn)) * end as f64) as u64
    }

    /// From 0 to 2⁶³, each size of number alike.
    fn size(&mut self) -> u64 {
        let bits = self.below(64);
        (1_u64 << bits) - u64::from(self.below(4) == 0) + self.below(1 << bits.min(20))
    }

    /// One near `usual`, as a rule: most others are refused at once.
    fn size_near(&mut self, usual: u64) -> u64 {
        match self.below(3) {
            0 => self.size(),
            _ => usual.max(1) << self.below(22),
        }
    }

    /// Settings of some keys.
    fn settings(&mut self) -> Vec<String> {
        let mut settings = Vec::new();
        for _ in 0..=self.below(4) {
            let (key, usual) = KEYS[self.below(KEYS.len() as u64) as usize];
            let size = self.size_near(usual);
            if settings.iter().any(|set: &String| set.starts_with(&format!("{key}="))) {
                continue;
            }
            settings.push(match key {
                "model.bottom" => format!("{key}=[{size},8]"),
                "model.top" => format!("{key}=[{size},1]"),
                _ => format!("{key}={size}"),
            });
            match key {
                // The network under the interaction ends in the tables' width.
                "model.dim" if !settings.iter().any(|set| set.starts_with("model.bottom")) => {
                    settings.push(format!("model.bottom=[16,{size}]"));
                }
                "model.cross_layers" | "model.cross_rank"
                    if !settings.iter().any(|set| set.starts_with("model.interaction")) =>
                {
                    settings.push("model.interaction=cross".to_owned());
                }
                "data.order_window" => settings.push("data.order=samples".to_owned()),
                _ => {}
            }
        }
        settings
    }
}

/// One configuration: what is set over a small model, on data or on rows that are made up.
fn arguments(place: &Place, number: u64) -> Vec<String> {
    let mut draw = Draw { random: CounterRng::new(20, number), drawn: 0 };
    let settings = draw.settings();
    let is_set = |key: &str| settings.iter().any(|set| set.starts_with(&format!("{key}=")));
    let mut words = Vec::new();
    for usual in [
        "model.dim=8",
        "model.bottom=[16,8]",
        "model.top=[16,1]",
        "tables.rows=1000",
        "train.batch_size=64",
        "train.steps=1",
        "run.threads=1",
    ] {
        let key = usual.split_once('=').unwrap().0;
        if !is_set(key) {
            words.extend(["--set".to_owned(), usual.to_owned()]);
        }
    }
    words.extend(settings.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    // Made-up rows would be written, up to 250 TB of them, and rows that are there have their
    // columns: a plan is made for these alone.
    if ["synthetic.train_rows", "data.num_dense", "data.num_sparse"].into_iter().any(is_set) {
        words.extend(["--preset".to_owned(), "tiny".to_owned()]);
    } else {
        words.extend(["--data".to_owned(), place.train.display().to_string()]);
    }
    words.extend(["--output-dir".to_owned(), place.path("out").display().to_string()]);
    words
}

fn parsed(command: &str, words: &[String]) -> Command {
    let words = ["headlong", command].into_iter().chain(words.iter().map(String::as_str));
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).command.expect("a command")
}

fn plan_arguments(words: &[String]) -> PlanArguments {
    match parsed("plan", words) {
        Command::Plan(arguments) => arguments,
        other => panic!("{other:?}"),
    }
}

fn train_arguments(words: &[String]) -> TrainArguments {
    match parsed("train", words) {
        Command::Train(arguments) => arguments,
        other => panic!("{other:?}"),
    }
}

/// What the commands do, in this process.
fn plan(words: &[String]) -> Result<()> {
    headlong::commands::plan::run(&plan_arguments(words), &Registry::default())
}

fn train(words: &[String], dry_run: bool) -> Result<()> {
    let arguments = TrainArguments { dry_run, ..train_arguments(words) };
    let (config, options) = arguments.resolve(&Registry::default())?;
    config.require_data()?;
    headlong::commands::train::run(&config, &options)
}

/// Runs `work`, which ends soon in success or in exit code 2; says which.
fn fits(what: &str, words: &[String], work: impl FnOnce() -> Result<()>) -> bool {
    println!("{what} {}", words.join(" "));
    let begun = Instant::now();
    let outcome = work();
    let took = begun.elapsed();
    assert!(took < LONGEST, "{what} {words:?} took {took:?}");
    match outcome {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{what} {words:?}: {error:?}");
            false
        }
    }
}

/// Whether a run of these is small: it can be run in a test.
fn is_small(words: &[String]) -> bool {
    let (config, _) = train_arguments(words).resolve(&Registry::default()).unwrap();
    if config.data.train.is_empty() || config.train.steps != Some(1) || config.run.threads > Some(4)
    {
        return false;
    }
    let (machine, registry) = (Machine::detect(), Registry::default());
    let ranks = Ranks {
        machine: &machine,
        ranks_here: None,
        evaluating_here: None,
        separate: false,
        registry: &registry,
    };
    let outlook = Outlook::of(&config).unwrap();
    let plan = Plan::new(&config, &outlook.facts(&outlook.rows, &ranks));
    let ranks = config.run.ranks + config.run.eval_ranks.unwrap_or(0);
    let flops = plan.cost.flops_per_step;
    ranks <= 8 && (plan.bytes_per_rank * ranks).fits(SMALL_BYTES) && flops.fits(10_000_000_000)
}

#[test]
fn a_plan_and_a_run_agree_on_every_size() {
    let place = Place::new("rows.txt");
    let (mut fitted, mut run) = (0, 0);
    for number in 0..CONFIGURATIONS {
        let words = arguments(&place, number);
        let mut planned = fits("plan", &words, || plan(&words));
        let dry = || fits("train --dry-run", &words, || train(&words, true));
        if dry() != planned {
            // Between the two the memory that is free may have come to the other side of what is
            // needed.
            planned = fits("plan", &words, || plan(&words));
            assert_eq!(dry(), planned, "{words:?}");
        }
        let runs = planned && is_small(&words);
        if runs {
            assert!(fits("train", &words, || train(&words, false)), "{words:?}");
        }
        fitted += u64::from(planned);
        run += u64::from(runs);
        if number < BY_PROCESSES && (runs || !planned) {
            let ended = by_process(&words);
            assert_eq!(
                ended.code,
                Some(if planned { 0 } else { 2 }),
                "{words:?}: {}",
                ended.stderr
            );
        }
    }
    println!("{fitted} of {CONFIGURATIONS} fit, {run} were run");
    assert!(
        (CONFIGURATIONS / 5..=CONFIGURATIONS * 4 / 5).contains(&fitted),
        "some fit, and some do not"
    );
    assert!(run >= CONFIGURATIONS / 10, "some are run");
}

/// A process with an address space that refuses what is large.
fn by_process(words: &[String]) -> Ended {
    let limited = format!("ulimit -v {GRANTED_KIB}; exec timeout 30 \"$0\" train \"$@\"");
    let mut process = Process::new("sh");
    process.args(["-c", &limited, env!("CARGO_BIN_EXE_headlong")]).args(words);
    Ended::of(process.output().unwrap())
}

#[test]
fn clusters_of_every_size_are_planned_or_refused() {
    for number in 0..40 {
        let mut draw = Draw { random: CounterRng::new(21, number), drawn: 0 };
        let mut words: Vec<String> =
            ["--preset", "criteo-terabyte-dlrm", "--cluster", "dgx-h100"].map(str::to_owned).into();
        for (flag, usual) in [
            ("--nodes", 1),
            ("--devices-per-node", 8),
            ("--batch-sizes", 4096),
            ("--data-rows", 1_000_000),
        ] {
            let size = if draw.below(2) == 0 { draw.size() } else { usual << draw.below(4) };
            // The command line refuses 0 rows.
            let size = size.max(u64::from(flag == "--data-rows"));
            words.extend([flag.to_owned(), size.to_string()]);
        }
        fits("plan", &words, || plan(&words));
    }
}
