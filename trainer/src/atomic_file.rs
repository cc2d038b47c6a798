//! A file that appears under its name complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A file written under another name in the same folder. [`AtomicFile::commit`] flushes it to the disk and gives it its name;
/// dropped without that, it is removed.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    aside: PathBuf,
    file: Option<File>,
}

impl AtomicFile {
    /// Makes `.tmp-NAME` beside `path`, in place of one that a crash left behind.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written, `path` is a directory or has no file name.
    pub fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        if path.is_dir() {
            return Err(io::Error::other("it is a directory"));
        }
        let mut aside = OsString::from(".tmp-");
        aside.push(name);
        let aside = path.with_file_name(aside);
        let file = Some(File::create(&aside)?);
        Ok(Self { path: path.to_owned(), aside, file })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        self.file.as_ref().expect("the file is there until `commit`, which takes the whole value")
    }

    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes the file to the disk and gives it its name, in place of whatever file had it.
    ///
    /// # Errors
    /// A full disk, or whatever else the system says; the file that had the name is then as it was.
    pub fn commit(mut self) -> io::Result<()> {
        self.file().sync_all()?;
        fs::rename(&self.aside, &self.path)?;
        self.file = None;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // What cannot be removed now is overwritten by the next attempt.
            let _ = fs::remove_file(&self.aside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_name_holds_the_old_file_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv");
        fs::write(&path, "old").unwrap();
        let file = AtomicFile::create(&path).unwrap();
        file.file().write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
        let file = AtomicFile::create(&path).unwrap();
        file.file().write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(AtomicFile::create(folder.path()).unwrap_err().to_string().contains("a directory"));
        assert!(AtomicFile::create(&folder.path().join("absent/out.csv")).is_err());
        assert!(AtomicFile::create(Path::new("/")).is_err());
    }
}
