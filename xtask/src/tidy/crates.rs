//! The table of crates: which package imports which, and which of the trainer's files see more than
//! one crate.

use std::collections::BTreeMap;
use std::path::Path;

use cargo_metadata::Metadata;
use proc_macro2::{Ident, Span};
use syn::visit::{self, Visit};

use super::allow::{CRATES, Crate, RESTRICTED_CRATES, SIBLINGS};
use super::source::{SourceFile, words};
use super::text::relative;
use super::{Exceptions, Violation};

struct Package {
    name: String,
    manifest: String,
    /// Dependencies of every kind: normal, dev and build.
    dependencies: Vec<String>,
}

/// Checks every package's dependencies against [`CRATES`] and [`RESTRICTED_CRATES`].
pub fn check(root: &Path, metadata: &Metadata) -> Vec<Violation> {
    let packages: Vec<Package> = metadata
        .workspace_packages()
        .iter()
        .map(|package| Package {
            name: package.name.to_string(),
            manifest: relative(root, package.manifest_path.as_std_path()),
            dependencies: package
                .dependencies
                .iter()
                .map(|dependency| dependency.name.clone())
                .collect(),
        })
        .collect();
    check_packages(&packages)
}

fn check_packages(packages: &[Package]) -> Vec<Violation> {
    let is_ours = |name: &str| packages.iter().any(|package| package.name == name);
    let mut violations = Vec::new();
    for package in packages {
        let report = |message| Violation::new(&package.manifest, 1, "crates", message);
        let Some(Crate { may_use, .. }) = CRATES.iter().find(|line| line.package == package.name)
        else {
            violations.push(report(format!(
                "the package `{}` has no line in the table of crates: add one to \
                 xtask/src/tidy/allow.rs and ARCHITECTURE.md",
                package.name
            )));
            continue;
        };
        for dependency in &package.dependencies {
            if is_ours(dependency) && !may_use.contains(&dependency.as_str()) {
                violations.push(report(format!(
                    "`{}` imports `{dependency}`, which the table of crates does not \
                     allow: pass plain data through the trainer instead",
                    package.name
                )));
            }
            let owners = RESTRICTED_CRATES
                .iter()
                .find(|(name, _)| name == dependency)
                .map(|(_, owners)| *owners);
            if let Some(owners) = owners.filter(|owners| !owners.contains(&package.name.as_str())) {
                violations
                    .push(report(format!("`{dependency}` belongs to {} only", owners.join(", "))));
            }
        }
    }
    violations
}

/// Checks that a file of the trainer sees at most one sibling crate, outside the listed files and
/// tests.
pub fn check_file(source: &SourceFile, is_test: bool, exceptions: &Exceptions) -> Vec<Violation> {
    if is_test || !source.path.starts_with("trainer/src/") {
        return Vec::new();
    }
    let mut finder = SiblingFinder { seen: BTreeMap::new() };
    finder.visit_file(&source.program);
    if finder.seen.len() < 2 || exceptions.cover("two crates", &source.path) {
        return Vec::new();
    }
    let crates: Vec<&str> =
        finder.seen.keys().map(|name| name.trim_start_matches("headlong_")).collect();
    let line = finder.seen.values().copied().max().unwrap_or(1);
    let message = format!(
        "sees {}: only the listed files see more than one crate; move the joining \
         code there",
        crates.join(" and ")
    );
    vec![Violation::new(&source.path, line, "two crates", message)]
}

/// Collects the first line on which each sibling is named, outside test code.
struct SiblingFinder {
    seen: BTreeMap<String, usize>,
}

impl SiblingFinder {
    fn note(&mut self, word: &str, span: Span) {
        if SIBLINGS.contains(&word) {
            self.seen.entry(word.to_string()).or_insert(span.start().line);
        }
    }
}

impl<'ast> Visit<'ast> for SiblingFinder {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.note(&ident.to_string(), ident.span());
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        words(call.tokens.clone()).for_each(|(word, span)| self.note(&word, span));
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.into(),
            manifest: format!("{name}/Cargo.toml"),
            dependencies: dependencies.iter().map(|name| (*name).to_string()).collect(),
        }
    }

    /// Checks `package` in a workspace that has every crate.
    fn messages(package: Package) -> Vec<String> {
        let mut packages: Vec<Package> = CRATES
            .iter()
            .filter(|line| line.package != package.name)
            .map(|line| self::package(line.package, &[]))
            .collect();
        packages.push(package);
        check_packages(&packages).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn siblings_never_import_each_other() {
        assert_eq!(messages(package("headlong-reader", &["headlong-device", "memchr"])), [""; 0]);
        for sibling in ["headlong-embedding", "headlong-mlp", "headlong-comm", "headlong"] {
            let found = messages(package("headlong-reader", &[sibling]));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(&format!("`headlong-reader` imports `{sibling}`")));
        }
    }

    #[test]
    fn benches_import_all_and_nothing_imports_them() {
        assert_eq!(messages(package("headlong-benches", &["headlong", "headlong-comm"])), [""; 0]);
        assert_eq!(messages(package("headlong", &["headlong-benches"])).len(), 1);
        assert_eq!(messages(package("xtask", &["headlong-device"])).len(), 1);
        assert_eq!(messages(package("headlong-device", &["headlong-reader"])).len(), 1);
    }

    #[test]
    fn unknown_packages_and_restricted_crates_are_found() {
        assert!(
            messages(package("headlong-extra", &[]))[0].contains("no line in the table of crates")
        );
        assert!(
            messages(package("headlong-mlp", &["clap"]))[0].contains("`clap` belongs to headlong,")
        );
        assert_eq!(messages(package("headlong", &["clap"])), [""; 0]);
    }

    fn two_crates(path: &str, text: &str, is_test: bool) -> Vec<Violation> {
        check_file(&SourceFile::parse(path, text).unwrap(), is_test, &Exceptions::listed())
    }

    #[test]
    fn only_the_listed_files_see_two_crates() {
        let text = "use headlong_reader::Batch;\nfn f() { headlong_mlp::loss(); }\n";
        let found = two_crates("trainer/src/units.rs", text, false);
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert!(found[0].message.contains("sees mlp and reader"), "{}", found[0].message);
        assert_eq!(two_crates("trainer/src/plan/sizes.rs", text, false), []);
        assert_eq!(two_crates("trainer/tests/x.rs", text, true), []);
        assert_eq!(two_crates("benches/src/main.rs", text, false), []);
    }

    #[test]
    fn the_base_crate_and_test_code_do_not_count_as_a_second_crate() {
        let ground = "use headlong_reader::Batch;\nuse headlong_device::Pool;\n";
        assert_eq!(two_crates("trainer/src/units.rs", ground, false), []);
        let tests =
            "use headlong_reader::Batch;\n#[cfg(test)]\nmod tests { use headlong_mlp::Loss; }\n";
        assert_eq!(two_crates("trainer/src/units.rs", tests, false), []);
    }

    #[test]
    fn macros_do_not_hide_a_crate() {
        let text = "use headlong_reader::Batch;\nfn f() { vec![headlong_comm::Rank(0)]; }\n";
        assert_eq!(two_crates("trainer/src/units.rs", text, false).len(), 1);
    }
}
