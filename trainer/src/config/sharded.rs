//! Whether the dense optimiser is divided among the ranks.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{Formatter, Result as Written};

/// Whether each rank moves a part of the dense weights, with the optimiser states of that part
/// only: `false`, `true` or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharded {
    /// Every rank moves all of them.
    #[default]
    Never,
    /// Each rank moves a part, unless it is the only one.
    Always,
    /// Where that is worth it.
    Auto,
}

const AUTO: &str = "auto";

impl Serialize for Sharded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_bool(false),
            Self::Always => serializer.serialize_bool(true),
            Self::Auto => serializer.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for Sharded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Whether)
    }
}

struct Whether;

impl Visitor<'_> for Whether {
    type Value = Sharded;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> Written {
        formatter.write_str("true, false or \"auto\"")
    }

    fn visit_bool<E: Error>(self, is_divided: bool) -> Result<Sharded, E> {
        Ok(if is_divided { Sharded::Always } else { Sharded::Never })
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Sharded, E> {
        match word {
            AUTO => Ok(Sharded::Auto),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AUTO, Sharded};
    use crate::config::Config;

    fn set(argument: &str) -> Result<Sharded, String> {
        let mut config = Config::default();
        config.set_all(&[argument]).map_err(|error| error.to_string())?;
        Ok(config.optimizer.dense.sharded.unwrap())
    }

    #[test]
    fn the_three_words() {
        for (written, meant) in
            [("false", Sharded::Never), ("true", Sharded::Always), ("auto", Sharded::Auto)]
        {
            assert_eq!(set(&format!("optimizer.dense.sharded={written}")), Ok(meant));
            assert_eq!(
                set(&format!("optimizer.dense.sharded=\"{written}\"")).is_ok(),
                written == AUTO
            );
        }
        assert_eq!(set("train.seed=1"), Ok(Sharded::Never), "unset");
        for wrong in ["maybe", "2", "[true]"] {
            let message = set(&format!("optimizer.dense.sharded={wrong}")).unwrap_err();
            let names = message.starts_with("--set optimizer.dense.sharded: ");
            assert!(names && message.contains("true, false or \"auto\""), "{message}");
        }
    }

    #[test]
    fn another_optimizer_leaves_it_as_it_is() {
        let mut config = Config::default();
        let both = ["optimizer.dense.sharded=true", "optimizer.dense.name=adam"];
        config.set_all(&both).unwrap();
        config.optimizer.set_both("lamb").unwrap();
        assert_eq!(config.optimizer.dense.sharded, Some(Sharded::Always));
    }

    #[test]
    fn tables_have_no_such_key() {
        let message = set("optimizer.sparse.sharded=true").unwrap_err();
        assert!(message.contains("did you mean `optimizer.dense.sharded`"), "{message}");
        let mut config = Config::default();
        config.optimizer.sparse.sharded = Some(Sharded::Always);
        let message = config.optimizer.resolve().unwrap_err().to_string();
        assert!(message.contains("optimizer.sparse.sharded"), "{message}");
    }
}
