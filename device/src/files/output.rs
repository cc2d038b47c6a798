//! A file that appears under its name complete or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::lock::NameLock;

/// What the name of a temporary file begins with: `.tmp-NAME-` and random letters.
const TEMPORARY: &str = ".tmp-";
/// Bytes of a longer name that the temporary file's name keeps: file systems allow 255 with what is
/// added.
const KEPT_NAME_BYTES: usize = 200;
/// How long a program may take to open a named pipe for reading.
const PATIENCE: Duration = Duration::from_secs(8);
/// How often that is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// A file that a command writes.
///
/// It is written as `.tmp-NAME-…` in the same folder, under a name that cannot be predicted;
/// [`OutputFile::commit`] flushes it to the disk and renames it. Dropped before that, it is
/// removed. A second process that starts the same name meanwhile is refused, where the file system
/// has locks. If `NAME` is a symbolic link, the link is replaced; its target is not touched.
///
/// What is no regular file (a pipe, a device), and what the process has open already
/// (`/dev/stdout`, `/dev/fd/N`), is written straight.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Written straight.
    Direct(File),
    /// Renamed at the end. The lock comes last: the temporary file goes before it is given up.
    Aside(NamedTempFile, Option<NameLock>),
}

impl OutputFile {
    /// Starts the file `path`, locked by this process.
    ///
    /// # Errors
    /// Another process is writing it ([`io::ErrorKind::ResourceBusy`]); the folder does not exist
    /// or cannot be written; `path` is a directory or has no file name.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::start(path, true)
    }

    /// Starts a file that several processes may write at once, because all of them write the same:
    /// the last one's stays.
    pub fn create_shared(path: &Path) -> io::Result<Self> {
        Self::start(path, false)
    }

    /// Writes all of a file.
    pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    }

    fn start(path: &Path, is_locked: bool) -> io::Result<Self> {
        if let Some(file) = open_directly(path)? {
            return Ok(Self { path: path.to_owned(), target: Target::Direct(file) });
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        let folder = folder_of(path);
        if !folder.exists() {
            let message = format!("there is no folder {}", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        let prefix = temporary_prefix(name);
        let mut lock =
            if is_locked { NameLock::take(&lock_path(path, name), &prefix)? } else { None };
        let mut builder = tempfile::Builder::new();
        let random = builder.prefix(&prefix).rand_bytes(8);
        // The mode that a plain `open` would give: what the process's umask leaves of it.
        let file = random.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        if let Some(replaced) = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file) {
            let mode = replaced.permissions().mode() & 0o777;
            file.as_file().set_permissions(Permissions::from_mode(mode))?;
        }
        if let (Some(lock), Some(name)) = (&mut lock, file.path().file_name()) {
            lock.remember(name);
        }
        Ok(Self { path: path.to_owned(), target: Target::Aside(file, lock) })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        match &self.target {
            Target::Direct(file) => file,
            Target::Aside(file, _) => file.as_file(),
        }
    }

    /// Whether it is written straight: a pipe, a device, a file that the process has open.
    pub fn is_direct(&self) -> bool {
        matches!(self.target, Target::Direct(_))
    }

    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts bytes at a place of the file.
    ///
    /// # Errors
    /// Errors of the system; a pipe, which has no positions.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let no_places =
            || io::Error::other("its format is not written front to back: name a file of its own");
        let is_shared = match &self.target {
            // Another program's position and what it has written are not known.
            Target::Direct(file) => file.metadata()?.is_file(),
            Target::Aside(..) => false,
        };
        let written =
            if is_shared { Err(no_places()) } else { self.file().write_all_at(bytes, offset) };
        written.map_err(|error| {
            if error.kind() == io::ErrorKind::NotSeekable { no_places() } else { error }
        })
    }

    /// Flushes the file to the disk and gives it its name, in place of what had it.
    ///
    /// # Errors
    /// Errors of the system; what had the name is then as it was.
    pub fn commit(self) -> io::Result<()> {
        self.commit_open().map(drop)
    }

    /// As [`OutputFile::commit`]; the file stays open.
    pub fn commit_open(self) -> io::Result<File> {
        let Self { path, target } = self;
        match target {
            Target::Direct(file) => Ok(file),
            Target::Aside(temporary, lock) => {
                temporary.as_file().sync_all()?;
                let file = temporary.persist(&path).map_err(|error| error.error)?;
                // The rename itself, through a power cut.
                File::open(folder_of(&path))?.sync_all()?;
                drop(lock);
                Ok(file)
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// The folder in which `path` lies.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn shortened(name: &OsStr) -> &[u8] {
    let bytes = name.as_bytes();
    &bytes[..bytes.len().min(KEPT_NAME_BYTES)]
}

fn temporary_prefix(name: &OsStr) -> OsString {
    OsString::from_vec([TEMPORARY.as_bytes(), shortened(name), b"-"].concat())
}

fn lock_path(path: &Path, name: &OsStr) -> PathBuf {
    path.with_file_name(OsString::from_vec([b".", shortened(name), b".lock"].concat()))
}

/// Opens what is written straight; nothing where a regular file is to be made or replaced.
pub(super) fn open_directly(path: &Path) -> io::Result<Option<File>> {
    if let Some(descriptor) = own_descriptor(path) {
        return duplicate(descriptor).map(Some);
    }
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(None),
        Ok(found) if found.is_dir() => Err(io::Error::other("it is a directory")),
        Ok(_) => {
            let file = open_waiting(path)?;
            // What has come in its place since must not be overwritten.
            if file.metadata()?.is_file() {
                Err(io::Error::other("it became a file while it was opened"))
            } else {
                Ok(Some(file))
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a pipe or a device. A named pipe without a reader is waited for, but not without end.
fn open_waiting(path: &Path) -> io::Result<File> {
    let since = Instant::now();
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let file = loop {
        match options.open(path) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            Err(_) if since.elapsed() < PATIENCE => sleep(PAUSE),
            Err(_) => {
                let reason = "no program has opened this named pipe for reading: start that first";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            Ok(file) => break file,
        }
    };
    // SAFETY: the calls take numbers and no memory; the descriptor is open as long as `file` lives.
    let set = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// The number of the open file that `path` stands for: `/dev/stdout`, `/dev/fd/N`,
/// `/proc/self/fd/N`, or a link to one.
pub(super) fn own_descriptor(path: &Path) -> Option<i32> {
    let mut path = path.to_owned();
    // Links may go in circles; the system follows forty.
    for _ in 0..40 {
        for folder in ["/proc/self/fd", "/dev/fd"] {
            if let Ok(number) = path.strip_prefix(folder) {
                return number.to_str()?.parse().ok().filter(|number| *number >= 0);
            }
        }
        let target = fs::read_link(&path).ok()?;
        path = folder_of(&path).join(target);
    }
    None
}

/// Whether `path` is another name of standard output, such as `/dev/stdout`.
pub fn is_stdout(path: &Path) -> bool {
    own_descriptor(path) == Some(libc::STDOUT_FILENO)
}

/// Another handle of an open file: with its position, and its way of appending.
fn duplicate(descriptor: i32) -> io::Result<File> {
    // SAFETY: the call takes numbers and no memory; a number that is not open is refused with
    // `EBADF`.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was opened by the call above, and has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

#[cfg(test)]
mod tests;
