//! The few file operations of which saving consists, behind a trait, so that a test can fail each
//! of them in turn.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What saving asks of a file system. [`SystemFiles`] is the real one.
pub trait Files: Send + Sync {
    /// Makes a directory that does not exist yet.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes a file that does not exist yet.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>>;

    /// Renames a directory. The new name must not exist.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Flushes the names inside a directory to the disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Bytes that an ordinary user may still write below `path`; `None` where the system does not
    /// say.
    fn free_bytes(&self, path: &Path) -> Option<u64>;
}

pub trait FileWriter: Write {
    /// Flushes everything written to the disk.
    fn sync(&mut self) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        let disk = rustix::fs::statvfs(path).ok()?;
        disk.f_bavail.checked_mul(disk.f_frsize)
    }
}

impl FileWriter for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// What tells a directory from others, of other machines, too: no two of them change in the same
/// nanosecond under the same number.
pub(super) fn mark(directory: &Path) -> [u64; 3] {
    fs::metadata(directory)
        .map_or([0; 3], |seen| [seen.ino(), seen.ctime() as u64, seen.ctime_nsec() as u64])
}
