//! Weights from the ranks that train to ranks that hold the same tables otherwise, all of them in
//! one process: memory to memory, on every thread that is there, without a buffer between.

use super::partition::{Code, Owner};
use super::set::HybridSet;
use crate::rows::{OpenRows, OpenRowsMut, RowElement, RowsRef};
use crate::slot::TableSlot;
use crate::table::{Keys, PlainRows};
use headlong_device::pool::Pool;

/// Elements of a tile: half of the second-level cache of a core, so that a thread that comes late
/// finds some left.
const TILE_ELEMENTS: usize = 64 << 10;

/// Rows whose places are looked up together: their codes lie on the stack.
const ROWS_AT_ONCE: usize = 256;

/// Copies the weights of each table whose rows lie in plain matrices in all of `from` and all of
/// `to`: sets of the same tables, those of all ranks that hold rows. Says of each table whether
/// that was done; the others, and all states, are left as they were.
///
/// Tables take their turn, and each is copied in tiles by the threads of `pool`; returns when the
/// last is there. Rows that a rank holds as a replica are taken from the first rank that has them:
/// they are the same on all. Waits for nothing that streams were given.
///
/// # Panics
/// When the sets have other tables, or the schedule still writes what is read here.
pub fn copy_weights(pool: &Pool, from: &[&HybridSet], to: &[&HybridSet]) -> Vec<bool> {
    assert_eq!(from[0].specs().len(), to[0].specs().len(), "sets of the same tables");
    (0..from[0].specs().len()).map(|table| copy_table(pool, table, from, to)).collect()
}

fn copy_table(pool: &Pool, table: usize, from: &[&HybridSet], to: &[&HybridSet]) -> bool {
    let (dtype, keys) = (from[0].specs()[table].dtype, from[0].specs()[table].keys);
    let is_plain =
        |set: &&HybridSet| set.parts(table).iter().flatten().all(|slot| plain(slot).is_some());
    let is_alike = to.iter().all(|set| set.specs()[table].dtype == dtype);
    if keys == Keys::RawIds || !is_alike || !from.iter().chain(to).all(is_plain) {
        return false;
    }
    let open: Vec<_> = from.iter().map(|set| set.parts(table).map(|slot| slot.map(open))).collect();
    let sources = Sources {
        table,
        from,
        parts: open.iter().map(|parts| parts.each_ref().map(view)).collect(),
    };
    for set in to {
        for (part, slot) in Part::BOTH.into_iter().zip(set.parts(table)) {
            if let Some(slot) = slot {
                sources.copy_to(pool, set, part, slot);
            }
        }
    }
    true
}

fn plain(slot: &TableSlot) -> Option<&PlainRows> {
    slot.plain.as_ref().filter(|rows| !rows.weights.is_on_device())
}

fn open(slot: &TableSlot) -> OpenRows<'_> {
    OpenRows::new(&slot.plain.as_ref().expect("looked at before").weights)
}

fn view<'a>(rows: &'a Option<OpenRows<'_>>) -> Option<RowsRef<'a>> {
    rows.as_ref().map(OpenRows::view)
}

/// What a rank may hold of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Local,
    Frequent,
}

impl Part {
    const BOTH: [Self; 2] = [Self::Local, Self::Frequent];
}

/// One table of the ranks that give.
struct Sources<'a> {
    table: usize,
    from: &'a [&'a HybridSet],
    /// Of each rank, its local rows and its replica.
    parts: Vec<[Option<RowsRef<'a>>; 2]>,
}

impl Sources<'_> {
    fn copy_to(&self, pool: &Pool, set: &HybridSet, part: Part, slot: &TableSlot) {
        let weights = &slot.plain.as_ref().expect("looked at before").weights;
        let (cols, mut rows) = (weights.cols(), OpenRowsMut::new(weights));
        match &mut rows {
            OpenRowsMut::F32(rows) => self.fill(pool, set, part, (rows.data_mut(), cols)),
            OpenRowsMut::Bf16(rows) => self.fill(pool, set, part, (rows.data_mut(), cols)),
        }
    }

    /// Fills a part of `set`, tile by tile.
    fn fill<T: RowElement>(
        &self,
        pool: &Pool,
        set: &HybridSet,
        part: Part,
        (out, cols): (&mut [T], usize),
    ) {
        let tile_rows = (TILE_ELEMENTS / cols).max(1);
        let all_rows = self.from[0]
            .is_single_rank()
            .then(|| T::rows_of(self.parts[0][0].expect("a single rank has all rows")));
        pool.chunks_mut(out, tile_rows * cols, |tile, out| {
            let first = tile * tile_rows;
            match all_rows {
                Some(all) if set.is_single_rank() => {
                    out.copy_from_slice(&all.data()[first * cols..][..out.len()]);
                }
                _ => self.fill_tile(set, (part, first), (out, cols)),
            }
        });
    }

    /// Fills the rows of a part of `set` from local row `first` on, one by one.
    fn fill_tile<T: RowElement>(
        &self,
        set: &HybridSet,
        (part, first): (Part, usize),
        (out, cols): (&mut [T], usize),
    ) {
        let (mut rows, mut codes) = ([0; ROWS_AT_ONCE], [Code::default(); ROWS_AT_ONCE]);
        for (run, out) in out.chunks_mut(ROWS_AT_ONCE * cols).enumerate() {
            let count = out.len() / cols;
            let first = (first + run * ROWS_AT_ONCE) as u64;
            rows[..count]
                .iter_mut()
                .zip(first..)
                .for_each(|(row, local)| *row = set.row_of(self.table, part, local));
            self.from[0].partition.classify_rows(self.table, &rows[..count], &mut codes[..count]);
            for ((out, code), &row) in out.chunks_exact_mut(cols).zip(&codes).zip(&rows) {
                let (source, row) = if self.from[0].is_single_rank() {
                    (self.parts[0][0], row as usize)
                } else if code.is_frequent() {
                    (self.parts[0][1], code.slot() as usize)
                } else {
                    (self.parts[self.index_of(code.owner())][0], code.local_row() as usize)
                };
                let source = source.expect("the partition knows who holds a row");
                out.copy_from_slice(T::rows_of(source).row(row));
            }
        }
    }

    /// Where `owner` stands among the ranks that give.
    fn index_of(&self, owner: usize) -> usize {
        let found = self.from.iter().position(|set| set.owner() == Owner(owner));
        found.expect("all ranks that hold rows are here")
    }
}

impl HybridSet {
    /// What lies here of a table: local rows, and a replica.
    fn parts(&self, table: usize) -> [Option<&TableSlot>; 2] {
        match self.local() {
            Some(set) => [Some(set.table_slot(table)), None],
            None => [self.tables[table].local.as_ref(), self.tables[table].frequent.as_ref()],
        }
    }

    /// The row of the whole table that lies at row `local` of a part. Of places that hot rows leave
    /// empty: the row that would lie there.
    fn row_of(&self, table: usize, part: Part, local: u64) -> u64 {
        match part {
            _ if self.is_single_rank() => local,
            Part::Local => self.partition.row_of_local(table, self.owner, local),
            Part::Frequent => self.partition.row_of_frequent(table, local),
        }
    }
}
