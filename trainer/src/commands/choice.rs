//! Flags that take a value of another crate's: what they call each, and what help says of it.

use crate::config::{AllToAll, BadRowPolicy};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value, its name on the command line, and what it means.
type Choice<T> = (T, &'static str, &'static str);

/// What a malformed line does.
const ON_BAD_ROW: [Choice<BadRowPolicy>; 2] = [
    (BadRowPolicy::Error, "error", "Ends the run, naming file and line"),
    (BadRowPolicy::Skip, "skip", "Is left out, counted and reported"),
];

/// Way of the parts of an all-to-all.
const ALL_TO_ALL: [Choice<AllToAll>; 3] = [
    (AllToAll::Flat, "flat", "Straight"),
    (AllToAll::Hierarchical, "hierarchical", "Inside the node, then across"),
    (AllToAll::Auto, "auto", "Hierarchical where that can help"),
];

fn parser<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let known = choices.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(known).map(|written| {
        let (value, ..) = choices
            .iter()
            .find(|(_, name, _)| *name == written)
            .expect("what is none of these names has been refused");
        *value
    })
}

/// Reads what a malformed line does.
pub(super) fn on_bad_row() -> impl TypedValueParser<Value = BadRowPolicy> {
    parser(&ON_BAD_ROW)
}

/// Reads which way the parts of an all-to-all take.
pub(super) fn all_to_all() -> impl TypedValueParser<Value = AllToAll> {
    parser(&ALL_TO_ALL)
}
