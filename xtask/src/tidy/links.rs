//! Links between the documents: each relative one leads to a file that is there.

use std::path::Path;

use super::Violation;
use super::text::TextFile;

/// Checks the links of one Markdown file in the workspace at `root`; other files have none.
pub fn check(root: &Path, file: &TextFile) -> Vec<Violation> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let folder = root.join(&file.path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for target in targets(line).filter(|target| !folder.join(target).exists()) {
            violations.push(Violation {
                file: file.path.clone(),
                line: index + 1,
                rule: "link",
                message: format!("`{target}` is not there: mend the link or write the page"),
            });
        }
    }
    violations
}

/// The files that the links of `line` lead to, without addresses elsewhere and places within this page.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).filter_map(|(target, _)| {
        let path = target.split('#').next().unwrap_or(target);
        (!path.is_empty() && !path.contains(':')).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let file = TextFile { path: "docs/page.md".into(), text: text.into() };
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
}
