//! Every known key with its meaning: the list that unknown keys are checked against and that
//! `headlong config show` takes its comments from.

use super::{
    CheckpointConfig, ColumnEntry, ColumnsConfig, CommConfig, DataConfig, EvalConfig, HybridConfig,
    MlperfConfig, ModelConfig, MultiHotConfig, NcclConfig, RunConfig, SyntheticConfig, TableEntry,
    TablesConfig, TrainConfig,
};
use crate::error::{Error, Result};
use std::sync::LazyLock;

/// One key: its dotted path and what it means.
#[derive(Debug, Clone)]
pub struct Key {
    /// Dotted path, such as `train.batch_size`.
    pub path: &'static str,
    /// One sentence, with the unit and the choices.
    pub meaning: String,
}

impl Key {
    fn of((path, lines): &Field) -> Self {
        Self { path, meaning: meaning(lines) }
    }
}

/// A field of a section: its dotted path, and the lines of its documentation.
pub(super) type Field = (&'static str, &'static [&'static str]);

/// Every known key, section by section.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let sections = [
        ModelConfig::FIELDS,
        TablesConfig::FIELDS,
        DataConfig::FIELDS,
        ColumnsConfig::FIELDS,
        MultiHotConfig::FIELDS,
        SyntheticConfig::FIELDS,
        TrainConfig::FIELDS,
        OPTIMIZERS,
        EvalConfig::FIELDS,
        CheckpointConfig::FIELDS,
        MlperfConfig::FIELDS,
        RunConfig::FIELDS,
        CommConfig::FIELDS,
        NcclConfig::FIELDS,
        VERBS,
        HybridConfig::FIELDS,
    ];
    let fields = sections.concat();
    let is_section = |path: &str| fields.iter().any(|(other, _)| is_section_of(path, other));
    let keys = fields.iter().filter(|(path, _)| !is_section(path) && !FOUND.contains(path));
    keys.map(Key::of).collect()
});

/// The keys of an entry of `[[table]]` and of `[[column]]`, as `table.rows`.
pub static ENTRY_KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    [TableEntry::FIELDS, ColumnEntry::FIELDS].concat().iter().map(Key::of).collect()
});

/// Fields that are not set but found.
const FOUND: [&str; 2] = ["data.ignores_others", "multi_hot.is_idle"];

/// The settings of the two optimisers, which share a type.
const OPTIMIZERS: &[Field] = &[
    (
        "optimizer.sparse.name",
        &["\"sgd\", \"adagrad\", \"rowwise_adagrad\", \"lazy_adam\" or \"ftrl\""],
    ),
    ("optimizer.sparse.epsilon", &["Adagrad, Adam: added outside the root"]),
    ("optimizer.sparse.initial_accumulator", &["Adagrad, FTRL: first value of the accumulator"]),
    ("optimizer.sparse.beta1", &["Adam: decay of the first moment"]),
    ("optimizer.sparse.beta2", &["Adam: decay of the second moment"]),
    ("optimizer.sparse.beta", &["FTRL: beta"]),
    ("optimizer.sparse.lambda1", &["FTRL: strength of the L1 term"]),
    ("optimizer.sparse.lambda2", &["FTRL: strength of the L2 term"]),
    ("optimizer.dense.name", &["\"sgd\", \"adagrad\", \"adam\" or \"lamb\""]),
    (
        "optimizer.dense.sharded",
        &[
            "Whether each rank moves a part of the dense weights, with the states of that part",
            "only, and gathers the rest: true, false or \"auto\"; with rows split alike",
            "it changes no result",
        ],
    ),
    ("optimizer.dense.epsilon", &["Adagrad, Adam, LAMB: added outside the root"]),
    ("optimizer.dense.initial_accumulator", &["Adagrad: first value of the accumulator"]),
    ("optimizer.dense.beta1", &["Adam, LAMB: decay of the first moment"]),
    ("optimizer.dense.beta2", &["Adam, LAMB: decay of the second moment"]),
    ("optimizer.dense.weight_decay", &["LAMB: what the direction has of the weights"]),
];

/// Those of [`headlong_verbs::VerbsSettings`].
const VERBS: &[Field] = &[
    ("comm.verbs.devices", &["Network devices by local index of the rank; empty: the nearest one"]),
    (
        "comm.verbs.gid_index",
        &["Place of the global identifier in the port's table; unset: the best one"],
    ),
    ("comm.verbs.partition_key", &["Partition key"]),
    ("comm.verbs.service_level", &["Service level, 0 to 15"]),
    ("comm.verbs.traffic_class", &["Traffic class: on RoCE four times the DSCP, plus ECN bits"]),
    (
        "comm.verbs.timeout",
        &["An answer is missing after 4.096 microseconds times two to this power"],
    ),
    ("comm.verbs.retries", &["So often a packet is sent again, 0 to 7"]),
    ("comm.verbs.slots", &["Slots of a direction, 2 to 64"]),
    ("comm.verbs.slot_bytes", &["Payload bytes of a slot; longer messages take several turns"]),
    (
        "comm.verbs.signal",
        &["\"immediate\" (every NIC) or \"atomic\": how a receiver learns that a slot is filled"],
    ),
    (
        "comm.verbs.gpudirect",
        &["Between GPUs, whether NICs read and write their memory: \"auto\", \"off\", \"require\""],
    ),
];

/// Keys that there were, and why they are gone. Configurations that name one, those in checkpoints
/// among them, are read as if they did not.
pub(super) const FORMER: [(&str, &str); 1] = [(
    "comm.slot_factor",
    "slots between devices have room for all of a rank's ids, or as many as 512 MiB hold",
)];

/// Why a key is gone that there was.
pub(super) fn former(path: &str) -> Option<&'static str> {
    FORMER.iter().find(|(former, _)| *former == path).map(|&(_, reason)| reason)
}

/// The first paragraph.
fn meaning(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
    let paragraph = lines.split(|line| line.is_empty()).next().unwrap_or_default().join(" ");
    paragraph.trim_end_matches('.').to_owned()
}

/// Whether `path` is a key or a section of keys.
pub fn is_known(path: &str) -> bool {
    KEYS.iter().any(|key| key.path == path || is_section_of(path, key.path))
}

/// The key that `written` means: its full path, or the last word of one key (`sum_blocks` for
/// `train.sum_blocks`).
///
/// # Errors
/// [`Error::UnknownKey`] with the nearest key, [`Error::AmbiguousKey`] where the word could mean
/// several, [`Error::Config`] for a key that is gone.
pub fn resolve(written: &str, place: &str) -> Result<&'static str> {
    if let Some(key) = KEYS.iter().find(|key| key.path == written) {
        return Ok(key.path);
    }
    if let Some(reason) = former(written) {
        return Err(Error::config(place, format!("`{written}` is gone: {reason}")));
    }
    // `rows` may be meant for `max_rows`, too: a setting goes where no one can have meant another.
    let (same, longer): (Vec<_>, Vec<_>) = KEYS
        .iter()
        .map(|key| key.path)
        .filter(|path| {
            last_word(path).rsplit_once(written).is_some_and(|(before, after)| {
                after.is_empty() && (before.is_empty() || before.ends_with('_'))
            })
        })
        .partition(|path| last_word(path) == written);
    if let Some(key) = KEYS.iter().find(|key| is_section_of(written, key.path)) {
        let message = format!("`{written}` is a section: name one of its keys, as `{}`", key.path);
        return Err(Error::config(place, message));
    }
    match &same[..] {
        [] => Err(unknown(place.to_owned(), written)),
        [only] if longer.is_empty() => Ok(only),
        _ => Err(Error::AmbiguousKey {
            place: place.to_owned(),
            key: written.to_owned(),
            candidates: same.iter().chain(&longer).map(|path| format!("`{path}`")).collect(),
        }),
    }
}

/// That `key` is none, with the nearest.
pub(crate) fn unknown(place: String, key: &str) -> Error {
    Error::UnknownKey { place, key: key.to_owned(), nearest: nearest_key(key).map(str::to_owned) }
}

fn last_word(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Whether `path` names a section that holds keys, such as `optimizer.sparse`.
pub fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| is_section_of(path, key.path))
}

fn is_section_of(section: &str, path: &str) -> bool {
    path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

/// The known key that was most likely meant by `path`, if any is near enough.
fn nearest_key(path: &str) -> Option<&'static str> {
    let (section, word) = path.rsplit_once('.').unwrap_or(("", path));
    let score = |candidate: &str| {
        let (its_section, its_word) = candidate.rsplit_once('.').unwrap_or(("", candidate));
        let whole = similarity(path, candidate);
        if section.is_empty() {
            return whole.max(likeness(word, its_word));
        }
        // The same word in another section counts as much as a word that is a little like it in the
        // same one.
        let of_section = Some(similarity(section, its_section)).filter(|likeness| *likeness >= 0.5);
        0.3 * of_section.unwrap_or(0.0) + 0.7 * likeness(word, its_word)
    };
    // A typing error in the section or in the key, or a key without its section.
    let sections = KEYS.iter().filter_map(|key| key.path.split('.').next());
    let candidates = sections.filter(|_| section.is_empty()).chain(KEYS.iter().map(|key| key.path));
    let least = if section.is_empty() { 0.6 } else { 0.7 };
    best(candidates.map(|candidate| (score(candidate), candidate)), least)
}

/// How likely `word` was written for the last word `known` of a key: misspelt, its beginning, its
/// initials, or some of its parts.
fn likeness(word: &str, known: &str) -> f64 {
    let parts: Vec<&str> = known.split('_').collect();
    let initials: String = parts.iter().filter_map(|part| part.chars().next()).collect();
    let is_short =
        known.starts_with(word) && word.len() >= 3 || initials == word && word.len() >= 2;
    if is_short && word != known {
        return 0.9;
    }
    let is_part = word.len() >= 3 && word.split('_').all(|part| parts.contains(&part));
    similarity(word, known).max(if is_part { 0.85 } else { 0.0 })
}

/// Words that are longer are none that was mistyped, and to compare them takes long.
const LONGEST: usize = 100;

fn similarity(one: &str, other: &str) -> f64 {
    if one.len() > LONGEST {
        return 0.0;
    }
    strsim::normalized_damerau_levenshtein(one, other)
}

/// The candidate nearest to `word`, if any is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let score = |candidate: &str| {
        let is_part = candidate.split(['-', '_']).any(|part| part == word);
        similarity(word, candidate).max(if is_part { 0.8 } else { 0.0 })
    };
    best(candidates.map(|candidate| (score(candidate), candidate)), 0.6)
}

fn best<'a>(scored: impl Iterator<Item = (f64, &'a str)>, least: f64) -> Option<&'a str> {
    // Note: of equally near candidates the first wins, so the answer does not depend on the order
    // of a map.
    let best = scored.fold(None, |best: Option<(f64, &str)>, next| match best {
        Some(best) if best.0 >= next.0 => Some(best),
        _ => Some(next),
    });
    best.filter(|(score, _)| *score >= least).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_keys() {
        for (written, meant) in [
            ("train.batch_sise", Some("train.batch_size")),
            ("batch_size", Some("train.batch_size")),
            ("trian.batch_size", Some("train.batch_size")),
            ("model.batch_size", Some("train.batch_size")),
            ("lerning_rate", Some("train.learning_rate")),
            ("chekpoint", Some("checkpoint")),
            ("train.lr", Some("train.learning_rate")),
            ("lr", Some("train.learning_rate")),
            ("train.bs", Some("train.batch_size")),
            ("optimizer.sparse.eps", Some("optimizer.sparse.epsilon")),
            ("optimizer.dense.eps", Some("optimizer.dense.epsilon")),
            ("optimizer.sprase.eps", Some("optimizer.sparse.epsilon")),
            ("hybrid.max_bytes", Some("hybrid.max_replicated_bytes")),
            ("run.output", Some("run.output_dir")),
            ("train.learning", Some("train.learning_rate")),
            ("model.dropout", None),
            ("zebra", None),
        ] {
            assert_eq!(nearest_key(written), meant, "{written}");
        }
        // A second of them, before words had a bound.
        let begin = std::time::Instant::now();
        assert_eq!(nearest_key(&format!("eval.{}", "e".repeat(1 << 20))), None);
        assert!(begin.elapsed().as_secs() < 10);
        assert_eq!(
            nearest("kaggle", ["tiny", "criteo-sample", "criteo-kaggle"].into_iter()),
            Some("criteo-kaggle")
        );
    }

    #[test]
    fn the_last_word_of_one_key_is_enough() {
        assert_eq!(resolve("sum_blocks", "--set").unwrap(), "train.sum_blocks");
        assert_eq!(resolve("train.batch_size", "--set").unwrap(), "train.batch_size");
        for (written, candidates) in [
            ("batch_size", &["`train.batch_size`", "`eval.batch_size`"][..]),
            ("dir", &["`checkpoint.dir`", "`run.output_dir`"]),
            ("rows", &["`tables.rows`", "`tables.max_rows`"]),
            ("seed", &["`synthetic.seed`", "`train.seed`"]),
        ] {
            let message = resolve(written, "--set").unwrap_err().to_string();
            assert!(candidates.iter().all(|candidate| message.contains(candidate)), "{message}");
        }
        let message = resolve("lr", "--set").unwrap_err().to_string();
        assert_eq!(message, "--set: unknown key `lr`: did you mean `train.learning_rate`?");
    }

    #[test]
    fn sections_and_keys_are_known() {
        assert!(is_known("train") && is_known("optimizer.sparse") && is_known("train.seed"));
        assert!(!is_known("trai") && !is_known("train.seedy") && is_section("model"));
    }
}
