//! Several ranks' tables on one device, slots copied between them.

use super::device::{Plan, gradients_on, matrix_on, registry, upload_step};
use super::ranks::{Bags, Batch};
use headlong_device::cuda::{DeviceMemory, DevicePtr};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{Arena, ArenaPlan, DType, Mat, Stream, bf16};
use headlong_embedding::SetOptions;
use headlong_embedding::hybrid::*;
use headlong_embedding::update::sum_block_len;
use std::sync::Arc;

pub struct Rank {
    pub set: HybridSet,
    pub route: HybridRoute,
    pub send_rows: (Arena, Mat),
    pub recv_rows: (Arena, Mat),
    /// Inside nodes and across, where these merge requests.
    pub by_node: Option<[(Arena, Mat); 2]>,
    pub frequent: (Arena, Mat),
    pub samples: usize,
}

/// How rows and vectors travel.
pub struct Ways<'a> {
    pub deduplicate: Deduplicate,
    pub slots: SlotOptions,
    /// Whether sums over ranks are rounded to what travels.
    pub narrow: Option<DType>,
    pub pool_at: &'a [PoolAt],
    /// Of each rank.
    pub sum_blocks: usize,
}

impl Ways<'_> {
    /// Ranks whose requests are merged.
    fn ranks_of_node(&self) -> usize {
        match self.deduplicate {
            Deduplicate::Node { ranks } => ranks,
            _ => 1,
        }
    }
}

impl Default for Ways<'_> {
    fn default() -> Self {
        let (deduplicate, slots) = (Deduplicate::Rank, SlotOptions::default());
        Self { deduplicate, slots, narrow: None, pool_at: &[], sum_blocks: 1 }
    }
}

pub struct Ranks {
    pub ranks: Vec<Rank>,
    stream: Stream,
    optimizer: Optimizer,
    step: DeviceMemory,
    /// Ranks of a node that merges requests; 1: none does.
    ranks_of_node: usize,
    num_batches: usize,
    pub num_asked_again: usize,
    /// Element type of the gradients of vectors.
    pub gradients: DType,
}

impl Ranks {
    pub fn new(stream: &Stream, plan: &Plan, partition: Partition) -> Self {
        Self::with(&Ways::default(), stream, plan, partition)
    }

    pub fn with(ways: &Ways, stream: &Stream, plan: &Plan, partition: Partition) -> Self {
        let partition = Arc::new(partition);
        let device = stream.cuda_body().device();
        let bytes = size_of::<headlong_device::cuda::DeviceStep>();
        let step = DeviceMemory::new(device, "step", bytes).unwrap();
        let rank = |owner| {
            let options = HybridOptions {
                set: SetOptions { narrow: ways.narrow, ..plan.set(ways.sum_blocks) },
                partition: Arc::clone(&partition),
                owner: Owner(owner),
                deduplicate: ways.deduplicate,
                pool_at: ways.pool_at,
                slots: ways.slots,
            };
            let set = HybridSet::new(&registry(), stream, plan.specs, &options).unwrap();
            set.set_device_step(step.ptr());
            let [asked, served] = [set.max_recv_elements(), set.max_send_elements()];
            let peers = partition.num_owners() / ways.ranks_of_node();
            assert_eq!(served, peers * set.slots().unwrap().elements);
            // What no one wrote must not be read: it would show.
            let slots = |len| slots_on(stream, ways.slots.dtype, len);
            let frequent = set.frequent_len().max(1);
            let frequent = matrix_on(stream, 1, frequent, &vec![f32::NAN; frequent]);
            Rank {
                route: set.new_route().unwrap(),
                send_rows: slots(served),
                recv_rows: slots(asked),
                by_node: match ways.deduplicate {
                    Deduplicate::Node { ranks } if ranks > 1 => Some([slots(asked), slots(served)]),
                    _ => None,
                },
                frequent,
                set,
                samples: 0,
            }
        };
        let ranks = (0..partition.num_owners()).map(rank).collect();
        let (stream, optimizer) = (stream.clone(), plan.optimizer);
        let ranks_of_node = ways.ranks_of_node();
        Self {
            ranks,
            stream,
            optimizer,
            step,
            ranks_of_node,
            num_batches: 0,
            num_asked_again: 0,
            gradients: DType::F32,
        }
    }

    fn bounds(&self, samples: usize) -> Vec<usize> {
        let len = sum_block_len(samples, self.ranks.len());
        (0..=self.ranks.len()).map(|rank| (rank * len).min(samples)).collect()
    }

    /// Copies slot `to` of each rank `from` to slot `from` of rank `to`, in groups: `group` says
    /// that of a rank, and its place there.
    fn exchange_in(
        &self,
        (stride, bytes): (usize, usize),
        group: impl Fn(usize) -> (usize, usize),
        slots: impl Fn(&Rank) -> (DevicePtr, DevicePtr),
    ) {
        for (from, sender) in self.ranks.iter().enumerate() {
            for (to, receiver) in self.ranks.iter().enumerate() {
                let [(group_from, from), (group_to, to)] = [group(from), group(to)];
                if group_from != group_to {
                    continue;
                }
                let (source, target) = (slots(sender).0, slots(receiver).1);
                let (source, target) = (source.offset(to * stride), target.offset(from * stride));
                self.stream.cuda_body().copy(target, source, bytes);
            }
        }
    }

    fn exchange(&self, sizes: (usize, usize), slots: impl Fn(&Rank) -> (DevicePtr, DevicePtr)) {
        self.exchange_in(sizes, |rank| (0, rank), slots);
    }

    fn exchange_inside(
        &self,
        sizes: (usize, usize),
        slots: impl Fn(&Rank) -> (DevicePtr, DevicePtr),
    ) {
        let ranks = self.ranks_of_node;
        self.exchange_in(sizes, |rank| (rank / ranks, rank % ranks), slots);
    }

    fn exchange_across(
        &self,
        sizes: (usize, usize),
        slots: impl Fn(&Rank) -> (DevicePtr, DevicePtr),
    ) {
        let ranks = self.ranks_of_node;
        self.exchange_in(sizes, |rank| (rank % ranks, rank / ranks), slots);
    }

    /// Bytes from one peer's slot of vectors to the next, and of a strip: between owners and those
    /// who ask them, and inside nodes.
    fn vector_bytes(&self) -> [(usize, usize); 2] {
        let rank = &self.ranks[0];
        let of_element = rank.send_rows.1.dtype().bytes();
        let (slots, strips) = (rank.set.slots().unwrap(), rank.route.strips().unwrap());
        [(slots.elements, strips.elements), (slots.inside[1], strips.inside[1])]
            .map(|(slot, strip)| (of_element * slot, of_element * strip))
    }

    fn exchange_ids(&self) {
        if self.ranks_of_node == 1 {
            let slots = self.ranks[0].route.id_slots();
            return self.exchange((slots.stride, slots.bytes_per_peer), |rank| {
                (rank.route.id_slots().from, rank.route.id_slots().to)
            });
        }
        let of = |which: usize| move |rank: &Rank| rank.route.id_slots_by_node()[which];
        let sizes = |which| {
            let slots = of(which)(&self.ranks[0]);
            (slots.stride, slots.bytes_per_peer)
        };
        let ends = |which: usize| move |rank: &Rank| (of(which)(rank).from, of(which)(rank).to);
        self.exchange_inside(sizes(0), ends(0));
        for rank in &self.ranks {
            rank.set.merge_in_node(&self.stream, &rank.route);
        }
        self.exchange_across(sizes(1), ends(1));
        for rank in &self.ranks {
            rank.set.write_strip_sizes(&self.stream, &rank.route);
        }
        for (from, sender) in self.ranks.iter().enumerate() {
            for (to, receiver) in self.ranks.iter().enumerate() {
                let (from_node, place) = (from / self.ranks_of_node, from % self.ranks_of_node);
                if from_node == to / self.ranks_of_node {
                    let (from, to) = (sender.route.size_slots(), receiver.route.size_slots());
                    let bytes = from.bytes_per_peer;
                    self.stream.cuda_body().copy(to.to.offset(place * bytes), from.from, bytes);
                }
            }
        }
        for rank in &self.ranks {
            rank.set.tell_strip_sizes(&self.stream, &rank.route);
        }
    }

    fn exchange_vectors(&self) {
        let [owners, inside] = self.vector_bytes();
        let place = |(_, mat): &(Arena, Mat)| mat.device_ptr();
        if self.ranks_of_node == 1 {
            return self.exchange(owners, |rank| (place(&rank.send_rows), place(&rank.recv_rows)));
        }
        let of = |rank: &Rank, which: usize| place(&rank.by_node.as_ref().unwrap()[which]);
        self.exchange_across(owners, |rank| (place(&rank.send_rows), of(rank, 1)));
        for Rank { set, route, by_node, .. } in &self.ranks {
            let [inside, across] = by_node.as_ref().unwrap();
            set.send_to_node(&self.stream, route, &across.1, &inside.1);
        }
        self.exchange_inside(inside, |rank| (of(rank, 0), place(&rank.recv_rows)));
    }

    fn exchange_gradients(&self) {
        let [owners, inside] = self.vector_bytes();
        let place = |(_, mat): &(Arena, Mat)| mat.device_ptr();
        if self.ranks_of_node == 1 {
            return self.exchange(owners, |rank| (place(&rank.recv_rows), place(&rank.send_rows)));
        }
        let of = |rank: &Rank, which: usize| place(&rank.by_node.as_ref().unwrap()[which]);
        self.exchange_inside(inside, |rank| (place(&rank.recv_rows), of(rank, 0)));
        for Rank { set, route, by_node, .. } in &self.ranks {
            let [inside, across] = by_node.as_ref().unwrap();
            set.add_up_in_node(&self.stream, route, &inside.1, &across.1);
        }
        self.exchange_across(owners, |rank| (of(rank, 1), place(&rank.send_rows)));
    }

    /// Ranks ask owners for the rows of a batch.
    fn ask(&mut self, tables: &[Bags]) {
        let bounds = self.bounds(tables[0].bags.len());
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let slice: Vec<_> =
                tables.iter().map(|t| t.slice(bounds[index], bounds[index + 1])).collect();
            rank.samples = bounds[index + 1] - bounds[index];
            Batch::new(&slice).with(|ids| {
                rank.route.stage(ids).unwrap();
                rank.route.copy(&self.stream);
                rank.set.route(&self.stream, ids, 1, &mut rank.route).unwrap();
            });
        }
        self.exchange_ids();
        for rank in &mut self.ranks {
            rank.set.receive_requests(&self.stream, &mut rank.route).unwrap();
        }
    }

    pub fn set_strips(&mut self, change: impl Fn(&mut StripSizes)) {
        for rank in &mut self.ranks {
            let mut strips = rank.route.strips().unwrap();
            change(&mut strips);
            rank.route.set_strips(strips);
        }
    }

    /// Asks with strips that are too short for requests, in every other batch, and then sends
    /// what the batch needs and no more.
    pub fn forward(&mut self, tables: &[Bags]) -> Vec<f32> {
        self.num_batches += 1;
        // Of ids inside nodes, or between owners and those who ask them.
        let short = 4 + tables.len() + 5;
        if self.num_batches % 2 == 1 {
            let inside = self.ranks_of_node > 1 && self.num_batches % 4 == 1;
            self.set_strips(|strips| match inside {
                true => strips.inside[0] = short,
                false => strips.id_words = short,
            });
        }
        let needed = loop {
            self.ask(tables);
            self.stream.synchronize().unwrap();
            let needed: Vec<_> =
                self.ranks.iter().map(|rank| rank.route.needed_strips().unwrap()).collect();
            assert!(needed.iter().all(|other| other == &needed[0]), "{needed:?}");
            if !self.ranks[0].route.strips().unwrap().cuts(needed[0]) {
                break needed[0];
            }
            // Where requests were cut inside nodes, it is not known yet what nodes ask for.
            self.num_asked_again += 1;
            self.set_strips(|strips| {
                strips.id_words = strips.id_words.max(needed[0].id_words);
                strips.inside[0] = strips.inside[0].max(needed[0].inside[0]);
            });
        };
        self.set_strips(|strips| {
            strips.elements = needed.elements;
            strips.inside[1] = needed.inside[1];
        });
        for rank in &self.ranks {
            rank.set.owner_lookup(&self.stream, &rank.route, &rank.send_rows.1).unwrap();
        }
        self.exchange_vectors();
        let mut all = Vec::new();
        for rank in &self.ranks {
            let width = rank.set.width();
            let (_arena, vectors) =
                matrix_on(&self.stream, rank.samples, width, &vec![f32::NAN; rank.samples * width]);
            let (set, stream, no_ids) = (&rank.set, &self.stream, Vec::new());
            set.lookup_replicated(stream, &no_ids, &rank.route, &vectors).unwrap();
            set.pool(stream, &no_ids, &rank.route, &rank.recv_rows.1, &vectors).unwrap();
            all.extend(vectors.to_vec::<f32>().unwrap());
        }
        self.stream.check().unwrap();
        all
    }

    pub fn check_flags(&self) -> Vec<String> {
        let errors = self.ranks.iter().filter_map(|rank| rank.set.check_flags().err());
        errors.map(|error| error.to_string()).collect()
    }

    pub fn backward(&self, d_vectors: &[f32], step: &Step) {
        upload_step(&self.step, step, &self.optimizer);
        let mut first = 0;
        let mut sums: Vec<f32> = Vec::new();
        for rank in &self.ranks {
            let len = rank.samples * rank.set.width();
            let (_arena, mat) = gradients_on(
                &self.stream,
                self.gradients,
                rank.samples,
                rank.set.width(),
                &d_vectors[first..first + len],
            );
            first += len;
            rank.set.reduce_rows(
                &self.stream,
                &rank.route,
                &mat,
                &rank.recv_rows.1,
                &rank.frequent.1,
            );
            let block = rank.frequent.1.to_vec::<f32>().unwrap();
            sums.resize(block.len(), 0.0);
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
        }
        self.exchange_gradients();
        for rank in &self.ranks {
            rank.frequent.1.copy_from(&sums).unwrap();
            let (set, send_rows) = (&rank.set, &rank.send_rows.1);
            set.update_owned(&self.stream, &rank.route, send_rows, send_rows, step).unwrap();
            set.update_replicated(&self.stream, &rank.frequent.1, step).unwrap();
        }
        self.stream.synchronize().unwrap();
    }

    /// All tensors of the whole model; replicas are equal.
    pub fn tensors(&self) -> Vec<Vec<f32>> {
        let partition = self.ranks[0].set.partition();
        let mut all = Vec::new();
        for table in 0..self.ranks[0].set.specs().len() {
            // Who holds a table knows its tensors.
            let holder =
                (0..self.ranks.len()).find(|&rank| partition.local_rows(table, Owner(rank)) > 0);
            let tensors = self.ranks[holder.unwrap_or(0)].set.tensors(table);
            for (index, tensor) in tensors.iter().enumerate() {
                let mut whole = vec![f32::NAN; tensor.rows as usize * tensor.cols];
                for rank in &self.ranks {
                    let mut part = vec![f32::NAN; whole.len()];
                    rank.set.export_rows(table, index, 0, &mut part).unwrap();
                    for (whole, part) in
                        whole.iter_mut().zip(part).filter(|(_, part)| !part.is_nan())
                    {
                        assert!(
                            whole.is_nan() || whole.to_bits() == part.to_bits(),
                            "replicas differ"
                        );
                        *whole = part;
                    }
                }
                all.push(whole);
            }
        }
        all
    }
}

/// Slots of vectors that nothing has been written to.
fn slots_on(stream: &Stream, dtype: DType, len: usize) -> (Arena, Mat) {
    let mut plan = ArenaPlan::new("test");
    let slot = plan.matrix("slots", dtype, 1, len);
    let arena = plan.freeze_on(stream).unwrap();
    let mat = arena.mat(slot);
    match dtype {
        DType::Bf16 => mat.copy_from(&vec![bf16::round(f32::NAN); len]).unwrap(),
        DType::F16 => mat.copy_from(&vec![half::f16::NAN; len]).unwrap(),
        _ => mat.copy_from(&vec![f32::NAN; len]).unwrap(),
    }
    (arena, mat)
}
