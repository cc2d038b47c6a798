//! The effective configuration as TOML that can be read back, each key with its meaning.

use super::{Config, keys};
use serde::Serialize;
use toml::{Table, Value};

impl Config {
    /// The effective configuration as commented TOML: what `headlong config show` prints. Reading
    /// it back gives the same configuration. Unset keys stand as comments.
    pub fn to_commented_toml(&self) -> String {
        let table = self.to_table();
        let mut text = String::new();
        let mut section = "";
        for key in &*keys::KEYS {
            let (path, name) =
                key.path.rsplit_once('.').expect("every known key stands in a section");
            if path != section {
                let gap = if section.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{gap}[{path}]\n"));
                section = path;
            }
            let line = match find(&table, key.path) {
                Some(value) => format!("{name} = {value}"),
                None => format!("# {name} ="),
            };
            text.push_str(&format!("{line:<40}  # {}\n", key.meaning));
        }
        self.column.iter().for_each(|entry| text.push_str(&entry.to_toml()));
        self.table.iter().for_each(|entry| text.push_str(&entry.to_toml()));
        text
    }
}

/// The value of a dotted key.
pub(crate) fn find<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let mut value = table.get(parts.next()?)?;
    for part in parts {
        value = value.get(part)?;
    }
    Some(value)
}

/// An entry of an array of sections, a line for each of its `keys` that is set.
pub(super) fn lines_of<T: Serialize>(entry: &T, keys: &[&str]) -> Vec<String> {
    let table = Table::try_from(entry).expect("every field of an entry has a TOML form");
    let known = keys.iter().filter_map(|key| Some((key, table.get(*key)?)));
    known.map(|(key, value)| format!("{key} = {value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        let mut config = Config::default();
        config.optimizer.resolve().unwrap();
        config
            .set_all(&[
                "run.hybrid=rows=5",
                "eval.every=0.5",
                "tables.max_rows=9",
                "data.train=[\"a b.gz\"]",
            ])
            .unwrap();
        let text = config.to_commented_toml();
        assert_eq!(Config::from_toml(&text, "shown").unwrap(), config, "{text}");
        assert!(text.contains("# steps ="));
    }
}
