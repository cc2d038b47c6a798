//! Tiles of unique rows, each of one table; gradients are summed in registers and go straight into
//! the optimiser.

use super::simd::{
    RowRounding, SampleParts, SegmentSum, TableMemory, UpdateTile, sum_rows, update_tile,
};
use super::{UpdateArgs, sum_block_len};
use crate::error::Result;
use crate::route::TableRoute;
use crate::rows::{OpenRowsMut, Rounding, RowMemory};
use crate::slot::TableSlot;
use crate::table::Rows;
use headlong_device::arena::Write;
use headlong_device::pool::SharedMut;
use headlong_device::{Mat, MatRef, Stream};
use std::ops::Range;

/// Tables whose memory is opened for writing together: their guards lie on the stack.
const TABLES_AT_ONCE: usize = 64;

/// Entries (ids) of one tile, up to the end of its last row's segment.
pub(crate) const TILE_ENTRIES: usize = 512;

/// Calls `body(table, tile, memory)` for every tile of every table with plain rows. The memory of
/// [`TABLES_AT_ONCE`] tables at a time is open for writing.
pub(crate) fn for_each_tile<'a>(
    stream: &Stream,
    num_tables: usize,
    slot_of: impl Fn(usize) -> Option<&'a TableSlot>,
    tiles_of: impl Fn(usize) -> usize,
    body: impl Fn(usize, usize, TableMemory) + Sync,
) {
    for first in (0..num_tables).step_by(TABLES_AT_ONCE) {
        let tables = first..num_tables.min(first + TABLES_AT_ONCE);
        let tiles = tables.clone().map(&tiles_of).max().unwrap_or(0);
        if tiles == 0 {
            continue;
        }
        let mut open: [Option<OpenTable>; TABLES_AT_ONCE] = std::array::from_fn(|i| {
            tables.clone().nth(i).and_then(&slot_of).and_then(OpenTable::new)
        });
        let memory: [Option<TableMemory>; TABLES_AT_ONCE] =
            std::array::from_fn(|i| open[i].as_mut().map(OpenTable::share));
        stream.pool().run(tables.len() * tiles, &|task| {
            let (table, tile) = (task / tiles, task % tiles);
            if let Some(memory) = memory[table] {
                body(first + table, tile, memory);
            }
        });
    }
}

/// Reduces and updates the plain tables.
pub(super) fn update_plain(stream: &Stream, args: &UpdateArgs) {
    let d_vectors = args.d_vectors.read::<f32>();
    let routes = &args.route.tables;
    for_each_tile(
        stream,
        args.tables.len(),
        |table| Some(&args.tables[table]),
        |table| routes[table].num_ids.div_ceil(TILE_ENTRIES),
        |table, tile, memory| {
            let (slot, route) = (&args.tables[table], &routes[table]);
            let range = rows_of_tile(route.starts(), tile);
            if !range.is_empty() {
                let tile = UpdateTile {
                    sum: segment_sum(args, slot, route, d_vectors.view()),
                    rows: route.rows(),
                    range,
                    memory,
                    step: args.step,
                    rounding: RowRounding {
                        rounding: Rounding::new(args.seed, args.step.step, table),
                        row_of_local: &|row| row,
                    },
                };
                update_tile(&tile);
            }
        },
    );
}

fn segment_sum<'a>(
    args: &UpdateArgs<'a>,
    slot: &TableSlot,
    route: &'a TableRoute,
    d_vectors: MatRef<'a>,
) -> SegmentSum<'a, SampleParts<'a>> {
    let block_len = sum_block_len(args.route.num_samples, args.sum_blocks);
    let gradients = d_vectors.columns(slot.first_column, slot.dim);
    SegmentSum {
        parts: SampleParts { route, stride: gradients.stride(), block_len: block_len as u32 },
        data: gradients.data(),
        one_block: block_len >= args.route.num_samples,
        narrow: args.narrow,
    }
}

/// The unique rows whose segments start inside tile `tile`: every row belongs to one tile.
pub(crate) fn rows_of_tile(starts: &[u32], tile: usize) -> Range<usize> {
    let starts = &starts[..starts.len() - 1];
    let from = starts.partition_point(|&start| (start as usize) < tile * TILE_ENTRIES);
    let until = starts.partition_point(|&start| (start as usize) < (tile + 1) * TILE_ENTRIES);
    from..until
}

/// A table's memory, opened for writing for as long as the update runs.
struct OpenTable<'a> {
    dim: usize,
    weights: OpenRowsMut<'a>,
    states: [Option<(Write<'a, f32>, usize)>; 2],
}

impl<'a> OpenTable<'a> {
    fn new(slot: &'a TableSlot) -> Option<Self> {
        let plain = slot.plain.as_ref()?;
        let open = |mat: &'a Mat| (mat.write::<f32>(), mat.cols());
        Some(Self {
            dim: plain.weights.cols(),
            weights: OpenRowsMut::new(&plain.weights),
            states: [plain.states.first().map(open), plain.states.get(1).map(open)],
        })
    }

    fn share(&mut self) -> TableMemory {
        let [first, second] = &mut self.states;
        let state = |state: &mut Option<(Write<'a, f32>, usize)>| match state {
            Some((guard, cols)) => {
                RowMemory { data: SharedMut::new(guard.data_mut()), cols: *cols }
            }
            None => RowMemory { data: SharedMut::new(&mut []), cols: 0 },
        };
        TableMemory {
            weights: self.weights.share(self.dim),
            first: state(first),
            second: state(second),
        }
    }
}

/// Tables without plain rows: summed gradients into the staging matrix, then the table's own
/// `apply`.
pub(super) fn update_staged(stream: &Stream, args: &UpdateArgs) -> Result<()> {
    for (slot, route) in args.tables.iter().zip(&args.route.tables) {
        let Some(staging) = &slot.staging else { continue };
        let staging = staging.first_rows(route.num_rows);
        {
            let d_vectors = args.d_vectors.read::<f32>();
            let sum = segment_sum(args, slot, route, d_vectors.view());
            let mut gradients = staging.write::<f32>();
            let out = SharedMut::new(gradients.data_mut());
            stream.pool().run(route.num_ids.div_ceil(TILE_ENTRIES), &|tile| {
                let rows = rows_of_tile(route.starts(), tile);
                sum_rows(&sum, out, slot.dim, rows);
            });
        }
        let gradients = staging.read::<f32>();
        slot.lock().apply(stream, Rows::new(route.rows()), gradients.view(), &args.step)?;
    }
    Ok(())
}
