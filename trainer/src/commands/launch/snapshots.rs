//! The folder in memory that `headlong launch --elastic` holds for the snapshots of its job: it
//! outlives the ranks, not the launcher.

use crate::error::{Error, Result};
use crate::system::elastic::SNAPSHOT_DIR;
use headlong_device::files::FolderLock;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
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
        Self::make_in(Path::new(MEMORY)).map_err(Error::failed(format!(
            "--elastic: no folder for snapshots can be made in {MEMORY}"
        )))
    }

    fn make_in(memory: &Path) -> io::Result<Self> {
        remove_left(memory);
        loop {
            let mut random = [0_u8; 8];
            getrandom::fill(&mut random).map_err(io::Error::from)?;
            // The same process number may be in use in another container.
            let (process, random) = (std::process::id(), u64::from_ne_bytes(random));
            let path = memory.join(format!("{PREFIX}{process}-{random:016x}"));
            DirBuilder::new().mode(0o700).create(&path)?;
            let lock = FolderLock::open(&path);
            // Another launcher may have taken it for one that is left, and removed it.
            if let Some(lock) = lock.ok().filter(|lock| lock.try_exclusive() && lock.is_in_place())
            {
                return Ok(Self { path, _lock: lock });
            }
        }
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

/// Removes what launchers of this user have left that were killed: no one holds its lock.
fn remove_left(memory: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        let path = entry.path();
        if is_named && is_own && FolderLock::open(&path).is_ok_and(|lock| lock.try_exclusive()) {
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
        let first = Folder::make_in(memory.path()).unwrap();
        let left = memory.path().join(format!("{PREFIX}1-0"));
        let others = memory.path().join("of-another-program");
        for folder in [&left, &others] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "bytes").unwrap();
        }
        let second = Folder::make_in(memory.path()).unwrap();
        let there = |folders: [&Path; 4]| folders.map(Path::exists);
        let (one, two) = (first.path.clone(), second.path.clone());
        assert_eq!(there([&one, &two, &left, &others]), [true, true, false, true]);
        drop((first, second));
        assert_eq!(there([&one, &two, &left, &others]), [false, false, false, true]);
    }
}
