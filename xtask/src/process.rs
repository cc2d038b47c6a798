//! Child processes whose output is shown as it comes and read on the way.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};

/// What a finished child left behind.
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

/// The command as a person would type it.
pub fn written(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}='{}' ", name.to_string_lossy(), value.to_string_lossy()))
    });
    variables.collect::<String>() + &words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with its output on ours; whether it succeeded.
pub fn show(mut command: Command) -> Result<bool> {
    println!("$ {}", written(&command));
    let status = command.status().with_context(|| format!("starting `{}`", written(&command)))?;
    Ok(status.success())
}

/// Runs `command` and reads its output to the end; prints the lines that `shown` lets through.
pub fn read(mut command: Command, mut shown: impl FnMut(&str) -> bool) -> Result<Finished> {
    println!("$ {}", written(&command));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", written(&command)))?;
    let (sender, receiver) = mpsc::sync_channel(1024);
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    ];
    let forwarders: Vec<_> = pipes
        .into_iter()
        .flatten()
        .map(|pipe| {
            let sender = sender.clone();
            thread::spawn(move || forward_lines(pipe, &sender))
        })
        .collect();
    drop(sender);

    let mut lines = Vec::new();
    for line in receiver {
        if shown(&line) {
            println!("{line}");
        }
        lines.push(line);
    }
    for forwarder in forwarders {
        forwarder.join().expect("a forwarder only reads and sends: it does not panic");
    }
    let status = child.wait().with_context(|| format!("waiting for `{}`", written(&command)))?;
    Ok(Finished { success: status.success(), lines })
}

/// Sends each line of `pipe`, its bytes made text, until either end closes.
fn forward_lines(pipe: impl Read, sender: &mpsc::SyncSender<String>) {
    for line in BufReader::new(pipe).split(b'\n').map_while(|line| line.ok()) {
        let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
        if sender.send(text).is_err() {
            return;
        }
    }
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
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    file.write_all((lines.join("\n") + "\n").as_bytes()).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_program_that_is_absent_does_not_answer() {
        assert!(answers("sh", &["-c", "exit 0"]));
        assert!(!answers("sh", &["-c", "exit 1"]));
        assert!(!answers("headlong-no-such-program", &[]));
    }
}
