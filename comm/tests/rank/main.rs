//! A rank that only communicates: joins the job its launcher describes and runs a loop of
//! collectives, for tests that stop and kill processes.
//!
//! With `--device 0` ranks exchange between CUDA devices, each the first that it sees, by what
//! [`Communicator::attach_device`] finds.
//!
//! Every rank prints where it is, a line for each stage. Exit code 0 when all went well, 2 for
//! wrong usage, 3 when communication failed.

mod device;

use headlong_comm::rendezvous::{Deadlines, JoinOptions, join};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::{ChooseOptions, Network, Wanted, choose};
use headlong_comm::{BetweenDevices, CommError, CommOptions, Communicator, Rank, launcher_env};
use headlong_ucx::UcxNetwork;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

const USAGE: &str = "rank [--steps N] [--elements N] [--step-ms T] [--before-join-ms T] \
                     [--before-choice-ms T] [--before-close-ms T] [--rendezvous-ms T] \
                     [--operation-ms T] [--heartbeat-ms T] [--silence-ms T] [--config BYTE] \
                     [--fail-at STEP] [--no-goodbye] [--transport auto|shm|ucx|tcp] \
                     [--ranks-per-node N] [--device ORDINAL] [--nccl] \
                     [--encrypt-data] [--while-there FILE]";

/// What to do.
struct Settings {
    steps: u64,
    elements: usize,
    step: Duration,
    before_join: Duration,
    before_choice: Duration,
    before_close: Duration,
    deadlines: Deadlines,
    config: u8,
    fail_at: Option<u64>,
    goodbye: bool,
    wanted: Wanted,
    ranks_per_node: usize,
    device: Option<u32>,
    between_devices: BetweenDevices,
    encrypt_data: bool,
    while_there: Option<PathBuf>,
}

fn main() -> ExitCode {
    let settings = match parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(reason) => {
            eprintln!("error: {reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if matches!(error, CommError::Setting { .. }) { 2 } else { 3 })
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Settings, String> {
    let mut settings = Settings {
        steps: 10,
        elements: 1000,
        step: Duration::ZERO,
        before_join: Duration::ZERO,
        before_choice: Duration::ZERO,
        before_close: Duration::ZERO,
        deadlines: Deadlines::default(),
        config: 0,
        fail_at: None,
        goodbye: true,
        wanted: Wanted::Tcp,
        ranks_per_node: 0,
        device: None,
        between_devices: BetweenDevices::Auto,
        encrypt_data: false,
        while_there: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--no-goodbye" => settings.goodbye = false,
            "--encrypt-data" => settings.encrypt_data = true,
            "--nccl" => settings.between_devices = BetweenDevices::Nccl,
            _ => {
                let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
                set(&mut settings, &word, &value)?;
            }
        }
    }
    Ok(settings)
}

fn set(settings: &mut Settings, word: &str, value: &str) -> Result<(), String> {
    if word == "--while-there" {
        settings.while_there = Some(value.into());
        return Ok(());
    }
    if word == "--transport" {
        settings.wanted = value.parse()?;
        return Ok(());
    }
    let number: u64 =
        value.parse().map_err(|_| format!("{word} {value}: expected a whole number"))?;
    let time = Duration::from_millis(number);
    match word {
        "--steps" => settings.steps = number,
        "--elements" => settings.elements = number as usize,
        "--step-ms" => settings.step = time,
        "--before-join-ms" => settings.before_join = time,
        "--before-choice-ms" => settings.before_choice = time,
        "--before-close-ms" => settings.before_close = time,
        "--rendezvous-ms" => settings.deadlines.rendezvous = time,
        "--operation-ms" => settings.deadlines.operation = time,
        "--heartbeat-ms" => settings.deadlines.heartbeat = time,
        "--silence-ms" => settings.deadlines.silence = time,
        "--ranks-per-node" => settings.ranks_per_node = number as usize,
        "--config" => settings.config = number as u8,
        "--device" => settings.device = Some(number as u32),
        "--fail-at" => settings.fail_at = Some(number),
        _ => return Err(format!("what is `{word}`?")),
    }
    Ok(())
}

/// Says where this rank is; a pipe is not written to line by line by itself.
fn say(rank: Rank, what: &str) {
    let mut out = std::io::stdout().lock();
    // No one listening is no failure.
    let _ = writeln!(out, "rank {}: {what}", rank.0).and_then(|()| out.flush());
}

fn run(settings: &Settings) -> Result<(), CommError> {
    let Some(launch) = launcher_env::read()?.launch() else {
        let reason =
            "no launcher has set it: start this with headlong launch, torchrun, mpirun or srun"
                .into();
        return Err(CommError::Setting { setting: "HEADLONG_RANK".into(), reason });
    };
    let rank = launch.rank;
    say(rank, &format!("started by {} as process {}", launch.launcher.name(), std::process::id()));
    sleep(settings.before_join);
    let mut options = JoinOptions::new(launch, [settings.config; 32]);
    options.deadlines = settings.deadlines;
    options.notice = Some(Arc::new(|words: &str| eprintln!("{words}")));
    options.ranks_per_node = settings.ranks_per_node;
    options.encrypt_data = settings.encrypt_data;
    let control = join(&options)?;
    if rank == Rank(0) {
        control.remarks().iter().for_each(|remark| eprintln!("note: {remark}"));
    }
    let topology = control.topology().clone();
    say(rank, &format!("joined {} ranks on {} nodes", topology.num_ranks(), topology.num_nodes()));
    sleep(settings.before_choice);
    let ucx = (settings.wanted == Wanted::Ucx).then(|| UcxNetwork::of_machine(&control));
    let network = ucx.as_ref().map(|ucx| ucx as &dyn Network);
    let chosen =
        choose(control, &ChooseOptions { wanted: settings.wanted, network, exchanges: None })?;
    if rank == Rank(0) {
        chosen.table().lines().for_each(|line| say(rank, line));
    }
    let transport = chosen.transport;
    let options =
        CommOptions { between_devices: settings.between_devices, ..CommOptions::default() };
    let communicator = Communicator::new(transport.clone(), options);
    match settings.device {
        Some(ordinal) => device::steps(settings, &communicator, ordinal)?,
        None => steps(settings, &communicator)?,
    }
    sleep(settings.before_close);
    if !settings.goodbye {
        return Ok(());
    }
    say(rank, "closing");
    transport.close()?;
    drop((communicator, transport));
    say(rank, "done");
    Ok(())
}

fn steps(settings: &Settings, communicator: &Communicator) -> Result<(), CommError> {
    let (rank, ranks) = (communicator.rank(), communicator.num_ranks());
    let mut sums = vec![0_f32; settings.elements];
    let (send, mut received) =
        (vec![rank.0 as f32; settings.elements * ranks], vec![0_f32; settings.elements * ranks]);
    let begin = Instant::now();
    for step in 0..settings.steps {
        say(rank, &format!("step {step}"));
        sleep(settings.step);
        if settings.fail_at == Some(step) {
            communicator.abort(CommError::Aborted {
                culprit: rank,
                reason: format!("asked to fail at step {step}"),
            });
            communicator.check()?;
        }
        if let Some(file) = &settings.while_there
            && !communicator.all_say(file.exists())?
        {
            break;
        }
        sums.fill(rank.0 as f32);
        communicator.all_reduce(&mut sums)?;
        communicator.all_to_all(&send, &mut received)?;
        let expected = (ranks * (ranks - 1) / 2) as f32;
        let is_right = sums.iter().all(|sum| *sum == expected)
            && received
                .iter()
                .enumerate()
                .all(|(at, value)| *value == (at / settings.elements) as f32);
        assert!(is_right, "rank {}: wrong numbers in step {step}", rank.0);
    }
    let micros = begin.elapsed().as_secs_f64() * 1e6 / settings.steps.max(1) as f64;
    say(
        rank,
        &format!("{} steps of {} elements, {micros:.1} us each", settings.steps, settings.elements),
    );
    Ok(())
}
