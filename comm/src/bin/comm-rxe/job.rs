//! Jobs of four ranks on two "nodes", one device to a node, with everything that should happen to them.

use crate::rank::{Mischief, RankSettings};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Ranks of a job, the first half on the first node.
pub const RANKS: usize = 4;
/// The rank that ends, or sends what nobody expects.
const CULPRIT: usize = 2;
/// In which step that happens.
const AT: u32 = 5;
/// An error arrives no later than this after its cause; the deadline of a step is longer, so that it is not it.
const HEARD: Duration = Duration::from_secs(20);

/// A kind of job: so many steps over two devices.
type Kind = fn(u32, [&str; 2]) -> Result<(), String>;

/// Runs every kind of job over the two devices.
pub fn run(steps: u32, devices: [&str; 2]) -> Result<(), String> {
    let kinds: [(&str, Kind); 3] = [
        ("all bytes of all-to-all-v arrive, and all-reduces have the bits of local", goes_well),
        ("a rank that is killed in the middle of an exchange is named by all others", killed),
        ("a rank that sends another size than expected ends the job, and all ranks name it", disagrees),
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
    let mut job = Job::start(devices, RankSettings { steps, mischief: Mischief::None })?;
    // Rank 0 tells how far they are.
    let mut out = job.ranks[0].out.take().ok_or("rank 0 has an output")?;
    for line in (&mut out).lines().map_while(Result::ok) {
        println!("  {line}");
    }
    for rank in 0..RANKS {
        let end = job.end(rank)?;
        if end.code != Some(0) {
            return Err(format!("rank {rank} ended with {:?}: {}", end.code, end.errors));
        }
    }
    Ok(())
}

fn killed(_: u32, devices: [&str; 2]) -> Result<(), String> {
    let mut job = Job::start(devices, RankSettings { steps: 100_000, mischief: Mischief::None })?;
    job.wait_for_step(CULPRIT, AT)?;
    job.ranks[CULPRIT].child.kill().map_err(|error| error.to_string())?;
    job.all_but_the_culprit_name_it("is gone")
}

fn disagrees(_: u32, devices: [&str; 2]) -> Result<(), String> {
    let mischief = Mischief::WrongSize { rank: CULPRIT, step: AT };
    let mut job = Job::start(devices, RankSettings { steps: 100_000, mischief })?;
    job.wait_for_step(CULPRIT, AT)?;
    job.all_but_the_culprit_name_it("not in the same operation")
}

/// Four processes; all are gone when it is.
struct Job {
    ranks: Vec<Process>,
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
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut job = Self { ranks: Vec::new() };
        for rank in 0..RANKS {
            let mut command = Command::new(&program);
            command.arg("rank").args(settings.words()).arg(devices[rank * 2 / RANKS]);
            command.env_clear().env("PATH", "/bin:/sbin:/test");
            command.env("HEADLONG_RANK", rank.to_string()).env("HEADLONG_WORLD_SIZE", RANKS.to_string());
            command.env("HEADLONG_MASTER_ADDR", "127.0.0.1").env("HEADLONG_MASTER_PORT", "29600");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().map_err(|error| error.to_string())?;
            let out = child.stdout.take().map(BufReader::new);
            job.ranks.push(Process { child, out });
        }
        Ok(job)
    }

    /// Reads what a rank prints until it is in a step.
    fn wait_for_step(&mut self, rank: usize, step: u32) -> Result<(), String> {
        let out = self.ranks[rank].out.as_mut().ok_or("its output was read already")?;
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
        let Process { child, out } = &mut self.ranks[rank];
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
        for process in &mut self.ranks {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
