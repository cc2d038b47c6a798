//! Links between the documents, and mentions of documents in code: each leads to a file that is there.

use std::path::Path;

use super::Violation;
use super::text::TextFile;

/// Checks the links of a Markdown file, or the pages of `docs/` that another file names, in the workspace at `root`.
pub fn check(root: &Path, file: &TextFile) -> Vec<Violation> {
    let is_page = file.path.ends_with(".md");
    let page_folder = root.join(&file.path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let missing: Vec<&str> = if is_page {
            link_targets(line).filter(|target| !page_folder.join(target).exists()).collect()
        } else {
            mentioned_pages(line).filter(|page| !root.join(page).exists()).collect()
        };
        violations.extend(missing.into_iter().map(|target| Violation {
            file: file.path.clone(),
            line: index + 1,
            rule: "link",
            message: format!("`{target}` is not there: mend the link or write the page"),
        }));
    }
    violations
}

/// The files that the links of `line` lead to, without addresses elsewhere and places within this page.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).filter_map(|(target, _)| {
        let path = target.split('#').next().unwrap_or(target);
        (!path.is_empty() && !path.contains(':')).then_some(path)
    })
}

/// The pages below `docs/` that `line` names.
fn mentioned_pages(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(start, _)| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "._-/".contains(letter);
        let end = line[start..].find(|letter| !is_part(letter)).map_or(line.len(), |length| start + length);
        let page = line[start..end].trim_end_matches('.');
        // `project/docs/x.md` is a page of another project.
        (page.ends_with(".md") && !line[..start].ends_with(is_part)).then_some(page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        messages_of("docs/glossary.md", text)
    }

    fn messages_of(path: &str, text: &str) -> Vec<String> {
        let file = TextFile { path: path.into(), text: text.into() };
        check(&crate::workspace_root(), &file).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_eq!(
            messages("See [the rooms](../ARCHITECTURE.md#errors-and-state) and [rust](https://rustup.rs)."),
            [""; 0]
        );
        assert_eq!(messages("[here](#errors)"), [""; 0]);
        let found = messages("See [a](../README.md) and [b](no-such-page.md).");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`no-such-page.md`"));
    }
    #[test]
    fn code_that_names_a_page_that_is_not_there_is_found() {
        // In two halves, so that this file does not name it.
        let page = concat!("docs", "/no-such-page.md");
        assert_eq!(messages_of("mlp/src/x.rs", &format!("//! Why: `{page}`.")).len(), 1);
        assert_eq!(messages_of("mlp/src/x.rs", &format!("// See {page}.")).len(), 1);
        assert_eq!(
            messages_of("mlp/src/x.rs", "//! Why: `docs/numerics.md`; and elsewhere/docs/page.md."),
            [""; 0]
        );
    }
}
