//! What the site's search finds: the index that mdBook writes for elasticlunr.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::At as _;

/// Letters at the end of a word that a stemmer may take away or replace.
const STEMMED: usize = 5;

/// The headings of the two pages that the program writes: each command, and each key.
pub fn wanted(commands: &[String], keys: &[String]) -> Vec<String> {
    let headings = |lines: &[String], mark: &str| -> Vec<String> {
        lines.iter().filter_map(|line| line.strip_prefix(mark)).map(str::to_owned).collect()
    };
    [headings(commands, "## headlong "), headings(keys, "### ")].concat()
}

pub struct Index(Value);

impl Index {
    /// Reads the index of the site in the folder `site`.
    pub fn read(site: &Path) -> Result<Self> {
        let files = fs::read_dir(site).at(site)?.filter_map(|file| Some(file.ok()?.path()));
        let is_index = |path: &Path| {
            path.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.starts_with("searchindex") && name.ends_with(".js")
            })
        };
        let file = files.into_iter().find(|path| is_index(path)).context("no index of words")?;
        Self::parse(&fs::read_to_string(&file).at(&file)?)
    }

    /// The index is a string in a line of JavaScript.
    fn parse(script: &str) -> Result<Self> {
        let quoted = script.split_once("JSON.parse('").and_then(|(_, rest)| rest.rsplit_once("')"));
        let (text, _) = quoted.context("the index of words has another form")?;
        let text = text.replace("\\'", "'").replace("\\\\", "\\");
        Ok(Self(serde_json::from_str(&text).context("the index of words")?))
    }

    /// A line for each of `wanted` that no search for it finds.
    pub fn not_found(&self, wanted: &[String]) -> Vec<String> {
        let missing = wanted.iter().filter(|heading| !self.finds(heading));
        missing.map(|heading| format!("a search for `{heading}` does not find it")).collect()
    }

    /// Whether each word of `heading` leads to a page with that heading.
    fn finds(&self, heading: &str) -> bool {
        // What the index takes for the ends of a word.
        heading.split([' ', '-']).all(|word| {
            self.documents(&word.to_lowercase()).iter().any(|document| {
                let title = self.0["index"]["documentStore"]["docs"][document]["title"].as_str();
                title.is_some_and(|title| title.trim_start_matches("headlong ") == heading)
            })
        })
    }

    /// The documents with a heading in which `word` is, with its end or without, or begins a word.
    fn documents(&self, word: &str) -> BTreeSet<String> {
        let least = word.chars().count().saturating_sub(STEMMED).max(2);
        let mut documents = BTreeSet::new();
        let mut node = &self.0["index"]["index"]["title"]["root"];
        for (depth, letter) in (1..).zip(word.chars()) {
            let Some(below) = node.get(letter.to_string()) else {
                // The stem of a word may end in another letter.
                if depth > least {
                    collect(node, &mut documents);
                }
                return documents;
            };
            node = below;
            if depth >= least {
                documents.extend(documents_of(node));
            }
        }
        collect(node, &mut documents);
        documents
    }
}

/// The documents of the word that ends at a node of the tree of letters.
fn documents_of(node: &Value) -> impl Iterator<Item = String> {
    node["docs"].as_object().into_iter().flat_map(|map| map.keys().cloned())
}

/// The documents of the word that ends at a node, and of all that continue it.
fn collect(node: &Value, documents: &mut BTreeSet<String>) {
    documents.extend(documents_of(node));
    let below =
        node.as_object().into_iter().flatten().filter(|(name, _)| name.chars().count() == 1);
    below.for_each(|(_, below)| collect(below, documents));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let docs = r#"{"1":{"title":"headlong data verify"},"2":{"title":"train.steps"}}"#;
        let words = r#"{"d":{"a":{"t":{"a":{"df":1,"docs":{"1":{"tf":1}}}}}},
            "v":{"e":{"r":{"i":{"f":{"i":{"df":1,"docs":{"1":{"tf":1}}}}}}}},
            "t":{"r":{"a":{"i":{"n":{".":{"s":{"t":{"e":{"p":{"df":1,"docs":{"2":{"tf":1}}}}}}}}}}}}}"#;
        let text = format!(
            r#"{{"index":{{"documentStore":{{"docs":{docs}}},"index":{{"title":{{"root":{words}}}}}}}}}"#
        );
        Index::parse(&format!("window.search = Object.assign(x, JSON.parse('{text}'));")).unwrap()
    }

    #[test]
    fn what_has_a_heading_is_found_and_nothing_else() {
        let of = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(index().not_found(&of(&["data verify", "train.steps"])), [""; 0]);
        let missing = of(&["data inspect", "train.seed", "verify"]);
        assert_eq!(index().not_found(&missing).len(), 3);
    }

    #[test]
    fn headings_are_commands_and_keys() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let commands = lines("## headlong\n\n## headlong data make\n```\n# no\n```\n");
        assert_eq!(
            wanted(&commands, &lines("## `[a]`\n### a.b\n")),
            ["data make", "a.b"].map(str::to_owned)
        );
    }
}
