//! Stopping, going on, and starting from something: through the built program.

#![cfg(test)]

use crate::run_support::{
    Place, Run, digest, events, last_event, names, rows, signal, steps, wait_until, write,
};
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[test]
fn a_signal_finishes_the_step_and_saves_and_the_run_resumes_as_if_nothing_had_been() {
    let place = Place::new("rows.txt.gz");
    let train = place.train().with(&["--epochs", "60"]);
    let expected = train.succeeds().digest();
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let (log, checkpoints) = (place.path(&format!("{name}.json")), place.path(name));
        let run = train.clone().path("--log-json", &log).path("--checkpoint-dir", &checkpoints);
        let mut child = run.start();
        wait_until("ten steps", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 10)
        });
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "SIG{name}");
        let done = last_event(&log, "done");
        assert_eq!(done["reason"], format!("SIG{name}"));
        assert_eq!(done["step"], last_event(&log, "step")["step"], "the step was not finished");
        let step = done["step"].as_u64().unwrap();
        assert!(step < 60 * 24, "the signal came too late to prove anything");
        assert_eq!(steps(&checkpoints), [step]);

        let resumed = run.with(&["--resume"]).succeeds();
        assert!(resumed.stderr.contains("resumed at step"), "{}", resumed.stderr);
        assert_eq!(digest(&log), expected);
        let counted: Vec<u64> = events(&log)
            .iter()
            .filter(|event| event["event"] == "step")
            .filter_map(|event| event["step"].as_u64())
            .collect();
        assert_eq!(counted, (1..=60 * 24).collect::<Vec<u64>>(), "no step twice, none left out");
    }
}

/// What `nohup` has started continues when its terminal closes.
#[test]
fn a_run_that_was_started_to_outlive_its_terminal_does() {
    let place = Place::new("rows.txt");
    let log = place.path("log.json");
    let train = place.train().with(&["--epochs", "30"]).path("--log-json", &log);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_headlong")])
        .args(train.arguments());
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("ten steps", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 10)
    });
    signal(&child, "HUP");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(last_event(&log, "done")["reason"], "finished");
}

/// Whether a process has a signal in this mask of its status.
fn has_in_mask(child: &Child, mask: &str, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

/// A pipe whose writer pauses: the run waits for the data of its first step, so only the second
/// signal can end it.
#[test]
fn a_second_signal_stops_at_once() {
    const INTERRUPT: u32 = 2;
    let place = Place::new("rows.txt");
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let run = Run::new("train").path("--data", &pipe).path("--output-dir", &place.path("output"));
    let run = run.with(&["--set", "tables.rows=100", "--set", "data.num_sparse=26"]);
    let mut child = run.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut data = std::fs::File::options().write(true).open(&pipe).unwrap();
    data.write_all(rows(100, 7).as_bytes()).unwrap();
    wait_until("the run to listen to signals", || has_in_mask(&child, "SigCgt:", INTERRUPT));
    // The handlers of one signal are installed one after the other.
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, "INT");
    // Two signals that are sent before one is taken are one, and on a busy machine that may last.
    wait_until("the first signal to be taken", || !has_in_mask(&child, "ShdPnd:", INTERRUPT));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None, "the first signal must wait for the step");
    signal(&child, "INT");
    wait_until("the end of the run", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// The last step is saved when the run ends, and only then, with `save_every` that divides it, too.
#[test]
fn each_step_is_saved_once_and_what_a_resumed_run_does_not_take_up_is_said() {
    let place = Place::new("rows.txt");
    let (log, checkpoints) = (place.path("log.json"), place.path("checkpoints"));
    let train = place.train().path("--checkpoint-dir", &checkpoints);
    for keep_best in ["checkpoint.keep_best=false", "checkpoint.keep_best=true"] {
        let run = train.clone().path("--log-json", &log).path("--valid", &place.valid);
        run.with(&["--steps", "8", "--save-every", "4", "--set", keep_best]).succeeds();
        let events = events(&log).into_iter();
        let saved: Vec<_> = events
            .filter(|event| event["event"] == "checkpoint")
            .map(|event| event["step"].as_u64().unwrap())
            .collect();
        assert_eq!(saved, [4, 8], "{keep_best}");
        std::fs::remove_file(&log).unwrap();
        if keep_best.ends_with("false") {
            std::fs::remove_dir_all(&checkpoints).unwrap();
        }
    }
    let resumed = train.clone().with(&["--steps", "9", "--resume", "--seed", "77"]).succeeds();
    assert!(resumed.stderr.contains("train.seed = 77 has no effect"), "{}", resumed.stderr);
    let sgd = train.with(&["--steps", "10", "--resume", "--optimizer", "sgd"]);
    let said = sgd.fails(1, &["adagrad (epsilon", "sgd"]).stderr;
    assert!(!said.contains('{'), "{said}");
}

#[test]
fn resume_starts_continues_repeats_its_last_words_and_trains_longer() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = place.train().path("--valid", &place.valid);
    let resume = train.clone().path("--checkpoint-dir", &checkpoints).with(&["--resume"]);

    let first = resume.succeeds();
    assert!(first.stderr.contains("there is no checkpoint yet"), "{}", first.stderr);
    assert_eq!(first.digest(), train.succeeds().digest());

    let log = place.path("again.json");
    let again = resume.clone().path("--log-json", &log).succeeds();
    // Its last words: reason, steps, rate, memory, weights.
    let last_words =
        |text: &str| text.lines().find(|line| line.starts_with("done (")).map(str::to_owned);
    assert!(last_words(&first.stdout).is_some());
    assert_eq!(last_words(&again.stdout), last_words(&first.stdout));
    assert_eq!(again.digest(), first.digest());
    assert!(again.stderr.contains("finished already"), "{}", again.stderr);
    let done = last_event(&log, "done");
    assert_eq!((&done["reason"], &done["step"]), (&Value::from("finished"), &Value::from(24)));
    assert!(done["last_eval"]["auc"].is_f64(), "{done}");

    // Asked for less than there is: nothing is trained, and nothing is written.
    let newest = checkpoints.join(format!("step-{:09}", 24));
    let manifest = std::fs::read(newest.join("manifest.json")).unwrap();
    for fewer in [["--epochs", "0.5"], ["--steps", "3"]] {
        let fewer = resume.clone().with(&fewer).succeeds();
        assert!(fewer.stderr.contains("finished already"), "{}", fewer.stderr);
        assert_eq!(fewer.digest(), first.digest());
        assert_eq!(std::fs::read(newest.join("manifest.json")).unwrap(), manifest);
    }

    // Of another model they are not repeated.
    let other = resume.clone().with(&["--set", "model.top=[24,1]"]);
    other.fails(1, &["holds another model", "model.top"]);

    let longer = resume.clone().with(&["--epochs", "3"]).succeeds();
    assert!(longer.stderr.contains("resumed at step 24"), "{}", longer.stderr);
    assert_eq!(longer.digest(), train.with(&["--epochs", "3"]).succeeds().digest());

    // Its last words are those of its weights, so they are looked at.
    let newest = checkpoints.join(format!("step-{:09}", 72));
    let shard = names(&newest).into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
    let mut bytes = std::fs::read(newest.join(&shard)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(newest.join(&shard), bytes).unwrap();
    resume.with(&["--epochs", "3"]).fails(1, &["cannot be resumed", &shard]);
}

/// With a learning rate that moves nothing, the new run evaluates to the very same numbers, under
/// another optimiser.
#[test]
fn init_from_takes_the_weights_and_nothing_else() {
    let place = Place::new("rows.txt");
    let (first, second) = (place.path("first"), place.path("second"));
    place.train().with(&["--epochs", "4"]).path("--checkpoint-dir", &first).succeeds();
    let tuned = place.train().path("--init-from", &first).path("--checkpoint-dir", &second);
    let log = place.path("log.json");
    let flags = ["--optimizer", "sgd", "--learning-rate", "1e-30", "--steps", "3"];
    tuned.with(&flags).path("--log-json", &log).succeeds();
    assert_eq!(last_event(&log, "done")["step"], 3, "the count of steps is not taken over");

    let logloss = |checkpoint: &Path| {
        let eval = Run::new("eval").path("--checkpoint", checkpoint).path("--data", &place.valid);
        let answer: Value =
            serde_json::from_str(&eval.with(&["--json"]).succeeds().stdout).unwrap();
        answer["logloss"].as_f64().unwrap()
    };
    assert_eq!(logloss(&first).to_bits(), logloss(&second).to_bits());
    let fresh = place.path("fresh");
    place.train().with(&flags).path("--checkpoint-dir", &fresh).succeeds();
    assert_ne!(logloss(&fresh).to_bits(), logloss(&second).to_bits());
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let place = Place::new("rows.txt.gz");
    let digest = |threads: usize| {
        let run = place.train_on(threads).path("--valid", &place.valid);
        run.with(&["--set", "data.ids=admitted", "--eval-every", "5"]).succeeds().digest()
    };
    let one = digest(1);
    assert_eq!(digest(2), one);
    assert_eq!(digest(5), one);
}

#[test]
fn accumulated_batches_train_like_one_large_batch() {
    let place = Place::new("rows.txt");
    let losses = |name: &str, settings: &[&str]| -> Vec<f64> {
        let log = place.path(name);
        place.train().path("--log-json", &log).with(settings).succeeds();
        let steps = events(&log).into_iter().filter(|event| event["event"] == "step");
        steps.map(|event| event["loss"].as_f64().unwrap()).collect()
    };
    let whole = losses("whole.json", &["--set", "train.batch_size=64"]);
    let parts = losses("parts.json", &["--set", "train.batch_size=32", "--accumulate", "2"]);
    assert_eq!((whole.len(), parts.len()), (24, 24));
    for (step, (whole, parts)) in whole.iter().zip(&parts).enumerate() {
        assert!((whole - parts).abs() < 1e-5, "step {}: {whole} and {parts}", step + 1);
    }
    let other = losses("other.json", &["--set", "train.batch_size=32"]);
    assert!((other[20] - whole[20]).abs() > 1e-5, "the comparison can fail");
}

#[test]
fn a_checkpoint_of_something_else_is_refused_by_name() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = place.train().path("--checkpoint-dir", &checkpoints);
    train.with(&["--steps", "5"]).succeeds();
    let resumed =
        place.train().path("--checkpoint-dir", &checkpoints).with(&["--steps", "9", "--resume"]);
    let path = checkpoints.to_str().unwrap();
    for (settings, words) in [
        (["--set", "tables.max_rows=900"], ["another model", "model.tables"]),
        (["--optimizer", "sgd"], ["another model", "optimizers."]),
        (["--set", "data.dense_transform=ln(x+3)"], ["prepared otherwise", "data.dense_transform"]),
        (["--set", "data.ids=admitted"], ["prepared otherwise", "data.hash"]),
    ] {
        resumed.clone().with(&settings).fails(1, &[words[0], words[1], path]);
    }
    // Note: the small model names its top network itself, and one key may be given twice: the last
    // wins.
    resumed.clone().with(&["--set", "model.top=[8,1]"]).fails(1, &["another model", "model.top"]);
    resumed.clone().with(&["--set", "model.loss=mse"]).fails(2, &["model.loss", "mse", "bce"]);
    let from = place.train().path("--init-from", &checkpoints).with(&["--steps", "9"]);
    from.with(&["--set", "model.top=[8,1]"]).fails(1, &["another model", "model.top"]);
    let otherwise = ["--set", "tables.dtype=bf16", "--precision", "bf16"];
    let said = resumed.with(&otherwise).succeeds().stderr;
    assert!(said.contains("rows are stored in \"bf16\" from here on"), "{said}");
    assert!(said.contains("products are in \"bf16\", sums \""), "{said}");
    assert!(said.contains("from here on, until now in \"f32\""), "{said}");
}

/// Files of another content, number or order; another path or time is no difference.
#[test]
fn other_training_files_are_refused_unless_it_is_said_that_they_changed() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let on = |files: &[&Path]| {
        let run = place
            .train_without_data()
            .with(&["--threads", "1"])
            .path("--checkpoint-dir", &checkpoints);
        files.iter().fold(run, |run, file| run.path("--data", file))
    };
    let (one, two) = (place.train.clone(), place.path("two.txt"));
    write(&two, &rows(400, 9));
    on(&[&one, &two]).with(&["--steps", "5"]).succeeds();
    let resumed = |files: &[&Path]| on(files).with(&["--resume", "--steps", "9"]);
    // The same rows, every label the other one.
    let text = std::fs::read_to_string(&two).unwrap();
    let flipped =
        |line: &str| format!("{}{}\n", if line.starts_with('1') { 0 } else { 1 }, &line[1..]);
    let poison = place.path("poison.txt");
    write(&poison, &text.lines().map(flipped).collect::<String>());
    assert_eq!(std::fs::metadata(&poison).unwrap().len(), text.len() as u64);
    let is_other =
        [poison.to_str().unwrap(), "is not the file that the run was trained on", "--data-changed"];
    resumed(&[&one, &poison]).fails(2, &is_other);
    resumed(&[&two, &one]).fails(2, &["in their order"]);
    resumed(&[&one]).fails(2, &["the run was trained on 2 files, now there are 1"]);
    write(&two, &format!("{text}{}", text.lines().next().unwrap()));
    let sizes =
        [format!("expected {} bytes", text.len()), "found".to_owned(), "sample_xxh3".to_owned()];
    resumed(&[&one, &two]).fails(2, &sizes.each_ref().map(String::as_str));
    assert_eq!(steps(&checkpoints), [5], "nothing was trained");
    // A copy elsewhere.
    let copy = place.path("copy.txt");
    write(&copy, &text);
    resumed(&[&one, &copy]).succeeds();
    // What is meant continues, and the new files are those of the run from then on.
    let further = |files: &[&Path]| on(files).with(&["--resume", "--steps", "12"]);
    further(&[&one, &poison]).fails(2, &is_other);
    further(&[&one, &poison]).with(&["--data-changed"]).succeeds();
    on(&[&one, &poison]).with(&["--resume", "--steps", "14"]).succeeds();
    on(&[&one]).with(&["--data-changed"]).fails(2, &["--resume"]);
}

#[test]
fn what_a_crash_has_left_is_removed_aloud_and_nothing_else() {
    let place = Place::new("rows.txt");
    let project = place.path("project");
    for file in [".tmp-thesis/ch1", ".old-photos/a", ".tmp-step-000000002/dense.safetensors"] {
        let file = project.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "my only copy").unwrap();
    }
    let train = place.train().path("--checkpoint-dir", &project).with(&["--steps", "3"]);
    let said = train.succeeds().stderr;
    assert!(said.contains("removed") && said.contains(".tmp-step-000000002"), "{said}");
    assert_eq!(names(&project), [".lock", ".old-photos", ".tmp-thesis", "step-000000003"]);
    std::fs::create_dir(project.join(".tmp-step-000000002")).unwrap();
    let said = train.with(&["--resume"]).succeeds().stderr;
    assert!(said.contains("removed") && said.contains(".tmp-step-000000002"), "{said}");
}

#[test]
fn a_corrupted_shard_is_refused_by_the_name_of_its_file() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = place.train().path("--checkpoint-dir", &checkpoints);
    train.clone().with(&["--steps", "5"]).succeeds();
    let newest = checkpoints.join("step-000000005");
    let resumed = train.with(&["--steps", "9", "--resume"]);
    let shards: Vec<String> =
        names(&newest).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(!shards.is_empty(), "{:?}", names(&newest));
    for shard in shards {
        let file = newest.join(&shard);
        let bytes = std::fs::read(&file).unwrap();
        let mut damaged = bytes.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&file, &damaged).unwrap();
        resumed.fails(1, &[file.to_str().unwrap(), "corrupted"]);
        let eval = Run::new("eval").path("--checkpoint", &newest).path("--data", &place.valid);
        eval.fails(1, &[file.to_str().unwrap(), "corrupted"]);
        std::fs::write(&file, &bytes[..middle]).unwrap();
        resumed.fails(1, &[file.to_str().unwrap(), "truncated"]);
        std::fs::write(&file, &bytes).unwrap();
    }
    resumed.succeeds();
}

/// The rows are so few that the model learns them by heart: the best evaluation is an early one.
#[test]
fn the_last_and_the_best_checkpoint_stay() {
    let place = Place::new("rows.txt");
    let (log, checkpoints) = (place.path("log.json"), place.path("checkpoints"));
    let train = place.train().path("--valid", &place.valid).path("--log-json", &log);
    let train = train.with(&["--epochs", "6", "--learning-rate", "0.1", "--eval-every", "10"]);
    train
        .clone()
        .path("--checkpoint-dir", &checkpoints)
        .with(&["--save-every", "8", "--keep", "2"])
        .succeeds();
    let evals = events(&log).into_iter().filter(|event| event["event"] == "eval");
    let evals =
        evals.map(|event| (event["auc"].as_f64().unwrap(), event["step"].as_u64().unwrap()));
    let best = evals.fold((0.0, 0), |best, eval| if eval.0 >= best.0 { eval } else { best });
    assert!(best.1 < 120, "the best evaluation was at step {}: too late to prove anything", best.1);
    assert_eq!(steps(&checkpoints), [best.1, 136, 144]);

    let last_alone = place.path("last-alone");
    let run =
        train.path("--checkpoint-dir", &last_alone).with(&["--save-every", "8", "--keep", "1"]);
    run.with(&["--set", "checkpoint.keep_best=false"]).succeeds();
    assert_eq!(steps(&last_alone), [144]);
}

/// What the run was like is said by this file alone.
#[test]
fn a_run_whose_saved_configuration_is_damaged_is_not_gone_on_with() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = place.train().path("--checkpoint-dir", &checkpoints);
    train.clone().with(&["--steps", "3"]).succeeds();
    let config = checkpoints.join("step-000000003/config.toml");
    let mut bytes = std::fs::read(&config).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&config, bytes).unwrap();
    train.with(&["--steps", "5", "--resume"]).fails(1, &["config.toml", "checksum"]);
    assert_eq!(steps(&checkpoints), [3], "nothing is lost");
}
