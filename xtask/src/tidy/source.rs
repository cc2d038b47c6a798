//! Rules read from the syntax tree: function sizes, `unwrap`, `unsafe`, the environment, opt-outs.
//!
//! Macro bodies have no syntax tree, so they are read as tokens: `unwrap` inside `assert!` counts,
//! and so does a function written inside `vectorized!`.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Block, Meta, Signature};

use super::{Exceptions, Violation};

/// Lines of the longest function, from its `fn` to its closing brace.
const FUNCTION_LINES: usize = 70;
/// The same for a test, whose cases may stand in one table.
const TEST_FUNCTION_LINES: usize = 100;
/// Lints that no file may switch off.
const PROTECTED_LINTS: &[&str] =
    &["unwrap_used", "undocumented_unsafe_blocks", "unsafe_op_in_unsafe_fn"];

pub struct SourceFile {
    pub path: String,
    pub syntax: syn::File,
    /// The same without what is compiled for tests only.
    pub program: syn::File,
    pub tokens: TokenStream,
}

impl SourceFile {
    /// Parses `text`, the content of the file at `path`.
    pub fn parse(path: &str, text: &str) -> syn::Result<Self> {
        let syntax = syn::parse_file(text)?;
        let without_shebang =
            if syntax.shebang.is_some() { text.split_once('\n').map_or("", |t| t.1) } else { text };
        let tokens = without_shebang.parse().map_err(syn::Error::from)?;
        let mut program = syntax.clone();
        WithoutTests.visit_file_mut(&mut program);
        Ok(Self { path: path.into(), syntax, program, tokens })
    }
}

/// Takes out what is compiled for tests only.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_test_only(attributes_of(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut item.content {
            items.retain(|item| !is_test_only(attributes_of(item)));
        }
        visit_mut::visit_item_mod_mut(self, item);
    }
}

fn attributes_of(item: &syn::Item) -> &[Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Checks one file; `is_test` says that the whole of it is compiled for tests only.
pub fn check(source: &SourceFile, is_test: bool, exceptions: &Exceptions) -> Vec<Violation> {
    let mut visitor =
        Visitor { source, exceptions, test_depth: usize::from(is_test), violations: Vec::new() };
    visitor.visit_file(&source.syntax);
    let mut violations = visitor.violations;
    violations.extend(check_unsafe(source, exceptions));
    violations.extend(check_environment(source, exceptions));
    violations
}

/// Whether one of `attributes` compiles the item for tests only: `#[test]`, `#[cfg(test)]`,
/// `#[cfg(all(test, …))]`.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => requires_test(list.tokens.clone()),
        _ => false,
    })
}

/// Whether a `cfg` condition can hold in a test build only. `any` and `not` are taken as not
/// requiring it.
fn requires_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner
                .split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                .any(|part| requires_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

struct Visitor<'a> {
    source: &'a SourceFile,
    exceptions: &'a Exceptions,
    test_depth: usize,
    violations: Vec<Violation>,
}

impl Visitor<'_> {
    fn report(&mut self, span: Span, rule: &'static str, message: String) {
        let line = span.start().line;
        self.violations.push(Violation::new(&self.source.path, line, rule, message));
    }

    /// Runs `visit` with its findings judged as test code where `attributes` say so.
    fn scoped(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let depth = usize::from(is_test_only(attributes));
        self.test_depth += depth;
        visit(self);
        self.test_depth -= depth;
    }

    fn check_size(&mut self, name: &str, open: Span, close: Span) {
        let lines = close.end().line + 1 - open.start().line;
        let limit = if self.test_depth > 0 { TEST_FUNCTION_LINES } else { FUNCTION_LINES };
        let subject = format!("{}::{name}", self.source.path);
        if lines > limit && !self.exceptions.cover("function size", &subject) {
            self.report(
                open,
                "function size",
                format!(
                    "`{name}` has {lines} lines, more than {limit}: give its phases names of their \
                     own"
                ),
            );
        }
    }

    fn check_function(&mut self, signature: &Signature, block: &Block) {
        self.check_size(
            &signature.ident.to_string(),
            signature.fn_token.span(),
            block.brace_token.span.close(),
        );
    }

    fn unwrap_found(&mut self, span: Span, name: &str) {
        if self.test_depth == 0 {
            let advice = "return an error, or `expect` with the reason it cannot fail";
            self.report(span, "unwrap", format!("`{name}` outside tests: {advice}"));
        }
    }

    /// Reads the tokens of a macro: calls of `unwrap`, and functions defined inside.
    fn check_macro_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.check_macro_tokens(group.stream()),
                TokenTree::Ident(word)
                    if is_unwrap(&word.to_string()) && follows_dot(&tokens, index) =>
                {
                    self.unwrap_found(word.span(), &word.to_string());
                }
                TokenTree::Ident(word) if word == "fn" => {
                    self.check_macro_function(&tokens[index..])
                }
                _ => {}
            }
        }
    }

    /// `tokens` begin at a `fn`; measures it where a name and a body follow.
    fn check_macro_function(&mut self, tokens: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = tokens.get(1) else { return };
        let ends = |token: &&TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        if let Some(TokenTree::Group(body)) = tokens.iter().find(ends) {
            self.check_size(&name.to_string(), tokens[0].span(), body.span_close());
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.scoped(&item.attrs, |visitor| visit::visit_item_mod(visitor, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.scoped(&item.attrs, |visitor| {
            visitor.check_function(&item.sig, &item.block);
            visit::visit_item_fn(visitor, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.scoped(&item.attrs, |visitor| {
            visitor.check_function(&item.sig, &item.block);
            visit::visit_impl_item_fn(visitor, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.scoped(&item.attrs, |visitor| {
            if let Some(block) = &item.default {
                visitor.check_function(&item.sig, block);
            }
            visit::visit_trait_item_fn(visitor, item);
        });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.scoped(&item.attrs, |visitor| visit::visit_item_impl(visitor, item));
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        self.scoped(&item.attrs, |visitor| visit::visit_item_macro(visitor, item));
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.scoped(&item.attrs, |visitor| visit::visit_item_const(visitor, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.scoped(&item.attrs, |visitor| visit::visit_item_static(visitor, item));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if is_unwrap(&name) && call.args.is_empty() {
            self.unwrap_found(call.method.span(), &name);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        // `Option::unwrap` handed to a combinator.
        let last = path.path.segments.last().map(|segment| segment.ident.to_string());
        if let Some(name) = last.filter(|name| path.path.segments.len() > 1 && is_unwrap(name)) {
            self.unwrap_found(path.span(), &name);
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.check_macro_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta
            && (list.path.is_ident("allow") || list.path.is_ident("expect"))
            && let Some(lint) = names_protected_lint(list.tokens.clone())
            && self.test_depth == 0
        {
            let message =
                format!("`{lint}` is switched off: no file may opt out, mend the code instead");
            self.report(attribute.span(), "lints", message);
        }
        visit::visit_attribute(self, attribute);
    }
}

fn is_unwrap(name: &str) -> bool {
    name == "unwrap" || name == "unwrap_err"
}

fn follows_dot(tokens: &[TokenTree], index: usize) -> bool {
    let before = index.checked_sub(1).and_then(|before| tokens.get(before));
    matches!(before, Some(TokenTree::Punct(punct)) if punct.as_char() == '.')
}

fn names_protected_lint(tokens: TokenStream) -> Option<String> {
    words(tokens).map(|(word, _)| word).find(|word| PROTECTED_LINTS.contains(&word.as_str()))
}

/// Every identifier and keyword of `tokens`, groups included, with its place.
pub fn words(tokens: TokenStream) -> Box<dyn Iterator<Item = (String, Span)>> {
    Box::new(tokens.into_iter().flat_map(|token| -> Box<dyn Iterator<Item = (String, Span)>> {
        match token {
            TokenTree::Ident(word) => Box::new(std::iter::once((word.to_string(), word.span()))),
            TokenTree::Group(group) => words(group.stream()),
            _ => Box::new(std::iter::empty()),
        }
    }))
}

fn check_unsafe(source: &SourceFile, exceptions: &Exceptions) -> Vec<Violation> {
    let first = words(source.tokens.clone()).find(|(word, _)| word == "unsafe");
    let Some((_, span)) = first else { return Vec::new() };
    if exceptions.cover("unsafe", &source.path) {
        return Vec::new();
    }
    let advice = "use the safe views of `headlong-device`, or list the file with a reason in \
                  xtask/src/tidy/allow.rs";
    let message = format!("`unsafe` in a file that is not listed: {advice}");
    vec![Violation::new(&source.path, span.start().line, "unsafe", message)]
}

fn check_environment(source: &SourceFile, exceptions: &Exceptions) -> Vec<Violation> {
    let mut places = Vec::new();
    find_environment_reads(source.tokens.clone(), &mut places);
    if places.is_empty() || exceptions.cover("environment", &source.path) {
        return Vec::new();
    }
    let advice = "the environment never changes results: take a flag or a config key";
    places
        .into_iter()
        .map(|(word, span)| {
            Violation::new(
                &source.path,
                span.start().line,
                "environment",
                format!("`{word}` in a file that is not listed: {advice}"),
            )
        })
        .collect()
}

/// Finds `env::var` and its kin, also within `use std::env::{…}`, and the C function beneath them.
fn find_environment_reads(tokens: TokenStream, places: &mut Vec<(String, Span)>) {
    let reads = ["var", "var_os", "vars", "vars_os", "set_var", "remove_var"];
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => find_environment_reads(group.stream(), places),
            TokenTree::Ident(word) if word == "getenv" || word == "secure_getenv" => {
                places.push((word.to_string(), word.span()));
            }
            TokenTree::Ident(word) if word == "env" => {
                let after_colons = tokens.get(index + 3).cloned();
                let named: Vec<_> = match (tokens.get(index + 1), after_colons) {
                    (Some(TokenTree::Punct(colon)), Some(next)) if colon.as_char() == ':' => {
                        words(TokenStream::from(next)).collect()
                    }
                    _ => Vec::new(),
                };
                places.extend(named.into_iter().filter(|(name, _)| reads.contains(&name.as_str())));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str, is_test: bool) -> Vec<Violation> {
        let source = SourceFile::parse(path, text).unwrap();
        check(&source, is_test, &Exceptions::listed())
    }

    fn rules(text: &str) -> Vec<(usize, &'static str)> {
        findings("reader/src/x.rs", text, false)
            .into_iter()
            .map(|found| (found.line, found.rule))
            .collect()
    }

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_over_the_limit_is_named_with_its_line() {
        assert_eq!(rules(&function_of(70)), []);
        let found = findings("reader/src/x.rs", &format!("\n\n{}", function_of(71)), false);
        assert_eq!((found[0].line, found[0].rule), (3, "function size"));
        assert!(
            found[0].message.contains("`long` has 71 lines, more than 70"),
            "{}",
            found[0].message
        );
    }

    #[test]
    fn methods_trait_defaults_and_macro_bodies_are_measured_too() {
        let method = format!("impl X {{\n{}}}\n", function_of(71));
        let default = format!("trait X {{\n{}}}\n", function_of(71));
        let inside_macro = format!("vectorized! {{\n{}}}\n", function_of(71));
        for text in [method, default, inside_macro] {
            assert_eq!(rules(&text), [(2, "function size")], "{text}");
        }
    }

    #[test]
    fn a_test_may_be_longer_and_has_its_own_limit() {
        let test = |lines| format!("#[test]\n{}", function_of(lines));
        assert_eq!(rules(&test(100)), []);
        assert_eq!(rules(&test(101)), [(2, "function size")]);
    }

    #[test]
    fn unwrap_is_found_in_calls_paths_and_macros() {
        assert_eq!(rules("fn f() {\n    x.unwrap();\n}\n"), [(2, "unwrap")]);
        assert_eq!(rules("fn f() {\n    x.map(Option::unwrap);\n}\n"), [(2, "unwrap")]);
        assert_eq!(
            rules("fn f() {\n    println!(\"{}\",\n        x.unwrap());\n}\n"),
            [(3, "unwrap")]
        );
        assert_eq!(rules("fn f() {\n    x.unwrap_err();\n}\n"), [(2, "unwrap")]);
        assert_eq!(rules("fn f() { x.unwrap_or(1); x.unwrap_or_default(); }\n"), []);
    }

    #[test]
    fn unwrap_in_tests_is_fine_and_only_there() {
        let call = "fn f() { x.unwrap(); }";
        assert_eq!(rules(&format!("#[cfg(test)]\nmod tests {{ {call} }}\n")), []);
        assert_eq!(rules(&format!("#[cfg(all(test, unix))]\nmod tests {{ {call} }}\n")), []);
        assert_eq!(rules(&format!("#[test]\n{call}\n")), []);
        assert_eq!(rules(&format!("#[cfg(test)]\nimpl X {{ {call} }}\n")), []);
        assert_eq!(findings("reader/tests/x.rs", call, true), []);
        assert_eq!(rules(&format!("#[cfg(not(test))]\nmod real {{ {call} }}\n")), [(2, "unwrap")]);
        assert_eq!(
            rules(&format!("#[cfg(any(test, feature = \"x\"))]\nmod real {{ {call} }}\n")),
            [(2, "unwrap")]
        );
        assert_eq!(
            rules(&format!("#[cfg(feature = \"testing\")]\nmod real {{ {call} }}\n")),
            [(2, "unwrap")]
        );
    }

    #[test]
    fn unsafe_needs_a_listed_file_also_inside_macros() {
        assert_eq!(rules("fn f() {\n    unsafe { g() }\n}\n"), [(2, "unsafe")]);
        assert_eq!(rules("vectorized! {\n    unsafe fn f() {}\n}\n"), [(2, "unsafe")]);
        assert_eq!(findings("device/src/buffer.rs", "unsafe fn f() {}", false), []);
        assert_eq!(rules("// unsafe in a comment\nconst S: &str = \"unsafe\";\n"), []);
    }

    #[test]
    fn the_environment_is_read_in_listed_files_only() {
        assert_eq!(rules("fn f() {\n    std::env::var(\"X\");\n}\n"), [(2, "environment")]);
        assert_eq!(rules("fn f() {\n    std::env::var_os(\"X\");\n}\n"), [(2, "environment")]);
        assert_eq!(rules("use std::env::{self, var};\n"), [(1, "environment")]);
        assert_eq!(rules("use std::{env::vars, fs};\n"), [(1, "environment")]);
        assert_eq!(rules("fn f() { libc::getenv(name); }\n"), [(1, "environment")]);
        assert_eq!(
            rules("const M: &str = env!(\"CARGO_MANIFEST_DIR\");\nfn f() { std::env::args(); }\n"),
            []
        );
        assert_eq!(findings("xtask/src/require.rs", "fn f() { std::env::var(\"X\"); }", false), []);
    }

    #[test]
    fn protected_lints_cannot_be_switched_off() {
        assert_eq!(rules("#![allow(clippy::unwrap_used)]\n"), [(1, "lints")]);
        assert_eq!(
            rules("#[expect(clippy::undocumented_unsafe_blocks)]\nfn f() {}\n"),
            [(1, "lints")]
        );
        assert_eq!(rules("#[allow(clippy::too_many_lines)]\nfn f() {}\n"), []);
    }
}
