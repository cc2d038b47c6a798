//! Evaluation beside training: the same metrics, the same weights, the same end as where training waits for it.

#![cfg(test)]

mod run_support;

use run_support::{Place, Run, events, last_event, names, steps};
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
    let command: Vec<&str> = train.arguments().iter().map(String::as_str).collect();
    Run::new("launch").with(&["-n", ranks, "--"]).with(&command).succeeds()
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
        assert!(ended.stdout.contains("training stood still for evaluations in "), "{}", ended.stdout);
    }
}

/// The run stops two steps behind the evaluation that reaches the target, on any ranks, and names the evaluated step.
#[test]
fn a_stop_at_the_target_names_the_step_that_was_evaluated() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let log = place.path("all.json");
    run(&train, &log, "1", false);
    // The second evaluation reaches what it has reached itself; the first must not.
    let found: Vec<f64> = evaluations(&log).iter().map(|event| event["auc"].as_f64().unwrap()).collect();
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

/// A checkpoint between an evaluation and the step at which its metrics are looked at: whoever goes on from it has heard of the
/// evaluation, and stops where the run that was never interrupted stops.
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
    let (saving, log) = (saving.with(&["--set", "checkpoint.keep_best=false"]), place.path("saving.json"));
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

/// While the best checkpoint is kept, its weights must still be there when the metrics are known: training waits.
#[test]
fn an_evaluation_that_may_be_saved_as_the_best_is_waited_for() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&ARGUMENTS).path("--valid", &place.valid);
    let log = place.path("log.json");
    let train = train.path("--checkpoint-dir", &place.path("checkpoints")).with(&["--save-every", "100"]);
    run(&train, &log, "1", false);
    assert_eq!(known_at(&log), [(24, 24), (48, 48), (72, 72), (96, 96)]);
}

/// What evaluations cost beyond their own arithmetic, on the same cores: the seconds of a run with ten evaluations beside training, less those of
/// one without and less the evaluations of one that waits for them. The smallest of five runs each, in turns.
#[test]
#[ignore = "minutes, and times: cargo xtask soak --only evaluation_cost on a quiet machine"]
fn soak_evaluation_cost() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json");
    let train = Run::new("train").with(&["--preset", "tiny", "--set", "train.log_every=100000"]);
    let train = train.path("--output-dir", folder.path()).path("--log-json", &log);
    let of_run = |arguments: &[&str]| -> [f64; 2] {
        train.clone().with(arguments).succeeds();
        let begun = events(&log)[0]["time_s"].as_f64().unwrap();
        let evaluations = events(&log).into_iter().filter(|event| event["event"] == "eval");
        let seconds = evaluations.map(|event| event["eval_s"].as_f64().unwrap()).sum::<f64>();
        [last_event(&log, "done")["wall_s"].as_f64().unwrap() - begun, seconds]
    };
    let (mut least, every) = ([[f64::INFINITY; 2]; 3], ["--set", "eval.every=0.1"]);
    for _ in 0..5 {
        let stopped = [&every[..], &["--set", "eval.asynchronous=false"]].concat();
        for (least, arguments) in least.iter_mut().zip([&["--set", "eval.every=0"][..], &stopped, &every]) {
            let found = of_run(arguments);
            *least = [least[0].min(found[0]), least[1].min(found[1])];
        }
    }
    // The run without evaluates once, at its end.
    let [[without, at_the_end], [stopped, arithmetic], [beside, held]] = least;
    let cost = beside - (without - at_the_end) - arithmetic;
    println!(
        "without {without:.2} s, stopped {stopped:.2} s ({arithmetic:.3} s of it evaluating), beside training {beside:.2} s ({held:.3} s of it \
         standing still): {:.2} % beyond the evaluations' own arithmetic",
        100.0 * cost / beside
    );
    assert!(
        cost < 0.02 * beside,
        "evaluations cost {cost:.3} s of {beside:.2} s beyond their own arithmetic"
    );
}
