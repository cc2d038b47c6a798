//! The command line as a user meets it: the built program, its answers, its exit codes.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn headlong(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headlong"))
        .args(arguments)
        // What a machine without a device says: the software device of other tests is not looked
        // for.
        .env_remove("HEADLONG_CUDA_LIBS")
        .output()
        .expect("the program was built with this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the program writes text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the program writes text")
}

/// Runs, expects exit code 2, an empty standard output, and every word in the message.
pub fn refused(arguments: &[&str], words: &[&str]) {
    let output = headlong(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: \"{word}\" is not in: {message}");
    }
}

pub fn succeeds(arguments: &[&str]) -> String {
    let output = headlong(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn bare_headlong_prints_help() {
    let text = succeeds(&[]);
    for command in [
        "train",
        "tune",
        "eval",
        "predict",
        "plan",
        "data",
        "checkpoint",
        "bench",
        "config",
        "doctor",
    ] {
        assert!(text.contains(&format!("\n  {command} ")), "{command}: {text}");
    }
    assert!(text.contains("Exit codes:"));
}

#[test]
fn every_promised_flag_is_in_the_help() {
    let train = succeeds(&["train", "--help"]);
    for flag in [
        "--config",
        "--preset",
        "--set",
        "--data",
        "--valid",
        "--output-dir",
        "--device",
        "--ranks",
        "--threads",
        "--seed",
        "--learning-rate",
        "--optimizer",
        "--batch-size",
        "--grad-accumulation",
        "--precision",
        "--epochs",
        "--steps",
        "--target-auc",
        "--eval-every",
        "--eval-batch-size",
        "--eval-ranks",
        "--eval-processes",
        "--hybrid",
        "--schedule",
        "--transport",
        "--checkpoint-dir",
        "--save-every",
        "--keep",
        "--resume",
        "--init-from",
        "--cache-data",
        "--on-bad-row",
        "--log-json",
        "--mllog",
        "--trace",
        "--time",
        "--dry-run",
    ] {
        assert!(
            train.contains(&format!("{flag} ")) || train.contains(&format!("{flag}\n")),
            "{flag}"
        );
    }
    for (command, flags) in [
        (&["eval"][..], &["--checkpoint", "--data", "--json"][..]),
        (&["predict"], &["--checkpoint", "--data", "--output"]),
        (&["plan"], &["--batch-size", "--json", "--json-file"]),
        (
            &["bench", "iteration"],
            &["--shape", "--batch-size", "--dtype", "--threads", "--seconds", "--row-cap"],
        ),
        (&["doctor"], &["--json"]),
    ] {
        let text = succeeds(&[command, &["--help"]].concat());
        for flag in flags {
            assert!(text.contains(flag), "{command:?} {flag}");
        }
    }
}

#[test]
fn features_that_are_not_in_this_build_are_refused_by_name() {
    for (arguments, words) in [
        (&["--precision", "tf32"][..], &["train.precision", "tf32"][..]),
        (&["--schedule", "captured"], &["run.schedule", "captured"]),
        (&["--transport", "nccl"], &["run.transport", "nccl", "cuda"]),
        (&["--ranks", "2", "--transport", "verbs"], &["run.transport", "verbs", "headlong launch"]),
        (&["--ranks", "2", "--transport", "shm"], &["run.transport", "shm", "headlong launch"]),
        (&["--ranks", "2", "--transport", "ucx"], &["run.transport", "ucx", "headlong launch"]),
        (&["--ranks", "2", "--transport", "tcp"], &["run.transport", "headlong launch"]),
        (&["--cache-data", "device"], &["data.cache", "device"]),
        (
            &["--device", "cuda", "--ranks", "2", "--set", "comm.ids=known"],
            &["comm.ids", "cuda", "exchange"],
        ),
        (
            &[
                &["--device", "cuda", "--ranks", "2"][..],
                &["--set", "comm.deduplicate=node", "--set", "comm.exchange=flat"],
            ]
            .concat(),
            &["comm.deduplicate", "comm.exchange", "inside it first"],
        ),
    ] {
        refused(&[&["train"], arguments].concat(), words);
    }
    if Path::new("/dev/nvidiactl").exists() {
        println!("--device cuda is not refused where there is an NVIDIA driver, as here");
    } else {
        refused(&["train", "--device", "cuda"], &["run.device", "cuda"]);
    }
    for allowed in [
        &["--device", "cpu"][..],
        &["--device", "auto"],
        &["--ranks", "1"],
        &["--ranks", "3"],
        &["--ranks", "4", "--set", "sum_blocks=8"],
        &["--schedule", "overlapped"],
        &["--hybrid", "rows=1000"],
        &["--precision", "f32"],
        &["--schedule", "serial"],
        &["--transport", "local"],
        &["--hybrid", "off"],
        &["--hybrid", "auto"],
        &["--cache-data", "off"],
    ] {
        succeeds(&[&["config", "check"], allowed].concat());
    }
}

#[test]
fn contradictory_flags_are_refused_naming_both() {
    for (arguments, words) in [
        (&["--epochs", "1", "--steps", "5"][..], &["--epochs", "--steps"][..]),
        (&["--config", "a.toml", "--preset", "tiny"], &["--config", "--preset"]),
        (&["--preset", "tiny", "--preset", "criteo-kaggle"], &["--preset", "multiple times"]),
        (&["--resume", "--checkpoint-dir", "c", "--init-from", "d"], &["--resume", "--init-from"]),
        (&["--resume"], &["--resume needs a folder of checkpoints", "--checkpoint-dir"]),
        (
            &["--schedule", "overlapped", "--set", "run.schedule=serial"],
            &["--schedule", "--set run.schedule"],
        ),
        (
            &["--ranks", "2", "--set", "ranks=4"],
            &["`ranks` could be `run.ranks`", "`run.eval_ranks`"],
        ),
        (
            &["--set", "sum_blocks=2", "--set", "train.sum_blocks=4"],
            &["--set train.sum_blocks=2", "=4"],
        ),
        (
            &["--batch-size", "4096", "--set", "sum_blocks=2048"],
            &["train.sum_blocks = 2048", "1024 at most"],
        ),
        (&["--save-every", "10"], &["--save-every", "--checkpoint-dir"]),
        (&["--keep", "3"], &["--keep", "--checkpoint-dir"]),
        (&["--batch-size", "1e30"], &["expected a whole number, 1 to 1073741824"]),
        (&["--steps", "1.5"], &["expected a whole number, at least 1"]),
        (&["--valid", "v.txt"], &["--valid", "--data"]),
        (
            &["--batch-size", "8", "--set", "train.batch_size=9"],
            &["--batch-size", "--set train.batch_size"],
        ),
        (&["--data", "a", "--target-auc", "0.8"], &["eval.target_auc", "data.valid"]),
        (
            &["--data", "a", "--valid", "b", "--set", "data.holdout_test=-1"],
            &["`data.holdout_test`: expected a share"],
        ),
        (&["--set", "tables.rows=dictionary"], &["tables.rows", "data.ids"]),
        (
            &["--set", "train.decay_steps=5", "--set", "train.warmup_steps=9"],
            &["train.decay_start_step", "train.warmup_steps"],
        ),
    ] {
        refused(&[&["train"], arguments].concat(), words);
    }
}

#[test]
fn impossible_values_are_refused_naming_the_key() {
    for (argument, word) in [
        ("train.batch_size=0", "train.batch_size"),
        ("train.learning_rate=-1.0", "train.learning_rate"),
        ("train.learning_rate=nan", "train.learning_rate"),
        ("train.epochs=0.0", "train.epochs"),
        ("model.top=[64, 2]", "model.top"),
        ("model.bottom=[64, 8]", "model.bottom"),
        ("model.bottom=[]", "model.bottom"),
        ("tables.rows=[1, 2, 3]", "expected 26 numbers"),
        ("tables.rows=0", "tables.rows"),
        ("tables.rows=\"criteo-kagle\"", "criteo-kaggle"),
        ("tables.max_rows=0", "tables.max_rows"),
        ("train.sum_blocks=100000", "train.sum_blocks"),
        ("train.loss_scale=1000", "power of two"),
        ("train.loss_scale_interval=0", "train.loss_scale_interval"),
        ("eval.target_auc=1.5", "eval.target_auc"),
        ("run.threads=0", "run.threads"),
        ("optimizer.dense.name=ftrl", "optimizer.dense.name"),
        ("data.hash=md5", "data.hash"),
        ("train.batch_size=9223372036854775807", "expected 1 to 1073741824"),
        (
            "train.steps=18446744073709551615",
            "a whole number, at least 1; found 18446744073709551615",
        ),
        ("data.num_sparse=1000000000", "data.num_sparse"),
        ("model.cross_layers=1000000000", "model.cross_layers"),
        ("tables.rows=1000000000000000000", "tables.rows"),
        ("tables.rows=10000000000", "ids = \"hash\" fills 4294967296 rows at most"),
        ("tables.max_ids_per_sample=0", "tables.max_ids_per_sample"),
        ("train.decay_power=nan", "train.decay_power"),
        ("train.decay_power=-1", "`train.decay_power`: expected a number above 0, found -1"),
        ("train.final_learning_rate=-1", "expected a number above 0, found -1"),
        ("data.holdout_test=-1", "`data.holdout_test`: expected a share, 0 to below 1, found -1"),
        ("data.holdout_test=nan", "data.holdout_test"),
        ("data.holdout_test=1e30", "expected a share, 0 to below 1"),
        ("train.accumulate=2000", "one sum of losses"),
        ("run.ranks=0", "`run.ranks`: expected 1 to 1024, found 0"),
        ("run.threads=9999", "`run.threads`: expected 1 to 4096, found 9999"),
        ("model.dim=8", "set model.bottom=[64,32,8], too"),
        ("hybrid.latency_table=/nonexistent", "hybrid.latency_table"),
        ("comm.tuning=/nonexistent", "comm.tuning"),
        ("data.dictionary=/nonexistent", "data.dictionary"),
        ("run.kernels=/nonexistent", "run.kernels"),
    ] {
        refused(&["config", "check", "--set", argument], &[word]);
    }
}

#[test]
fn unknown_keys_and_names_offer_the_nearest() {
    refused(
        &["train", "--set", "train.batch_sise=4"],
        &["unknown key `train.batch_sise`", "did you mean `train.batch_size`?"],
    );
    let nodes =
        ["--ranks", "6", "--set", "comm.ranks_per_node=3", "--set", "comm.deduplicate=node"];
    for device in ["cpu", "cuda"] {
        refused(
            &[&["plan", "--preset", "tiny", "--device", device], &nodes[..]].concat(),
            &["comm.deduplicate", "2 nodes of 3 ranks", "power of two"],
        );
    }
    refused(&["train", "--set", "train.lr=4"], &["did you mean `train.learning_rate`?"]);
    refused(&["train", "--preset", "criteo-kagle"], &["did you mean \"criteo-kaggle\"?"]);
    refused(&["train", "--preset", "kaggle"], &["did you mean \"criteo-kaggle\"?"]);
    refused(&["train", "--optimizer", "adagard"], &["did you mean \"adagrad\"?"]);
    refused(&["trian"], &["train"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "[model]\ndim = 16\n\n[train]\nlerning_rate = 0.1\n").unwrap();
    let place = format!("{}:5: unknown key `train.lerning_rate`", file.display());
    refused(
        &["config", "check", "--config", file.to_str().unwrap()],
        &[&place, "`train.learning_rate`"],
    );
    refused(&["train", "--config", "/nonexistent.toml"], &["--config", "/nonexistent.toml"]);
}

#[test]
fn data_that_is_not_there_is_refused_before_anything_else() {
    refused(
        &["train", "--data", "/nonexistent/day_0.gz"],
        &["data.train", "/nonexistent/day_0.gz"],
    );
    refused(&["train", "--data", "/"], &["data.train", "directory"]);
    refused(&["train", "--preset", "criteo-kaggle"], &["data.train", "--data", "--preset tiny"]);
}

#[test]
fn what_config_show_prints_can_be_checked_and_shown_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shown.toml");
    for preset in [
        "tiny",
        "criteo-hashed",
        "criteo-sample",
        "criteo-kaggle",
        "criteo-terabyte-dlrm",
        "criteo-terabyte-dcnv2",
    ] {
        let shown = succeeds(&[
            "config",
            "show",
            "--preset",
            preset,
            "--batch-size",
            "64",
            "--optimizer",
            "lazy_adam",
            "--eval-every",
            "0.25",
            "--hybrid",
            "off",
            "--checkpoint-dir",
            "a \"quoted\" folder",
        ]);
        std::fs::write(&file, &shown).unwrap();
        let path = file.to_str().unwrap();
        assert!(succeeds(&["config", "check", "--config", path]).contains("no faults"));
        let again = succeeds(&["config", "show", "--config", path]);
        let body = |text: &str| text.split_once("\n\n").unwrap().1.to_owned();
        assert_eq!(body(&shown), body(&again), "{preset}");
        assert!(shown.contains("batch_size = 64") && shown.contains("name = \"lazy_adam\""));
    }
}

#[test]
fn the_plan_names_what_would_fit() {
    refused_after_output(
        &["plan", "--preset", "criteo-kaggle", "--set", "tables.rows=4000000000"],
        &["tables.max_rows"],
    );
    let text = succeeds(&["plan", "--json", "--data-rows", "1000", "--set", "tables.rows=1000"]);
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["tables"].as_array().unwrap().len(), 26);
    assert_eq!(plan["tables"][0]["rows"], 1000);
    assert!(plan["bytes_per_rank"].as_u64().unwrap() > 0);
    assert!(plan["predicted_step_us"].as_f64().unwrap() > 0.0);
    assert_eq!(plan["division"]["nearest_dividing_batch_size"], 125);
    assert_eq!(text.lines().count(), 1);
    refused(&["plan", "--data-rows", "0"], &["--data-rows", "0 is not in 1.."]);
}

fn refused_after_output(arguments: &[&str], words: &[&str]) {
    let output = headlong(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn json_goes_to_a_file_next_to_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let text = succeeds(&["plan", "--json-file", file.to_str().unwrap()]);
    assert!(text.starts_with("plan of preset tiny"), "{text}");
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(plan["fits"].as_bool().unwrap());
    let output = headlong(&["plan", "--json-file", "/nonexistent/plan.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/plan.json"));
}

#[test]
fn the_doctor_answers_in_json() {
    let output = headlong(&["doctor", "--json"]);
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(output.status.code(), Some(if answer["ok"] == true { 0 } else { 1 }));
    assert!(answer["checks"].as_array().unwrap().iter().all(|check| check["status"].is_string()));
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(succeeds(&["completions", shell]).contains("headlong"), "{shell}");
    }
}

/// What bash offers for the last word of a line.
fn offered(line: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("headlong.bash");
    std::fs::write(&script, succeeds(&["completions", "bash"])).unwrap();
    // What bash calls, with what it sets; `compopt` speaks to a line that is being typed, and there
    // is none.
    let ask = r#"source "$0"; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _headlong_keys headlong "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", ask, script.to_str().unwrap(), "headlong"])
        .args(line)
        .current_dir(folder.path());
    let output = bash.output().expect("bash");
    assert_eq!(stderr(&output), "", "{line:?}");
    stdout(&output).lines().filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_shell_offers_words_where_words_are_wanted() {
    assert_eq!(
        offered(&["train", "--preset", "criteo-ter"]),
        ["criteo-terabyte-dlrm", "criteo-terabyte-dcnv2"]
    );
    assert_eq!(offered(&["train", "--optimizer", "l"]), ["lazy_adam", "lamb"]);
    assert_eq!(offered(&["plan", "--precision", ""]), ["f32", "tf32", "bf16", "f16"]);
    assert_eq!(offered(&["train", "--set", "train.batch"]), ["train.batch_size="]);
    assert_eq!(offered(&["launch", "-n", "2", "--", "tr"]), ["train"]);
    assert_eq!(
        offered(&["launch", "-n", "2", "--", "train", "--device", ""]),
        ["auto", "cpu", "cuda"]
    );
    // Files where files are wanted, and nowhere else.
    assert_eq!(offered(&["train", "--data", ""]), ["headlong.bash"]);
    assert_eq!(offered(&["train", "--batch-size", ""]), [""; 0]);
    assert_eq!(offered(&["train", "--learning-rate", "0."]), ["0."]);
}

#[test]
fn no_escape_codes_where_there_is_no_terminal() {
    for arguments in [&["--help"][..], &["plan"], &["doctor"], &["train", "--set", "x=1"]] {
        let output = headlong(arguments);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{arguments:?}");
    }
}

#[test]
fn names_of_files_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let odd = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    let (data, checkpoints, log) = (odd(b"bad\xff.txt"), odd(b"kept\xff"), odd(b"log\xff"));
    let row = "1\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t13\t".to_owned()
        + &["0000abcd"; 26].join("\t")
        + "\n";
    std::fs::write(&data, row.repeat(512)).unwrap();
    let run = |words: &[&str], paths: &[(&str, &Path)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
        command.args(words).arg("--output-dir").arg(odd(b"out\xff"));
        for (flag, path) in paths {
            command.arg(flag).arg(path);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", stderr(&output));
    };
    let small = ["--set", "tables.rows=50", "--set", "train.steps=3"];
    run(
        &[&["plan"], &small[..]].concat(),
        &[("--data", &data), ("--checkpoint-dir", &checkpoints)],
    );
    let all = [("--data", &*data), ("--checkpoint-dir", &*checkpoints), ("--log-json", &*log)];
    run(&[&["train"], &small[..]].concat(), &all);
    let start = std::fs::read_to_string(&log).unwrap();
    assert!(start.lines().next().unwrap().contains("bad\u{fffd}.txt"), "{start}");
    let launched = ["launch", "-n", "2", "--", "train", "--resume"];
    run(&[&launched[..], &small[..2], &["--set", "train.steps=5"]].concat(), &all);
    // Made-up data, and a checkpoint that is looked at.
    let tiny = [
        "train",
        "--preset",
        "tiny",
        "--set",
        "synthetic.train_rows=256",
        "--set",
        "synthetic.valid_rows=64",
    ];
    run(&[&tiny[..], &small[..]].concat(), &[("--checkpoint-dir", &odd(b"tiny\xff"))]);
    for command in [&["checkpoint", "inspect", "--json"][..], &["checkpoint", "verify", "--json"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_headlong")).args(command).arg(&checkpoints).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
    }
    let eval = Command::new(env!("CARGO_BIN_EXE_headlong"))
        .args(["eval", "--json", "--checkpoint"])
        .arg(&checkpoints)
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(eval.status.code(), Some(0), "{}", stderr(&eval));
    let output = Command::new(env!("CARGO_BIN_EXE_headlong"))
        .args(["config", "show", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("UTF-8"), "{}", stderr(&output));
}

#[test]
fn a_dictionary_is_made_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows.txt");
    let mut text = String::new();
    for row in 0..100_u32 {
        let category = format!("{:08x}", row % 4);
        let rare = format!("{row:08x}");
        let line = [vec!["0".to_owned()], vec!["1".to_owned(); 13], vec![category; 25], vec![rare]]
            .concat();
        text.push_str(&line.join("\t"));
        text.push('\n');
    }
    std::fs::write(&data, text).unwrap();
    let output = folder.path().join("dictionary");
    let arguments = [
        "data",
        "make",
        "--json",
        "--output",
        output.to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
    ];
    let output = headlong(&arguments);
    let said = stderr(&output);
    assert!(said.contains("about 100 rows: at most") && said.contains("are free"), "{said}");
    assert!(said.contains("rows counted") && said.contains("to go"), "{said}");
    let made: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((made["rows"].as_u64(), made["columns"].as_array().unwrap().len()), (Some(100), 26));
    // Four ids of 25 sights and the shared row; a hundred ids of one sight, all shared.
    assert_eq!(
        (made["columns"][0]["rows"].as_u64(), made["columns"][25]["rows"].as_u64()),
        (Some(5), Some(1))
    );
    assert!(Path::new(made["file"].as_str().unwrap()).is_file());
    refused(
        &["data", "make", "--output", "x", "--data", "/nonexistent.txt"],
        &["--data", "/nonexistent.txt"],
    );
    refused(&["data", "make", "--output", "x"], &["--data"]);
}

#[test]
fn data_is_described_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let good = "1\t1\t-2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\t\t".to_owned()
        + &vec!["0000abcd"; 26].join("\t");
    let unlabelled = good.split_once('\t').unwrap().1;
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let sound = path("sound.txt", &format!("{good}\n{good}\n"));
    let predicted = path("predicted.txt", &format!("{unlabelled}\n"));
    let broken =
        path("broken.txt", &format!("{good}\n{}\n{good}\n1\tx\n", good.replace("abcd", "abcx")));
    for file in [&sound, &predicted] {
        assert!(succeeds(&["data", "verify", file]).contains("every line is a row"));
    }
    assert!(succeeds(&["data", "verify", &sound, &predicted]).contains("every line is a row"));
    refused(
        &["data", "inspect", &sound, &predicted],
        &["sound.txt", "predicted.txt", "inspect them apart"],
    );
    let described: Value =
        serde_json::from_str(&succeeds(&["data", "inspect", "--json", &sound])).unwrap();
    assert_eq!(described["rows"], 2);
    let output = headlong(&["data", "verify", &broken]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.contains(&format!("{broken}, line 2:"))
            && text.contains(&format!("{broken}, line 4:")),
        "{text}"
    );
    let ends = format!("the data is not sound: 2 malformed lines in {broken}\n");
    assert!(stderr(&output).ends_with(&ends), "{}", stderr(&output));
    let output = headlong(&["data", "verify", "--json", &broken]);
    let verdict: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((verdict["sound"].as_bool(), verdict["bad_rows"].as_u64()), (Some(false), Some(2)));
    refused(&["data", "inspect", "/nonexistent.txt"], &["/nonexistent.txt"]);
    refused(&["data", "verify", "/"], &["directory"]);
}
