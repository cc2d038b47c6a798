//! Rows for raw ids, made when they are needed: no dictionary, no collisions, a bounded number of
//! rows.
//!
//! A row that is not stored has its initial value, which depends only on seed, table and raw id.
//! An id gets a row of its own in the step in which it has been seen in `min_count` training steps;
//! its first gradient was taken at its initial value, so nothing jumps. With `min_count = 1` and
//! room for all ids the table is a dense one over all 2⁶⁴ ids, bit for bit.
//!
//! * `rows` is the capacity. With several owners each has its share of it.
//! * Options: `min_count` (1 unless given), `eviction` (`lru` unless given, or `lfu`).
//! * *Seen* counts training steps whose batch has the id, not samples. Ids that wait for admission
//!   are counted in as many places as there are rows (none where `min_count` is 1); where these are
//!   full, the longest unseen are forgotten.
//! * Where rows run out, at the end of [`EmbeddingTable::apply`], the least used sixteenth of the
//!   rows (or as many as are needed) goes, in an order that depends only on counts, steps and ids;
//!   rows of the present step stay. An evicted id starts over.
//! * [`EmbeddingTable::lookup`] changes nothing: an evaluation admits no ids.
//!
//! The same seed, data and number of owners give the same bits. With another number of owners they
//! are the same as long as nothing has been evicted or forgotten: which rows go is decided by each
//! owner among its own.
//!
//! A checkpoint holds the tensor `entry`, one row for each id that has a row or waits, rising by
//! id, and the optimiser's states in the same order. An entry is `id (3) | has a row (1) | count
//! (3) | last step (3) | weights (dim)`, numbers as [`crate::checkpoint::id_to_floats`] makes them.
//! Loaded by an owner with fewer rows, the most used stay.

mod members;

use crate::checkpoint::{
    ID_FLOATS, RowSink, RowSource, TensorSpec, id_from_floats, id_to_floats, rows_at_once,
};
use crate::error::{EmbeddingError, Result};
use crate::init::InitialValues;
use crate::kind::{Abilities, TableEnv, TableKind};
use crate::table::{
    EmbeddingTable, Entries, Grain, Keys, MemoryNeeds, Rows, SparseStep, TableSpec,
};
use headlong_device::optimizer::Optimizer;
use headlong_device::{ArenaPlan, DType, Mat, MatMut, MatRef, Stream};
use members::{Eviction, Members, Use};

/// Floats of an entry before its weights.
pub const ENTRY_HEAD: usize = 3 * ID_FLOATS + 1;
/// Rows that one task looks up.
const ROWS_OF_TASK: usize = 128;
/// Of the rows, the part that is evicted at once: the search for victims reads all counts.
const EVICTED_PART: usize = 16;

/// Builds [`HashedTable`]s.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashedKind;

impl TableKind for HashedKind {
    fn abilities(&self) -> Abilities {
        Abilities {
            grains: &[Grain::Rows],
            keys: &[Keys::RawIds],
            dtypes: &[DType::F32],
            devices: &["cpu"],
            options: Some(&["min_count", "eviction"]),
        }
    }

    fn check(&self, spec: &TableSpec) -> Result<()> {
        spec.check()?;
        Settings::of(spec).map(drop)
    }

    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        let waiting = Settings::of(spec).map_or(0, |settings| settings.num_waiting(spec));
        MemoryNeeds {
            work_bytes: Members::bytes(spec.rows) + Members::bytes(waiting),
            ..spec.dense_memory(optimizer)
        }
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        Ok(Box::new(HashedTable::new(spec, env)?))
    }
}

/// The options of the kind.
#[derive(Debug, Clone, Copy)]
struct Settings {
    min_count: u64,
    eviction: Eviction,
}

impl Settings {
    fn of(spec: &TableSpec) -> Result<Self> {
        let min_count = spec.option("min_count", 1)?;
        if min_count == 0 {
            return Err(spec.refused("option min_count: expected at least 1, got 0"));
        }
        let eviction = match spec.option("eviction", "lru".to_owned())?.as_str() {
            "lru" => Eviction::LeastRecent,
            "lfu" => Eviction::LeastFrequent,
            other => {
                let reason = format!("option eviction: expected lru or lfu, got {other}");
                return Err(spec.refused(reason));
            }
        };
        Ok(Self { min_count, eviction })
    }

    /// Ids that can wait for admission.
    fn num_waiting(&self, spec: &TableSpec) -> u64 {
        if self.min_count > 1 { spec.rows } else { 0 }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct HashedTable {
    spec: TableSpec,
    settings: Settings,
    memory: MemoryNeeds,
    optimizer: Optimizer,
    initial: InitialValues,
    stored: Members,
    waiting: Members,
    weights: Mat,
    states: Vec<Mat>,
    newcomers: Vec<Newcomer>,
}

/// An id without a row that a step has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Newcomer {
    id: u64,
    /// Place of its gradient.
    entry: usize,
    count: u64,
}

impl HashedTable {
    /// Takes the memory for all rows; none is stored yet.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for options it does not know and row indices,
    /// [`EmbeddingError::Device`] for memory.
    pub fn new(spec: &TableSpec, env: &TableEnv) -> Result<Self> {
        spec.check()?;
        let settings = Settings::of(spec)?;
        if spec.keys != Keys::RawIds {
            return Err(spec.refused("a hashed table is keyed by raw ids, got keys = row indices"));
        }
        if spec.rows > Members::MAX_CAPACITY {
            let most = Members::MAX_CAPACITY;
            return Err(spec.refused(format!("{} rows of one owner, at most {most}", spec.rows)));
        }
        let mut plan = ArenaPlan::new(&format!("table {}", spec.name));
        let slots: Vec<_> = spec
            .dense_tensors(env.optimizer)
            .iter()
            .map(|tensor| plan.matrix(&tensor.name, DType::F32, tensor.rows as usize, tensor.cols))
            .collect();
        let arena = plan.freeze()?;
        let mut mats = slots.into_iter().map(|slot| arena.mat(slot));
        Ok(Self {
            spec: spec.clone(),
            settings,
            memory: HashedKind.memory(spec, env.optimizer),
            optimizer: *env.optimizer,
            initial: env.initial_values(spec),
            stored: Members::new(spec.rows),
            waiting: Members::new(settings.num_waiting(spec)),
            weights: mats.next().expect("the weights are the first tensor of every table"),
            states: mats.collect(),
            newcomers: Vec::new(),
        })
    }

    /// Gives `slot` the values of a row that was never trained.
    fn reset(&self, slot: usize, id: u64) {
        self.initial.fill_id(id, self.weights.write::<f32>().row_mut(slot));
        for (mat, state) in self.states.iter().zip(self.optimizer.states()) {
            mat.write::<f32>().row_mut(slot).fill(state.initial);
        }
    }

    fn step_row(&self, slot: usize, gradient: &[f32], step: &SparseStep) {
        let mut first = self.states.first().map(|mat| mat.write::<f32>());
        let mut second = self.states.get(1).map(|mat| mat.write::<f32>());
        step.optimizer.apply(
            step.step,
            self.weights.write::<f32>().row_mut(slot),
            first.as_mut().map_or(&mut [], |state| state.row_mut(slot)),
            second.as_mut().map_or(&mut [], |state| state.row_mut(slot)),
            gradient,
        );
    }

    /// One more sight of an id without a row: how many there were.
    fn count_waiting(&mut self, id: u64, now: u64) -> u64 {
        if self.settings.min_count == 1 {
            return 1;
        }
        if let Some(slot) = self.waiting.find(id) {
            let seen = self.waiting.seen(slot).seen(now);
            self.waiting.set_seen(slot, seen);
            return seen.count;
        }
        if self.waiting.num_free() == 0 {
            let count = (self.waiting.capacity() / EVICTED_PART).max(1);
            self.waiting.evict(Eviction::LeastRecent, count, Some(now));
        }
        // Note: where all that wait were seen in this step, the id stays unknown.
        self.waiting.insert(id, Use::default().seen(now));
        1
    }

    /// Gives rows to the newcomers that have waited long enough, in rising order of ids, and takes
    /// their first step.
    fn admit(&mut self, gradients: MatRef, step: &SparseStep) {
        let now = step.step.number;
        let mut newcomers = std::mem::take(&mut self.newcomers);
        newcomers.sort_unstable();
        newcomers
            .iter_mut()
            .for_each(|newcomer| newcomer.count = self.count_waiting(newcomer.id, now));
        newcomers.retain(|newcomer| newcomer.count >= self.settings.min_count);
        let lacking = newcomers.len().saturating_sub(self.stored.num_free());
        if lacking > 0 {
            let count = lacking.max(self.stored.capacity() / EVICTED_PART);
            self.stored.evict(self.settings.eviction, count, Some(now));
        }
        for &Newcomer { id, entry, count } in &newcomers {
            let Some(slot) = self.stored.insert(id, Use { count, last_step: now }) else { break };
            self.waiting.remove(id);
            self.reset(slot, id);
            self.step_row(slot, gradients.row(entry), step);
        }
        newcomers.clear();
        self.newcomers = newcomers;
    }

    /// Takes one entry of a checkpoint: of more than there is room for, the most used stay.
    fn take_entry(&mut self, id: u64, entry: &[f32]) -> std::result::Result<(), &'static str> {
        let part = |from: usize| id_from_floats(&entry[from..from + ID_FLOATS]);
        let (Some(count), Some(last_step)) = (part(ID_FLOATS + 1), part(2 * ID_FLOATS + 1)) else {
            return Err("an entry does not hold whole numbers");
        };
        if part(0) != Some(id) {
            return Err("an entry does not begin with its id");
        }
        let (seen, has_row) = (Use { count, last_step }, entry[ID_FLOATS] != 0.0);
        let eviction = if has_row { self.settings.eviction } else { Eviction::LeastRecent };
        let members = if has_row { &mut self.stored } else { &mut self.waiting };
        if members.capacity() == 0 {
            return Ok(());
        }
        if members.num_free() == 0 {
            let first = members.first_to_go(eviction);
            if first.is_some_and(|first| first.0 > eviction.rank(seen, id)) {
                return Ok(());
            }
            members.evict(eviction, 1, None);
        }
        let slot = members.insert(id, seen).expect("a slot was freed");
        if has_row {
            self.reset(slot, id);
            self.weights.write::<f32>().row_mut(slot).copy_from_slice(&entry[ENTRY_HEAD..]);
        }
        Ok(())
    }

    fn write_entry(&self, id: u64, out: &mut [f32]) -> bool {
        let (stored, waiting) = (self.stored.find(id), self.waiting.find(id));
        let seen = match (stored, waiting) {
            (Some(slot), _) => self.stored.seen(slot),
            (None, Some(slot)) => self.waiting.seen(slot),
            (None, None) => return false,
        };
        let (head, weights) = out.split_at_mut(ENTRY_HEAD);
        head[..ID_FLOATS].copy_from_slice(&id_to_floats(id));
        head[ID_FLOATS] = if stored.is_some() { 1.0 } else { 0.0 };
        head[ID_FLOATS + 1..][..ID_FLOATS].copy_from_slice(&id_to_floats(seen.count));
        head[2 * ID_FLOATS + 1..].copy_from_slice(&id_to_floats(seen.last_step));
        match stored {
            Some(slot) => weights.copy_from_slice(self.weights.read::<f32>().row(slot)),
            None => weights.fill(0.0),
        }
        true
    }
}

impl Entries for HashedTable {
    fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.stored.ids().chain(self.waiting.ids()).collect();
        ids.sort_unstable();
        ids
    }

    fn read(&self, tensor: usize, ids: &[u64], out: &mut [f32]) {
        let cols = self.tensors()[tensor].cols;
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(cols)) {
            match (tensor, self.stored.find(id)) {
                (0, _) => drop(self.write_entry(id, out)),
                (state, Some(slot)) => {
                    out.copy_from_slice(self.states[state - 1].read::<f32>().row(slot))
                }
                // What waits has no state yet.
                (_, None) if self.waiting.find(id).is_some() => out.fill(0.0),
                (_, None) => {}
            }
        }
    }

    fn clear(&mut self) {
        self.stored.clear();
        self.waiting.clear();
    }

    fn write(&mut self, tensor: usize, ids: &[u64], values: &[f32]) -> Result<()> {
        let spec = self.tensors()[tensor].clone();
        for (&id, row) in ids.iter().zip(values.chunks_exact(spec.cols)) {
            if tensor == 0 {
                self.take_entry(id, row).map_err(|reason| EmbeddingError::Storage {
                    table: self.spec.name.clone(),
                    tensor: spec.name.clone(),
                    source: reason.into(),
                })?;
            } else if let Some(slot) = self.stored.find(id) {
                self.states[tensor - 1].write::<f32>().row_mut(slot).copy_from_slice(row);
            }
        }
        Ok(())
    }
}

impl EmbeddingTable for HashedTable {
    fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn memory(&self) -> MemoryNeeds {
        self.memory
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let free = self.stored.num_free() + self.waiting.num_free();
        let rows = (self.stored.capacity() + self.waiting.capacity() - free) as u64;
        let mut tensors = self.spec.dense_tensors(&self.optimizer);
        tensors[0] =
            TensorSpec { name: "entry".to_owned(), rows, cols: ENTRY_HEAD + self.spec.dim };
        tensors.iter_mut().for_each(|tensor| tensor.rows = rows);
        tensors
    }

    fn lookup(&mut self, stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        let (dim, ids) = (self.spec.dim, rows.indices());
        let (weights, stored, initial) = (self.weights.read::<f32>(), &self.stored, &self.initial);
        stream.pool().chunks_mut(out.data_mut(), ROWS_OF_TASK * dim, |task, out| {
            for (id, out) in ids[task * ROWS_OF_TASK..].iter().zip(out.chunks_exact_mut(dim)) {
                match stored.find(*id) {
                    Some(slot) => out.copy_from_slice(weights.row(slot)),
                    None => initial.fill_id(*id, out),
                }
            }
        });
        Ok(())
    }

    fn apply(
        &mut self,
        _stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        for (entry, &id) in rows.indices().iter().enumerate() {
            match self.stored.find(id) {
                Some(slot) => {
                    self.stored.set_seen(slot, self.stored.seen(slot).seen(step.step.number));
                    self.step_row(slot, gradients.row(entry), step);
                }
                None => self.newcomers.push(Newcomer { id, entry, count: 0 }),
            }
        }
        self.admit(gradients, step);
        Ok(())
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        let ids = self.ids();
        let mut values = Vec::new();
        for (number, tensor) in self.tensors().iter().enumerate() {
            let run = rows_at_once(tensor.cols) as usize;
            for (index, ids) in ids.chunks(run).enumerate() {
                values.clear();
                values.resize(ids.len() * tensor.cols, 0.0);
                self.read(number, ids, &mut values);
                sink.rows(tensor, (index * run) as u64, &values)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        self.clear();
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        for (number, mut tensor) in self.tensors().into_iter().enumerate() {
            tensor.rows = source.num_rows(&tensor);
            let run = rows_at_once(tensor.cols);
            for first in (0..tensor.rows).step_by(run as usize) {
                let count = run.min(tensor.rows - first) as usize;
                values.resize(count * tensor.cols, 0.0);
                source.rows(&tensor, first, &mut values)?;
                if number == 0 {
                    let id =
                        |entry: &[f32]| id_from_floats(&entry[..ID_FLOATS]).unwrap_or_default();
                    ids.extend(values.chunks_exact(tensor.cols).map(id));
                }
                let ids: &[u64] = &ids[first as usize..][..count];
                self.write(number, ids, &values)?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Option<&dyn Entries> {
        Some(self)
    }

    fn entries_mut(&mut self) -> Option<&mut dyn Entries> {
        Some(self)
    }
}
