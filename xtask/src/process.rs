//! Child processes whose output is shown as it comes and read on the way.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How long a command may run. The longest, the tests, takes two thirds; what hangs is to fail by
/// name, and the others to run.
const LIMIT: Duration = Duration::from_secs(25 * 60);

pub struct Finished {
    /// Whether it exited with 0.
    pub success: bool,
    /// Every line it printed, standard output and standard error in the order they came.
    pub lines: Vec<String>,
}

/// A command with a clean standard input: no check may wait for a person.
pub fn command(program: impl AsRef<OsStr>, arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

/// `cargo` with `arguments`, in `folder`.
pub fn cargo(arguments: &[&str], folder: &Path) -> Command {
    command("cargo", arguments, folder)
}

/// Builds a program of the workspace; an error where it does not build.
///
/// With all packages in view: one alone would have dependencies with other features, and all of
/// them would be compiled once more.
pub fn build(root: &Path, program: &str) -> Result<()> {
    let arguments = ["build", "--release", "--quiet", "--workspace", "--bin", program];
    ensure!(show(cargo(&arguments, root))?, "{program} does not build");
    Ok(())
}

/// As [`build`]: where the program is.
pub fn built(root: &Path, target: &Path, program: &str) -> Result<PathBuf> {
    build(root, program)?;
    Ok(target.join("release").join(program))
}

pub fn written(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}='{}' ", name.to_string_lossy(), value.to_string_lossy()))
    });
    variables.collect::<String>() + &words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// What all programs that were started and have ended took of all cores: how busy a step kept them.
pub fn cpu_of_ended() -> Duration {
    const TICKS_PER_S: u64 = 100; // Linux tells every program this, whatever its clock
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before it, in brackets, may hold anything; `cutime` and `cstime` are numbers 16, 17.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_S)
}

/// Runs `command` with its output on ours; whether it succeeded.
pub fn show(command: Command) -> Result<bool> {
    show_within(LIMIT, command)
}

/// As [`show`], with a limit of its own.
pub fn show_within(limit: Duration, mut command: Command) -> Result<bool> {
    let words = written(&command);
    println!("$ {words}");
    let mut child = command.spawn().with_context(|| format!("starting `{words}`"))?;
    let _watch = Watch::over(&child, limit);
    let status = child.wait().with_context(|| format!("waiting for `{words}`"))?;
    Ok(status.success())
}

/// Ends a process and all its descendants when a limit has passed, unless dropped before.
struct Watch {
    done: mpsc::Sender<()>,
}

impl Watch {
    fn over(child: &Child, limit: Duration) -> Self {
        let (done, over) = mpsc::channel();
        let id = child.id();
        thread::spawn(move || {
            if over.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("not done within {} s: ended, with all that it started", limit.as_secs());
                end_with_descendants(id);
            }
        });
        Self { done }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The thread has ended where the limit has passed.
        let _ = self.done.send(());
    }
}

/// Kills a process and all below it, as `/proc` knows them: what it started holds our pipes open,
/// too. From the top: a parent whose child ends first continues.
fn end_with_descendants(id: u32) {
    let mut family = vec![id];
    let mut seen = 0;
    while let Some(&parent) = family.get(seen) {
        family.extend(children_of(parent));
        seen += 1;
    }
    let mut kill = Command::new("kill");
    kill.arg("-KILL").args(family.iter().map(u32::to_string));
    // One that has ended meanwhile makes `kill` complain and kill the others all the same.
    let _ = kill.stderr(Stdio::null()).status();
}

fn children_of(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Runs `command` and reads its output to the end; prints the lines that `shown` lets through.
pub fn read(command: Command, shown: impl FnMut(&str) -> bool) -> Result<Finished> {
    read_within(LIMIT, command, shown)
}

/// As [`read`], with a limit of its own.
pub fn read_within(
    limit: Duration,
    mut command: Command,
    mut shown: impl FnMut(&str) -> bool,
) -> Result<Finished> {
    let words = written(&command);
    println!("$ {words}");
    let (output, input) = std::io::pipe().context("a pipe")?;
    command.stdout(input.try_clone().context("a pipe")?).stderr(input);
    let mut child = command.spawn().with_context(|| format!("starting `{words}`"))?;
    let _watch = Watch::over(&child, limit);
    // Our ends to write to: the pipe is at its end when the child's are closed.
    drop(command);
    let mut lines = Vec::new();
    for line in lines_of(output) {
        if shown(&line) {
            println!("{line}");
        }
        lines.push(line);
    }
    let status = child.wait().with_context(|| format!("waiting for `{words}`"))?;
    Ok(Finished { success: status.success(), lines })
}

/// The lines of `pipe`, their bytes made text, to its end.
pub fn lines_of(pipe: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
}

pub trait At<T> {
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.with_context(|| path.display().to_string())
    }
}

/// Makes the folder at `path`, without what it held before.
pub fn fresh_folder(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).at(path)?;
    }
    fs::create_dir_all(path).at(path)
}

/// Whether `program` answers `--version`-like `arguments` with success.
pub fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Writes `lines` to the file at `path`, making its folder.
pub fn write_lines(path: &Path, lines: &[String]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).at(folder)?;
    }
    fs::write(path, lines.join("\n") + "\n").at(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        command("sh", &["-c", script], Path::new("."))
    }

    #[test]
    fn both_streams_are_read_and_the_exit_is_known() {
        let finished = read(shell("echo out; echo err >&2; exit 3"), |_| false).unwrap();
        assert!(!finished.success);
        let mut lines = finished.lines;
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
    }

    #[test]
    fn standard_input_is_empty() {
        let finished = read(shell("cat; echo end"), |_| false).unwrap();
        assert!(finished.success);
        assert_eq!(finished.lines, ["end"]);
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let begun = Instant::now();
        let mut child = shell("sleep 100 & echo $!; wait").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let _watch = Watch::over(&child, Duration::from_millis(50));
        assert!(!child.wait().unwrap().success());
        // The end of the pipe: no one below holds it any longer.
        assert_eq!(output.read_line(&mut line).unwrap(), 0);
        assert!(begun.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_is_absent_does_not_answer() {
        assert!(answers("sh", &["-c", "exit 0"]));
        assert!(!answers("sh", &["-c", "exit 1"]));
        assert!(!answers("headlong-no-such-program", &[]));
    }
}
