//! Route on a device: ids to keys, a radix sort, chunks of work. Everything stays there, counts
//! included.

use crate::cuda::layout::{BLOCK, CHUNK, Layout, Places, TILE};
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
        include_str!("digits.cuh"),
        include_str!("sort.cu"),
        include_str!("route.cu")
    ),
};

/// What a pass of the sort tells apart.
const DIGITS: usize = 256;

/// Where keys, or values, go before the first pass of their table: `KeyLists` in digits.cuh.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct KeyLists {
    even: DevicePtr,
    odd: DevicePtr,
}

kernel_args! {
    struct SortArgs {
        tables, tile_tables, num_entries, keys_in, values_in, keys_out, values_out, histograms,
        states, taken: DevicePtr;
        stride, num_tiles, num_passes, pass, values_are_positions: u32;
    }

    struct KeysArgs {
        tables, tile_tables, staged: DevicePtr;
        keys: KeyLists;
        samples, histograms, flags: DevicePtr;
        num_tiles, num_passes, max_samples: u32;
    }

    struct ChunksArgs {
        tables, tile_tables, num_entries, keys, tiles, taken, chunk_starts, chunk_ends,
        long_firsts, long_ends, row_numbers, row_starts, totals: DevicePtr;
        stride, num_tiles: u32;
        // 0: each entry of an infrequent row is a row of its own.
        merges, chunk: u32;
    }

    struct UniqueArgs {
        tables, tile_tables, num_entries, keys, row_numbers, rows, counts, device_step: DevicePtr;
        stride, num_tiles: u32;
    }
}

/// Passes of a sort of keys of `bits` bits.
fn passes(bits: u32) -> u32 {
    bits.div_ceil(DIGITS.ilog2())
}

/// Lists of sorted entries and what was found in them.
#[derive(Debug)]
pub(crate) struct Sorted {
    _memory: DeviceMemory,
    pub(crate) at: SortedPlaces,
    layout: Arc<Layout>,
    /// Of the table whose keys need most.
    num_passes: u32,
    /// Whether equal rows are one.
    merges: bool,
    /// Entries of a chunk.
    chunk: usize,
    /// Whether rows may have several.
    has_longs: bool,
}

/// Where the lists are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortedPlaces {
    /// Keys and values go from one list to the other with each pass; those of a table are in the
    /// first one before its first, or in the other one.
    passed_keys: [DevicePtr; 2],
    passed_values: [DevicePtr; 2],
    /// After the last pass.
    pub(crate) keys: DevicePtr,
    pub(crate) values: DevicePtr,
    /// The sample of each entry, by its position, in tables with bags.
    pub(crate) samples: DevicePtr,
    /// Numbers of tiles that blocks have taken, pass by pass, and in the search for chunks; then
    /// how often each digit occurs in each table; then what tiles publish, of the sort and of that
    /// search. Zeros, so many bytes, before a batch.
    taken: DevicePtr,
    pub(crate) histograms: DevicePtr,
    states: DevicePtr,
    tiles: DevicePtr,
    cleared_bytes: usize,
    /// First entries of chunks, with marks, and their ends.
    pub(crate) chunk_starts: DevicePtr,
    pub(crate) chunk_ends: DevicePtr,
    /// First chunks of long rows, and the chunks after their last.
    pub(crate) long_firsts: DevicePtr,
    pub(crate) long_ends: DevicePtr,
    /// The number of each sorted entry's row, and the first entry of each row; null where rows are
    /// not numbered.
    pub(crate) row_numbers: DevicePtr,
    pub(crate) row_starts: DevicePtr,
    /// Where authors' own tables take steps: each table's rows, and how many.
    unique: Option<[DevicePtr; 2]>,
    /// How many chunks, long rows and rows there are.
    pub(crate) num_found: DevicePtr,
}

impl SortedPlaces {
    /// In memory that starts at `base`; also how many bytes that takes.
    fn new(base: DevicePtr, layout: &Layout, key_bits: u32, numbers_rows: bool) -> (Self, usize) {
        let mut places = Places::default();
        let (entries, tiles) = (layout.num_entries(), layout.num_tiles);
        let (longs, num_passes) = (entries / CHUNK, passes(key_bits) as usize);
        let mut take = |count| base.offset(places.words(count));
        let taken = take(num_passes + 1);
        let histograms = take(layout.tables.len() * num_passes * DIGITS);
        let [states, tiles] = [take(num_passes * tiles * DIGITS), take(2 * tiles)];
        let samples = take(entries);
        let cleared_bytes = (samples.0 - taken.0) as usize;
        let [passed_keys, passed_values] = [(); 2].map(|()| [take(entries), take(entries)]);
        let [row_numbers, row_starts] =
            [(); 2].map(|()| if numbers_rows { take(entries) } else { DevicePtr::NULL });
        let unique = numbers_rows.then(|| [take(entries), take(layout.tables.len())]);
        let at = Self {
            passed_keys,
            passed_values,
            keys: passed_keys[num_passes % 2],
            values: passed_values[num_passes % 2],
            samples,
            taken,
            histograms,
            states,
            tiles,
            cleared_bytes,
            chunk_starts: take(entries),
            chunk_ends: take(entries),
            long_firsts: take(longs),
            long_ends: take(longs),
            row_numbers,
            row_starts,
            unique,
            num_found: take(4),
        };
        (at, places.bytes())
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
        let places = |base| SortedPlaces::new(base, layout, key_bits, numbers_rows);
        let memory = DeviceMemory::new(device, "routes of a batch", places(DevicePtr::NULL).1)?;
        let (at, layout) = (places(memory.ptr()).0, Arc::clone(layout));
        Ok(Self {
            _memory: memory,
            at,
            layout,
            num_passes: passes(key_bits),
            merges: true,
            chunk: CHUNK,
            has_longs: true,
        })
    }

    /// The same where equal infrequent rows are one, or each entry is a row of its own: those of
    /// the replica are one in any case.
    pub(crate) fn merging(self, merges: bool) -> Self {
        Self { merges, ..self }
    }

    /// The same where each of so many sources has a row once: no row has several chunks.
    pub(crate) fn of_sources(self, sources: usize) -> Self {
        Self { chunk: sources.next_power_of_two().max(CHUNK), has_longs: false, ..self }
    }

    /// The rows of table `table`, each once, rising, and how many they are.
    pub(crate) fn unique(&self, table: usize) -> [DevicePtr; 2] {
        let [rows, counts] = self.at.unique.expect("rows are numbered where they are listed");
        [rows.offset(4 * self.layout.tables[table].first_entry()), counts.offset(4 * table)]
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
        let [rows, counts] = self.at.unique.expect("rows are numbered where they are listed");
        let args = UniqueArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            num_entries: num_entries.0,
            keys: self.at.keys,
            row_numbers: self.at.row_numbers,
            rows,
            counts,
            device_step,
            stride: num_entries.1,
            num_tiles: self.layout.num_tiles as u32,
        };
        stream.run_resident(&ROUTE, &[], "unique_rows", self.tile_blocks(), &args);
    }

    /// A block takes a tile at a time.
    fn tile_blocks(&self) -> Launch {
        Launch::new(self.layout.num_tiles as u32, BLOCK)
    }

    /// Most chunks and long rows.
    pub(crate) fn most(&self) -> (usize, usize) {
        let entries = self.layout.num_entries();
        (entries, if self.has_longs { entries / CHUNK } else { 0 })
    }

    /// Enqueues the keys of a staged batch and their sort; values are positions.
    pub(crate) fn route(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        staging: &Staging,
        flags: &FlagsMemory,
    ) {
        self.clear(stream);
        let args = KeysArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            staged: staging.ptr(),
            keys: self.lists().0,
            samples: self.at.samples,
            histograms: self.at.histograms,
            flags: flags.ptr(),
            num_tiles: self.layout.num_tiles as u32,
            num_passes: self.num_passes,
            max_samples: self.layout.max_samples as u32,
        };
        stream.run_resident(&ROUTE, &[], "route_keys", self.tile_blocks(), &args);
        self.sort(stream, tables, (staging.num_entries(), 2), true);
        self.find_chunks(stream, tables, (staging.num_entries(), 2));
    }

    /// Enqueues zeros where the keys of a batch are counted and tiles tell each other of them:
    /// before the keys are written.
    pub(crate) fn clear(&self, stream: &CudaStream) {
        stream.fill_bytes(self.at.taken, 0, self.at.cleared_bytes);
    }

    /// Where keys and values go before the sort.
    pub(crate) fn lists(&self) -> (KeyLists, KeyLists) {
        let lists = |[even, odd]: [DevicePtr; 2]| KeyLists { even, odd };
        let [keys, values] = [self.at.passed_keys, self.at.passed_values];
        (lists(keys), lists(values))
    }

    /// Passes of the sort, as those who count keys must know.
    pub(crate) fn num_passes(&self) -> u32 {
        self.num_passes
    }

    /// Enqueues the sort of keys that have been counted. `positions`: values are the positions of
    /// keys, and need not be written.
    pub(crate) fn sort(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        num_entries: (DevicePtr, u32),
        positions: bool,
    ) {
        let num_tiles = self.layout.num_tiles;
        for pass in 0..self.num_passes {
            let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
            let args = SortArgs {
                tables: tables.tables(),
                tile_tables: tables.tile_tables(),
                num_entries: num_entries.0,
                keys_in: self.at.passed_keys[from],
                values_in: self.at.passed_values[from],
                keys_out: self.at.passed_keys[to],
                values_out: self.at.passed_values[to],
                histograms: self.at.histograms,
                states: self.at.states.offset(4 * pass as usize * num_tiles * DIGITS),
                taken: self.at.taken.offset(4 * pass as usize),
                stride: num_entries.1,
                num_tiles: num_tiles as u32,
                num_passes: self.num_passes,
                pass,
                values_are_positions: positions.into(),
            };
            stream.run_resident(&ROUTE, &[], "sort_pass", self.tile_blocks(), &args);
        }
    }

    /// Enqueues the search for rows and chunks among sorted keys.
    pub(crate) fn find_chunks(
        &self,
        stream: &CudaStream,
        tables: &DeviceTables,
        num_entries: (DevicePtr, u32),
    ) {
        let SortedPlaces { chunk_starts, chunk_ends, long_firsts, long_ends, .. } = self.at;
        let args = ChunksArgs {
            tables: tables.tables(),
            tile_tables: tables.tile_tables(),
            num_entries: num_entries.0,
            keys: self.at.keys,
            tiles: self.at.tiles,
            taken: self.at.taken.offset(4 * self.num_passes as usize),
            chunk_starts,
            chunk_ends,
            long_firsts,
            long_ends,
            row_numbers: self.at.row_numbers,
            row_starts: self.at.row_starts,
            totals: self.at.num_found,
            stride: num_entries.1,
            num_tiles: self.layout.num_tiles as u32,
            merges: self.merges.into(),
            chunk: self.chunk as u32,
        };
        stream.run_resident(&ROUTE, &[], "find_chunks", self.tile_blocks(), &args);
    }
}

const _: () =
    assert!(TILE.is_multiple_of(CHUNK), "chunks of different tables have places of their own");

#[cfg(test)]
mod cuda_tests;
