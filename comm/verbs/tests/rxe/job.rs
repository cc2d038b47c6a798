//! Jobs of four ranks on two "nodes", one device to a node, with everything that should happen to
//! them.

use crate::rank::{Mischief, RankSettings};
use headlong_verbs::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Ranks of a job, the first half on the first node.
pub const RANKS: usize = 4;
/// The rank that ends, or sends what no one expects.
const CULPRIT: usize = 2;
/// In which step that happens.
const AT: u32 = 5;
/// An error arrives no later than this after its cause; the deadline of a step is longer, so that
/// it is not it.
const HEARD: Duration = Duration::from_secs(20);

/// A kind of job: so many steps over two devices.
type Kind = fn(u32, [&str; 2]) -> Result<(), String>;

/// Runs every kind of job over the two devices.
pub fn run(steps: u32, devices: [&str; 2]) -> Result<(), String> {
    let kinds: [(&str, Kind); 4] = [
        ("all bytes of all-to-all-v arrive, and all-reduces have the bits of local", goes_well),
        ("the same, a fifth as long, where NICs tell by adding to a counter", goes_well_by_atomics),
        ("a rank that is killed in the middle of an exchange is named by all others", killed),
        (
            "a rank that sends another size than expected ends the job, and all ranks name it",
            disagrees,
        ),
    ];
    let mut failed = Vec::new();
    for (name, kind) in kinds {
        let begin = Instant::now();
        match kind(steps, devices) {
            Ok(()) => println!("TEST ok   job: {name} ({:.1} s)", begin.elapsed().as_secs_f64()),
            Err(reason) => {
                println!("TEST FAIL job: {name}: {reason}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("job: {} kinds failed", failed.len())) }
}

fn goes_well(steps: u32, devices: [&str; 2]) -> Result<(), String> {
    Job::start(devices, RankSettings::good(steps, Signal::Immediate))?.ends_well()
}

fn goes_well_by_atomics(steps: u32, devices: [&str; 2]) -> Result<(), String> {
    Job::start(devices, RankSettings::good(steps.div_ceil(5), Signal::Atomic))?.ends_well()
}

/// The ranks of one of two machines, each with one device; rank 0 is at `host`.
pub fn run_part(steps: u32, node: usize, host: &str, device: &str) -> Result<(), String> {
    let settings = RankSettings::good(steps, Signal::Immediate);
    let mut job = Job { ranks: BTreeMap::new() };
    for rank in node * RANKS / 2..(node + 1) * RANKS / 2 {
        job.spawn(rank, host, device, settings)?;
    }
    job.ends_well()?;
    println!(
        "TEST ok   job: the ranks of this machine have exchanged {steps} times with those of the \
         other"
    );
    Ok(())
}

fn killed(_: u32, devices: [&str; 2]) -> Result<(), String> {
    let mut job = Job::start(devices, RankSettings::good(100_000, Signal::Immediate))?;
    job.wait_for_step(CULPRIT, AT)?;
    job.process(CULPRIT).child.kill().map_err(|error| error.to_string())?;
    job.all_but_the_culprit_name_it("is gone")
}

fn disagrees(_: u32, devices: [&str; 2]) -> Result<(), String> {
    let mischief = Mischief::WrongSize { rank: CULPRIT, step: AT };
    let mut job = Job::start(
        devices,
        RankSettings { mischief, ..RankSettings::good(100_000, Signal::Immediate) },
    )?;
    job.wait_for_step(CULPRIT, AT)?;
    job.all_but_the_culprit_name_it("not in the same operation")
}

/// Ranks of a job, as processes of this machine; all are gone when it is.
struct Job {
    ranks: BTreeMap<usize, Process>,
}

struct Process {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

/// How a process ended.
struct End {
    code: Option<i32>,
    errors: String,
}

impl Job {
    fn start(devices: [&str; 2], settings: RankSettings) -> Result<Self, String> {
        let mut job = Self { ranks: BTreeMap::new() };
        for rank in 0..RANKS {
            job.spawn(rank, "127.0.0.1", devices[rank * 2 / RANKS], settings)?;
        }
        Ok(job)
    }

    fn spawn(
        &mut self,
        rank: usize,
        host: &str,
        device: &str,
        settings: RankSettings,
    ) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("rank").args(settings.words()).arg(device);
        command.env_clear().env("PATH", "/bin:/sbin:/test");
        command
            .env("HEADLONG_RANK", rank.to_string())
            .env("HEADLONG_WORLD_SIZE", RANKS.to_string());
        command.env("HEADLONG_MASTER_ADDR", host).env("HEADLONG_MASTER_PORT", "29600");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let out = child.stdout.take().map(BufReader::new);
        self.ranks.insert(rank, Process { child, out });
        Ok(())
    }

    /// Shows what the lowest rank prints, and waits for all.
    fn ends_well(&mut self) -> Result<(), String> {
        let lowest = self.ranks.values_mut().next().and_then(|process| process.out.take());
        for line in lowest.into_iter().flat_map(|out| out.lines().map_while(Result::ok)) {
            println!("  {line}");
        }
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            let end = self.end(rank)?;
            if end.code != Some(0) {
                return Err(format!("rank {rank} ended with {:?}: {}", end.code, end.errors));
            }
        }
        Ok(())
    }

    fn process(&mut self, rank: usize) -> &mut Process {
        self.ranks.get_mut(&rank).expect("a rank of this machine")
    }

    /// Reads what a rank prints until it is in a step.
    fn wait_for_step(&mut self, rank: usize, step: u32) -> Result<(), String> {
        let out = self.process(rank).out.as_mut().ok_or("its output was read already")?;
        let expected = format!("step {step}");
        let came = out.lines().map_while(Result::ok).any(|line| line == expected);
        if came {
            Ok(())
        } else {
            Err(format!("rank {rank} never came to step {step}: {}", self.end(rank)?.errors))
        }
    }

    /// Waits for a rank; what it still prints is not looked at.
    fn end(&mut self, rank: usize) -> Result<End, String> {
        let Process { child, out } = self.process(rank);
        let (mut rest, mut errors) = (String::new(), String::new());
        if let Some(mut pipe) = out.take() {
            pipe.read_to_string(&mut rest).map_err(|error| error.to_string())?;
        }
        if let Some(mut pipe) = child.stderr.take() {
            pipe.read_to_string(&mut errors).map_err(|error| error.to_string())?;
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        Ok(End { code: status.code(), errors })
    }

    fn all_but_the_culprit_name_it(&mut self, words: &str) -> Result<(), String> {
        let begin = Instant::now();
        for rank in (0..RANKS).filter(|&rank| rank != CULPRIT) {
            let end = self.end(rank)?;
            let last = end.errors.lines().last().unwrap_or_default().to_owned();
            let named = last.contains(&format!("rank {CULPRIT} ")) && last.contains(words);
            if end.code != Some(3) || !named {
                return Err(format!("rank {rank} ended with {:?}: {}", end.code, end.errors));
            }
            println!("  rank {rank} after {:.1} s: {last}", begin.elapsed().as_secs_f64());
        }
        if begin.elapsed() > HEARD { Err(format!("it took {:?}", begin.elapsed())) } else { Ok(()) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in self.ranks.values_mut() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
