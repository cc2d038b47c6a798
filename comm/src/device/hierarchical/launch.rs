//! Launches of the kernels that write and read strips.

use super::inside::{Sources, for_peers};
use super::nodes::{MOST_PEERS, Nodes};
use crate::device::Blocks;
use crate::device::push::CHUNK;
use crate::readable::text;
use headlong_device::cuda::{Build, CudaStream, DeviceMemory, DevicePtr, Launch, Source};

static STRIPS: Source = Source {
    name: "comm/strips",
    text: concat!(
        include_str!("state.cuh"),
        include_str!("../chunks.cuh"),
        include_str!("strips.cu")
    ),
};

const THREADS: u32 = 256;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) at: DevicePtr,
    pub(super) state: DevicePtr,
    pub(super) slot_bytes: u64,
    pub(super) num_slots: u32,
    pub(super) capacity: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SealArgs {
    slots: Slots,
    report: DevicePtr,
    lengths: [DevicePtr; MOST_PEERS],
    fixed: [u32; MOST_PEERS],
    columns: DevicePtr,
    num_strips: u32,
    num_blocks: u32,
    epoch: u32,
    fingerprint: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PackArgs {
    slots: Slots,
    from: [DevicePtr; MOST_PEERS],
    positions: DevicePtr,
    stride: u64,
    limit: u64,
    num_strips: u32,
    num_blocks: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SendArgs {
    seal: SealArgs,
    from: [DevicePtr; MOST_PEERS],
    positions: DevicePtr,
    column: u32,
    position: u32,
    ranks: [u32; MOST_PEERS],
    to: DevicePtr,
    stride: u64,
    to_stride: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct OpenArgs {
    slots: Slots,
    report: DevicePtr,
    senders: DevicePtr,
    blocks: DevicePtr,
    num_strips: u32,
    epoch: u32,
    fingerprint: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UnpackArgs {
    slots: Slots,
    blocks: DevicePtr,
    sources: DevicePtr,
    to: DevicePtr,
    to_stride: u64,
    limit: u64,
    num_strips: u32,
    most_blocks: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ReceiveArgs {
    open: OpenArgs,
    sources: DevicePtr,
    to: DevicePtr,
    to_stride: u64,
    most_blocks: u32,
}

/// Small tables on the device that kernels look strips up in.
pub(super) struct Tables {
    memory: DeviceMemory,
    num_sends: usize,
    num_receives: usize,
    num_rail: usize,
    /// Of any strip that is received: in an all-to-all, and in an all-reduce.
    most_blocks: [usize; 2],
}

impl Tables {
    pub(super) fn new(cuda: &CudaStream, nodes: &Nodes) -> Result<Self, String> {
        let (carried, senders, rail) = (nodes.carried(nodes.rank()), nodes.senders(), nodes.rail());
        let rank_of = |rank: &crate::topology::Rank| rank.0 as u32;
        let others: Vec<usize> = nodes.others().collect();
        let mut words: Vec<u32> = carried.iter().map(rank_of).collect();
        words.extend(0..carried.len() as u32);
        words.extend(senders.iter().map(rank_of));
        words.extend(others.iter().map(|&node| nodes.topology().node_size(node) as u32));
        words.extend(rail.iter().map(rank_of));
        words
            .extend(rail.iter().map(|&rank| nodes.parts_of(nodes.topology().node_of(rank)) as u32));
        for &node in &others {
            let sources = nodes.topology().ranks_of(node).iter().map(rank_of);
            words.extend(sources.chain(std::iter::repeat(0)).take(MOST_PEERS));
        }
        let node_of = |rank: &crate::topology::Rank| nodes.topology().node_of(*rank) as u32;
        words.extend(nodes.rail_by_distance().iter().map(node_of));
        words.extend(rail.iter().flat_map(|rank| [node_of(rank); MOST_PEERS]));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let memory = DeviceMemory::new(cuda.device(), "who carries for whom", bytes.len().max(4));
        let memory = memory.map_err(text)?;
        memory.write(0, &bytes).map_err(text)?;
        let (num_sends, num_receives, num_rail) = (carried.len(), senders.len(), rail.len());
        let size = |node| nodes.topology().node_size(node);
        let of_exchange = others.iter().map(|&node| size(node)).max().unwrap_or(0);
        let of_sum = others.iter().map(|&node| nodes.parts_of(node)).max().unwrap_or(0);
        Ok(Self { memory, num_sends, num_receives, num_rail, most_blocks: [of_exchange, of_sum] })
    }

    fn at(&self, word: usize) -> DevicePtr {
        self.memory.ptr().offset(4 * word)
    }

    /// Per strip that is sent, the rank it is for.
    pub(super) fn destinations(&self) -> DevicePtr {
        self.at(0)
    }

    /// Per strip that is sent, its own number.
    pub(super) fn numbers(&self) -> DevicePtr {
        self.at(self.num_sends)
    }

    /// Per strip that is received, who sends it and of how many blocks it is: in an all-to-all, or
    /// in an all-reduce.
    fn received(&self, of_sum: bool) -> [DevicePtr; 2] {
        let first = 2 * self.num_sends;
        match of_sum {
            false => [self.at(first), self.at(first + self.num_receives)],
            true => {
                let rail = first + 2 * self.num_receives;
                [self.at(rail), self.at(rail + self.num_rail)]
            }
        }
    }

    /// Per strip that is received, whose blocks it has: ranks in an all-to-all; in an all-reduce
    /// its node.
    fn sources(&self, of_sum: bool) -> DevicePtr {
        let first = 2 * (self.num_sends + self.num_receives + self.num_rail);
        let skipped = if of_sum { MOST_PEERS * self.num_receives + self.num_rail } else { 0 };
        self.at(first + skipped)
    }

    /// Per strip that is sent along the rail, or in the first of two steps of an all-reduce, the
    /// node it is for.
    pub(super) fn nodes(&self) -> DevicePtr {
        self.sources(false).offset(4 * MOST_PEERS * self.num_receives)
    }
}

/// Which of a rank's blocks strips take.
#[derive(Clone, Copy)]
pub(super) struct Picked {
    /// Per strip, the number of the block.
    pub(super) positions: DevicePtr,
    /// Bytes from one block to the next.
    pub(super) stride: usize,
    /// Bytes from the first block to where all of them end.
    pub(super) limit: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Kernels<'a> {
    pub(super) cuda: &'a CudaStream,
    pub(super) tables: &'a Tables,
    pub(super) send: Slots,
    pub(super) receive: Slots,
    pub(super) report: DevicePtr,
    pub(super) epoch: u32,
    pub(super) fingerprint: u32,
}

/// The kernels, by name: a captured call may not load them.
const NAMES: [&str; 6] = ["seal", "pack", "send_strips", "open", "unpack", "receive_strips"];

pub(super) fn build() -> Build {
    Build { source: &STRIPS, defines: Vec::new() }
}

pub(super) fn load(cuda: &CudaStream) -> Result<(), String> {
    let all = NAMES.iter().all(|name| cuda.kernel(&STRIPS, &[], name).is_some());
    if all { Ok(()) } else { cuda.check().map_err(text) }
}

impl Kernels<'_> {
    fn run<A: Copy>(&self, entry: &'static str, pieces: usize, args: &A) {
        let blocks = pieces.min(4 * self.cuda.device().multiprocessors() as usize);
        self.cuda.run(&STRIPS, &[], entry, Launch::new(blocks as u32, THREADS), args);
    }

    fn chunks(&self) -> usize {
        (self.send.capacity as usize).div_ceil(CHUNK)
    }

    fn seal_args(
        &self,
        (num_strips, num_blocks): (usize, usize),
        lengths: [DevicePtr; MOST_PEERS],
        fixed: [u32; MOST_PEERS],
    ) -> SealArgs {
        SealArgs {
            slots: self.send,
            report: self.report,
            lengths,
            fixed,
            columns: self.tables.destinations(),
            num_strips: num_strips as u32,
            num_blocks: num_blocks as u32,
            epoch: self.epoch,
            fingerprint: self.fingerprint,
        }
    }

    /// Begins an exchange: headers of `num_strips` strips of `num_blocks` blocks.
    pub(super) fn seal(
        &self,
        shape: (usize, usize),
        lengths: [DevicePtr; MOST_PEERS],
        fixed: [u32; MOST_PEERS],
    ) {
        let args = self.seal_args(shape, lengths, fixed);
        self.cuda.run(&STRIPS, &[], "seal", Launch::new(1, 128), &args);
    }

    /// Blocks of the node's ranks into strips.
    pub(super) fn pack(
        &self,
        (num_strips, num_blocks): (usize, usize),
        from: [DevicePtr; MOST_PEERS],
        picked: Picked,
    ) {
        let (num_strips, num_blocks) = (num_strips as u32, num_blocks as u32);
        let Picked { positions, stride, limit } = picked;
        let (slots, stride, limit) = (self.send, stride as u64, limit as u64);
        let args = PackArgs { slots, from, positions, stride, limit, num_strips, num_blocks };
        self.run("pack", (num_strips * num_blocks) as usize * self.chunks(), &args);
    }

    /// Begins an exchange along the rail: the block for each of it into a strip with its header,
    /// and this node's own to where it belongs. Blocks are those of nodes.
    pub(super) fn send_along_rail(&self, node: usize, blocks: &Blocks) {
        let (num_strips, positions) = (self.tables.num_rail, self.tables.nodes());
        let first = |place| for_peers(std::iter::once(place));
        let shape = (num_strips, 1);
        let fixed = [blocks.bytes_per_peer as u32; MOST_PEERS];
        let seal = self.seal_args(shape, first(blocks.lengths), fixed);
        let node = node as u32;
        let args = SendArgs {
            seal: SealArgs { columns: positions, ..seal },
            from: first(blocks.from),
            positions,
            column: node,
            position: node,
            ranks: [node; MOST_PEERS],
            to: blocks.to,
            stride: blocks.stride as u64,
            to_stride: blocks.stride as u64,
        };
        self.run("send_strips", (num_strips + 1) * self.chunks(), &args);
    }

    /// Begins an all-to-all: blocks of the node's ranks into strips, with their headers, and what
    /// they have for this one to where it belongs.
    pub(super) fn send_strips(
        &self,
        nodes: &Nodes,
        sources: &Sources,
        fixed: [u32; MOST_PEERS],
        (to, to_stride): (DevicePtr, usize),
    ) {
        let (num_strips, num_peers) = (self.tables.num_sends, nodes.peers().len());
        let mut ranks = [0; MOST_PEERS];
        ranks.iter_mut().zip(nodes.peers()).for_each(|(to, rank)| *to = rank.0 as u32);
        let column = nodes.rank().0 as u32;
        // A strip takes the block for its destination; of blocks that were brought in the order of
        // strips, the last is this rank's.
        let (positions, position) = match sources.brought {
            true => (self.tables.numbers(), num_strips as u32),
            false => (self.tables.destinations(), column),
        };
        let args = SendArgs {
            seal: self.seal_args((num_strips, num_peers), sources.lengths, fixed),
            from: sources.from,
            positions,
            column,
            position,
            ranks,
            to,
            stride: sources.stride as u64,
            to_stride: to_stride as u64,
        };
        self.run("send_strips", (num_strips + 1) * num_peers * self.chunks(), &args);
    }

    fn open_args(&self, of_sum: bool) -> OpenArgs {
        let [senders, blocks] = self.tables.received(of_sum);
        OpenArgs {
            slots: self.receive,
            report: self.report,
            senders,
            blocks,
            num_strips: self.num_received(of_sum) as u32,
            epoch: self.epoch,
            fingerprint: self.fingerprint,
        }
    }

    /// Looks at the strips of a sum that have come.
    pub(super) fn open(&self) {
        self.cuda.run(&STRIPS, &[], "open", Launch::new(1, 128), &self.open_args(true));
    }

    /// Ends an all-to-all, or an exchange along the rail, where strips are as in sums: blocks of
    /// those that have come to where they belong, that of a rank, or of a node, `to_stride` bytes
    /// after the one before.
    pub(super) fn receive_strips(&self, along_rail: bool, to: DevicePtr, to_stride: usize) {
        let (sources, to_stride) = (self.tables.sources(along_rail), to_stride as u64);
        let (open, most_blocks) = (self.open_args(along_rail), self.most_blocks(along_rail));
        let args = ReceiveArgs { open, sources, to, to_stride, most_blocks: most_blocks as u32 };
        let blocks = self.num_received(along_rail) * most_blocks;
        self.run("receive_strips", blocks * self.chunks(), &args);
    }

    /// How many strips come, in an all-to-all or in an all-reduce.
    fn num_received(&self, of_sum: bool) -> usize {
        if of_sum { self.tables.num_rail } else { self.tables.num_receives }
    }

    /// How many blocks the fullest of them has.
    fn most_blocks(&self, of_sum: bool) -> usize {
        self.tables.most_blocks[usize::from(of_sum)]
    }

    /// The blocks of a sum's strips, to where they belong: that of a node `to_stride` bytes after
    /// the one before, and nothing from `limit` bytes on.
    pub(super) fn unpack(&self, to: DevicePtr, to_stride: usize, limit: usize) {
        let (num_strips, most_blocks) = (self.num_received(true), self.most_blocks(true));
        let args = UnpackArgs {
            slots: self.receive,
            blocks: self.tables.received(true)[1],
            sources: self.tables.sources(true),
            to,
            to_stride: to_stride as u64,
            limit: limit as u64,
            num_strips: num_strips as u32,
            most_blocks: most_blocks as u32,
        };
        self.run("unpack", num_strips * most_blocks * self.chunks(), &args);
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(Slots, &STRIPS, &[]; at, state, slot_bytes, num_slots, capacity);
        layout_test!(
            SealArgs, &STRIPS, &[];
            slots, report, lengths, fixed, columns, num_strips, num_blocks, epoch, fingerprint
        );
        layout_test!(
            PackArgs, &STRIPS, &[]; slots, from, positions, stride, limit, num_strips, num_blocks
        );
        layout_test!(
            SendArgs, &STRIPS, &[];
            seal, from, positions, column, position, ranks, to, stride, to_stride
        );
        layout_test!(ReceiveArgs, &STRIPS, &[]; open, sources, to, to_stride, most_blocks);
        layout_test!(
            OpenArgs, &STRIPS, &[];
            slots, report, senders, blocks, num_strips, epoch, fingerprint
        );
        layout_test!(
            UnpackArgs, &STRIPS, &[];
            slots, blocks, sources, to, to_stride, limit, num_strips, most_blocks
        );
    }
}
