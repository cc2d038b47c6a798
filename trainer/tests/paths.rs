//! Every instruction set trains the same model, bit for bit. So what is shown of one of them,
//! PyTorch's fixtures or an AUC on real rows, holds for all; and that it is shown of each,
//! `pytorch_fixture.rs` adds.

#![cfg(test)]

use crate::run_support::{Place, Run};
use std::path::PathBuf;

/// From the narrowest up.
const PATHS: [&str; 5] = ["portable", "avx2", "avx512", "avx512_bf16", "amx"];

/// Models and precisions, as settings.
const CASES: [(&str, &[&str]); 5] = [
    ("dot, SGD", &[]),
    (
        "dot, Adagrad, bf16 in pairs",
        &[
            "train.precision=bf16",
            "train.bf16_sums=pairs",
            "optimizer.sparse.name=adagrad",
            "optimizer.dense.name=adagrad",
        ],
    ),
    ("dot, bf16 in tiles", &["train.precision=bf16", "train.bf16_sums=tiles"]),
    (
        "cross, bf16 in tiles",
        &[
            "train.precision=bf16",
            "train.bf16_sums=tiles",
            "model.interaction=cross",
            "model.cross_rank=24",
        ],
    ),
    ("cat, f16", &["train.precision=f16", "model.interaction=cat"]),
];

/// Runs every case on every path that the processor has, and compares the weights they end in.
fn every_path_ends_in_the_same_weights(run: &dyn Fn() -> Run) {
    for (name, settings) in CASES {
        let mut ends: Vec<(&str, String)> = Vec::new();
        for path in PATHS {
            let wanted = format!("run.instructions={path}");
            let mut run = run().with(&["--set", &wanted]);
            for setting in settings {
                run = run.with(&["--set", setting]);
            }
            let ended = run.end();
            if ended.code == Some(2) && ended.stderr.contains("this processor has") {
                println!("skipped, because this processor has no {path}");
                continue;
            }
            assert_eq!(ended.code, Some(0), "{name} with {path}: {}", ended.stderr);
            ends.push((path, ended.digest()));
        }
        assert!(ends.windows(2).all(|pair| pair[0].1 == pair[1].1), "{name}: {ends:?}");
    }
}

#[test]
fn made_up_rows_end_in_the_same_weights_on_every_path() {
    let place = Place::new("train.txt");
    let run = || place.train().with(&["--set", "train.steps=8"]);
    every_path_ends_in_the_same_weights(&run);
}

#[test]
fn real_rows_end_in_the_same_weights_on_every_path() {
    let data = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/criteo/train.txt.gz"
    ));
    if !data.exists() {
        println!("skipped, because {} is absent", data.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let run = Run::new("train").with(&["--preset", "criteo-sample", "--set", "train.steps=8"]);
        run.with(&["--set", "eval.every=0"])
            .path("--data", &data)
            .path("--output-dir", folder.path())
    };
    every_path_ends_in_the_same_weights(&run);
}

/// What order a run began with, and not what this processor is fastest with.
#[test]
fn a_resumed_run_adds_up_products_of_bf16_in_the_order_it_began_with() {
    let ends = ["pairs", "tiles"].map(|order| {
        let place = Place::new("train.txt");
        let run = |steps: &str| {
            let steps = format!("train.steps={steps}");
            place.train().with(&["--precision", "bf16", "--set", &steps])
        };
        let order = format!("train.bf16_sums={order}");
        let whole = run("8").with(&["--set", &order]).end();
        let kept = |run: Run| run.path("--checkpoint-dir", &place.path("kept")).end();
        assert_eq!(kept(run("4").with(&["--set", &order])).code, Some(0));
        let resumed = kept(run("8").with(&["--resume"]));
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
        assert_eq!(resumed.digest(), whole.digest(), "{order}");
        whole.digest()
    });
    assert_ne!(ends[0], ends[1], "orders differ in the last bits");
}

#[test]
fn a_path_that_does_not_exist_is_refused_by_name() {
    let place = Place::new("train.txt");
    let run = place.train().with(&["--set", "run.instructions=avx1024"]);
    run.fails(2, &["avx1024", "avx512_bf16"]);
}
