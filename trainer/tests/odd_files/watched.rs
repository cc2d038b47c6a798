//! The program under a watch: its time, its memory, its last words.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The most memory that a command may take.
const MOST_KIB: u64 = 256 << 10;
/// The longest that it may take.
const LONGEST: Duration = Duration::from_secs(10);
/// A user who owns nothing: for files that may not be read, where the tests run as root, who may
/// read all.
pub const UNPRIVILEGED: u32 = 65534;

/// What was seen of a run of the program.
pub struct Ended {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    took: Duration,
    peak_kib: u64,
}

impl Ended {
    /// An error that says which bound the run did not keep.
    pub fn kept_its_bounds(&self) -> Result<(), String> {
        match (self.took > LONGEST, self.peak_kib > MOST_KIB, self.code) {
            (true, ..) => {
                Err(format!("ran for {:?} or was ended then: {}", self.took, self.stderr))
            }
            (_, true, _) => Err(format!("took {} KiB of memory: {}", self.peak_kib, self.stderr)),
            (.., None) => Err(format!("was ended by a signal: {}", self.stderr)),
            _ => Ok(()),
        }
    }
}

/// Runs the program to its end; where it exceeds a bound, that is now.
pub fn run(program: &Path, folder: &Path, arguments: &[OsString]) -> Ended {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if rustix::process::getuid().is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let (started, mut peak_kib) = (Instant::now(), 0);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        peak_kib = peak_kib.max(high_water_kib(child.id()));
        if peak_kib > MOST_KIB || started.elapsed() > LONGEST {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    let [stdout, stderr] = [stdout, stderr].map(|stream| stream.join().unwrap());
    Ended { code: status.code(), stdout, stderr, took, peak_kib }
}

fn reading(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.map(|mut stream| stream.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The most memory that a process has had until now.
fn high_water_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
