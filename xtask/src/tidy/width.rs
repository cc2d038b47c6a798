//! No line is longer than 100 columns.
//!
//! Excepted is what a line break would spoil: rows of tables, what is drawn or printed (a block of
//! a page that is no Rust, a block of `text` in a comment), and lines that hold an address or one
//! word alone. Measurements that are kept are left as they were printed.

use super::Violation;
use super::text::TextFile;

const COLUMNS: usize = 100;
const ENDINGS: &[&str] = &[".rs", ".cu", ".cuh", ".cpp", ".h", ".py", ".sh", ".toml", ".md"];
const KEPT: &str = "benches/results/";

/// Finds the lines of `file` that are too long.
pub fn check(file: &TextFile) -> Vec<Violation> {
    if file.path.starts_with(KEPT) || !ENDINGS.iter().any(|ending| file.path.ends_with(ending)) {
        return Vec::new();
    }
    let mut block = Block { is_page: file.path.ends_with(".md"), holds: Holds::Prose };
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let is_printed = block.is_printed(line);
        let columns = line.chars().count();
        if columns > COLUMNS && !is_printed && !cannot_be_broken(line) {
            violations.push(Violation::new(
                &file.path,
                index + 1,
                "width",
                format!("{columns} columns, more than {COLUMNS}: break the line"),
            ));
        }
    }
    violations
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Prose,
    Code,
    Printed,
}

/// Where a walk through a file's lines is.
struct Block {
    is_page: bool,
    holds: Holds,
}

impl Block {
    /// Moves on to `line`: whether it is drawn or printed.
    fn is_printed(&mut self, line: &str) -> bool {
        if self.is_page && self.holds == Holds::Prose && line.starts_with("    ") {
            return true;
        }
        let Some(language) = self.content(line).and_then(|text| text.strip_prefix("```")) else {
            return self.holds == Holds::Printed;
        };
        self.holds = match (self.holds, self.is_page) {
            (Holds::Code | Holds::Printed, _) => Holds::Prose,
            (Holds::Prose, true) if language.starts_with("rust") => Holds::Code,
            (Holds::Prose, true) => Holds::Printed,
            (Holds::Prose, false) if language == "text" => Holds::Printed,
            (Holds::Prose, false) => Holds::Code,
        };
        false
    }

    /// The line of a page, or of a comment in a source.
    fn content<'a>(&self, line: &'a str) -> Option<&'a str> {
        match self.is_page {
            true => Some(line.trim_start()),
            false => comment(line),
        }
    }
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marker = ["//!", "///", "//", "#"].into_iter().find(|marker| line.starts_with(marker))?;
    Some(line[marker.len()..].trim_start())
}

/// Whether the line is a table's row, or has an address or no second word.
fn cannot_be_broken(line: &str) -> bool {
    let text = comment(line).unwrap_or(line).trim_start();
    text.starts_with('|') || text.contains("://") || !text.trim_end().contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_lines(path: &str, text: &str) -> Vec<usize> {
        let file = TextFile { path: path.into(), text: text.into() };
        check(&file).into_iter().map(|found| found.line).collect()
    }

    /// `columns` of words.
    fn words(columns: usize) -> String {
        "word ".repeat(columns / 5) + &"d".repeat(columns % 5)
    }

    #[test]
    fn a_line_of_more_than_100_columns_is_found_whatever_its_language() {
        for path in ["a/src/x.rs", "a/x.cu", "a/x.cpp", "a/x.h", "a/x.py", "a/x.sh", "a/x.toml"] {
            assert_eq!(long_lines(path, &format!("{}d\n\n{}dd\n", words(99), words(99))), [3]);
        }
        assert_eq!(long_lines("a/x.md", &words(101)), [1]);
        assert_eq!(long_lines("benches/results/x.md", &words(101)), [0; 0]);
        assert_eq!(long_lines("a/x.json", &words(101)), [0; 0]);
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(long_lines("a/src/x.rs", &format!("{}µ", words(99))), [0; 0]);
        assert_eq!(long_lines("a/src/x.rs", &format!("{}µµ", words(99))), [1]);
    }

    #[test]
    fn tables_addresses_and_single_words_stay_whole() {
        for line in [
            format!("//! | {} |", words(101)),
            format!("| {} |", words(101)),
            format!("// See https://example.org/{} too", "d".repeat(99)),
            format!("    \"{}\",", "d".repeat(99)),
        ] {
            assert_eq!(long_lines("a/src/x.rs", &line), [0; 0], "{line}");
        }
        assert_eq!(long_lines("a/src/x.rs", &format!("// {}", words(99))), [1]);
    }

    #[test]
    fn what_is_drawn_or_printed_stays_whole() {
        let block = |fence: &str| format!("//! ```{fence}\n//! {0}\n//! ```\n//! {0}\n", words(99));
        assert_eq!(long_lines("a/src/x.rs", &block("text")), [4]);
        assert_eq!(long_lines("a/src/x.rs", &block("")), [2, 4]);
        let page = |fence: &str| format!("```{fence}\n{0}\n```\n{0}\n\n    {0}\n", words(101));
        assert_eq!(long_lines("a/x.md", &page("text")), [4]);
        assert_eq!(long_lines("a/x.md", &page("console")), [4]);
        assert_eq!(long_lines("a/x.md", &page("rust")), [2, 4]);
    }
}
