//! Runs of several ranks through the built program: they save, others go on; what the plan says of
//! bytes is what is counted.

#![cfg(test)]

use crate::run_support::{Place, Run, last_event, names};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Saved on four ranks, resumed on one, two and eight: the weights are those of one rank that was
/// never interrupted.
#[test]
fn a_checkpoint_of_four_ranks_resumes_on_any_number() {
    resumes_on_any_number("adagrad");
}

#[test]
fn a_checkpoint_of_lamb_resumes_on_any_number() {
    resumes_on_any_number("lamb");
}

fn resumes_on_any_number(optimizer: &str) {
    let place = Place::new("rows.txt");
    let train = place.train().with(&[
        "--set",
        "sum_blocks=8",
        "--optimizer",
        optimizer,
        "--set",
        "train.epochs=2",
    ]);
    let expected = train.clone().succeeds().digest();
    let saved = place.path("saved");
    let half = train.clone().with(&[
        "--ranks",
        "4",
        "--set",
        "comm.ranks_per_node=2",
        "--set",
        "train.steps=20",
    ]);
    half.path("--checkpoint-dir", &saved).succeeds();
    for (ranks, further) in
        [("1", "hybrid=off"), ("2", "hybrid=rows=500"), ("8", "schedule=overlapped")]
    {
        let copy = place.path(&format!("of {ranks}"));
        copy_folder(&saved, &copy);
        let resumed =
            train.clone().with(&["--resume", "--ranks", ranks, "--set", &format!("run.{further}")]);
        let outcome = resumed.path("--checkpoint-dir", &copy).succeeds();
        assert!(outcome.stderr.contains("resumed at step 20"), "{}", outcome.stderr);
        assert_eq!(outcome.digest(), expected, "{ranks} ranks");
    }
    assert!(
        names(&saved).iter().any(|name| name.contains("20")),
        "the folder saved to is untouched"
    );
}

/// Four processes that share memory, two pairs of them with TCP between the pairs, TCP alone, UCX
/// alone: the weights of threads.
#[test]
fn processes_train_the_weights_of_threads_whatever_carries_their_payload() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&[
        "--set",
        "sum_blocks=4",
        "--optimizer",
        "adagrad",
        "--set",
        "train.steps=16",
    ]);
    let train = train.with(&["--ranks", "4"]);
    let threads = train.clone().succeeds().digest();
    for (transport, per_node, ways) in [
        ("shm", "0", "ranks 0 to 3: inside the node by shm"),
        ("auto", "2", "ranks 0 to 3: inside the node by shm, between nodes by "),
        ("tcp", "0", "ranks 0 to 3: inside the node by tcp (asked for)"),
        ("ucx", "2", "ranks 0 to 3: inside the node by ucx, between nodes by ucx"),
    ] {
        if let ("ucx", Err(reason)) = (transport, headlong_ucx::version()) {
            println!("skipped, because {reason}");
            continue;
        }
        let run = train.clone().with(&[
            "--transport",
            transport,
            "--set",
            &format!("comm.ranks_per_node={per_node}"),
        ]);
        let outcome = run.launched(4).succeeds();
        assert!(outcome.stderr.contains(ways), "{transport}: {}", outcome.stderr);
        assert_eq!(outcome.digest(), threads, "{transport}");
    }
}

/// Threads that stay on processors of their own change no bit; more of them than processors run
/// anywhere, and a note says so.
#[test]
fn bound_threads_train_the_same_weights() {
    let place = Place::new("rows.txt");
    let processors = std::thread::available_parallelism().unwrap().get();
    let run = |threads: usize, bind: &str| {
        place.train_on(threads).with(&["--set", &format!("run.bind={bind}")])
    };
    let free = run(processors, "false").succeeds().digest();
    assert_eq!(run(processors, "true").succeeds().digest(), free);
    let many = run(processors + 1, "true").succeeds();
    let reason = format!("note: run.bind: a rank of {} threads, processors", processors + 1);
    assert!(many.stderr.contains(&reason), "{}", many.stderr);
    assert_eq!(many.digest(), free);
}

/// A transport that was asked for by name is not replaced: every rank refuses the setting, and says
/// which rank lacks what.
#[test]
fn a_transport_that_is_missing_ends_the_run_by_name() {
    let place = Place::new("rows.txt");
    let run = place.train().with(&[
        "--set",
        "sum_blocks=4",
        "--transport",
        "shm",
        "--set",
        "comm.ranks_per_node=1",
    ]);
    let lacks = "`transport shm`: shared memory joins the ranks of one node, and rank 1 is on \
                 another than rank 0";
    run.launched(2).fails(2, &[lacks]);
}

/// Half-way other ids become frequent: the split is made again at the next evaluation, and the
/// weights do not notice.
#[test]
fn rows_are_placed_again_when_other_rows_become_frequent() {
    let place = Place::new("rows.txt");
    let rows = std::fs::read_to_string(&place.train).unwrap();
    let turned: String = rows.lines().map(|line| turn_ids(line) + "\n").collect();
    std::fs::write(&place.train, rows + &turned).unwrap();
    let train = place.train().with(&[
        "--set",
        "sum_blocks=2",
        "--eval-every",
        "12",
        "--hybrid",
        "rows=300",
    ]);
    let train = train.path("--valid", &place.valid);
    let expected = train.clone().succeeds().digest();
    let ranks = train.with(&["--ranks", "2", "--set", "hybrid.repartition_drift=0.1"]);
    let outcome = ranks.with(&["--set", "hybrid.statistics_batches=10"]).succeeds();
    assert!(outcome.stderr.contains("rows are frequent now"), "{}", outcome.stderr);
    assert_eq!(outcome.digest(), expected);
}

/// The same row with its ids written backwards.
fn turn_ids(line: &str) -> String {
    let fields = line.split('\t').enumerate();
    let turned = fields.map(|(column, field)| match column {
        14.. => field.chars().rev().collect(),
        _ => field.to_owned(),
    });
    turned.collect::<Vec<String>>().join("\t")
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn real_rows() -> Option<PathBuf> {
    let rows = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/criteo/train.txt.gz"
    ));
    if rows.exists() {
        return Some(rows);
    }
    println!("skipped, because {} is absent", rows.display());
    None
}

/// Bytes of a step, from the rows of the first ten batches, against those counted over forty.
#[test]
fn planned_bytes_agree_with_counted_ones_on_real_rows() {
    let Some(rows) = real_rows() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (hybrid, deduplicate) in
        [("off", "off"), ("off", "rank"), ("auto", "auto"), ("rows=2000", "node")]
    {
        let options = |command: &str| {
            let run = Run::new(command).path("--data", &rows).with(&[
                "--ranks",
                "4",
                "--batch-size",
                "2048",
            ]);
            let run = run.with(&["--set", "tables.rows=100000", "--set", "comm.ranks_per_node=2"]);
            let run = run.with(&["--set", "hybrid.statistics_batches=10", "--hybrid", hybrid]);
            run.with(&["--set", &format!("comm.deduplicate={deduplicate}")])
                .path("--output-dir", folder.path())
        };
        let planned: Value =
            serde_json::from_str(&options("plan").with(&["--json"]).succeeds().stdout).unwrap();
        let log = folder.path().join("log.json");
        options("train").with(&["--steps", "40"]).path("--log-json", &log).succeeds();
        let counted = &last_event(&log, "done")["exchange_bytes_per_step"];
        for distance in ["intra_node", "inter_node"] {
            let planned = &planned["exchange_bytes_per_step"][distance];
            let planned =
                planned["forward"].as_f64().unwrap() + planned["backward"].as_f64().unwrap();
            let counted = counted[distance].as_f64().unwrap();
            println!(
                "{hybrid}, {deduplicate}, {distance}: planned {planned:.0}, counted {counted:.0}"
            );
            let error = (planned / counted - 1.0).abs();
            assert!(
                error < 0.05,
                "{hybrid}, {deduplicate}, {distance}: planned {planned}, counted {counted}"
            );
        }
    }
}

/// The same weights on real rows, however many ranks.
#[test]
fn four_ranks_train_real_rows_like_one() {
    let Some(rows) = real_rows() else { return };
    let folder = tempfile::tempdir().unwrap();
    let digest = |ranks: &str| {
        let run = Run::new("train").path("--data", &rows).with(&[
            "--preset",
            "criteo-hashed",
            "--steps",
            "100",
        ]);
        let run = run.with(&["--ranks", ranks, "--set", "sum_blocks=4", "--batch-size", "512"]);
        run.with(&["--set", "tables.rows=20000"])
            .path("--output-dir", folder.path())
            .succeeds()
            .digest()
    };
    assert_eq!(digest("1"), digest("4"));
}
