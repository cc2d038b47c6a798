//! Which rows are frequent, and who owns the others.

mod rows;

use crate::error::{EmbeddingError, Result};
use crate::table::{Grain, Keys, TableSpec};
use crate::update::MAX_SUM_BLOCKS;
use rows::HotRows;
use serde::{Deserialize, Serialize};

/// One of the ranks that rows are divided among, as this crate counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner(pub usize);

/// Where the rows of one table lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TablePlacement {
    /// Every rank holds a replica of the whole table: all its rows are frequent.
    DataParallel,
    /// One rank owns the whole table.
    TableWise(Owner),
    /// Rows are divided among all ranks: those named here as they say, all others by formula. With
    /// both lists empty this is pure model parallelism.
    RowWise {
        /// Rows that every rank holds a replica of.
        frequent: Vec<u64>,
        /// Rows whose owner was chosen, say to balance traffic.
        placed: Vec<(u64, Owner)>,
    },
}

impl TablePlacement {
    /// Rows divided among all ranks only by formula.
    pub const fn by_formula() -> Self {
        TablePlacement::RowWise { frequent: Vec::new(), placed: Vec::new() }
    }
}

/// Where one row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// On every rank, at this row of the table's replica.
    Frequent(u64),
    /// On one rank.
    Infrequent {
        /// Who holds it.
        owner: Owner,
        /// Where it lies there. For tables keyed by raw ids: the raw id itself.
        local_row: u64,
    },
}

/// Most owners that a partition divides rows among: each has a sum block of its own at least.
pub const MAX_OWNERS: usize = MAX_SUM_BLOCKS;

/// Rows looked at together: their codes lie on the stack.
const ROWS_AT_ONCE: usize = 256;

/// Most rows of a table keyed by row indices: so many a partition can number.
pub const MAX_TABLE_ROWS: u64 = 1 << 44;

/// The place of every row of every table: a pure function that all ranks share.
///
/// * [`TablePlacement::RowWise`]: frequent rows lie in the replica in rising order of rows. Row `r`
///   of table `t` that is in neither list belongs to owner `(r + t) mod n` and lies at `p + r / n`
///   there, where `p` rows were placed with this owner; those come first, in rising order. The
///   local rows of hot rows stay empty: a little memory for an answer without a search.
/// * Tables keyed by raw ids: the owner is a hash of the raw id, `mod n`; nothing is frequent.
/// * Tables whose rows share storage ([`Grain::Whole`]) are table-wise or data-parallel.
///
/// Hot rows stand in a hash table, or in an array where the table is small: one access for each row
/// looked up.
#[derive(Debug, Clone, PartialEq)]
pub struct Partition {
    num_owners: usize,
    tables: Vec<TablePartition>,
}

#[derive(Debug, Clone, PartialEq)]
struct TablePartition {
    name: String,
    rows: u64,
    grain: Grain,
    keys: Keys,
    /// Added to a row before its owner is taken: spreads the first rows of tables.
    shift: u64,
    placement: TablePlacement,
    hot: HotRows,
    /// For each owner, the rows placed with it, rising.
    placed: Vec<Vec<u64>>,
    /// For each owner, how many they are.
    num_placed: Vec<u64>,
}

impl Partition {
    /// The places that `placements`, one per table, give the rows of `specs` among `num_owners`
    /// owners.
    ///
    /// # Errors
    /// [`EmbeddingError::Placement`]: lists of another length, rows that the table does not have or
    /// that are named twice, owners that there are not, and placements that the table's grain or
    /// keys do not allow.
    pub fn new(
        specs: &[TableSpec],
        num_owners: usize,
        placements: Vec<TablePlacement>,
    ) -> Result<Self> {
        if num_owners == 0 || num_owners > MAX_OWNERS || placements.len() != specs.len() {
            return Err(EmbeddingError::Placement {
                table: specs.first().map_or_else(String::new, |spec| spec.name.clone()),
                reason: format!(
                    "{} placements for {} tables, {num_owners} owners; there is one placement per \
                     table, and 1 to {MAX_OWNERS} owners",
                    placements.len(),
                    specs.len()
                ),
            });
        }
        let tables = specs.iter().zip(placements).enumerate();
        let tables = tables.map(|(index, (spec, placement))| {
            TablePartition::new(spec, index, num_owners, placement)
                .map_err(|reason| EmbeddingError::Placement { table: spec.name.clone(), reason })
        });
        Ok(Self { num_owners, tables: tables.collect::<Result<_>>()? })
    }

    /// Pure model parallelism: every table row-wise by formula, whole tables one after the other on
    /// the owners.
    ///
    /// # Panics
    /// When there is no owner, or more than [`MAX_OWNERS`].
    pub fn row_wise(specs: &[TableSpec], num_owners: usize) -> Self {
        let placement = |(index, spec): (usize, &TableSpec)| match spec.grain {
            Grain::Rows => TablePlacement::by_formula(),
            Grain::Whole => TablePlacement::TableWise(Owner(index % num_owners.max(1))),
        };
        let placements = specs.iter().enumerate().map(placement).collect();
        Self::new(specs, num_owners, placements).expect("placements by formula fit every table")
    }

    /// Pure data parallelism: every row is frequent. Tables keyed by raw ids cannot be, and stay
    /// row-wise.
    pub fn all_frequent(specs: &[TableSpec], num_owners: usize) -> Self {
        let placement = |(index, spec): (usize, &TableSpec)| match (spec.keys, spec.grain) {
            (Keys::RowIndices, _) => TablePlacement::DataParallel,
            (Keys::RawIds, Grain::Rows) => TablePlacement::by_formula(),
            (Keys::RawIds, Grain::Whole) => {
                TablePlacement::TableWise(Owner(index % num_owners.max(1)))
            }
        };
        let placements = specs.iter().enumerate().map(placement).collect();
        Self::new(specs, num_owners, placements)
            .expect("replicas fit every table keyed by row indices")
    }

    /// Number of owners that rows are divided among.
    pub fn num_owners(&self) -> usize {
        self.num_owners
    }

    /// The placements, each list in rising order of rows: what [`Self::new`] takes, and a
    /// checkpoint holds.
    pub fn placements(&self) -> impl ExactSizeIterator<Item = &TablePlacement> {
        self.tables.iter().map(|table| &table.placement)
    }

    /// The place of row `row` of table `table`, or of raw id `row`.
    ///
    /// # Panics
    /// When the table does not have that row.
    pub fn classify(&self, table: usize, row: u64) -> Place {
        let part = &self.tables[table];
        assert!(
            part.keys == Keys::RawIds || row < part.rows,
            "table `{}` has row {row}",
            part.name
        );
        let mut code = [Code::default()];
        self.classify_rows(table, &[row], &mut code);
        let [code] = code;
        if code.is_frequent() {
            return Place::Frequent(code.slot());
        }
        let local_row = if part.keys == Keys::RawIds { row } else { code.local_row() };
        Place::Infrequent { owner: Owner(code.owner()), local_row }
    }

    /// The places of many rows, each of which the table has; `codes` is as long as `rows`.
    pub(crate) fn classify_rows(&self, table: usize, rows: &[u64], codes: &mut [Code]) {
        let part = &self.tables[table];
        let owners = self.num_owners as u64;
        let formula = Formula { shift: part.shift, owners, placed: &part.num_placed };
        match (&part.placement, part.keys) {
            (TablePlacement::DataParallel, _) => {
                codes.iter_mut().zip(rows).for_each(|(code, &row)| *code = Code::frequent(row));
            }
            (TablePlacement::TableWise(owner), keys) => {
                let local = |row| if keys == Keys::RawIds { 0 } else { row };
                codes
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(code, &row)| *code = Code::placed(owner.0, local(row)));
            }
            (TablePlacement::RowWise { .. }, Keys::RawIds) => {
                let owner = |row| (mix(row) % formula.owners) as usize;
                codes
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(code, &row)| *code = Code::by_formula(owner(row), 0));
            }
            (TablePlacement::RowWise { .. }, Keys::RowIndices) => {
                if formula.owners.is_power_of_two() {
                    let log2 = formula.owners.ilog2();
                    part.hot.classify(rows, codes, |row| formula.code_by_bits(row, log2));
                } else {
                    part.hot.classify(rows, codes, |row| formula.code(row));
                }
            }
        }
    }

    /// Calls `body` with the number of each of `rows`, or raw ids, and its code.
    pub(crate) fn each_code(
        &self,
        table: usize,
        mut rows: impl Iterator<Item = u64>,
        mut body: impl FnMut(usize, Code),
    ) {
        let mut places = [0; ROWS_AT_ONCE];
        let mut codes = [Code::default(); ROWS_AT_ONCE];
        let mut done = 0;
        loop {
            let mut filled = 0;
            for (place, row) in places.iter_mut().zip(&mut rows) {
                *place = row;
                filled += 1;
            }
            self.classify_rows(table, &places[..filled], &mut codes[..filled]);
            codes[..filled].iter().enumerate().for_each(|(index, &code)| body(done + index, code));
            done += filled;
            if filled < ROWS_AT_ONCE {
                break;
            }
        }
    }

    /// Calls `body` with the number of each of `rows` of table `table`, or raw ids, and its owner;
    /// none of a frequent row, which every rank holds.
    pub fn each_owner(
        &self,
        table: usize,
        rows: impl Iterator<Item = u64>,
        mut body: impl FnMut(usize, Option<Owner>),
    ) {
        self.each_code(table, rows, |index, code| {
            body(index, (!code.is_frequent()).then(|| Owner(code.owner())));
        });
    }

    /// Frequent rows of table `table`: rows of the replica that every rank holds.
    pub fn num_frequent(&self, table: usize) -> u64 {
        match &self.tables[table].placement {
            TablePlacement::DataParallel => self.tables[table].rows,
            TablePlacement::TableWise(_) => 0,
            TablePlacement::RowWise { frequent, .. } => frequent.len() as u64,
        }
    }

    /// Whether the table moves as one piece: then a row's place is its row index, on all ranks or
    /// on one.
    pub(crate) fn is_whole(&self, table: usize) -> bool {
        !matches!(self.tables[table].placement, TablePlacement::RowWise { .. })
    }

    /// The rows `first ..` as places in the order of owners: frequent rows first, then each owner's
    /// from its base on.
    pub(crate) fn keys(&self, table: usize, first: u64, count: usize, bases: &[u32]) -> Vec<u32> {
        let rows: Vec<u64> = (first..).take(count).collect();
        let mut codes = vec![Code::default(); count];
        self.classify_rows(table, &rows, &mut codes);
        let key = |code: &Code| {
            if code.is_frequent() {
                code.slot() as u32
            } else {
                bases[code.owner()] + code.local_row() as u32
            }
        };
        codes.iter().map(key).collect()
    }

    /// Whether every row of the table has one owner: the one that the formula gives it, or that of
    /// the whole table.
    pub(crate) fn is_by_formula(&self, table: usize) -> bool {
        match &self.tables[table].placement {
            TablePlacement::DataParallel => false,
            TablePlacement::TableWise(_) => true,
            TablePlacement::RowWise { frequent, placed } => {
                frequent.is_empty() && placed.is_empty()
            }
        }
    }

    /// Whether every rank holds the whole table, each row at its row index.
    pub(crate) fn is_data_parallel(&self, table: usize) -> bool {
        self.tables[table].placement == TablePlacement::DataParallel
    }

    /// Rows that `owner` keeps of table `table`, those left empty by hot rows included. For a
    /// row-wise table keyed by raw ids: its share of the capacity.
    pub fn local_rows(&self, table: usize, owner: Owner) -> u64 {
        let part = &self.tables[table];
        match (&part.placement, part.keys) {
            (TablePlacement::DataParallel, _) => 0,
            (TablePlacement::TableWise(place), _) => {
                if *place == owner {
                    part.rows
                } else {
                    0
                }
            }
            (TablePlacement::RowWise { .. }, Keys::RawIds) => {
                part.rows.div_ceil(self.num_owners as u64)
            }
            (TablePlacement::RowWise { .. }, Keys::RowIndices) => {
                let owners = self.num_owners as u64;
                let first = self.first_by_formula(table, owner);
                let by_formula = part.rows.saturating_sub(first).div_ceil(owners);
                part.placed[owner.0].len() as u64 + by_formula
            }
        }
    }

    /// Rows of table `table` that were placed with `owner`: its first local rows.
    pub(crate) fn num_placed(&self, table: usize, owner: Owner) -> u64 {
        self.tables[table].num_placed[owner.0]
    }

    /// Row index of replica row `slot` of table `table`.
    ///
    /// # Panics
    /// When the replica does not have that row.
    pub fn row_of_frequent(&self, table: usize, slot: u64) -> u64 {
        match &self.tables[table].placement {
            TablePlacement::RowWise { frequent, .. } => frequent[slot as usize],
            _ => slot,
        }
    }

    /// Row index of local row `local_row` of `owner`; of the row that would lie there by formula,
    /// if that one is hot.
    pub fn row_of_local(&self, table: usize, owner: Owner, local_row: u64) -> u64 {
        let part = &self.tables[table];
        if !matches!(part.placement, TablePlacement::RowWise { .. }) || part.keys == Keys::RawIds {
            return local_row;
        }
        let placed = &part.placed[owner.0];
        match placed.get(local_row as usize) {
            Some(&row) => row,
            None => {
                let quotient = local_row - placed.len() as u64;
                quotient * self.num_owners as u64 + self.first_by_formula(table, owner)
            }
        }
    }

    /// The first row that the formula gives to `owner`.
    fn first_by_formula(&self, table: usize, owner: Owner) -> u64 {
        let owners = self.num_owners as u64;
        (owner.0 as u64 + owners - self.tables[table].shift) % owners
    }

    /// Whether the partition was made for tables of these shapes.
    pub(crate) fn is_for(&self, specs: &[TableSpec]) -> bool {
        let fits = |(part, spec): (&TablePartition, &TableSpec)| {
            part.rows == spec.rows && part.keys == spec.keys && part.grain == spec.grain
        };
        self.tables.len() == specs.len() && self.tables.iter().zip(specs).all(fits)
    }
}

impl TablePartition {
    /// The error is only the reason.
    fn new(
        spec: &TableSpec,
        index: usize,
        num_owners: usize,
        mut placement: TablePlacement,
    ) -> std::result::Result<Self, String> {
        check_kind(spec, num_owners, &placement)?;
        let mut owned = vec![Vec::new(); num_owners];
        let mut codes = Vec::new();
        if let TablePlacement::RowWise { frequent, placed } = &mut placement {
            frequent.sort_unstable();
            placed.sort_unstable();
            codes.extend((0..).zip(&*frequent).map(|(slot, &row)| (row, Code::frequent(slot))));
            for &(row, owner) in &*placed {
                let rows: &mut Vec<u64> = owned.get_mut(owner.0).ok_or_else(|| {
                    format!("row {row} is placed with {owner:?}, there are {num_owners} owners")
                })?;
                codes.push((row, Code::placed(owner.0, rows.len() as u64)));
                rows.push(row);
            }
            codes.sort_unstable_by_key(|&(row, _)| row);
        }
        if let Some(&(row, _)) = codes.last().filter(|(row, _)| *row >= spec.rows) {
            return Err(format!("row {row} is named, the table has {} rows", spec.rows));
        }
        if let Some(pair) = codes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("row {} is named twice", pair[0].0));
        }
        let shift = index as u64 % num_owners as u64;
        let num_placed: Vec<_> = owned.iter().map(|rows| rows.len() as u64).collect();
        let formula = Formula { shift, owners: num_owners as u64, placed: &num_placed };
        let hot = HotRows::new(spec.rows, &codes, |row| formula.code(row));
        let TableSpec { name, rows, grain, keys, .. } = spec.clone();
        Ok(Self { name, rows, grain, keys, shift, placement, hot, placed: owned, num_placed })
    }
}

/// Whether the table may be placed like this at all.
fn check_kind(
    spec: &TableSpec,
    num_owners: usize,
    placement: &TablePlacement,
) -> std::result::Result<(), String> {
    if spec.keys == Keys::RowIndices && spec.rows > MAX_TABLE_ROWS {
        return Err(format!("{} rows, a partition numbers at most {MAX_TABLE_ROWS}", spec.rows));
    }
    match placement {
        TablePlacement::DataParallel if spec.keys == Keys::RawIds => {
            Err("a table keyed by raw ids has no replica: which ids it holds, its owners \
                 decide"
                .to_owned())
        }
        TablePlacement::TableWise(owner) if owner.0 >= num_owners => {
            Err(format!("the table is placed with {owner:?}, there are {num_owners} owners"))
        }
        TablePlacement::RowWise { .. } if spec.grain == Grain::Whole => {
            Err("its rows share storage (grain = whole): the table is placed table-wise or \
                 data-parallel, never by row"
                .to_owned())
        }
        TablePlacement::RowWise { frequent, placed }
            if spec.keys == Keys::RawIds && !(frequent.is_empty() && placed.is_empty()) =>
        {
            Err("a table keyed by raw ids is divided by a hash of the id: no row of it can be \
                 named"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// The rule for rows that no list names.
#[derive(Debug, Clone, Copy)]
struct Formula<'a> {
    shift: u64,
    owners: u64,
    /// For each owner, how many rows were placed with it and lie before those by formula.
    placed: &'a [u64],
}

impl Formula<'_> {
    /// Where row `row` lies.
    #[inline(always)]
    fn code(&self, row: u64) -> Code {
        // Division of 32-bit numbers is several times faster on many processors.
        let (quotient, rest) = match u32::try_from(row) {
            Ok(row) => (u64::from(row / self.owners as u32), u64::from(row % self.owners as u32)),
            Err(_) => (row / self.owners, row % self.owners),
        };
        let owner = rest + self.shift;
        let owner = if owner >= self.owners { owner - self.owners } else { owner } as usize;
        Code::by_formula(owner, self.placed[owner] + quotient)
    }

    /// The same where the number of owners is a power of two, `1 << log2`.
    #[inline(always)]
    fn code_by_bits(&self, row: u64, log2: u32) -> Code {
        let owner = ((row + self.shift) & (self.owners - 1)) as usize;
        Code::by_formula(owner, self.placed[owner] + (row >> log2))
    }
}

/// Spreads any raw ids evenly: the finaliser of MurmurHash3 (Appleby).
#[inline(always)]
pub(crate) fn mix(id: u64) -> u64 {
    let id = (id ^ (id >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let id = (id ^ (id >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    id ^ (id >> 33)
}

/// A [`Place`] in one word. Order: by kind, owner, local row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Code(u64);

impl Code {
    const LOCAL_BITS: u32 = MAX_TABLE_ROWS.ilog2();
    const FREQUENT: u64 = 1 << 63;
    const BY_FORMULA: u64 = 1 << 62;
    const MAX_LOCAL_ROW: u64 = MAX_TABLE_ROWS;

    #[inline(always)]
    pub(crate) const fn frequent(slot: u64) -> Self {
        Self(Self::FREQUENT | slot)
    }

    #[inline(always)]
    pub(crate) const fn placed(owner: usize, local_row: u64) -> Self {
        Self((owner as u64) << Self::LOCAL_BITS | local_row)
    }

    #[inline(always)]
    pub(crate) const fn by_formula(owner: usize, local_row: u64) -> Self {
        Self(Self::BY_FORMULA | (owner as u64) << Self::LOCAL_BITS | local_row)
    }

    #[inline(always)]
    pub(crate) const fn is_frequent(self) -> bool {
        self.0 & Self::FREQUENT != 0
    }

    /// Row of the replica, of a frequent row.
    #[inline(always)]
    pub(crate) const fn slot(self) -> u64 {
        self.0 & !Self::FREQUENT
    }

    #[inline(always)]
    pub(crate) const fn owner(self) -> usize {
        ((self.0 & !Self::BY_FORMULA) >> Self::LOCAL_BITS) as usize
    }

    #[inline(always)]
    pub(crate) const fn local_row(self) -> u64 {
        self.0 & (Self::MAX_LOCAL_ROW - 1)
    }

    /// One bucket per owner for placed rows and one for those by formula: rows that come rising
    /// fill each in rising order of local rows, and placed rows come first.
    #[inline(always)]
    pub(crate) const fn bucket(self) -> usize {
        self.owner() * 2 + (self.0 & Self::BY_FORMULA != 0) as usize
    }
}

#[cfg(test)]
mod tests;
