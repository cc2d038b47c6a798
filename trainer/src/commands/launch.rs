//! `headlong launch -n N -- COMMAND`: N processes of this program on this machine, one rank each.
//!
//! The children learn who they are from their environment, as under any other launcher, with a
//! secret and a port of their own. The port is bound here and stays so, so that no one else is
//! given it before rank 0 listens there. When a rank fails, the others get a short time to say so
//! themselves; then they are ended. A child does not outlive its launcher, even one that is killed:
//! the system ends it.

mod one_process;
mod output;
mod snapshots;
mod told;
mod verdict;

use clap::Args;
pub use one_process::{does_the_work, launch_of_several, launched, with_device};

use crate::config::seconds;
use crate::error::{Error, Result};
use crate::report::output::say;
use crate::system::command_line;
use crate::system::elastic::RESTART_COUNT;
use crate::system::places::places;
use crate::system::signals::asking;
use headlong_comm::launcher_env;
use headlong_comm::rendezvous::reserve_port;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use verdict::{End, Outcome};

/// Whether `headlong launch` binds ranks to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Bind {
    /// An even split of the processors, where there are enough.
    Auto,
    /// Anywhere.
    Off,
}

/// Arguments of `headlong launch`.
#[derive(Debug, Args)]
pub struct LaunchArguments {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    pub ranks: usize,
    /// Give each rank its own part of the processors (auto), or let all run anywhere (off)
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub bind: Bind,
    /// When a rank has failed, the others may take this long to end by themselves
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub grace_s: f64,
    /// Start the command again up to N times when a rank is lost: killed, or silent. `train` then
    /// continues from its last checkpoint or snapshot
    #[arg(long, value_name = "N", default_value_t = 0, default_value_if("elastic", "true", "10"))]
    pub max_restarts: usize,
    /// Survive the loss of a rank: `train` takes a snapshot every --snapshot-every steps, in
    /// /dev/shm as long as the launcher lives, and continues from the last one; --max-restarts is
    /// 10 then
    #[arg(long)]
    pub elastic: bool,
    /// The command and its options, as after `headlong`
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Processes that are started, at most.
const MOST_RANKS: usize = 1024;

/// How often children and signals are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the command in N processes and waits for all of them; again where a rank is lost, as often
/// as that is asked for.
///
/// # Errors
/// Wrong usage; a process that cannot be started; the rank that has failed first, with its exit
/// code.
pub fn run(arguments: &LaunchArguments) -> Result<()> {
    let command = strip_name(&arguments.command);
    check(arguments, command)?;
    let mut signals = Signals::new(asking()).map_err(Error::failed("listening to signals"))?;
    let grace = seconds("--grace-s", arguments.grace_s)?;
    let folder = arguments.elastic.then(snapshots::Folder::new).transpose()?;
    for restart in 1.. {
        let mut variables = vec![(RESTART_COUNT, (restart - 1).to_string().into())];
        variables.extend(folder.iter().map(snapshots::Folder::variable));
        let job = run_once(arguments, (command, variables), &mut signals, grace)?;
        let Job { outcomes, verdict, is_asked_to_end } = job;
        match verdict {
            Err(lost)
                if restart <= arguments.max_restarts
                    && !is_asked_to_end
                    && verdict::has_lost(&outcomes, &lost) =>
            {
                let of = arguments.max_restarts;
                say(format_args!("{lost}: starting all ranks again ({restart} of {of})"));
            }
            verdict => {
                verdict?;
                verdict::without_training(&outcomes).iter().for_each(say);
                break;
            }
        }
    }
    Ok(())
}

/// How a job has ended.
struct Job {
    outcomes: Vec<Outcome>,
    verdict: Result<()>,
    /// A signal has come, though perhaps to ranks that were ending.
    is_asked_to_end: bool,
}

/// All ranks from their start to their end, with a port and a secret of their own.
fn run_once(
    arguments: &LaunchArguments,
    (command, variables): (&[OsString], Vec<(&'static str, OsString)>),
    signals: &mut Signals,
    grace: Duration,
) -> Result<Job> {
    let (_port, of_job) = environment(arguments.ranks)?;
    let mut environment = variables;
    environment.extend(of_job.into_iter().map(|(name, value)| (name, value.into())));
    let pipe =
        told::Pipe::new().map_err(Error::failed("making a pipe for the ranks' last words"))?;
    let (name, value) = pipe.variable();
    environment.push((name, value.into()));
    let ranks = start_all(arguments, command, &environment)?;
    let begin = Instant::now();
    let mut children = Children { ranks, signals, forwarded: Vec::new(), begin, grace, pipe };
    let outcomes = children.wait();
    children.drain();
    let lost = children.pipe.lost();
    let asked = children.forwarded.first().copied();
    let verdict = verdict::judge(&outcomes, &lost, asked, grace);
    Ok(Job { outcomes, verdict, is_asked_to_end: asked.is_some() })
}

/// Ties this process to the launcher that has started it, if one has: when that one dies, this one
/// does too.
pub fn follow_launcher() -> Result<()> {
    let launcher =
        launcher_env::launcher_process().map_err(Error::communication("the launcher"))?;
    let Some(launcher) = launcher else { return Ok(()) };
    // Where the system cannot do it, a killed launcher leaves this process behind: no reason not to
    // run.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if parent() != Some(launcher) {
        // The launcher has died before the tie was made.
        std::process::exit(3);
    }
    Ok(())
}

fn parent() -> Option<i32> {
    rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get())
}

/// Tells the launcher of this process, if it has one, which rank this one has lost.
pub fn tell_launcher(error: &Error) {
    if let Some((launcher, pipe)) = launcher_and_pipe() {
        told::tell(launcher, &pipe, error);
    }
}

/// Tells the launcher of this process, if it has one, that this one only evaluates, and training
/// does not end with it.
pub fn tell_role() {
    if let (Some((launcher, pipe)), Some((rank, _))) = (launcher_and_pipe(), launched()) {
        told::tell_role(launcher, &pipe, rank);
    }
}

fn launcher_and_pipe() -> Option<(i32, String)> {
    let launcher = launcher_env::launcher_process().ok().flatten();
    let launcher = launcher.filter(|launcher| parent() == Some(*launcher))?;
    let pipe = launcher_env::environment().remove(told::PIPE)?.into_string().ok()?;
    Some((launcher, pipe))
}

/// Where standard output goes: what ranks print, their launcher prints.
pub(crate) fn standard_output() -> PathBuf {
    match launcher_env::launcher_process() {
        Ok(Some(launcher)) => format!("/proc/{launcher}/fd/1").into(),
        _ => "/dev/stdout".into(),
    }
}

/// `headlong launch -n 2 -- headlong train` means `train`.
fn strip_name(command: &[OsString]) -> &[OsString] {
    match command {
        [first, rest @ ..] if first == "headlong" => rest,
        all => all,
    }
}

fn check(arguments: &LaunchArguments, command: &[OsString]) -> Result<()> {
    if !(1..=MOST_RANKS).contains(&arguments.ranks) {
        let found = arguments.ranks;
        return Err(Error::Usage(format!("-n {found}: expected 1 to {MOST_RANKS} ranks")));
    }
    match command.first() {
        None => Err(Error::Usage("which command? `headlong launch -n 4 -- train ...`".into())),
        Some(first) if first == "launch" => {
            Err(Error::Usage("`launch` cannot launch itself".into()))
        }
        Some(_) if arguments.elastic && arguments.max_restarts == 0 => {
            let message = "--elastic --max-restarts 0: snapshots are of no use without a restart";
            Err(Error::Usage(message.into()))
        }
        Some(first) if first != "train" && arguments.elastic => {
            let command = first.display();
            Err(Error::Usage(format!("--elastic: `{command}` takes no snapshots, `train` does")))
        }
        Some(_) => Ok(()),
    }
}

/// What all ranks have in common, and the bound port.
pub(crate) fn environment(ranks: usize) -> Result<(OwnedFd, Vec<(&'static str, String)>)> {
    let (socket, port) = reserve_port(Ipv4Addr::LOCALHOST.into())
        .map_err(Error::failed("reserving a port for the rendezvous"))?;
    let mut random = [0_u8; 48];
    getrandom::fill(&mut random).map_err(|error| {
        Error::failed::<std::io::Error>("making the job's secret")(std::io::Error::other(
            error.to_string(),
        ))
    })?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let variables = vec![
        ("HEADLONG_WORLD_SIZE", ranks.to_string()),
        ("HEADLONG_LOCAL_SIZE", ranks.to_string()),
        ("HEADLONG_MASTER_ADDR", "127.0.0.1".to_string()),
        ("HEADLONG_MASTER_PORT", port.to_string()),
        ("HEADLONG_JOB", hex(&random[..16])),
        ("HEADLONG_SECRET", hex(&random[16..])),
        ("HEADLONG_LAUNCHER_PID", std::process::id().to_string()),
    ];
    Ok((socket, variables))
}

struct RankProcess {
    child: Child,
    end: Option<(ExitStatus, Duration)>,
    killed: bool,
    output: Vec<std::thread::JoinHandle<()>>,
}

/// Starts all ranks, each on its part of the machine. If one cannot be started, those before it are
/// ended.
fn start_all(
    arguments: &LaunchArguments,
    command: &[OsString],
    environment: &[(&'static str, OsString)],
) -> Result<Vec<RankProcess>> {
    let program =
        || command_line::again().map_err(Error::failed("finding this program's own file"));
    let places = match arguments.bind {
        Bind::Auto => places(arguments.ranks)
            .map_err(|reason| {
                say(format_args!("note: --bind auto: {reason}: ranks run on any processor"))
            })
            .ok(),
        Bind::Off => None,
    };
    let mut ranks: Vec<RankProcess> = Vec::with_capacity(arguments.ranks);
    for rank in 0..arguments.ranks {
        let mut child = child_command(program()?, rank, command, environment);
        let program = child.get_program().to_owned();
        let bound = places.as_ref().map(|places| places.bind(rank));
        let started = child.spawn();
        drop(bound);
        match started {
            Ok(child) => ranks.push(watch(rank, child)),
            Err(error) => {
                ranks
                    .iter_mut()
                    .for_each(|rank| drop(rank.child.kill().and_then(|()| rank.child.wait())));
                return Err(
                    Error::failed(format!("starting rank {rank} ({})", program.display()))(error),
                );
            }
        }
    }
    Ok(ranks)
}

fn child_command(
    mut child: Command,
    rank: usize,
    command: &[OsString],
    environment: &[(&'static str, OsString)],
) -> Command {
    child.args(command).stdin(Stdio::null());
    child.env_remove("HEADLONG_SECRET_FILE");
    child.envs(environment.iter().map(|(name, value)| (name, value)));
    child.env("HEADLONG_RANK", rank.to_string()).env("HEADLONG_LOCAL_RANK", rank.to_string());
    // A Ctrl-C of the terminal reaches the launcher alone, which hands it on once.
    child.process_group(0);
    if rank > 0 {
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    child
}

fn watch(rank: usize, mut child: Child) -> RankProcess {
    let out = child.stdout.take().map(|pipe| output::forward(rank, pipe));
    let errors = child.stderr.take().map(|pipe| output::forward(rank, pipe));
    RankProcess {
        child,
        end: None,
        killed: false,
        output: out.into_iter().chain(errors).flatten().collect(),
    }
}

/// All ranks while they run.
struct Children<'a> {
    ranks: Vec<RankProcess>,
    signals: &'a mut Signals,
    forwarded: Vec<i32>,
    begin: Instant,
    grace: Duration,
    pipe: told::Pipe,
}

impl Children<'_> {
    /// Waits until every rank has ended, or has been ended.
    fn wait(&mut self) -> Vec<Outcome> {
        let mut over: Option<Instant> = None;
        let mut evaluating = Vec::new();
        while self.ranks.iter().any(|rank| rank.end.is_none()) {
            self.forward_signals();
            evaluating = self.pipe.evaluating();
            let failed = self.reap(&evaluating);
            let mut training =
                self.ranks.iter().enumerate().filter(|(rank, _)| !evaluating.contains(rank));
            // Without training there is nothing to evaluate.
            if failed || training.all(|(_, process)| process.end.is_some()) {
                over.get_or_insert_with(Instant::now);
            }
            if over.is_some_and(|since| since.elapsed() >= self.grace) {
                self.kill_all();
            }
            std::thread::sleep(LOOK);
        }
        let outcome = |(rank, process): (usize, &RankProcess)| {
            process.outcome(rank, evaluating.contains(&rank))
        };
        self.ranks.iter().enumerate().map(outcome).collect()
    }

    /// Takes the ends of those who have ended; whether one of them has failed that does not only
    /// evaluate.
    fn reap(&mut self, evaluating: &[usize]) -> bool {
        let mut failed = false;
        let ranks = self.ranks.iter_mut().enumerate();
        for (number, rank) in ranks.filter(|(_, rank)| rank.end.is_none()) {
            // A child that cannot be waited for is an own child no more: it has ended.
            if let Some(status) =
                rank.child.try_wait().unwrap_or(Some(ExitStatus::from_raw(1 << 8)))
            {
                failed |= !status.success() && !evaluating.contains(&number);
                rank.end = Some((status, self.begin.elapsed()));
            }
        }
        failed
    }

    fn forward_signals(&mut self) {
        for signal in self.signals.pending() {
            self.forwarded.push(signal);
            let wanted = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
            // The first asks to save and end, the second to end at once; a third one
            // is serious.
            let wanted = if self.forwarded.len() > 2 { Signal::KILL } else { wanted };
            self.ranks.iter().for_each(|rank| rank.send(wanted));
        }
    }

    fn kill_all(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none() && !rank.killed) {
            rank.send(Signal::KILL);
            rank.killed = true;
        }
    }

    /// The last lines of all ranks; pipes end with their processes.
    fn drain(&mut self) {
        let begin = Instant::now();
        let busy = |rank: &RankProcess| rank.output.iter().any(|thread| !thread.is_finished());
        while self.ranks.iter().any(busy) && begin.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(LOOK);
        }
    }
}

impl RankProcess {
    fn send(&self, signal: Signal) {
        if self.end.is_none() {
            // A process that has just ended needs no signal.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    fn outcome(&self, rank: usize, only_evaluates: bool) -> Outcome {
        let (status, at) = self.end.expect("the wait ends when every rank has");
        let end = match (self.killed, status.signal(), status.code()) {
            (true, Some(_), _) => End::Late,
            (_, Some(signal), _) => End::Signal(signal),
            (_, None, code) => End::Code(code.unwrap_or(1)),
        };
        Outcome { rank, end, at, only_evaluates }
    }
}
