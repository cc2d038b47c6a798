//! What each stage of the schedule costs one rank: operations, bytes, messages; and the time that a
//! device takes for them.

use crate::description::{ClusterDescription, DeviceKind};
use crate::ledger::{optimizer_bytes, product_bytes};
use crate::placement::{Layout, RowWork};
use crate::practice::{Captured, Packing, Practice, Sums};
use crate::workload::{Layer, Part, Workload};
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::traffic::IdSource;

/// Bytes of memory traffic that sorting one lookup takes: a key and its place, read and written in
/// eight passes (a radix sort of 64-bit keys), and the lists that are made of them.
const SORT_BYTES: f64 = 160.0;
/// The same where all ranks know all ids: a lookup's place is read for each of two roles, and what
/// is mine is listed.
const SELECT_BYTES: f64 = 80.0;
/// What reading a row again costs of what reading it first costs: it comes from the second-level
/// cache, at two to three times the memory's rate on A100 and H100.
const AGAIN: f64 = 0.4;
/// Operations of a stage that sorts and lists.
const SORT_KERNELS: f64 = 6.0;
/// Operations in which proxies tell each other how long strips must be: two kernels, and one
/// between two barriers.
const TOLD_KERNELS: f64 = 5.0;
/// Sums of the chunks of a norm over dense parameters.
const NORM_BYTES: f64 = 1024.0;
/// What crosses between nodes is read and written to fill strips, and to take them apart.
const STRIP_PASSES: f64 = 4.0;
/// Bytes that are read and written to round an element.
const ROUNDED_BYTES: f64 = 4.0 + 2.0;

/// What one rank does in a stage.
#[derive(Clone, Copy, Default)]
struct Work {
    /// Operations that follow each other.
    kernels: f64,
    /// Floating-point operations of matrix products, at the rate of large ones.
    flops: f64,
    /// Bytes between rank and memory.
    bytes: f64,
    /// Rows found one by one.
    rows: f64,
    /// Lookups sorted.
    sorted: f64,
    /// Bytes between host and device.
    host_bytes: f64,
    wire_us: f64,
}

impl Work {
    fn pass(bytes: f64) -> Self {
        Self { kernels: 1.0, bytes, ..Self::default() }
    }

    fn with_rows(self, rows: f64) -> Self {
        Self { rows, ..self }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            kernels: self.kernels + other.kernels,
            flops: self.flops + other.flops,
            bytes: self.bytes + other.bytes,
            rows: self.rows + other.rows,
            sorted: self.sorted + other.sorted,
            host_bytes: self.host_bytes + other.host_bytes,
            wire_us: self.wire_us + other.wire_us,
        }
    }
}

/// A rank's resources that stages may share.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Busy {
    pub matrix_us: f64,
    pub memory_us: f64,
    pub wire_us: f64,
    pub host_us: f64,
    /// Microseconds in which the host enqueues.
    pub launch_us: f64,
}

impl Busy {
    /// What the busiest of them comes to: no step is faster than that.
    pub fn most(&self) -> f64 {
        [self.matrix_us, self.memory_us, self.wire_us, self.host_us, self.launch_us]
            .into_iter()
            .fold(0.0, f64::max)
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            matrix_us: self.matrix_us + other.matrix_us,
            memory_us: self.memory_us + other.memory_us,
            wire_us: self.wire_us + other.wire_us,
            host_us: self.host_us + other.host_us,
            launch_us: self.launch_us + other.launch_us,
        }
    }
}

/// A stage's time on one rank, alone on it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTime {
    /// From its start to its end, microseconds.
    pub us: f64,
    /// What it keeps busy meanwhile.
    pub busy: Busy,
}

impl StageTime {
    /// One of `times` equal parts.
    pub fn divided(&self, times: f64) -> Self {
        let Busy { matrix_us, memory_us, wire_us, host_us, launch_us } = self.busy;
        let [matrix_us, memory_us, wire_us, host_us, launch_us] =
            [matrix_us, memory_us, wire_us, host_us, launch_us].map(|us| us / times);
        Self {
            us: self.us / times,
            busy: Busy { matrix_us, memory_us, wire_us, host_us, launch_us },
        }
    }
}

/// The work of all stages of one plan.
pub(crate) struct Works<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) cluster: &'a ClusterDescription,
    pub(crate) practice: &'a Practice,
    pub(crate) rows: &'a RowWork,
    pub(crate) costs: Costs,
    /// Samples of a rank.
    samples: f64,
    pub(crate) ranks: f64,
    /// Bytes of a row in f32.
    row: f64,
    /// Bytes on the wire for a byte of f32: of vectors, and of the all-reduce.
    pub(crate) wire: f64,
    pub(crate) sum: f64,
    /// Bags of a rank.
    bags: f64,
    /// Bytes of a row's optimiser state, of the table that has most.
    state: f64,
}

impl<'a> Works<'a> {
    /// Of a step laid out as `layout`.
    pub fn new(
        workload: &'a Workload,
        cluster: &'a ClusterDescription,
        practice: &'a Practice,
        layout: &'a Layout,
    ) -> Self {
        let ranks = cluster.num_devices() as f64;
        let samples = (workload.samples / ranks).ceil();
        Self {
            workload,
            cluster,
            practice,
            rows: &layout.rows,
            costs: Costs { all_reduce: practice.all_reduce, ..cluster.costs() },
            samples,
            ranks,
            row: workload.dim as f64 * 4.0,
            wire: practice.wire_bytes / 4.0,
            sum: practice.sum_bytes / 4.0,
            bags: samples * workload.tables.len() as f64,
            state: workload.tables.iter().map(|table| table.state_bytes as f64).fold(0.0, f64::max),
        }
    }

    /// The time of the stage `name` of the schedule on the busiest rank; nothing for stages that it
    /// does not have.
    pub fn time(&self, name: &str) -> StageTime {
        let work = self.of(name);
        let device = &self.cluster.device;
        let matrix_us = work.flops / self.cluster.flop_per_us(self.workload.precision);
        let memory_us = work.bytes / self.cluster.memory_bytes_per_us();
        let each = work.rows * device.row_us + work.sorted * device.route_us;
        let host_us = work.host_bytes / (device.host_gb_per_s * 1e3);
        let computing = if device.kind == DeviceKind::Cpu {
            // A core computes or waits for memory; a copy is its work as well.
            matrix_us + memory_us + host_us
        } else {
            matrix_us.max(memory_us).max(host_us)
        };
        let launch_us = self.launches(name, work.kernels) * device.launch_us;
        let us = work.kernels * device.kernel_us + computing + each + work.wire_us;
        StageTime {
            // An operation cannot run before it is enqueued, and the host that waits for counts is
            // never ahead.
            us: us + launch_us,
            busy: Busy {
                matrix_us,
                memory_us: memory_us + each,
                wire_us: work.wire_us,
                host_us,
                launch_us,
            },
        }
    }

    /// What the host launches; of a captured dense network, one graph.
    fn launches(&self, name: &str, kernels: f64) -> f64 {
        let dense = ["bottom", "top", "cross", "loss", "interaction"]
            .iter()
            .any(|part| name.starts_with(part));
        match (self.practice.captured, dense) {
            (Captured::Step, _) => 0.0,
            (Captured::Dense, true) => f64::from(u8::from(name == "bottom_forward")),
            (Captured::Dense | Captured::None, _) => kernels,
        }
    }

    /// What the busiest rank does in the stage `name`.
    fn of(&self, name: &str) -> Work {
        let Self { rows, ranks, row, bags, .. } = *self;
        // One rank owns every row and looks rows up where they lie.
        let alone = ranks == 1.0;
        let lookups = (rows.frequent_lookups + rows.infrequent_lookups) / ranks;
        let asked = self.asked_of_owners() / ranks * rows.imbalance;
        match name {
            "owner_lookup" => self.answer(asked),
            "exchange_vectors" => self.exchange().plus(self.send_to_node()),
            "exchange_gradients" => self.exchange().plus(self.add_up_in_node()),
            "lookup_replicated" => {
                let found = rows.frequent_lookups / ranks;
                Work::pass(again(found, rows.frequent_bytes / row) * row).with_rows(found)
            }
            "pool" if alone => {
                Work::pass((again(lookups, rows.distinct) + bags) * row).with_rows(lookups)
            }
            "pool" => {
                let received = rows.requests / ranks;
                // Between devices vectors are pooled as they have come.
                let wire = if self.has_slots() { self.wire } else { 1.0 };
                Work::pass((received * wire + bags) * row).with_rows(received)
            }
            "copy_batch" => Work {
                host_bytes: self.samples
                    * (8.0 * lookups / self.samples + 4.0 * (1.0 + self.workload.num_dense as f64)),
                ..Work::default()
            },
            "route" if self.practice.variant.ids == IdSource::Known => {
                self.sort(lookups * ranks, SELECT_BYTES)
            }
            "route" => self.sort(lookups, SORT_BYTES),
            "exchange_ids" => self.ids(),
            "receive_requests" if self.practice.pools_at_owner => self.sort(asked, SORT_BYTES),
            "receive_requests" => self.sort(self.rows_of_owner(), SORT_BYTES),
            "reduce_rows" => self.reduce(lookups),
            "all_reduce_replicated" if self.practice.sums == Sums::RowsFirst => {
                self.all_reduce(self.replicated_bytes())
            }
            "all_reduce_dense" if self.practice.sums == Sums::RowsFirst => {
                self.dense_sums().plus(self.rounding())
            }
            "all_reduce_and_update_replicated" | "all_reduce" | "all_reduce_dense" => {
                self.sums_at_once().plus(self.rounding()).plus(self.updates_within())
            }
            "update_replicated" if self.practice.sums != Sums::WithRows => self.replicas(),
            "update_owned" => self.update(asked, lookups, alone),
            "bottom_forward" => self.forward(Part::Bottom),
            "bottom_backward" => self.backward(Part::Bottom),
            "cross_forward" => self.forward(Part::Cross).plus(self.between_cross_layers(4.0)),
            "cross_backward" => self.backward(Part::Cross).plus(self.between_cross_layers(7.0)),
            "top_forward" => self.forward(Part::Top),
            "top_backward" => self.backward(Part::Top),
            "interaction_forward" => self.interaction(1.0),
            "interaction_backward" => self.interaction(2.0),
            "loss" => Work { kernels: 2.0, bytes: self.samples * 16.0, ..Work::default() },
            "dense_optimizer" => self.optimizer(),
            "measure_part" => Work::pass(self.workload.dense_parameters * 4.0 / ranks),
            "add_up_norms" => self.gather(NORM_BYTES),
            "gather_dense_weights" => self.gather(self.workload.dense_parameters * 4.0),
            "pack_dense_weights" => self.pack(),
            "copy_learning_rates" | "find_non_finite" | "fetch_losses" if self.has_slots() => {
                Work { kernels: 1.0, ..Work::default() }
            }
            _ => Work::default(),
        }
    }

    fn sort(&self, lookups: f64, bytes_each: f64) -> Work {
        let is_cpu = self.cluster.device.kind == DeviceKind::Cpu;
        let bytes = if is_cpu { 0.0 } else { lookups * bytes_each };
        Work { kernels: SORT_KERNELS, bytes, sorted: lookups, ..Work::default() }
    }

    /// Vectors that owners are asked for.
    fn asked_of_owners(&self) -> f64 {
        match self.merges_in_nodes() {
            true => self.rows.of_nodes.requests,
            false => self.rows.requests,
        }
    }

    /// Rows that the busiest owner is asked for, those of bags that it pools among them.
    fn rows_of_owner(&self) -> f64 {
        let rows = self.rows;
        let all = self.asked_of_owners() - rows.pooled_vectors + rows.pooled_lookups;
        all / self.ranks * rows.imbalance
    }

    /// Owners gather what they are asked for; where they pool, they read the rows of whole bags.
    fn answer(&self, asked: f64) -> Work {
        let distinct = self.rows.distinct / self.ranks * self.rows.imbalance;
        let read = self.rows_of_owner();
        // Between devices, sums of bags are an operation of their own.
        let sums = if self.practice.num_pooled() > 0 && self.has_slots() { 1.0 } else { 0.0 };
        Work::pass(again(read, distinct) * self.row + asked * self.row * self.wire)
            .with_rows(read)
            .plus(Work { kernels: sums, ..Work::default() })
    }

    /// Gradients of the lookups become one a row.
    fn reduce(&self, lookups: f64) -> Work {
        let Self { row, wire, bags, .. } = *self;
        let own = self.rows.requests / self.ranks;
        let of_bags = (self.rows.pooled_lookups - self.rows.pooled_vectors) / self.ranks;
        let read = lookups - of_bags;
        // All lookups of a bag read the bag's gradient.
        Work::pass(again(read, bags) * row * wire + own * row * wire + self.rows.frequent_bytes)
            .with_rows(own)
    }

    /// Each row that was touched is read and written once with its state; before that its gradients
    /// are summed.
    fn update(&self, asked: f64, lookups: f64, alone: bool) -> Work {
        let Self { row, bags, state, .. } = *self;
        let (gradients, vectors) = match alone {
            true => (lookups, bags),
            false => (self.rows_of_owner(), asked),
        };
        let wire = if alone { 1.0 } else { self.wire };
        let touched = self.rows.distinct / self.ranks * self.rows.imbalance;
        let sums = if self.practice.pools_at_owner {
            self.sort(gradients, SORT_BYTES)
        } else {
            Work::default()
        };
        Work::pass(again(gradients, vectors) * row * wire + touched * 2.0 * (row + state))
            .with_rows(gradients.max(touched))
            .plus(sums)
    }

    /// What so many bytes of one rank's buffer are summed with; of none there is no all-reduce.
    fn all_reduce(&self, bytes: f64) -> Work {
        if bytes == 0.0 {
            return Work::default();
        }
        let way = self.costs.all_reduce_way(&self.cluster.shape(), bytes);
        Work {
            kernels: self.practice.all_reduce_operations(way) as f64,
            wire_us: self.costs.all_reduce_us(&self.cluster.shape(), bytes),
            ..Work::default()
        }
    }

    /// All sums; parts of dense gradients go to the ranks that have them.
    fn sums_at_once(&self) -> Work {
        match self.practice.shards_optimizer {
            true => self.all_reduce(self.buffer_bytes()).plus(self.reduce_to_parts()),
            false => self.all_reduce(self.buffer_bytes()),
        }
    }

    /// Those of dense gradients.
    fn dense_sums(&self) -> Work {
        match self.practice.shards_optimizer {
            true => self.reduce_to_parts(),
            false => self.all_reduce(self.dense_bytes()),
        }
    }

    /// Between devices dense gradients are f32 until they travel; those of rows are written as they
    /// do.
    fn rounding(&self) -> Work {
        match self.has_slots() && self.sum < 1.0 {
            true => Work::pass(self.workload.dense_parameters * ROUNDED_BYTES),
            false => Work::default(),
        }
    }

    /// Gradient, row and state of every replicated row are read, row and state written.
    fn replicas(&self) -> Work {
        match self.rows.frequent_bytes {
            0.0 => Work::default(),
            bytes => Work::pass(bytes * (3.0 + 2.0 * self.state / self.row)),
        }
    }

    /// The same where it is a part of the all-reduce; between devices an operation of it.
    fn updates_within(&self) -> Work {
        match self.practice.sums {
            Sums::WithRows if self.has_slots() => self.replicas(),
            Sums::WithRows => Work { kernels: 0.0, ..self.replicas() },
            Sums::ThenRows | Sums::RowsFirst => Work::default(),
        }
    }

    /// Dense gradients, to the ranks that have the parts.
    fn reduce_to_parts(&self) -> Work {
        let [kernels, _] = self.practice.parts_operations(self.nodes());
        let wire_us = self.costs.parts_us(&self.cluster.shape(), self.dense_bytes());
        Work { kernels: kernels as f64, wire_us, ..Work::default() }
    }

    /// So many bytes that ranks have in parts, to all.
    fn gather(&self, bytes: f64) -> Work {
        let [_, kernels] = self.practice.parts_operations(self.nodes());
        let wire_us = self.costs.parts_us(&self.cluster.shape(), bytes);
        Work { kernels: kernels as f64, wire_us, ..Work::default() }
    }

    fn nodes(&self) -> usize {
        self.cluster.shape().num_nodes()
    }

    /// Weights are read, and written in the element of the products: a processor packs f32, too.
    fn pack(&self) -> Work {
        let element = self.workload.activation_bytes();
        match self.has_slots() && element == 4.0 {
            true => Work::default(),
            false => Work::pass(self.workload.dense_parameters * (4.0 + element)),
        }
    }

    fn has_slots(&self) -> bool {
        matches!(self.practice.packing, Packing::Slots { .. })
    }

    fn exchange(&self) -> Work {
        let packed = match self.practice.packing {
            Packing::Slots { by_node: true } => self.crossing_of_rank() * STRIP_PASSES,
            Packing::Slots { by_node: false } | Packing::None => 0.0,
        };
        Work {
            kernels: self.exchange_operations(),
            bytes: packed,
            wire_us: self.exchange_times().forward_us,
            ..Work::default()
        }
    }

    fn ids(&self) -> Work {
        let known = self.practice.variant.ids == IdSource::Known;
        let exchange = Work {
            kernels: if self.has_slots() { self.exchange_operations() } else { 0.0 },
            wire_us: if known { 0.0 } else { self.exchange_times().ids_us },
            ..Work::default()
        };
        match self.has_slots() && self.merges_in_nodes() {
            // A sort on the way; and how long strips must be goes around the node.
            true => {
                exchange.plus(self.sort(self.rows.requests / self.ranks, SORT_BYTES)).plus(Work {
                    kernels: if self.practice.strips.between { TOLD_KERNELS } else { 0.0 },
                    ..Work::default()
                })
            }
            false => exchange,
        }
    }

    /// Of one exchange between devices.
    fn exchange_operations(&self) -> f64 {
        match self.has_slots() && self.merges_in_nodes() {
            true => self.practice.halves_operations() as f64,
            false => self.practice.all_to_all_operations() as f64,
        }
    }

    /// A proxy reads the vectors of owners, as often as ranks of its node want them, and writes
    /// them; where nodes merge, and between devices.
    fn send_to_node(&self) -> Work {
        if !(self.has_slots() && self.merges_in_nodes()) {
            return Work::default();
        }
        let [handed, asked] =
            [self.rows.requests, self.rows.of_nodes.requests].map(|rows| rows / self.ranks);
        let row = self.row * self.wire;
        Work::pass(again(handed, asked) * row + handed * row).with_rows(handed)
    }

    /// And it adds up their gradients.
    fn add_up_in_node(&self) -> Work {
        if !(self.has_slots() && self.merges_in_nodes()) {
            return Work::default();
        }
        let [added, asked] =
            [self.rows.requests, self.rows.of_nodes.requests].map(|rows| rows / self.ranks);
        Work::pass((added + asked) * self.row * self.wire).with_rows(added)
    }

    fn layers(&self, part: Part) -> impl Iterator<Item = Layer> {
        self.workload.layers.iter().copied().filter(move |layer| layer.part == part)
    }

    fn forward(&self, part: Part) -> Work {
        let element = self.product_bytes();
        self.layers(part).fold(Work::default(), |work, layer| {
            let (inputs, outputs) = (layer.inputs as f64, layer.outputs as f64);
            work.plus(Work {
                kernels: 1.0,
                flops: self.product(self.samples, outputs, inputs),
                bytes: product_bytes(self.samples, inputs, outputs, element),
                ..Work::default()
            })
        })
    }

    /// Gradients of inputs and weights; no one needs that of the first layer's input.
    fn backward(&self, part: Part) -> Work {
        let element = self.product_bytes();
        self.layers(part).enumerate().fold(Work::default(), |work, (index, layer)| {
            let (inputs, outputs) = (layer.inputs as f64, layer.outputs as f64);
            let is_first = part == Part::Bottom && index == 0;
            let products = if is_first { 1.0 } else { 2.0 };
            let of_inputs =
                if is_first { 0.0 } else { self.product(self.samples, inputs, outputs) };
            work.plus(Work {
                kernels: products,
                flops: self.product(inputs, outputs, self.samples) + of_inputs,
                bytes: products * product_bytes(self.samples, inputs, outputs, element),
                ..Work::default()
            })
        })
    }

    /// Bytes of an element that a product moves besides computing; a processor's rate of products
    /// is measured with it.
    fn product_bytes(&self) -> f64 {
        if self.cluster.device.kind == DeviceKind::Cpu {
            0.0
        } else {
            self.workload.activation_bytes()
        }
    }

    /// Operations of a product of `rows` × `columns` sums over `inner` terms, as many as the device
    /// does in its time at the rate of large ones: narrow ones are slower.
    fn product(&self, rows: f64, columns: f64, inner: f64) -> f64 {
        let narrow = rows.min(columns).min(inner);
        2.0 * rows * columns * inner * (narrow + self.cluster.device.half_width) / narrow
    }

    /// What a cross network does besides products: `passes` over vectors as wide as its input, for
    /// each of its layers.
    fn between_cross_layers(&self, passes: f64) -> Work {
        let layers = self.layers(Part::Cross).count() as f64 / 2.0;
        let width = self.layers(Part::Cross).next().map_or(0, |layer| layer.inputs) as f64;
        Work {
            kernels: layers,
            bytes: layers * passes * self.samples * width * self.workload.activation_bytes(),
            ..Work::default()
        }
    }

    /// Vectors are read, and what is made of them is written; backward twice as much.
    fn interaction(&self, times: f64) -> Work {
        let features = self.workload.tables.len() as f64 + 1.0;
        let dim = self.workload.dim as f64;
        let out = self.workload.top_input_width as f64;
        let flops =
            if self.workload.has_dot_products { features * (features - 1.0) * dim } else { 0.0 };
        Work {
            kernels: 1.0,
            flops: times * self.samples * flops,
            bytes: times * self.samples * (features * dim + out) * self.workload.activation_bytes(),
            ..Work::default()
        }
    }

    /// Gradient, weight and state are read, weight and state written, and once more in the element
    /// of the products; those of a part are packed later.
    fn optimizer(&self) -> Work {
        let (packed, part) = match self.practice.shards_optimizer {
            true => (0.0, self.ranks),
            false => (self.workload.activation_bytes(), 1.0),
        };
        let Workload { dense_parameters, dense_state_bytes, .. } = *self.workload;
        let bytes = optimizer_bytes(dense_parameters, dense_state_bytes, packed);
        Work { kernels: 2.0, bytes: bytes / part, ..Work::default() }
    }
}

/// Reads of `distinct` rows, `all` of them: as many as cost the same without a repetition.
fn again(all: f64, distinct: f64) -> f64 {
    let first = distinct.min(all);
    first + (all - first) * AGAIN
}
