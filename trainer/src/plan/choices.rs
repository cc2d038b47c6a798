//! What a run does where its configuration leaves a choice, and why.

use super::Facts;
use super::between::Between;
use crate::config::{
    AllToAll, CacheData, Compress, Config, DeduplicateChoice, PoolAtChoice, Precision,
    ScheduleChoice, TransportChoice,
};
use crate::data::training_stays;
use crate::report::bytes;
use headlong_comm::Topology;
use headlong_comm::device::goes_by_node;
use headlong_embedding::hybrid::PoolAt;
use headlong_embedding::hybrid::split::{PoolChoice, TableSplit};
use serde::Serialize;

/// One choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    pub what: &'static str,
    pub chosen: String,
    pub because: String,
}

impl Choice {
    fn new(what: &'static str, (chosen, because): (&str, impl Into<String>)) -> Self {
        Self { what, chosen: chosen.to_owned(), because: because.into() }
    }

    /// One line of the plan.
    pub fn to_text(&self) -> String {
        format!("{}: {}, because {}\n", self.what, self.chosen, self.because)
    }
}

/// The choices of a run on devices or on several ranks; a single rank on a processor has none.
pub fn of(config: &Config, facts: &Facts<'_>) -> Vec<Choice> {
    let on_device = facts.machine.device.is_some();
    let several = config.run.ranks > 1;
    let mut choices = Vec::new();
    if on_device || several {
        choices.push(Choice::new("schedule", schedule(config, on_device)));
    }
    if on_device && config.data.cache == CacheData::Device {
        choices.push(Choice::new("stays on devices", stays(config, facts)));
    }
    if several {
        choices.extend(merging(config, &topology(config, facts)));
        choices.push(Choice::new("vectors", vectors(config)));
        choices.extend(facts.split.and_then(|split| pooling(config, &split.tables, on_device)));
        choices.push(Choice::new("sums", sums(config, on_device)));
    }
    if on_device && several {
        let topology = topology(config, facts);
        let by_node = goes_by_node(&topology, config.comm.exchange);
        choices.push(Choice::new("devices exchange", exchange(config, by_node)));
        let between = Between::of_ranks(config, &topology);
        choices.push(Choice::new("carried by", carrier(config.run.transport, between)));
        choices.push(Choice::new("strips", strips(between)));
    }
    choices
}

fn schedule(config: &Config, on_device: bool) -> (&'static str, String) {
    let used = match config.run.schedule_used() {
        ScheduleChoice::Auto | ScheduleChoice::Serial => "serial",
        ScheduleChoice::Overlapped => "overlapped",
        ScheduleChoice::Captured => "captured",
    };
    let because = match (config.run.schedule, on_device) {
        (ScheduleChoice::Auto, true) => "a device runs a step as one graph",
        (ScheduleChoice::Auto, false) => "all stages share the processor's cores",
        _ => "run.schedule says so",
    };
    (used, because.to_owned())
}

fn stays(config: &Config, facts: &Facts<'_>) -> (&'static str, &'static str) {
    match training_stays(config, facts.data_rows) {
        Ok(()) => ("batches of training and of evaluations", "data.cache says so"),
        Err(reason) => ("batches of evaluations alone", reason),
    }
}

/// Where equal rows are merged, if that is asked of nodes.
fn merging(config: &Config, topology: &Topology) -> Option<Choice> {
    let choice = match topology.aligned_node_size() {
        _ if config.comm.deduplicate != DeduplicateChoice::Node => return None,
        Some(_) => ("in nodes", "comm.deduplicate says so"),
        None if topology.num_nodes() == 1 => ("on ranks", "there is only one node"),
        None => ("on ranks", "nodes have one rank each"),
    };
    Some(Choice::new("equal rows are merged", choice))
}

fn vectors(config: &Config) -> (&'static str, &'static str) {
    let because = match (config.comm.compress, config.train.precision) {
        (Some(_), _) => "comm.compress says so",
        (None, Precision::Bf16 | Precision::F16) if config.compress() != Compress::None => {
            "products round them to that"
        }
        (None, Precision::Bf16 | Precision::F16) => "train.sum_blocks is 1",
        (None, Precision::F32 | Precision::Tf32) => "products take f32",
    };
    match config.compress() {
        Compress::Bf16 => ("bf16", because),
        // Gradients of rows may be smaller than f16 holds.
        Compress::F16 => ("f16, their gradients bf16", because),
        Compress::None => ("f32", because),
    }
}

fn sums(config: &Config, on_device: bool) -> (&'static str, &'static str) {
    match (config.is_narrow(), config.sums_are_narrow(on_device)) {
        (true, true) => match config.train.precision {
            Precision::F16 => ("bf16", "that has the range of f32, and f16 has not"),
            _ => ("bf16", "products round gradients to that"),
        },
        (true, false) => ("f32", "comm.nccl requires switches to add up"),
        (false, _) => ("f32", "gradients stay what products add up"),
    }
}

/// Where bags of several ids become vectors; nothing where there are none.
fn pooling(config: &Config, tables: &[TableSplit], on_device: bool) -> Option<Choice> {
    let bags = || tables.iter().filter_map(|table| Some((table, table.pooling?)));
    if bags().next().is_none() {
        let mut columns = 0..config.data.num_sparse;
        let has_bags = columns.any(|column| config.max_ids_per_sample(column) > 1);
        let is_asked_for = config.comm.pool_at != PoolAtChoice::Rank && !has_bags;
        let because = "no table has several ids a sample (data.hotness, tables.max_ids_per_sample)";
        return is_asked_for.then(|| Choice::new("bags become vectors", ("on the rank", because)));
    }
    let named = |wanted: &dyn Fn(&TableSplit, &PoolChoice) -> bool| {
        let wanted = bags().filter(|(table, choice)| wanted(table, choice));
        let add = |(mut names, rank, owner): (Vec<String>, f64, f64),
                   (table, choice): (&TableSplit, PoolChoice)| {
            names.push(table.name.clone());
            (names, rank + choice.rank_bytes, owner + choice.owner_bytes)
        };
        let (names, rank, owner) = wanted.fold((Vec::new(), 0.0, 0.0), add);
        let sent = |sent: f64| bytes(sent.round() as u64);
        (names.join(", "), format!("{} a step in place of {}", sent(owner), sent(rank)))
    };
    let (pooled, sent) = named(&|table, _| table.pool_at == PoolAt::Owner);
    if !pooled.is_empty() {
        return Some(Choice::new(
            "bags become vectors",
            (&format!("at the owner, of {pooled}"), because_of(config, &sent)),
        ));
    }
    let (pays, sent) = named(&|_, choice| choice.at == PoolAt::Owner);
    let because = match (config.comm.pool_at, pays.is_empty()) {
        (_, true) => {
            let (_, all) = named(&|_, _| true);
            format!("at the owner they would send {all}, not a quarter less")
        }
        (PoolAtChoice::Rank, false) => format!(
            "comm.pool_at is \"rank\"; with \"auto\" {pays} would send {sent}, in sums of \
             another shape"
        ),
        (_, false) if !on_device && config.compress() != Compress::None => format!(
            "vectors travel in 16 bits, and between processors sums of owners as f32; with \
             comm.compress = \"none\" {pays} would send {sent}"
        ),
        (_, false) => "pool_at of the tables says so".to_owned(),
    };
    Some(Choice::new("bags become vectors", ("on the rank", because)))
}

/// Bytes are counted for as many ranks as there are sum blocks: what is chosen is the same on any
/// number.
fn because_of(config: &Config, sent: &str) -> String {
    let (blocks, counted) = (config.sum_blocks(), format!("that sends {sent}"));
    match config.comm.pool_at {
        PoolAtChoice::Auto => format!("{counted} on {blocks} ranks (train.sum_blocks)"),
        _ => format!("pool_at says so; {counted} on {blocks} ranks (train.sum_blocks)"),
    }
}

fn topology(config: &Config, facts: &Facts<'_>) -> Topology {
    let ranks = config.run.ranks;
    let per_node = match (facts.ranks_here, config.comm.ranks_per_node) {
        (Some(here), _) => here,
        (None, 0) => ranks,
        (None, per_node) => per_node,
    };
    Topology::with_ranks_per_node(ranks, per_node)
}

fn exchange(config: &Config, by_node: bool) -> (&'static str, &'static str) {
    let chosen = if by_node { "hierarchical" } else { "flat" };
    let because = match (config.comm.exchange, by_node) {
        (AllToAll::Auto, true) => "there are several nodes of several ranks",
        (AllToAll::Auto, false) => "hierarchical is for several nodes of several ranks",
        _ => "comm.exchange says so",
    };
    (chosen, because)
}

/// How long what a rank has for another is on its way.
fn strips(between: Between) -> (&'static str, &'static str) {
    match between {
        Between::Nccl | Between::MemoryAndNccl => {
            ("of lengths a sixteenth apart", "NCCL takes lengths from the host")
        }
        Between::Memory | Between::MemoryAndVerbs => {
            ("as long as what they carry", "nothing on the way needs lengths from the host")
        }
    }
}

/// What is asked for is used or refused; else what joins these devices.
fn carrier(asked: TransportChoice, between: Between) -> (&'static str, &'static str) {
    match between {
        Between::MemoryAndVerbs => {
            ("peer memory in nodes, verbs between", "run.transport is \"verbs\"")
        }
        Between::Nccl if asked == TransportChoice::Nccl => ("NCCL", "run.transport is \"nccl\""),
        Between::Nccl => ("NCCL", "it joins all ranks of several nodes"),
        Between::MemoryAndNccl => {
            ("peer memory in nodes, NCCL between", "run.transport is not \"verbs\"")
        }
        Between::Memory => ("peer memory", "ranks are on one machine (NCCL where it has none)"),
    }
}
