//! Any manifest comes back as it was written, and no bytes make the parser panic.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::{Toy, options, snapshot};
    use headlong::metrics::EvalMetrics;
    use headlong::state::checkpoint::{
        Checkpoint, CheckpointDirectory, DataFingerprint, LossScaleState, Manifest,
        ModelFingerprint, OptimizerFingerprint, RandomState, SavedState, TableFingerprint,
        TrainedFile,
    };
    use headlong_reader::FileIdentity;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::path::Path;

    fn manifest() -> Manifest {
        let folder = tempfile::tempdir().unwrap();
        let directory = CheckpointDirectory::open(folder.path(), options(400, 1)).unwrap();
        let report = directory.save(&snapshot(&Toy::new(1), 3)).unwrap();
        Checkpoint::open(&report.path).unwrap().manifest().clone()
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    fn model() -> impl Strategy<Value = ModelFingerprint> {
        let table = (".*", any::<u64>(), any::<u64>()).prop_map(|(name, rows, dim)| {
            TableFingerprint { name, kind: "dense".into(), rows, dim, pooling: "sum".into() }
        });
        let widths = || prop::collection::vec(any::<u64>(), 0..5);
        let tables = prop::collection::vec(table, 0..5);
        (".*", any::<u64>(), widths(), widths(), tables).prop_map(
            |(family, num_dense, bottom, top, tables)| ModelFingerprint {
                family,
                num_dense,
                bottom,
                top,
                interaction: "dot".into(),
                tables,
            },
        )
    }

    fn metrics() -> impl Strategy<Value = EvalMetrics> {
        let share = || (0_u32..=1000).prop_map(|thousandths| f64::from(thousandths) / 1000.0);
        let maybe = || proptest::option::of(share());
        let calibration = (maybe(), maybe(), maybe());
        (maybe(), maybe(), maybe(), share(), share(), calibration, any::<u64>()).prop_map(
            |(auc, logloss, ne, accuracy, base_rate, calibration, eval_samples)| EvalMetrics {
                auc,
                logloss,
                ne,
                accuracy,
                base_rate,
                mean_prediction: calibration.0,
                calibration: calibration.1,
                calibration_error: calibration.2,
                eval_samples,
            },
        )
    }

    /// None, as an earlier program leaves it; a pipe; a file.
    fn files(count: u64) -> Vec<TrainedFile> {
        let identity =
            FileIdentity { bytes: 5, modified_ns: Some(7), sample_xxh3: "0f".to_owned() };
        let identities = [None, Some(identity)].into_iter().take((count % 3) as usize);
        identities.map(|identity| TrainedFile { path: "a.txt".to_owned(), identity }).collect()
    }

    fn state() -> impl Strategy<Value = SavedState> {
        let texts = (".*", ".*", ".*", ".*", ".*", proptest::option::of(".*"));
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let rest =
            (model(), proptest::option::of(metrics()), json(), json(), proptest::option::of(".*"));
        (texts, numbers, rest).prop_map(
            |(texts, numbers, (model, metrics, reader, session, finished))| {
                let (dense, sparse, dense_transform, id_policy, hash, dictionary) = texts;
                let (step, samples, seed, random_step) = numbers;
                SavedState {
                    step,
                    samples,
                    finished,
                    model,
                    optimizers: OptimizerFingerprint { dense, sparse },
                    data: DataFingerprint {
                        columns: vec![hash.clone(); (step % 2) as usize],
                        dense_transform,
                        id_policy,
                        hash,
                        dictionary,
                    },
                    train_files: files(step),
                    reader,
                    random: RandomState { seed, step: random_step },
                    loss_scale: (step % 2 == 1).then_some(LossScaleState {
                        scale: 1024.0,
                        good_steps: seed as u32,
                        skipped_steps: samples as u32,
                    }),
                    metrics,
                    session,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_manifest_comes_back_as_it_was(state in state()) {
            let manifest = Manifest { state, ..manifest() };
            let bytes = manifest.to_bytes();
            let back = Manifest::parse(Path::new("manifest.json"), &bytes).unwrap();
            prop_assert_eq!(&back, &manifest);
            prop_assert_eq!(back.to_bytes(), bytes);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Manifest::parse(Path::new("manifest.json"), &bytes).is_err());
        }
    }
}
