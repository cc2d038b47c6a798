//! The dense optimiser divided among the ranks: whether it is, and what a rank holds then.
//!
//! **The rule of `"auto"`** (bytes are in `docs/numerics.md`). Divided, a step in f32 sends as much
//! as whole: one half of an all-reduce brings each rank the sums of its part's gradients, the
//! other half brings all ranks the weights. Where gradients travel as bf16, weights still travel as
//! f32, and half as much again is sent: then everything stays whole. A rank of N reads and writes
//! an N-th of weights, gradients and states, and packs all weights in a pass of its own, which
//! takes about as long as it saves. The price is one more wait of all ranks for each other; what is
//! gained are the states that a rank need not hold. Where these are less than [`WORTHWHILE_BYTES`],
//! everything stays whole. The rule is the same on processors and on devices.

use crate::config::{Config, Sharded};
use crate::error::{Result, exchange_failed};
use crate::iteration::model::Model;
use crate::report::bytes;
use headlong_comm::{Communicator, SumLen};
use headlong_device::{ArenaPlan, Mat};
use headlong_mlp::optim::divided::{self, Norms, Part};
use std::ops::Range;

/// Bytes of states that every rank must be spared for `"auto"` to divide.
const WORTHWHILE_BYTES: u64 = 64 << 20;

/// Whether the dense optimiser of a configuration is divided among its ranks, and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DenseChoice {
    /// What a step needs for it, where it is.
    pub(crate) norms: Option<Norms>,
    /// None where nothing was asked for.
    pub(crate) reason: Option<String>,
}

impl DenseChoice {
    /// For `parameters`, on `ranks` ranks.
    pub(super) fn new(
        config: &Config,
        parameters: &ArenaPlan,
        ranks: usize,
        on_device: bool,
    ) -> Self {
        let sharded = config.optimizer.dense.sharded.unwrap_or_default();
        let whole = |reason: &str| Self { norms: None, reason: Some(reason.to_owned()) };
        let optimizer = config.optimizer.dense.optimizer();
        let needed = Norms::needed(&optimizer, config.train.clip_norm.is_some());
        let norms = match (sharded, needed) {
            (Sharded::Never, _) => return Self { norms: None, reason: None },
            _ if ranks == 1 => return whole("there is one rank"),
            (_, None) => return whole("norms of LAMB and of clipping do not divide alike"),
            (Sharded::Always | Sharded::Auto, Some(norms)) => norms,
        };
        let bounds = divided::bounds(parameters, norms, ranks);
        let states = optimizer.states().len();
        let part = divided::state_bytes(longest(&bounds));
        let spared = parameters.bytes().saturating_sub(part).saturating_mul(states) as u64;
        let name = &config.optimizer.dense.name;
        let blocks = config.train.sum_blocks.unwrap_or(ranks);
        let is_narrow = config.sum_bytes_of(blocks, on_device) == 2;
        match sharded {
            Sharded::Auto if states == 0 => whole(&format!("{name} has no states to divide")),
            Sharded::Auto if is_narrow => {
                whole("gradients travel as bf16, and weights would as f32")
            }
            Sharded::Auto if spared < WORTHWHILE_BYTES => whole(&format!(
                "it would spare a rank {} of states, less than {}",
                bytes(spared),
                bytes(WORTHWHILE_BYTES)
            )),
            _ => {
                let reason = format!("it spares a rank {} of states", bytes(spared));
                Self { norms: Some(norms), reason: Some(reason) }
            }
        }
    }
}

/// Elements of the longest part.
pub(super) fn longest(bounds: &[usize]) -> usize {
    bounds.windows(2).map(|part| part[1] - part[0]).max().unwrap_or(0)
}

/// The dense parameters as ranks have divided them.
pub(crate) struct Divided {
    /// Where the parts of all ranks begin, and the end of the last one.
    pub(crate) bounds: Vec<usize>,
    /// On a device, the same of the sums of norms.
    pub(crate) sum_bounds: Vec<usize>,
    /// This rank's.
    pub(crate) part: Part,
    pub(crate) norms: Norms,
}

impl Divided {
    /// What is this rank's of `parameters`, with the sums of norms in `sums`.
    pub(super) fn new(
        parameters: &ArenaPlan,
        norms: Norms,
        ranks: &Communicator,
        sums: Mat,
    ) -> Self {
        let bounds = divided::bounds(parameters, norms, ranks.num_ranks());
        let rank = ranks.rank().0;
        let part = Part { elements: bounds[rank]..bounds[rank + 1], sums };
        let sum_bounds = divided::sum_bounds(parameters, norms, &bounds);
        Self { bounds, sum_bounds, part, norms }
    }

    /// What devices exchange of the longest part: weights or sums of norms as words of four bytes,
    /// and gradients that travel as bf16.
    pub(super) fn longest_part(&self, is_narrow: bool) -> SumLen {
        let weights = longest(&self.bounds);
        let sums = longest(&self.sum_bounds) * size_of::<u64>() / size_of::<f32>();
        SumLen { exact: weights.max(sums), narrow: if is_narrow { weights } else { 0 } }
    }

    /// What its states are frozen from.
    pub(super) fn state_plan(&self) -> ArenaPlan {
        divided::state_plan(self.part.len())
    }
}

impl Model {
    /// Of the dense gradients, those that this rank has the sums of after the all-reduce.
    pub(crate) fn summed_gradients(&self) -> Range<usize> {
        let all = 0..self.gradients.bytes() / size_of::<f32>();
        self.divided.as_ref().map_or(all, |divided| divided.part.elements.clone())
    }

    /// Of what ranks have found in the gradients that each has the sums of, the first; all ranks
    /// ask together.
    pub(crate) fn first_bad_of_all(&self, mine: Option<u32>) -> Result<Option<u32>> {
        if self.divided.is_none() {
            return Ok(mine);
        }
        let mut all = vec![0; self.communicator.num_ranks()];
        let gathered = self.communicator.all_gather(&[mine.unwrap_or(u32::MAX)], &mut all);
        gathered.map_err(exchange_failed("what is not finite"))?;
        Ok(all.into_iter().min().filter(|&first| first != u32::MAX))
    }

    /// Of `len` elements from element `offset` of dense parameter `index` on, those whose states
    /// this rank has: where they lie among these, and where in the rank's states.
    pub(crate) fn states_of(
        &self,
        index: usize,
        offset: usize,
        len: usize,
    ) -> (Range<usize>, Range<usize>) {
        let mat = self.weights.mats().nth(index).expect("a parameter of this model has a slot");
        let start = self.weights.elements_of(&mat).start + offset;
        let own = self.summed_gradients();
        let first = start.max(own.start);
        let end = (start + len).min(own.end).max(first);
        (first - start..end - start, first - own.start..end - own.start)
    }

    /// The same elements by the rank that has their states: a run of each.
    pub(crate) fn runs_of_states(
        &self,
        index: usize,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mat = self.weights.mats().nth(index).expect("a parameter of this model has a slot");
        let start = self.weights.elements_of(&mat).start + offset;
        let bounds = self.divided.as_ref().map_or(&[][..], |divided| &divided.bounds);
        let run = move |part: &[usize]| {
            let first = start.max(part[0]);
            let end = (start + len).min(part[1]).max(first);
            first - start..end - start
        };
        bounds.windows(2).map(run).enumerate().filter(|(_, run)| !run.is_empty())
    }
}
