//! Which rows are to become frequent, as a configuration says it: "off", "auto" or "rows=N".

use serde::{Deserialize, Serialize};

/// Which rows become frequent: replicated on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HybridMode {
    /// None, pure model parallelism: every row has one owner.
    Off,
    /// Those for which it pays, by the cost model: as many as make a step fastest.
    Auto,
    /// This many, the most frequent ones of all tables.
    Rows(u64),
}

impl TryFrom<String> for HybridMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for HybridMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rows = text.strip_prefix("rows=").and_then(|number| number.parse().ok());
        match (text, rows) {
            ("off", _) => Ok(Self::Off),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(rows)) => Ok(Self::Rows(rows)),
            _ => Err(format!("expected \"off\", \"auto\" or \"rows=N\", found \"{text}\"")),
        }
    }
}

impl From<HybridMode> for String {
    fn from(hybrid: HybridMode) -> Self {
        match hybrid {
            HybridMode::Off => "off".to_owned(),
            HybridMode::Auto => "auto".to_owned(),
            HybridMode::Rows(rows) => format!("rows={rows}"),
        }
    }
}
