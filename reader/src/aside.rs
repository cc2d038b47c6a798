//! Files that are whole or not there: written aside, synced, renamed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{ReaderError, Result};

/// Writes a file under a temporary name in the same folder, syncs it and renames it.
///
/// # Errors
/// [`ReaderError::Write`]; the temporary file is removed.
pub(crate) fn write_file_aside(path: &Path, body: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let aside = path.with_file_name(name);
    let result = File::create(&aside).and_then(|mut file| {
        body(&mut file)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync_folder(path)
    });
    result.map_err(|source| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&aside);
        ReaderError::Write { file: path.to_owned(), source }
    })
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
    use std::io::Write;

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
