//! Modes are resolved when a model is built: what a stage does asks for none.

use super::Violation;
use super::text::TextFile;

/// Where stages are written.
const STAGES: [&str; 2] =
    ["trainer/src/iteration/schedule/stages.rs", "trainer/src/iteration/schedule/tables.rs"];
/// What a question for a mode would be asked with.
const QUESTIONS: [&str; 7] = [
    "is_single_rank",
    "is_single_process",
    "knows_all_ids",
    ".on_device()",
    "as_cuda",
    "num_ranks",
    "Choice::",
];

/// Checks that no stage asks which mode the run is in.
pub fn check(file: &TextFile) -> Vec<Violation> {
    if !STAGES.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let asked = |(index, line): (usize, &str)| {
        let word = QUESTIONS.iter().find(|word| line.contains(**word))?;
        let message = format!(
            "`{word}`: a stage asks for no mode; let the tables, `Exchange` or the build know"
        );
        Some(Violation::new(&file.path, index + 1, "stages", message))
    };
    file.text.lines().enumerate().filter_map(asked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_asks_for_a_mode_is_found() {
        let found = |path: &str, text: &str| {
            check(&TextFile { path: path.into(), text: text.into() }).len()
        };
        assert_eq!(found(STAGES[0], "at.model().tables.pool(at)\n"), 0);
        assert_eq!(found(STAGES[0], "if at.model().is_single_rank() {\n"), 1);
        assert_eq!(found("trainer/src/iteration/model.rs", "if self.is_single_rank() {\n"), 0);
    }
}
