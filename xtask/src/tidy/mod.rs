//! The rules of the workspace that neither rustc nor clippy knows, each checked by reading the
//! source.
//!
//! | rule | says |
//! |---|---|
//! | crates | which package may import which ([`allow::CRATES`]); inside the trainer, which files may see two crates |
//! | layers | inside a crate no files import each other, and the trainer's layers import downwards ([`layers`]) |
//! | sizes | a function is at most 70 lines (a test 100), a file at most 600 |
//! | words | none that the glossary replaces ([`words`]) |
//! | width | no line over 100 columns, except for tables, drawings and addresses ([`width`]) |
//! | unwrap | none outside tests |
//! | unsafe | only in listed files |
//! | environment | read only in listed files, so that it cannot change results |
//! | waits | in `comm`, none without an end ([`waits`]) |
//! | to-do | carries an issue number |
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
mod text;
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
    /// The rule's name, as in the table above.
    pub rule: &'static str,
    /// What is wrong, then what to do.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: [{}] {}", self.file, self.line, self.rule, self.message)
    }
}

/// A list of exceptions that remembers which of its lines were needed.
pub struct Allowed {
    rule: &'static str,
    exceptions: &'static [Exception],
    used: RefCell<BTreeSet<usize>>,
}

impl Allowed {
    /// The list `exceptions` of the rule `rule`, none of them used yet.
    pub fn new(rule: &'static str, exceptions: &'static [Exception]) -> Self {
        Self { rule, exceptions, used: RefCell::default() }
    }

    /// Whether a line of the list covers `subject`: a path, or `path::function`.
    pub fn covers(&self, subject: &str) -> bool {
        let found =
            self.exceptions.iter().position(|exception| matches_glob(exception.pattern, subject));
        if let Some(index) = found {
            self.used.borrow_mut().insert(index);
        }
        found.is_some()
    }

    /// A finding for each line that excused nothing. Lines marked `standing` describe the plan and
    /// may wait.
    fn unused(&self) -> Vec<Violation> {
        let used = self.used.borrow();
        let idle = |index: &usize| !used.contains(index) && !self.exceptions[*index].standing;
        (0..self.exceptions.len())
            .filter(idle)
            .map(|index| Violation {
                file: "xtask/src/tidy/allow.rs".into(),
                line: 1,
                rule: self.rule,
                message: format!(
                    "the exception `{}` ({}) excuses nothing any more: remove its line",
                    self.exceptions[index].pattern, self.exceptions[index].reason
                ),
            })
            .collect()
    }
}

/// Whether `subject` matches `pattern`, in which `*` stands for any part of one path component and
/// `**` for any number of components.
pub fn matches_glob(pattern: &str, subject: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let subject: Vec<&str> = subject.split('/').collect();
    matches_components(&pattern, &subject)
}

fn matches_components(pattern: &[&str], subject: &[&str]) -> bool {
    match (pattern.split_first(), subject.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => {
            (0..=subject.len()).any(|skip| matches_components(rest, &subject[skip..]))
        }
        (Some((first, rest)), Some((part, parts))) => {
            matches_component(first, part) && matches_components(rest, parts)
        }
        _ => false,
    }
}

fn matches_component(pattern: &str, part: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == part,
        Some((before, after)) => part.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len())
                .any(|skip| rest.is_char_boundary(skip) && matches_component(after, &rest[skip..]))
        }),
    }
}

/// The exceptions of every rule, each remembering what it was used for.
pub struct Exceptions {
    function_size: Allowed,
    file_size: Allowed,
    unsafe_code: Allowed,
    environment: Allowed,
    two_crates: Allowed,
    endless_waits: Allowed,
}

impl Exceptions {
    fn listed() -> Self {
        Self {
            function_size: Allowed::new("function size", allow::LONG_FUNCTIONS),
            file_size: Allowed::new("file size", allow::LONG_FILES),
            unsafe_code: Allowed::new("unsafe", allow::UNSAFE_FILES),
            environment: Allowed::new("environment", allow::ENVIRONMENT_READERS),
            two_crates: Allowed::new("two crates", allow::SEES_TWO_CRATES),
            endless_waits: Allowed::new("waits", allow::ENDLESS_WAITS),
        }
    }

    fn unused(&self) -> Vec<Violation> {
        let lists = [
            &self.function_size,
            &self.file_size,
            &self.unsafe_code,
            &self.environment,
            &self.two_crates,
            &self.endless_waits,
        ];
        lists.into_iter().flat_map(Allowed::unused).collect()
    }
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
            Err(error) => broken.push(Violation {
                file: file.path.clone(),
                line: error.span().start().line,
                rule: "syntax",
                message: format!("does not parse: {error}"),
            }),
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
        static LIST: &[Exception] = &[
            Exception { pattern: "a.rs", reason: "used", standing: false },
            Exception { pattern: "b.rs", reason: "idle", standing: false },
            Exception { pattern: "c.rs", reason: "planned", standing: true },
        ];
        let allowed = Allowed::new("file size", LIST);
        assert!(allowed.covers("a.rs"));
        assert!(!allowed.covers("d.rs"));
        let unused = allowed.unused();
        assert_eq!(unused.len(), 1);
        assert!(unused[0].message.contains("`b.rs`"));
    }

    #[test]
    fn this_workspace_has_every_exception_reasoned() {
        for list in [
            allow::LONG_FUNCTIONS,
            allow::LONG_FILES,
            allow::UNSAFE_FILES,
            allow::ENVIRONMENT_READERS,
            allow::SEES_TWO_CRATES,
            allow::ENDLESS_WAITS,
        ] {
            assert!(list.iter().all(|exception| exception.reason.len() > 10));
        }
    }
}
