//! The command line that started this process, as its user would type it again.

use headlong_comm::launcher_env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::sync::OnceLock;

/// How the command line was called inside another program, such as Python's: set once, before
/// anything asks.
static CALLED: OnceLock<Called> = OnceLock::new();

struct Called {
    arguments: Vec<OsString>,
    /// What starts it again: a program and its first arguments.
    program: Vec<OsString>,
}

/// Says that the command line is not that of this process, and what starts it in another one. What
/// was said first holds.
pub fn is_called(arguments: Vec<OsString>, program: Vec<OsString>) {
    CALLED.get_or_init(|| Called { arguments, program });
}

/// The name of the program and its arguments.
pub fn arguments() -> Vec<OsString> {
    let called = CALLED.get().map(|called| called.arguments.clone());
    called.unwrap_or_else(|| std::env::args_os().collect())
}

/// Starts this program in another process, with arguments that are still to be said.
///
/// # Errors
/// The system does not say where the program is.
pub fn again() -> std::io::Result<Command> {
    match CALLED.get().and_then(|called| called.program.split_first()) {
        Some((program, first)) => {
            let mut command = Command::new(program);
            command.args(first);
            Ok(command)
        }
        None => std::env::current_exe().map(Command::new),
    }
}

/// The arguments as a shell takes them.
pub fn quoted(arguments: &[OsString]) -> String {
    let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    shlex::try_join(words.iter().map(AsRef::as_ref)).unwrap_or_else(|_| words.join(" "))
}

/// The command with which a run that was stopped continues: what its user typed, and `--resume`.
/// `None` where a launcher that is not ours knows that.
pub fn resuming(is_single_process: bool) -> Option<String> {
    let typed = match launcher_env::launcher_process().ok()? {
        Some(launcher) => arguments_of(launcher)?,
        None if is_single_process => arguments(),
        None => return None,
    };
    Some(quoted(&with_resume(typed)))
}

fn arguments_of(process: i32) -> Option<Vec<OsString>> {
    let bytes = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|&byte| byte == 0);
    Some(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// A run that continues has weights: it takes those of no other checkpoint.
fn with_resume(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(arguments.len() + 1);
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument.as_bytes() {
            b"--resume" => {}
            b"--init-from" => drop(rest.next()),
            other if other.starts_with(b"--init-from=") => {}
            _ => kept.push(argument),
        }
    }
    kept.push("--resume".into());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed(arguments: &[&str]) -> String {
        quoted(&with_resume(arguments.iter().map(OsString::from).collect()))
    }

    #[test]
    fn the_command_can_be_typed_again() {
        assert_eq!(
            resumed(&["headlong", "train", "--data", "my rows.txt", "--set", "tables.rows=[1, 2]"]),
            "headlong train --data 'my rows.txt' --set 'tables.rows=[1, 2]' --resume"
        );
        assert_eq!(
            resumed(&["headlong", "train", "--resume", "--keep", "2"]),
            "headlong train --keep 2 --resume"
        );
        let started =
            ["headlong", "launch", "-n", "2", "--", "train", "--init-from", "old", "--seed", "7"];
        assert_eq!(resumed(&started), "headlong launch -n 2 -- train --seed 7 --resume");
        assert_eq!(resumed(&["headlong", "train", "--init-from=old"]), "headlong train --resume");
    }

    #[test]
    fn another_process_has_arguments() {
        let own: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(arguments_of(std::process::id() as i32), Some(own));
        assert_eq!(arguments_of(i32::MAX), None);
    }
}
