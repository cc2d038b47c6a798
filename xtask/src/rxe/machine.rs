//! Booting the guest: an emulated machine that prints what it does and is stopped when it takes too
//! long.
//!
//! The emulation's clocks are the trouble of a busy host, and each word of the kernel's arguments
//! is the cure of one failure: `no_timer_check`, because the check of the timer panics when the
//! host takes the processor away in the middle of it; `clocksource=hpet tsc=unstable`, because a
//! time-stamp counter that was measured in such a moment runs many times too fast.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::limit::Limit;
use super::packages::LIBRARIES;
use crate::process;

/// A guest that has not printed its shell after this long never will.
const SHELL_LIMIT: Duration = Duration::from_secs(90);
/// So often a guest that never printed its shell is booted.
const TRIES: u32 = 3;

#[derive(Clone)]
pub struct Boot {
    base: PathBuf,
    image: PathBuf,
    limit: Duration,
    kernel_arguments: String,
    processors: u32,
    more: Vec<String>,
}

impl Boot {
    /// The guest that runs `/test/SCRIPT`, for at most `limit`.
    pub fn new(base: &Path, image: &Path, script: &str, limit: Duration) -> Self {
        let kernel_arguments = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off clocksource=hpet tsc=unstable \
             no_timer_check cryptomgr.notests rdinit=/init rxe_run={script} rxe_limit={}",
            limit.as_secs()
        );
        let (base, image) = (base.to_path_buf(), image.to_path_buf());
        Self { base, image, limit, kernel_arguments, processors: 2, more: Vec::new() }
    }

    /// With a word for the script, which finds it in its environment.
    pub fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.kernel_arguments += &format!(" {name}={value}");
        self
    }

    fn command(&self) -> Command {
        let root = self.base.join("root");
        let mut qemu = Command::new(root.join("usr/bin/qemu-system-x86_64"));
        let libraries = [root.join(LIBRARIES), root.join("usr").join(LIBRARIES)]
            .map(|folder| folder.display().to_string());
        qemu.env("LD_LIBRARY_PATH", libraries.join(":"));
        for folder in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            qemu.arg("-L").arg(root.join(folder));
        }
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35", "-m", "2048"]);
        qemu.arg("-smp").arg(self.processors.to_string());
        qemu.args([
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
            "-serial",
            "stdio",
            "-monitor",
            "none",
        ]);
        qemu.arg("-kernel").arg(self.base.join("vmlinux")).arg("-initrd").arg(&self.image);
        qemu.arg("-append").arg(&self.kernel_arguments).args(&self.more);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        qemu
    }
}

pub struct Verdict {
    pub lines: Vec<String>,
    /// What its script came to; none: it never ended.
    pub status: Option<i32>,
    /// Seconds until its shell, and until its end.
    times: (f64, f64),
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.status == Some(0)
            && self.num_passed() > 0
            && !self.lines.iter().any(|line| line.starts_with("TEST FAIL"))
    }

    pub fn num_passed(&self) -> usize {
        self.lines.iter().filter(|line| line.starts_with("TEST ok")).count()
    }

    pub fn seconds(&self) -> f64 {
        self.times.1
    }

    pub fn words(&self) -> String {
        let failed: Vec<&str> =
            self.lines.iter().filter_map(|line| line.strip_prefix("TEST FAIL ")).collect();
        let (shell, end) = self.times;
        let status = match self.status {
            Some(status) => format!("status {status}"),
            None => "it never ended (a panic at boot, a hang, or the time limit)".into(),
        };
        let failed = if failed.is_empty() {
            String::new()
        } else {
            format!("; failed: {}", failed.join("; "))
        };
        format!(
            "{} checks passed, {status}, shell after {shell:.1} s, {end:.0} s{failed}",
            self.num_passed()
        )
    }
}

/// The longest that guests take which never print their shell.
#[cfg(test)]
pub fn longest_wait_for_a_shell() -> Duration {
    SHELL_LIMIT * TRIES
}

/// Boots, listens to the end, and boots again where the guest never printed its shell.
pub fn run(boot: &Boot, limit: &Limit) -> Result<Verdict> {
    let mut last = None;
    for _ in 0..TRIES {
        limit.check("waiting for a guest's shell")?;
        let verdict = listen(boot, "", limit)?;
        if verdict.times.0.is_finite() {
            return Ok(verdict);
        }
        println!("rxe: the guest never printed its shell: once more");
        last = Some(verdict);
    }
    last.context("at least one try")
}

/// Two guests, joined by a cable: a socket at `cable`. They see `rxe_node=1` and `rxe_node=2`.
pub fn run_pair(boot: &Boot, cable: &Path, limit: &Limit) -> Result<[Verdict; 2]> {
    let end = |node: u32| {
        let mut end = boot.clone().with("rxe_node", node);
        let is_server = if node == 1 { "on" } else { "off" };
        let path = cable.display();
        end.more = vec![
            "-netdev".into(),
            format!("stream,id=n0,server={is_server},addr.type=unix,addr.path={path}"),
            "-device".into(),
            format!("virtio-net-pci,netdev=n0,mac=52:54:00:00:07:0{node},romfile="),
        ];
        end.processors = 1;
        end
    };
    for attempt in 1.. {
        limit.check("waiting for two guests' shells")?;
        let _ = std::fs::remove_file(cable);
        let (first, second, of_first) = (end(1), end(2), *limit);
        let first = thread::spawn(move || listen(&first, "[1] ", &of_first));
        let begin = Instant::now();
        while !cable.exists() && begin.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
        let second = listen(&second, "[2] ", limit)?;
        let first = first.join().expect("a listener does not panic")?;
        let have_shells = first.times.0.is_finite() && second.times.0.is_finite();
        if have_shells || attempt == TRIES {
            return Ok([first, second]);
        }
        println!("rxe: a guest never printed its shell: both once more");
    }
    unreachable!("the loop returns")
}

/// Boots once, prints every line after `mark`, and ends the machine when the boot's limit or that
/// of all has passed.
fn listen(boot: &Boot, mark: &str, all: &Limit) -> Result<Verdict> {
    let begin = Instant::now();
    let mut child = boot.command().spawn().context("starting qemu-system-x86_64")?;
    let console = lines_of(&mut child);
    let mut verdict = Verdict { lines: Vec::new(), status: None, times: (f64::INFINITY, 0.0) };
    loop {
        let limit = if verdict.times.0.is_finite() { boot.limit } else { SHELL_LIMIT };
        let left = limit.saturating_sub(begin.elapsed()).min(all.left());
        let line = match console.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                println!("{mark}rxe: stopped after {:.0} s", begin.elapsed().as_secs_f64());
                let _ = child.kill();
                break;
            }
        };
        let seconds = begin.elapsed().as_secs_f64();
        println!("{mark}{seconds:6.1} {line}");
        if line.contains("GUEST-SHELL") {
            verdict.times.0 = seconds;
        }
        if let Some((_, rest)) = line.split_once("GUEST-DONE rc=") {
            verdict.status = rest.split_whitespace().next().and_then(|status| status.parse().ok());
        }
        verdict.lines.push(line);
    }
    child.wait().context("waiting for qemu-system-x86_64")?;
    verdict.times.1 = begin.elapsed().as_secs_f64();
    Ok(verdict)
}

/// The console's lines as they come; the channel closes with the machine.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    let pipe = child.stdout.take().expect("the command asks for a pipe");
    thread::spawn(move || {
        // The receiver ends first where the guest is given up.
        let _ = process::lines_of(pipe).try_for_each(|line| sender.send(line));
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn verdict(lines: &[&str], status: Option<i32>) -> Verdict {
        Verdict {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            status,
            times: (1.0, 2.0),
        }
    }

    #[test]
    fn a_guest_is_good_only_if_it_ended_well_and_checked_something() {
        assert!(verdict(&["TEST ok   a"], Some(0)).is_good());
        assert!(!verdict(&[], Some(0)).is_good());
        assert!(!verdict(&["TEST ok   a"], Some(1)).is_good());
        assert!(!verdict(&["TEST ok   a"], None).is_good());
        let failed = verdict(&["TEST ok   a", "TEST FAIL b"], Some(0));
        assert!(!failed.is_good() && failed.words().contains("failed: b"), "{}", failed.words());
    }

    /// A folder with an emulator that is a script.
    struct Emulator(PathBuf);

    impl Emulator {
        fn new(name: &str, script: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("headlong-rxe-{name}-{}", std::process::id()));
            let program = folder.join("root/usr/bin/qemu-system-x86_64");
            fs::create_dir_all(program.parent().unwrap()).unwrap();
            fs::write(&program, format!("#!/bin/sh\ncd {}\n{script}", folder.display())).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            Self(folder)
        }

        fn run(&self, guest: Duration, all: Duration) -> Result<Verdict> {
            run(&Boot::new(&self.0, Path::new("image"), "script.sh", guest), &Limit::new(all))
        }
    }

    impl Drop for Emulator {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const GOOD: &str = "echo GUEST-SHELL; echo 'TEST ok   a'; echo GUEST-DONE rc=0";

    #[test]
    fn a_boot_without_a_shell_is_tried_again_but_not_for_ever() {
        let second = format!("if [ -e tried ]; then {GOOD}; else touch tried; echo panic; fi");
        let emulator = Emulator::new("second", &second);
        assert!(emulator.run(LONG, LONG).unwrap().is_good());
        let never = Emulator::new("never", "echo . >>tries; echo panic");
        let verdict = never.run(LONG, LONG).unwrap();
        assert!(
            !verdict.is_good() && verdict.words().contains("never ended"),
            "{}",
            verdict.words()
        );
        assert_eq!(
            fs::read_to_string(never.0.join("tries")).unwrap().lines().count(),
            TRIES as usize
        );
    }

    #[test]
    fn a_guest_that_hangs_is_stopped_by_its_limit_and_by_that_of_all() {
        let begin = Instant::now();
        let short = Duration::from_millis(300);
        let hangs = Emulator::new("hangs", "echo GUEST-SHELL; exec sleep 100");
        for (guest, all) in [(short, LONG), (LONG, short)] {
            let verdict = hangs.run(guest, all).unwrap();
            assert_eq!((verdict.status, verdict.is_good()), (None, false), "{}", verdict.words());
        }
        let silent = Emulator::new("silent", "exec sleep 100");
        let error = silent.run(LONG, short).err().expect("the time is over").to_string();
        assert!(
            error.contains("limit") && error.contains("waiting for a guest's shell"),
            "{error}"
        );
        assert!(begin.elapsed() < LONG);
    }
}
