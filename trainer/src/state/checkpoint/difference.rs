//! The first difference between two values, by its full key.

use serde::Serialize;
use serde_json::Value;

/// The first place where what a run expects and what a checkpoint holds are not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Full key: `model.tables[2].rows`.
    pub key: String,
    /// Value in this run, or `absent`.
    pub expected: String,
    /// Value in the checkpoint, or `absent`.
    pub found: String,
}

/// Compares two values key by key, in alphabetical order of the keys; `name` is the key of the
/// whole.
pub fn first_difference<T: Serialize>(name: &str, expected: &T, found: &T) -> Option<Difference> {
    // What is compared here are plain structures with text keys, which always become JSON; if one
    // did not, both would be null and equal, which the digest of the weights and the layout's own
    // comparison then still catch.
    let value = |of: &T| serde_json::to_value(of).unwrap_or(Value::Null);
    compare(name, Some(&value(expected)), Some(&value(found)))
}

fn compare(key: &str, expected: Option<&Value>, found: Option<&Value>) -> Option<Difference> {
    match (expected, found) {
        (Some(Value::Object(expected)), Some(Value::Object(found))) => {
            let mut names: Vec<&String> = expected.keys().chain(found.keys()).collect();
            names.sort_unstable();
            names.dedup();
            names.iter().find_map(|name| {
                compare(
                    &format!("{key}.{name}"),
                    expected.get(name.as_str()),
                    found.get(name.as_str()),
                )
            })
        }
        (Some(Value::Array(expected)), Some(Value::Array(found))) => {
            (0..expected.len().max(found.len())).find_map(|index| {
                compare(&format!("{key}[{index}]"), expected.get(index), found.get(index))
            })
        }
        (expected, found) if expected == found => None,
        (expected, found) => {
            Some(Difference { key: key.to_owned(), expected: text(expected), found: text(found) })
        }
    }
}

fn text(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named_in_full() {
        let expected = json!({ "dim": 16, "tables": [{ "rows": 3 }, { "rows": 5 }] });
        let same = first_difference("model", &expected, &expected.clone());
        assert_eq!(same, None);
        let found = json!({ "dim": 16, "tables": [{ "rows": 3 }, { "rows": 6 }] });
        let difference = first_difference("model", &expected, &found).unwrap();
        assert_eq!(difference.key, "model.tables[1].rows");
        assert_eq!((difference.expected.as_str(), difference.found.as_str()), ("5", "6"));
    }

    #[test]
    fn something_absent_is_a_difference() {
        let difference = first_difference("m", &json!([1, 2]), &json!([1])).unwrap();
        assert_eq!((difference.key.as_str(), difference.found.as_str()), ("m[1]", "absent"));
        let difference = first_difference("m", &json!({}), &json!({ "a": "x" })).unwrap();
        assert_eq!((difference.key.as_str(), difference.expected.as_str()), ("m.a", "absent"));
    }
}
