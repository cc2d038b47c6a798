//! Files that have a size, and small files that are read whole: neither ever waits or takes more
//! memory than its bound.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::DataFile;
use crate::error::{ReaderError, Result};

/// Opens a file that is read at random, and says its size.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    open_regular_with(path, 0)
}

/// The same with more flags of `open(2)`.
pub(crate) fn open_regular_with(path: &Path, flags: i32) -> Result<(File, u64)> {
    let failed = |source| ReaderError::Open { file: path.to_owned(), source };
    // Note: before it is opened, which would wait where a named pipe has no writer.
    check(path, &std::fs::metadata(path).map_err(failed)?)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check(path, &metadata)?;
    Ok((file, metadata.len()))
}

fn check(path: &Path, metadata: &Metadata) -> Result<()> {
    match (metadata.is_dir(), metadata.is_file(), metadata.len()) {
        (true, ..) => Err(ReaderError::Directory { file: path.to_owned() }),
        (_, false, _) => Err(ReaderError::NotRegular { file: path.to_owned() }),
        (_, _, 0) => Err(ReaderError::Empty { file: path.to_owned() }),
        _ => Ok(()),
    }
}

/// All of a text file that is never long: a configuration, a specification, a list of sums. It may
/// be a pipe, which is waited for as [`DataFile`] does.
///
/// # Errors
/// What the system says; [`io::ErrorKind::FileTooLarge`] as soon as there are more than
/// `most_bytes`; [`io::ErrorKind::InvalidData`] for bytes that are not UTF-8.
pub fn read_small_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    let opened = DataFile::from(path).open().map_err(|error| match error {
        ReaderError::Open { source, .. } => source,
        error => io::Error::other(error.to_string()),
    })?;
    opened.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let message = format!("expected at most {most_bytes} bytes, found more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::testing::write;

    #[test]
    fn what_has_no_size_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| open_regular(path).unwrap_err().to_string();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            assert!(message(path).contains("is not a regular file"), "{}", message(path));
        }
        assert!(message(folder.path()).contains("is a directory"));
        assert!(message(write(folder.path(), "empty", b"").path()).contains("is empty"));
        let (_, bytes) = open_regular(write(folder.path(), "a", b"four").path()).unwrap();
        assert_eq!(bytes, 4);
    }

    #[test]
    fn small_files_are_read_up_to_their_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), "a", b"four");
        let path = file.path();
        assert_eq!(read_small_text(path, 4).unwrap(), "four");
        assert_eq!(read_small_text(path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let error = read_small_text(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let error = read_small_text(write(folder.path(), "b", b"\xff").path(), 9).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
