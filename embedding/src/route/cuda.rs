//! Route on a device: ids to keys, a radix sort, chunks of work. Everything stays there, counts
//! included.

use crate::cuda::layout::{BLOCK, CHUNK, Layout, Places, TILE, blocks};
use crate::cuda::staging::Staging;
use crate::cuda::{DeviceTables, FlagsMemory};
use crate::error::Result;
use headlong_device::cuda::{
    CudaDevice, CudaStream, DeviceMemory, DevicePtr, Launch, Source, kernel_args,
};
use std::sync::Arc;

/// The sort, keys and chunks.
pub(crate) static ROUTE: Source = Source {
    name: "embedding/route",
    text: concat!(
        include_str!("../cuda/tables.cuh"),
        include_str!("../cuda/scan.cuh"),
        include_str!("sort.cu"),
        include_str!("route.cu")
    ),
};

/// Digits of one pass of the sort.
const DIGITS: usize = 256;

kernel_args! {
    struct SortArgs {
        tables, tile_tables, num_entries, keys_in, values_in, keys_out, values_out, counts,
        totals: DevicePtr;
        stride, num_tables, num_tiles, shift, mask, values_are_positions: u32;
    }

    struct KeysArgs {
        tables, tile_tables, staged, keys, samples, counts, flags: DevicePtr;
        num_tiles, mask: u32;
    }

    struct ChunksArgs {
        tables, tile_tables, num_entries, keys, tile_chunks, tile_longs, tile_rows, chunk_starts,
        chunk_ends, long_firsts, long_ends, row_numbers, row_starts, totals: DevicePtr;
        stride, num_tables, num_tiles: u32;
        // 0: each entry of an infrequent row is a row of its own.
        merges: u32;
    }

    struct UniqueArgs {
        tables, tile_tables, num_entries, keys, row_numbers, rows, counts, device_step: DevicePtr;
        stride, num_tiles: u32;
    }
}

/// Passes of a sort of keys of `bits` bits, and the bits of each.
pub(crate) fn passes(bits: u32) -> (u32, u32) {
    let passes = bits.div_ceil(8).max(1);
    (passes, bits.div_ceil(passes).max(1))
}

/// Lists of sorted entries and what was found in them.
#[derive(Debug)]
pub(crate) struct Sorted {
    memory: DeviceMemory,
    places: SortedPlaces,
    layout: Arc<Layout>,
    key_bits: u32,
    /// Whether equal rows are one.
    merges: bool,
}

#[derive(Debug, Clone, Copy)]
struct SortedPlaces {
    keys: [usize; 2],
    values: [usize; 2],
    samples: usize,
    counts: usize,
    totals: usize,
    /// Chunks, long rows and rows of each tile.
    tiles: [usize; 3],
    chunk_starts: usize,
    chunk_ends: usize,
    long_firsts: usize,
    long_ends: usize,
    /// Of routes among several ranks.
    row_numbers: Option<usize>,
    row_starts: Option<usize>,
    /// Where authors' own tables take steps: each table's rows, and how many.
    unique: Option<[usize; 2]>,
    num_found: usize,
    bytes: usize,
}

impl SortedPlaces {
    fn new(layout: &Layout, numbers_rows: bool) -> Self {
        let mut places = Places::default();
        let (entries, tiles) = (layout.num_entries(), layout.num_tiles);
        let longs = entries / CHUNK;
        let mut take = |count| places.words(count);
        let placed = Self {
            keys: [take(entries), take(entries)],
            values: [take(entries), take(entries)],
            samples: take(entries),
            counts: take(tiles * DIGITS),
            totals: take(layout.tables.len() * DIGITS),
            tiles: [take(tiles), take(tiles), take(tiles)],
            chunk_starts: take(entries),
            chunk_ends: take(entries),
            long_firsts: take(longs),
            long_ends: take(longs),
            row_numbers: numbers_rows.then(|| take(entries)),
            row_starts: numbers_rows.then(|| take(entries)),
            unique: numbers_rows.then(|| [take(entries), take(layout.tables.len())]),
            num_found: take(4),
            bytes: 0,
        };
        Self { bytes: places.bytes(), ..placed }
    }
}

impl Sorted {
    /// For keys of at most `key_bits` bits.
    pub(crate) fn new(
        device: &CudaDevice,
        layout: &Arc<Layout>,
        key_bits: u32,
        numbers_rows: bool,
    ) -> Result<Self> {
        let places = SortedPlaces::new(layout, numbers_rows);
        let memory = DeviceMemory::new(device, "routes of a batch", places.bytes)?;
        Ok(Self { memory, places, layout: Arc::clone(layout), key_bits, merges: true })
    }

    /// The same where equal infrequent rows are one, or each entry is a row of its own: those of
    /// the replica are one in any case.
    pub(crate) fn merging(self, merges: bool) -> Self {
        Self { merges, ..self }
    }

    /// Bytes of device memory.
    pub(crate) fn bytes(layout: &Layout, numbers_rows: bool) -> u64 {
        SortedPlaces::new(layout, numbers_rows).bytes as u64
    }

    fn at(&self, place: usize) -> DevicePtr {
        self.memory.ptr().offset(place)
    }

    fn at_if(&self, place: Option<usize>) -> DevicePtr {
        place.map_or(DevicePtr::NULL, |place| self.at(place))
    }

    /// Which of the two lists holds the sorted entries: passes go from one to the other.
    fn side(&self) -> usize {
        passes(self.key_bits).0 as usize % 2
    }

    /// Keys before the first pass.
    pub(crate) fn unsorted_keys(&self) -> DevicePtr {
        self.at(self.places.keys[0])
    }

    /// Values before the first pass, where they are not positions.
    pub(crate) fn unsorted_values(&self) -> DevicePtr {
        self.at(self.places.values[0])
    }

    /// Sorted keys.
    pub(crate) fn keys(&self) -> DevicePtr {
        self.at(self.places.keys[self.side()])
    }

    /// Their values.
    pub(crate) fn values(&self) -> DevicePtr {
        self.at(self.places.values[self.side()])
    }

    /// The sample of each entry, by its position, in tables with bags.
    pub(crate) fn samples(&self) -> DevicePtr {
        self.at(self.places.samples)
    }

    /// First entries of chunks, with marks, and their ends.
    pub(crate) fn chunks(&self) -> [DevicePtr; 2] {
        [self.at(self.places.chunk_starts), self.at(self.places.chunk_ends)]
    }

    /// First chunks of long rows, and the chunks after their last.
    pub(crate) fn longs(&self) -> [DevicePtr; 2] {
        [self.at(self.places.long_firsts), self.at(self.places.long_ends)]
    }

    /// The number of each sorted entry's row.
    pub(crate) fn row_numbers(&self) -> DevicePtr {
        self.at_if(self.places.row_numbers)
    }

    /// The first entry of each row.
    pub(crate) fn row_starts(&self) -> DevicePtr {
        self.at_if(self.places.row_starts)
    }

    /// The rows of table `table`, each once, rising, and how many they are.
    pub(crate) fn unique(&self, table: usize) -> [DevicePtr; 2] {
        let [rows, counts] =
            self.places.unique.expect("rows are numbered where they are asked for");
        [
            self.at(rows).offset(4 * self.layout.tables[table].first_entry()),
            self.at(counts).offset(4 * table),
        ]
    }

    /// Enqueues the lists of [`Self::unique`]; they are empty where `device_step` says that the
    /// step changes nothing.
    pub(crate) fn list_unique(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        num_entries: (DevicePtr, u32),
        device_step: DevicePtr,
    ) {
        let [rows, counts] =
            self.places.unique.expect("rows are numbered where they are asked for");
        let args = UniqueArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            num_entries: num_entries.0,
            keys: self.keys(),
            row_numbers: self.row_numbers(),
            rows: self.at(rows),
            counts: self.at(counts),
            device_step,
            stride: num_entries.1,
            num_tiles: self.layout.num_tiles as u32,
        };
        stream.run(&ROUTE, &[], "unique_rows", Launch::new(self.tile_blocks(stream), BLOCK), &args);
    }

    /// How many chunks, long rows and rows there are.
    pub(crate) fn num_found(&self) -> DevicePtr {
        self.at(self.places.num_found)
    }

    /// Most chunks and long rows.
    pub(crate) fn most(&self) -> (usize, usize) {
        (self.layout.num_entries(), self.layout.num_entries() / CHUNK)
    }

    fn tile_blocks(&self, stream: &CudaStream) -> u32 {
        blocks(self.layout.num_tiles, stream.device().multiprocessors(), 4)
    }

    /// Enqueues the keys of a staged batch and their sort; values are positions.
    pub(crate) fn route(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        staging: &Staging,
        flags: &FlagsMemory,
    ) {
        let args = KeysArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            staged: staging.ptr(),
            keys: self.unsorted_keys(),
            samples: self.samples(),
            counts: self.at(self.places.counts),
            flags: flags.ptr(),
            num_tiles: self.layout.num_tiles as u32,
            mask: (1 << passes(self.key_bits).1) - 1,
        };
        stream.run(&ROUTE, &[], "route_keys", Launch::new(self.tile_blocks(stream), BLOCK), &args);
        self.sort(stream, tables, (staging.num_entries(), 2), true);
        self.find_chunks(stream, tables, (staging.num_entries(), 2));
    }

    /// Enqueues the sort; where `counted`, the first pass has its counts, and values are positions.
    pub(crate) fn sort(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        num_entries: (DevicePtr, u32),
        counted: bool,
    ) {
        let (num_passes, bits) = passes(self.key_bits);
        let tiles = Launch::new(self.tile_blocks(stream), BLOCK);
        let groups = self.layout.tables.len() * DIGITS / 32;
        let scan = Launch::new(blocks(groups, stream.device().multiprocessors(), 4), BLOCK);
        for pass in 0..num_passes {
            let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
            let args = SortArgs {
                tables: tables.tables(),
                tile_tables: tables.tile_tables(),
                num_entries: num_entries.0,
                keys_in: self.at(self.places.keys[from]),
                values_in: self.at(self.places.values[from]),
                keys_out: self.at(self.places.keys[to]),
                values_out: self.at(self.places.values[to]),
                counts: self.at(self.places.counts),
                totals: self.at(self.places.totals),
                stride: num_entries.1,
                num_tables: self.layout.tables.len() as u32,
                num_tiles: self.layout.num_tiles as u32,
                shift: pass * bits,
                mask: (1 << bits) - 1,
                values_are_positions: u32::from(counted && pass == 0),
            };
            if pass > 0 || !counted {
                stream.run(&ROUTE, &[], "sort_count", tiles, &args);
            }
            stream.run(&ROUTE, &[], "sort_scan", scan, &args);
            stream.run(&ROUTE, &[], "sort_scatter", tiles, &args);
        }
    }

    /// Enqueues the search for rows and chunks among sorted keys.
    pub(crate) fn find_chunks(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        num_entries: (DevicePtr, u32),
    ) {
        let [chunk_starts, chunk_ends] = self.chunks();
        let [long_firsts, long_ends] = self.longs();
        let [tile_chunks, tile_longs, tile_rows] = self.places.tiles.map(|place| self.at(place));
        let args = ChunksArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            num_entries: num_entries.0,
            keys: self.keys(),
            tile_chunks,
            tile_longs,
            tile_rows,
            chunk_starts,
            chunk_ends,
            long_firsts,
            long_ends,
            row_numbers: self.row_numbers(),
            row_starts: self.row_starts(),
            totals: self.num_found(),
            stride: num_entries.1,
            num_tables: self.layout.tables.len() as u32,
            num_tiles: self.layout.num_tiles as u32,
            merges: self.merges.into(),
        };
        let shape = Launch::new(self.tile_blocks(stream), BLOCK);
        stream.run(&ROUTE, &[], "chunks_count", shape, &args);
        stream.run(&ROUTE, &[], "chunks_write", shape, &args);
    }
}

const _: () =
    assert!(TILE.is_multiple_of(CHUNK), "chunks of different tables have places of their own");

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn arguments_lie_as_kernels_read_them() {
        layout_test!(SortArgs, &ROUTE, &[]);
        layout_test!(UniqueArgs, &ROUTE, &[]);
        layout_test!(KeysArgs, &ROUTE, &[]);
        layout_test!(ChunksArgs, &ROUTE, &[]);
    }
}
