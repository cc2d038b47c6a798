//! The folder in memory that `headlong launch --elastic` holds for the snapshots of its job: it
//! outlives the ranks, not the launcher.

use crate::error::{Error, Result};
use crate::system::elastic::SNAPSHOT_DIR;
use headlong_device::files::FolderLock;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Where the system has a file system in memory.
const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "headlong-snapshots-";

/// Removed when this is dropped; one of a launcher that was killed, by the next launcher.
pub struct Folder {
    path: PathBuf,
    /// Held as long as the launcher lives.
    _lock: FolderLock,
}

impl Folder {
    /// Makes a folder that this user alone can read.
    ///
    /// # Errors
    /// There is no memory to be had as files.
    pub fn new() -> Result<Self> {
        remove_left(Path::new(MEMORY));
        let path = Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id()));
        let failed = || {
            let path = path.display();
            Error::failed(format!("--elastic: the folder of snapshots, {path}, cannot be made"))
        };
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(failed())?;
        let lock = FolderLock::open(&path).map_err(failed())?;
        lock.try_exclusive();
        Ok(Self { path, _lock: lock })
    }

    /// What tells the ranks of it. They have a folder inside, with a lock of its own.
    pub fn variable(&self) -> (&'static str, OsString) {
        (SNAPSHOT_DIR, self.path.join("snapshots").into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is removed by the next launcher.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what launchers of this user have left that were killed.
fn remove_left(memory: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        let Some(process) = process.filter(|_| is_own) else { continue };
        // One that has just been made is not locked yet; a process of that number may also live in
        // another container, which shares the memory: then the lock is held.
        let is_gone = !Path::new("/proc").join(process.to_string()).exists();
        let path = entry.path();
        if is_gone && FolderLock::open(&path).is_ok_and(|lock| lock.try_exclusive()) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_launcher_has_left_goes() {
        let memory = tempfile::tempdir().unwrap();
        let make = |name: String| {
            let path = memory.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "bytes").unwrap();
            path
        };
        // No process has such a number: the system's largest is 2^22.
        let gone = u32::MAX - 1;
        let [left, others, own] = [
            make(format!("{PREFIX}{gone}")),
            make(format!("{PREFIX}of-another")),
            make(format!("{PREFIX}{}", std::process::id())),
        ];
        let held = make(format!("{PREFIX}{}", gone - 1));
        let lock = FolderLock::open(&held).unwrap();
        assert!(lock.try_exclusive());
        remove_left(memory.path());
        assert_eq!([left, others, own, held].map(|path| path.exists()), [false, true, true, true]);
    }
}
