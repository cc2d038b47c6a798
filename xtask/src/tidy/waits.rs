//! Every wait in `comm` ends: a rank that is lost must become an error on all others, never a hang.
//!
//! What counts as a wait without an end, outside tests:
//!
//! - `wait` of a condition variable or a barrier, and `wait_while`: there is `wait_timeout`;
//! - `recv`, `join`, `park` and `wait` without an argument, of channels, threads and children;
//! - `read_exact`, `read_to_end`, `read_to_string` and `accept` of connections, `connect` of
//!   `TcpStream` and `UnixStream`: there are timeouts, `connect_timeout` and sockets that do not
//!   block;
//! - `poll` without a time;
//! - a loop that pauses (`spin_loop`, `yield_now`, `sleep`) and never looks at a clock: none of its
//!   words is in [`CLOCKS`].
//!
//! The rule reads names, not types; what it takes wrongly is a line of `allow::ENDLESS_WAITS` with
//! the reason why it ends.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall};

use super::source::{SourceFile, words};
use super::{Exceptions, Violation};
use quote::ToTokens as _;

/// Where the rule holds.
const FOLDERS: [&str; 4] = ["comm/src/", "comm/nccl-rs/src/", "comm/ucx/src/", "comm/verbs/src/"];
/// Calls that wait without a time, by their number of arguments.
const ENDLESS: &[(&str, usize)] = &[
    ("wait", 0),
    ("wait", 1),
    ("wait_while", 2),
    ("recv", 0),
    ("join", 0),
    ("park", 0),
    ("accept", 0),
    ("read_exact", 1),
    ("read_to_end", 1),
    ("read_to_string", 1),
];
/// Types whose methods of these names may be passed on as functions.
const WAITING_TYPES: &[&str] =
    &["JoinHandle", "ScopedJoinHandle", "Receiver", "Condvar", "Barrier"];
/// Words of which a loop that pauses has at least one.
const CLOCKS: &[&str] =
    &["elapsed", "deadline", "until", "longest", "patience", "left", "timed_out", "due", "Instant"];
const PAUSES: &[&str] = &["spin_loop", "yield_now", "sleep"];

/// Checks one file; `is_test` says that the whole of it is compiled for tests only.
pub fn check(source: &SourceFile, is_test: bool, exceptions: &Exceptions) -> Vec<Violation> {
    let applies = FOLDERS.iter().any(|folder| source.path.starts_with(folder));
    let mut visitor = Visitor { source, exceptions, functions: Vec::new(), violations: Vec::new() };
    if applies && !is_test {
        visitor.visit_file(&source.program);
    }
    visitor.violations
}

struct Visitor<'a> {
    source: &'a SourceFile,
    exceptions: &'a Exceptions,
    functions: Vec<String>,
    violations: Vec<Violation>,
}

impl Visitor<'_> {
    fn report(&mut self, place: impl Spanned, what: &str) {
        let function = self.functions.last().map_or("", String::as_str);
        let subject = format!("{}::{function}", self.source.path);
        if self.exceptions.cover("waits", &subject) {
            return;
        }
        let advice = "give it a deadline, or list the function with the reason why it ends in \
                      xtask/src/tidy/allow.rs";
        self.violations.push(Violation::new(
            &self.source.path,
            place.span().start().line,
            "waits",
            format!("{what}: {advice}"),
        ));
    }

    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.functions.push(name);
        visit(self);
        self.functions.pop();
    }

    /// A loop, all of it: its condition and its body.
    fn check_loop(&mut self, whole: &(impl Spanned + quote::ToTokens)) {
        let has =
            |list: &[&str]| words(whole.to_token_stream()).any(|(word, _)| list.contains(&&*word));
        if has(PAUSES) && !has(CLOCKS) {
            self.report(whole, "a loop pauses and never looks at a clock");
        }
    }

    fn check_path_call(&mut self, call: &ExprCall) {
        let Expr::Path(function) = &*call.func else { return };
        let names: Vec<String> =
            function.path.segments.iter().map(|part| part.ident.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let without_time = |argument: &Expr| {
            let text = argument.to_token_stream().to_string();
            text == "None" || text == "- 1"
        };
        match names[..] {
            [.., "poll"] if call.args.last().is_some_and(without_time) => {
                self.report(call, "`poll` waits without a time");
            }
            [.., "TcpStream", "connect"] | [.., "UnixStream", "connect" | "connect_addr"] => {
                self.report(call, "`connect` waits as long as the system likes");
            }
            ["park"] | [.., "thread", "park"] => {
                self.report(call, "`park` waits until somebody calls")
            }
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.inside(item.sig.ident.to_string(), |visitor| visit::visit_item_fn(visitor, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.inside(item.sig.ident.to_string(), |visitor| visit::visit_impl_item_fn(visitor, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.inside(item.sig.ident.to_string(), |visitor| {
            visit::visit_trait_item_fn(visitor, item)
        });
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        // What a type calls of its own is a function of this crate, and looked at itself.
        let is_own = call.receiver.to_token_stream().to_string() == "self";
        let has_time = call.args.iter().any(|argument| {
            words(argument.to_token_stream())
                .any(|(word, _)| word == "Duration" || CLOCKS.contains(&&*word))
        });
        if !is_own && !has_time && ENDLESS.contains(&(name.as_str(), call.args.len())) {
            self.report(&call.method, &format!("`{name}` waits without a time"));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        self.check_path_call(call);
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let mut names = path.path.segments.iter().rev().map(|part| part.ident.to_string());
        if let (Some(name), Some(kind)) = (names.next(), names.next())
            && WAITING_TYPES.contains(&kind.as_str())
            && ENDLESS.iter().any(|(endless, _)| *endless == name)
        {
            self.report(path, &format!("`{kind}::{name}` waits without a time"));
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_expr_loop(&mut self, whole: &'ast syn::ExprLoop) {
        self.check_loop(whole);
        visit::visit_expr_loop(self, whole);
    }

    fn visit_expr_while(&mut self, whole: &'ast syn::ExprWhile) {
        self.check_loop(whole);
        visit::visit_expr_while(self, whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &str, text: &str) -> Vec<usize> {
        let source = SourceFile::parse(path, text).unwrap();
        let violations = check(&source, false, &Exceptions::listed());
        assert!(violations.iter().all(|violation| violation.rule == "waits"));
        violations.into_iter().map(|violation| violation.line).collect()
    }

    fn lines(body: &str) -> Vec<usize> {
        lines_of("comm/src/x.rs", &format!("fn f() {{\n{body}\n}}\n"))
    }

    #[test]
    fn calls_that_may_never_return_are_found() {
        let endless = [
            "ready = self.changed.wait(ready);",
            "barrier.wait();",
            "changed.wait_while(guard, |state| state.is_busy);",
            "receiver.recv();",
            "thread.join();",
            "std::thread::park();",
            "listener.accept();",
            "stream.read_exact(&mut room);",
            "TcpStream::connect(address);",
            "std::net::TcpStream::connect(address);",
            "UnixStream::connect_addr(&address);",
            "UnixStream::connect(path);",
            "rustix::event::poll(&mut descriptors, None);",
            "poll(&mut descriptors, -1);",
            "threads.into_iter().map(JoinHandle::join);",
        ];
        for call in endless {
            assert_eq!(lines(call), [2], "{call}");
        }
    }

    #[test]
    fn calls_with_a_time_are_fine() {
        let bounded = [
            "ready = self.changed.wait_timeout(ready, left);",
            "self.wait(pause);",
            "gate.wait(&[], longest);",
            "completions.wait(Duration::from_millis(150));",
            "receiver.recv_timeout(left);",
            "names.join(\", \");",
            "TcpStream::connect_timeout(&address, patience);",
            "poll(&mut descriptors, Some(&time));",
            "std::thread::park_timeout(left);",
        ];
        for call in bounded {
            assert_eq!(lines(call), [0_usize; 0], "{call}");
        }
    }

    #[test]
    fn a_loop_that_pauses_looks_at_a_clock() {
        assert_eq!(lines("loop {\n if ready() { return; }\n std::hint::spin_loop();\n}"), [2]);
        assert_eq!(lines("while !ready() {\n std::thread::yield_now();\n}"), [2]);
        assert_eq!(
            lines("while begin.elapsed() < longest {\n std::thread::yield_now();\n}"),
            [0_usize; 0]
        );
        assert_eq!(
            lines("loop {\n if Instant::now() > until { return; }\n sleep(pause);\n}"),
            [0_usize; 0]
        );
        assert_eq!(lines("while index < count {\n index += 1;\n}"), [0_usize; 0]);
    }

    #[test]
    fn tests_and_other_crates_may_wait() {
        let text = "#[cfg(test)]\n\
                    mod tests {\n fn f() { thread.join(); }\n\
                    }\n\
                    #[test]\n\
                    fn g() { rx.recv(); }\n";
        assert_eq!(lines_of("comm/src/x.rs", text), [0_usize; 0]);
        assert_eq!(lines_of("reader/src/x.rs", "fn f() { thread.join(); }"), [0_usize; 0]);
        let source = SourceFile::parse("comm/src/x.rs", "fn f() { thread.join(); }").unwrap();
        assert_eq!(check(&source, true, &Exceptions::listed()), []);
    }
}
