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
    let finished = process::read(build, |_| true)?;
    ensure!(finished.success, "mdbook fails");
    let loud: Vec<&String> = finished
        .lines
        .iter()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .collect();
    let mut faults: Vec<String> = loud.into_iter().cloned().collect();
    faults.extend(pages_left_out(root)?);
    let pages = links::Site::read(&site)?;
    faults.extend(pages.broken_links());
    let commands = process::read(
        process::command(target.join("release/headlong"), &["reference", "commands"], root),
        |_| false,
    )?;
    let keys = process::read(
        process::command(target.join("release/headlong"), &["reference", "configuration"], root),
        |_| false,
    )?;
    let wanted = search::wanted(&commands.lines, &keys.lines);
    let index = search::Index::read(&site)?;
    faults.extend(index.not_found(&wanted));
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

/// mdBook as `.ci/run` installs it, or that of the machine.
fn mdbook(target: &Path) -> Option<PathBuf> {
    let programs = [target.join(TOOLS), PathBuf::from("mdbook")];
    programs.into_iter().find(|mdbook| process::answers(&mdbook.to_string_lossy(), &["--version"]))
}

/// Pages of `docs/` that the table of contents does not name: no reader of the site finds them.
fn pages_left_out(root: &Path) -> Result<Vec<String>> {
    let docs = root.join("docs");
    let contents = docs.join("SUMMARY.md");
    let contents = fs::read_to_string(&contents).at(&contents)?;
    let files = text::read_tree(root)?.into_iter().map(|file| file.path);
    let left_out = files.filter(|page| {
        page.strip_prefix("docs/").is_some_and(|page| {
            page.ends_with(".md")
                && page != "SUMMARY.md"
                && !contents.contains(&format!("({page})"))
        })
    });
    Ok(left_out.map(|page| format!("{page} is not in docs/SUMMARY.md")).collect())
}
