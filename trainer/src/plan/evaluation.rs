//! Ranks of their own that evaluate: what they take, and how many hide an evaluation behind
//! training.

use super::memory::of_rank;
use super::{Count, Facts, MemoryUse, sharing, tables};
use crate::config::{
    Config, EvalEvery, EvalRanksAre, HybridMode, Ids, OrderChoice, TransportChoice,
};
use crate::error::{Error, Result};
use crate::iteration::model::table_specs;
use crate::report::bytes;
use headlong_embedding::Keys;
use headlong_embedding::hybrid::MAX_OWNERS;
use headlong_reader::io::DataFile;
use serde::Serialize;

/// What ranks of their own that evaluate take, besides those that train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EvalRanksPlan {
    pub ranks: usize,
    /// Of these, the processes on this machine; none where all are threads of the process that
    /// leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_here: Option<usize>,
    /// What the memory of each goes to; the weights are those of the snapshot.
    pub memory: MemoryUse,
    /// Bytes of all of them on this host.
    pub bytes: Count,
    /// Bytes of each on its device; 0 where there is none.
    pub bytes_on_device: Count,
}

impl EvalRanksPlan {
    /// None where the ranks that train evaluate.
    pub(super) fn new(config: &Config, facts: &Facts<'_>) -> Option<Self> {
        let evaluating = config.run.evaluating()?;
        let ranks = evaluating.count();
        let processes_here = match evaluating {
            EvalRanksAre::Threads(_) => None,
            EvalRanksAre::Processes(all) => Some(facts.evaluating_here.unwrap_or(all)),
        };
        let is_of_dictionary = config.data.ids == Ids::Dictionary;
        let mut config = config_of_eval_ranks(config, ranks);
        // What the process has once is in the plan of the ranks that train.
        let is_shared = processes_here.is_none();
        config.multi_hot.is_idle |= is_shared;
        let threads = config.run.threads.unwrap_or(facts.machine.cores);
        let of_all = tables(&config, facts.table_rows, facts.registry);
        let sharing = sharing(&config, &facts.of_eval_ranks(evaluating));
        let mut memory = of_rank(&config, &of_all, threads, &sharing);
        if is_shared {
            memory.other_bytes = Count::ZERO;
        }
        if is_shared && is_of_dictionary {
            memory.id_map_bytes = Count::ZERO;
        }
        let (of_rank, bytes_on_device) = match facts.machine.device {
            Some(_) => (memory.next_to_a_device(), memory.on_a_device(ranks)),
            None => (memory.total(), Count::ZERO),
        };
        let bytes = of_rank * processes_here.unwrap_or(ranks);
        Some(Self { ranks, processes_here, memory, bytes, bytes_on_device })
    }

    /// In words: `1.20 GiB more for 1 rank that evaluates`.
    pub(super) fn to_text(self) -> String {
        let who = match (self.processes_here, self.ranks) {
            (None, 1) => "1 rank that evaluates".to_owned(),
            (None, ranks) => format!("{ranks} ranks that evaluate"),
            (Some(1), 1) => "1 process that evaluates".to_owned(),
            (Some(here), ranks) if here == ranks => format!("{ranks} processes that evaluate"),
            (Some(0), _) => return "evaluated on other machines".to_owned(),
            (Some(here), ranks) => format!("{here} of {ranks} processes that evaluate"),
        };
        let on_device = match self.bytes_on_device.get() {
            0 => String::new(),
            needed => format!(", and {} on the device of each", bytes(needed)),
        };
        format!("{} more for {who}{on_device}", bytes(self.bytes.get()))
    }
}

/// Arithmetic of a training step over that of its forward pass: the backward pass has two products
/// for each of the forward pass.
const STEP_OVER_FORWARD: u128 = 3;

/// Samples that are trained on between two evaluations; none where there is one alone, at the end,
/// or nothing is known of an epoch.
pub(super) fn samples_between(config: &Config, data_rows: Option<u64>) -> Option<f64> {
    match config.eval.every {
        EvalEvery::Steps(0) => None,
        EvalEvery::Steps(steps) => Some((config.samples_per_step() * steps).as_f64()),
        EvalEvery::EpochFraction(fraction) => Some(data_rows? as f64 * fraction),
    }
}

/// The fewest ranks of their own that have evaluated `eval_rows` samples before the next evaluation
/// begins, on ranks as fast as those that train; none where there is one evaluation alone, at the
/// end, or nothing is known of an epoch.
///
/// An evaluation of E samples takes N ranks the time of E / N forward passes. Between two
/// evaluations, R ranks train on I samples in the time of 3 I / R forward passes. So N is R E / 3
/// I, rounded up.
pub fn hiding_eval_ranks(config: &Config, eval_rows: u64, data_rows: Option<u64>) -> Option<u64> {
    let between = u128::from(samples_between(config, data_rows)? as u64);
    let forward_passes = config.run.ranks as u128 * u128::from(eval_rows);
    let ranks = forward_passes.div_ceil(STEP_OVER_FORWARD * between.max(1)).max(1);
    Some(u64::try_from(ranks).unwrap_or(u64::MAX))
}

/// The same in words; empty where nothing is known.
pub fn note(config: &Config, eval_rows: Option<u64>, data_rows: Option<u64>) -> String {
    match eval_rows.and_then(|rows| hiding_eval_ranks(config, rows, data_rows)) {
        Some(1) => "evaluation: 1 rank of its own would hide it behind training (--eval-ranks 1)\n"
            .to_owned(),
        Some(ranks) if ranks > MAX_OWNERS as u64 => format!(
            "evaluation: no number of ranks of their own that is allowed (--eval-ranks 1 to \
             {MAX_OWNERS}) would hide it behind training: evaluate less often (--eval-every)\n"
        ),
        Some(ranks) => {
            format!(
                "evaluation: {ranks} ranks of their own would hide it behind training \
                 (--eval-ranks {ranks})\n"
            )
        }
        None => String::new(),
    }
}

/// A file of the training data that is also one to validate on, where nothing is held out.
pub fn in_training(config: &Config) -> Option<String> {
    let place = |file: &DataFile| match file.frame() {
        None => std::fs::canonicalize(file.path()).ok(),
        Some(_) => None,
    };
    let of_training: Vec<_> = config.data.train.iter().filter_map(place).collect();
    let is_both = |file: &&DataFile| place(file).is_some_and(|file| of_training.contains(&file));
    let both = config.data.valid.iter().find(is_both).filter(|_| config.holdout().is_none())?;
    Some(both.path().display().to_string())
}

/// What is said where evaluations are asked for and the data that is named has nothing to evaluate
/// on.
pub fn missing_data(config: &Config) -> Option<String> {
    let every = match config.eval.every {
        EvalEvery::Steps(0) => return None,
        EvalEvery::Steps(steps) => steps.to_string(),
        EvalEvery::EpochFraction(fraction) => fraction.to_string(),
    };
    let is_missing = config.data.valid.is_empty() && !config.data.train.is_empty();
    is_missing.then(|| {
        format!(
            "eval.every = {every}, but nothing is evaluated: there is no validation data (--valid \
             FILE)"
        )
    })
}

/// The configuration of `count` ranks that evaluate the model of `config`: no optimiser states, and
/// no batches larger than those of evaluations.
pub fn config_of_eval_ranks(config: &Config, count: usize) -> Config {
    let mut config = config.clone();
    // Vectors are rounded as those of the ranks that train.
    config.comm.compress = Some(config.compress());
    (config.run.ranks, config.run.eval_ranks, config.run.eval_processes) = (count, None, None);
    (config.run.transport, config.run.hybrid) = (TransportChoice::Local, HybridMode::Off);
    config.comm.ranks_per_node = 0;
    config.data.order = OrderChoice::Sequential;
    config.train.batch_size = config.train.batch_size.min(config.eval.batch_size).max(count);
    (config.train.accumulate, config.train.sum_blocks) = (1, None);
    let optimizers = &mut config.optimizer;
    optimizers.dense.sharded = None;
    for name in [&mut optimizers.dense.name, &mut optimizers.sparse.name] {
        "sgd".clone_into(name);
    }
    config
}

/// Refuses processes that evaluate where their machine has no memory for those that it has of them.
pub fn check_memory(config: &Config, facts: &Facts<'_>) -> Result<()> {
    let Some(plan) = EvalRanksPlan::new(config, facts) else { return Ok(()) };
    let help = || "evaluate on more processes: --eval-processes, or on a larger machine".to_owned();
    if let Some(device) = &facts.machine.device {
        plan.bytes_on_device.must_fit(device.free_bytes, help)?;
    }
    Ok(plan.bytes.must_fit(facts.machine.usable_bytes(), help)?)
}

/// Refuses what ranks of their own cannot evaluate.
pub fn check_eval_ranks(config: &Config, table_rows: &[u64], has_validation: bool) -> Result<()> {
    let Some(evaluating) = config.run.evaluating() else { return Ok(()) };
    let (count, setting) = (evaluating.count(), evaluating.setting());
    if !has_validation {
        return Err(Error::contradiction(setting, "no validation data", "name some: --valid FILE"));
    }
    let specs = table_specs(config, table_rows);
    match specs.iter().find(|spec| spec.keys == Keys::RawIds) {
        // Each owner has a share of the rows: other owners would find no room for some.
        Some(spec) if count.max(config.run.ranks) > 1 => Err(Error::unsupported(
            format!("{setting} with table {} (kind = \"{}\")", spec.name, spec.kind),
            format!(
                "a table of raw ids fits other ranks otherwise: train on one rank and evaluate on \
                 one, or drop {}",
                evaluating.flag()
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::preset::preset;

    /// The slow, obvious way: ranks are added until an evaluation takes no longer than the training
    /// between two.
    fn tried(ranks: u64, eval_rows: u64, between: u64) -> u64 {
        let hides = |count: &u64| eval_rows * ranks <= 3 * between * count;
        (1..).find(hides).expect("enough ranks hide everything")
    }

    #[test]
    fn as_many_ranks_as_trying_finds() {
        let mut config = preset("tiny").unwrap();
        config.train.batch_size = 100;
        for (ranks, steps, eval_rows) in
            [(1, 10, 300), (1, 10, 3_000), (1, 10, 3_001), (8, 20, 89_137), (2, 1, 0)]
        {
            (config.run.ranks, config.eval.every) = (ranks, EvalEvery::Steps(steps));
            let found = hiding_eval_ranks(&config, eval_rows, None);
            assert_eq!(
                found,
                Some(tried(ranks as u64, eval_rows, steps * 100)),
                "{ranks} {steps} {eval_rows}"
            );
        }
    }

    #[test]
    fn no_number_is_advised_that_is_refused() {
        let mut config = preset("tiny").unwrap();
        (config.train.batch_size, config.eval.every) = (100, EvalEvery::Steps(1));
        let said = |ranks: usize| note(&config, Some(ranks as u64 * 300), None);
        assert!(said(MAX_OWNERS).contains(&format!("(--eval-ranks {MAX_OWNERS})")));
        assert!(said(MAX_OWNERS + 1).contains("no number of ranks"));
    }

    #[test]
    fn parts_of_an_epoch_need_its_rows() {
        let mut config = preset("tiny").unwrap();
        config.eval.every = EvalEvery::EpochFraction(0.05);
        // Criteo's Terabyte: 4,195,197,692 samples, and 89,137,319 to evaluate, on 64 ranks.
        config.run.ranks = 64;
        assert_eq!(hiding_eval_ranks(&config, 89_137_319, Some(4_195_197_692)), Some(10));
        assert_eq!(note(&config, Some(89_137_319), None), "");
        config.eval.every = EvalEvery::Steps(0);
        assert_eq!(hiding_eval_ranks(&config, 1, Some(1)), None);
    }
}
