//! `cargo xtask licences`: the licence and the source of every dependency, against `deny.toml`.
//!
//! The same file that cargo-deny reads, so that both give one answer; this check needs nothing but
//! cargo, and so runs everywhere. It reads `licenses.allow`, `licenses.exceptions`,
//! `sources.allow-registry`, `bans.deny` and `graph.targets`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{MetadataCommand, Package};
use toml::{Table, Value};

/// What `deny.toml` allows.
struct Policy {
    licences: Vec<String>,
    /// Further licences of single crates.
    exceptions: BTreeMap<String, Vec<String>>,
    registries: Vec<String>,
    banned: Vec<String>,
    targets: Vec<String>,
}

impl Policy {
    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("deny.toml")?;
        let section = |name: &str| table.get(name).and_then(Value::as_table);
        let list = |section_name: &str, key: &str| {
            section(section_name)
                .and_then(|section| section.get(key))
                .map(strings)
                .unwrap_or_default()
        };
        let exceptions = section("licenses")
            .and_then(|section| section.get("exceptions"))
            .and_then(Value::as_array);
        let exceptions = exceptions
            .into_iter()
            .flatten()
            .filter_map(|entry| Some((name_of(entry)?, strings(entry.get("allow")?))))
            .collect();
        let banned =
            section("bans").and_then(|section| section.get("deny")).and_then(Value::as_array);
        Ok(Self {
            licences: list("licenses", "allow"),
            exceptions,
            registries: list("sources", "allow-registry"),
            banned: banned.into_iter().flatten().filter_map(name_of).collect(),
            targets: list("graph", "targets"),
        })
    }

    /// What is wrong with a dependency, one sentence each.
    fn complaints(&self, name: &str, licence: Option<&str>, source: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let allows = |word: &str| {
            let own = self.exceptions.get(name);
            self.licences.iter().chain(own.into_iter().flatten()).any(|allowed| allowed == word)
        };
        match licence {
            None => complaints.push(format!("{name} states no licence")),
            Some(expression) if !is_allowed(expression, &allows) => {
                complaints.push(format!(
                    "{name}: the licence `{expression}` is not allowed by deny.toml"
                ));
            }
            Some(_) => {}
        }
        let registry = source.trim_start_matches("registry+").trim_start_matches("sparse+");
        if !self.registries.iter().any(|allowed| allowed == registry) {
            complaints.push(format!("{name} comes from {source}, which deny.toml does not allow"));
        }
        if self.banned.iter().any(|banned| banned == name) {
            complaints.push(format!("{name} is banned by deny.toml"));
        }
        complaints
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
}

/// The crate that an entry of `bans.deny` or `licenses.exceptions` names.
fn name_of(entry: &Value) -> Option<String> {
    let name =
        entry.as_str().or_else(|| entry.get("crate").or_else(|| entry.get("name"))?.as_str())?;
    name.split('@').next().map(str::to_string)
}

/// Whether an SPDX expression can be satisfied with licences that `allows` accepts.
/// `/` is the old way to write `OR`.
fn is_allowed(expression: &str, allows: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    either(&mut rest, allows) && rest.is_empty()
}

/// `expression = term {"OR" term}`. Both sides are read to the end, whatever the first came to.
fn either(rest: &mut &[&str], allows: &dyn Fn(&str) -> bool) -> bool {
    let mut value = both(rest, allows);
    while let ["OR", tail @ ..] = *rest {
        *rest = tail;
        value |= both(rest, allows);
    }
    value
}

/// `term = factor {"AND" factor}`.
fn both(rest: &mut &[&str], allows: &dyn Fn(&str) -> bool) -> bool {
    let mut value = single(rest, allows);
    while let ["AND", tail @ ..] = *rest {
        *rest = tail;
        value &= single(rest, allows);
    }
    value
}

/// `factor = "(" expression ")" | licence ["WITH" exception]`.
fn single(rest: &mut &[&str], allows: &dyn Fn(&str) -> bool) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let value = either(rest, allows);
            match *rest {
                [")", tail @ ..] => {
                    *rest = tail;
                    value
                }
                _ => false,
            }
        }
        [licence, "WITH", exception, tail @ ..] => {
            *rest = tail;
            allows(&format!("{licence} WITH {exception}"))
        }
        [licence, tail @ ..] => {
            *rest = tail;
            allows(licence)
        }
        [] => false,
    }
}

/// Checks every dependency for the platforms of `graph.targets`; `Ok(true)` where there is no
/// complaint.
pub fn run(root: &Path) -> Result<bool> {
    let path = root.join("deny.toml");
    let policy =
        Policy::parse(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?;
    let filters = policy.targets.iter().map(|target| format!("--filter-platform={target}"));
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(filters.collect::<Vec<_>>())
        .exec()
        .context("cargo metadata")?;
    let foreign: Vec<&Package> =
        metadata.packages.iter().filter(|package| package.source.is_some()).collect();
    let mut complaints = 0;
    for package in &foreign {
        let source = package.source.as_ref().map(ToString::to_string).unwrap_or_default();
        for complaint in policy.complaints(&package.name, package.license.as_deref(), &source) {
            println!("{complaint}");
            complaints += 1;
        }
    }
    println!("licences: {} dependencies, {complaints} complaints", foreign.len());
    Ok(complaints == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "odd", allow = ["Zlib"] }]
        [bans]
        deny = [{ crate = "openssl-sys", reason = "no" }, "other"]
        [sources]
        allow-registry = ["https://example.org/index"]
    "#;
    const INDEX: &str = "registry+https://example.org/index";

    fn complaints(name: &str, licence: &str) -> Vec<String> {
        Policy::parse(POLICY).unwrap().complaints(name, Some(licence), INDEX)
    }

    #[test]
    fn expressions_are_read_as_spdx_says() {
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0 OR MIT",
            "GPL-3.0/MIT",
            "MIT AND Apache-2.0",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert_eq!(complaints("a", good), [""; 0], "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT AND GPL-3.0)",
            "MIT WITH LLVM-exception",
            "",
            "MIT MIT",
            "(MIT",
        ] {
            assert_eq!(complaints("a", bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn an_exception_holds_for_its_crate_alone() {
        assert_eq!(complaints("odd", "Zlib"), [""; 0]);
        assert_eq!(complaints("even", "Zlib").len(), 1);
    }

    #[test]
    fn sources_bans_and_missing_licences_are_complaints() {
        let policy = Policy::parse(POLICY).unwrap();
        assert!(policy.complaints("a", None, INDEX)[0].contains("states no licence"));
        assert!(
            policy.complaints("a", Some("MIT"), "git+https://example.org/a")[0]
                .contains("comes from git+")
        );
        assert!(complaints("openssl-sys", "MIT")[0].contains("banned"));
        assert!(complaints("other", "MIT")[0].contains("banned"));
        assert_eq!(policy.targets, ["x86_64-unknown-linux-gnu"]);
    }

    #[test]
    fn the_projects_own_policy_names_every_list() {
        let text = fs::read_to_string(crate::workspace_root().join("deny.toml")).unwrap();
        let policy = Policy::parse(&text).unwrap();
        assert!(policy.licences.iter().any(|licence| licence == "Apache-2.0"));
        assert!(
            !policy.registries.is_empty()
                && !policy.targets.is_empty()
                && !policy.banned.is_empty()
        );
    }
}
