//! The few file operations of which saving consists, behind a trait, so that a test can fail each of them in turn.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

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

    /// Bytes that an ordinary user may still write below `path`; `None` where the system does not say.
    fn free_bytes(&self, path: &Path) -> Option<u64>;
}

/// A file that is being written.
pub trait FileWriter: Write {
    /// Flushes everything written to the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's files.
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
        // The standard library has no `statvfs`; POSIX fixes the columns that `df -Pk` prints.
        let answer = Command::new("df").arg("-Pk").arg("--").arg(path).stderr(Stdio::null()).output().ok()?;
        answer.status.success().then(|| free_of_df(&String::from_utf8_lossy(&answer.stdout)))?
    }
}

impl FileWriter for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The free bytes in the output of `df -Pk`: the column before the percentage, in KiB.
fn free_of_df(output: &str) -> Option<u64> {
    let columns: Vec<&str> = output.lines().nth(1)?.split_whitespace().collect();
    let percentage = columns.iter().position(|column| column.ends_with('%'))?;
    let free: u64 = columns[percentage.checked_sub(1)?].parse().ok()?;
    free.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_the_column_before_the_percentage() {
        let output = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                      //host/a share   1000  300       700      30% /mnt/a share\n";
        assert_eq!(free_of_df(output), Some(700 * 1024));
        assert_eq!(free_of_df("Filesystem\n"), None);
        assert_eq!(free_of_df(""), None);
        assert_eq!(free_of_df("x\n30% a\n"), None);
    }

    #[test]
    fn the_system_says_how_much_is_free() {
        let folder = tempfile::tempdir().unwrap();
        match SystemFiles.free_bytes(folder.path()) {
            Some(free) => assert!(free > 0),
            None => println!("skipped, because `df` is not installed"),
        }
        assert_eq!(SystemFiles.free_bytes(&folder.path().join("absent")), None);
    }
}
