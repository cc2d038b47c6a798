//! Small files that a user names: configurations, measured costs, descriptions of clusters, lists
//! of sums.

use headlong_reader::io::read_small_text;
use std::io;
use std::path::Path;

/// Far more than anybody writes by hand; an endless device ends here. TOML's reader may take a
/// hundred times as much memory.
const MOST_BYTES: u64 = 1 << 20;

/// The text of a file, which may be a pipe.
///
/// # Errors
/// What the system says; more than 1 MiB; text that is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    read_small_text(path, MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_to_be_written_by_hand_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.toml");
        std::fs::write(&path, vec![b'.'; 1 << 20]).unwrap();
        assert_eq!(read_text(&path).unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b'.'; (1 << 20) + 1]).unwrap();
        assert_eq!(read_text(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
