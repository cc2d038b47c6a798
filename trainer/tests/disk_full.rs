//! A disk that is full while a checkpoint is saved: a clear error, and everything that was saved
//! before still there.

#![cfg(test)]

use crate::run_support::{Place, Run, names, steps};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system of its own, gone with the value.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts it; `None`, with the reason printed, where this is not allowed.
    fn mount(path: PathBuf, options: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { path }),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr);
                println!("skipped, because a tmpfs cannot be mounted here: {}", reason.trim());
                None
            }
            Err(error) => {
                println!("skipped, because `mount` cannot be run: {error}");
                None
            }
        }
    }

    fn change(&self, options: &str) {
        let options = format!("remount,{options}");
        let done = Command::new("mount").args(["-o", &options]).arg(&self.path).status().unwrap();
        assert!(done.success(), "mount -o {options}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// `eval` of the newest checkpoint must work, and nothing may lie next to the checkpoints.
fn intact(place: &Place, checkpoints: &Path, expected: &[u64]) {
    assert_eq!(steps(checkpoints), expected);
    assert!(names(checkpoints).iter().all(|name| name == ".lock" || name.starts_with("step-")));
    let eval = Run::new("eval").path("--checkpoint", checkpoints).path("--data", &place.valid);
    eval.with(&["--threads", "1"]).succeeds();
}

/// Two checkpoints of 1.7 MB fit, a third does not.
#[test]
fn no_space_for_another_checkpoint() {
    let place = Place::new("rows.txt");
    let Some(disk) = SmallDisk::mount(place.path("disk"), "size=4m") else { return };
    let checkpoints = disk.path.join("checkpoints");
    let train = place.train();
    let saving = train.clone().path("--checkpoint-dir", &checkpoints).with(&[
        "--save-every",
        "5",
        "--keep",
        "3",
    ]);
    saving.fails(1, &["no space to save the checkpoint", "step-000000015", "--keep"]);
    intact(&place, &checkpoints, &[5, 10]);
    // Fewer to be kept: those beyond that go before the save. The newest stays until another one is
    // there.
    let fewer = train.clone().path("--checkpoint-dir", &checkpoints).with(&[
        "--save-every",
        "5",
        "--keep",
        "1",
    ]);
    assert_eq!(fewer.with(&["--resume", "--steps", "15"]).succeeds().digest(), {
        train.clone().with(&["--steps", "15"]).succeeds().digest()
    });
    intact(&place, &checkpoints, &[15]);
    disk.change("size=32m");
    assert_eq!(saving.with(&["--resume"]).succeeds().digest(), train.succeeds().digest());
}

/// The bytes would fit, but the system refuses in the middle of the save: no more files can be
/// made.
#[test]
fn no_space_in_the_middle_of_a_save() {
    let place = Place::new("rows.txt");
    let Some(disk) = SmallDisk::mount(place.path("disk"), "size=32m") else { return };
    let checkpoints = disk.path.join("checkpoints");
    let train = place.train();
    let saving = train.clone().path("--checkpoint-dir", &checkpoints);
    saving.clone().with(&["--steps", "5"]).succeeds();
    let files = names(&checkpoints.join("step-000000005")).len();
    // The root, `checkpoints`, its lock, one checkpoint; then room for a folder and one file of the
    // next one.
    disk.change(&format!("nr_inodes={}", 3 + 1 + files + 2));
    let longer = saving.with(&["--steps", "10", "--resume"]);
    longer.fails(1, &["no space to save the checkpoint", "step-000000010"]);
    intact(&place, &checkpoints, &[5]);
    disk.change("nr_inodes=1000");
    assert_eq!(longer.succeeds().digest(), train.with(&["--steps", "10"]).succeeds().digest());
}

/// Needs no rights: no file may grow beyond a limit, and the system says so in the middle of a
/// write. A file that grows beyond the shell's limit is an error, not a signal that ends the run
/// without a word.
#[test]
fn a_write_that_fails() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let train = place.train();
    let saving = train.clone().path("--checkpoint-dir", &checkpoints);
    saving.clone().with(&["--steps", "5"]).succeeds();
    let longer = saving.with(&["--steps", "10", "--resume"]);
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 600; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_headlong")])
        .args(longer.arguments())
        .output()
        .unwrap();
    let message = String::from_utf8(limited.stderr).unwrap();
    assert_eq!(limited.status.code(), Some(1), "{message}");
    assert!(message.contains("the checkpoint was not saved: cannot write"), "{message}");
    assert!(message.contains("File too large"), "{message}");
    intact(&place, &checkpoints, &[5]);
    assert_eq!(longer.succeeds().digest(), train.with(&["--steps", "10"]).succeeds().digest());
}

#[test]
fn a_log_that_cannot_be_written() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("skipped, because {} is absent", full.display());
        return;
    }
    let place = Place::new("rows.txt");
    place.train().path("--log-json", full).fails(1, &["cannot write /dev/full", "No space left"]);
}

#[test]
fn an_export_that_cannot_be_written_names_its_file() {
    let place = Place::new("rows.txt");
    let (checkpoints, output) = (place.path("checkpoints"), place.path("model.safetensors"));
    place.train().path("--checkpoint-dir", &checkpoints).with(&["--steps", "1"]).succeeds();
    let export = Run::new("checkpoint").with(&["export", checkpoints.to_str().unwrap()]);
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_headlong")])
        .args(export.path("--output", &output).arguments())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write") && text.contains("model.safetensors"), "{text}");
    assert!(text.contains("File too large") && !text.contains("put into the model"), "{text}");
    assert!(!output.exists());
}
