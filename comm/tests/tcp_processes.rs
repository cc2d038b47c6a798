//! Processes are killed, stopped and started wrongly: the others end within seconds, and their
//! error names the culprit, whatever carries their payload.

use crate::tcp_support::{ReservedPort, Way, over_every_way, rank_program, reserve_port};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

// What happens before payload has a way of its own stands below, with TCP alone.
over_every_way!(
    processes:
    a_job_that_goes_well_leaves_nothing_behind,
    killed_mid_collective,
    rank_0_killed_mid_collective,
    stopped_mid_collective_found_by_its_silence,
    rank_0_stopped_mid_collective,
    stopped_mid_collective_found_by_the_deadline_of_the_step,
    an_own_failure_is_told_to_all_with_its_reason,
    killed_at_shutdown,
    rank_0_killed_at_shutdown,
    stopped_at_shutdown,
    ended_without_goodbye,
    a_duplicate_of_a_running_rank,
    killed_while_paths_are_chosen,
);

/// Deadlines of the children, in the order in which they fire: silence before a step's deadline.
const DEADLINES: &[&str] = &[
    "--rendezvous-ms",
    "5000",
    "--operation-ms",
    "5000",
    "--heartbeat-ms",
    "100",
    "--silence-ms",
    "1000",
];
/// Nothing in these tests may take longer.
const LIMIT: Duration = Duration::from_secs(9);

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

struct Outcome {
    code: Option<i32>,
    errors: String,
}

/// A job of processes; all are gone when it is.
struct Job {
    begin: Instant,
    port: ReservedPort,
    size: usize,
    processes: Vec<Option<Process>>,
    way: Way,
}

impl Job {
    fn new(way: Way, size: usize) -> Self {
        let processes = (0..size).map(|_| None).collect();
        Self { begin: Instant::now(), port: reserve_port(), size, processes, way }
    }

    /// A job whose ranks all run with `arguments`.
    fn start(way: Way, size: usize, arguments: &[&str]) -> Self {
        let mut job = Self::new(way, size);
        (0..size).for_each(|rank| job.spawn(rank, arguments));
        job
    }

    fn spawn(&mut self, rank: usize, arguments: &[&str]) {
        let process = self.process(rank, arguments);
        self.processes[rank] = Some(process);
    }

    fn process(&self, rank: usize, arguments: &[&str]) -> Process {
        let mut child = Command::new(rank_program())
            .args(DEADLINES)
            .args(self.way.arguments())
            .args(arguments)
            .env_clear()
            .env("HEADLONG_RANK", rank.to_string())
            .env("HEADLONG_WORLD_SIZE", self.size.to_string())
            .env("HEADLONG_MASTER_ADDR", "127.0.0.1")
            .env("HEADLONG_MASTER_PORT", self.port.port.to_string())
            .env("HEADLONG_SECRET", "the secret of the test")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Process { child, lines }
    }

    /// Waits until a rank says a line with these words.
    fn wait_for(&mut self, rank: usize, words: &str) {
        let process = self.processes[rank].as_mut().expect("it runs");
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let read = process.lines.read_line(&mut line).expect("text");
            assert!(
                read > 0,
                "rank {rank} has ended before it said `{words}`: {}",
                self.outcome(rank).errors
            );
        }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let child = &self.processes[rank].as_ref().expect("it runs").child;
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("a signal to an own child");
    }

    /// The end of a rank, which must come in time.
    fn outcome(&mut self, rank: usize) -> Outcome {
        let process = self.processes[rank].take().expect("it runs");
        end_of(process, self.begin)
    }

    /// All ranks but `culprit` end with code 3 and name it.
    fn assert_others_name(&mut self, culprit: usize, words: &str) {
        for rank in (0..self.size).filter(|rank| *rank != culprit) {
            let Outcome { code, errors } = self.outcome(rank);
            assert_eq!(code, Some(3), "rank {rank}: {errors}");
            assert!(
                errors.contains(&format!("rank {culprit} ")) && errors.contains(words),
                "rank {rank}: {errors}"
            );
        }
    }
}

fn end_of(mut process: Process, begin: Instant) -> Outcome {
    loop {
        if let Some(status) = process.child.try_wait().expect("an own child") {
            let mut errors = String::new();
            process.child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
            return Outcome { code: status.code(), errors };
        }
        if begin.elapsed() > LIMIT {
            let _ = process.child.kill();
            let _ = process.child.wait();
            panic!("a rank has not ended within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for mut process in self.processes.drain(..).flatten() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn a_job_that_goes_well_leaves_nothing_behind(way: Way) {
    let shared_memory = || std::fs::read_dir("/dev/shm").map_or(0, |entries| entries.count());
    let before = shared_memory();
    let mut job = Job::start(way, 3, &["--steps", "20"]);
    for rank in 0..3 {
        let Outcome { code, errors } = job.outcome(rank);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "rank {rank}");
    }
    assert_eq!(shared_memory(), before, "no segment is left");
    let again = std::net::TcpListener::bind(("127.0.0.1", job.port.port));
    assert!(again.is_ok(), "the port is free again");
}

#[test]
fn killed_before_the_rendezvous() {
    let mut job = Job::new(Way::Tcp, 3);
    let short = ["--rendezvous-ms", "1500"];
    [0, 2].iter().for_each(|rank| job.spawn(*rank, &short));
    job.spawn(1, &["--before-join-ms", "60000"]);
    job.wait_for(1, "started");
    job.signal(1, Signal::KILL);
    for rank in [0, 2] {
        let Outcome { code, errors } = job.outcome(rank);
        assert_eq!(code, Some(3), "{errors}");
        assert!(errors.contains("rank 1 of 3 did not come within 1.5 s"), "rank {rank}: {errors}");
    }
}

#[test]
fn stopped_before_the_rendezvous() {
    let mut job = Job::new(Way::Tcp, 2);
    job.spawn(0, &["--rendezvous-ms", "1500"]);
    job.spawn(1, &["--before-join-ms", "60000"]);
    job.wait_for(1, "started");
    job.signal(1, Signal::STOP);
    let Outcome { code, errors } = job.outcome(0);
    assert!(
        code == Some(3) && errors.contains("rank 1 of 2 did not come within 1.5 s"),
        "{errors}"
    );
}

/// Rank 2 never comes, so rank 1 waits in the rendezvous when it happens.
fn during_the_rendezvous(victim: usize, signal: Signal) -> (Job, Outcome) {
    let mut job = Job::new(Way::Tcp, 3);
    [0, 1].iter().for_each(|rank| job.spawn(*rank, &[]));
    job.wait_for(0, "started");
    job.wait_for(1, "started");
    std::thread::sleep(Duration::from_millis(300));
    job.signal(victim, signal);
    let outcome = job.outcome(1 - victim);
    (job, outcome)
}

#[test]
fn killed_during_the_rendezvous() {
    let (_job, Outcome { code, errors }) = during_the_rendezvous(1, Signal::KILL);
    assert!(code == Some(3) && errors.contains("rank 1 is gone"), "{errors}");
}

#[test]
fn rank_0_killed_during_the_rendezvous() {
    let (_job, Outcome { code, errors }) = during_the_rendezvous(0, Signal::KILL);
    assert!(code == Some(3) && errors.contains("rank 0 is gone"), "{errors}");
}

#[test]
fn rank_0_stopped_during_the_rendezvous() {
    let (_job, Outcome { code, errors }) = during_the_rendezvous(0, Signal::STOP);
    assert!(
        code == Some(3) && errors.contains("rank 0 has not come to the rendezvous"),
        "{errors}"
    );
}

/// A rank that is stopped while it waits is found when the job starts without it.
#[test]
fn stopped_during_the_rendezvous() {
    let mut job = Job::new(Way::Tcp, 3);
    [0, 1].iter().for_each(|rank| job.spawn(*rank, &[]));
    job.wait_for(1, "started");
    std::thread::sleep(Duration::from_millis(300));
    job.signal(1, Signal::STOP);
    job.spawn(2, &[]);
    job.assert_others_name(1, "heartbeat");
}

/// A job in the middle of its steps; `victim` gets the signal. How long the others take to end.
fn mid_step(way: Way, victim: usize, signal: Signal, words: &str, rest: &[&str]) -> Duration {
    let arguments = [&["--steps", "1000000", "--elements", "20000"], rest].concat();
    let mut job = Job::start(way, 3, &arguments);
    (0..3).for_each(|rank| job.wait_for(rank, "step 5"));
    let mut drains = Vec::new();
    for process in job.processes.iter_mut().flatten() {
        // No one may wait for a full pipe.
        let lines = std::mem::replace(&mut process.lines, BufReader::new(spare_stdout()));
        drains.push(std::thread::spawn(move || {
            drop(std::io::copy(&mut { lines }, &mut std::io::sink()))
        }));
    }
    std::thread::sleep(Duration::from_millis(50));
    job.signal(victim, signal);
    let begin = Instant::now();
    job.assert_others_name(victim, words);
    let took = begin.elapsed();
    drop(job);
    drains.into_iter().for_each(|drain| drain.join().expect("no panic"));
    took
}

/// The output of a process that has none.
fn spare_stdout() -> ChildStdout {
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().expect("`true` starts");
    let stdout = child.stdout.take().expect("a pipe");
    child.wait().expect("an own child");
    stdout
}

fn killed_mid_collective(way: Way) {
    let took = mid_step(way, 2, Signal::KILL, "is gone", &[]);
    assert!(took < Duration::from_millis(900), "{took:?}");
}

fn rank_0_killed_mid_collective(way: Way) {
    let took = mid_step(way, 0, Signal::KILL, "is gone", &[]);
    assert!(took < Duration::from_millis(1500), "{took:?}");
}

fn stopped_mid_collective_found_by_its_silence(way: Way) {
    let took = mid_step(way, 1, Signal::STOP, "has not come to heartbeat number", &[]);
    assert!(took < Duration::from_secs(3), "{took:?}");
}

fn rank_0_stopped_mid_collective(way: Way) {
    let took = mid_step(way, 0, Signal::STOP, "has not come to heartbeat number", &[]);
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// With a step's deadline before the silence, the step names the culprit.
fn stopped_mid_collective_found_by_the_deadline_of_the_step(way: Way) {
    let rest = ["--operation-ms", "700", "--silence-ms", "60000"];
    let took = mid_step(way, 1, Signal::STOP, "has not come to all", &rest);
    assert!(took < Duration::from_secs(3), "{took:?}");
}

fn an_own_failure_is_told_to_all_with_its_reason(way: Way) {
    let mut job = Job::new(way, 3);
    [0, 1].iter().for_each(|rank| job.spawn(*rank, &["--steps", "100"]));
    job.spawn(2, &["--steps", "100", "--fail-at", "7"]);
    for rank in 0..3 {
        let Outcome { code, errors } = job.outcome(rank);
        assert_eq!(code, Some(3));
        assert!(
            errors.contains("rank 2 has failed: asked to fail at step 7"),
            "rank {rank}: {errors}"
        );
    }
}

fn at_shutdown(way: Way, victim: usize, signal: Signal, words: &str) {
    let mut job = Job::new(way, 3);
    for rank in 0..3 {
        let hold = if rank == victim { "60000" } else { "0" };
        job.spawn(rank, &["--steps", "3", "--before-close-ms", hold]);
    }
    (0..3).filter(|rank| *rank != victim).for_each(|rank| job.wait_for(rank, "closing"));
    job.signal(victim, signal);
    job.assert_others_name(victim, words);
}

fn killed_at_shutdown(way: Way) {
    at_shutdown(way, 2, Signal::KILL, "is gone");
}

fn rank_0_killed_at_shutdown(way: Way) {
    at_shutdown(way, 0, Signal::KILL, "is gone");
}

fn stopped_at_shutdown(way: Way) {
    at_shutdown(way, 1, Signal::STOP, "heartbeat");
}

fn ended_without_goodbye(way: Way) {
    let mut job = Job::new(way, 2);
    job.spawn(0, &["--steps", "3"]);
    job.spawn(1, &["--steps", "3", "--no-goodbye"]);
    assert_eq!(job.outcome(1).code, Some(0));
    job.assert_others_name(1, "left without a goodbye");
}

/// A second process with a rank of a running job is refused; the job continues.
fn a_duplicate_of_a_running_rank(way: Way) {
    let mut job = Job::start(way, 2, &["--steps", "40", "--step-ms", "20"]);
    job.wait_for(0, "step 2");
    let Outcome { code, errors } = end_of(job.process(1, &[]), job.begin);
    assert!(code == Some(3) && errors.contains("a second rank 1"), "{errors}");
    for rank in 0..2 {
        let Outcome { code, errors } = job.outcome(rank);
        assert_eq!((code, errors.as_str()), (Some(0), ""));
    }
}

/// Different settings: both processes say which rank has them.
#[test]
fn processes_with_different_settings() {
    let mut job = Job::new(Way::Tcp, 2);
    job.spawn(0, &["--config", "1"]);
    job.spawn(1, &["--config", "2"]);
    for rank in 0..2 {
        let Outcome { code, errors } = job.outcome(rank);
        assert!(
            code == Some(3) && errors.contains("rank 1 was refused: its configuration differs"),
            "{errors}"
        );
    }
}

/// The job has come together, and its ranks tell each other what they can: one of them never does.
fn killed_while_paths_are_chosen(way: Way) {
    let mut job = Job::new(way, 3);
    [0, 1].iter().for_each(|rank| job.spawn(*rank, &[]));
    job.spawn(2, &["--before-choice-ms", "60000"]);
    job.wait_for(2, "joined");
    job.signal(2, Signal::KILL);
    job.assert_others_name(2, "is gone");
}
