//! The version table: every dependency stands once in the workspace's `Cargo.toml`, with its
//! reason, and every package takes it, and the lints, from there. What a package takes, its sources
//! name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::Violation;
use super::allow::COPIES;
use super::source::{SourceFile, words};
use super::text::relative;
use crate::process::At as _;

pub fn check(root: &Path, metadata: &Metadata) -> Result<Vec<Violation>> {
    let read = |path: &Path| fs::read_to_string(path).at(path);
    let mut violations = check_table("Cargo.toml", &read(&root.join("Cargo.toml"))?);
    for package in metadata.workspace_packages() {
        let path = package.manifest_path.as_std_path();
        let name = relative(root, path);
        violations.extend(check_manifest(&name, &read(path)?));
    }
    Ok(violations)
}

/// A package's dependencies are named in its sources, and a line of the table is used by a package.
pub fn check_use(
    root: &Path,
    metadata: &Metadata,
    sources: &[SourceFile],
) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut used_by_some: BTreeSet<String> = BTreeSet::new();
    for package in metadata.workspace_packages() {
        let manifest = relative(root, package.manifest_path.as_std_path());
        let folder = manifest.trim_end_matches("Cargo.toml");
        let copied = COPIES.iter().filter(|(own, _)| *own == folder).map(|(_, from)| *from);
        let folders: Vec<&str> = std::iter::once(folder).chain(copied).collect();
        let names: BTreeSet<String> = sources
            .iter()
            .filter(|source| folders.iter().any(|folder| source.path.starts_with(folder)))
            .flat_map(|source| words(source.tokens.clone()).map(|(word, _)| word))
            .collect();
        // A crate's place may be kept free before anything uses it: the table of crates speaks of
        // those.
        let foreign = package.dependencies.iter().filter(|dependency| dependency.path.is_none());
        let taken: Vec<&str> = foreign.map(|dependency| dependency.name.as_str()).collect();
        used_by_some.extend(taken.iter().map(|name| (*name).to_string()));
        violations.extend(unnamed(&taken, &names).map(|name| {
            Violation::new(
                &manifest,
                1,
                "versions",
                format!("no source of the package names `{name}`: remove the dependency"),
            )
        }));
    }
    let text = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    violations.extend(check_table_is_used("Cargo.toml", &text, &used_by_some));
    Ok(violations)
}

/// The dependencies of `taken` that are not among the words of the sources.
fn unnamed<'a>(taken: &'a [&'a str], words: &'a BTreeSet<String>) -> impl Iterator<Item = &'a str> {
    taken.iter().copied().filter(|name| !words.contains(&name.replace('-', "_")))
}

/// Every line of `[workspace.dependencies]` is taken by a package.
fn check_table_is_used(file: &str, text: &str, used: &BTreeSet<String>) -> Vec<Violation> {
    lines_of(text, |section| section == "workspace.dependencies")
        .filter(|(_, line)| !used.contains(name_of(line)) && !line.contains("path ="))
        .map(|(number, line)| {
            Violation::new(
                file,
                number,
                "versions",
                format!("no package takes `{}`: remove its line", name_of(line)),
            )
        })
        .collect()
}

/// Every line of `[workspace.dependencies]` says why the crate is there.
fn check_table(file: &str, text: &str) -> Vec<Violation> {
    let is_bare =
        |line: &str| line.contains('=') && !line.contains("path =") && !line.contains(" # ");
    lines_of(text, |section| section == "workspace.dependencies")
        .filter(|(_, line)| is_bare(line))
        .map(|(number, line)| {
            Violation::new(
                file,
                number,
                "versions",
                format!(
                    "`{}` has no reason: end the line with ` # why it is there`",
                    name_of(line)
                ),
            )
        })
        .collect()
}

/// A package takes its lints and its dependencies' versions from the workspace.
fn check_manifest(file: &str, text: &str) -> Vec<Violation> {
    let report = |line, message| Violation::new(file, line, "versions", message);
    let mut violations: Vec<Violation> =
        lines_of(text, |section| section.ends_with("dependencies"))
            .filter(|(_, line)| line.contains('=') && !line.contains("workspace"))
            .map(|(number, line)| {
                let advice =
                    "move the version to the workspace's table and write `.workspace = true`";
                report(number, format!("`{}` states its own version: {advice}", name_of(line)))
            })
            .collect();
    if !lines_of(text, |section| section == "lints")
        .any(|(_, line)| line.replace(' ', "") == "workspace=true")
    {
        violations
            .push(report(1, "opts out of the lints: add `[lints]` with `workspace = true`".into()));
    }
    violations
}

/// The numbered lines, without comments, blanks and what follows the first line of an entry, of the
/// sections whose name satisfies `wanted`.
fn lines_of(text: &str, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = wanted(section);
            return None;
        }
        let is_entry = !line.is_empty() && !line.starts_with(['#', '"', ']']);
        (inside && is_entry).then_some((index + 1, line))
    })
}

fn name_of(line: &str) -> &str {
    line.split(['=', '.']).next().unwrap_or(line).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let text = "[workspace.dependencies]\n\
                    ours = { path = \"a\" }\n\
                    serde = \"1\" # config\n\
                    foo = \"2\"\n";
        let found = check_table("Cargo.toml", text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 4);
        assert!(found[0].message.contains("`foo`"));
    }

    #[test]
    fn an_entry_of_several_lines_has_its_reason_on_the_first() {
        let entry = |reason| {
            let open = format!("serde = {{ version = \"1\", features = [{reason}\n");
            format!("[workspace.dependencies]\n{open}    \"derive\",\n] }}\n")
        };
        assert_eq!(check_table("Cargo.toml", &entry(" # config")), []);
        assert_eq!(check_table("Cargo.toml", &entry("")).len(), 1);
        let used = BTreeSet::from(["serde".to_string()]);
        assert_eq!(check_table_is_used("Cargo.toml", &entry(" # config"), &used), []);
    }

    #[test]
    fn a_dependency_that_nothing_names_is_found() {
        let words = BTreeSet::from(["serde".to_string(), "proc_macro2".to_string()]);
        assert_eq!(unnamed(&["serde", "proc-macro2", "syn"], &words).collect::<Vec<_>>(), ["syn"]);
        let table = "[workspace.dependencies]\nserde = \"1\" # config\nfoo = \"2\" # once\n";
        let found = check_table_is_used("Cargo.toml", table, &words);
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_version_outside_the_table_is_found() {
        let lints = "[lints]\nworkspace = true\n";
        let good = format!("{lints}[dependencies]\nserde.workspace = true\n[dev-dependencies]\n");
        assert_eq!(check_manifest("a/Cargo.toml", &good), []);
        let bad = format!("{lints}[dev-dependencies]\nserde = \"1\"\n");
        assert_eq!(check_manifest("a/Cargo.toml", &bad)[0].line, 4);
    }

    #[test]
    fn a_package_that_opts_out_of_the_lints_is_found() {
        let found = check_manifest("a/Cargo.toml", "[package]\nname = \"a\"\n");
        assert!(found[0].message.contains("opts out of the lints"));
    }
}
