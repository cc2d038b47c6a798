//! Files that are whole or not there: written aside, synced, renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{ReaderError, Result};

/// Writes a file under a temporary name in the same folder, syncs it and renames it.
///
/// # Errors
/// [`ReaderError::Write`]; the temporary file is removed.
pub(crate) fn write_file_aside(path: &Path, body: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let mut aside = Aside::create(path)?;
    body(&mut aside.file).map_err(|source| aside.error(source))?;
    aside.finish()
}

/// A file that has another name until it is finished; dropped before that, it is removed.
#[derive(Debug)]
pub(crate) struct Aside {
    path: PathBuf,
    aside: PathBuf,
    file: File,
    finished: bool,
}

impl Aside {
    /// Creates it.
    pub fn create(path: &Path) -> Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let aside = path.with_file_name(name);
        let created = File::options().read(true).write(true).create(true).truncate(true).open(&aside);
        let file = created.map_err(|source| ReaderError::Write { file: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), aside, file, finished: false })
    }

    /// An error of writing it.
    pub fn error(&self, source: io::Error) -> ReaderError {
        ReaderError::Write { file: self.path.clone(), source }
    }

    /// Puts `bytes` over its first ones.
    pub fn write_at_start(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, 0).map_err(|source| self.error(source))
    }

    /// Syncs it and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        let named = self.file.sync_all().and_then(|()| fs::rename(&self.aside, &self.path));
        named.and_then(|()| sync_folder(&self.path)).map_err(|source| self.error(source))?;
        self.finished = true;
        Ok(())
    }
}

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.finished {
            // The error that matters has been reported.
            let _ = fs::remove_file(&self.aside);
        }
    }
}

/// Makes a rename in the folder of `path` last through a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.map_or_else(|| PathBuf::from("."), Path::to_path_buf))?.sync_all()
}

/// Removes a file if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ReaderError::Write { file: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write_file_aside(&path, |file| file.write_all(b"old")).unwrap();
        let error = write_file_aside(&path, |file| {
            file.write_all(b"new")?;
            Err(io::Error::other("disk full"))
        });
        assert!(error.unwrap_err().to_string().contains("a.txt: disk full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
