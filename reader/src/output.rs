//! Files that are whole or not there, with the errors of this crate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use headlong_device::files::OutputFile;

use crate::error::{ReaderError, Result};

/// Starts a file.
pub(crate) fn create(path: &Path) -> Result<OutputFile> {
    OutputFile::create(path).map_err(write_error(path))
}

/// Gives a file its name.
pub(crate) fn commit(file: OutputFile) -> Result<()> {
    let path = file.path().to_owned();
    file.commit().map_err(write_error(&path))
}

/// Gives the files of one set their names, and says them. The last one of a former set goes first,
/// with those that would be read with the new ones (`stale`): whatever happens meanwhile, no file
/// of one set is read with those of another. What can be known to fail fails before that.
pub(crate) fn commit_all(files: Vec<OutputFile>, stale: &[PathBuf]) -> Result<Vec<PathBuf>> {
    for file in files.iter().filter(|file| !file.is_direct()) {
        file.file().sync_all().map_err(write_error(file.path()))?;
    }
    if let [_, .., last] = &files[..]
        && !last.is_direct()
    {
        remove_file(last.path())?;
    }
    stale.iter().try_for_each(|path| remove_file(path))?;
    let paths = files.iter().map(|file| file.path().to_owned()).collect();
    files.into_iter().try_for_each(commit)?;
    Ok(paths)
}

/// Starts a file that other processes write too, each for a moment only.
pub(crate) fn create_in_turn(path: &Path) -> Result<OutputFile> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let since = Instant::now();
    loop {
        match OutputFile::create(path) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && since.elapsed() < PATIENCE =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            other => return other.map_err(write_error(path)),
        }
    }
}

/// Writes a file; what `body` has written of it goes where it fails.
pub(crate) fn write_file(
    path: &Path,
    body: impl FnOnce(&mut OutputFile) -> io::Result<()>,
) -> Result<()> {
    let mut file = create(path)?;
    body(&mut file).map_err(write_error(path))?;
    commit(file)
}

/// An error of writing `path`.
pub(crate) fn write_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ReaderError {
    let file = path.into();
    move |source| ReaderError::Write { file, source }
}

pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(write_error(path)(source)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write_file(&path, |file| file.write_all(b"old")).unwrap();
        let error = write_file(&path, |file| {
            file.write_all(b"new")?;
            Err(io::Error::other("disk full"))
        });
        assert!(error.unwrap_err().to_string().contains("a.txt: disk full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_set_that_cannot_be_completed_lacks_its_last_file() {
        let folder = tempfile::tempdir().unwrap();
        let [first, last, stale, other] = ["a", "b", "c", "d"].map(|name| folder.path().join(name));
        [&first, &stale, &other].into_iter().for_each(|path| fs::write(path, "old").unwrap());
        std::os::unix::fs::symlink(&other, &last).unwrap();
        let files = vec![create(&first).unwrap(), create(&last).unwrap()];
        // Nothing can have the name of a folder.
        fs::remove_file(&first).unwrap();
        fs::create_dir(&first).unwrap();
        let message = commit_all(files, std::slice::from_ref(&stale)).unwrap_err().to_string();
        assert!(message.contains("/a: "), "{message}");
        assert!(fs::symlink_metadata(&last).is_err() && !stale.exists());
        assert_eq!(fs::read(&other).unwrap(), b"old");
    }
}
