//! Links between the documents, the paths that documents name, and mentions of documents in code:
//! each leads to a file that is there.

use std::path::Path;

use super::Violation;
use super::text::{SKIPPED_FOLDERS, TextFile};

/// Checks the links and paths of a Markdown file, or the pages of `docs/` that another file names,
/// in the workspace at `root`.
pub fn check(root: &Path, file: &TextFile) -> Vec<Violation> {
    let is_page = file.path.ends_with(".md");
    let page_folder = root.join(&file.path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let missing: Vec<&str> = if is_page {
            let links = link_targets(line).filter(|target| !page_folder.join(target).exists());
            links.chain(quoted_paths(root, line).filter(|path| !root.join(path).exists())).collect()
        } else {
            mentioned_pages(line).filter(|page| !root.join(page).exists()).collect()
        };
        violations.extend(missing.into_iter().map(|target| {
            Violation::new(
                &file.path,
                index + 1,
                "link",
                format!("`{target}` is not there: mend the link or the path, or write the page"),
            )
        }));
    }
    violations
}

/// The files that the links of `line` lead to, without addresses elsewhere and places within this
/// page.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).filter_map(|(target, _)| {
        let path = target.split('#').next().unwrap_or(target);
        (!path.is_empty() && !path.contains(':')).then_some(path)
    })
}

/// The paths between back-ticks in `line` that begin with a top-level folder of the workspace at
/// `root`, each up to its first placeholder: of `configs/clusters/*.toml` it is
/// `configs/clusters/`.
fn quoted_paths<'a>(root: &Path, line: &'a str) -> impl Iterator<Item = &'a str> {
    line.split('`').skip(1).step_by(2).filter_map(move |quoted| {
        let path = quoted.split([' ', ':']).next().unwrap_or(quoted);
        let (folder, _) = path.split_once('/')?;
        let is_ours =
            !folder.is_empty() && !folder.starts_with('.') && !SKIPPED_FOLDERS.contains(&folder);
        let is_placeholder =
            |letter: char| !(letter.is_ascii_alphanumeric() || "._-/".contains(letter));
        let known = match path.find(is_placeholder) {
            Some(end) => &path[..path[..end].rfind('/')? + 1],
            None => path,
        };
        (is_ours && root.join(folder).is_dir()).then_some(known)
    })
}

/// The pages below `docs/` that `line` names.
fn mentioned_pages(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(start, _)| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "._-/".contains(letter);
        let end = line[start..]
            .find(|letter| !is_part(letter))
            .map_or(line.len(), |length| start + length);
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
            messages(
                "See [the crates](../ARCHITECTURE.md#errors-and-state) and \
                 [rust](https://rustup.rs)."
            ),
            [""; 0]
        );
        assert_eq!(messages("[here](#errors)"), [""; 0]);
        let found = messages("See [a](../README.md) and [b](no-such-page.md).");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`no-such-page.md`"));
    }

    #[test]
    fn a_page_that_names_a_path_that_is_not_there_is_found() {
        let found = messages("See `mlp/src/no_such.rs`, `mlp/src/lib.rs` and `mlp/no-such/`.");
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("`mlp/src/no_such.rs`"));
        assert!(found[1].contains("`mlp/no-such/`"));
        assert_eq!(messages("`mlp/no-such/<op>/cpu.rs`").len(), 1);
        assert_eq!(messages("`mlp/src/no_such.rs:12`, `benches/no_such.sh PATH`").len(), 2);
        let fine = "`configs/clusters/*.toml`, `mlp/src/<op>/`, `benches/forecast.sh PATH`, \
                    `mlp/src/lib.rs:1`";
        assert_eq!(messages(fine), [""; 0]);
        let elsewhere = "`target/release/headlong`, `kernels-cache/x`, `/dev/stdout`, \
                         `../shared/x`, `no-such/x.rs`";
        assert_eq!(messages(elsewhere), [""; 0]);
        assert_eq!(messages("mlp/src/no_such.rs without back-ticks"), [""; 0]);
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
