//! What a folder of checkpoints may hold besides them, and what is removed from it.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::{Toy, options, snapshot};
    use headlong::state::checkpoint::{
        Checkpoint, CheckpointDirectory, CheckpointError, Cleaned, DirectoryOptions, FileWriter,
        Files, MANIFEST_FILE, Manifest, SystemFiles, newest, step_name, steps,
    };
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Condvar, Mutex};

    fn opened(folder: &Path, keep: usize) -> CheckpointDirectory {
        CheckpointDirectory::open(folder, options(400, keep)).unwrap()
    }

    /// A folder of one checkpoint, of step 3, and that checkpoint's.
    fn saved() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = opened(folder.path(), 2).save(&snapshot(&Toy::new(1), 3)).unwrap().path;
        (folder, path)
    }

    #[test]
    fn what_is_no_checkpoint_of_its_name_is_neither_counted_nor_removed() {
        let (folder, good) = saved();
        let path = |name: &str| folder.path().join(name);
        let theirs =
            ["step-000000002/thesis.doc", "step-000000001/manifest.json", "step-000000003/sub/x"];
        for file in theirs.map(path) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "my only copy").unwrap();
        }
        // A former run's checkpoint under a later step's name, and an empty folder.
        fs::create_dir(path("step-000000901")).unwrap();
        for name in fs::read_dir(&good).unwrap().map(|entry| entry.unwrap().file_name()) {
            if good.join(&name).is_file() {
                fs::copy(good.join(&name), path("step-000000901").join(&name)).unwrap();
            }
        }
        fs::create_dir(path("step-999999999")).unwrap();
        let directory = opened(folder.path(), 1);
        for step in [10, 11, 12] {
            let saved = directory.save(&snapshot(&Toy::new(1), step)).unwrap().path;
            assert!(directory.finish().is_empty() && Checkpoint::open(&saved).is_ok());
        }
        let names = |step: u64| step_name(step);
        assert!(
            !path(&names(10)).exists() && !path(&names(11)).exists() && path(&names(12)).exists()
        );
        assert!(
            path("step-999999999").exists() && path("step-000000901").join(MANIFEST_FILE).exists()
        );
        for file in theirs.map(path) {
            assert_eq!(fs::read_to_string(&file).unwrap(), "my only copy");
        }
    }

    #[test]
    fn what_somebody_else_keeps_there_stays() {
        let (folder, good) = saved();
        let path = |name: &str| folder.path().join(name);
        let theirs = [
            ".tmp-thesis/ch1",
            ".old-photos/a",
            ".tmp-step-000000007/ch1",
            ".tmp-step-8/manifest.json",
        ];
        for file in
            theirs.map(path).iter().chain([&path(".tmp-step-000000009/inner/manifest.json")])
        {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "my only copy").unwrap();
        }
        // Left by a crash: while one was written, removed, made, replaced.
        for (name, file) in [
            (".tmp-step-000000010", Some("dense.safetensors")),
            (".tmp-step-000000011", Some("config.toml")),
            (".tmp-step-000000012", None),
            (".old-step-000000003", Some("ids.bin")),
        ] {
            fs::create_dir(path(name)).unwrap();
            if let Some(file) = file {
                fs::write(path(name).join(file), "").unwrap();
            }
        }
        fs::rename(&good, path(".old-step-000000004")).unwrap();
        fs::create_dir(&good).unwrap();

        let directory = opened(folder.path(), 2);
        let removed = [
            ".old-step-000000003",
            ".tmp-step-000000010",
            ".tmp-step-000000011",
            ".tmp-step-000000012",
        ];
        let mut expected = removed.map(|name| Cleaned::Removed(path(name))).to_vec();
        expected.insert(1, Cleaned::BroughtBack(path("step-000000004")));
        assert_eq!(directory.cleaned(), expected);
        assert!(directory.cleaned()[0].to_string().contains("removed /"));
        for file in theirs.map(path) {
            assert_eq!(fs::read_to_string(&file).unwrap(), "my only copy");
        }
        // A save that needs such a name is refused, and touches nothing.
        let refused = directory.save(&snapshot(&Toy::new(1), 7)).unwrap_err();
        assert!(matches!(refused, CheckpointError::InTheWay { .. }), "{refused}");
        assert!(path(".tmp-step-000000007/ch1").exists());
    }

    #[test]
    fn a_checkpoint_under_the_name_of_another_step_is_refused() {
        let (folder, good) = saved();
        fs::rename(&good, folder.path().join(step_name(999))).unwrap();
        let message = newest(folder.path()).unwrap_err().to_string();
        assert!(
            message.contains("step-000000999 is not a checkpoint: it is one of step 3"),
            "{message}"
        );
        assert!(message.contains("give it the name step-000000003"), "{message}");
        // Any other name is its owner's.
        let best = folder.path().join("best");
        fs::rename(folder.path().join(step_name(999)), &best).unwrap();
        Checkpoint::open(&best).unwrap();
        fs::create_dir(folder.path().join("step-5")).unwrap();
        let directory = opened(folder.path(), 1);
        for step in [6, 7] {
            assert_eq!(
                directory.save(&snapshot(&Toy::new(1), step)).unwrap().warnings,
                [] as [&str; 0]
            );
        }
        let found: Vec<u64> =
            steps(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(found, [7]);
    }

    #[test]
    fn a_file_that_is_no_file_is_not_waited_for() {
        let (_folder, good) = saved();
        for name in ["dense.safetensors", MANIFEST_FILE] {
            let file = good.join(name);
            let bytes = fs::read(&file).unwrap();
            fs::remove_file(&file).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
            let message = headlong::error::chain(&Checkpoint::open(&good).unwrap_err());
            assert!(message.contains(name) && message.contains("no regular file"), "{message}");
            fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
            assert!(Checkpoint::open(&good).is_err());
            fs::remove_file(&file).unwrap();
            fs::write(&file, bytes).unwrap();
        }
        Checkpoint::open(&good).unwrap();
    }

    #[test]
    fn a_manifest_without_its_last_line_end_is_told_from_a_wrong_checksum() {
        let (_folder, good) = saved();
        let bytes = fs::read(good.join(MANIFEST_FILE)).unwrap();
        let cut = Manifest::parse(Path::new("manifest.json"), &bytes[..bytes.len() - 1]);
        let message = cut.unwrap_err().to_string();
        assert!(
            message.contains("its last line end is missing") && !message.contains("checksum"),
            "{message}"
        );
    }

    #[test]
    fn a_folder_that_was_replaced_is_not_written_to() {
        let (folder, _) = saved();
        let (path, moved) = (folder.path().join("inner"), folder.path().join("moved"));
        let directory = opened(&path, 2);
        fs::rename(&path, &moved).unwrap();
        let other = opened(&path, 2);
        let refused = directory.save(&snapshot(&Toy::new(1), 5)).unwrap_err();
        assert!(matches!(refused, CheckpointError::Replaced { .. }), "{refused}");
        other.save(&snapshot(&Toy::new(2), 5)).unwrap();
        drop(other);
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        directory.save(&snapshot(&Toy::new(1), 5)).unwrap();
    }

    /// A disk whose removals wait for a gate, and then fail where they should.
    #[derive(Clone, Default)]
    struct SlowDisk {
        /// Whether removals may go on, and whether they fail.
        gate: Arc<(Mutex<(bool, bool)>, Condvar)>,
    }

    impl SlowDisk {
        fn set(&self, is_open: bool, fails: bool) {
            *self.gate.0.lock().unwrap() = (is_open, fails);
            self.gate.1.notify_all();
        }
    }

    impl Files for SlowDisk {
        fn create_dir(&self, path: &Path) -> io::Result<()> {
            SystemFiles.create_dir(path)
        }

        fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
            SystemFiles.create_file(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            SystemFiles.rename(from, to)
        }

        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            SystemFiles.sync_dir(path)
        }

        fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
            let gate = self.gate.0.lock().unwrap();
            let (_, fails) = *self.gate.1.wait_while(gate, |(is_open, _)| !*is_open).unwrap();
            if fails {
                Err(io::Error::other("the disk is gone"))
            } else {
                SystemFiles.remove_dir_all(path)
            }
        }

        fn free_bytes(&self, _path: &Path) -> Option<u64> {
            None
        }
    }

    #[test]
    fn old_checkpoints_are_removed_while_training_continues() {
        let folder = tempfile::tempdir().unwrap();
        let disk = SlowDisk::default();
        let options = DirectoryOptions { files: Arc::new(disk.clone()), ..options(400, 1) };
        let directory = CheckpointDirectory::open(folder.path(), options).unwrap();
        let toy = Toy::new(1);
        // Saves return although no removal does; the old ones have lost their names at once.
        for step in 1..=4 {
            let report = directory.save(&snapshot(&toy, step)).unwrap();
            let before = (step > 1).then(|| folder.path().join(step_name(step - 1)));
            assert_eq!(report.removed, before.into_iter().collect::<Vec<_>>());
        }
        let aside = |step: u64| folder.path().join(format!(".tmp-{}", step_name(step)));
        assert!((1..=3).all(|step| aside(step).exists()));
        assert_eq!(steps(folder.path()).unwrap().len(), 1);
        disk.set(true, false);
        assert_eq!(directory.finish(), [] as [&str; 0]);
        assert!(!(1..=3).any(|step| aside(step).exists()));
        // One that cannot be removed is reported, and goes at the next start.
        disk.set(true, true);
        directory.save(&snapshot(&toy, 5)).unwrap();
        let warnings = directory.finish();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains(".tmp-step-000000004: the disk is gone"), "{warnings:?}");
        assert_eq!(directory.finish(), [] as [&str; 0], "once");
        drop(directory);
        assert_eq!(opened(folder.path(), 1).cleaned(), [Cleaned::Removed(aside(4))]);
    }

    #[test]
    fn what_is_not_removed_yet_is_waited_for_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let disk = SlowDisk::default();
        let options = DirectoryOptions { files: Arc::new(disk.clone()), ..options(400, 1) };
        let directory = CheckpointDirectory::open(folder.path(), options).unwrap();
        for step in [1, 2] {
            directory.save(&snapshot(&Toy::new(1), step)).unwrap();
        }
        let opener = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            disk.set(true, false);
        });
        drop(directory);
        assert!(!folder.path().join(".tmp-step-000000001").exists());
        opener.join().unwrap();
    }
}
