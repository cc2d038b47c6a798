//! Copies the files of `headlong-comm`, without its system, and with mistakes that can be switched
//! on.

use std::fs;
use std::path::Path;

#[path = "src/mistakes.rs"]
#[allow(dead_code, reason = "the library has them, too")]
mod mistakes;

fn main() {
    let from = Path::new("../src");
    println!("cargo::rerun-if-changed=../src");
    println!("cargo::rerun-if-changed=src/mistakes.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo says where");
    let to = Path::new(&out).join("src");
    if to.exists() {
        fs::remove_dir_all(&to).expect("the last copy can go");
    }
    copy(from, &to);
    change(&to.join("lib.rs"), |text| {
        let lines = text.lines().filter(|line| !line.starts_with("//!"));
        let lines: Vec<&str> = lines.filter(|line| *line != "mod system;").collect();
        lines.join("\n")
    });
    // Small rings: messages that do not fit are not long, and memory is quick to make.
    change(&to.join("transport/shm/layout.rs"), |text| {
        let whole = "const LARGEST_RING: usize = 1 << 20;";
        assert!(text.contains(whole), "the size of rings is elsewhere");
        text.replace(whole, "const LARGEST_RING: usize = PAGE;")
    });
    for mistake in mistakes::MISTAKES {
        change(&to.join(mistake.file), |text| {
            let places = text.matches(mistake.right).count();
            assert!(places == 1, "{}: {places} places in {}", mistake.name, mistake.file);
            let made = format!("crate::system::makes({:?})", mistake.name);
            text.replace(mistake.right, &mistake.wrong.replace("MADE", &made))
        });
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder below cargo's own");
    for entry in fs::read_dir(from).expect("comm/src is there") {
        let path = entry.expect("it can be read").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => {
                let _ = fs::copy(&path, &target).expect("it can be copied");
                if path.extension().is_some_and(|extension| extension == "rs") {
                    // Their tests run where they are from.
                    change(&target, |text| text.replace("cfg(test)", "cfg(any())"));
                }
            }
        }
    }
}

fn change(path: &Path, how: impl FnOnce(&str) -> String) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    fs::write(path, how(&text)).expect("the copy can be written");
}
