//! Which file is declared by which `mod` line: finds files that nothing compiles, and files
//! compiled for tests only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::Metadata;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::Violation;
use super::source::{SourceFile, is_test_only};
use super::text::{join, relative};

pub struct ModuleTree {
    dead: Vec<String>,
    /// Every file that only tests reach: integration tests, and `#[cfg(test)] mod x;`.
    tests: BTreeSet<String>,
}

/// A file that one file declares, and whether for tests only.
struct Child {
    path: String,
    test_only: bool,
}

impl ModuleTree {
    /// Walks from every target's root file along the `mod` lines of `sources`.
    pub fn new(root: &Path, metadata: &Metadata, sources: &[SourceFile]) -> Self {
        let mut roots = Vec::new();
        let mut folders = Vec::new();
        for package in metadata.workspace_packages() {
            let folder =
                package.manifest_path.parent().map(|path| relative(root, path.as_std_path()));
            folders.extend(folder.map(|folder| format!("{folder}/")));
            for target in &package.targets {
                roots.push(Child {
                    path: relative(root, target.src_path.as_std_path()),
                    test_only: target.is_test(),
                });
            }
        }
        Self::from_roots(roots, &folders, sources)
    }

    fn from_roots(roots: Vec<Child>, folders: &[String], sources: &[SourceFile]) -> Self {
        let by_path: BTreeMap<&str, &SourceFile> =
            sources.iter().map(|source| (source.path.as_str(), source)).collect();
        let root_paths: BTreeSet<String> = roots.iter().map(|child| child.path.clone()).collect();
        let mut reached: BTreeMap<String, bool> = BTreeMap::new();
        let mut open = roots;
        while let Some(child) = open.pop() {
            let Some(source) = by_path.get(child.path.as_str()) else { continue };
            // A file reached both ways is not a test file; visit again only where that changes.
            match reached.get(&child.path) {
                Some(false) => continue,
                Some(true) if child.test_only => continue,
                _ => reached.insert(child.path.clone(), child.test_only),
            };
            let children = declared_by(source, root_paths.contains(&child.path));
            open.extend(children.into_iter().map(|inner| Child {
                path: inner.path,
                test_only: inner.test_only || child.test_only,
            }));
        }
        let belongs = |path: &str| folders.iter().any(|folder| path.starts_with(folder.as_str()));
        let dead = by_path
            .keys()
            .filter(|path| belongs(path) && !reached.contains_key(**path))
            .map(|path| (*path).to_string())
            .collect();
        let tests =
            reached.into_iter().filter(|(_, test_only)| *test_only).map(|(path, _)| path).collect();
        Self { dead, tests }
    }

    /// Whether the file at `path` is compiled for tests only.
    pub fn is_test(&self, path: &str) -> bool {
        self.tests.contains(path)
    }

    /// Whether no target reaches the file at `path`. What it contains cannot be judged: it may be a
    /// test's.
    pub fn is_dead(&self, path: &str) -> bool {
        self.dead.iter().any(|dead| dead == path)
    }

    pub fn dead_files(&self) -> Vec<Violation> {
        let finding = |path: &String| {
            Violation::new(
                path,
                1,
                "dead file",
                "no `mod` line reaches it, so nothing compiles it: declare it or remove it",
            )
        };
        self.dead.iter().map(finding).collect()
    }
}

/// A module with children is a file next to their folder, in every crate the same way. (Among a
/// folder of tests, a file of its own would be a test.)
pub fn check_style(source: &SourceFile) -> Option<Violation> {
    let is_other = source.path.contains("/src/") && source.path.ends_with("/mod.rs");
    is_other.then(|| {
        let place = source.path.replace("/mod.rs", ".rs");
        Violation::new(&source.path, 1, "module", format!("move it to `{place}`"))
    })
}

/// The files that `source` declares. `is_root` says that it is a target's root file.
fn declared_by(source: &SourceFile, is_root: bool) -> Vec<Child> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let own_folder =
        if is_root || stem == "mod" { folder.to_string() } else { format!("{folder}/{stem}") };
    let mut finder = Finder {
        file_folder: folder.into(),
        folder: own_folder,
        test_depth: 0,
        children: Vec::new(),
    };
    finder.visit_file(&source.syntax);
    finder.children
}

struct Finder {
    /// The folder the file lies in: `#[path]` starts here.
    file_folder: String,
    folder: String,
    test_depth: usize,
    children: Vec<Child>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let depth = usize::from(is_test_only(&item.attrs));
        self.test_depth += depth;
        let folder = self.folder.clone();
        if item.content.is_some() {
            self.folder = format!("{folder}/{}", item.ident);
            visit::visit_item_mod(self, item);
            self.folder = folder;
        } else {
            let test_only = self.test_depth > 0;
            let paths = match path_attributes(&item.attrs) {
                explicit if explicit.is_empty() => {
                    vec![
                        format!("{folder}/{}.rs", item.ident),
                        format!("{folder}/{}/mod.rs", item.ident),
                    ]
                }
                explicit => explicit.iter().map(|path| join(&self.file_folder, path)).collect(),
            };
            self.children.extend(paths.into_iter().map(|path| Child { path, test_only }));
        }
        self.test_depth -= depth;
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.is_ident("include") {
            let path =
                strings(call.tokens.clone()).into_iter().map(|path| join(&self.file_folder, &path));
            let test_only = self.test_depth > 0;
            self.children.extend(path.map(|path| Child { path, test_only }));
        }
        // A macro such as `cfg_if!` may hold module declarations: each is taken as one.
        let tokens: Vec<TokenTree> = call.tokens.clone().into_iter().collect();
        for pair in tokens.windows(3) {
            if let [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)] = pair
                && word == "mod"
                && end.as_char() == ';'
            {
                let test_only = self.test_depth > 0;
                self.children.push(Child { path: format!("{}/{name}.rs", self.folder), test_only });
                self.children
                    .push(Child { path: format!("{}/{name}/mod.rs", self.folder), test_only });
            }
        }
    }
}

/// Every file named by `#[path = "…"]` or `#[cfg_attr(…, path = "…")]`.
fn path_attributes(attributes: &[syn::Attribute]) -> Vec<String> {
    let mut paths = Vec::new();
    for attribute in attributes {
        match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => {
                if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value {
                    paths.push(text.value());
                }
            }
            syn::Meta::List(list) if list.path.is_ident("cfg_attr") => {
                paths.extend(
                    strings(list.tokens.clone()).into_iter().filter(|text| text.ends_with(".rs")),
                );
            }
            _ => {}
        }
    }
    paths
}

/// The string literals of `tokens`.
fn strings(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .filter_map(|token| match token {
            TokenTree::Literal(literal) => syn::parse_str::<syn::LitStr>(&literal.to_string()).ok(),
            _ => None,
        })
        .map(|text| text.value())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_in_its_own_folder_is_found() {
        let found = |path: &str| check_style(&SourceFile::parse(path, "").unwrap()).is_some();
        assert!(found("reader/src/io/mod.rs"));
        assert!(!found("reader/src/io.rs") && !found("reader/tests/support/mod.rs"));
    }

    fn tree(files: &[(&str, &str)]) -> ModuleTree {
        let sources: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::parse(path, text).unwrap()).collect();
        let roots = vec![
            Child { path: "a/src/lib.rs".into(), test_only: false },
            Child { path: "a/tests/t.rs".into(), test_only: true },
        ];
        ModuleTree::from_roots(roots, &["a/".into()], &sources)
    }

    #[test]
    fn a_file_that_nothing_declares_is_dead() {
        let tree = tree(&[
            ("a/src/lib.rs", "mod one; mod two;"),
            ("a/src/one.rs", "mod deep;"),
            ("a/src/one/deep.rs", ""),
            ("a/src/two/mod.rs", "mod under;"),
            ("a/src/two/under.rs", ""),
            ("a/src/lost.rs", ""),
            ("fuzz/x.rs", ""),
        ]);
        let dead: Vec<String> = tree.dead_files().into_iter().map(|found| found.file).collect();
        assert_eq!(dead, ["a/src/lost.rs"]);
    }

    #[test]
    fn twin_files_and_includes_count_as_declared() {
        let tree = tree(&[
            (
                "a/src/lib.rs",
                "#[cfg_attr(feature = \"cuda\", path = \"cuda.rs\")]\n\
                 #[cfg_attr(not(feature = \"cuda\"), path = \"cuda_unsupported.rs\")]\nmod cuda;\n\
                 #[path = \"odd/name.rs\"] mod other;\ninclude!(\"../generated.rs\");",
            ),
            ("a/src/cuda.rs", ""),
            ("a/src/cuda_unsupported.rs", ""),
            ("a/src/odd/name.rs", ""),
            ("a/generated.rs", ""),
        ]);
        assert_eq!(tree.dead_files(), []);
    }

    #[test]
    fn test_modules_are_test_files_all_the_way_down() {
        let tree = tree(&[
            (
                "a/src/lib.rs",
                "#[cfg(test)] mod tests; mod real; mod shared; #[cfg(test)] mod shared;",
            ),
            ("a/src/tests.rs", "mod inner;"),
            ("a/src/tests/inner.rs", ""),
            ("a/src/real.rs", ""),
            ("a/src/shared.rs", ""),
            ("a/tests/t.rs", "mod common;"),
            ("a/tests/common/mod.rs", ""),
        ]);
        for path in
            ["a/src/tests.rs", "a/src/tests/inner.rs", "a/tests/t.rs", "a/tests/common/mod.rs"]
        {
            assert!(tree.is_test(path), "{path}");
        }
        for path in ["a/src/lib.rs", "a/src/real.rs", "a/src/shared.rs"] {
            assert!(!tree.is_test(path), "{path}");
        }
        assert_eq!(tree.dead_files(), []);
    }
}
