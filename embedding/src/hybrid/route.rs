//! Route: which rows a rank's slice of the batch touches, where they lie, and in which order they
//! are requested of their owners.
//!
//! Per table, as [`crate::route`]: unique rows, each with its samples. Then each row's place:
//! frequent ones are looked up and summed here; the others are requested of their owners. Requests
//! are one list, packed by owner, then by table, then by rising local row:
//!
//! ```text
//! owner 0: table 0: 1 4 | table 1: 0 2 3 |   owner 1: table 0: 7 | table 1: |   …
//! ```
//!
//! Their vectors, and the gradients that go back, lie in the same order with `dim` elements each: a
//! row's element in those buffers is known here, and so is where the vector of each id will lie.

use super::bags::{ReceivedBags, SentBags};
use super::cuda::{DeviceHybridRoute, DeviceSlots};
use super::lists::Lists;
use super::merge::Merge;
use super::partition::{Code, Partition};
use super::shape::RouteShape;
use super::simd::IN_REPLICA;
use super::strips::StripSizes;
use crate::cuda::staging::{StagedPart, Staging};
use crate::error::Result;
use crate::ids::{Bags, Ids, num_samples_of};
use crate::route::{Route, TableRoute};
use crate::table::{Keys, TableSpec};
use headlong_device::Stream;
use headlong_device::cuda::DevicePtr;
use headlong_device::pool::Pool;
use std::ops::Range;

/// What is wrong where a route meets a set that did not make it.
pub(super) const OTHER_SET: &str = "the route was made by this set";

/// The route of one batch: this rank's requests, and what other ranks request of it. Buffers are
/// allocated once and reused.
#[derive(Debug, Default)]
pub struct HybridRoute {
    /// As [`Location`](super::set::Location) of the set that made it; everything else is used by a
    /// partition in the memory of the host.
    pub(super) at: RouteLocation,
    pub(super) names: Vec<String>,
    pub(super) num_samples: usize,
    pub(super) block_len: usize,
    pub(super) tables: Vec<TablePart>,
    pub(super) num_owners: usize,
    /// Ranks of a node, whose owners' requests are packed by rail; 1: by owner.
    pub(super) rail_ranks: usize,
    pub(super) requests: Lists,
    pub(super) received: Lists,
    /// Per table, the requested rows and by whom.
    pub(super) merges: Vec<Merge>,
    /// Per table, the requested bags, where bags are pooled at the owner.
    pub(super) received_bags: Vec<Option<ReceivedBags>>,
}

/// Where the rows are that a route leads to.
#[derive(Debug, Default)]
pub(super) enum RouteLocation {
    Local(Route),
    #[default]
    Host,
    Device(Box<DeviceHybridRoute>),
}

/// Both sides of one all-to-all, packed by rank. Counts travel first.
#[derive(Debug)]
pub struct RankExchange<'a, T> {
    /// What this rank sends.
    pub send: &'a [T],
    /// How much of it goes to each rank.
    pub send_counts: &'a [usize],
    /// Where what it receives arrives.
    pub receive: &'a mut [T],
    /// How much of it comes from each rank.
    pub receive_counts: &'a [usize],
}

impl HybridRoute {
    pub(super) fn at(at: RouteLocation) -> Self {
        Self { at, ..Self::default() }
    }

    /// `has_leaves`: whether an owner of the table has several leaves of the sum of a bag.
    pub(super) fn new(
        specs: &[TableSpec],
        shape: &RouteShape,
        has_leaves: &dyn Fn(usize) -> bool,
    ) -> Self {
        let part = |(table, spec): (usize, &TableSpec)| TablePart::new((table, spec), shape);
        let ranks = shape.num_owners / shape.num_sources.max(1);
        let received_bags = |table: usize| {
            let (ids, samples) = (shape.max_ids[table] * ranks, shape.max_samples * ranks);
            shape.pools_at_owner(table).then(|| {
                let sizes = (shape.num_sources, ids, ids.min(samples));
                ReceivedBags::new(shape.local_rows[table], sizes, has_leaves(table))
            })
        };
        let max_requests = shape.max_requests.iter().sum();
        let max_received = shape.max_received.iter().sum::<usize>() * shape.num_sources;
        Self {
            at: RouteLocation::Host,
            names: specs.iter().map(|spec| spec.name.clone()).collect(),
            num_samples: 0,
            block_len: 1,
            tables: specs.iter().enumerate().map(part).collect(),
            num_owners: shape.num_owners,
            rail_ranks: shape.num_owners / shape.num_sources,
            requests: Lists::new(shape.num_owners, shape.max_requests.clone(), max_requests),
            received: Lists::new(shape.num_sources, shape.max_received.clone(), max_received),
            merges: specs
                .iter()
                .enumerate()
                .map(|(t, spec)| Merge::new(spec, shape.merge(t)))
                .collect(),
            received_bags: (0..specs.len()).map(received_bags).collect(),
        }
    }

    /// Forgets the batch, so that nothing of it is worked on after an error.
    pub(super) fn clear(&mut self) {
        self.num_samples = 0;
        self.tables.iter_mut().for_each(TablePart::clear);
        self.requests.clear();
        self.received.clear();
        self.clear_received();
    }

    /// Forgets what sources ask for.
    pub(super) fn clear_received(&mut self) {
        self.merges.iter_mut().for_each(Merge::clear);
        self.received_bags.iter_mut().flatten().for_each(ReceivedBags::clear);
    }

    /// As [`Route::stage`].
    pub fn stage(&mut self, ids: &dyn Ids) -> Result<()> {
        self.stage_part(&Pool::new(1), ids, 0..num_samples_of(ids))
    }

    /// As [`Self::stage`], of the samples `samples` of a batch, on all threads of `pool`. Errors
    /// count samples from the first of them.
    ///
    /// # Panics
    /// When the batch has fewer samples.
    pub fn stage_part(&mut self, pool: &Pool, ids: &dyn Ids, samples: Range<usize>) -> Result<()> {
        match &mut self.at {
            RouteLocation::Local(route) => route.stage_part(pool, ids, samples),
            RouteLocation::Host => Ok(()),
            RouteLocation::Device(route) => route.stage(pool, ids, samples),
        }
    }

    /// The bags of every table as they were staged, values and offsets; none in the memory of the
    /// host.
    pub fn staged_bags(&self) -> impl Iterator<Item = (Vec<u64>, Vec<u32>)> {
        self.staging().into_iter().flat_map(Staging::bags)
    }

    /// As [`Self::stage`], of a batch whose [`Self::staged_head`] is `head` and whose ids have
    /// stayed on the device. The copy of the batch before must be done.
    ///
    /// # Panics
    /// Where nothing is staged: in the memory of the host.
    pub fn recall(&mut self, head: &[u32]) {
        match &mut self.at {
            RouteLocation::Local(route) => route.cuda.as_mut().map(|route| &mut route.staging),
            RouteLocation::Host => None,
            RouteLocation::Device(route) => Some(&mut route.staging),
        }
        .expect("batches are staged for a device")
        .recall(head);
    }

    /// What is to be remembered of the staged batch besides its ids: words, as many for every
    /// batch. Empty in the memory of the host.
    pub fn staged_head(&self) -> &[u32] {
        self.staging().map_or(&[], Staging::head)
    }

    /// Hands the parts of the staged batch to `take`, the same ones for the same head. A copy of
    /// all of them is what [`Self::copy`] does.
    pub fn staged_parts(&self, take: &mut dyn FnMut(StagedPart)) {
        if let Some(staging) = self.staging() {
            staging.parts(take);
        }
    }

    /// The most parts that a batch has.
    pub fn most_staged_parts(&self) -> usize {
        self.staging().map_or(0, Staging::most_parts)
    }

    fn staging(&self) -> Option<&Staging> {
        match &self.at {
            RouteLocation::Local(route) => Some(&route.cuda.as_ref()?.staging),
            RouteLocation::Host => None,
            RouteLocation::Device(route) => Some(&route.staging),
        }
    }

    /// Enqueues the copy of what was staged. Nothing on the CPU.
    pub fn copy(&self, stream: &Stream) {
        if let Some(staging) = self.staging() {
            staging.copy(stream.cuda_body());
        }
    }

    /// Whether the staged batch can run in a step that was captured with any other: among ranks
    /// always; on one, not where it has bags in tables that were planned for one id a sample, or
    /// weights.
    pub fn is_as_planned(&self) -> bool {
        self.staging().is_none_or(|staging| !staging.is_unusual())
    }

    /// Samples of the slice.
    pub fn num_samples(&self) -> usize {
        match &self.at {
            RouteLocation::Local(route) => route.num_samples(),
            RouteLocation::Host => self.num_samples,
            RouteLocation::Device(route) => route.staging.num_samples(),
        }
    }

    /// The route of the only rank.
    pub(super) fn local(&self) -> &Route {
        let RouteLocation::Local(route) = &self.at else { panic!("{OTHER_SET}") };
        route
    }

    pub(super) fn local_mut(&mut self) -> &mut Route {
        let RouteLocation::Local(route) = &mut self.at else { panic!("{OTHER_SET}") };
        route
    }

    pub(super) fn device(&self) -> &DeviceHybridRoute {
        let RouteLocation::Device(route) = &self.at else { panic!("{OTHER_SET}") };
        route
    }

    /// The slots of ids of a route on a device: an exchange sends each peer its slot and receives
    /// one of each.
    ///
    /// # Panics
    /// When the route is in the memory of the host.
    pub fn id_slots(&self) -> DeviceSlots {
        self.device().id_slots()
    }

    /// On a device, the strips that the staged batch needs, over all ranks; none until its
    /// [`HybridSet::receive_requests`](super::HybridSet::receive_requests) has run, and in the
    /// memory of the host. Where [`Self::strips`] has fewer words for requests, the batch is to be
    /// routed again with longer strips.
    pub fn needed_strips(&self) -> Option<StripSizes> {
        match &self.at {
            RouteLocation::Device(route) => route.needed_strips(),
            _ => None,
        }
    }

    /// On a device that has told what the staged batch needs: it is routed again, and tells again.
    pub fn forget_needed(&self) {
        if let RouteLocation::Device(route) = &self.at {
            route.forget_needed();
        }
    }

    /// On a device, the strips that exchanges of the batch send: whole slots until told otherwise.
    /// Captured work keeps what it was captured with. In the memory of the host: none.
    pub fn strips(&self) -> Option<StripSizes> {
        match &self.at {
            RouteLocation::Device(route) => Some(route.strips),
            _ => None,
        }
    }

    /// Sets them, the same on all ranks, up to [`HybridSet::slots`](super::HybridSet::slots):
    /// `id_words` before the batch is routed, `elements` before its vectors are exchanged.
    ///
    /// # Panics
    /// When the route is in the memory of the host.
    pub fn set_strips(&mut self, strips: StripSizes) {
        let RouteLocation::Device(route) = &mut self.at else { panic!("{OTHER_SET}") };
        route.strips = strips;
    }

    /// On a device, where the bytes that count in each peer's slot of vectors are, u32: in those
    /// that this rank sends as an owner, and in those of gradients that it sends back.
    pub fn vector_lengths(&self) -> [DevicePtr; 2] {
        self.device().vector_lengths()
    }

    /// How many rows of each table this rank asks each owner for: owners × tables. Under
    /// [`Deduplicate::Node`](super::Deduplicate::Node) owners stand by rail: all those of local
    /// rank 0, node after node, then those of local rank 1, and so on; and so do the requests
    /// themselves and their vectors.
    pub fn request_counts(&self) -> &[u32] {
        &self.requests.counts
    }

    /// Where the counts of the sources arrive: sources × tables, what each source's
    /// [`Self::request_counts`] say of this owner.
    pub fn recv_counts_mut(&mut self) -> &mut [u32] {
        &mut self.received.counts
    }

    /// [`Self::request_counts`] and [`Self::recv_counts_mut`]: what an exchange of counts sends
    /// and receives.
    pub fn count_exchange(&mut self) -> (&[u32], &mut [u32]) {
        (&self.requests.counts, &mut self.received.counts)
    }

    /// The buffers of the exchange of ids, once the counts have arrived: local rows (or raw ids) to
    /// owners, in the order of [`Self::request_counts`], and from sources.
    ///
    /// # Errors
    /// [`crate::EmbeddingError::Capacity`] where a source asks for more than was planned.
    pub fn id_exchange(&mut self) -> Result<RankExchange<'_, u64>> {
        self.received.lay_out(&self.names)?;
        self.lay_out_sent_vectors();
        let (sent, received) = (self.requests.num_rows(), self.received.num_rows());
        Ok(RankExchange {
            send: &self.requests.rows[..sent],
            send_counts: &self.requests.totals,
            receive: &mut self.received.rows[..received],
            receive_counts: &self.received.totals,
        })
    }

    /// Where the vectors lie that sources get. Those of bags are known once their words are.
    pub(super) fn lay_out_sent_vectors(&mut self) {
        let (tables, bags) = (&self.tables, &self.received_bags);
        self.received.lay_out_vectors(|list, rows| {
            let (source, table) = (list / tables.len(), list % tables.len());
            let vectors = bags[table].as_ref().map_or(rows, |bags| bags.count_of(source));
            vectors * tables[table].dim
        });
    }

    /// The exchange of vectors, in f32 elements: what this owner sends to each source, and what
    /// this rank receives from each owner. Gradients travel the other way, in the same counts.
    pub fn vector_exchange(&self) -> (&[usize], &[usize]) {
        (&self.received.elements, &self.requests.elements)
    }

    /// Unique rows of table `table` that were requested of this owner.
    pub fn num_merged_rows(&self, table: usize) -> usize {
        match &self.received_bags[table] {
            Some(bags) => bags.rows().len(),
            None => self.merges[table].rows().len(),
        }
    }
}

/// Where the vectors of a table come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sources {
    /// From owners: no row is frequent.
    Owners,
    /// From this rank's replica, which holds every row at its row index.
    Replica,
    /// Some from owners, some from the replica.
    Both,
    /// From owners, who have pooled what they have of each bag.
    Bags,
}

/// One table's part of a route.
#[derive(Debug)]
pub(super) struct TablePart {
    pub(super) dim: usize,
    pub(super) sources: Sources,
    /// Unique rows and samples. Without deduplication every id of an infrequent row stands for
    /// itself.
    pub(super) route: TableRoute,
    /// The place of each row.
    codes: Vec<Code>,
    /// Per row: the element where its vector arrives and its gradient leaves, or `IN_REPLICA |` its
    /// row there.
    destinations: Vec<u64>,
    /// Per id: the element where its vector lies, among those received or, with `IN_REPLICA`, among
    /// the frequent rows.
    pub(super) origins: Vec<u64>,
    /// This table's part of the requests, by owner.
    wanted: Vec<u64>,
    /// Per owner, placed rows and rows by formula: their number, then where the next one stands.
    buckets: Vec<u32>,
    /// Per owner, where its rows start among `wanted`, and their first element.
    owners: Vec<(usize, usize)>,
    /// Rows of the replica that occur, for tables that hide their rows: vectors lie in a list of
    /// these.
    pub(super) frequent_rows: Option<Vec<u64>>,
    /// Where bags are pooled at the owner: then everything above is empty.
    pub(super) bags: Option<SentBags>,
}

impl TablePart {
    fn new((table, spec): (usize, &TableSpec), shape: &RouteShape) -> Self {
        let RouteShape { num_owners, max_samples, .. } = *shape;
        let (mut max_ids, mut max_requests) = (shape.max_ids[table], shape.max_requests[table]);
        let bags = shape.pools_at_owner(table).then(|| {
            let sizes = (max_ids, shape.max_recv_vectors[table]);
            SentBags::new((table, spec), (num_owners, max_samples), sizes)
        });
        if bags.is_some() {
            (max_ids, max_requests) = (0, 0);
        }
        Self {
            dim: spec.dim,
            sources: Sources::Both,
            route: TableRoute::new(spec, max_samples, max_ids, true),
            codes: vec![Code::default(); max_ids],
            destinations: vec![0; max_ids],
            origins: vec![0; max_ids],
            wanted: vec![0; max_requests],
            buckets: vec![0; 2 * num_owners],
            owners: vec![(0, 0); num_owners],
            frequent_rows: None,
            bags,
        }
    }

    /// Rows of the whole table.
    pub(super) fn table_rows(&self) -> u64 {
        self.route.table_rows
    }

    pub(super) fn max_ids(&self) -> usize {
        self.bags.as_ref().map_or(self.route.max_ids(), SentBags::max_ids)
    }

    pub(super) fn num_ids(&self) -> usize {
        self.bags.as_ref().map_or(self.route.num_ids, SentBags::num_ids)
    }

    pub(super) fn is_in_range(&self) -> bool {
        self.bags.as_ref().map_or(self.route.in_range, |bags| bags.in_range)
    }

    fn clear(&mut self) {
        self.route.clear();
        self.bags.iter_mut().for_each(SentBags::clear);
    }

    /// Elements of the vectors that `owner` is asked for.
    pub(super) fn elements_of(&self, owner: usize) -> usize {
        match &self.bags {
            Some(bags) => bags.elements_of(owner),
            None => self.count_of(owner) as usize * self.dim,
        }
    }

    /// Finds unique rows and their places, and counts them by owner.
    pub(super) fn fill(
        &mut self,
        bags: Bags,
        partition: &Partition,
        table: usize,
        deduplicate: bool,
    ) {
        self.route.fill(bags);
        if self.sources == Sources::Replica {
            return;
        }
        let num_rows = self.route.num_rows;
        partition.classify_rows(table, self.route.rows(), &mut self.codes[..num_rows]);
        if !deduplicate {
            self.split_duplicates();
        }
        self.buckets.fill(0);
        for code in self.codes[..self.route.num_rows].iter().filter(|code| !code.is_frequent()) {
            self.buckets[code.bucket()] += 1;
        }
    }

    /// Lets every id of an infrequent row stand for itself.
    fn split_duplicates(&mut self) {
        let (route, codes) = (&mut self.route, &mut self.codes);
        let pieces = |code: Code, len: u32| if code.is_frequent() { 1 } else { len };
        let lengths = route.starts().windows(2).map(|bounds| bounds[1] - bounds[0]);
        let mut end =
            codes.iter().zip(lengths).map(|(&code, len)| pieces(code, len) as usize).sum::<usize>();
        let (unique, total) = (route.num_rows, end);
        // From the back: what is written lies at or after what is still to be read.
        route.starts[total] = route.num_ids as u32;
        let mut segment_end = route.num_ids as u32;
        for index in (0..unique).rev() {
            let (row, code, start) = (route.rows[index], codes[index], route.starts[index]);
            let count = pieces(code, segment_end - start) as usize;
            for piece in (0..count).rev() {
                end -= 1;
                (route.rows[end], codes[end], route.starts[end]) =
                    (row, code, start + piece as u32);
            }
            segment_end = start;
        }
        route.num_rows = total;
    }

    /// Rows that this table asks `owner` for, or words about its bags.
    pub(super) fn count_of(&self, owner: usize) -> u32 {
        if let Some(bags) = &self.bags {
            return bags.count_of(owner);
        }
        self.buckets[2 * owner] + self.buckets[2 * owner + 1]
    }

    /// Sets where the vectors of `owner`'s rows lie.
    pub(super) fn set_first_element(&mut self, owner: usize, element: usize) {
        if let Some(bags) = &mut self.bags {
            return bags.set_first_element(owner, element);
        }
        self.owners[owner].1 = element;
    }

    /// Gives every row and every id its element, and lists the requests by owner. Counts become
    /// positions.
    pub(super) fn place(&mut self, keys: Keys) {
        if self.sources == Sources::Replica {
            return;
        }
        let mut before = 0;
        for (owner, (first, _)) in self.owners.iter_mut().enumerate() {
            *first = before as usize;
            for bucket in &mut self.buckets[2 * owner..2 * owner + 2] {
                before += std::mem::replace(bucket, before);
            }
        }
        if let Some(frequent) = &mut self.frequent_rows {
            frequent.clear();
        }
        let (route, dim) = (&self.route, self.dim as u64);
        for index in 0..route.num_rows {
            let code = self.codes[index];
            let origin = if code.is_frequent() {
                self.destinations[index] = IN_REPLICA | code.slot();
                let entry = match &mut self.frequent_rows {
                    None => code.slot(),
                    Some(rows) => {
                        rows.push(code.slot());
                        rows.len() as u64 - 1
                    }
                };
                IN_REPLICA | (entry * dim)
            } else {
                let place = &mut self.buckets[code.bucket()];
                let at = *place as usize;
                *place += 1;
                self.wanted[at] =
                    if keys == Keys::RawIds { route.rows[index] } else { code.local_row() };
                let (first, element) = self.owners[code.owner()];
                let element = element as u64 + (at - first) as u64 * dim;
                self.destinations[index] = element;
                element
            };
            for &position in
                &route.positions()[route.starts[index] as usize..route.starts[index + 1] as usize]
            {
                self.origins[position as usize] = origin;
            }
        }
    }

    /// Where the gradient of each row goes, up to the bits of the second number, which all of them
    /// have.
    pub(super) fn destinations(&self) -> (&[u64], u64) {
        match self.sources {
            Sources::Replica => (self.route.rows(), IN_REPLICA),
            _ => (&self.destinations[..self.route.num_rows], 0),
        }
    }

    /// The requests to `owner`, which are `count`.
    pub(super) fn wanted_of(&self, owner: usize, count: u32) -> &[u64] {
        if let Some(bags) = &self.bags {
            return bags.words_of(owner);
        }
        &self.wanted[self.owners[owner].0..][..count as usize]
    }
}
