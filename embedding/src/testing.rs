//! The conformance suite that the author of a table runs on it.

mod steps;
mod subject;

use crate::kind::{Shard, TableKind};
use crate::table::{Grain, Init, Keys, TableSpec};
use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::testing::uniform;
use headlong_device::{DType, Stream};
use subject::{Origin, Subject};

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

/// One of each, with constants so large that a step without one of them shows.
fn marked_optimizers() -> [Optimizer; 5] {
    [
        Optimizer::Sgd,
        Optimizer::Adagrad { epsilon: 0.25, initial_accumulator: 0.1 },
        Optimizer::RowWiseAdagrad { epsilon: 0.25, initial_accumulator: 0.2 },
        Optimizer::Adam { beta1: 0.9, beta2: 0.95, epsilon: 0.25 },
        Optimizer::Ftrl { beta: 1.0, l1: 0.05, l2: 0.1, initial_accumulator: 0.1 },
    ]
}

/// Steps after which an id that was in each of them must have a row.
const MOST_SIGHTS: u64 = 16;

/// A table may hold its weights this much more tightly than in their element type.
const TIGHTEST: u64 = 8;

/// Bytes that a table may hold besides what it says it holds: names, descriptions, and a sixteenth
/// of the rest.
const SLACK_BYTES: u64 = 4096;

/// Checks that tables of `kind` keep the promises of [`EmbeddingTable`](crate::EmbeddingTable),
/// with each optimiser and with one and three threads:
///
/// 1. the table says what was asked for; its tensors are named as checkpoints need them: the
///    weights, and after them each state of the optimiser, named after them (`quotient`,
///    `quotient.accumulator`; states of `weight` may do without). A table of grain [`Grain::Rows`]
///    has one tensor of weights, `weight`, with a row for each row;
/// 2. its memory is at most what the kind planned and stays so; it is at least an eighth of what is
///    saved, and where the program has installed
///    [`CountingAllocator`](headlong_device::testing::CountingAllocator), at most a sixteenth and 4
///    KiB more was allocated;
/// 3. built twice, and with other threads, it holds the same values; another seed and another table
///    give others; a part of a table of grain [`Grain::Rows`] has the values of its rows, wherever
///    it is built;
/// 4. `lookup` gives equal vectors for equal rows, in any order, and finite numbers, and
///    changes nothing;
/// 5. `apply` is one step of the optimiser with the step's learning rate and number, and changes
///    nothing else. In a table of grain [`Grain::Rows`] each row named moves as the formula says,
///    with states of its own; with SGD by exactly `-lr·g` (f32). In a [`Grain::Whole`] table each
///    row of each tensor of weights does, with the gradient that the derivative of `lookup` gives,
///    as finite differences find it: every tensor that the vectors depend on is trained;
/// 6. saved and loaded into a table of another seed and another past, it answers the same and goes
///    on the same, bit for bit;
/// 7. rows of tensors read and written singly are those that are saved and loaded;
/// 8. plain rows, where the table shows them, are what `lookup` returns.
///
/// Of a table keyed by raw ids ([`Keys::RawIds`]), which may wait up to sixteen sights before it
/// gives an id a row:
///
/// 9. entries are listed once, rising, and one table's entries make another the same;
/// 10. more ids than it has rows for do no harm: it keeps to its memory, its answers stay finite,
///     and threads change nothing.
///
/// # Panics
/// With a message that names the promise that is broken.
pub fn check_table(kind: &dyn TableKind, spec: &TableSpec) {
    check_table_on([Stream::cpu(1), Stream::cpu(3)], kind, spec);
}

/// As [`check_table`], for tables on a CUDA device: with the [`crate::cuda::CudaTable`] of tables
/// that have one, on a stream of the device.
pub fn check_table_on_cuda(stream: &Stream, kind: &dyn TableKind, spec: &TableSpec) {
    check_table_on([stream.clone(), stream.clone()], kind, spec);
}

fn check_table_on(streams: [Stream; 2], kind: &dyn TableKind, spec: &TableSpec) {
    assert!(spec.rows >= 2, "the suite needs a table of two rows at least");
    for optimizer in marked_optimizers() {
        let build =
            |stream: &Stream, origin: Origin| Subject::new(kind, spec, optimizer, stream, origin);
        let [mut one, mut three] = streams.each_ref().map(|stream| build(stream, Origin::FIRST));
        one.check_description(kind);
        one.check_names(kind, &streams[0]);
        one.check_lookup();
        let rows = one.some_rows();
        assert_eq!(one.lookup(&rows), three.lookup(&rows), "threads change initial values");
        let mut other = build(&streams[0], Origin::OTHER);
        if spec.init != Init::Zeros {
            assert_ne!(
                one.lookup(&rows),
                other.lookup(&rows),
                "another seed gives the same initial values"
            );
            let mut next = build(&streams[0], Origin { table_index: 3, ..Origin::FIRST });
            assert_ne!(
                one.lookup(&rows),
                next.lookup(&rows),
                "another table has the same initial values"
            );
        }
        if spec.grain == Grain::Rows && spec.keys == Keys::RowIndices {
            one.check_shard(kind, &streams[0]);
        }
        for stream in &streams {
            steps::check(kind, spec, optimizer, stream);
        }
        one.make_known(&rows);
        three.make_known(&rows);
        for number in 1..=2 {
            let gradients = uniform(number, rows.len() * spec.dim);
            one.apply(&rows, &gradients, step(number));
            three.apply(&rows, &gradients, step(number));
        }
        assert_eq!(one.lookup(&rows), three.lookup(&rows), "threads change updates");
        one.check_memory(kind);
        let half = &rows[..rows.len() / 2];
        other.apply(half, &uniform(7, half.len() * spec.dim), step(1));
        one.check_saved(&mut other);
        one.check_single_rows(&mut other);
        one.check_plain_rows();
        if spec.keys == Keys::RawIds {
            one.check_entries(&mut other);
            three.load(&one.save());
            check_overflow(&mut one, &mut three, kind);
        }
    }
}

/// Step `number` after those that make ids known.
fn step(number: u64) -> Step {
    Step { learning_rate: 0.25, number: MOST_SIGHTS + number }
}

/// Many more ids than rows, by two tables that are the same so far.
fn check_overflow(one: &mut Subject, other: &mut Subject, kind: &dyn TableKind) {
    let (dim, capacity) = (one.spec.dim, one.spec.rows.min(600));
    for step in 0..8 {
        let mut ids: Vec<u64> = (0..capacity)
            .map(|index| crate::hybrid::mix(step / 2 * capacity + index + 77))
            .collect();
        ids.sort_unstable();
        let gradients = uniform(step, ids.len() * dim);
        one.apply(&ids, &gradients, self::step(100 + step));
        other.apply(&ids, &gradients, self::step(100 + step));
        assert!(
            one.lookup(&ids).iter().all(|x| x.is_finite()),
            "an answer is not finite when rows run out"
        );
    }
    one.check_memory(kind);
    assert!(one.save() == other.save(), "two tables with one past differ after rows ran out");
    let known =
        |subject: &Subject| subject.table.entries().map(|entries| entries.ids().len()).unwrap_or(0);
    let most = one.table.memory().total_bytes() / (dim * size_of::<f32>()) as u64;
    assert!(
        known(one) as u64 <= most.max(2 * one.spec.rows),
        "a table knows more ids than it has memory for"
    );
}

impl Subject {
    fn check_description(&self, kind: &dyn TableKind) {
        assert_eq!(
            self.table.spec(),
            &self.spec,
            "the table says something else than what was asked for"
        );
        self.check_memory(kind);
    }

    /// What a checkpoint tells weights and states apart by.
    fn check_names(&self, kind: &dyn TableKind, stream: &Stream) {
        let tensors = self.table.tensors();
        let plain =
            Subject::new(kind, &self.spec, Optimizer::Sgd, stream, Origin::FIRST).table.tensors();
        let by_rows = self.spec.grain == Grain::Rows;
        if by_rows && self.spec.keys == Keys::RowIndices {
            let names: Vec<_> =
                plain.iter().map(|tensor| (tensor.name.as_str(), tensor.rows)).collect();
            assert_eq!(
                names,
                [("weight", self.spec.rows)],
                "tensors with SGD of a table of grain rows: its weights"
            );
        }
        let mut found = tensors.iter();
        for weights in &plain {
            assert_eq!(
                found.next(),
                Some(weights),
                "the weights as with SGD, then their states, then the next weights"
            );
            for state in self.optimizer.states() {
                let (full, name) = (format!("{}.{}", weights.name, state.name), state.name);
                let short = weights.name == "weight" || self.spec.keys == Keys::RawIds;
                let tensor = found.next();
                let tensor =
                    tensor.unwrap_or_else(|| panic!("there is no tensor `{full}` in {tensors:?}"));
                assert!(
                    tensor.name == full || short && tensor.name == name,
                    "tensor `{}` is in the place of state `{full}` of `{}`",
                    tensor.name,
                    weights.name
                );
                let per_row = state.width == StateWidth::PerRow;
                let cols =
                    if self.spec.keys == Keys::RawIds { self.spec.dim } else { weights.cols };
                let shape = (weights.rows, if per_row { 1 } else { cols });
                assert_eq!(
                    (tensor.rows, tensor.cols),
                    shape,
                    "rows and columns of state `{}`",
                    tensor.name
                );
            }
        }
        assert_eq!(found.next(), None, "a tensor that is neither weights nor their state");
        let mut names: Vec<_> = tensors.into_iter().map(|tensor| tensor.name).collect();
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
        let (taken, weights) = (taken.total_bytes(), self.spec.dtype.bytes() as u64);
        let tensors = self.table.tensors().into_iter().enumerate();
        let saved: u64 = tensors
            .map(|(index, tensor)| {
                let states = self.optimizer.states().len() + 1;
                let bytes = if index % states == 0 { weights } else { DType::F32.bytes() as u64 };
                tensor.rows * tensor.cols as u64 * bytes
            })
            .sum();
        assert!(
            taken.saturating_mul(TIGHTEST) >= saved,
            "the table says it takes {taken} bytes, and saves {saved}"
        );
        if let Some(held) = self.held() {
            let most = taken + taken / 16 + SLACK_BYTES;
            assert!(
                held <= most,
                "the table says it takes {taken} bytes, and has allocated {held}"
            );
        }
        let plain = self.table.plain_rows().map_or(0, |plain| {
            let of = |mat: &headlong_device::Mat| mat.rows() * mat.cols() * mat.dtype().bytes();
            of(&plain.weights) + plain.states.iter().map(of).sum::<usize>()
        });
        assert!(
            plain as u64 <= taken,
            "the table shows {plain} bytes of rows and says it takes {taken}"
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
        self.apply(&[], &[], step(1));
        assert!(self.save() == before, "a step of no rows changes the table");
    }

    /// A part of the table, as an owner of every second row builds it.
    fn check_shard(&mut self, kind: &dyn TableKind, stream: &Stream) {
        let row_of_local = |local: u64| 2 * local;
        let shard = Shard { table_rows: self.spec.rows, row_of_local: &row_of_local };
        let spec = TableSpec { rows: self.spec.rows.div_ceil(2), ..self.spec.clone() };
        let origin = Origin { shard: Some(shard), ..Origin::FIRST };
        let mut part = Subject::new(kind, &spec, self.optimizer, stream, origin);
        let locals = part.some_rows();
        let rows: Vec<u64> = locals.iter().map(|&local| row_of_local(local)).collect();
        assert_eq!(
            part.lookup(&locals),
            self.lookup(&rows),
            "initial values depend on where a row lies"
        );
    }

    fn check_saved(&mut self, other: &mut Subject) {
        let rows = self.some_rows();
        let saved = self.save();
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
        other.load(&saved);
        assert_eq!(self.lookup(&rows), other.lookup(&rows), "a loaded table answers differently");
        let gradients = uniform(8, rows.len() * self.spec.dim);
        self.apply(&rows, &gradients, step(3));
        other.apply(&rows, &gradients, step(3));
        assert_eq!(self.lookup(&rows), other.lookup(&rows), "a loaded table continues differently");
        assert!(
            self.save() == other.save(),
            "a loaded table has another optimiser state after a step"
        );
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
            assert_eq!(
                read, expected,
                "rows {first}+{rows} of tensor `{}` read singly",
                tensor.name
            );
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

    /// `other` is the same table so far, and is rebuilt from the entries.
    fn check_entries(&mut self, other: &mut Subject) {
        let saved = self.save();
        let tensors = self.table.tensors();
        let entries = self.table.entries().expect("a table keyed by raw ids has entries");
        let ids = entries.ids();
        assert!(ids.is_sorted_by(|a, b| a < b), "ids of entries rise, each once");
        assert!(
            tensors.iter().all(|tensor| tensor.rows == ids.len() as u64),
            "every tensor has one row for each entry"
        );
        let copy = other.table.entries_mut().expect("a table keyed by raw ids has entries");
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
                copy.write(number, ids, rows)
                    .unwrap_or_else(|error| panic!("entries are refused: {error}"));
            }
        }
        assert!(other.save() == saved, "a table made from entries is another");
        let rows = self.some_rows();
        assert_eq!(
            self.lookup(&rows),
            other.lookup(&rows),
            "a table made from entries answers differently"
        );
    }

    fn check_plain_rows(&mut self) {
        let Some(plain) = self.table.plain_rows() else { return };
        assert_eq!(
            plain.states.len(),
            self.optimizer.states().len(),
            "one matrix per optimiser state"
        );
        let rows = self.some_rows();
        let looked_up = self.lookup(&rows);
        let mut weights = vec![0.0; self.spec.dim];
        for (&row, expected) in rows.iter().zip(looked_up.chunks(self.spec.dim)) {
            crate::rows::read_rows(&plain.weights, row, &mut weights)
                .unwrap_or_else(|error| panic!("plain row {row} cannot be read: {error}"));
            assert_eq!(weights, expected, "plain row {row} is not what lookup returns");
        }
    }
}
