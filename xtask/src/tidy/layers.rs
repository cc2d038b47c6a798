//! Imports inside a crate: no two files import each other, around whatever number of others, and
//! where a crate has layers, none imports from a layer above its own.
//!
//! A module and those inside it may know each other: together they are one.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{ItemUse, UseTree};

use super::Violation;
use super::source::SourceFile;

const TRAINER: [&str; 13] = [
    "units",
    "state",
    "error",
    "system",
    "config",
    "auto",
    "report",
    "data",
    "iteration",
    "plan",
    "run",
    "session",
    "commands",
];

type Name = Vec<String>;

struct Crate<'a> {
    files: BTreeMap<Name, &'a SourceFile>,
    imports: BTreeMap<Name, BTreeMap<Name, usize>>,
}

/// Checks every crate of `sources`, the files that are compiled into programs.
pub fn check<'a>(sources: impl Iterator<Item = &'a SourceFile>) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, BTreeMap<Name, &SourceFile>> = BTreeMap::new();
    for source in sources {
        let Some((folder, path)) = source.path.split_once("/src/") else { continue };
        let is_program = path == "main.rs" || path.starts_with("bin/");
        if !is_program {
            crates.entry(folder).or_default().insert(name_of(path), source);
        }
    }
    let mut violations = Vec::new();
    for (folder, files) in crates {
        let members = Crate::new(files);
        violations.extend(members.cycles());
        if folder == "trainer" {
            violations.extend(members.upward(&TRAINER));
        }
    }
    violations
}

fn name_of(path: &str) -> Name {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let parts = path.split('/').filter(|part| *part != "lib" && *part != "mod");
    parts.map(str::to_owned).collect()
}

fn is_one(a: &[String], b: &[String]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

impl<'a> Crate<'a> {
    fn new(files: BTreeMap<Name, &'a SourceFile>) -> Self {
        let mut imports = BTreeMap::new();
        for (name, source) in &files {
            let mut finder = Finder { name, files: &files, found: BTreeMap::new() };
            finder.visit_file(&source.program);
            imports.insert(name.clone(), finder.found);
        }
        Self { files, imports }
    }

    fn report(&self, from: &Name, line: usize, message: String) -> Violation {
        Violation::new(&self.files[from].path, line, "layers", message)
    }

    /// What can be reached from `name` along imports.
    fn reached(&self, name: &Name) -> BTreeSet<&Name> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&Name> = self.imports[name].keys().collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.imports[next].keys());
            }
        }
        reached
    }

    /// Each import that leads back to the file that has it.
    fn cycles(&self) -> Vec<Violation> {
        let reached: BTreeMap<_, _> =
            self.imports.keys().map(|name| (name, self.reached(name))).collect();
        let imports =
            self.imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        let back = imports.filter(|(from, (to, _))| reached[to].contains(from));
        back.map(|(from, (to, &line))| {
            let message = format!(
                "imports `{}`, which imports it: move what both need below them",
                to.join("::")
            );
            self.report(from, line, message)
        })
        .collect()
    }

    fn upward(&self, layers: &[&str]) -> Vec<Violation> {
        let layer = |name: &Name| {
            layers.iter().position(|layer| name.first().is_some_and(|top| top == layer))
        };
        let mut violations = Vec::new();
        for (from, imports) in &self.imports {
            let Some(own) = layer(from) else { continue };
            for (to, &line) in imports.iter().filter(|(to, _)| layer(to).is_some_and(|of| of > own))
            {
                let message =
                    format!("`{}` lies above `{}`: move what is needed down", to[0], layers[own]);
                violations.push(self.report(from, line, message));
            }
        }
        violations
    }
}

/// Finds the modules of its own crate that a file names, outside of tests.
struct Finder<'a> {
    name: &'a Name,
    files: &'a BTreeMap<Name, &'a SourceFile>,
    found: BTreeMap<Name, usize>,
}

impl Finder<'_> {
    /// Notes the module that `path` leads to or into.
    fn note(&mut self, path: &[String], line: usize) {
        let mut to: Name = match path.first().map(String::as_str) {
            Some("crate") => Name::new(),
            Some("self" | "super") => self.name.clone(),
            _ => return,
        };
        for part in path {
            match part.as_str() {
                "crate" | "self" => {}
                "super" => drop(to.pop()),
                part => to.push(part.to_owned()),
            }
        }
        while !self.files.contains_key(&to) {
            if to.pop().is_none() {
                return;
            }
        }
        if !is_one(&to, self.name) {
            self.found.entry(to).or_insert(line);
        }
    }

    fn note_tree(&mut self, tree: &UseTree, path: &mut Name, line: usize) {
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.note_tree(&inner.tree, path, line);
                path.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.note_tree(item, path, line));
            }
            UseTree::Name(name) => {
                self.note(&[path.as_slice(), &[name.ident.to_string()]].concat(), line)
            }
            UseTree::Rename(name) => {
                self.note(&[path.as_slice(), &[name.ident.to_string()]].concat(), line)
            }
            UseTree::Glob(_) => self.note(path, line),
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&item.tree, &mut Name::new(), item.use_token.span.start().line);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map_or(1, |first| first.ident.span().start().line);
        let parts: Name = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.note(&parts, line);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            files.iter().map(|(path, text)| SourceFile::parse(path, text).unwrap()).collect();
        check(sources.iter())
            .into_iter()
            .map(|found| format!("{}:{}", found.file, found.line))
            .collect()
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let (a, b) = ("reader/src/a.rs", "reader/src/b.rs");
        let c = ("reader/src/c.rs", "\nfn f() -> crate::a::A { super::a::f() }");
        assert_eq!(found(&[(a, "use crate::b::{self, B};"), (b, "use super::c;"), c]).len(), 3);
        assert_eq!(found(&[(a, "use crate::b::B;"), (b, ""), c]), [] as [&str; 0]);
        let in_test = "#[cfg(test)]\nmod tests { use crate::a; }";
        assert_eq!(found(&[(a, "use crate::b::B;"), (b, in_test)]), [] as [&str; 0]);
        let child = ("reader/src/a/inner.rs", "use super::A;");
        assert_eq!(found(&[(a, "use inner::B; mod inner;"), child]), [] as [&str; 0]);
    }

    #[test]
    fn imports_against_the_layers_are_found() {
        let run = "use crate::config::Config;\nuse crate::commands::cli;";
        let files = [
            ("trainer/src/run.rs", run),
            ("trainer/src/config.rs", ""),
            ("trainer/src/commands.rs", ""),
        ];
        assert_eq!(found(&files), ["trainer/src/run.rs:2"]);
    }
}
