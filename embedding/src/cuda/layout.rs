//! What host and kernels share: structs of the same layout as in `tables.cuh`, and where the parts
//! of a batch lie.

use crate::table::TableSpec;
use headlong_device::cuda::{DevicePtr, kernel_args};

/// Entries of a tile: a table's entries start at a multiple of it.
pub(crate) const TILE: usize = 4096;

/// Entries that one group of lanes sums.
pub(crate) const CHUNK: usize = 32;

/// Threads of a block, in all kernels of tables.
pub(crate) const BLOCK: u32 = 256;

pub(crate) const WARPS: usize = BLOCK as usize / 32;

/// Entries of all tables lie below: marks of chunks stand above.
pub const MAX_ENTRIES: usize = 1 << 30;

/// Entries of a table that takes at most so many ids: full tiles.
pub const fn num_entries(max_ids: usize) -> usize {
    num_tiles(max_ids) * TILE
}

const fn num_tiles(max_ids: usize) -> usize {
    let tiles = max_ids.div_ceil(TILE);
    if tiles == 0 { 1 } else { tiles }
}

kernel_args! {
    #[derive(Default)]
    pub(crate) struct Table {
        weights, first, second, home, row_numbers: DevicePtr;
        rows, dim, first_column, first_entry, ids, offsets, factors, first_tile, num_tiles, flags,
        num_frequent, first_touched, first_gradient, part_step, part_first, key_bits: u32;
    }
}

impl Table {
    pub(crate) const WORDS: usize = 26;
    /// Where `part_step` and `part_first` stand among them.
    pub(crate) const PARTS: usize = 23;

    /// Its words, for the copy to the device.
    pub(crate) fn words(&self) -> [u32; Self::WORDS] {
        let pointers = [self.weights, self.first, self.second, self.home, self.row_numbers];
        let mut words = [0; Self::WORDS];
        for (pair, pointer) in words.chunks_exact_mut(2).zip(pointers) {
            (pair[0], pair[1]) = (pointer.0 as u32, (pointer.0 >> 32) as u32);
        }
        words[10..].copy_from_slice(&[
            self.rows,
            self.dim,
            self.first_column,
            self.first_entry,
            self.ids,
            self.offsets,
            self.factors,
            self.first_tile,
            self.num_tiles,
            self.flags,
            self.num_frequent,
            self.first_touched,
            self.first_gradient,
            self.part_step,
            self.part_first,
            self.key_bits,
        ]);
        words
    }
}

/// `POOLING_MEAN` of [`Table::flags`].
pub(crate) const POOLING_MEAN: u32 = 1;
/// `ROWS_HIDDEN`, likewise.
pub(crate) const ROWS_HIDDEN: u32 = 2;
/// `BAGS_TO_OWNERS`, likewise.
pub(crate) const BAGS_TO_OWNERS: u32 = 4;

/// Words of `struct Staged` and of `struct StagedTable`.
pub(crate) const STAGED_WORDS: usize = 4;
pub(crate) const STAGED_TABLE_WORDS: usize = 2;

/// A table's mode in a batch.
pub(crate) const MODE_BAGS: u32 = 1;
pub(crate) const MODE_WEIGHTED: u32 = 2;
pub(crate) const MODE_NEEDS_REST: u32 = 4;

/// Where the entries of every table lie, and the words of its part of a staged batch.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) max_samples: usize,
    pub(crate) tables: Vec<TableLayout>,
    pub(crate) num_tiles: usize,
    /// Words that are copied with every batch; the rest follows.
    pub(crate) main_words: usize,
    /// All words of a staged batch.
    pub(crate) words: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TableLayout {
    pub(crate) max_ids: usize,
    pub(crate) first_column: usize,
    pub(crate) first_tile: usize,
    pub(crate) num_tiles: usize,
    pub(crate) ids: usize,
    pub(crate) offsets: usize,
    pub(crate) factors: usize,
}

impl TableLayout {
    pub(crate) fn first_entry(&self) -> usize {
        self.first_tile * TILE
    }
}

impl Layout {
    /// For batches of at most these sizes.
    ///
    /// Offsets travel with every batch for tables that were planned for more, or fewer, ids than
    /// samples; for the others, and the weights of ids, there is room in the rest.
    pub(crate) fn new(specs: &[TableSpec], max_samples: usize, max_ids: &[usize]) -> Self {
        let mut word = STAGED_WORDS + STAGED_TABLE_WORDS * specs.len();
        let mut take = |words: usize| {
            let first = word.next_multiple_of(4);
            word = first + words;
            first
        };
        let (mut first_column, mut first_tile) = (0, 0);
        let table = |(spec, &max_ids): (&TableSpec, &usize)| {
            let num_tiles = num_tiles(max_ids);
            let (ids, offsets) =
                (take(max_ids), if max_ids == max_samples { 0 } else { take(max_samples + 1) });
            let table = TableLayout {
                max_ids,
                first_column,
                first_tile,
                num_tiles,
                ids,
                offsets,
                factors: 0,
            };
            (first_column, first_tile) = (first_column + spec.dim, first_tile + num_tiles);
            table
        };
        let mut tables: Vec<_> = specs.iter().zip(max_ids).map(table).collect();
        let main_words = take(4);
        for table in &mut tables {
            if table.offsets == 0 {
                table.offsets = take(max_samples + 1);
            }
            table.factors = take(table.max_ids);
        }
        let layout = Self { max_samples, tables, num_tiles: first_tile, main_words, words: word };
        assert!(
            layout.num_entries() <= MAX_ENTRIES,
            "ids of one batch are at most 2^30 with their gaps"
        );
        layout
    }

    /// Entries of all tables, gaps included.
    pub(crate) fn num_entries(&self) -> usize {
        self.num_tiles * TILE
    }

    pub(crate) fn tile_tables(&self) -> Vec<u32> {
        let tables = self.tables.iter().zip(0_u32..);
        tables.flat_map(|(table, index)| std::iter::repeat_n(index, table.num_tiles)).collect()
    }
}

/// Places in one allocation: each starts at a multiple of 256 bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Places {
    bytes: usize,
}

impl Places {
    /// Room for `count` words of four bytes; where it starts.
    pub(crate) fn words(&mut self, count: usize) -> usize {
        let first = self.bytes;
        self.bytes = (first + 4 * count).next_multiple_of(256);
        first
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use crate::cuda::FlagsMemory;
    use crate::route::cuda::ROUTE;
    use headlong_device::cuda::testing::layout_test;

    /// `struct Staged`, which the host writes word by word.
    #[repr(C)]
    struct Staged {
        num_samples: u32,
        generation: u32,
        rest: u32,
        unused: u32,
    }

    /// `struct StagedTable`, likewise.
    #[repr(C)]
    struct StagedTable {
        num_ids: u32,
        mode: u32,
    }

    #[test]
    fn descriptions_lie_as_kernels_read_them() {
        layout_test!(Table, &ROUTE, &[]);
        layout_test!(Staged, &ROUTE, &[]; num_samples, generation, rest, unused);
        layout_test!(StagedTable, &ROUTE, &[]; num_ids, mode);
        assert_eq!(size_of::<Table>(), 4 * Table::default().words().len());
        assert_eq!(
            (size_of::<Staged>(), size_of::<StagedTable>()),
            (4 * STAGED_WORDS, 4 * STAGED_TABLE_WORDS)
        );
        assert!(size_of::<FlagsMemory>() > 0);
    }

    #[test]
    fn offsets_travel_with_tables_that_were_planned_for_bags() {
        let specs = [TableSpec::new("a", 5, 4), TableSpec::new("b", 5, 4)];
        let layout = Layout::new(&specs, 10, &[10, 5000]);
        assert_eq!((layout.num_tiles, layout.tables[1].first_entry()), (3, TILE));
        assert!(
            layout.tables[0].offsets > layout.main_words
                && layout.tables[1].offsets < layout.main_words
        );
        assert_eq!(layout.tile_tables(), [0, 1, 1]);
    }
}
