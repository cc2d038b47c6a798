//! Small files that a user names: configurations, measured costs, descriptions of clusters, lists of sums.

use headlong_reader::io::read_small_text;
use std::io;
use std::path::Path;

/// Far more than anybody writes by hand; an endless device ends here.
const MOST_BYTES: u64 = 16 << 20;

/// The text of a file, which may be a pipe.
///
/// # Errors
/// What the system says; more than 16 MiB; text that is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    read_small_text(path, MOST_BYTES)
}
