//! Evaluation during training: the same metrics, the same weights, the same end as where training
//! waits for it.

#![cfg(test)]

use crate::run_support::{self, Place, Run, events, last_event, names, steps};
use serde_json::Value;
use std::path::Path;

/// 96 steps with an evaluation every 24: its metrics are looked at two steps later.
const ARGUMENTS: [&str; 10] = [
    "--epochs",
    "4",
    "--eval-every",
    "24",
    "--set",
    "sum_blocks=4",
    "--optimizer",
    "adagrad",
    "--set",
    "eval.batch_size=128",
];

/// What an evaluation has found, without what time it took and when it was known.
fn evaluations(log: &Path) -> Vec<Value> {
    let evaluations = events(log).into_iter().filter(|event| event["event"] == "eval");
    let found = evaluations.map(|mut event| {
        for name in ["time_s", "eval_s", "known_at_step"] {
            assert!(event.as_object_mut().unwrap().remove(name).is_some(), "{name}");
        }
        event
    });
    found.collect()
}

fn known_at(log: &Path) -> Vec<(u64, u64)> {
    let evaluations = events(log).into_iter().filter(|event| event["event"] == "eval");
    evaluations
        .map(|event| (event["step"].as_u64().unwrap(), event["known_at_step"].as_u64().unwrap()))
        .collect()
}

/// The run as threads, or by `headlong launch` where `processes`.
fn run(train: &Run, log: &Path, ranks: &str, processes: bool) -> run_support::Ended {
    let train = train.clone().with(&["--ranks", ranks]).path("--log-json", log);
    if !processes {
        return train.succeeds();
    }
    train.launched(ranks.parse().unwrap()).succeeds()
}

/// Bit-equal, whatever ranks share the scores, and the weights never notice.
#[test]
fn metrics_are_those_of_a_stopped_evaluation_on_any_ranks() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let stopped = place.path("stopped.json");
    let waiting = train.clone().with(&["--set", "eval.asynchronous=false"]);
    let digest = run(&waiting, &stopped, "1", false).digest();
    let expected = evaluations(&stopped);
    assert_eq!(known_at(&stopped), [(24, 24), (48, 48), (72, 72), (96, 96)]);
    assert!(
        expected.iter().all(|event| event["auc"].is_f64() && event["eval_samples"] == 300),
        "{expected:?}"
    );

    for (ranks, processes) in [("1", false), ("4", false), ("2", true), ("4", true)] {
        let log = place.path(&format!("{ranks}-{processes}.json"));
        let ended = run(&train, &log, ranks, processes);
        assert_eq!(evaluations(&log), expected, "{ranks} ranks, processes: {processes}");
        assert_eq!(known_at(&log), [(24, 26), (48, 50), (72, 74), (96, 96)], "{ranks} ranks");
        assert_eq!(ended.digest(), digest, "{ranks} ranks, processes: {processes}");
        let done = last_event(&log, "done");
        assert!((0.0..1.0).contains(&done["eval_share"].as_f64().unwrap()), "{done}");
        assert!(
            ended.stdout.contains("training stood still for evaluations in "),
            "{}",
            ended.stdout
        );
    }
}

/// The run stops two steps behind the evaluation that reaches the target, on any ranks, and names
/// the evaluated step.
#[test]
fn a_stop_at_the_target_names_the_step_that_was_evaluated() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let log = place.path("all.json");
    run(&train, &log, "1", false);
    // The second evaluation reaches what it has reached itself; the first must not.
    let found: Vec<f64> =
        evaluations(&log).iter().map(|event| event["auc"].as_f64().unwrap()).collect();
    assert!(found[0] < found[1], "{found:?}");
    let target = found[1].to_string();
    let train = train.with(&["--target-auc", &target]);
    let mut digests = Vec::new();
    for (ranks, processes) in [("1", false), ("2", false), ("2", true)] {
        let log = place.path(&format!("target-{ranks}-{processes}.json"));
        let ended = run(&train, &log, ranks, processes);
        let done = last_event(&log, "done");
        assert_eq!(
            (&done["reason"], &done["step"], &done["eval_step"]),
            (&"target_auc".into(), &50.into(), &48.into())
        );
        assert!(
            ended.stdout.contains("done (target_auc, by the weights of step 48): 50 steps"),
            "{}",
            ended.stdout
        );
        digests.push(ended.digest());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "the weights behind a stop depend on the ranks");
}

/// A checkpoint between an evaluation and the step at which its metrics are looked at: a run that
/// resumes from it has heard of the evaluation, and stops where the run that was never interrupted
/// stops.
#[test]
fn a_checkpoint_loses_no_evaluation() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let all = place.path("all.json");
    run(&train, &all, "1", false);
    let train = train.with(&["--target-auc", &evaluations(&all)[1]["auc"].to_string()]);
    let whole = place.path("whole.json");
    let digest = run(&train, &whole, "1", false).digest();

    // Step 49 lies between the evaluation of step 48 and step 50.
    let checkpoints = place.path("checkpoints");
    let saving = train.clone().path("--checkpoint-dir", &checkpoints).with(&["--save-every", "49"]);
    let (saving, log) =
        (saving.with(&["--set", "checkpoint.keep_best=false"]), place.path("saving.json"));
    assert_eq!(run(&saving, &log, "2", false).digest(), digest);
    assert_eq!((steps(&checkpoints), known_at(&log)), (vec![49, 50], vec![(24, 26), (48, 49)]));
    assert_eq!(evaluations(&log), evaluations(&whole));

    let crashed = place.path("crashed");
    std::fs::create_dir(&crashed).unwrap();
    let name = names(&checkpoints).into_iter().find(|name| name.ends_with("49")).unwrap();
    std::fs::rename(checkpoints.join(&name), crashed.join(&name)).unwrap();
    let log = place.path("resumed.json");
    let resumed = train.path("--checkpoint-dir", &crashed).with(&["--resume"]);
    let ended = run(&resumed, &log, "2", true);
    assert_eq!((evaluations(&log), ended.digest()), (Vec::new(), digest));
    assert!(
        ended.stdout.contains("done (target_auc, by the weights of step 48): 50 steps"),
        "{}",
        ended.stdout
    );
}

/// While the best checkpoint is kept, its weights must still be there when the metrics are known:
/// training waits.
#[test]
fn an_evaluation_that_may_be_saved_as_the_best_is_waited_for() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let log = place.path("log.json");
    let train =
        train.path("--checkpoint-dir", &place.path("checkpoints")).with(&["--save-every", "100"]);
    run(&train, &log, "1", false);
    assert_eq!(known_at(&log), [(24, 24), (48, 48), (72, 72), (96, 96)]);
}

/// The run with ranks of their own that evaluate.
fn with_eval_ranks(train: &Run, count: &str) -> Run {
    train.clone().with(&["--eval-ranks", count])
}

/// Runs with tables in f32, in bf16, and with one whose rows are found by hashing.
fn kinds_of_tables(place: &Place) -> [Run; 3] {
    let tables = place.path("tables.toml");
    let hashed = "[[table]]\nname = \"C1\"\nkind = \"hashed\"\noptions = { min_count = 2 }\n";
    std::fs::write(&tables, hashed).unwrap();
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let narrow = train.clone().with(&["--set", "tables.dtype=bf16", "--precision", "bf16"]);
    let hashed = train.clone().path("--config", &tables);
    [train, narrow, hashed]
}

/// Ranks that evaluate and ranks that train: the metrics are those of an evaluation that training
/// waits for, and the weights never notice.
#[test]
fn ranks_of_their_own_find_the_metrics_of_a_stopped_evaluation() {
    let place = Place::new("rows.txt");
    let [train, narrow, hashed] = kinds_of_tables(&place);
    type Case<'a> = (&'a str, &'a Run, &'a [(&'a str, &'a str, bool)]);
    let cases: [Case<'_>; 3] = [
        (
            "dense",
            &train,
            &[("1", "1", false), ("2", "3", false), ("4", "1", false), ("2", "2", true)],
        ),
        ("narrow", &narrow, &[("2", "1", false)]),
        ("hashed", &hashed, &[("1", "1", false)]),
    ];
    for (name, train, runs) in cases {
        let stopped = place.path(&format!("{name}.json"));
        let waiting = train.clone().with(&["--set", "eval.asynchronous=false"]);
        let digest = run(&waiting, &stopped, "1", false).digest();
        let expected = evaluations(&stopped);
        for &(ranks, count, processes) in runs {
            let of_run = format!("{name}: {count} evaluate for {ranks}, processes: {processes}");
            let log = place.path(&format!("{name}-{ranks}-{count}-{processes}.json"));
            let ended = run(&with_eval_ranks(train, count), &log, ranks, processes);
            assert_eq!(evaluations(&log), expected, "{of_run}");
            assert_eq!(known_at(&log), [(24, 48), (48, 72), (72, 96), (96, 96)], "{of_run}");
            assert_eq!(ended.digest(), digest, "{of_run}");
        }
    }
}

/// The run by `headlong launch` with `ranks` processes that train and `count` that evaluate.
fn with_eval_processes(train: &Run, log: &Path, ranks: usize, count: usize) -> Run {
    let train = train.clone().with(&["--eval-processes", &count.to_string()]);
    train.path("--log-json", log).launched(ranks + count)
}

/// Processes that evaluate, reached over each transport: the metrics are those of an evaluation
/// that training waits for, and the weights never notice.
#[test]
fn processes_of_their_own_find_the_metrics_of_a_stopped_evaluation() {
    let place = Place::new("rows.txt");
    let [train, narrow, hashed] = kinds_of_tables(&place);
    let admitted = train.clone().with(&["--set", "data.ids=admitted"]);
    type Case<'a> = (&'a str, &'a Run, &'a [(usize, usize, &'a str)]);
    let cases: [Case<'_>; 4] = [
        ("dense", &train, &[(1, 1, "auto"), (2, 1, "tcp"), (1, 2, "shm"), (2, 2, "tcp")]),
        ("narrow", &narrow, &[(2, 1, "auto")]),
        ("admitted", &admitted, &[(1, 1, "tcp")]),
        ("hashed", &hashed, &[(1, 1, "shm")]),
    ];
    for (name, train, runs) in cases {
        let stopped = place.path(&format!("{name}.json"));
        let waiting = train.clone().with(&["--set", "eval.asynchronous=false"]);
        let digest = run(&waiting, &stopped, "1", false).digest();
        let expected = evaluations(&stopped);
        for &(ranks, count, transport) in runs {
            let of_run = format!("{name}: {count} evaluate for {ranks} over {transport}");
            let log = place.path(&format!("{name}-{ranks}-{count}-{transport}.json"));
            let train = train.clone().with(&["--transport", transport]);
            let ended = with_eval_processes(&train, &log, ranks, count).succeeds();
            assert_eq!(evaluations(&log), expected, "{of_run}");
            assert_eq!(known_at(&log), [(24, 48), (48, 72), (72, 96), (96, 96)], "{of_run}");
            assert_eq!(ended.digest(), digest, "{of_run}");
            assert!(!ended.stderr.contains("warning"), "{of_run}: {}", ended.stderr);
        }
    }
}

/// Training has gone on to the next evaluation when the target is known to be reached; the run
/// names the step whose weights reached it.
#[test]
fn a_stop_at_the_target_names_the_step_that_other_ranks_evaluated() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let log = place.path("all.json");
    run(&train, &log, "1", false);
    let train = with_eval_ranks(&train, "1")
        .with(&["--target-auc", &evaluations(&log)[1]["auc"].to_string()]);
    let mut digests = Vec::new();
    for (ranks, processes) in [("1", false), ("2", true)] {
        let log = place.path(&format!("target-{ranks}.json"));
        digests.push(run(&train, &log, ranks, processes).digest());
        assert_eq!(known_at(&log), [(24, 48), (48, 72)]);
        let done = last_event(&log, "done");
        let found = ["reason", "step", "eval_step"].map(|name| done[name].clone());
        assert_eq!(found, [Value::from("target_auc"), 72.into(), 48.into()]);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "the weights behind a stop depend on the ranks");
}

/// A row that only an evaluation meets has an id that is no row: the run ends, and every rank of
/// training with it, with the step whose evaluation has failed.
#[test]
fn what_fails_on_ranks_of_their_own_ends_the_run_by_name() {
    let place = Place::new("rows.csv");
    let train = place.train_on_a_bad_row().with(&["--eval-every", "4"]);
    let train = with_eval_ranks(&train, "2");
    let words = [
        "the evaluation of step 4 has failed on 2 evaluation ranks",
        "expected a row below 10, found 10",
    ];
    train.clone().with(&["--ranks", "2"]).fails(1, &words);
    train.launched(2).fails(1, &words);
}

#[test]
fn what_would_make_training_wait_is_refused() {
    let place = Place::new("rows.txt");
    let without = with_eval_ranks(&place.train(), "1");
    without.fails(2, &["run.eval_ranks = 1", "no validation data", "--valid"]);
    let train = without.path("--valid", &place.valid);
    let saving =
        train.clone().path("--checkpoint-dir", &place.path("kept")).with(&["--save-every", "10"]);
    saving.fails(2, &["run.eval_ranks = 1", "checkpoint.keep_best"]);
    train
        .with(&["--set", "eval.asynchronous=false"])
        .fails(2, &["run.eval_ranks = 1", "eval.asynchronous"]);
    let tables = place.path("tables.toml");
    std::fs::write(&tables, "[[table]]\nname = \"C1\"\nkind = \"hashed\"\n").unwrap();
    let hashed = with_eval_ranks(&place.train(), "2")
        .path("--valid", &place.valid)
        .path("--config", &tables);
    hashed.fails(2, &["run.eval_ranks = 2", "table C1", "hashed"]);
}

/// Seconds of a run from its first step to its end, seconds in which it stood still for evaluations
/// but the last, and for that one.
fn seconds_of(train: &Run, log: &Path) -> [f64; 3] {
    train.succeeds();
    let begun = events(log)[0]["time_s"].as_f64().unwrap();
    let evaluations = events(log).into_iter().filter(|event| event["event"] == "eval");
    let mut held: Vec<f64> = evaluations.map(|event| event["eval_s"].as_f64().unwrap()).collect();
    let last = held.pop().expect("a run evaluates its last weights");
    [last_event(log, "done")["wall_s"].as_f64().unwrap() - begun, held.iter().sum(), last]
}

/// The smallest seconds of five rounds of these runs, each of which takes its turn in every round;
/// all are runs of `case`.
fn least_seconds<const N: usize>(case: &[&str], runs: [&[&str]; N]) -> [[f64; 3]; N] {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json");
    let train =
        Run::new("train").with(&["--preset", "tiny", "--set", "train.log_every=100000"]).with(case);
    let train = train.path("--output-dir", folder.path()).path("--log-json", &log);
    let mut least = [[f64::INFINITY; 3]; N];
    for _ in 0..5 {
        for (least, arguments) in least.iter_mut().zip(runs) {
            let found = seconds_of(&train.clone().with(arguments), &log);
            least.iter_mut().zip(found).for_each(|(least, found)| *least = least.min(found));
        }
    }
    least
}

/// Five evaluations in MLPerf's proportions, for which the bars are: its layers; and between two
/// evaluations, as in its twentieth of an epoch (210 million of 4.2 billion samples; 188 million
/// rows of 128 numbers; 89 million samples to evaluate), 458 bytes of weights and 0.42 evaluated
/// samples for each that is trained on. Here those are 20,480 samples, some seconds of two cores.
const PROPORTIONED: [&str; 20] = [
    "--set",
    "model.dim=128",
    "--set",
    "model.bottom=[512,256,128]",
    "--set",
    "model.top=[1024,1024,512,256,1]",
    "--set",
    "tables.rows=704",
    "--set",
    "synthetic.train_rows=102400",
    "--set",
    "synthetic.valid_rows=8704",
    "--set",
    "train.batch_size=2048",
    "--set",
    "optimizer.sparse.name=sgd",
    "--set",
    "optimizer.dense.name=sgd",
    "--set",
    "eval.every=0.2",
];
const PROPORTIONED_EVALUATIONS: f64 = 5.0;

/// Ten evaluations of the preset `tiny`, two tenths of a second apart: a model that trains some
/// thirty times as many samples a second, which evaluates more samples than it trains on. No bar is
/// for that; what an evaluation costs shows better.
const DENSE: [&str; 2] = ["--set", "eval.every=0.1"];
const DENSE_EVALUATIONS: f64 = 10.0;

const WITHOUT: [&str; 2] = ["--set", "eval.every=0"];

/// The share of a run's time that evaluations cost beyond their own arithmetic, on the same cores:
/// the seconds of one with evaluations during training, less those of one without, and less the
/// evaluations of one that waits for them.
fn cost_beyond_arithmetic(name: &str, case: &[&str], evaluations: f64) -> f64 {
    // The run without evaluates once, at its end.
    let [without, stopped, during] =
        least_seconds(case, [&WITHOUT, &["--set", "eval.asynchronous=false"], &[]]);
    let arithmetic = stopped[1] + stopped[2];
    let cost = during[0] - (without[0] - without[2]) - arithmetic;
    println!(
        "{name}: without {:.2} s, stopped {:.2} s ({arithmetic:.3} s of it evaluating), during \
         training {:.2} s ({:.3} s of it standing still): {:.2} % beyond the evaluations' own \
         arithmetic, {:.1} ms an evaluation",
        without[0],
        stopped[0],
        during[0],
        during[1] + during[2],
        100.0 * cost / during[0],
        1e3 * cost / evaluations
    );
    cost / during[0]
}

#[test]
#[ignore = "minutes, and times: cargo xtask soak --only evaluation_cost on a quiet machine"]
fn soak_evaluation_cost() {
    cost_beyond_arithmetic("dense", &DENSE, DENSE_EVALUATIONS);
    let share = cost_beyond_arithmetic("proportioned", &PROPORTIONED, PROPORTIONED_EVALUATIONS);
    assert!(share < 0.02, "evaluations cost {:.2} % beyond their own arithmetic", 100.0 * share);
}

/// What a rank that trains loses to evaluations on a rank of their own, which has a core of its
/// own: the share of its time in which it stands still for snapshots, and by how much all takes
/// longer, with what the two take from each other's memory.
fn lost_to_eval_ranks(name: &str, case: &[&str], evaluations: f64) -> [f64; 2] {
    let without = [&["--threads", "1"][..], &WITHOUT].concat();
    let [without, on_ranks] =
        least_seconds(case, [&without, &["--threads", "2", "--eval-ranks", "1"]]);
    // The evaluation of the last weights is waited for, with and without.
    let [alone, evaluated] = [without, on_ranks].map(|[all, _, last]| all - last);
    let (stood, lost) = (on_ranks[1] / evaluated, evaluated / alone - 1.0);
    println!(
        "{name}: training alone {alone:.2} s, next to all evaluations but the last {evaluated:.2} \
         s: {:.2} % more, of which it stood still {:.3} s, {:.2} %, {:.1} ms a snapshot",
        100.0 * lost,
        on_ranks[1],
        100.0 * stood,
        1e3 * on_ranks[1] / (evaluations - 1.0)
    );
    [stood, lost]
}

#[test]
#[ignore = "minutes, and times: cargo xtask soak --only eval_ranks_cost on a quiet machine of two \
            cores"]
fn soak_eval_ranks_cost() {
    lost_to_eval_ranks("dense", &DENSE, DENSE_EVALUATIONS);
    let [stood, lost] = lost_to_eval_ranks("proportioned", &PROPORTIONED, PROPORTIONED_EVALUATIONS);
    assert!(stood < 0.005, "training stood still for {:.2} % of the time", 100.0 * stood);
    assert!(lost < 0.005, "training lost {:.2} % of the time", 100.0 * lost);
}
