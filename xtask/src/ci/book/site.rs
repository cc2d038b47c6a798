//! The site: mdBook builds it from `docs/` into `target/book`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::super::Outcome;
use super::{links, search};
use crate::process::{self, At as _};
use crate::tidy::text;

/// Where `.ci/run` installs mdBook, in the folder of what is built.
const TOOLS: &str = "tools/bin/mdbook";

/// Builds the site and checks it: no warning, every page in the table of contents, every link, and
/// what a search finds.
pub fn build_and_check(root: &Path, target: &Path) -> Result<Outcome> {
    let Some(mdbook) = mdbook(target) else {
        return Ok(Outcome::Skipped(
            "mdbook is not installed: cargo install mdbook --locked".to_owned(),
        ));
    };
    let site = target.join("book");
    let destination = site.display().to_string();
    let build = process::command(mdbook, &["build", "--dest-dir", &destination], root);
    let built = process::read(build, |_| true)?;
    ensure!(built.success, "mdbook fails");
    let contents = root.join("docs/SUMMARY.md");
    let contents = fs::read_to_string(&contents).at(&contents)?;
    let files = text::read_tree(root)?.into_iter().map(|file| file.path);
    let pages = links::Site::read(&site)?;
    let wanted = search::wanted(
        &reference(root, target, "commands")?,
        &reference(root, target, "configuration")?,
    );
    let faults = [
        built.lines.into_iter().filter(|line| is_warning(line)).collect(),
        left_out(&contents, files),
        pages.broken_links(),
        search::Index::read(&site)?.not_found(&wanted),
    ]
    .concat();
    faults.iter().for_each(|fault| println!("{fault}"));
    Ok(match faults.len() {
        0 => Outcome::Passed(format!(
            "{} pages, {} links, {} words to search for",
            pages.count(),
            pages.num_links(),
            wanted.len()
        )),
        faults => Outcome::Failed(format!("{faults} faults of the site")),
    })
}

/// What the program prints for one of the two pages that it writes.
fn reference(root: &Path, target: &Path, page: &str) -> Result<Vec<String>> {
    let program = target.join("release/headlong");
    let printed = process::read(process::command(program, &["reference", page], root), |_| false)?;
    ensure!(printed.success, "headlong reference {page} fails");
    Ok(printed.lines)
}

/// mdBook as `.ci/run` installs it, or that of the machine.
fn mdbook(target: &Path) -> Option<PathBuf> {
    let programs = [target.join(TOOLS), PathBuf::from("mdbook")];
    programs.into_iter().find(|mdbook| process::answers(&mdbook.to_string_lossy(), &["--version"]))
}

/// Whether mdBook complains in `line`.
fn is_warning(line: &str) -> bool {
    ["WARN", "ERROR"].iter().any(|level| line.split_whitespace().next() == Some(level))
}

/// A line for each page among `files` that the table of contents does not name: no reader of the
/// site finds it.
fn left_out(contents: &str, files: impl Iterator<Item = String>) -> Vec<String> {
    let is_named = |page: &str| page == "SUMMARY.md" || contents.contains(&format!("({page})"));
    let pages = files.filter(|file| file.ends_with(".md"));
    let left_out =
        pages.filter(|file| file.strip_prefix("docs/").is_some_and(|page| !is_named(page)));
    left_out.map(|page| format!("{page} is not in docs/SUMMARY.md")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_pages_without_a_place_are_found() {
        assert!(is_warning(" WARN unclosed HTML tag `<a>`") && is_warning("ERROR no"));
        assert!(!is_warning(" INFO Running the html backend, after a WARN"));
        let files = [
            "docs/SUMMARY.md",
            "docs/tutorials/criteo.md",
            "docs/guide.md",
            "README.md",
            "docs/d.svg",
        ];
        assert_eq!(
            left_out("- [B](tutorials/criteo.md)\n", files.iter().map(|&file| file.to_owned())),
            ["docs/guide.md is not in docs/SUMMARY.md"]
        );
    }
}
