//! Id policies: which row of its column's table a raw id stands for.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::admission::{Admission, ColumnIds, MAX_ADMITTED_ROWS, Undo};
use crate::batch::Jagged;
use crate::criteo::parse::RawBlock;
use crate::error::{ReaderError, Result, invalid, refuse};
use crate::hashing::{HashFunction, MAX_HASHED_ROWS, MISSING_ID, hash_column, hashed_row};
use crate::multi_hot::MultiHot;
use crate::samples::present_id;

/// How raw ids become row indices; recorded with everything trained on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum IdPolicy {
    /// Hashed into the table's rows; a missing value is an id of its own.
    Hash {
        #[serde(default)]
        function: HashFunction,
    },
    /// `id mod rows`, as the original DLRM does; a missing value is the id 0.
    Modulo,
    /// One pass: an id gets its own row at its `min_count`-th sight, before that its column's
    /// shared row 0.
    Admitted { min_count: u32 },
    /// Rows looked up in a dictionary made beforehand; unknown and infrequent ids share row 0.
    Dictionary,
    /// They are rows already; one beyond the table is an error.
    Rows,
}

impl IdPolicy {
    /// Most rows of a table that ids are mapped to.
    pub fn most_rows(self) -> u64 {
        match self {
            IdPolicy::Hash { .. } => MAX_HASHED_ROWS,
            IdPolicy::Admitted { .. } => MAX_ADMITTED_ROWS,
            IdPolicy::Dictionary | IdPolicy::Modulo | IdPolicy::Rows => u64::MAX,
        }
    }
}

impl fmt::Display for IdPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdPolicy::Hash { function } => write!(formatter, "hash ({})", function.name()),
            IdPolicy::Modulo => write!(formatter, "modulo"),
            IdPolicy::Admitted { min_count } => {
                write!(formatter, "admitted (min_count {min_count})")
            }
            IdPolicy::Dictionary => write!(formatter, "dictionary"),
            IdPolicy::Rows => write!(formatter, "rows"),
        }
    }
}

/// A fixed mapping of ids to rows, such as a dictionary.
pub trait RowLookup: Send + Sync + fmt::Debug {
    /// The number of columns it knows.
    fn num_columns(&self) -> usize;

    /// The row of `id` (`None` is a missing value) in the table of `column`.
    fn row(&self, column: usize, id: Option<u32>) -> u64;

    /// The row of an id of up to 64 bits, of which [`MISSING_ID`] is a missing value.
    fn wide_row(&self, column: usize, id: u64) -> u64 {
        match u32::try_from(id) {
            Ok(id) => self.row(column, Some(id)),
            Err(_) if id == MISSING_ID => self.row(column, None),
            // Dictionaries hold ids of 32 bits: this one has never been seen.
            Err(_) => 0,
        }
    }

    /// The rows of a column's ids, in order; `rows` is as long as `ids`.
    fn look_up_column(&self, ids: ColumnIds<'_>, rows: &mut [u64]) {
        for (index, row) in rows.iter_mut().enumerate() {
            *row = self.row(ids.column, ids.get(index));
        }
    }
}

/// Maps the ids of all columns. Cloning gives an independent copy; see [`IdMapper::frozen`].
#[derive(Clone, Debug)]
pub struct IdMapper {
    policy: IdPolicy,
    rows: Vec<u64>,
    state: State,
    frozen: bool,
    raw: Vec<bool>,
    multi_hot: Option<Arc<MultiHot>>,
}

#[derive(Clone, Debug)]
enum State {
    Stateless,
    Admitted(Admission),
    Lookup(Arc<dyn RowLookup>),
}

impl IdMapper {
    /// A mapper of `policy` for tables of `rows[t]` rows, knowing nothing yet.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] naming the table whose rows the policy cannot fill, or for
    /// [`IdPolicy::Dictionary`], which needs [`IdMapper::with_lookup`].
    pub fn new(policy: IdPolicy, rows: &[u64]) -> Result<Self> {
        let most = policy.most_rows();
        if let Some(table) = rows.iter().position(|rows| !(1..=most).contains(rows)) {
            let found = rows[table];
            refuse!("rows of table {table}: expected 1 to {most} for {policy}, found {found}");
        }
        let state = match policy {
            IdPolicy::Hash { .. } | IdPolicy::Modulo | IdPolicy::Rows => State::Stateless,
            IdPolicy::Admitted { min_count } => State::Admitted(Admission::new(min_count, rows)?),
            IdPolicy::Dictionary => {
                refuse!("the dictionary policy needs a dictionary");
            }
        };
        Ok(Self::of(policy, rows, state))
    }

    /// A mapper of policy [`IdPolicy::Dictionary`] that looks rows up in `lookup`.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] if it has another number of columns than `rows`.
    pub fn with_lookup(lookup: Arc<dyn RowLookup>, rows: &[u64]) -> Result<Self> {
        if lookup.num_columns() != rows.len() {
            let (expected, found) = (rows.len(), lookup.num_columns());
            refuse!("dictionary: expected {expected} columns, found {found}");
        }
        let (policy, state) = (IdPolicy::Dictionary, State::Lookup(lookup));
        Ok(Self::of(policy, rows, state))
    }

    fn of(policy: IdPolicy, rows: &[u64], state: State) -> Self {
        let raw = vec![false; rows.len()];
        Self { policy, rows: rows.to_vec(), state, frozen: false, raw, multi_hot: None }
    }

    /// The same mapping, but the ids of `columns` are passed on as they are, for tables that find
    /// rows themselves: the 32 bits of the file as a number, [`MISSING_ID`] where there is no
    /// value.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn with_raw_columns(mut self, columns: &[usize]) -> Self {
        columns.iter().for_each(|&column| self.raw[column] = true);
        self
    }

    /// The same mapping, behind which each row of one-hot data stands for a bag: readers that are
    /// [`crate::multi_hot::MultiHotReader`]s fill it in.
    pub fn with_multi_hot(self, multi_hot: Option<Arc<MultiHot>>) -> Self {
        Self { multi_hot, ..self }
    }

    /// The bags that rows of one-hot data stand for, where they do.
    pub fn multi_hot(&self) -> Option<&Arc<MultiHot>> {
        self.multi_hot.as_ref()
    }

    /// The same mapping, learning nothing any more: for evaluation and prediction.
    pub fn frozen(self) -> Self {
        Self { frozen: true, ..self }
    }

    /// Rows of each table.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// The admission state, under [`IdPolicy::Admitted`].
    pub fn admission(&self) -> Option<&Admission> {
        match &self.state {
            State::Admitted(admission) => Some(admission),
            _ => None,
        }
    }

    /// Refuses to map the ids of Criteo's text where that makes no sense.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] under [`IdPolicy::Rows`].
    pub fn check_text(&self) -> Result<()> {
        if self.policy != IdPolicy::Rows {
            return Ok(());
        }
        Err(invalid!(
            "ids = rows: the ids of Criteo's text are hashes of 32 bits, not rows of a \
             table: take hash, modulo, admitted or dictionary"
        ))
    }

    /// The state that has to be saved to continue exactly; empty for policies without one (a
    /// dictionary is a file of its own).
    pub fn state_bytes(&self) -> Vec<u8> {
        self.admission().map(Admission::to_bytes).unwrap_or_default()
    }

    /// Restores what [`IdMapper::state_bytes`] gave; the mapper must have the same policy and rows.
    ///
    /// # Errors
    /// [`ReaderError::BadState`] for damaged bytes or another shape.
    pub fn restore_state(&mut self, bytes: &[u8]) -> Result<()> {
        match (&mut self.state, self.policy) {
            (State::Admitted(admission), IdPolicy::Admitted { min_count }) => {
                *admission = Admission::from_bytes(bytes, min_count, &self.rows)?;
                Ok(())
            }
            _ if bytes.is_empty() => Ok(()),
            _ => Err(ReaderError::BadState {
                what: "the state of the id policy".to_owned(),
                reason: format!("{} has none, found {} bytes", self.policy, bytes.len()),
            }),
        }
    }

    /// Writes the rows of `samples` of `block` into `sparse[t].values[at..]`, learning nothing.
    ///
    /// # Panics
    /// If the block has other columns than the mapper has tables, or `sparse` is too small.
    pub fn map(&self, block: &RawBlock, samples: Range<usize>, sparse: &mut [Jagged], at: usize) {
        assert_eq!(sparse.len(), self.rows.len(), "one table for each category");
        for (column, bags) in sparse.iter_mut().enumerate() {
            let ids = self.column_ids(block, samples.clone(), column);
            self.map_column(ids, &mut bags.values[at..at + ids.len()]);
        }
    }

    /// As [`IdMapper::map`], but an admission policy that is not frozen sees the samples; what it
    /// changes is noted in `log`.
    ///
    /// # Panics
    /// As [`IdMapper::map`].
    pub fn map_and_learn(
        &mut self,
        block: &RawBlock,
        samples: Range<usize>,
        sparse: &mut [Jagged],
        at: usize,
        log: &mut Vec<Undo>,
    ) {
        assert_eq!(sparse.len(), self.rows.len(), "one table for each category");
        for (column, bags) in sparse.iter_mut().enumerate() {
            let ids = self.column_ids(block, samples.clone(), column);
            let rows = &mut bags.values[at..at + ids.len()];
            match &mut self.state {
                State::Admitted(admission) if !self.frozen && !self.raw[column] => {
                    admission.learn_column(ids, rows, log)
                }
                _ => self.map_column(ids, rows),
            }
        }
    }

    /// Takes back what was learned, see `Admission::undo`.
    pub fn undo(&mut self, log: &[Undo]) {
        if let State::Admitted(admission) = &mut self.state {
            admission.undo(log);
        }
    }

    /// Adds the rows of `ids` of any width to `to`, learning nothing.
    ///
    /// # Errors
    /// Under [`IdPolicy::Rows`], the first id that is no row of the table.
    ///
    /// # Panics
    /// Under [`IdPolicy::Admitted`], whose state knows ids of 32 bits alone.
    pub fn map_ids(
        &self,
        column: usize,
        ids: &[u64],
        to: &mut Vec<u64>,
    ) -> std::result::Result<(), u64> {
        let rows = self.rows[column];
        if self.raw[column] {
            to.extend_from_slice(ids);
            return Ok(());
        }
        match (&self.state, self.policy) {
            (State::Admitted(_), _) => {
                panic!("admitted ids should have been refused for this format")
            }
            (State::Lookup(lookup), _) => {
                to.extend(ids.iter().map(|&id| lookup.wide_row(column, id)))
            }
            (State::Stateless, IdPolicy::Rows) => match ids.iter().find(|&&id| id >= rows) {
                Some(&id) => return Err(id),
                None => to.extend_from_slice(ids),
            },
            (State::Stateless, IdPolicy::Modulo) => {
                to.extend(ids.iter().map(|&id| present_id(id) % rows))
            }
            (State::Stateless, _) => to.extend(ids.iter().map(|&id| hashed_row(id, column, rows))),
        }
        Ok(())
    }

    fn column_ids<'a>(
        &self,
        block: &'a RawBlock,
        samples: Range<usize>,
        column: usize,
    ) -> ColumnIds<'a> {
        let num_columns = self.rows.len();
        assert_eq!(
            block.sparse.len(),
            block.num_samples * num_columns,
            "one table for each category"
        );
        let sparse = &block.sparse[samples.start * num_columns..samples.end * num_columns];
        ColumnIds { sparse, missing: &block.sparse_missing[samples], num_columns, column }
    }

    fn map_column(&self, ids: ColumnIds<'_>, out: &mut [u64]) {
        let rows = self.rows[ids.column];
        if self.raw[ids.column] {
            for (index, out) in out.iter_mut().enumerate() {
                *out = ids.get(index).map_or(MISSING_ID, u64::from);
            }
            return;
        }
        match (&self.state, self.policy) {
            (State::Admitted(admission), _) => admission.look_up_column(ids, out),
            (State::Lookup(lookup), _) => lookup.look_up_column(ids, out),
            (State::Stateless, IdPolicy::Modulo) => {
                for (index, out) in out.iter_mut().enumerate() {
                    *out = ids.get(index).unwrap_or(0) as u64 % rows;
                }
            }
            (State::Stateless, IdPolicy::Rows) => panic!("ids of text are no rows"),
            (State::Stateless, _) => {
                hash_column(ids.sparse, ids.missing, ids.num_columns, ids.column, rows, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> RawBlock {
        RawBlock {
            num_samples: 3,
            sparse: vec![5, 0, 14, 0, 23, 9],
            sparse_missing: vec![0b10, 0, 0],
            ..RawBlock::default()
        }
    }

    fn mapped(mapper: &mut IdMapper) -> Vec<Vec<u64>> {
        let mut sparse = vec![Jagged::default(); 2];
        sparse.iter_mut().for_each(|bags| bags.values.resize(4, 0));
        mapper.map_and_learn(&block(), 0..2, &mut sparse, 1, &mut Vec::new());
        mapper.map_and_learn(&block(), 2..3, &mut sparse, 3, &mut Vec::new());
        sparse.into_iter().map(|bags| bags.values[1..].to_vec()).collect()
    }

    #[test]
    fn hashing_and_modulo_need_no_state() {
        let rows = [10, 4];
        let mut hashed =
            IdMapper::new(IdPolicy::Hash { function: HashFunction::default() }, &rows).unwrap();
        let row = |column: usize, id: u64| hashed_row(id, column, rows[column]);
        let expected =
            [[row(0, 5), row(0, 14), row(0, 23)], [row(1, MISSING_ID), row(1, 0), row(1, 9)]];
        assert_eq!(mapped(&mut hashed), expected);
        let mut modulo = IdMapper::new(IdPolicy::Modulo, &rows).unwrap();
        assert_eq!(mapped(&mut modulo), [[5, 4, 3], [0, 0, 1]]);
        assert!(modulo.state_bytes().is_empty() && modulo.restore_state(&[]).is_ok());
        assert!(
            modulo
                .restore_state(&[1])
                .unwrap_err()
                .to_string()
                .contains("modulo has none, found 1")
        );
    }

    #[test]
    fn wide_ids_have_the_rows_of_narrow_ones() {
        let rows = [10, 4];
        for policy in [IdPolicy::Hash { function: HashFunction::default() }, IdPolicy::Modulo] {
            let mut mapper = IdMapper::new(policy, &rows).unwrap();
            let narrow = mapped(&mut mapper);
            let mut wide = vec![Vec::new(); 2];
            mapper.map_ids(0, &[5, 14, 23], &mut wide[0]).unwrap();
            mapper.map_ids(1, &[MISSING_ID, 0, 9], &mut wide[1]).unwrap();
            assert_eq!(wide, narrow, "{policy}");
        }
        let mapper = IdMapper::new(IdPolicy::Rows, &rows).unwrap();
        let mut to = Vec::new();
        assert_eq!(mapper.map_ids(1, &[0, 3], &mut to), Ok(()));
        assert_eq!(mapper.map_ids(1, &[0, MISSING_ID, 7], &mut to), Err(MISSING_ID));
        assert_eq!(to, [0, 3]);
    }

    #[test]
    fn admitted_ids_have_rows_and_a_copy_stays_frozen() {
        let mut mapper = IdMapper::new(IdPolicy::Admitted { min_count: 2 }, &[10, 4]).unwrap();
        assert_eq!(mapped(&mut mapper), [[0, 0, 0], [0, 0, 0]]);
        let mut frozen = mapper.clone().frozen();
        assert_eq!(mapped(&mut frozen), [[0, 0, 0], [0, 0, 0]]);
        assert_eq!(mapped(&mut mapper), [[1, 2, 3], [1, 2, 3]]);
        let mut sparse = vec![Jagged::default(); 2];
        sparse.iter_mut().for_each(|bags| bags.values.resize(3, 0));
        frozen.map(&block(), 0..3, &mut sparse, 0);
        assert_eq!((&*sparse[0].values, &*sparse[1].values), (&[0, 0, 0][..], &[0, 0, 0][..]));
        mapper.map(&block(), 0..3, &mut sparse, 0);
        assert_eq!((&*sparse[0].values, &*sparse[1].values), (&[1, 2, 3][..], &[1, 2, 3][..]));
    }

    #[test]
    fn raw_columns_keep_their_ids_under_every_policy() {
        for policy in [
            IdPolicy::Hash { function: HashFunction::default() },
            IdPolicy::Admitted { min_count: 1 },
        ] {
            let mut plain = IdMapper::new(policy, &[10, 4]).unwrap();
            let mut raw = plain.clone().with_raw_columns(&[1]);
            let (plain, raw) = (mapped(&mut plain), mapped(&mut raw));
            assert_eq!(raw[0], plain[0], "other columns are mapped as before");
            assert_eq!(raw[1], [MISSING_ID, 0, 9], "{policy}");
        }
    }

    #[test]
    fn tables_that_a_policy_cannot_fill_are_refused() {
        let hash = IdPolicy::Hash { function: HashFunction::default() };
        let message = IdMapper::new(hash, &[5, 1 << 33]).unwrap_err().to_string();
        assert_eq!(
            message,
            "rows of table 1: expected 1 to 4294967296 for hash (murmur3-fmix64), found 8589934592"
        );
        assert!(IdMapper::new(IdPolicy::Modulo, &[0]).is_err());
        assert!(IdMapper::new(IdPolicy::Dictionary, &[1]).is_err());
    }

    #[test]
    fn policies_are_recorded_by_name() {
        let json = r#"{"policy":"hash","function":"murmur3-fmix64"}"#;
        let policy: IdPolicy = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), json);
        assert_eq!(IdPolicy::Admitted { min_count: 3 }.to_string(), "admitted (min_count 3)");
    }
}
