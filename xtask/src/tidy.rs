//! The rules of the workspace that neither rustc nor clippy knows, each checked by reading the
//! source.
//!
//! | rule | says |
//! |---|---|
//! | crates | which package may import which ([`allow::CRATES`]); inside the trainer, which files may see two crates |
//! | layers | inside a crate no files import each other, and the trainer's layers import downwards ([`layers`]) |
//! | sizes | a function is at most 70 lines (a test 100), a file at most 600 |
//! | words | none that the glossary replaces ([`words`]) |
//! | stages | no stage asks which mode the run is in ([`stages`]) |
//! | width | no line over 100 columns, except for tables, drawings and addresses ([`width`]) |
//! | unwrap | none outside tests |
//! | unsafe | only in listed files |
//! | environment | read only in listed files, so that it cannot change results |
//! | waits | in `comm`, none without an end ([`waits`]) |
//! | to-do | carries an issue number |
//! | module | one with children is a file next to their folder, not `mod.rs` in it |
//! | dead file | every source file is reached by a `mod` line |
//! | link | a document's relative links, and its paths in back-ticks, lead to files that are there |
//! | kernels | one text for every compiler, no float added atomically, none that nothing includes |
//! | versions | every dependency stands in the workspace's one table, with its reason, and is used |
//!
//! Every exception is a line of [`allow`], with its reason; an exception that excuses nothing is
//! itself a finding.

mod allow;
mod crates;
mod kernels;
mod layers;
mod links;
mod modules;
mod source;
mod stages;
pub mod text;
mod versions;
mod waits;
mod width;
mod words;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};

use allow::Exception;
use source::SourceFile;

/// One finding: where it is, which rule it breaks, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path relative to the workspace's root, with `/` between its parts.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

impl Violation {
    fn new(file: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { file: file.into(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: [{}] {}", self.file, self.line, self.rule, self.message)
    }
}

/// The exceptions of every rule, which remember which of their lines were needed.
pub struct Exceptions {
    lists: &'static [(&'static str, &'static [Exception])],
    used: RefCell<BTreeSet<(&'static str, &'static str)>>,
}

impl Exceptions {
    fn listed() -> Self {
        Self { lists: allow::EXCEPTIONS, used: RefCell::default() }
    }

    fn of(&self, rule: &str) -> impl Iterator<Item = (&'static str, &'static Exception)> {
        let of_rule = self.lists.iter().filter(move |(name, _)| *name == rule);
        of_rule.flat_map(|(rule, lines)| lines.iter().map(move |line| (*rule, line)))
    }

    /// Whether a line of the rule covers `subject`: a path, or `path::function`.
    pub fn cover(&self, rule: &str, subject: &str) -> bool {
        let found = self.of(rule).find(|(_, line)| matches_glob(line.pattern, subject));
        found.is_some_and(|(rule, line)| {
            self.used.borrow_mut().insert((rule, line.pattern));
            true
        })
    }

    /// A finding for each line that excused nothing.
    fn unused(&self) -> Vec<Violation> {
        let used = self.used.borrow();
        let all = self.lists.iter().flat_map(|(rule, _)| self.of(rule));
        let idle = all.filter(|(rule, line)| !used.contains(&(*rule, line.pattern)));
        idle.map(|(rule, Exception { pattern, reason })| {
            let message =
                format!("`{pattern}` ({reason}) excuses nothing any more: remove its line");
            Violation::new("xtask/src/tidy/allow.rs", 1, rule, message)
        })
        .collect()
    }
}

/// Whether `subject` matches `pattern`, in which `*` stands for any part of one path component and
/// `**` for any number of components.
fn matches_glob(pattern: &str, subject: &str) -> bool {
    let whole = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let pattern = glob::Pattern::new(pattern).expect("a test reads every pattern of the lists");
    pattern.matches_with(subject, whole)
}

/// Checks the workspace at `root` and prints each finding; `Ok(true)` where there is none.
pub fn run(root: &Path) -> Result<bool> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    let files = text::read_tree(root)?;
    let violations = check(root, &metadata, &files)?;
    for violation in &violations {
        println!("{violation}");
    }
    let sources = files.iter().filter(|file| file.is_rust()).count();
    println!("tidy: {sources} source files, {} findings", violations.len());
    Ok(violations.is_empty())
}

fn check(root: &Path, metadata: &Metadata, files: &[text::TextFile]) -> Result<Vec<Violation>> {
    let exceptions = Exceptions::listed();
    let mut violations = crates::check(root, metadata);
    violations.extend(versions::check(root, metadata)?);
    violations.extend(files.iter().flat_map(|file| text::check(file, &exceptions)));
    violations.extend(files.iter().flat_map(width::check));
    violations.extend(words::check(files));
    violations.extend(files.iter().flat_map(|file| links::check(root, file)));
    violations.extend(kernels::check(files));
    violations.extend(files.iter().flat_map(stages::check));

    let (sources, broken) = parse(files);
    violations.extend(broken);
    violations.extend(versions::check_use(root, metadata, &sources)?);
    let tree = modules::ModuleTree::new(root, metadata, &sources);
    violations.extend(tree.dead_files());
    violations.extend(sources.iter().filter_map(modules::check_style));
    let programs =
        sources.iter().filter(|source| !tree.is_dead(&source.path) && !tree.is_test(&source.path));
    violations.extend(layers::check(programs));
    for source in sources.iter().filter(|source| !tree.is_dead(&source.path)) {
        violations.extend(source::check(source, tree.is_test(&source.path), &exceptions));
        violations.extend(waits::check(source, tree.is_test(&source.path), &exceptions));
        violations.extend(crates::check_file(source, tree.is_test(&source.path), &exceptions));
    }
    violations.extend(exceptions.unused());
    violations.sort();
    Ok(violations)
}

/// Parses every Rust file; one that does not parse is a finding, not an end.
fn parse(files: &[text::TextFile]) -> (Vec<SourceFile>, Vec<Violation>) {
    let mut sources = Vec::new();
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        match SourceFile::parse(&file.path, &file.text) {
            Ok(source) => sources.push(source),
            Err(error) => broken.push(Violation::new(
                &file.path,
                error.span().start().line,
                "syntax",
                format!("does not parse: {error}"),
            )),
        }
    }
    (sources, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_stay_within_one_component_unless_doubled() {
        assert!(matches_glob("device/src/**", "device/src/cpu/mod.rs"));
        assert!(matches_glob("**/cuda.rs", "mlp/src/linear/cuda.rs"));
        assert!(matches_glob("mlp/src/*/cuda.rs", "mlp/src/linear/cuda.rs"));
        assert!(matches_glob("trainer/src/plan*.rs", "trainer/src/plan_memory.rs"));
        assert!(!matches_glob("mlp/src/*.rs", "mlp/src/linear/cuda.rs"));
        assert!(!matches_glob("device/src/**", "reader/src/lib.rs"));
    }

    #[test]
    fn an_exception_that_excuses_nothing_is_a_finding() {
        static LIST: &[(&str, &[Exception])] = &[(
            "file size",
            &[
                Exception { pattern: "a.rs", reason: "used" },
                Exception { pattern: "b.rs", reason: "idle" },
            ],
        )];
        let exceptions = Exceptions { lists: LIST, used: RefCell::default() };
        assert!(exceptions.cover("file size", "a.rs"));
        assert!(!exceptions.cover("unsafe", "a.rs") && !exceptions.cover("file size", "d.rs"));
        let unused = exceptions.unused();
        assert_eq!(unused.len(), 1);
        assert!(unused[0].message.contains("`b.rs`"));
    }

    #[test]
    fn this_workspace_has_every_exception_reasoned() {
        for line in allow::EXCEPTIONS.iter().flat_map(|(_, lines)| *lines) {
            assert!(line.reason.len() > 10, "{}", line.pattern);
            glob::Pattern::new(line.pattern).unwrap();
        }
    }
}
