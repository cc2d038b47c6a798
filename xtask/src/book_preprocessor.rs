//! `cargo xtask book-preprocessor`: what mdBook does not do by itself. `book.toml` names it, so
//! that `mdbook build` and `mdbook serve` need nothing else.
//!
//! - `<!-- headlong reference PAGE -->` becomes what `headlong reference PAGE` prints.
//! - A link to a file that is no page of the site leads to the repository. On GitHub, where the
//!   same pages are read, it leads there as it is written.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::tidy::text;

const REPOSITORY: &str = "https://github.com/headlong/headlong/blob/main/";
const MARK: &str = "<!-- headlong reference ";

/// Answers mdBook: whether it does a kind of output, or the book as it becomes.
pub fn run(root: &Path, target: &Path, arguments: &[&str]) -> Result<bool> {
    match arguments {
        ["supports", _] => return Ok(true),
        [] => {}
        _ => bail!("mdbook calls `book-preprocessor`, by the file book.toml"),
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("the book from mdbook")?;
    let [_, mut book]: [Value; 2] = serde_json::from_str(&text).context("the book from mdbook")?;
    let mut pages = BTreeSet::new();
    each_chapter(&mut book, &mut |path, _| {
        pages.insert(format!("docs/{path}"));
        Ok(())
    })?;
    let program = target.join("release/headlong");
    each_chapter(&mut book, &mut |path, content| {
        let page = format!("docs/{path}");
        *content = with_links(&with_reference(content, &program)?, &page, &pages, root)?;
        Ok(())
    })?;
    std::io::stdout().write_all(book.to_string().as_bytes()).context("the book to mdbook")?;
    Ok(true)
}

/// Calls `change` with the path below `docs/` and the text of each chapter of `book`.
fn each_chapter(
    book: &mut Value,
    change: &mut impl FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    match book {
        Value::Array(items) => items.iter_mut().try_for_each(|item| each_chapter(item, change)),
        Value::Object(fields) => {
            let path = fields.get("source_path").and_then(Value::as_str).map(str::to_owned);
            if let (Some(path), Some(Value::String(content))) = (path, fields.get_mut("content")) {
                change(&path, content)?;
            }
            fields.values_mut().try_for_each(|field| each_chapter(field, change))
        }
        _ => Ok(()),
    }
}

/// The text with what the program says in the place of a mark.
fn with_reference(text: &str, program: &Path) -> Result<String> {
    let Some((before, rest)) = text.split_once(MARK) else { return Ok(text.to_owned()) };
    let (page, after) = rest.split_once(" -->").context("a mark does not end")?;
    let output = Command::new(program).args(["reference", page]).output().with_context(|| {
        format!("{} writes a page: cargo build --release builds it", program.display())
    })?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(format!("{before}{}{after}", String::from_utf8_lossy(&output.stdout).trim_end()))
}

/// The text of `page`, outside of its blocks, with links to the repository where they lead to none
/// of `pages`.
fn with_links(text: &str, page: &str, pages: &BTreeSet<String>, root: &Path) -> Result<String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut is_block = false;
    let mut changed = String::new();
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        let mut parts = line.split("](");
        changed += parts.next().unwrap_or_default();
        for part in parts {
            changed += "](";
            let target = part.split([')', '#']).next().unwrap_or_default();
            let path = text::join(folder, target);
            let is_elsewhere = target.is_empty() || target.contains(':') || pages.contains(&path);
            // What is no page but lies in docs/, as pictures do, mdBook copies.
            let is_copied = path.starts_with("docs/") && !path.ends_with(".md");
            if is_block || is_elsewhere || is_copied {
                changed += part;
            } else {
                ensure!(root.join(&path).exists(), "{page}: the link `{target}` leads nowhere");
                changed += &part.replacen(target, &format!("{REPOSITORY}{path}"), 1);
            }
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(text: &str) -> String {
        let pages =
            BTreeSet::from(["docs/guide.md".to_owned(), "docs/tutorials/criteo.md".to_owned()]);
        with_links(text, "docs/tutorials/criteo.md", &pages, &crate::workspace_root()).unwrap()
    }

    #[test]
    fn links_out_of_the_site_lead_to_the_repository() {
        assert_eq!(links("[a](../guide.md#x) and [b](#y)"), "[a](../guide.md#x) and [b](#y)");
        assert_eq!(
            links("[c](../../README.md#z), [d](https://rustup.rs)\n"),
            format!("[c]({REPOSITORY}README.md#z), [d](https://rustup.rs)\n")
        );
        let picture = "![e](../pictures/all_reduce.svg)\n";
        assert_eq!(links(picture), picture);
        let block = "```rust\na[0](../../README.md)\n```\n";
        assert_eq!(links(block), block);
    }

    #[test]
    fn every_chapter_is_reached_and_a_page_without_a_mark_stays() {
        let mut book: Value = serde_json::from_str(
            r#"{"items":[{"Chapter":{"content":"a","source_path":"a.md","sub_items":
               [{"Chapter":{"content":"b","source_path":"b/c.md","sub_items":[]}}]}},"Separator"]}"#,
        )
        .unwrap();
        let mut seen = Vec::new();
        each_chapter(&mut book, &mut |path, content| {
            seen.push(path.to_owned());
            content.push('!');
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, ["a.md", "b/c.md"]);
        assert!(book.to_string().contains("\"a!\"") && book.to_string().contains("\"b!\""));
        assert_eq!(with_reference("a\n", Path::new("no-such-program")).unwrap(), "a\n");
        assert!(with_reference(&format!("{MARK}x -->"), Path::new("no-such-program")).is_err());
    }
}
