//! Locks between processes: of a name that is being written, and of a folder.
//!
//! Both are `flock` locks, which the system releases when a process ends, however it ends. Some
//! network file systems have none; there two writers are the user's care.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::busy;

const FOLDER_LOCK: &str = ".lock";
/// Between two looks at a lock that another process has.
const PAUSE: Duration = Duration::from_millis(50);
/// No file name is longer.
const MOST_NAME_BYTES: u64 = 255;

/// How often a file that has lost its name is opened again. Without a limit, this would not end on
/// a file system whose inode numbers change.
pub(super) const MOST_TRIES: usize = 100;

/// Opens a file to lock, never through a link, which somebody may have planted.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o666);
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            io::Error::other(format!("{} is a symbolic link: remove it", path.display()))
        }
        _ => io::Error::new(error.kind(), format!("its lock {}: {error}", path.display())),
    })
}

/// Whether the lock is held now; an error of the system says that there are no locks here.
fn taken(result: Result<(), TryLockError>) -> Option<bool> {
    match result {
        Ok(()) => Some(true),
        Err(TryLockError::WouldBlock) => Some(false),
        Err(TryLockError::Error(_)) => None,
    }
}

/// Whether `path` names the open file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(place), fs::symlink_metadata(path).map(place));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// The right to write a name: the locked file `.NAME.lock`, which holds the name of the temporary
/// file and goes with the right. One that a crash has left says what else the crash has left.
#[derive(Debug)]
pub(super) struct NameLock {
    path: PathBuf,
    file: File,
}

impl NameLock {
    /// Takes the lock, and removes the temporary file of a process that ended before it was done.
    /// Nothing where the file system has no locks.
    ///
    /// # Errors
    /// Another process has it; the file cannot be made; a file of that name is no such lock.
    pub fn take(path: &Path, temporary_prefix: &OsStr) -> io::Result<Option<Self>> {
        let mut tries = 0..MOST_TRIES;
        loop {
            let file = open_to_lock(path)?;
            match taken(file.try_lock()) {
                Some(false) => return Err(busy()),
                // The former holder may have removed the file after it was opened here.
                Some(true) if !is_at(&file, path) && tries.next().is_some() => {}
                // Every time: others take and release the name again and again.
                Some(true) if file.metadata()?.nlink() == 0 => return Err(busy()),
                Some(true) => {
                    let left_over = left_over(&file, path, temporary_prefix)?;
                    let lock = Self { path: path.to_owned(), file };
                    if let Some(left) =
                        left_over.filter(|left| is_regular(fs::symlink_metadata(left)))
                    {
                        let _ = fs::remove_file(left);
                    }
                    return Ok(Some(lock));
                }
                None => {
                    if left_over(&file, path, temporary_prefix).is_ok() {
                        let _ = fs::remove_file(path);
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Records the temporary file, for the next process after a crash. Best effort: without it the
    /// file stays.
    pub fn remember(&mut self, temporary: &OsStr) {
        let _ = self.file.set_len(0).and_then(|()| self.file.write_all_at(temporary.as_bytes(), 0));
    }
}

/// The temporary file that the last holder of the lock `file` has left, as the lock says.
///
/// # Errors
/// It is no lock of ours: it has another content, or another name, too. It is left as it is.
fn left_over(file: &File, path: &Path, prefix: &OsStr) -> io::Result<Option<PathBuf>> {
    let mut name = Vec::new();
    let found = file.metadata()?;
    if found.is_file() && found.nlink() <= 1 {
        let mut content = file.take(MOST_NAME_BYTES + 1);
        content.read_to_end(&mut name)?;
        let is_temporary = name.starts_with(prefix.as_bytes()) && !name.contains(&b'/');
        match name.is_empty() {
            true => return Ok(None),
            false if is_temporary && name.len() as u64 <= MOST_NAME_BYTES => {
                return Ok(Some(path.with_file_name(std::ffi::OsString::from_vec(name))));
            }
            false => {}
        }
    }
    Err(io::Error::other(format!(
        "{} is in the way, and no lock of ours: move it away",
        path.display()
    )))
}

fn is_regular(metadata: io::Result<fs::Metadata>) -> bool {
    metadata.is_ok_and(|found| found.is_file())
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // Removed while it is locked: who has opened it in the meantime sees that it is gone.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
        // A process that this one has just started may still have the file open.
        let _ = self.file.unlock();
    }
}

/// A lock on what lies in a folder: many may read, or one may write. It is on the file `.lock`,
/// which stays.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    /// None where the file cannot be made and is not there: no process can write there, so none has
    /// to be kept out.
    file: Option<File>,
}

impl FolderLock {
    /// Opens the lock of a folder that is there, without taking it.
    ///
    /// # Errors
    /// The lock's file cannot be made in a folder that can be written.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FOLDER_LOCK);
        let file = match open_to_lock(&path) {
            Ok(file) => Some(file),
            Err(error) => match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                    super::open_regular(&path).ok()
                }
                _ => return Err(error),
            },
        };
        Ok(Self { path, file })
    }

    /// Whether the lock to write could be taken.
    pub fn try_exclusive(&self) -> bool {
        self.file.as_ref().is_none_or(|file| taken(file.try_lock()).unwrap_or(true))
    }

    /// Whether the lock to read could be taken. A lock to write becomes one to read.
    pub fn try_shared(&self) -> bool {
        self.file.as_ref().is_none_or(|file| taken(file.try_lock_shared()).unwrap_or(true))
    }

    /// Takes the lock to write within `patience`. A program started by the former holder keeps its
    /// lock for the moment until it runs.
    pub fn exclusive_within(&self, patience: Duration) -> bool {
        let mut tries = patience.as_millis() / PAUSE.as_millis();
        while !self.try_exclusive() {
            if tries == 0 {
                return false;
            }
            tries -= 1;
            thread::sleep(PAUSE);
        }
        true
    }

    /// Waits as long as another process writes.
    pub fn wait_for_writer(&self) {
        while !self.try_shared() {
            thread::sleep(PAUSE);
        }
    }

    /// Gives the lock up.
    pub fn release(&self) {
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }

    /// Whether the locked file is the one in the folder: not where the folder was replaced, or the
    /// file removed.
    pub fn is_in_place(&self) -> bool {
        self.file.as_ref().is_none_or(|file| is_at(file, &self.path))
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A process that this one has just started may still have the file open.
        self.release();
    }
}

#[cfg(test)]
mod tests;
