//! Reading files that others may have put there.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens a file for reading that must be a regular one: no pipe, which would be waited for, and no
/// device.
///
/// # Errors
/// It is none, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    match file.metadata()? {
        found if found.is_file() => Ok(file),
        found if found.is_dir() => Err(io::Error::other("it is a directory, expected a file")),
        _ => Err(io::Error::other("it is no regular file")),
    }
}

/// Reads `file` to its end, which must come within `most` bytes, independent of the reported
/// size.
///
/// # Errors
/// It is longer, or cannot be read.
pub fn read_bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Err(io::Error::other(format!("it is longer than {most} bytes")))
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_devices_and_endless_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&*pipe, Path::new("/dev/zero"), folder.path()] {
            assert!(open_regular(path).is_err(), "{}", path.display());
        }
        let endless = read_bounded(File::open("/dev/zero").unwrap(), 1000).unwrap_err();
        assert!(endless.to_string().contains("longer than 1000 bytes"), "{endless}");
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_bounded(open_regular(&file).unwrap(), 4).unwrap(), b"text");
        assert!(read_bounded(open_regular(&file).unwrap(), 3).is_err());
    }
}
