//! What a plan and a run say before any data is read: what is counted, what an estimate is of, and
//! settings that do nothing.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event, names};
use serde_json::Value;
use std::path::Path;

/// Bytes of a decoded sample of Criteo's text: label, 13 numbers, 26 ids.
const SAMPLE_BYTES: u64 = 4 * 14 + 8 * 26;

/// What `plan` counts for reading `data` with these settings.
fn reader_bytes(place: &Place, data: &Path, settings: &[&str]) -> u64 {
    let plan = place.train_without_data().path("--data", data).with(settings).of_command("plan");
    let plan: Value = serde_json::from_str(&plan.with(&["--json"]).succeeds().stdout).unwrap();
    plan["memory"]["reader_bytes"].as_u64().unwrap()
}

#[test]
fn data_that_is_kept_in_memory_is_in_the_plan() {
    let place = Place::new("rows.txt");
    let cached = |data: &Path, cache: &str, order: &str| {
        let order = ["--set", &format!("data.order={order}")];
        let with =
            |cache| reader_bytes(&place, data, &[&["--cache-data", cache][..], &order].concat());
        let kept = with(cache);
        // Text is read in another order only where it is kept.
        let off = reader_bytes(&place, data, &["--cache-data", "off"]);
        kept - off
    };
    let exact = 1500 * SAMPLE_BYTES;
    let estimate = |cache, order| cached(&place.train, cache, order);
    assert!((exact..exact * 9 / 8).contains(&estimate("host", "sequential")));
    assert!((exact..exact * 9 / 8).contains(&estimate("auto", "batches")));
    assert_eq!(estimate("auto", "sequential"), 0);
    let converted = place.path("rows.hld");
    let convert =
        Run::new("data").with(&["convert", "--to", "headlong"]).path("--data", &place.train);
    convert.path("--output", &converted).succeeds();
    for cache in ["host", "auto"] {
        assert_eq!(cached(&converted, cache, "sequential"), exact, "{cache}");
    }
    // A run plans what `plan` plans; data that is made up is counted, too.
    let log = place.path("log.json");
    let run =
        place.train().with(&["--steps", "2", "--cache-data", "host"]).path("--log-json", &log);
    run.succeeds();
    let planned = last_event(&log, "start")["plan"]["memory"]["reader_bytes"].as_u64();
    assert_eq!(planned, Some(reader_bytes(&place, &place.train, &["--cache-data", "host"])));
    let made_up = |cache: &str| {
        let plan =
            place.train_without_data().with(&["--cache-data", cache, "--json"]).of_command("plan");
        let plan: Value = serde_json::from_str(&plan.succeeds().stdout).unwrap();
        (
            plan["memory"]["reader_bytes"].as_u64().unwrap(),
            plan["division"]["data_rows"].as_u64().unwrap(),
        )
    };
    let ((kept, rows), (off, _)) = (made_up("host"), made_up("off"));
    assert_eq!(kept - off, rows * SAMPLE_BYTES);
}

#[test]
fn a_dictionary_without_a_use_is_refused_and_too_few_rows_before_the_plan() {
    let place = Place::new("rows.txt");
    let folder = place.path("dictionary");
    let make = Run::new("data").with(&["make", "--min-count", "1"]).path("--data", &place.train);
    make.path("--output", &folder).succeeds();
    let named = format!("data.dictionary='{}'", folder.display());
    let words = ["data.dictionary = ", "data.ids = \"hash\"", "set data.ids = \"dictionary\""];
    let run = place.train().with(&["--steps", "2", "--set", &named]);
    for run in [run.clone(), run.clone().with(&["--dry-run"]), run.clone().of_command("plan")] {
        run.fails(2, &words);
    }
    let looked_up = run.with(&["--set", "data.ids=dictionary"]);
    let few = looked_up.clone().with(&["--set", "tables.rows=3"]);
    let words =
        ["`tables.rows`: table C1", "tables.rows = \"dictionary\" takes the numbers from it"];
    for run in [few.clone(), few.clone().with(&["--dry-run"]), few.of_command("plan")] {
        let ended = run.fails(2, &words);
        assert!(!ended.stdout.contains("plan of"), "{}", ended.stdout);
    }
    let followed = looked_up.with(&["--set", "tables.rows=dictionary"]);
    followed.succeeds();
    let capped = ["--set", "tables.max_rows=3"];
    followed
        .of_command("plan")
        .with(&capped)
        .fails(2, &["`tables.max_rows`: table C1", "or leave it out"]);
}

#[test]
fn an_upper_bound_refuses_no_ranks_that_evaluate() {
    let plan = Run::new("plan").with(&["--preset", "criteo-sample", "--set", "model.dim=2048"]);
    let plan = plan.with(&["--set", "model.bottom=[64,2048]", "--eval-ranks", "1"]);
    let text = plan.succeeds().stdout;
    assert!(text.contains("DOES NOT FIT") && text.contains("upper bound"), "{text}");
}

#[test]
fn evaluations_without_data_are_said_to_do_nothing() {
    let place = Place::new("rows.txt");
    let note =
        "eval.every = 100, but nothing is evaluated: there is no validation data (--valid FILE)";
    let run = place.train().with(&["--steps", "2"]);
    let every = run.clone().with(&["--eval-every", "100"]);
    assert!(every.succeeds().stderr.contains(note));
    assert!(every.clone().of_command("plan").succeeds().stdout.contains(note));
    assert!(
        !every.path("--valid", &place.valid).succeeds().stderr.contains("nothing is evaluated")
    );
    let run = run.with(&["--eval-every", "0"]);
    assert!(!run.succeeds().stderr.contains("nothing is evaluated"));
}

#[test]
fn a_plan_says_what_its_estimate_is_of() {
    for precision in ["f32", "bf16"] {
        let plan = Run::new("plan").with(&["--set", "tables.rows=1000", "--precision", precision]);
        let text = plan.succeeds().stdout;
        assert!(text.contains("estimate for f32 on the processor"), "{text}");
        let cluster = plan.with(&["--cluster", "dgx-h100"]).succeeds().stdout;
        assert!(
            cluster.contains(&format!(" for dgx-h100, train.precision = \"{precision}\"\n")),
            "{cluster}"
        );
    }
}

/// What a cluster's devices can do decides, not what this machine has.
#[test]
fn a_cluster_is_planned_for_its_own_devices() {
    let plan = Run::new("plan").with(&["--set", "tables.rows=1000"]);
    let gpus = plan.clone().with(&["--cluster", "dgx-h100"]);
    for settings in [["--precision", "tf32"], ["--precision", "f16"], ["--set", "tables.dtype=f16"]]
    {
        gpus.clone().with(&settings).succeeds();
        gpus.clone().with(&settings).with(&["--device", "cuda"]).succeeds();
    }
    gpus.with(&["--device", "cpu"]).fails(2, &["run.device = \"cpu\"", "--cluster dgx-h100"]);
    let laptop = plan.with(&["--cluster", "laptop"]);
    laptop.clone().with(&["--device", "cpu"]).succeeds();
    laptop.clone().with(&["--device", "cuda"]).fails(2, &["run.device = \"cuda\""]);
    laptop.with(&["--precision", "tf32"]).fails(2, &["train.precision = \"tf32\""]);
}

/// What `train` refuses before its first step, a dry run and a plan refuse too.
#[test]
fn a_plan_refuses_what_training_refuses() {
    let place = Place::new("rows.txt");
    let (file, folder) = (place.path("file"), place.path("folder"));
    std::fs::write(&file, "1").unwrap();
    std::fs::create_dir(&folder).unwrap();
    let text = std::fs::read_to_string(&place.valid).unwrap();
    let unlabelled = place.path("unlabelled.txt");
    let without = text.lines().map(|line| format!("{}\n", &line[line.find('\t').unwrap() + 1..]));
    std::fs::write(&unlabelled, without.collect::<String>()).unwrap();
    let converted = place.path("rows.hld");
    let convert =
        Run::new("data").with(&["convert", "--to", "headlong"]).path("--data", &place.valid);
    convert.path("--output", &converted).succeeds();
    let earlier = place.path("earlier");
    place.train().with(&["--steps", "1"]).path("--checkpoint-dir", &earlier).succeeds();

    let before = names(&place.path(""));
    let train = || place.train().with(&["--steps", "2"]);
    let without_data = || place.train_without_data().with(&["--steps", "2"]);
    let absent = Path::new("/nodir/x");
    let into_file = place.train_into(&file.join("output")).path("--data", &place.train);
    for (run, code, words) in [
        (train().path("--checkpoint-dir", Path::new("/proc/x")), 1, "nothing can be made in /proc"),
        (train().path("--checkpoint-dir", &file), 1, "is not a folder"),
        (train().path("--checkpoint-dir", &earlier), 2, "an earlier run's checkpoints"),
        (without_data().path("--data", &unlabelled), 1, "found 39"),
        (train().path("--valid", &unlabelled), 1, "found 39"),
        (train().path("--data", &converted), 2, "name files of one format"),
        (train().path("--log-json", &folder), 1, "it is a directory"),
        (train().path("--mllog", absent), 1, "/nodir/x: "),
        (train().path("--trace", absent), 1, "/nodir/x: "),
        (into_file.with(&["--ranks", "2", "--steps", "2"]), 1, "is not a folder"),
    ] {
        run.clone().of_command("plan").fails(code, &[words]);
        run.clone().with(&["--dry-run"]).fails(code, &[words]);
        run.fails(code, &[words]);
    }
    assert_eq!(names(&place.path("")), before, "nothing is written before it is refused");
    let making = Run::new("data").with(&["make"]).path("--data", &place.train);
    making.path("--output", &file.join("x")).fails(1, &[file.to_str().unwrap(), "is not a folder"]);
}

#[test]
fn a_window_holds_no_more_rows_than_the_data() {
    let place = Place::new("rows.txt");
    let window = |samples: &str| {
        let window = format!("data.order_window={samples}");
        let settings = ["--cache-data", "host", "--set", "data.order=samples", "--set", &window];
        reader_bytes(&place, &place.train, &settings)
    };
    let more = window("100000000") - window("1");
    assert!((1500 * SAMPLE_BYTES..15_000 * SAMPLE_BYTES).contains(&more), "{more}");
}
