//! A Python with the modules that a test needs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python on the path, or that of the project's virtual environment, whichever has all of
/// `modules`; says that the test is skipped where none has.
pub fn python(modules: &[&str]) -> Option<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
    // Importing some of them takes seconds; to find them does not.
    let find = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, \
                sys.argv[1:])))";
    let found = [PathBuf::from("python3"), project].into_iter().find(|python| {
        let found = Command::new(python).args(["-c", find]).args(modules).output();
        found.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        println!("skipped, because no python with {} was found", modules.join(", "));
    }
    found
}
