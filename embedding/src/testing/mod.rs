//! The conformance suite that the author of a table runs on it.

use crate::checkpoint::SavedRows;
use crate::cuda::{CudaStep, CudaTable, DeviceRows};
use crate::error::Result;
use crate::hybrid::mix;
use crate::registry::{TableEnv, TableKind};
use crate::table::{EmbeddingTable, Grain, Keys, Rows, SparseStep, TableSpec};
use headlong_device::cuda::testing::{download, upload};
use headlong_device::cuda::{CudaStream, DevicePtr, DeviceStep, OptimizerConstants};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{MatMut, MatRef, Stream};

/// One of each sparse optimiser.
pub fn every_optimizer() -> [Optimizer; 5] {
    [
        Optimizer::Sgd,
        Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.1 },
        Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 },
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
        Optimizer::Ftrl { beta: 1.0, l1: 0.001, l2: 0.002, initial_accumulator: 0.1 },
    ]
}

/// Steps after which an id that was in each of them must have a row.
const MOST_SIGHTS: u64 = 16;

/// Checks that tables of `kind` keep the promises of [`EmbeddingTable`], with each optimiser and with one and three threads:
///
/// 1. the table says what was asked for, its memory is what the kind planned and stays so, its tensors are named once each;
/// 2. built twice, and with other threads, it holds the same values; another seed gives others;
/// 3. `lookup` gives equal vectors for equal rows, in any order, and finite numbers; it changes nothing, whatever it is asked for;
/// 4. `apply` changes what it should: with SGD, a table of grain [`Grain::Rows`] moves exactly the rows named, by `-lr·g`,
///    and a [`Grain::Whole`] table moves the looked-up vectors downhill; a second `apply` works as well;
/// 5. saved and loaded into a table of another seed and another past, it answers the same and goes on the same, bit for bit;
/// 6. rows of tensors read and written singly are those that are saved and loaded;
/// 7. plain rows, where the table shows them, are what `lookup` returns.
///
/// Of a table asked with raw ids ([`Keys::RawIds`]), which may wait up to sixteen sights before it gives an id a row:
///
/// 8. entries are listed once, rising, and one table's entries make another the same;
/// 9. more ids than it has rows for do no harm: it keeps to its memory, its answers stay finite, and threads change nothing.
///
/// # Panics
/// With a message that names the promise that is broken.
pub fn check_table(kind: &dyn TableKind, spec: &TableSpec) {
    check_table_on([Stream::cpu(1), Stream::cpu(3)], kind, spec);
}

/// As [`check_table`], for tables on a CUDA device: with the [`crate::cuda::CudaTable`] of tables that have one, on a stream of the
/// device.
///
/// # Panics
/// As there.
pub fn check_table_on_cuda(stream: &Stream, kind: &dyn TableKind, spec: &TableSpec) {
    check_table_on([stream.clone(), stream.clone()], kind, spec);
}

fn check_table_on(streams: [Stream; 2], kind: &dyn TableKind, spec: &TableSpec) {
    assert!(spec.rows >= 2, "the suite needs a table of two rows at least");
    for optimizer in every_optimizer() {
        let tables = streams.each_ref().map(|stream| Subject::new(kind, spec, optimizer, stream, 5));
        let [mut one, mut three] = tables;
        one.check_description(kind);
        one.check_lookup();
        let rows = one.some_rows();
        assert_eq!(one.lookup(&rows), three.lookup(&rows), "threads change initial values");
        let mut other = Subject::new(kind, spec, optimizer, &streams[0], 6);
        if spec.init != crate::table::Init::Zeros {
            assert_ne!(one.lookup(&rows), other.lookup(&rows), "another seed gives the same initial values");
        }
        one.make_known(&rows);
        three.make_known(&rows);
        if optimizer == Optimizer::Sgd {
            one.check_descent();
            three.check_descent();
        }
        for number in 1..=2 {
            one.apply(&rows, &uniform(number, rows.len() * spec.dim), MOST_SIGHTS + number);
            three.apply(&rows, &uniform(number, rows.len() * spec.dim), MOST_SIGHTS + number);
        }
        assert_eq!(one.lookup(&rows), three.lookup(&rows), "threads change updates");
        let half = &rows[..rows.len() / 2];
        other.apply(half, &uniform(7, half.len() * spec.dim), 1);
        one.check_saved(&mut other);
        one.check_single_rows(&mut other);
        one.check_plain_rows();
        if spec.keys == Keys::RawIds {
            one.check_entries(&mut other);
            let loaded = three.table.load(&mut one.save());
            loaded.unwrap_or_else(|error| panic!("load fails: {error}"));
            check_overflow(&mut one, &mut three, kind);
        }
    }
}

/// Many more ids than rows, by two tables that are the same so far.
fn check_overflow(one: &mut Subject, other: &mut Subject, kind: &dyn TableKind) {
    let (dim, capacity) = (one.spec.dim, one.spec.rows.min(600));
    for step in 0..8 {
        let mut ids: Vec<u64> = (0..capacity).map(|index| mix(step / 2 * capacity + index + 77)).collect();
        ids.sort_unstable();
        let gradients = uniform(step, ids.len() * dim);
        one.apply(&ids, &gradients, 100 + step);
        other.apply(&ids, &gradients, 100 + step);
        assert!(one.lookup(&ids).iter().all(|x| x.is_finite()), "an answer is no number when rows run out");
    }
    one.check_memory(kind);
    assert!(one.save() == other.save(), "two tables with one past differ after rows ran out");
    let known = |subject: &Subject| subject.table.entries().map(|entries| entries.ids().len()).unwrap_or(0);
    let most = one.table.memory().total_bytes() / (dim * size_of::<f32>()) as u64;
    assert!(
        known(one) as u64 <= most.max(2 * one.spec.rows),
        "a table knows more ids than it has memory for"
    );
}

/// A table under test.
struct Subject {
    table: Box<dyn EmbeddingTable>,
    spec: TableSpec,
    optimizer: Optimizer,
    stream: Stream,
}

impl Subject {
    fn new(kind: &dyn TableKind, spec: &TableSpec, optimizer: Optimizer, stream: &Stream, seed: u64) -> Self {
        let env = TableEnv { stream, optimizer: &optimizer, seed, table_index: 2, shard: None };
        let table = kind
            .build(spec, &env)
            .unwrap_or_else(|error| panic!("a table with {} is not built: {error}", optimizer.name()));
        Self { table, spec: spec.clone(), optimizer, stream: stream.clone() }
    }

    /// Unique rows, the first and the last among them.
    fn some_rows(&self) -> Vec<u64> {
        if self.spec.keys == Keys::RawIds {
            // Fewer than there are rows, from all over the numbers.
            let count = (self.spec.rows / 2).clamp(1, 60);
            let mut ids: Vec<u64> = (1..count).map(mix).chain([u64::MAX]).collect();
            ids.sort_unstable();
            return ids;
        }
        let step = (self.spec.rows / 60).max(1);
        let mut rows: Vec<u64> = (0..self.spec.rows - 1).step_by(step as usize).collect();
        rows.push(self.spec.rows - 1);
        rows
    }

    /// Runs the CUDA body on `rows` in device memory and on `values` (vectors or gradients) beside them, which are returned.
    fn on_device(
        &self,
        table: &dyn CudaTable,
        rows: &[u64],
        values: &[f32],
        body: impl FnOnce(&dyn CudaTable, &CudaStream, DeviceRows, DevicePtr) -> Result<()>,
    ) -> Vec<f32> {
        let fails = |error| panic!("the device fails: {error}");
        let stream = self.stream.cuda_body();
        // Room for more rows than there are, as in a set.
        let capacity = rows.len() + 7;
        let mut words: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        words.resize(capacity, u32::MAX);
        let list = upload(stream.device(), &words).unwrap_or_else(fails);
        let count = upload(stream.device(), &[rows.len() as u32]).unwrap_or_else(fails);
        let values = upload(stream.device(), values).unwrap_or_else(fails);
        let rows = DeviceRows { rows: list.ptr(), count: count.ptr(), capacity };
        body(table, stream, rows, values.ptr())
            .unwrap_or_else(|error| panic!("the CUDA body fails: {error}"));
        stream.synchronize().unwrap_or_else(|error| panic!("the CUDA body fails: {error}"));
        download(&values).unwrap_or_else(|error| panic!("the device fails: {error}"))
    }

    fn lookup(&mut self, rows: &[u64]) -> Vec<f32> {
        if let Some(table) = self.table.cuda() {
            let out = vec![f32::NAN; rows.len() * self.spec.dim];
            return self
                .on_device(table, rows, &out, |table, stream, rows, to| table.lookup(stream, rows, to));
        }
        let mut out = vec![f32::NAN; rows.len() * self.spec.dim];
        let view = MatMut::new(&mut out, rows.len(), self.spec.dim);
        self.table
            .lookup(&self.stream, Rows::new(rows), view)
            .unwrap_or_else(|error| panic!("lookup fails: {error}"));
        out
    }

    fn apply(&mut self, rows: &[u64], gradients: &[f32], number: u64) {
        let step = Step { learning_rate: 0.25, number };
        if let Some(table) = self.table.cuda() {
            let step = CudaStep {
                optimizer: self.optimizer,
                constants: OptimizerConstants::new(&self.optimizer),
                device: DevicePtr::NULL,
                host: DeviceStep::new(&step, &self.optimizer),
            };
            let body = |table: &dyn CudaTable, stream: &CudaStream, rows, gradients| {
                table.apply(stream, rows, gradients, &step)
            };
            self.on_device(table, rows, gradients, body);
            return;
        }
        let gradients = MatRef::new(gradients, rows.len(), self.spec.dim);
        let step = SparseStep { optimizer: &self.optimizer, step: &step };
        self.table
            .apply(&self.stream, Rows::new(rows), gradients, &step)
            .unwrap_or_else(|error| panic!("apply fails: {error}"));
    }

    /// Steps of zero gradients, which move nothing, until a table that counts sights has seen enough.
    fn make_known(&mut self, rows: &[u64]) {
        if self.spec.keys == Keys::RawIds {
            let zeros = vec![0.0; rows.len() * self.spec.dim];
            (1..=MOST_SIGHTS).for_each(|number| self.apply(rows, &zeros, number));
        }
    }

    fn save(&self) -> SavedRows {
        let mut saved = SavedRows::default();
        self.table.save(&mut saved).unwrap_or_else(|error| panic!("save fails: {error}"));
        saved
    }

    fn check_description(&self, kind: &dyn TableKind) {
        assert_eq!(self.table.spec(), &self.spec, "the table says something else than what was asked for");
        self.check_memory(kind);
        let mut names: Vec<_> = self.table.tensors().into_iter().map(|tensor| tensor.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two tensors have one name");
    }

    fn check_memory(&self, kind: &dyn TableKind) {
        let planned = kind.memory(&self.spec, &self.optimizer);
        let taken = self.table.memory();
        assert!(
            taken.total_bytes() <= planned.total_bytes(),
            "the table takes {} bytes, planned were {}",
            taken.total_bytes(),
            planned.total_bytes()
        );
        let plain = self.table.plain_rows().map_or(0, |plain| {
            let of = |mat: &headlong_device::Mat| mat.rows() * mat.cols() * size_of::<f32>();
            of(&plain.weights) + plain.states.iter().map(of).sum::<usize>()
        });
        assert!(
            plain as u64 <= taken.total_bytes(),
            "the table shows {plain} bytes of rows and says it takes {}",
            taken.total_bytes()
        );
    }

    fn check_lookup(&mut self) {
        let before = self.save();
        let (spec, rows) = (self.spec.clone(), self.some_rows());
        let forward = self.lookup(&rows);
        assert!(
            forward.iter().all(|x| x.is_finite()),
            "initial values are finite, and every vector is written"
        );
        let twice: Vec<u64> = rows.iter().rev().flat_map(|&row| [row, row]).collect();
        let backward = self.lookup(&twice);
        for (entry, expected) in forward.chunks(spec.dim).rev().enumerate() {
            for copy in 0..2 {
                let got = &backward[(2 * entry + copy) * spec.dim..][..spec.dim];
                assert_eq!(got, expected, "the vector of a row depends on its place in the list");
            }
        }
        assert_eq!(self.lookup(&[]), [0.0; 0], "no rows, no vectors");
        assert!(self.save() == before, "lookup changes the table");
        assert_eq!(self.lookup(&rows), forward, "lookup changes the table");
    }

    fn check_descent(&mut self) {
        let dim = self.spec.dim;
        let all = self.some_rows();
        let changed: Vec<u64> = all.iter().copied().step_by(2).collect();
        let before = self.lookup(&all);
        let gradients = uniform(3, changed.len() * dim);
        self.apply(&changed, &gradients, MOST_SIGHTS + 1);
        let after = self.lookup(&all);
        let mut downhill = 0.0;
        for (index, (before, after)) in before.chunks(dim).zip(after.chunks(dim)).enumerate() {
            let row = all[index];
            let gradient = (index % 2 == 0).then(|| &gradients[index / 2 * dim..][..dim]);
            for column in 0..dim {
                let moved = after[column] - before[column];
                downhill -= f64::from(moved) * f64::from(gradient.map_or(0.0, |g| g[column]));
                if self.spec.grain == Grain::Rows {
                    let expected = before[column] - gradient.map_or(0.0, |g| 0.25 * g[column]);
                    assert_eq!(after[column], expected, "row {row}, column {column} after a step of SGD");
                }
            }
        }
        assert!(downhill > 0.0, "a step of SGD does not go downhill");
    }

    fn check_saved(&mut self, other: &mut Subject) {
        let rows = self.some_rows();
        let mut saved = self.save();
        for tensor in self.table.tensors() {
            let len = saved.tensor(&tensor.name).map(<[f32]>::len);
            let expected = tensor.rows as usize * tensor.cols;
            assert_eq!(len, Some(expected), "elements saved of tensor `{}`", tensor.name);
        }
        assert_eq!(
            saved.names().count(),
            self.table.tensors().len(),
            "a tensor was saved that is not listed"
        );
        other.table.load(&mut saved).unwrap_or_else(|error| panic!("load fails: {error}"));
        assert_eq!(self.lookup(&rows), other.lookup(&rows), "a loaded table answers differently");
        let gradients = uniform(8, rows.len() * self.spec.dim);
        self.apply(&rows, &gradients, MOST_SIGHTS + 3);
        other.apply(&rows, &gradients, MOST_SIGHTS + 3);
        assert_eq!(self.lookup(&rows), other.lookup(&rows), "a loaded table goes on differently");
        assert!(self.save() == other.save(), "a loaded table has another optimiser state after a step");
    }

    /// `other` is the same table so far.
    fn check_single_rows(&mut self, other: &mut Subject) {
        let fails = |error| panic!("rows cannot be read or written singly: {error}");
        let saved = self.save();
        for (number, tensor) in self.table.tensors().iter().enumerate() {
            let expected = saved.tensor(&tensor.name).unwrap_or_default();
            let (first, rows) = (tensor.rows / 3, tensor.rows.min(5));
            let rows = rows.min(tensor.rows - first);
            let expected = &expected[first as usize * tensor.cols..][..rows as usize * tensor.cols];
            let mut read = vec![f32::NAN; expected.len()];
            self.table.read_rows(number, first, &mut read).unwrap_or_else(fails);
            assert_eq!(read, expected, "rows {first}+{rows} of tensor `{}` read singly", tensor.name);
            if self.spec.keys == Keys::RowIndices {
                let fails = |error| panic!("rows cannot be read or written singly: {error}");
                other.table.write_rows(number, first, &vec![0.5; read.len()]).unwrap_or_else(fails);
                assert!(
                    other.save() != saved || rows == 0,
                    "rows of `{}` written singly are lost",
                    tensor.name
                );
                other.table.write_rows(number, first, expected).unwrap_or_else(fails);
            }
            assert!(other.save() == saved, "rows of tensor `{}` written back singly", tensor.name);
        }
    }

    /// `other` is the same table so far, and is made anew from the entries.
    fn check_entries(&mut self, other: &mut Subject) {
        let saved = self.save();
        let tensors = self.table.tensors();
        let entries = self.table.entries().expect("a table asked with raw ids has entries");
        let ids = entries.ids();
        assert!(ids.is_sorted_by(|a, b| a < b), "ids of entries rise, each once");
        assert!(
            tensors.iter().all(|tensor| tensor.rows == ids.len() as u64),
            "every tensor has one row for each entry"
        );
        let copy = other.table.entries_mut().expect("a table asked with raw ids has entries");
        copy.clear();
        assert!(copy.ids().is_empty(), "a cleared table has entries");
        for (number, tensor) in tensors.iter().enumerate() {
            let mut rows = vec![0.0; ids.len() * tensor.cols];
            entries.read(number, &ids, &mut rows);
            assert_eq!(
                Some(&rows[..]),
                saved.tensor(&tensor.name),
                "entries of `{}` are what is saved",
                tensor.name
            );
            // In pieces, as a checkpoint comes.
            for (ids, rows) in ids.chunks(7).zip(rows.chunks(7 * tensor.cols)) {
                copy.write(number, ids, rows).unwrap_or_else(|error| panic!("entries are refused: {error}"));
            }
        }
        assert!(other.save() == saved, "a table made from entries is another");
        let rows = self.some_rows();
        assert_eq!(self.lookup(&rows), other.lookup(&rows), "a table made from entries answers differently");
    }

    fn check_plain_rows(&mut self) {
        let Some(plain) = self.table.plain_rows() else { return };
        assert_eq!(plain.states.len(), self.optimizer.states().len(), "one matrix per optimiser state");
        let rows = self.some_rows();
        let looked_up = self.lookup(&rows);
        let mut weights = vec![0.0; self.spec.dim];
        for (&row, expected) in rows.iter().zip(looked_up.chunks(self.spec.dim)) {
            crate::set::read_rows(&plain.weights, row, &mut weights)
                .unwrap_or_else(|error| panic!("plain row {row} cannot be read: {error}"));
            assert_eq!(weights, expected, "plain row {row} is not what lookup returns");
        }
    }
}
