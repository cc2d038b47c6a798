//! `headlong launch` on one machine: ranks find each other, one verdict names the culprit, no one
//! is left behind.

#![cfg(test)]

use crate::run_support::{is_alive, ranks_of, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::read_to_string;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A job that talks over TCP until somebody stops it.
const ENDLESS: [&str; 8] =
    ["bench", "barrier", "--backend", "tcp", "--iterations", "10000000", "--warmup", "0"];

fn launch(ranks: usize, command: &[&str]) -> Command {
    let mut launch = Command::new(env!("CARGO_BIN_EXE_headlong"));
    launch.args(["launch", "-n", &ranks.to_string(), "--"]).args(command).stdin(Stdio::null());
    launch
}

fn run(ranks: usize, command: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        launch(ranks, command).output().expect("headlong starts");
    (
        status.code(),
        String::from_utf8(stdout).expect("text"),
        String::from_utf8(stderr).expect("text"),
    )
}

/// A running job of `ranks`: the launcher and its children, rank 0 first.
fn running(ranks: usize) -> (Child, Vec<i32>) {
    let launcher = launch(ranks, &ENDLESS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_until("starting", || ranks_of(&launcher).len() == ranks);
    let children = ranks_of(&launcher);
    // Joined: a control thread runs in each.
    let joined = |pid: &i32| {
        let threads =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut names =
            threads.filter_map(|thread| read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim() == "comm-control")
    };
    wait_until("joining", || children.iter().all(joined));
    (launcher, children)
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process"), signal)
        .expect("a signal to a process of this test");
}

fn end_of(launcher: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = launcher.wait_with_output().expect("an own child");
    (status.code(), String::from_utf8(stderr).expect("text"))
}

#[test]
fn ranks_find_each_other_and_rank_0_has_the_answer() {
    let command = [
        "bench",
        "all_reduce",
        "--backend",
        "tcp",
        "-b",
        "1024",
        "-e",
        "1024",
        "--iterations",
        "20",
    ];
    let (code, out, errors) = run(3, &command);
    assert_eq!(code, Some(0), "{errors}");
    assert!(out.contains("1024"), "{out}");
    let (other, _, _) = run(2, &[&["headlong"], &command[..]].concat());
    assert_eq!(other, Some(0), "the program's own name may stand there too");
}

#[test]
fn wrong_usage_ends_with_2() {
    for (ranks, command, words) in [
        (0, &["doctor"][..], "expected 1 to 1024 ranks"),
        (1025, &["train"], "expected 1 to 1024 ranks"),
        (2, &["train", "--data", "-"], "every process would get another part of it"),
        (2, &["launch", "-n", "2", "--", "doctor"][..], "cannot launch itself"),
    ] {
        let (code, _, errors) = run(ranks, command);
        assert!(code == Some(2) && errors.contains(words), "{code:?} {errors}");
    }
}

#[test]
fn one_process_of_several_shows_a_configuration() {
    let (code, out, errors) = run(3, &["config", "show", "--preset", "tiny"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(out.matches("# From preset tiny").count(), 1, "{out}");
    assert!(errors.contains("`config` is the work of one process"), "{errors}");
}

#[test]
fn the_exit_code_is_the_culprits_and_lines_carry_their_rank() {
    let (code, _, errors) = run(2, &["train", "--set", "no.such=1"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains("[rank 1] error: ") && errors.contains("has failed with exit code 2"),
        "{errors}"
    );
}

#[test]
fn a_killed_rank_is_named_and_the_others_end() {
    let (launcher, children) = running(3);
    let begin = Instant::now();
    send(children[1], Signal::KILL);
    let (code, errors) = end_of(launcher);
    assert_eq!(code, Some(3), "{errors}");
    assert!(errors.contains("rank 1 was killed by SIGKILL"), "{errors}");
    assert!(errors.contains("[rank 2] error: ") && errors.contains("rank 1 is gone"), "{errors}");
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert!(!children.iter().any(|pid| is_alive(*pid)));
}

/// A rank that is stopped for longer than others wait for its signs of life, and then continues: it
/// ends like a victim, and may say itself that another is gone.
fn stopped_for_a_while(victim: usize) {
    let (launcher, children) = running(2);
    send(children[victim], Signal::STOP);
    let other = children[1 - victim];
    wait_until("the end of the other rank", || !is_alive(other));
    send(children[victim], Signal::CONT);
    let (code, errors) = end_of(launcher);
    assert_eq!(code, Some(3), "{errors}");
    let lost = format!("rank {victim} has not come to heartbeat number ");
    let last = errors.lines().last().unwrap_or_default();
    let words = format!("error: rank {victim} was lost: {lost}");
    assert!(last.starts_with(&words), "{errors}");
    let victims = format!("; rank {} then had no one to talk to", 1 - victim);
    assert!(last.ends_with(&victims), "{errors}");
}

#[test]
fn ranks_and_launcher_name_the_same_stopped_rank() {
    stopped_for_a_while(1);
}

#[test]
fn ranks_and_launcher_name_a_stopped_rank_0() {
    stopped_for_a_while(0);
}

#[test]
fn ranks_that_are_bound_to_nothing_are_told_so() {
    let ranks = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let (code, _, errors) = run(ranks, &["no-such-command"]);
    assert_eq!(code, Some(2), "{errors}");
    let words = format!(
        "note: --bind auto: {ranks} ranks, {} processors: ranks run on any processor",
        ranks - 1
    );
    assert!(errors.contains(&words), "{errors}");
}

/// The command may stand there without the two dashes.
#[test]
fn the_dashes_before_the_command_may_be_left_away() {
    let mut launch = Command::new(env!("CARGO_BIN_EXE_headlong"));
    let command = ["barrier", "--backend", "tcp", "-n", "5", "-w", "1"];
    launch.args(["launch", "-n", "2", "--bind", "off", "bench"]).args(command);
    let output = launch.output().expect("headlong starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let (code, _, errors) = run(2, &["--grce-s", "3", "--", "doctor"]);
    assert_eq!(code, Some(2), "an option that is none is not the command: {errors}");
}

#[test]
fn no_child_outlives_a_killed_launcher() {
    let (mut launcher, children) = running(2);
    launcher.kill().expect("an own child");
    launcher.wait().expect("an own child");
    wait_until("the end of the children", || !children.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_signal_to_the_launcher_reaches_every_rank() {
    for (signal, code, words) in [(Signal::TERM, 143, "SIGTERM"), (Signal::HUP, 129, "SIGHUP")] {
        let (launcher, children) = running(2);
        send(launcher.id() as i32, signal);
        let (found, errors) = end_of(launcher);
        assert_eq!(found, Some(code), "{errors}");
        assert!(errors.contains(&format!("stopped by {words}")), "{errors}");
        assert!(!children.iter().any(|pid| is_alive(*pid)));
    }
}

/// With as many processors as ranks, each has its own.
#[test]
fn ranks_are_bound_to_different_processors() {
    let (mut launcher, children) = running(2);
    let allowed = |pid: &i32| {
        let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line =
            status.lines().find(|line| line.starts_with("Cpus_allowed_list")).map(str::to_string);
        line.expect("a line Cpus_allowed_list")
    };
    let (lists, all) =
        (children.iter().map(allowed).collect::<Vec<_>>(), allowed(&(launcher.id() as i32)));
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= 2) {
        assert!(lists[0] != lists[1] && lists[0] != all, "{lists:?} of {all}");
    }
    launcher.kill().expect("an own child");
    launcher.wait().expect("an own child");
}
