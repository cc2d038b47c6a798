//! What waits for what: derived from what stages read and write.

use super::{BatchOf, GATHER, Resource, Runs, STEP, Stage};
use crate::config::{Config, Interaction, Precision};
use crate::iteration::model::{Model, dense_choice};
use headlong_mlp::optim::divided::Norms;
use headlong_planner::schedule as described;

/// What decides which stages have something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    pub ranks: bool,
    /// Of several nodes.
    pub nodes: bool,
    /// A device with memory of its own.
    pub device: bool,
    pub scaled: bool,
    pub crossed: bool,
    pub dense: bool,
    /// Each rank moves a part of the dense weights.
    pub divided: bool,
    /// And needs norms over all parts for that.
    pub measured: bool,
}

impl Model {
    /// What decides which stages of the schedule it has.
    pub fn features(&self) -> Features {
        Features {
            ranks: !self.is_single_rank(),
            nodes: self.communicator.topology().num_nodes() > 1,
            device: self.on_device(),
            scaled: self.loss_scale.is_some(),
            crossed: self.cross.is_some(),
            dense: !self.bottom.layers().is_empty(),
            divided: self.divided.is_some(),
            measured: self.divided.as_ref().is_some_and(|divided| divided.norms != Norms::None),
        }
    }
}

impl Features {
    /// Those of a configuration on `ranks` ranks of `nodes` nodes.
    pub fn of(config: &Config, ranks: usize, nodes: usize, device: bool) -> Self {
        let norms = dense_choice(config, ranks, device).norms;
        Self {
            ranks: ranks > 1,
            nodes: nodes > 1,
            device,
            scaled: config.train.precision == Precision::F16,
            crossed: config.model.interaction == Interaction::Cross,
            dense: config.data.num_dense > 0,
            divided: norms.is_some(),
            measured: norms.is_some_and(|norms| norms != Norms::None),
        }
    }

    fn have(self, stage: &Stage) -> bool {
        match stage.runs {
            Runs::Always => true,
            Runs::AmongRanks => self.ranks,
            Runs::AmongHosts => self.ranks && !self.device,
            Runs::AmongPeers => self.ranks && self.device && !self.nodes,
            Runs::AmongNodes => self.ranks && self.device && self.nodes,
            Runs::SumsFirst => self.ranks && (self.device || self.scaled),
            Runs::OnDevice => self.device,
            Runs::Scaled => self.scaled,
            Runs::Crossed => self.crossed,
            Runs::WithDense => self.dense,
            Runs::Divided => self.divided,
            Runs::Measured => self.measured,
        }
    }
}

/// The stages of one walk that do something, in program order, and which of them each waits for.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub stages: Vec<Stage>,
    /// Of each, the earlier stages that it waits for, by place in the list: no more than needed,
    /// where lanes run in order.
    pub within: Vec<Vec<usize>>,
    /// Of each, the stages of the step before that it waits for where steps overlap: no more than
    /// needed.
    pub across: Vec<Vec<usize>>,
}

impl Schedule {
    pub fn step(features: Features) -> Self {
        Self::of(STEP.iter().copied(), features)
    }

    /// What must have run for the first batch before the first step: the stages of next.
    pub fn preparation(features: Features) -> Self {
        let next = STEP.iter().filter(|stage| stage.batch == BatchOf::Next);
        Self::of(next.map(|stage| Stage { name: stage.names_elsewhere[1], ..*stage }), features)
    }

    /// Predictions for a batch, each rank's own: its preparation, then the forward stages. They
    /// change nothing but activations.
    pub fn evaluation(features: Features) -> Self {
        Self::of(of_evaluation(features).into_iter().flatten(), features)
    }

    /// The two parts of an evaluation, between which the host hears how much ranks ask each other
    /// for: bringing the batch, and predicting it.
    pub fn evaluation_in_two(features: Features) -> [Self; 2] {
        of_evaluation(features).map(|part| Self::of(part.into_iter(), features))
    }

    /// The logits of all ranks, after an evaluation.
    pub fn gather(features: Features) -> Self {
        let stages = GATHER.iter().map(|stage| Stage { name: stage.names_elsewhere[0], ..*stage });
        Self::of(stages, features)
    }

    pub(super) fn of(stages: impl Iterator<Item = Stage>, features: Features) -> Self {
        let stages: Vec<Stage> = stages.filter(|stage| features.have(stage)).collect();
        let (within, across) = edges(&stages);
        Self { stages, within, across }
    }

    /// The names of what the stage at a place waits for.
    pub fn waits_of(&self, place: usize) -> impl Iterator<Item = &'static str> {
        self.within[place].iter().map(|&other| self.stages[other].name)
    }

    /// The names of what the stage at a place waits for of the step before, where steps overlap.
    pub fn waits_across_of(&self, place: usize) -> impl Iterator<Item = &'static str> {
        self.across[place].iter().map(|&other| self.stages[other].name)
    }

    /// Whether a stage of the next step waits for the one at a place, where steps overlap.
    pub fn is_awaited_across(&self, place: usize) -> bool {
        self.across.iter().any(|waits| waits.contains(&place))
    }

    /// Every run of every stage in program order: place in the list, and micro-batch.
    pub fn program_order(
        &self,
        micro_batches: usize,
    ) -> impl Iterator<Item = (usize, usize)> + Clone {
        described::program_order(&self.stages, |stage| stage.repeat, micro_batches)
    }

    /// The same list as a simulation takes it.
    pub fn described(&self) -> Vec<described::Stage> {
        let waits = self.within.iter().cloned().zip(self.across.iter().cloned());
        let stage = |(&Stage { name, lane, repeat, .. }, (within, across))| described::Stage {
            name,
            lane,
            repeat,
            within,
            across,
        };
        self.stages.iter().zip(waits).map(stage).collect()
    }
}

impl Stage {
    /// Whether a single rank needs it for the update of its rows alone: it finds rows to look them
    /// up without it.
    fn is_for_updates(&self) -> bool {
        self.batch == BatchOf::Next && !self.writes.contains(&Resource::Inputs)
    }

    fn touches(&self) -> impl Iterator<Item = (Resource, bool)> {
        let reads = self.reads.iter().map(|&resource| (resource, false));
        reads.chain(self.writes.iter().map(|&resource| (resource, true)))
    }

    /// Whether `later` must not run before this stage has: one of them writes what the other
    /// touches. `swapped`: it is a stage of the next step, where the slot of next is that of now.
    fn is_needed_by(&self, later: &Stage, swapped: bool) -> bool {
        self.touches().any(|(resource, writes)| {
            later.touches().any(|(other, other_writes)| {
                let is_same_slot =
                    !resource.is_of_a_slot() || (self.batch == later.batch) != swapped;
                resource == other && (writes || other_writes) && is_same_slot
            })
        })
    }
}

/// The stages of an evaluation, in program order: those of the batch's preparation, then the
/// forward stages.
fn of_evaluation(features: Features) -> [Vec<Stage>; 2] {
    let logits = STEP.iter().position(|stage| stage.writes.contains(&Resource::Logits));
    let until_logits = &STEP[..=logits.expect("a stage makes logits")];
    let ahead = STEP.iter().filter(|stage| stage.batch == BatchOf::Next);
    let ahead = ahead.filter(|stage| features.ranks || !stage.is_for_updates());
    let forward = until_logits.iter().filter(|stage| stage.batch == BatchOf::Now);
    let forward = forward.filter(|stage| stage.runs != Runs::OnDevice);
    let of =
        |stage: &Stage| Stage { name: stage.names_elsewhere[0], batch: BatchOf::Now, ..*stage };
    [ahead.map(of).collect(), forward.map(of).collect()]
}

/// Of each stage, the earlier ones of its step and those of the step before that it waits for: only
/// those that nothing else, such as the order of a lane, makes it wait for already. Within a step
/// lanes run in order by themselves; from one step to the next they do so by these waits, since a
/// step may be a graph of its own.
fn edges(stages: &[Stage]) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
    let count = stages.len();
    let stage = |place: usize| &stages[place % count];
    // Two steps, one after the other; of each stage, what has ended before it begins, for whatever
    // reason.
    let mut before: Vec<Vec<bool>> = Vec::with_capacity(2 * count);
    let mut waits = Vec::with_capacity(2 * count);
    for place in 0..2 * count {
        let is_of_step = |other: usize| other / count == place / count;
        let (mut awaited, mut ended) = (Vec::new(), vec![false; 2 * count]);
        let take = |other: usize, ended: &mut Vec<bool>| {
            ended[other] = true;
            ended.iter_mut().zip(&before[other]).for_each(|(ended, before)| *ended |= before);
        };
        let of_lane = (0..place).rfind(|&other| stage(other).lane == stage(place).lane);
        if let Some(other) = of_lane.filter(|&other| is_of_step(other)) {
            take(other, &mut ended);
        }
        for other in (0..place).rev().filter(|&other| is_of_step(other) || place >= count) {
            let is_needed = of_lane == Some(other)
                || stage(other).is_needed_by(stage(place), !is_of_step(other));
            if is_needed && !ended[other] {
                awaited.push(other);
                take(other, &mut ended);
            }
        }
        awaited.reverse();
        waits.push(awaited);
        before.push(ended);
    }
    let mut across = waits.split_off(count);
    across.iter_mut().for_each(|waits| waits.retain(|&other| other < count));
    (waits, across)
}

#[cfg(test)]
mod tests {
    use super::super::{Lane, Repeat};
    use super::*;

    /// Every combination of features.
    fn all() -> impl Iterator<Item = Features> {
        let bit = |of: u8, place: u8| of >> place & 1 == 1;
        (0..=u8::MAX).map(move |of| Features {
            ranks: bit(of, 0),
            nodes: bit(of, 7),
            device: bit(of, 1),
            scaled: bit(of, 2),
            crossed: bit(of, 3),
            dense: bit(of, 4),
            divided: bit(of, 5),
            measured: bit(of, 6),
        })
    }

    fn names(schedule: &Schedule) -> Vec<&str> {
        schedule.stages.iter().map(|stage| stage.name).collect()
    }

    /// Ids may run ahead of weights; weights never do.
    #[test]
    fn no_stage_of_next_touches_a_weight() {
        let mut next = STEP.iter().filter(|stage| stage.batch == BatchOf::Next);
        assert!(next.all(|stage| !stage.touches().any(|(resource, _)| resource.is_weight())));
    }

    /// What has ended before a stage begins, by the order of lanes and these waits.
    fn ended_before(schedule: &Schedule, within: &[Vec<usize>], place: usize) -> Vec<bool> {
        let mut ended = vec![false; schedule.stages.len()];
        let mut open = vec![place];
        while let Some(stage) = open.pop() {
            let of_lane =
                |&other: &usize| schedule.stages[other].lane == schedule.stages[stage].lane;
            for other in within[stage].iter().copied().chain((0..stage).rfind(of_lane)) {
                if !std::mem::replace(&mut ended[other], true) {
                    open.push(other);
                }
            }
        }
        ended
    }

    #[test]
    fn waits_are_all_that_is_needed_and_no_more() {
        for features in all() {
            for schedule in
                [Schedule::step, Schedule::preparation, Schedule::evaluation].map(|of| of(features))
            {
                let is_kept = |within: &[Vec<usize>]| {
                    (0..schedule.stages.len()).all(|later| {
                        let ended = ended_before(&schedule, within, later);
                        let needed = |other: usize| {
                            schedule.stages[other].is_needed_by(&schedule.stages[later], false)
                        };
                        (0..later).all(|other| !needed(other) || ended[other])
                    })
                };
                assert!(is_kept(&schedule.within), "{features:?}");
                for (place, waits) in schedule.within.iter().enumerate() {
                    for wait in 0..waits.len() {
                        let mut fewer = schedule.within.clone();
                        fewer[place].remove(wait);
                        assert!(!is_kept(&fewer), "{features:?}: {place} need not wait for {wait}");
                    }
                }
            }
        }
    }

    /// As [`ended_before`], of a stage of a second step: what has ended of the first.
    fn ended_across(schedule: &Schedule, across: &[Vec<usize>], place: usize) -> Vec<bool> {
        let of_second = ended_before(schedule, &schedule.within, place);
        let mut ended = vec![false; schedule.stages.len()];
        for second in (0..=place).filter(|&second| second == place || of_second[second]) {
            for &first in &across[second] {
                ended[first] = true;
                let earlier = ended_before(schedule, &schedule.within, first);
                ended.iter_mut().zip(earlier).for_each(|(ended, earlier)| *ended |= earlier);
            }
        }
        ended
    }

    /// Lanes of two steps follow each other by these waits, too: steps may be graphs.
    #[test]
    fn waits_for_the_step_before_are_all_that_is_needed_and_no_more() {
        for features in all() {
            let schedule = Schedule::step(features);
            let stages = &schedule.stages;
            let is_kept = |across: &[Vec<usize>]| {
                stages.iter().enumerate().all(|(place, later)| {
                    let ended = ended_across(&schedule, across, place);
                    let needed =
                        |stage: &Stage| stage.lane == later.lane || stage.is_needed_by(later, true);
                    stages.iter().zip(ended).all(|(stage, ended)| ended || !needed(stage))
                })
            };
            assert!(is_kept(&schedule.across), "{features:?}");
            for (place, waits) in schedule.across.iter().enumerate() {
                for wait in 0..waits.len() {
                    let mut fewer = schedule.across.clone();
                    fewer[place].remove(wait);
                    assert!(!is_kept(&fewer), "{features:?}: {place} need not wait for {wait}");
                }
            }
        }
    }

    /// Then what one micro-batch leaves in memory is used before the next one comes.
    #[test]
    fn stages_of_micro_batches_share_a_lane() {
        assert!(
            STEP.iter()
                .filter(|stage| stage.repeat == Repeat::Micro)
                .all(|stage| stage.lane == Lane::Dense)
        );
    }

    #[test]
    fn evaluation_and_preparation_are_parts_of_the_step() {
        let of = |ranks: bool| Features { ranks, dense: true, ..Features::default() };
        assert_eq!(names(&Schedule::preparation(of(false))), ["first_copy_batch", "first_route"]);
        let first =
            ["first_copy_batch", "first_route", "first_exchange_ids", "first_receive_requests"];
        assert_eq!(names(&Schedule::preparation(of(true))), first);
        let single = ["copy_batch", "pool", "bottom_forward", "interaction_forward", "top_forward"];
        assert_eq!(
            names(&Schedule::evaluation(of(false))),
            single.map(|name| format!("eval_{name}"))
        );
        let ranks = names(&Schedule::evaluation(of(true))).join(" ");
        let head =
            "eval_copy_batch eval_route eval_exchange_ids eval_receive_requests eval_owner_lookup";
        assert!(ranks.starts_with(head) && ranks.ends_with("eval_top_forward"), "{ranks}");
        let rated = Features { device: true, scaled: true, ..of(true) };
        assert_eq!(
            names(&Schedule::evaluation(rated)).join(" "),
            ranks,
            "nothing of it is for weights"
        );
        assert_eq!(names(&Schedule::gather(of(true))), ["eval_gather"]);
    }

    #[test]
    fn a_stage_waits_for_what_it_reads() {
        let schedule = Schedule::step(Features {
            ranks: true,
            nodes: false,
            scaled: true,
            device: true,
            crossed: true,
            dense: true,
            divided: true,
            measured: true,
        });
        let waits = |name: &str| {
            let place = schedule.stages.iter().position(|stage| stage.name == name).unwrap();
            schedule.waits_of(place).collect::<Vec<_>>()
        };
        assert_eq!(waits("exchange_vectors"), ["owner_lookup"]);
        assert_eq!(waits("pool"), ["exchange_vectors"]);
        assert_eq!(waits("interaction_forward"), ["pool"]);
        assert_eq!(waits("bottom_forward"), [""; 0]);
        assert_eq!(waits("all_reduce_dense"), ["bottom_backward"]);
        assert_eq!(waits("update_owned"), ["check_gradients"]);
        assert_eq!(waits("dense_optimizer"), ["add_up_norms"]);
        assert_eq!(waits("gather_dense_weights"), ["dense_optimizer"]);
        assert_eq!(waits("pack_dense_weights"), ["gather_dense_weights"]);
        let schedule = Schedule::step(Features {
            ranks: true,
            device: true,
            dense: true,
            ..Features::default()
        });
        let place = |name: &str| schedule.stages.iter().position(|stage| stage.name == name);
        let within = |name: &str| schedule.waits_of(place(name).unwrap()).collect::<Vec<_>>();
        // Replicated rows are summed under the bottom network, and move under the dense sums.
        assert_eq!(within("all_reduce_replicated"), [""; 0], "it comes after `exchange_gradients`");
        assert_eq!(within("all_reduce_dense"), ["bottom_backward"]);
        assert_eq!(within("update_replicated"), ["all_reduce_replicated"]);
        assert_eq!(within("dense_optimizer"), ["all_reduce_dense"]);
        let waits = |name: &str| schedule.waits_across_of(place(name).unwrap()).collect::<Vec<_>>();
        // The vectors of the next step travel while the dense weights move.
        assert_eq!(waits("owner_lookup"), ["update_owned"]);
        assert_eq!(waits("lookup_replicated"), ["update_replicated", "find_non_finite"]);
        assert_eq!(waits("exchange_vectors"), ["all_reduce_dense"]);
        assert_eq!(waits("bottom_forward"), ["dense_optimizer", "find_non_finite"]);
    }
}
