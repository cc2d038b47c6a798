//! `headlong reference`: the two pages of the book that are made of what the program says of
//! itself, in Markdown.
//!
//! They are made when the book is, and not kept in `docs/`: a copy of the whole help (110 KB) would
//! have to be written again with each flag, and a reader without the book has `--help` and
//! `headlong config show`.

use super::Cli;
use crate::config::keys::{ENTRY_KEYS, KEYS, Key};
use crate::config::ranges::{expected, range_of};
use crate::config::{Config, find};
use clap::{Command, CommandFactory as _, ValueEnum};

/// A page.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Page {
    /// Every command with its help
    Commands,
    /// Every key of a configuration
    Configuration,
}

/// How wide the help is in the book.
const COLUMNS: usize = 92;

pub fn page(page: Page) -> String {
    match page {
        Page::Commands => commands(),
        Page::Configuration => configuration(),
    }
}

fn commands() -> String {
    let mut command = Cli::command().term_width(COLUMNS);
    command.build();
    let mut text = String::new();
    add_command(&mut command, "headlong", &mut text);
    text
}

fn add_command(command: &mut Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("## {name}\n\n```text\n{}\n```\n\n", lines.join("\n").trim_end()));
    for below in command.get_subcommands_mut() {
        if !below.is_hide_set() && below.get_name() != "help" {
            let name = format!("{name} {}", below.get_name());
            add_command(below, &name, text);
        }
    }
}

fn configuration() -> String {
    let mut defaults = Config::default();
    defaults.optimizer.resolve().expect("the optimisers that are the default have their settings");
    let defaults = defaults.to_table();
    let mut text = String::new();
    let mut section = "";
    for key in KEYS.iter().chain(&*ENTRY_KEYS) {
        let (path, name) = key.path.rsplit_once('.').expect("every known key is in a section");
        let is_entry = ["table", "column"].contains(&path);
        let shown = if is_entry { format!("[[{path}]]") } else { format!("[{path}]") };
        if path != section {
            text.push_str(&format!("## `{shown}`\n\n"));
            section = path;
        }
        text.push_str(&format!(
            "### {}\n\n`{name}` in `{shown}`: {}.\n\n",
            key.path,
            as_markdown(&key.meaning)
        ));
        let takes = takes(key).map(|takes| format!("Takes {takes}. "));
        let default = match find(&defaults, key.path) {
            Some(value) => Some(format!("Default: `{value}`.")),
            None => (!is_entry).then(|| "Not set by default.".to_owned()),
        };
        let more = takes.into_iter().chain(default).collect::<String>();
        if !more.is_empty() {
            text.push_str(&format!("{}\n\n", more.trim_end()));
        }
    }
    text
}

/// What a key takes, where its range or a try tells.
fn takes(key: &Key) -> Option<String> {
    let range = range_of(key.path).map(|range| format!("a whole number, {range}"));
    if let Some(numbers) = expected(key.path).or(range) {
        return Some(numbers);
    }
    let is_taken =
        |text: &str| Config::default().set_all(&[format!("{}={text}", key.path)]).is_ok();
    if is_taken("no-such-word") {
        return Some("text".to_owned());
    }
    let kinds: [(&[&str], &str); 5] = [
        (&["true", "auto"], "true, false or \"auto\""),
        (&["true"], "true or false"),
        (&["3.5"], "a number"),
        (&["3"], "a whole number"),
        (&["[\"a\"]"], "a list of words"),
    ];
    let kind = kinds.iter().find(|(texts, _)| texts.iter().all(|text| is_taken(text)));
    kind.map(|(_, kind)| (*kind).to_owned())
}

/// The meaning of a key with links to the pages it names, and with nothing that Markdown would take
/// for emphasis.
fn as_markdown(meaning: &str) -> String {
    let parts = meaning.split('`').enumerate().map(|(at, part)| match at % 2 {
        1 => format!("`{part}`"),
        _ => part.replace('*', "\\*").replace('<', "&lt;"),
    });
    let mut text = parts.collect::<String>();
    while let Some((before, after)) = text.split_once("docs/") {
        let Some((page, rest)) = after.split_once(".md") else { break };
        text = format!("{before}[{page}](../{page}.md){rest}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_not_hidden_has_its_place() {
        let page = page(Page::Commands);
        for heading in ["headlong", "headlong train", "headlong data convert", "headlong man"] {
            assert!(
                page.contains(&format!("\n## {heading}\n")) || page.starts_with("## headlong\n")
            );
        }
        assert!(!page.contains("headlong reference") && !page.contains("## headlong help"));
        // The text is the help, within the width of a page; a line of usage is never broken.
        assert!(page.contains("Usage: headlong data convert [OPTIONS]"), "{page}");
        let prose = page.lines().filter(|line| !line.starts_with("Usage:"));
        assert!(prose.map(|line| line.chars().count()).all(|width| width <= COLUMNS));
    }

    /// A key that is in neither list is refused in a file, so the page has all that a file may set.
    #[test]
    fn every_key_has_its_place_and_says_what_it_takes() {
        let page = page(Page::Configuration);
        for key in KEYS.iter().chain(&*ENTRY_KEYS) {
            assert_eq!(page.matches(&format!("\n### {}\n", key.path)).count(), 1, "{}", key.path);
        }
        let place = |path: &str| page.split_once(&format!("### {path}\n")).unwrap().1;
        for (path, takes) in [
            ("train.batch_size", "Takes a whole number, 1 to 1073741824. Default: `2048`."),
            ("train.learning_rate", "Takes a number. Default: `"),
            ("synthetic.gzip", "Takes true or false. Default: `false`."),
            ("optimizer.dense.sharded", "Takes true, false or \"auto\". Default: `false`."),
            ("data.train", "Takes a list of words. Default: `[]`."),
            ("checkpoint.dir", "Takes text. Not set by default."),
            ("train.sum_blocks", "Not set by default."),
            ("table.rows", "Takes a whole number, 1 to "),
        ] {
            let text = place(path).split("###").next().unwrap();
            assert!(text.contains(takes), "{path}: {text}");
        }
        assert!(place("train.sum_blocks").contains("([numerics](../numerics.md))"));
        assert!(place("data.columns.ignored").contains("\"\\*\" means all others"));
    }
}
