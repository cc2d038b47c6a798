//! What is saved is what is loaded, whatever the files look like; what does not fit is refused by
//! name.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::{Toy, options, snapshot, state};
    use headlong::state::checkpoint::{
        Blob, Checkpoint, CheckpointDirectory, CheckpointError, Content, Select, Snapshot, newest,
        open, step_name, steps,
    };
    use headlong::state::digest::weights_digest;
    use std::io::Read;
    use std::path::Path;

    fn saved(folder: &Path, shard_bytes: u64) -> (Toy, Checkpoint) {
        let toy = Toy::new(5);
        let directory = CheckpointDirectory::open(folder, options(shard_bytes, 1)).unwrap();
        let report = directory.save(&snapshot(&toy, 40)).unwrap();
        let checkpoint = Checkpoint::open(&report.path).unwrap();
        assert_eq!(report.bytes, checkpoint.bytes());
        assert_eq!(report.weights_digest, checkpoint.manifest().weights_digest);
        (toy, checkpoint)
    }

    #[test]
    fn the_same_tensors_come_back_from_shards_of_any_size() {
        let mut digests = Vec::new();
        for (shard_bytes, files) in [(1, 31), (100, 10), (400, 3), (1 << 30, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let (toy, checkpoint) = saved(folder.path(), shard_bytes);
            let rows = |content: &Content| matches!(content, Content::Rows { .. });
            let shards =
                checkpoint.manifest().files.iter().filter(|entry| rows(&entry.content)).count();
            assert!(
                shards == files || shard_bytes == 100 && shards > 5,
                "{shard_bytes}: {shards} shards"
            );
            checkpoint.verify().unwrap();
            let mut back = Toy::blank();
            checkpoint.load(&mut back, Select::All).unwrap();
            assert_eq!(back.bits(), toy.bits());
            assert_eq!(checkpoint.manifest().weights_digest, weights_digest(&toy).unwrap());
            digests.push(checkpoint.manifest().weights_digest.clone());
        }
        digests.dedup();
        assert_eq!(digests.len(), 1, "the digest does not depend on the files");
        assert_ne!(digests[0], weights_digest(&Toy::new(6)).unwrap());
    }

    #[test]
    fn the_state_and_further_files_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let toy = Toy::new(1);
        let directory = CheckpointDirectory::open(folder.path(), options(1 << 30, 1)).unwrap();
        let ids: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let blobs = vec![
            Blob {
                file: "ids.bin".into(),
                estimated_bytes: ids.len() as u64,
                write: Box::new(|output| output.write_all(&ids)),
            },
            Blob {
                file: "config.toml".into(),
                estimated_bytes: 0,
                write: Box::new(|output| output.write_all(b"seed = 7\n")),
            },
        ];
        let state = state(123, Some(0.75));
        directory.save(&Snapshot { source: &toy, state: state.clone(), blobs }).unwrap();
        let checkpoint = directory.newest().unwrap().unwrap();
        assert_eq!(checkpoint.path(), folder.path().join("step-000000123"));
        assert_eq!(checkpoint.manifest().state, state);
        checkpoint.verify().unwrap();
        let read = |name: &str| {
            let mut bytes = Vec::new();
            checkpoint.blob(name).unwrap().map(|mut blob| blob.read_to_end(&mut bytes).unwrap());
            bytes
        };
        assert_eq!(read("ids.bin"), ids);
        assert_eq!(read("config.toml"), b"seed = 7\n");
        assert!(checkpoint.blob("absent.bin").unwrap().is_none());
        assert!(checkpoint.blob("dense.safetensors").unwrap().is_none(), "tensors are not a blob");
    }

    #[test]
    fn names_of_further_files_cannot_leave_the_directory_or_clash() {
        let folder = tempfile::tempdir().unwrap();
        let toy = Toy::new(1);
        let directory = CheckpointDirectory::open(folder.path(), options(1 << 30, 1)).unwrap();
        for file in ["../evil", "a/b", "", ".hidden", "manifest.json", "dense.safetensors"] {
            let blob = Blob { file: file.into(), estimated_bytes: 0, write: Box::new(|_| Ok(())) };
            let refused = directory.save(&Snapshot { blobs: vec![blob], ..snapshot(&toy, 1) });
            assert!(refused.is_err(), "{file}");
        }
        assert_eq!(steps(folder.path()).unwrap(), []);
    }

    #[test]
    fn weights_alone_leave_the_states_of_the_sink_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let (toy, checkpoint) = saved(folder.path(), 200);
        let mut back = Toy::blank();
        checkpoint.load(&mut back, Select::WeightsOnly).unwrap();
        for (tensor, values) in &back.values {
            let blank = values.iter().all(|value| *value == -12345.0);
            assert_eq!(blank, tensor.state.is_some(), "{tensor:?}");
            assert!(blank || *values == toy.values[tensor]);
        }
        // A model without any optimiser takes the weights, too.
        let mut bare = Toy::blank();
        bare.layout = bare.layout.weights_only();
        bare.values.retain(|tensor, _| tensor.state.is_none());
        checkpoint.load(&mut bare, Select::WeightsOnly).unwrap();
        let refused = checkpoint.load(&mut bare, Select::All).unwrap_err();
        assert!(refused.to_string().contains("`layout.dense[0].states[0]`"), "{refused}");
    }

    #[test]
    fn another_model_is_refused_by_its_first_difference() {
        let folder = tempfile::tempdir().unwrap();
        let (_, checkpoint) = saved(folder.path(), 1 << 30);
        let expected = state(1, None);
        checkpoint.check_model(&expected.model).unwrap();
        checkpoint.check_optimizers(&expected.optimizers).unwrap();
        checkpoint.check_data(&expected.data).unwrap();

        let mut model = expected.model;
        model.tables[1].rows = 9;
        let message = checkpoint.check_model(&model).unwrap_err().to_string();
        assert!(
            message.contains("`model.tables[1].rows` is 7 there and 9 in this run"),
            "{message}"
        );

        let mut optimizers = expected.optimizers;
        optimizers.sparse = "sgd()".into();
        let message = checkpoint.check_optimizers(&optimizers).unwrap_err().to_string();
        assert!(
            message.contains("`optimizers.sparse`") && message.contains("adagrad"),
            "{message}"
        );

        let mut data = expected.data;
        data.dense_transform = "ln(x+3)".into();
        let refused = checkpoint.check_data(&data).unwrap_err();
        assert!(matches!(refused, CheckpointError::OtherData { .. }));
        let message = refused.to_string();
        assert!(
            message
                .contains(r#"`data.dense_transform` is "ln(x+1)" there and "ln(x+3)" in this run"#),
            "{message}"
        );
    }

    #[test]
    fn another_layout_is_refused_before_anything_is_filled() {
        let folder = tempfile::tempdir().unwrap();
        let (_, checkpoint) = saved(folder.path(), 1 << 30);
        let mut other = Toy::blank();
        other.layout.tables[0].rows = 22;
        let message = checkpoint.load(&mut other, Select::All).unwrap_err().to_string();
        assert!(
            message.contains("`layout.tables[0].rows` is 23 there and 22 in this run"),
            "{message}"
        );
        assert_eq!(other.bits(), Toy::blank().bits());
    }

    #[test]
    fn the_newest_is_found_by_its_step() {
        let folder = tempfile::tempdir().unwrap();
        assert!(newest(&folder.path().join("absent")).unwrap().is_none());
        let directory = CheckpointDirectory::open(folder.path(), options(1 << 30, 10)).unwrap();
        assert!(directory.newest().unwrap().is_none());
        for step in [999_999_999, 1_000_000_000, 5] {
            directory.save(&snapshot(&Toy::new(step as u32), step)).unwrap();
        }
        let found: Vec<u64> =
            steps(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(found, [5, 999_999_999, 1_000_000_000]);
        assert_eq!(directory.newest().unwrap().unwrap().manifest().state.step, 1_000_000_000);
        // A directory of checkpoints stands for its newest.
        assert_eq!(open(folder.path()).unwrap().manifest().state.step, 1_000_000_000);
        let five = open(&folder.path().join(step_name(5))).unwrap();
        assert_eq!(five.manifest().state.step, 5);
    }

    #[test]
    fn saving_a_step_again_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = CheckpointDirectory::open(folder.path(), options(1 << 30, 1)).unwrap();
        for seed in [1, 2, 3] {
            directory.save(&snapshot(&Toy::new(seed), 7)).unwrap();
            let mut back = Toy::blank();
            directory.newest().unwrap().unwrap().load(&mut back, Select::All).unwrap();
            assert_eq!(back.bits(), Toy::new(seed).bits());
        }
        assert_eq!(steps(folder.path()).unwrap().len(), 1);
    }

    #[test]
    fn two_writers_are_one_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let first = CheckpointDirectory::open(folder.path(), options(1 << 30, 1)).unwrap();
        let second = CheckpointDirectory::open(folder.path(), options(1 << 30, 1));
        assert!(matches!(second, Err(CheckpointError::InUse { .. })));
        drop(first);
        CheckpointDirectory::open(folder.path(), options(1 << 30, 1)).unwrap();
    }

    #[test]
    fn the_last_and_the_best_stay_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let directory = CheckpointDirectory::open(folder.path(), options(1 << 30, 2)).unwrap();
        let toy = Toy::new(1);
        let mut removed = Vec::new();
        for (step, auc) in
            [(1, Some(0.6)), (2, Some(0.8)), (3, Some(0.7)), (4, None), (5, Some(0.79))]
        {
            let report = directory
                .save(&Snapshot { state: state(step, auc), ..snapshot(&toy, step) })
                .unwrap();
            assert_eq!(report.warnings, [] as [&str; 0]);
            removed.extend(report.removed);
        }
        let left: Vec<u64> =
            steps(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(left, [2, 4, 5]);
        assert_eq!(removed, [folder.path().join(step_name(1)), folder.path().join(step_name(3))]);
    }

    #[test]
    fn the_safetensors_crate_reads_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let (toy, checkpoint) = saved(folder.path(), 400);
        let mut rows = 0;
        for entry in
            checkpoint.manifest().files.iter().filter(|entry| entry.file.ends_with(".safetensors"))
        {
            let bytes = std::fs::read(checkpoint.path().join(&entry.file)).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            if let Ok(tensor) = tensors.tensor("table.C1.weight") {
                let all = toy.values.values().nth(4).unwrap();
                let first = all[rows * 4].to_le_bytes();
                assert_eq!(&tensor.data()[..4], first);
                rows += tensor.shape()[0];
            }
        }
        assert_eq!(rows, 23);
    }
}
