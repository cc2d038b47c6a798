//! What a person sees: lines that fit the terminal, a bar that leaves nothing behind, colours, an
//! end that says how to go on.

#![cfg(test)]

use crate::run_support::{self, Place, signal, steps, wait_until};
use crate::terminal::Terminal;
use std::process::Command;

/// A run of a few tenths of a second, with four evaluations and a checkpoint.
const SHORT: [&str; 11] = [
    "train",
    "--set",
    "synthetic.train_rows=25600",
    "--set",
    "synthetic.valid_rows=2000",
    "--set",
    "train.log_every=1000000",
    "--checkpoint-dir",
    "c",
    "--eval-every",
    "0.25",
];

/// A run that ends on request.
const LONG: [&str; 9] = [
    "train",
    "--set",
    "synthetic.train_rows=25600",
    "--set",
    "synthetic.valid_rows=2000",
    "--epochs",
    "100000",
    "--eval-every",
    "0",
];

fn joined(rows: &[String]) -> String {
    rows.join("\n")
}

#[test]
fn every_line_fits_the_terminal() {
    for columns in [80, 120] {
        let folder = tempfile::tempdir().unwrap();
        let terminal = Terminal::start(columns, folder.path(), &SHORT, &[]);
        let (code, rows, broken) = terminal.end();
        let text = joined(&rows);
        assert_eq!((code, &broken[..]), (Some(0), &[][..]), "{columns} columns: {text}");
        for fact in [
            "plan of preset tiny",
            "AUC 0.",
            "calibration ",
            "calibration error 0.",
            "done (finished)",
        ] {
            assert!(text.contains(fact), "{fact}: {text}");
        }
        assert!(!text.contains(['█', '░']), "a copy of the bar is left: {text}");
        let summary = text
            .lines()
            .skip_while(|line| !line.starts_with("plan of"))
            .take_while(|line| !line.starts_with("step"));
        assert!(summary.count() <= 8, "the plan is long: {text}");
    }
}

/// Where a terminal cannot draw, and where there is none, the same is said without a bar; in a
/// file, one line stays one line.
#[test]
fn a_terminal_that_cannot_draw_gets_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal::start(80, folder.path(), &SHORT, &[("TERM", "dumb")]);
    let (code, rows, _) = terminal.end();
    let text = joined(&rows);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("plan of preset tiny") && text.contains("done (finished)"), "{text}");
    assert!(text.contains(" samples/s while training, peak memory "), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
    let output = command.args(SHORT).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let evaluations: Vec<&str> = text.lines().filter(|line| line.starts_with("step")).collect();
    assert_eq!(evaluations.len(), 4, "{text}");
    assert!(
        evaluations.iter().all(|line| line.contains("AUC ") && line.contains(" samples in ")),
        "{text}"
    );
}

/// The bar says loss, speed and time to go from the first steps on, however seldom the log is
/// written.
#[test]
fn the_bar_knows_the_loss_at_once_and_a_stop_leaves_no_copy_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        [&LONG[..], &["--checkpoint-dir", "c o", "--set", "train.log_every=1000000"]].concat();
    let mut terminal = Terminal::start(80, folder.path(), &arguments, &[]);
    wait_until("the first loss", || {
        terminal
            .rows()
            .last()
            .is_some_and(|row| row.contains("loss 0.") && row.contains("samples/s"))
    });
    terminal.press(b"\x03");
    signal(&terminal.child, "INT");
    let (code, rows, broken) = terminal.end();
    let text = joined(&rows);
    assert_eq!(code, Some(130), "{text}");
    // The command is one line for a shell, however long.
    let command = text.split_once("continue with").expect("a command").1;
    assert!(broken.iter().all(|row| command.contains(row.trim())), "{broken:?} {text}");
    assert!(!text.contains(['█', '░']) && !text.contains("error"), "{text}");
    let saved = steps(&folder.path().join("c o"))[0];
    let stopped =
        format!("stopped by SIGINT at step {}: checkpoint", headlong::report::count(saved));
    assert!(text.contains(&stopped) && text.contains("continue with"), "{text}");
}

#[test]
fn a_narrower_window_leaves_no_copy_of_the_bar() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(120, folder.path(), &LONG, &[]);
    let bar =
        |terminal: &Terminal| terminal.rows().last().is_some_and(|row| row.contains("loss 0."));
    wait_until("the bar", || bar(&terminal));
    terminal.resize(70);
    wait_until("the bar again", || {
        bar(&terminal) && terminal.rows().iter().all(|row| row.chars().count() <= 70)
    });
    std::thread::sleep(std::time::Duration::from_millis(600));
    signal(&terminal.child, "TERM");
    let (code, rows, _) = terminal.end();
    let text = joined(&rows);
    assert_eq!(code, Some(143), "{text}");
    assert!(!text.contains(['█', '░']), "{text}");
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("nothing was saved; --checkpoint-dir DIR would have kept the model"),
        "{text}"
    );
}

#[test]
fn errors_and_warnings_are_coloured_as_the_parsers_own_are() {
    let folder = tempfile::tempdir().unwrap();
    let written = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut terminal = Terminal::start(80, folder.path(), arguments, environment);
        terminal.child.wait().unwrap();
        wait_until("the message", || terminal.written().contains("error:"));
        terminal.written()
    };
    let label = |text: &str| text[..text.find("error:").unwrap()].to_owned();
    let of_parser = written(&["train", "--no-such-flag"], &[]);
    let ours = written(&["train", "--set", "no.such=1"], &[]);
    assert!(
        label(&ours).contains("\u{1b}[") && label(&ours) == label(&of_parser),
        "{ours:?} {of_parser:?}"
    );
    let plain = written(&["train", "--set", "no.such=1"], &[("NO_COLOR", "1")]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
}

/// A message that cannot be written is lost, and the exit code is still the right one.
/// What was said to be typed, typed.
#[test]
fn the_command_that_a_stop_names_resumes() {
    for launched in [false, true] {
        let place = Place::new("my rows.txt");
        let command = place.train().with(&[
            "--epochs",
            "100000",
            "--set",
            "sum_blocks=2",
            "--save-every",
            "100000",
        ]);
        let command = command.path("--checkpoint-dir", &place.path("c o"));
        let command = if launched { command.launched(2) } else { command };
        let log = place.path("log.json");
        let mut child = command.path("--log-json", &log).command();
        let child = child
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the first step", || {
            run_support::events(&log).iter().any(|event| event["event"] == "step")
        });
        signal(&child, "INT");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), said.matches("stopped by").count()),
            (Some(130), 1),
            "{said}"
        );
        assert!(!said.contains("error"), "{said}");
        let events = run_support::events(&log);
        assert_eq!(events.last().unwrap()["event"], "done", "a stop is no error: {events:?}");
        let typed =
            said.split_once("continue with\n").expect("a command").1.lines().next().unwrap().trim();
        let saved = steps(&place.path("c o"))[0];
        let going_on = format!("{} --steps {}", typed.replace("--epochs 100000", ""), saved + 1);
        let output = Command::new("sh").args(["-c", &going_on]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{going_on}: {said}");
        assert!(said.contains("resumed at step"), "{said}");
        assert_eq!(steps(&place.path("c o")), [saved, saved + 1]);
    }
}

#[test]
fn the_plan_comes_after_the_datas_first_lines() {
    let place = Place::new("rows.txt");
    let passwd = place.path("passwd");
    std::fs::write(&passwd, "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    for valid in [None, Some(&place.train)] {
        let files = valid.into_iter().chain([&passwd]);
        let train =
            files.fold(place.train_without_data(), |train, file| train.path("--data", file));
        let ended = train.fails(1, &["passwd, line 1: expected 40 tab-separated columns"]);
        assert_eq!(ended.stdout, "", "{}", ended.stderr);
    }
}

/// Steps of the evaluations that a run of 96 steps has made.
fn evaluated(place: &Place, arguments: &[&str]) -> (Vec<u64>, String) {
    let log = place.path("log.json");
    let train = place.train().with(&["--set", "sum_blocks=4"]).path("--valid", &place.valid);
    let ended = train.with(arguments).path("--log-json", &log).succeeds();
    let events = run_support::events(&log);
    let steps = events
        .iter()
        .filter(|event| event["event"] == "eval")
        .map(|event| event["step"].as_u64().unwrap());
    (steps.collect(), ended.digest())
}

#[test]
fn two_evaluations_at_the_end_become_one() {
    let place = Place::new("rows.txt");
    // The one at step 95 would come a step before the last.
    let steps = ["--steps", "96", "--eval-every"];
    let of = |more: &[&str]| evaluated(&place, &[&steps, more].concat());
    let (found, digest) = of(&["19"]);
    assert_eq!(found, [19, 38, 57, 76, 96]);
    assert_eq!(of(&["0"]), (vec![96], digest.clone()), "weights do not notice");
    assert_eq!(of(&["23"]).0, [23, 46, 69, 92, 96], "four of 23 are not near");
    // Half an epoch of 24 steps, whose rows are counted, is rounded down to 11: the second half
    // ends two steps early.
    let of_epoch = |fraction| evaluated(&place, &["--epochs", "1", "--eval-every", fraction]).0;
    assert_eq!(of_epoch("0.5"), [11, 24]);
    assert_eq!(of_epoch("0.33"), [7, 14, 21, 24]);
    // A target and MLPerf's log count evaluations: each is where the rule has it.
    assert_eq!(of(&["19", "--target-auc", "0.9999"]), (vec![19, 38, 57, 76, 95, 96], digest));
    let mllog = place.path("mllog.txt");
    assert_eq!(of(&["19", "--mllog", mllog.to_str().unwrap()]).0, [19, 38, 57, 76, 95, 96]);
}
