//! Words that the glossary replaces are gone: its table is the rule.

use super::Violation;
use super::text::TextFile;

const GLOSSARY: &str = "docs/glossary.md";
const HEADING: &str = "## Words we do not use";
const ENDINGS: &[&str] = &[".rs", ".cu", ".cuh", ".cpp", ".h", ".py", ".sh", ".toml", ".md"];
const KEPT: &str = "benches/results/";

/// A row of the table: a word or phrase, and what is written instead.
struct Row<'a> {
    not: &'a str,
    but: &'a str,
}

/// Finds the words of the glossary's last table in all other files, except where an old name is
/// kept as an alias.
pub fn check(files: &[TextFile]) -> Vec<Violation> {
    let Some(glossary) = files.iter().find(|file| file.path == GLOSSARY) else { return Vec::new() };
    let rows = rows(&glossary.text);
    let judged = files.iter().filter(|file| {
        let is_judged = ENDINGS.iter().any(|ending| file.path.ends_with(ending));
        is_judged && file.path != GLOSSARY && !file.path.starts_with(KEPT)
    });
    judged.flat_map(|file| check_file(file, &rows)).collect()
}

fn rows(glossary: &str) -> Vec<Row<'_>> {
    let table = glossary.split(HEADING).nth(1).unwrap_or_default();
    let cells = table.lines().filter_map(|line| line.trim_matches('|').split_once(" | "));
    let rows = cells.map(|(not, but)| Row { not: not.trim(), but: but.trim() });
    rows.filter(|row| row.not != "not").collect()
}

fn check_file(file: &TextFile, rows: &[Row<'_>]) -> Vec<Violation> {
    let lines = file.text.lines().enumerate();
    let found = lines.filter_map(|(index, line)| {
        let lower = line.to_lowercase();
        if lower.contains("alias = ") {
            return None;
        }
        let Row { not, but } = rows.iter().find(|row| has_word(&lower, row.not))?;
        let message = format!("`{not}` is not a word of this project: {but}");
        Some(Violation::new(&file.path, index + 1, "words", message))
    });
    found.collect()
}

/// Whether `phrase` is in `line` with no letter or digit at either end.
fn has_word(line: &str, phrase: &str) -> bool {
    let is_end =
        |character: Option<char>| !character.is_some_and(|character| character.is_alphanumeric());
    line.match_indices(phrase).any(|(at, _)| {
        is_end(line[..at].chars().next_back()) && is_end(line[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_table_are_found_whole() {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let page = format!("{HEADING}\n\n| not | but |\n|---|---|\n| zork | rank group |\n");
        let files = [
            file(GLOSSARY, &page),
            file("a.rs", "// The Zork meets.\n// A szork.\nlet zorks = 1;\n"),
            file("benches/results/a.md", "zork"),
        ];
        let found: Vec<_> =
            check(&files).into_iter().map(|found| (found.file, found.line)).collect();
        assert_eq!(found, [("a.rs".to_owned(), 1)]);
    }
}
