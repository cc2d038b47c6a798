//! `headlong report`: what the page says is what `eval` says, of every kind of run, and where
//! something is gone it says that; a browser shows it without an error and loads nothing.

#![cfg(test)]

use crate::run_support::{Place, Run, events};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A run with four evaluations and a checkpoint.
fn train(place: &Place) -> Run {
    let train = place.train().path("--valid", &place.valid).with(&["--eval-every", "0.25"]);
    train.path("--checkpoint-dir", &place.path("checkpoints"))
}

/// The page of the run in `folder`, after checking that it loads nothing.
fn report(folder: &Path, more: &[&str]) -> String {
    Run::new("report").with(&[folder.to_str().unwrap(), "--threads", "1"]).with(more).succeeds();
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for loads in
        ["://", "src=", "url(", "@import", "<script", "<link", "<base", "<iframe", "fetch("]
    {
        assert!(!page.contains(loads), "{loads}");
    }
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("NaN") && !page.contains(">inf"));
    page
}

fn eval(place: &Place, data: &Path) -> Value {
    let eval = Run::new("eval").path("--checkpoint", &place.path("checkpoints"));
    serde_json::from_str(&eval.path("--data", data).with(&["--json"]).succeeds().stdout).unwrap()
}

fn number(value: &Value, digits: usize) -> String {
    format!("{:.digits$}", value.as_f64().unwrap())
}

/// The sentence about the rows that were looked at.
fn of_rows(eval: &Value, whose: &str) -> String {
    let [auc, loss, ne] = ["auc", "logloss", "ne"].map(|key| number(&eval[key], 5));
    format!("{whose}: AUC {auc}, log loss {loss}, normalised entropy {ne}.")
}

fn assert_has(page: &str, what: &str) {
    assert!(page.contains(what), "{what} is not in {page}");
}

/// Of several processes the first keeps the history of all.
#[test]
fn the_history_of_a_launched_run_is_that_of_rank_0() {
    for _ in 0..5 {
        let place = Place::new("rows.txt");
        let (output, log) = (place.path("output"), place.path("log"));
        let train = train(&place).path("--log-json", &log);
        let ended = train.with(&["--steps", "4", "--save-every", "2"]).launched(3).succeeds();
        assert!(!ended.stderr.contains("no history is kept"), "{}", ended.stderr);
        let saved = |file: &Path| {
            let of_kind = events(file).into_iter().filter(|event| event["event"] == "checkpoint");
            of_kind.map(|event| event["step"].clone()).collect::<Vec<_>>()
        };
        let history = saved(&output.join("history.jsonl"));
        assert_eq!((history.len(), &history), (2, &saved(&log)));
    }
}

#[test]
fn a_report_says_what_eval_says_of_the_same_rows() {
    let place = Place::new("rows.txt");
    train(&place).succeeds();
    let output = place.path("output");
    let page = report(&output, &[]);
    let found = eval(&place, &place.valid);
    let step = found["step"].as_u64().unwrap();
    let whose = format!("checkpoint of step {step}, on all 300 rows of the validation data");
    assert_has(&page, &of_rows(&found, &whose));
    for key in ["auc", "logloss", "ne"] {
        assert_has(&page, &format!("<b>{}</b>", number(&found[key], 5)));
    }
    assert_has(&page, &format!("Calibration {}:", number(&found["calibration"], 3)));
    for tenth in found["tenths"].as_array().unwrap() {
        let percent = |key: &str| 100.0 * tenth[key].as_f64().unwrap();
        let (predicted, clicked) = (percent("mean_prediction"), percent("base_rate"));
        let rows = &tenth["samples"];
        assert_has(
            &page,
            &format!("{predicted:.2} % predicted, {clicked:.2} % clicked, {rows} rows"),
        );
    }
    // The columns that decide the label matter most.
    let importance = page.split("Column importance").nth(1).unwrap();
    let name = |part: &str| part.split('<').next().unwrap().to_owned();
    let mut first: Vec<String> =
        importance.split("class=\"name\">").skip(1).take(2).map(name).collect();
    first.sort();
    assert_eq!(first, ["C1", "I1"]);
    for what in ["All 39 columns", "top_forward", "26 embedding tables", "batch_size = 64"] {
        assert_has(&page, what);
    }

    // A part of the rows is what `eval` says of that part.
    let page = report(&output, &["--rows", "100"]);
    let text = std::fs::read_to_string(&place.valid).unwrap();
    let front = place.path("front.txt");
    std::fs::write(&front, text.split_inclusive('\n').take(100).collect::<String>()).unwrap();
    let whose = format!("checkpoint of step {step}, on the first 100 rows of the validation data");
    assert_has(&page, &of_rows(&eval(&place, &front), &whose));

    // Rows that were not there when the run ended are told; a folder may have moved.
    std::fs::copy(&front, &place.valid).unwrap();
    let moved = place.path("moved");
    std::fs::rename(place.path("checkpoints"), output.join("checkpoints")).unwrap();
    std::fs::rename(&output, &moved).unwrap();
    assert_has(&report(&moved, &[]), "The run has evaluated 300 rows, and here are 100");
    std::fs::rename(&moved, &output).unwrap();
    std::fs::rename(output.join("checkpoints"), place.path("checkpoints")).unwrap();

    // What is gone is named, and the rest is there.
    for (gone, said) in [
        (place.path("checkpoints"), "checkpoints is not there any more"),
        (place.valid.clone(), "valid.txt is not there any more"),
    ] {
        std::fs::rename(&gone, gone.with_extension("moved")).unwrap();
        let page = report(&output, &[]);
        assert_has(&page, said);
        assert_has(&page, &format!("<b>{}</b>", number(&found["auc"], 5)));
        assert!(!page.contains("tenth 3"));
    }
}

#[test]
fn a_resumed_run_counts_its_steps_once() {
    let place = Place::new("rows.txt");
    train(&place).with(&["--steps", "10"]).succeeds();
    let log = place.path("log.json");
    train(&place).with(&["--steps", "16", "--resume"]).path("--log-json", &log).succeeds();
    let page = report(&place.path("output"), &["--rows", "0"]);
    assert_has(&page, "resumed at step 10");
    assert_has(&page, "<small>16 steps</small>");
    assert_has(&page, "No rows were looked at");
    for event in events(&log).iter().filter(|event| event["event"] == "eval") {
        let (step, auc) = (event["step"].as_u64().unwrap(), number(&event["auc"], 5));
        assert_has(&page, &format!("step {step}: {auc}"));
    }
}

#[test]
fn an_ensemble_is_reported_as_its_mean() {
    let place = Place::new("rows.txt");
    train(&place).with(&["--seeds", "2", "--steps", "12"]).succeeds();
    let page = report(&place.path("output"), &[]);
    let whose = "the mean of 2 models, on all 300 rows of the validation data";
    let found = eval(&place, &place.valid);
    assert_has(&page, &of_rows(&found, whose));
    for what in ["mean of 2 models</small>", "seed 1", "seed 2", "<small>24 steps</small>"] {
        assert_has(&page, what);
    }
    assert_has(&page, &format!("<b>{}</b>", number(&found["auc"], 5)));
}

/// What was killed in the first of two models.
#[test]
fn an_ensemble_that_was_not_finished_says_so() {
    let place = Place::new("rows.txt");
    train(&place).with(&["--seeds", "2", "--steps", "12"]).succeeds();
    let (output, checkpoints) = (place.path("output"), place.path("checkpoints"));
    let history = output.join("history.jsonl");
    let text = std::fs::read_to_string(&history).unwrap();
    let second = text.match_indices("{\"event\":\"history\"").nth(1).unwrap().0;
    std::fs::write(&history, &text[..second]).unwrap();
    std::fs::remove_dir_all(checkpoints.join("seed-2")).unwrap();
    let page = report(&output, &[]);
    for what in ["1 of 2 models: finished", "<small>seed 1, step", "checkpoint of step"] {
        assert_has(&page, what);
    }
}

/// Names of columns, folders and files are text, whatever they hold.
#[test]
fn what_data_are_called_is_no_markup() {
    let place = Place::new("rows.txt");
    let odd = "<img alt='x'>&\"\"";
    let rows = (0..400).fold(format!("clicked,\"{odd}\"\n"), |text, row| {
        format!("{text}{},{}\n", u8::from(row % 7 < 3), row % 7)
    });
    let (data, output) = (place.path("<u>.csv"), place.path("<b>run"));
    std::fs::write(&data, rows).unwrap();
    let train = Run::new("train").with(&["--auto", "--label", "clicked", "--threads", "1"]);
    let train = train.path("--data", &data).path("--output-dir", &output);
    let train = train.with(&["--holdout", "0.25", "--seeds", "1", "--epochs", "1"]);
    train.path("--checkpoint-dir", &output.join("checkpoints")).succeeds();
    let page = report(&output, &[]);
    assert!(!page.contains("<img") && !page.contains("<u>") && !page.contains("<b>run"), "{page}");
    assert_has(&page, "&lt;img alt=&#39;x&#39;&gt;&amp;&quot;");
    assert_has(&page, "&lt;b&gt;run</h1>");
    assert_has(&page, "rows of the validation data: AUC");
}

#[test]
fn what_is_wrong_with_a_folder_is_named() {
    let place = Place::new("rows.txt");
    train(&place).with(&["--steps", "4"]).succeeds();
    let of = |folder: &Path| Run::new("report").with(&[folder.to_str().unwrap()]);
    of(&place.path("none")).fails(2, &["none is no folder", "--output-dir"]);
    of(&place.path("")).fails(2, &["has no history.jsonl"]);
    of(&place.path("checkpoints")).fails(2, &["has checkpoints", "headlong-out"]);
    let output = place.path("output");
    let history = output.join("history.jsonl");
    of(&output).path("--output", &history).fails(2, &["--output", "history.jsonl"]);
    let text = std::fs::read_to_string(&history).unwrap();
    std::fs::write(&history, text.replacen("{\"event\":\"step\"", "{\"event\":\"step", 1)).unwrap();
    of(&output).fails(2, &["history.jsonl: line 3", "replaces it"]);
    assert!(!output.join("report.html").exists());
}

/// Nothing in the way of the history ends a run.
#[test]
fn a_run_that_can_keep_no_history_says_so_and_trains() {
    let place = Place::new("rows.txt");
    let history = place.path("output/history.jsonl");
    std::fs::create_dir_all(&history).unwrap();
    let ended = train(&place).with(&["--steps", "2"]).succeeds();
    assert!(ended.stderr.contains("no history is kept for `headlong report`"), "{}", ended.stderr);
}

/// What a browser has made of a page.
struct Shown {
    /// Its standard output.
    printed: String,
    /// What the page has said to the console.
    console: Vec<String>,
    /// Addresses that the page has asked for, files apart.
    asked: Vec<String>,
}

/// Shows `page` in a window of this size, with a profile of its own in the folder `profile`.
fn show(page: &Path, profile: &Path, (width, height): (u32, u32), more: &[String]) -> Shown {
    let log = profile.with_extension("network.json");
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    command.args(["--no-first-run", "--disable-background-networking", "--disable-sync"]);
    command.args(["--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr"]);
    // What the browser itself wants to ask stays here, too.
    command.arg("--host-resolver-rules=MAP * ~NOTFOUND").args(more);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("--window-size={width},{height}"));
    command.arg(format!("--log-net-log={}", log.display()));
    let output = command.arg(format!("file://{}", page.display())).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // Requests of the browser itself have no origin.
    let of_page = |line: &&str| {
        line.contains("\"initiator\":\"") && !line.contains("\"initiator\":\"not an origin\"")
    };
    let address = |line: &str| Some(line.split("\"url\":\"").nth(1)?.split('"').next()?.to_owned());
    let log = std::fs::read_to_string(log).unwrap();
    let asked = log.lines().filter(of_page).filter_map(address);
    Shown {
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect(),
        asked: asked.filter(|address| !address.starts_with("file://")).collect(),
    }
}

/// A picture of the page at this width, in light or dark: its file, which is kept.
fn picture(place: &Place, page: &Path, width: u32, is_dark: bool) -> PathBuf {
    let name = format!("report-{width}-{}", if is_dark { "dark" } else { "light" });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ci/report");
    std::fs::create_dir_all(&folder).unwrap();
    let picture = folder.join(&name).with_extension("png");
    let more = [
        format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)),
        format!("--screenshot={}", picture.display()),
    ];
    let height = if width < 600 { 6400 } else { 4000 };
    let shown = show(page, &place.path(&name), (width, height), &more);
    assert_eq!((shown.console, shown.asked), (Vec::new(), Vec::new()));
    picture
}

#[test]
fn a_browser_shows_it_without_an_error_and_asks_the_network_for_nothing() {
    if !Command::new("chromium").arg("--version").output().is_ok_and(|of| of.status.success()) {
        println!("skipped, because no chromium was found");
        return;
    }
    let place = Place::new("rows.txt");
    train(&place).with(&["--epochs", "4"]).succeeds();
    let output = place.path("output");
    let text = report(&output, &[]);
    let page = output.join("report.html");
    let views = [(1280, false), (1280, true), (390, false), (390, true)];
    let pictures = thread::scope(|scope| {
        let (place, page) = (&place, &page);
        let begun =
            views.map(|(width, is_dark)| scope.spawn(move || picture(place, page, width, is_dark)));
        begun.map(|one| one.join().unwrap())
    });
    let pictures = pictures.map(|path| std::fs::read(path).unwrap());
    assert!(pictures.iter().all(|picture| picture.len() > 40_000));
    assert!(pictures[0] != pictures[1] && pictures[2] != pictures[3], "dark looks like light");

    // With a script of the test's own: nothing is wider than a phone, with all unfolded. And a
    // request and an error would have been noticed.
    let script = "<img src=\"http://headlong.invalid/\"><script>\
                  document.querySelectorAll('details').forEach(e => e.open = true);\
                  document.title = document.documentElement.scrollWidth + ' of ' + innerWidth;\
                  throw new Error('noticed');</script></body>";
    let policy = text.find("<meta http-equiv").unwrap();
    let after = policy + text[policy..].find('>').unwrap() + 1;
    let scripted = text.replacen(&text[policy..after], "", 1).replacen("</body>", script, 1);
    let measured = place.path("measured.html");
    std::fs::write(&measured, scripted).unwrap();
    let shown = show(&measured, &place.path("measured"), (390, 800), &["--dump-dom".to_owned()]);
    assert_eq!(shown.asked, ["http://headlong.invalid/"]);
    assert!(shown.console.iter().any(|line| line.contains("noticed")), "{:?}", shown.console);
    let title = shown.printed.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
    let (wide, window) = title.and_then(|title| title.split_once(" of ")).expect("it has run");
    let [wide, window] = [wide, window].map(|number| number.parse::<u32>().unwrap());
    assert!(wide <= window && window <= 500, "{wide} of {window}");
}
