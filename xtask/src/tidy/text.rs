//! Rules read from the text alone: file sizes and to-dos.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Exceptions, Violation};

const FILE_LINES: usize = 600;
/// Folders that hold nothing of ours: build outputs and what a fuzzer leaves.
pub const SKIPPED_FOLDERS: &[&str] =
    &["target", "corpus", "artifacts", "headlong-out", "kernels-cache"];
const READ_ENDINGS: &[&str] = &["rs", "cu", "cuh", "cpp", "h", "toml", "py", "sh", "md"];
/// The words that mark a to-do, each in two halves, so that this file does not mark itself.
const TODO_WORDS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

pub struct TextFile {
    /// Path relative to the workspace's root, with `/` between its parts.
    pub path: String,
    pub text: String,
}

impl TextFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_kernel(&self) -> bool {
        self.path.ends_with(".cu") || self.path.ends_with(".cuh")
    }

    fn is_source(&self) -> bool {
        [".rs", ".cu", ".cuh", ".cpp", ".h", ".py"].iter().any(|ending| self.path.ends_with(ending))
    }
}

/// A path as findings have it: from the root, with `/` between its parts.
pub fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// `folder/path`, with `..` taken away.
pub fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Reads every source below `root`, in the order of their paths.
pub fn read_tree(root: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    read_folder(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Vec<TextFile>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().with_context(|| path.clone())?;
        if kind.is_dir() && !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            read_folder(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file()
            && READ_ENDINGS.iter().any(|ending| name.ends_with(&format!(".{ending}")))
        {
            let text = fs::read_to_string(entry.path()).with_context(|| path.clone())?;
            files.push(TextFile { path, text });
        }
    }
    Ok(())
}

pub fn check(file: &TextFile, exceptions: &Exceptions) -> Vec<Violation> {
    let mut violations: Vec<Violation> = file
        .text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| check_todo(file, index + 1, line))
        .collect();
    let lines = file.text.lines().count();
    if file.is_source() && lines > FILE_LINES && !exceptions.cover("file size", &file.path) {
        let message = format!(
            "{lines} lines, more than {FILE_LINES}: split it by stage or op, or list it with a \
             reason in xtask/src/tidy/allow.rs"
        );
        violations.push(Violation::new(&file.path, FILE_LINES + 1, "file size", message));
    }
    violations
}

fn check_todo(file: &TextFile, line_number: usize, line: &str) -> Option<Violation> {
    let marker = match file.path.rsplit('.').next() {
        Some("md") => return None,
        Some("toml" | "py" | "sh") => "#",
        _ => "//",
    };
    let (_, comment) = line.split_once(marker)?;
    let word = comment
        .split(|letter: char| !letter.is_alphanumeric())
        .find(|word| TODO_WORDS.contains(word))?;
    let has_issue_number = comment
        .split('#')
        .skip(1)
        .any(|after| after.starts_with(|letter: char| letter.is_ascii_digit()));
    (!has_issue_number).then(|| {
        Violation::new(
            &file.path,
            line_number,
            "to-do",
            format!("{word} without an issue number: write `{word}(#12)`, or do it"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let file = TextFile { path: path.into(), text: text.into() };
        check(&file, &Exceptions::listed())
            .into_iter()
            .map(|found| (found.line, found.rule))
            .collect()
    }

    #[test]
    fn a_long_file_is_found_whatever_its_language() {
        assert_eq!(rules("mlp/src/x.rs", &"\n".repeat(600)), []);
        assert_eq!(rules("mlp/src/x.rs", &"\n".repeat(601)), [(601, "file size")]);
        for path in ["mlp/src/x.cu", "device/softcuda/x.cpp", "device/softcuda/x.h"] {
            assert_eq!(rules(path, &"\n".repeat(601)), [(601, "file size")]);
        }
        assert_eq!(rules("configs/x.toml", &"\n".repeat(601)), []);
    }

    #[test]
    fn a_to_do_carries_an_issue_number() {
        let word = TODO_WORDS[0];
        assert_eq!(rules("mlp/src/x.rs", &format!("\n// {word}: later\n")), [(2, "to-do")]);
        assert_eq!(
            rules("mlp/src/x.rs", &format!("let x = 1; // {word} later, see # 3\n")),
            [(1, "to-do")]
        );
        assert_eq!(rules("mlp/src/x.rs", &format!("// {word}(#12): later\n")), []);
        assert_eq!(rules("configs/x.toml", &format!("a = 1 # {word}\n")), [(1, "to-do")]);
        assert_eq!(
            rules("mlp/src/x.rs", &format!("let text = \"{word}\"; // {}\n", "toDo list")),
            []
        );
    }

    #[test]
    fn the_tree_is_read_without_build_outputs() {
        let folder = std::env::temp_dir().join(format!("headlong-tidy-{}", std::process::id()));
        for path in ["a/src/lib.rs", "target/x.rs", ".git/x.rs", "fuzz/corpus/x.rs", "a/notes.txt"]
        {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let paths: Vec<String> =
            read_tree(&folder).unwrap().into_iter().map(|file| file.path).collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(paths, ["a/src/lib.rs"]);
    }
}
