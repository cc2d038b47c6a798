//! Broken tables are found: each breaks one promise, and the suite says which.

#![cfg(test)]

use headlong_device::optimizer::Step;
use headlong_device::{MatMut, MatRef, Stream};
use headlong_embedding::testing::check_table;
use headlong_embedding::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Looking is counted as a step of no gradient.
    LookupAdmits,
    /// Every vector of a lookup is that of the first row.
    LookupIgnoresRows,
    /// The last row of a step is left out.
    ApplyLosesTheLast,
    /// Gradients go uphill.
    ApplyGoesUphill,
    /// Every step is taken twice.
    ApplyStepsTwice,
    /// The learning rate is ten times what the step says.
    ApplyIsTenfold,
    /// The number of the step is always 1.
    ApplyForgetsTheNumber,
    /// The second row moves along.
    ApplyMovesAnother,
    /// Initial values are those of the first rows, whatever rows it is given.
    InitGoesByLocalRow,
    /// What is loaded is dropped.
    LoadDoesNothing,
    /// A tensor is not saved.
    SaveForgetsTheLast,
    /// It says that it takes more than was planned.
    MemoryGrows,
    /// Entries that come are dropped.
    EntriesAreDropped,
    /// The last id is not listed.
    EntriesHideOne,
}

struct Mutant {
    inner: Box<dyn EmbeddingTable>,
    broken: Broken,
}

impl EmbeddingTable for Mutant {
    fn spec(&self) -> &TableSpec {
        self.inner.spec()
    }
    fn memory(&self) -> MemoryNeeds {
        let more = if self.broken == Broken::MemoryGrows { 1 } else { 0 };
        let memory = self.inner.memory();
        MemoryNeeds { work_bytes: memory.work_bytes + more, ..memory }
    }
    fn tensors(&self) -> Vec<TensorSpec> {
        self.inner.tensors()
    }
    fn lookup(&mut self, stream: &Stream, rows: Rows, out: MatMut) -> Result<()> {
        if self.broken == Broken::LookupAdmits {
            let spec = self.spec().clone();
            let mut unique = rows.indices().to_vec();
            unique.sort_unstable();
            unique.dedup();
            let zeros = vec![0.0; unique.len() * spec.dim];
            let step = Step { learning_rate: 0.0, number: 1 };
            let step =
                SparseStep { optimizer: &headlong_device::optimizer::Optimizer::Sgd, step: &step };
            self.inner.apply(
                stream,
                Rows::new(&unique),
                MatRef::new(&zeros, unique.len(), spec.dim),
                &step,
            )?;
        }
        if self.broken == Broken::LookupIgnoresRows {
            let first = vec![rows.indices().first().copied().unwrap_or(0); rows.indices().len()];
            return self.inner.lookup(stream, Rows::new(&first), out);
        }
        self.inner.lookup(stream, rows, out)
    }
    fn apply(
        &mut self,
        stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        let (count, dim) = (rows.indices().len(), gradients.cols());
        match self.broken {
            Broken::ApplyLosesTheLast if count > 0 => {
                let rows = Rows::new(&rows.indices()[..count - 1]);
                self.inner.apply(stream, rows, gradients.rows_range(0, count - 1), step)
            }
            Broken::ApplyGoesUphill => {
                let uphill: Vec<f32> =
                    (0..count).flat_map(|row| gradients.row(row)).map(|x| -x).collect();
                self.inner.apply(stream, rows, MatRef::new(&uphill, count, dim), step)
            }
            Broken::ApplyStepsTwice => {
                self.inner.apply(stream, rows, gradients, step)?;
                self.inner.apply(stream, rows, gradients, step)
            }
            Broken::ApplyIsTenfold => {
                let tenfold = Step { learning_rate: 10.0 * step.step.learning_rate, ..*step.step };
                self.inner.apply(stream, rows, gradients, &SparseStep { step: &tenfold, ..*step })
            }
            Broken::ApplyForgetsTheNumber => {
                let first = Step { number: 1, ..*step.step };
                self.inner.apply(stream, rows, gradients, &SparseStep { step: &first, ..*step })
            }
            Broken::ApplyMovesAnother if count > 0 && !rows.indices().contains(&1) => {
                let ones = vec![1.0; dim];
                self.inner.apply(stream, Rows::new(&[1]), MatRef::new(&ones, 1, dim), step)?;
                self.inner.apply(stream, rows, gradients, step)
            }
            _ => self.inner.apply(stream, rows, gradients, step),
        }
    }
    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        let mut saved = SavedRows::default();
        self.inner.save(&mut saved)?;
        let tensors = self.tensors();
        let lost = usize::from(self.broken == Broken::SaveForgetsTheLast);
        for tensor in &tensors[..tensors.len() - lost] {
            sink.rows(tensor, 0, saved.tensor(&tensor.name).unwrap_or_default())?;
        }
        Ok(())
    }
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        if self.broken == Broken::LoadDoesNothing {
            return Ok(());
        }
        self.inner.load(source)
    }
    fn entries(&self) -> Option<&dyn Entries> {
        self.inner.entries().map(|_| self as &dyn Entries)
    }
    fn entries_mut(&mut self) -> Option<&mut dyn Entries> {
        self.inner.entries().is_some().then_some(self as &mut dyn Entries)
    }
}

impl Entries for Mutant {
    fn ids(&self) -> Vec<u64> {
        let mut ids = self.inner.entries().expect("the table has entries").ids();
        if self.broken == Broken::EntriesHideOne {
            ids.pop();
        }
        ids
    }
    fn read(&self, tensor: usize, ids: &[u64], out: &mut [f32]) {
        self.inner.entries().expect("the table has entries").read(tensor, ids, out);
    }
    fn clear(&mut self) {
        self.inner.entries_mut().expect("the table has entries").clear();
    }
    fn write(&mut self, tensor: usize, ids: &[u64], values: &[f32]) -> Result<()> {
        if self.broken == Broken::EntriesAreDropped {
            return Ok(());
        }
        self.inner.entries_mut().expect("the table has entries").write(tensor, ids, values)
    }
}

struct MutantKind(Broken);

impl TableKind for MutantKind {
    fn memory(
        &self,
        spec: &TableSpec,
        optimizer: &headlong_device::optimizer::Optimizer,
    ) -> MemoryNeeds {
        Registry::default().kind(spec).expect("the kind is one of ours").memory(spec, optimizer)
    }
    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        let shard = env.shard.filter(|_| self.0 != Broken::InitGoesByLocalRow);
        let inner = Registry::default().kind(spec)?.build(spec, &TableEnv { shard, ..*env })?;
        Ok(Box::new(Mutant { inner, broken: self.0 }))
    }
}

/// What the suite says, where it finds something.
fn verdict(broken: Broken, spec: &TableSpec) -> Option<String> {
    let checked = catch_unwind(AssertUnwindSafe(|| check_table(&MutantKind(broken), spec)));
    let panic = checked.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"").to_string()))
}

#[test]
fn broken_tables_are_found_and_the_promise_is_named() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = Vec::new();
    let dense = TableSpec::new("t", 40, 4);
    let mut hashed = TableSpec { kind: "hashed".to_owned(), keys: Keys::RawIds, ..dense.clone() };
    hashed.options.insert("min_count".to_owned(), "2".to_owned());
    let both = [
        (Broken::LookupIgnoresRows, "place in the list"),
        (Broken::ApplyLosesTheLast, "after step 1 of sgd"),
        (Broken::ApplyGoesUphill, "after step 1 of sgd"),
        (Broken::ApplyStepsTwice, "after step 1 of sgd"),
        (Broken::ApplyIsTenfold, "after step 1 of sgd"),
        (Broken::LoadDoesNothing, "a loaded table answers differently"),
        (Broken::SaveForgetsTheLast, "elements saved of tensor"),
        (Broken::MemoryGrows, "planned were"),
    ];
    let by_row = [
        (Broken::ApplyForgetsTheNumber, "of adam with"),
        (Broken::ApplyMovesAnother, "row 1, column 0 after step 1 of sgd"),
        (Broken::InitGoesByLocalRow, "initial values depend on where a row lies"),
    ];
    let raw = [
        (Broken::LookupAdmits, "lookup changes the table"),
        (Broken::EntriesAreDropped, "a table made from entries is another"),
        (Broken::EntriesHideOne, "every tensor has one row for each entry"),
    ];
    for spec in [&dense, &hashed] {
        wrong.extend(verdict(Broken::Nothing, spec).map(|found| format!("{}: {found}", spec.kind)));
    }
    let cases = both.iter().flat_map(|case| [(&dense, case), (&hashed, case)]);
    for (spec, &(broken, promise)) in cases
        .chain(raw.iter().map(|case| (&hashed, case)))
        .chain(by_row.iter().map(|case| (&dense, case)))
    {
        let found = verdict(broken, spec).unwrap_or_default();
        if !found.contains(promise) {
            wrong.push(format!("{} {broken:?}, expected \"{promise}\": {found}", spec.kind));
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
