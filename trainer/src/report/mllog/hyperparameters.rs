//! Which settings a log of MLPerf's form names, for each of the two models.

use crate::config::{Config, Interaction};
use serde_json::{Value, json};

/// MLPerf's name of the model: with a cross network it is the second version.
pub(super) fn benchmark(config: &Config) -> &'static str {
    if is_first_version(config) { "dlrm" } else { "dlrm_dcnv2" }
}

fn is_first_version(config: &Config) -> bool {
    matches!(config.model.interaction, Interaction::Dot | Interaction::Cat)
}

/// Keys and values, in the order of their lines.
pub(super) fn settings(config: &Config) -> Vec<(&'static str, Value)> {
    let train = &config.train;
    let mut settings = vec![
        ("global_batch_size", json!(train.batch_size * train.accumulate)),
        ("gradient_accumulation_steps", json!(train.accumulate)),
        ("seed", json!(train.seed)),
        ("opt_name", json!(config.optimizer.dense.name)),
        ("opt_base_learning_rate", json!(train.learning_rate)),
        ("opt_learning_rate_warmup_steps", json!(train.warmup_steps)),
    ];
    let of_version =
        if is_first_version(config) { first_version(config) } else { second_version(config) };
    settings.extend(of_version);
    settings
}

fn first_version(config: &Config) -> Vec<(&'static str, Value)> {
    let train = &config.train;
    vec![
        ("lr_decay_start_steps", json!(train.decay_start_step)),
        ("sgd_opt_base_learning_rate", json!(train.learning_rate)),
        ("sgd_opt_learning_rate_decay_poly_power", json!(train.decay_power)),
        ("sgd_opt_learning_rate_decay_steps", json!(train.decay_steps)),
    ]
}

fn second_version(config: &Config) -> Vec<(&'static str, Value)> {
    let (train, adagrad) = (&config.train, &config.optimizer.dense.settings);
    vec![
        // What this program's Adagrad has not.
        ("opt_adagrad_learning_rate_decay", json!(0)),
        ("opt_weight_decay", adagrad.weight_decay.map_or(json!(0), |decay| json!(decay))),
        (
            "opt_adagrad_initial_accumulator_value",
            json!(adagrad.initial_accumulator.unwrap_or(0.0)),
        ),
        ("opt_adagrad_epsilon", json!(adagrad.epsilon)),
        ("opt_learning_rate_decay_start_step", json!(train.decay_start_step)),
        ("opt_learning_rate_decay_steps", json!(train.decay_steps)),
    ]
}

/// The tensors whose initialisation the first version's log names.
pub(super) fn tensors(config: &Config) -> Vec<String> {
    if !is_first_version(config) {
        return Vec::new();
    }
    let layers = |stack: &str, count: usize| {
        (1..=count).map(|number| format!("{stack}_mlp_dense{number}")).collect::<Vec<_>>()
    };
    let (bottom, top) =
        (layers("bottom", config.model.bottom.len()), layers("top", config.model.top.len()));
    ["embeddings".to_owned()].into_iter().chain(bottom).chain(top).collect()
}
