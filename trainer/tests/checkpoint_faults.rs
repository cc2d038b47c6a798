//! A crash, an error or a full disk at any operation of a save leaves the checkpoint before it as
//! it was.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::faulty::{Fault, FaultyFiles, Loss};
    use crate::checkpoint_support::{Toy, options, snapshot};
    use headlong::state::checkpoint::{
        Blob, CheckpointDirectory, CheckpointError, DirectoryOptions, Select, Snapshot, newest,
    };
    use std::path::Path;
    use std::sync::Arc;

    /// Shards of a few rows, so that a save has many operations.
    const SHARD_BYTES: u64 = 400;

    fn with_files(files: FaultyFiles) -> DirectoryOptions {
        DirectoryOptions { files: Arc::new(files), ..options(SHARD_BYTES, 1) }
    }

    /// A save of `toy` as `step`, with a further file.
    fn save(directory: &CheckpointDirectory, toy: &Toy, step: u64) -> Result<(), CheckpointError> {
        let ids = Blob {
            file: "ids.bin".into(),
            estimated_bytes: 5,
            write: Box::new(|output| output.write_all(b"state")),
        };
        let snapshot = Snapshot { blobs: vec![ids], ..snapshot(toy, step) };
        directory.save(&snapshot).map(|_| ())
    }

    /// The model in the newest checkpoint, and its step.
    fn loaded(path: &Path) -> (u64, Toy) {
        let checkpoint = newest(path).unwrap().expect("a checkpoint is there");
        checkpoint.verify().unwrap();
        let mut toy = Toy::blank();
        checkpoint.load(&mut toy, Select::All).unwrap();
        (checkpoint.manifest().state.step, toy)
    }

    /// The names in the directory that are not checkpoints.
    fn leftovers(path: &Path) -> Vec<String> {
        let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        names.filter(|name| !name.starts_with("step-") && name != ".lock").collect()
    }

    /// Saves `before` as step 10 on a good disk, then `after` as `step` with a fault at the
    /// operation `at`. Returns what the faulty save said, and how many operations there were.
    fn run(
        path: &Path,
        step: u64,
        fault: Fault,
        at: usize,
        loss: Option<Loss>,
    ) -> (Result<(), CheckpointError>, usize) {
        let (before, after) = (Toy::new(1), Toy::new(2));
        save(
            &CheckpointDirectory::open(path, with_files(FaultyFiles::good())).unwrap(),
            &before,
            10,
        )
        .unwrap();
        let files = FaultyFiles::new(fault, at);
        let directory = CheckpointDirectory::open(path, with_files(files.clone())).unwrap();
        let result = save(&directory, &after, step);
        // Old checkpoints are removed in the background.
        drop(directory);
        let operations = files.operations();
        if let Some(loss) = loss {
            files.lose(loss);
        }
        (result, operations)
    }

    /// Which model a checkpoint must hold: the old one, or, where the new one is in place, the new
    /// one.
    fn check(path: &Path, step: u64, result: &Result<(), CheckpointError>, context: &str) {
        let (found_step, toy) = loaded(path);
        let is_new = toy.bits() == Toy::new(2).bits();
        assert!(is_new || toy.bits() == Toy::new(1).bits(), "{context}: neither model");
        assert_eq!(found_step, if is_new { step } else { 10 }, "{context}");
        if result.is_ok() {
            assert!(is_new, "{context}: the save said it was done");
        }
    }

    /// Calls `each` for every operation of a save of `step`, in a fresh directory.
    fn for_each_operation(step: u64, mut each: impl FnMut(&Path, usize)) {
        let folder = tempfile::tempdir().unwrap();
        let (result, operations) = run(folder.path(), step, Fault::Once, usize::MAX, None);
        result.unwrap();
        assert!(operations > 30, "too few operations to mean anything: {operations}");
        for at in 0..operations {
            let folder = tempfile::tempdir().unwrap();
            each(folder.path(), at);
        }
    }

    #[test]
    fn a_crash_at_any_operation_loses_nothing() {
        // Step 20 is a new checkpoint, after which retention removes step 10; step 10 replaces the
        // one that is there.
        for step in [20, 10] {
            for loss in [Loss::Nothing, Loss::Unflushed, Loss::UnflushedButRenames] {
                for_each_operation(step, |path, at| {
                    let context = format!("step {step}, crash at operation {at}, {loss:?}");
                    let (result, _) = run(path, step, Fault::Crash, at, Some(loss));
                    // The next start puts the directory right.
                    let directory =
                        CheckpointDirectory::open(path, with_files(FaultyFiles::good())).unwrap();
                    check(path, step, &result, &context);
                    assert_eq!(leftovers(path), [] as [&str; 0], "{context}");
                    // And the run resumes from there.
                    save(&directory, &Toy::new(3), 30).unwrap();
                    assert_eq!(loaded(path).1.bits(), Toy::new(3).bits(), "{context}");
                });
            }
        }
    }

    #[test]
    fn an_error_at_any_operation_loses_nothing_and_the_next_save_works() {
        for step in [20, 10] {
            for_each_operation(step, |path, at| {
                let context = format!("step {step}, error at operation {at}");
                let (result, _) = run(path, step, Fault::Once, at, None);
                let directory =
                    CheckpointDirectory::open(path, with_files(FaultyFiles::good())).unwrap();
                check(path, step, &result, &context);
                save(&directory, &Toy::new(3), 30).unwrap();
                assert_eq!(loaded(path).1.bits(), Toy::new(3).bits(), "{context}");
            });
        }
    }

    #[test]
    fn a_disk_that_fills_up_at_any_operation_is_named_and_leaves_nothing_behind() {
        for_each_operation(20, |path, at| {
            let (result, _) = run(path, 20, Fault::DiskFull, at, None);
            check(path, 20, &result, &format!("full at operation {at}"));
            if let Err(error) = result {
                let message = error.to_string();
                assert!(matches!(error, CheckpointError::NoSpace { .. }), "{message}");
                assert!(message.contains("step-000000020"), "{message}");
                assert_eq!(leftovers(path), [] as [&str; 0]);
            }
        });
    }

    #[test]
    fn too_little_space_is_seen_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        save(
            &CheckpointDirectory::open(folder.path(), options(SHARD_BYTES, 1)).unwrap(),
            &Toy::new(1),
            10,
        )
        .unwrap();
        let files = FaultyFiles::with_free_bytes(1000);
        let directory =
            CheckpointDirectory::open(folder.path(), with_files(files.clone())).unwrap();
        let error = save(&directory, &Toy::new(2), 20).unwrap_err();
        let CheckpointError::NoSpace { path, needed, free, .. } = &error else { panic!("{error}") };
        assert!(path.ends_with("step-000000020") && *needed > 1000 && *free == Some(1000));
        let message = error.to_string();
        assert!(
            message.contains(&needed.to_string()) && message.contains("1000 bytes are free"),
            "{message}"
        );
        assert_eq!(files.operations(), 0, "nothing was written");
        assert_eq!(loaded(folder.path()).1.bits(), Toy::new(1).bits());
    }

    #[test]
    fn a_real_disk_that_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let Some(_mounted) = Mounted::tmpfs(folder.path()) else {
            println!("skipped, because a tmpfs cannot be mounted here (needs root)");
            return;
        };
        let path = folder.path().join("checkpoints");
        let mut large = Toy::new(2);
        large.layout.tables[0].rows = 60_000;
        let sizes: Vec<_> = large.layout.tensors().unwrap();
        for tensor in sizes {
            large.values.insert(tensor.id, vec![0.5; (tensor.rows * tensor.width) as usize]);
        }
        let directory = CheckpointDirectory::open(&path, options(SHARD_BYTES, 1)).unwrap();
        save(&directory, &Toy::new(1), 10).unwrap();
        let refused = save(&directory, &large, 20).unwrap_err();
        assert!(matches!(refused, CheckpointError::NoSpace { free: Some(_), .. }), "{refused}");
        drop(directory);
        // Where it is not known how much is free, the disk is found full while writing.
        let directory = CheckpointDirectory::open(&path, with_files(FaultyFiles::good())).unwrap();
        let refused = save(&directory, &large, 20).unwrap_err();
        assert!(matches!(refused, CheckpointError::NoSpace { free: None, .. }), "{refused}");
        assert_eq!(leftovers(&path), [] as [&str; 0]);
        assert_eq!(loaded(&path).1.bits(), Toy::new(1).bits());
        // What was written aside is gone, so a checkpoint that fits can still be saved.
        save(&directory, &Toy::new(3), 30).unwrap();
        assert_eq!(loaded(&path).1.bits(), Toy::new(3).bits());
    }

    /// A mounted tmpfs of 1 MiB, unmounted when dropped.
    struct Mounted<'a>(&'a Path);

    impl<'a> Mounted<'a> {
        fn tmpfs(path: &'a Path) -> Option<Self> {
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(path);
            let output = mount.output().ok()?;
            output.status.success().then_some(Self(path))
        }
    }

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0).status();
        }
    }
}
