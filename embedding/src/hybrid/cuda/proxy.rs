//! Deduplication inside a node, on a device: what [`NodeProxy`](crate::hybrid::NodeProxy) is on a
//! processor.
//!
//! ```text
//! requests of the node's ranks ─ merge ─► one sort ─► slots of ids for the owners of the rail
//! slots of vectors of owners ─ send_to_node ─► slots of vectors for the node's ranks
//! slots of gradients of the node's ranks ─ add_up_in_node ─► slots of gradients for owners
//! ```
//!
//! A proxy receives as an owner does and asks as a rank does, so the kernels are theirs: to it the
//! rows of all owners of its rail are rows of its own, node after node.
//!
//! How long strips must be is known to proxies of one rail each: so all say it inside their nodes,
//! before the host hears of it.

use super::launch::{Asking, Served};
use super::slots::{Asked, HEAD_OF_PROXY, max_received};
use super::{
    AskPlaces, DeviceHybridRoute, DeviceSlots, Planned, RankPlan, RankTables, ServePlaces,
    SlotShape, id_slots, words_on,
};
use crate::cuda::DeviceTables;
use crate::cuda::layout::{Layout, Places};
use crate::cuda::tables::describe;
use crate::error::Result;
use crate::hybrid::route::HybridRoute;
use crate::hybrid::set::{HybridSet, Location};
use crate::route::bits_below;
use crate::route::cuda::Sorted;
use crate::table::TableSpec;
use crate::update::cuda::{Gradients, Sink, Update, update};
use headlong_device::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr};
use headlong_device::{DType, Mat, Stream};
use std::sync::Arc;

/// Bytes of the lengths of strips, as heads of slots have them.
const SIZES_BYTES: usize = 4 * HEAD_OF_PROXY;

/// What one rank is a proxy for.
pub(crate) struct ProxyTables {
    layout: Arc<Layout>,
    /// Rows of all owners of the rail.
    tables: DeviceTables,
    /// Per table, the first of each owner's rows among them.
    bases: DeviceMemory,
    key_bits: u32,
    /// Those of whom it asks.
    pub(super) slots: SlotShape,
    /// Most rows of each table that are requested of this rank, as an owner.
    pub(super) max_received: Vec<usize>,
}

/// The part of a proxy in a route.
#[derive(Debug)]
pub(super) struct ProxyRoute {
    sorted: Sorted,
    _memory: DeviceMemory,
    serves: ServePlaces,
    asks: AskPlaces,
    slots: [SlotShape; 2],
    /// The longest strips that this rank has heard of.
    sizes: DevicePtr,
    /// The same of the ranks of its node.
    sizes_of_node: DevicePtr,
}

impl ProxyTables {
    /// `inside`: the slots that ranks of the node have for each other.
    pub(super) fn new(
        device: &CudaDevice,
        plan: &RankPlan,
        planned: &Planned,
        inside: SlotShape,
        bases: &[u32],
    ) -> Result<Self> {
        let (specs, nodes) = (plan.specs, plan.nodes());
        let (node, place) = (plan.owner.0 / plan.asked(), plan.owner.0 % plan.asked());
        let rows_of = |place: usize| move |table, node| plan.rows_at(table, place * nodes + node);
        let of_rail = |place| {
            let rows = rows_of(place);
            SlotShape::new(specs, Asked { peers: nodes, rows: &rows }, planned, HEAD_OF_PROXY)
        };
        let slots = (0..plan.asked()).map(of_rail).reduce(SlotShape::or_larger);
        let slots = slots.expect("a node has ranks");
        let rows = rows_of(place);
        let of_owner = max_received(Asked { peers: nodes, rows: &rows }, planned, node);
        let rows_asked = |table, peer| plan.rows_asked(table, peer);
        let asked = Asked { peers: inside.peers, rows: &rows_asked };
        let received = max_received(asked, &plan.planned, place);
        let layout = Layout::new(specs, 0, &received);
        let own_rows = |table| plan.rows_asked(table, place);
        let tables = specs.iter().enumerate().map(|(index, spec)| {
            let spec = TableSpec { rows: own_rows(index), ..spec.clone() };
            describe(&spec, index, &layout, None, DevicePtr::NULL)
        });
        let tables = DeviceTables::new(device, &tables.collect::<Vec<_>>(), &layout)?;
        let of_table = bases.chunks(plan.partition.num_owners() + 1).flat_map(|table| {
            let first = table[place * nodes];
            table[place * nodes..=(place + 1) * nodes].iter().map(move |base| base - first)
        });
        Ok(Self {
            bases: words_on(device, "first keys of owners", &of_table.collect::<Vec<_>>())?,
            key_bits: (0..specs.len()).map(|table| bits_below(own_rows(table))).max().unwrap_or(1),
            layout: Arc::new(layout),
            tables,
            slots,
            max_received: of_owner,
        })
    }

    pub(super) fn new_route(&self, device: &CudaDevice, inside: SlotShape) -> Result<ProxyRoute> {
        let (num_tables, entries) = (self.layout.tables.len(), self.layout.num_entries());
        let places = |base: DevicePtr| {
            let mut places = Places::default();
            let serves = ServePlaces::new(base, &mut places, num_tables, inside);
            let asks = AskPlaces::new(base, &mut places, (num_tables, entries), self.slots);
            let mut take = |count| base.offset(places.words(count));
            let sizes = [take(HEAD_OF_PROXY), take(HEAD_OF_PROXY * inside.peers)];
            (serves, asks, sizes, places.bytes())
        };
        let bytes = places(DevicePtr::NULL).3;
        let memory = DeviceMemory::new(device, "requests of a node", bytes)?;
        let (serves, asks, [sizes, sizes_of_node], _) = places(memory.ptr());
        Ok(ProxyRoute {
            sorted: Sorted::new(device, &self.layout, self.key_bits, true)?
                .of_sources(inside.peers),
            _memory: memory,
            serves,
            asks,
            slots: [inside, self.slots],
            sizes,
            sizes_of_node,
        })
    }
}

impl DeviceHybridRoute {
    fn proxy(&self) -> &ProxyRoute {
        self.proxy.as_ref().expect("a route of a set whose nodes merge requests")
    }

    fn id_slots_by_node(&self) -> [DeviceSlots; 2] {
        let (proxy, [words_inside, _]) = (self.proxy(), self.strips.inside);
        let [inside, across] = proxy.slots;
        [
            id_slots(&self.asks, &proxy.serves, inside, words_inside),
            id_slots(&proxy.asks, &self.serves, across, self.strips.id_words),
        ]
    }

    /// Inside the node and across: where the bytes are that count in slots of vectors, and in those
    /// of gradients.
    fn vector_lengths_by_node(&self) -> [[DevicePtr; 2]; 2] {
        let proxy = self.proxy();
        let [inside, across] = proxy.slots;
        [
            [proxy.serves.lengths, self.asks.gradient_lengths(inside)],
            [self.serves.lengths, proxy.asks.gradient_lengths(across)],
        ]
    }

    /// What ranks of a node tell each other of the longest strips: one block for all.
    fn size_slots(&self) -> DeviceSlots {
        let ProxyRoute { sizes, sizes_of_node, .. } = *self.proxy();
        DeviceSlots {
            from: sizes,
            to: sizes_of_node,
            stride: 0,
            bytes_per_peer: SIZES_BYTES,
            lengths: DevicePtr::NULL,
        }
    }
}

impl RankTables {
    fn proxy(&self) -> &ProxyTables {
        self.proxy.as_ref().expect("a set whose nodes merge requests")
    }

    fn served_by_proxy<'a>(&'a self, route: &'a DeviceHybridRoute) -> Served<'a> {
        let (proxy, of_route) = (self.proxy(), route.proxy());
        Served {
            tables: &proxy.tables,
            layout: &proxy.layout,
            sorted: &of_route.sorted,
            at: &of_route.serves,
            slots: self.slots,
            told: DevicePtr::NULL,
            inside: of_route.sizes,
        }
    }

    /// Merges what the ranks of the node request, and writes the requests to owners.
    fn merge_in_node(&self, stream: &CudaStream, route: &DeviceHybridRoute) {
        let (proxy, of_route) = (self.proxy(), route.proxy());
        let served = self.served_by_proxy(route);
        self.sort_received(stream, route, &served);
        let asking = Asking {
            tables: &proxy.tables,
            num_tiles: proxy.layout.num_tiles,
            sorted: &of_route.sorted,
            num_entries: (of_route.serves.num_entries, 1),
            bases: &proxy.bases,
            at: &of_route.asks,
            slots: proxy.slots,
            strip_words: route.strips.id_words,
            inside: of_route.sizes,
        };
        self.write_requests(stream, route, &asking);
    }

    /// What this rank's rail needs of strips, for the other ranks of the node.
    fn write_sizes(&self, stream: &CudaStream, route: &DeviceHybridRoute) {
        let across = self.proxy().slots;
        let (from, to) = (route.serves.ids, route.proxy().sizes);
        self.longest_strips(stream, route, (from, across.peers, across.words), to, DevicePtr::NULL);
    }

    /// What all rails need, for the host.
    fn tell_sizes(&self, stream: &CudaStream, route: &DeviceHybridRoute) {
        let ProxyRoute { sizes, sizes_of_node, .. } = *route.proxy();
        let (heads, told) =
            ((sizes_of_node, self.slots.peers, HEAD_OF_PROXY), route.told.0.device_visible());
        self.longest_strips(stream, route, heads, sizes, told);
    }

    /// Hands each rank of the node the vectors that it requested, from what owners sent.
    fn send_to_node(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        [across, inside]: [&Mat; 2],
    ) {
        self.check_slots(across, self.proxy().slots);
        self.check_slots(inside, self.slots);
        let served = self.served_by_proxy(route);
        self.send_rows_to_node(
            stream,
            route,
            &served,
            [across, inside],
            route.proxy().asks.origins,
        );
    }

    /// Adds up the gradients of the node's ranks, of each row that was requested of owners.
    fn add_up_in_node(
        &self,
        stream: &CudaStream,
        route: &DeviceHybridRoute,
        [inside, across]: [&Mat; 2],
    ) {
        self.check_slots(inside, self.slots);
        self.check_slots(across, self.proxy().slots);
        let (proxy, of_route, slots) = (self.proxy(), route.proxy(), self.slots.gradients());
        let work = Update {
            tables: proxy.tables.tables(),
            tile_tables: proxy.tables.tile_tables(),
            sorted: &of_route.sorted,
            gradients: Gradients::Packed {
                first: inside.device_ptr(),
                dtype: slots,
                slot_elements: self.slots.elements,
                source_ranks: 1,
                rounds: self.rounds_sums,
            },
            sink: Sink::Write {
                destinations: of_route.asks.destinations,
                to_owners: across.device_ptr(),
                slots,
                frequent: (DevicePtr::NULL, DType::F32),
            },
            partials: self.partials(),
        };
        update(stream, self.instance, &work);
    }
}

impl HybridRoute {
    /// On a device where nodes merge requests, in place of [`Self::id_slots`]: the slots of ids
    /// inside the node, and those along the rail.
    ///
    /// # Panics
    /// Elsewhere.
    pub fn id_slots_by_node(&self) -> [DeviceSlots; 2] {
        self.device().id_slots_by_node()
    }

    /// Likewise, in place of [`Self::vector_lengths`]: inside the node and along the rail, where
    /// the bytes that count in each peer's slot of vectors are, and in those of gradients.
    ///
    /// # Panics
    /// As there.
    pub fn vector_lengths_by_node(&self) -> [[DevicePtr; 2]; 2] {
        self.device().vector_lengths_by_node()
    }

    /// What ranks of a node tell each other of strips: between [`HybridSet::write_strip_sizes`] and
    /// [`HybridSet::tell_strip_sizes`], one block for all of them.
    ///
    /// # Panics
    /// As there.
    pub fn size_slots(&self) -> DeviceSlots {
        self.device().size_slots()
    }
}

/// On devices whose nodes merge requests: a rank as the proxy of its node. An exchange of requests
/// goes inside nodes, then [`Self::merge_in_node`], then along rails; then ranks of a node tell
/// each other how long strips must be. Vectors go along rails, then [`Self::send_to_node`], then
/// inside nodes; gradients inside nodes, then [`Self::add_up_in_node`], then along rails.
///
/// Matrices inside nodes have [`Self::max_recv_elements`], those along rails
/// [`Self::max_send_elements`]. All panic elsewhere.
impl HybridSet {
    fn on_device(&self) -> &RankTables {
        let Location::Device(device) = &self.at else { panic!("proxies of nodes on devices") };
        device
    }

    /// Merges the requests of the node's ranks into those that this rank sends along its rail.
    pub fn merge_in_node(&self, stream: &Stream, route: &HybridRoute) {
        self.on_device().merge_in_node(stream.cuda_body(), route.device());
    }

    /// Writes how long strips must be for this rank's rail.
    pub fn write_strip_sizes(&self, stream: &Stream, route: &HybridRoute) {
        self.on_device().write_sizes(stream.cuda_body(), route.device());
    }

    /// Tells the host what all rails need: [`HybridRoute::needed_strips`].
    pub fn tell_strip_sizes(&self, stream: &Stream, route: &HybridRoute) {
        self.on_device().tell_sizes(stream.cuda_body(), route.device());
    }

    /// From the vectors that came along the rail, those that each rank of the node requested.
    pub fn send_to_node(&self, stream: &Stream, route: &HybridRoute, across: &Mat, inside: &Mat) {
        self.on_device().send_to_node(stream.cuda_body(), route.device(), [across, inside]);
    }

    /// From the gradients of the node's ranks, the sums that go along the rail: of each row in the
    /// order of ranks, rounded to what gradients travel as.
    pub fn add_up_in_node(&self, stream: &Stream, route: &HybridRoute, inside: &Mat, across: &Mat) {
        self.on_device().add_up_in_node(stream.cuda_body(), route.device(), [inside, across]);
    }
}
