//! Every known key with its meaning: the list that unknown keys are checked against and that
//! `headlong config show` takes its comments from.

use crate::error::{Error, Result};

/// One key: its dotted path and what it means.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Dotted path, such as `train.batch_size`.
    pub path: &'static str,
    /// One sentence, with the unit and the choices.
    pub meaning: &'static str,
}

macro_rules! keys {
    ($($path:literal: $meaning:literal,)*) => {
        /// Every known key, section by section.
        pub const KEYS: &[Key] = &[$(Key { path: $path, meaning: $meaning }),*];
    };
}

keys! {
    "model.dim": "width of every embedding vector, in elements",
    "model.bottom": "widths of the bottom network after its data.num_dense inputs; the last equals \
                     model.dim",
    "model.top": "widths of the top network after the interaction; the last is 1",
    "model.interaction": "\"dot\", \"cat\" or \"cross\" (DCN v2)",
    "model.cross_layers": "cross: layers of the cross network",
    "model.cross_rank": "cross: width between the two factors of each of its matrices",
    "model.loss": "\"bce\" (from logits) or \"mse\"",
    "tables.rows": "rows of each table: a list, one number for all, a published list by name, or \
                    \"dictionary\"",
    "tables.max_rows": "no table gets more rows than this",
    "tables.pooling": "\"sum\" or \"mean\"",
    "tables.dtype": "what rows are stored in: \"f32\", \"bf16\" (rounded stochastically at \
                     updates) or, on a CUDA device, \"f16\"",
    "tables.max_ids_per_sample": "most ids of one bag, on average over a batch",
    "data.train": "training files (text, .gz, .zst, or a binary format), read in this order",
    "data.valid": "validation files",
    "data.format": "\"auto\", or a format of docs/formats.md: \"criteo\", \"csv\", \"parquet\", \
                    \"headlong\", \"mlperf\", \"raw\", \"npy\", \"split\"",
    "data.num_dense": "dense columns; 0: no bottom network, only the embeddings meet",
    "data.num_sparse": "categorical columns, each with a table",
    "data.hotness": "ids a sample in each column, 0: any number; empty: what the files say, else \
                     tables.max_ids_per_sample",
    "data.order": "\"sequential\", \"batches\" (in random order) or \"samples\" (in random order \
                   within windows)",
    "data.order_seed": "decides a random order",
    "data.order_window": "order = \"samples\": samples held in memory, among which any can come \
                          next",
    "data.ids": "\"hash\", \"admitted\", \"dictionary\", \"modulo\" or \"rows\" (the file has rows \
                 already)",
    "data.hash": "name of the hash of ids = \"hash\"",
    "data.min_count": "admitted, dictionary: an id seen this often gets a row of its own",
    "data.dictionary": "folder of `headlong data build-dictionary`; unset: train builds one where \
                        ids = \"dictionary\"",
    "data.dense_transform": "\"ln(x+1)\", \"ln(x+3)\", \"file-minimum\" or \"none\"",
    "data.on_bad_row": "\"error\" or \"skip\" (counted and reported)",
    "data.prefetch_batches": "batches that are read ahead",
    "data.cache": "where decoded data is kept between epochs: \"off\", \"host\", \"device\" or \
                   \"auto\"",
    "data.columns.label": "files with a header: the column that holds 0 or 1",
    "data.columns.dense": "files with a header: columns of numbers",
    "data.columns.categorical": "files with a header: columns of ids or words, each with a table",
    "data.columns.lists": "of these, the ones with several values in a field",
    "data.columns.list_separator": "the character between such values; unset: |",
    "data.columns.ignored": "files with a header: columns that are not used; [\"*\"]: all others",
    "multi_hot.sizes": "ids a sample in each column, made of the one that the file has: a list, \
                        \"mlperf\" (214), or empty: as the file",
    "multi_hot.distribution": "how they are drawn: \"uniform\" or \"pareto\"",
    "multi_hot.seed": "where numpy's generator starts; MLPerf: 0",
    "multi_hot.memory_mib": "most memory for what is drawn, in MiB; 0: all that it takes. Changes \
                             no id",
    "synthetic.enabled": "whether synthetic data is written and used where no training file is \
                          named",
    "synthetic.train_rows": "rows of the synthetic training file",
    "synthetic.valid_rows": "rows of the synthetic validation file",
    "synthetic.seed": "decides every synthetic row",
    "synthetic.scale": "the Kaggle data's numbers of distinct ids times this; small columns keep \
                        theirs",
    "synthetic.gzip": "whether the synthetic files are compressed",
    "train.batch_size": "samples of one batch, over all ranks",
    "train.accumulate": "batches whose gradients are summed before one step",
    "train.epochs": "passes over the training files; a fraction stops inside one",
    "train.steps": "steps, instead of epochs",
    "train.learning_rate": "learning rate after the warm-up",
    "train.sparse_learning_rate": "learning rate of the tables, where it differs",
    "train.warmup_steps": "steps of linear warm-up; 0: none",
    "train.decay_start_step": "first step of the decay",
    "train.decay_steps": "steps of the decay; 0: none",
    "train.decay_power": "power of the polynomial decay",
    "train.final_learning_rate": "the decay does not go below this",
    "train.hugectr_compat": "between warm-up and decay, the warm-up's last value instead of \
                             learning_rate, as HugeCTR has it",
    "train.clip_norm": "largest L2 norm of all dense gradients together",
    "train.seed": "decides the initial weights",
    "train.sum_blocks": "blocks into which a batch is cut for sums (docs/numerics.md); unset: one \
                         per rank",
    "train.precision": "\"f32\", \"tf32\", \"bf16\" or \"f16\"",
    "train.loss_scale": "f16: first factor of the loss, a power of two from 1 to 2^24; it adapts \
                         (docs/numerics.md)",
    "train.loss_scale_interval": "f16: steps without an overflow after which that factor is \
                                  doubled",
    "train.log_every": "steps between two lines of progress",
    "optimizer.sparse.name": "\"sgd\", \"adagrad\", \"rowwise_adagrad\", \"lazy_adam\" or \"ftrl\"",
    "optimizer.sparse.epsilon": "Adagrad, Adam: added outside the root",
    "optimizer.sparse.initial_accumulator": "Adagrad, FTRL: first value of the accumulator",
    "optimizer.sparse.beta1": "Adam: decay of the first moment",
    "optimizer.sparse.beta2": "Adam: decay of the second moment",
    "optimizer.sparse.beta": "FTRL: beta",
    "optimizer.sparse.lambda1": "FTRL: strength of the L1 term",
    "optimizer.sparse.lambda2": "FTRL: strength of the L2 term",
    "optimizer.dense.name": "\"sgd\", \"adagrad\" or \"adam\"",
    "optimizer.dense.epsilon": "Adagrad, Adam: added outside the root",
    "optimizer.dense.initial_accumulator": "Adagrad: first value of the accumulator",
    "optimizer.dense.beta1": "Adam: decay of the first moment",
    "optimizer.dense.beta2": "Adam: decay of the second moment",
    "eval.every": "an integer: steps between evaluations; with a point: fraction of an epoch; 0: \
                   at the end alone. There is one at the end, and none right before it",
    "eval.batch_size": "samples of one evaluation batch",
    "eval.asynchronous": "whether training continues while scores are sorted; changes no metric",
    "eval.target_auc": "training stops at the first evaluation that reaches it",
    "checkpoint.dir": "folder of the checkpoints; unset: none are written",
    "checkpoint.save_every": "steps between checkpoints; 0: at the end alone",
    "checkpoint.keep": "newest checkpoints that are kept",
    "checkpoint.keep_best": "with save_every: whether the best evaluation is saved and kept, too",
    "mlperf.org": "--mllog: who trains",
    "mlperf.platform": "--mllog: on what",
    "mlperf.division": "--mllog: \"closed\" or \"open\"",
    "mlperf.status": "--mllog: \"onprem\", \"cloud\", \"preview\" or \"research\"",
    "run.device": "\"auto\", \"cpu\" or \"cuda\"",
    "run.kernels": "folder of compiled CUDA kernels; unset: they are compiled when first used, and \
                    kept",
    "run.algorithms": "file of measured algorithms for matrix products on a CUDA device; unset: \
                       the library's first proposal",
    "run.threads": "threads of this process over all its ranks; unset: one per core; changes no \
                    result",
    "run.instructions": "\"auto\", \"portable\", \"avx2\", \"avx512\" or \"avx512_bf16\"; changes \
                         no result",
    "run.ranks": "data-parallel ranks",
    "run.eval_ranks": "ranks that evaluate alone, while the others train; unset: those that train \
                       evaluate",
    "run.hybrid": "rows replicated on every rank: \"off\", \"auto\" or \"rows=N\"",
    "run.schedule": "\"serial\", \"overlapped\" or \"captured\"; changes no result",
    "run.transport": "\"auto\", \"local\", \"shm\", \"tcp\", \"nccl\" or \"verbs\"",
    "run.output_dir": "folder for everything that is written and has no folder of its own",
    "comm.ranks_per_node": "ranks of one node where ranks are threads; 0: all on one node",
    "comm.exchange": "\"auto\", \"flat\" or \"hierarchical\"; changes no result",
    "comm.ids": "\"auto\", \"exchange\" or \"known\" (every rank holds the ids of the whole \
                 batch); changes no result",
    "comm.deduplicate": "\"auto\", \"off\", \"rank\" or \"node\"; changes no result",
    "comm.compress": "\"none\" or \"bf16\": what vectors are rounded to on the way",
    "comm.slot_factor": "even shares of a rank's ids that a device's slot for one owner has room \
                         for; changes no result",
    "comm.deadline_s": "seconds after which a rank that does not come to an exchange ends the run",
    "comm.insecure": "whether a job that other machines can reach may do without a secret; changes \
                      no result",
    "comm.tuning": "measured fastest ways of exchanges (`headlong bench tune`); unset: defaults of \
                    the transport; changes no result",
    "comm.nccl.collnet": "\"off\", \"auto\" or \"require\": sums in the network's switches \
                          (SHARP), by NCCL",
    "comm.nccl.nvls": "\"off\", \"auto\" or \"require\": sums in the node's NVSwitch, by NCCL",
    "comm.verbs.devices": "network devices by local index of the rank; empty: the nearest one",
    "comm.verbs.gid_index": "place of the global identifier in the port's table; unset: the best \
                             one",
    "comm.verbs.partition_key": "partition key",
    "comm.verbs.service_level": "service level, 0 to 15",
    "comm.verbs.traffic_class": "traffic class: on RoCE four times the DSCP, plus ECN bits",
    "comm.verbs.timeout": "an answer is missing after 4.096 microseconds times two to this power",
    "comm.verbs.retries": "so often a packet is sent again, 0 to 7",
    "comm.verbs.slots": "slots of a direction, 2 to 64",
    "comm.verbs.slot_bytes": "payload bytes of a slot; longer messages take several turns",
    "comm.verbs.signal": "\"immediate\" (every NIC) or \"atomic\": how a receiver learns that a \
                          slot is filled",
    "hybrid.statistics_batches": "batches read before the first step to learn how frequent each \
                                  row is",
    "hybrid.latency_table": "measured latencies (`headlong bench tune`); unset: defaults of the \
                             transport",
    "hybrid.max_replicated_bytes": "bytes of a rank for replicated rows; 0: a quarter of its \
                                    memory",
    "hybrid.repartition_drift": "lost share of covered lookups at which the split is remade; 0: \
                                 never",
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
/// several.
pub fn resolve(written: &str, place: &str) -> Result<&'static str> {
    if let Some(key) = KEYS.iter().find(|key| key.path == written) {
        return Ok(key.path);
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
    match (&same[..], is_section(written)) {
        ([], _) | (_, true) => Err(unknown(place.to_owned(), written)),
        ([only], false) if longer.is_empty() => Ok(only),
        _ => Err(Error::AmbiguousKey {
            place: place.to_owned(),
            key: written.to_owned(),
            candidates: same.iter().chain(&longer).map(|path| format!("`{path}`")).collect(),
        }),
    }
}

/// That `key` is none, with the nearest.
pub(super) fn unknown(place: String, key: &str) -> Error {
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

fn similarity(one: &str, other: &str) -> f64 {
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
        assert!(!is_known("trai") && !is_known("train.seeds") && is_section("model"));
    }
}
