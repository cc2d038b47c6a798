//! The hashed table: conformance, admission, eviction, and what it has in common with a dense
//! table.

#![cfg(test)]

use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{MatMut, MatRef, Stream};
use headlong_embedding::testing::{check_table, every_optimizer};
use headlong_embedding::*;

fn spec(rows: u64, dim: usize, options: &[(&str, &str)]) -> TableSpec {
    TableSpec {
        kind: "hashed".to_owned(),
        keys: Keys::RawIds,
        options: options
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        ..TableSpec::new("ads", rows, dim)
    }
}

struct Table {
    table: Box<dyn EmbeddingTable>,
    stream: Stream,
    optimizer: Optimizer,
    dim: usize,
}

impl Table {
    fn new(spec: &TableSpec) -> Self {
        Self::with(spec, Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.1 })
    }

    fn with(spec: &TableSpec, optimizer: Optimizer) -> Self {
        let stream = Stream::cpu(2);
        let env = TableEnv {
            stream: &stream,
            optimizer: &optimizer,
            seed: 1,
            table_index: 0,
            shard: None,
        };
        let table = Registry::default().kind(spec).unwrap().build(spec, &env).unwrap();
        Self { table, stream, optimizer, dim: spec.dim }
    }

    fn lookup(&mut self, ids: &[u64]) -> Vec<f32> {
        let mut out = vec![f32::NAN; ids.len() * self.dim];
        let view = MatMut::new(&mut out, ids.len(), self.dim);
        self.table.lookup(&self.stream, Rows::new(ids), view).unwrap();
        out
    }

    fn apply(&mut self, ids: &[u64], number: u64) {
        // The gradient of an id in a step depends on both single.
        let gradients: Vec<f32> =
            ids.iter().flat_map(|id| uniform(id ^ (number << 40), self.dim)).collect();
        let step = Step { learning_rate: 0.1, number };
        let step = SparseStep { optimizer: &self.optimizer, step: &step };
        let gradients = MatRef::new(&gradients, ids.len(), self.dim);
        self.table.apply(&self.stream, Rows::new(ids), gradients, &step).unwrap();
    }

    /// Ids with a row, and ids that wait.
    fn known(&self) -> (Vec<u64>, Vec<u64>) {
        let entries = self.table.entries().unwrap();
        let ids = entries.ids();
        let cols = self.table.tensors()[0].cols;
        let mut rows = vec![0.0; ids.len() * cols];
        entries.read(0, &ids, &mut rows);
        ids.into_iter().zip(rows.chunks(cols)).fold(Default::default(), |mut known, (id, row)| {
            let list: &mut (Vec<u64>, Vec<u64>) = &mut known;
            if row[3] == 1.0 {
                list.0.push(id)
            } else {
                list.1.push(id)
            }
            known
        })
    }

    fn save(&self) -> SavedRows {
        let mut saved = SavedRows::default();
        self.table.save(&mut saved).unwrap();
        saved
    }
}

#[test]
fn it_conforms() {
    for options in [&[][..], &[("min_count", "3"), ("eviction", "lfu")]] {
        for (rows, dim) in [(2, 1), (200, 16), (77, 33)] {
            let spec = spec(rows, dim, options);
            check_table(Registry::default().kind(&spec).unwrap(), &spec);
        }
    }
}

/// With room for all, it is a dense table over all ids, whose rows it makes when they are needed.
#[test]
fn with_room_for_all_it_is_a_dense_table() {
    for optimizer in every_optimizer() {
        let mut hashed =
            Table::with(&TableSpec { init: Init::Zeros, ..spec(50, 6, &[]) }, optimizer);
        let mut dense = Table::with(
            &TableSpec { init: Init::Zeros, ..TableSpec::new("ads", 50, 6) },
            optimizer,
        );
        for number in 1..=20 {
            let ids: Vec<u64> = (0..50).filter(|id| (id * 7 + number) % 5 < 2).collect();
            hashed.apply(&ids, number);
            dense.apply(&ids, number);
            let all: Vec<u64> = (0..50).collect();
            assert_eq!(hashed.lookup(&all), dense.lookup(&all), "{optimizer:?} step {number}");
        }
    }
}

#[test]
fn an_id_gets_its_row_in_the_step_of_its_last_needed_sight() {
    let mut table = Table::new(&spec(10, 4, &[("min_count", "3")]));
    let untrained = table.lookup(&[7, 8]);
    table.apply(&[7, 8], 1);
    table.apply(&[7], 2);
    assert_eq!(table.lookup(&[7, 8]), untrained, "two sights are not enough");
    assert_eq!(table.known(), (vec![], vec![7, 8]));
    table.apply(&[7], 3);
    assert_eq!(table.known(), (vec![7], vec![8]));
    let trained = table.lookup(&[7, 8]);
    assert_ne!(trained[..4], untrained[..4], "the third is, and its gradient counts");
    assert_eq!(trained[4..], untrained[4..]);
    // The vector of an unseen id is its own, and looking does not count.
    for _ in 0..5 {
        table.lookup(&[8, u64::MAX]);
    }
    assert_eq!(table.known(), (vec![7], vec![8]));
}

#[test]
fn the_least_used_rows_go_first_and_those_in_use_stay() {
    let run = |eviction| {
        let mut table = Table::new(&spec(3, 2, &[("eviction", eviction)]));
        for (number, ids) in (1..).zip([&[1, 2, 3][..], &[1, 2], &[1, 3], &[1, 2], &[3], &[9]]) {
            table.apply(ids, number);
        }
        table.known().0
    };
    // Steps of last sight: 1 in 4, 2 in 4, 3 in 5; sights: 4, 3, 3.
    assert_eq!(run("lru"), [1, 3, 9], "2 and 1 were seen longest ago, 2 less often");
    assert_eq!(run("lfu"), [1, 3, 9], "2 and 3 were seen least often, 2 longer ago");
    let mut table = Table::new(&spec(3, 2, &[]));
    table.apply(&[1, 2, 3], 1);
    table.apply(&[2, 3, 4, 5, 6], 2);
    assert_eq!(
        table.known().0,
        [2, 3, 4],
        "rows of the present step stay; what finds no room is not stored"
    );
    let untrained = Table::new(&spec(3, 2, &[])).lookup(&[1, 5]);
    assert_eq!(table.lookup(&[1, 5]), untrained, "an evicted id starts again");
}

/// Shards by id, as owners hold them: with room for all, together they are the table of one owner.
#[test]
fn owners_together_are_one_table_and_divide_again() {
    let whole_spec = spec(1000, 5, &[("min_count", "2")]);
    let mut whole = Table::new(&whole_spec);
    let mut parts = [0, 1, 2].map(|_| Table::new(&whole_spec));
    for number in 1..=10 {
        let ids: Vec<u64> = (0..40).map(|index| ((index * 31 + number * 17) % 97) << 33).collect();
        let mut ids: Vec<u64> =
            ids.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        ids.sort_unstable();
        whole.apply(&ids, number);
        for (owner, part) in parts.iter_mut().enumerate() {
            let mine: Vec<u64> =
                ids.iter().copied().filter(|id| (id >> 33) % 3 == owner as u64).collect();
            part.apply(&mine, number);
        }
    }
    let ids = whole.table.entries().unwrap().ids();
    let mut gathered = Table::new(&whole_spec);
    for (number, tensor) in whole.table.tensors().iter().enumerate() {
        let mut expected = vec![0.0; ids.len() * tensor.cols];
        whole.table.entries().unwrap().read(number, &ids, &mut expected);
        let mut found = vec![f32::NAN; expected.len()];
        parts.iter().for_each(|part| part.table.entries().unwrap().read(number, &ids, &mut found));
        assert_eq!(found, expected, "{}", tensor.name);
        gathered.table.entries_mut().unwrap().write(number, &ids, &found).unwrap();
    }
    assert!(gathered.save() == whole.save());
    assert_eq!(gathered.lookup(&ids), whole.lookup(&ids));
}

#[test]
fn loaded_with_fewer_rows_the_most_used_stay() {
    let mut large = Table::new(&spec(8, 2, &[]));
    large.apply(&[1, 2, 3, 4, 5], 1);
    large.apply(&[2, 4, 5], 2);
    large.apply(&[5], 3);
    let mut small = Table::new(&spec(3, 2, &[]));
    small.table.load(&mut large.save()).unwrap();
    assert_eq!(small.known().0, [2, 4, 5]);
    assert_eq!(small.lookup(&[2, 4, 5]), large.lookup(&[2, 4, 5]));
    let entries = small.table.entries_mut().unwrap();
    let refused = entries.write(0, &[77], &[1.0; 12]).unwrap_err().to_string();
    assert_eq!(
        refused,
        "table `ads`, tensor `entry`: saved rows: an entry does not begin with its id"
    );
}

#[test]
fn what_it_is_not_is_refused() {
    let message = |spec: TableSpec| {
        let optimizer = Optimizer::Sgd;
        let stream = Stream::cpu(1);
        let env = TableEnv {
            stream: &stream,
            optimizer: &optimizer,
            seed: 1,
            table_index: 0,
            shard: None,
        };
        Registry::default()
            .kind(&spec)
            .and_then(|kind| kind.build(&spec, &env))
            .err()
            .unwrap()
            .to_string()
    };
    for (spec, expected) in [
        (
            TableSpec { keys: Keys::RowIndices, ..spec(4, 2, &[]) },
            "a hashed table is keyed by raw ids, got keys = row indices",
        ),
        (
            TableSpec { grain: Grain::Whole, ..spec(4, 2, &[]) },
            "every row of a table of kind hashed stands for itself: it has grain = rows",
        ),
        (
            spec(4, 2, &[("min_cout", "2")]),
            "a hashed table has no option `min_cout`; it has: min_count, eviction",
        ),
        (spec(4, 2, &[("min_count", "0")]), "option min_count: expected at least 1, got 0"),
        (
            spec(4, 2, &[("min_count", "two")]),
            "option min_count: expected a value such as 1, got two",
        ),
        (spec(4, 2, &[("eviction", "fifo")]), "option eviction: expected lru or lfu, got fifo"),
        (spec(1 << 40, 2, &[]), "1099511627776 rows of one owner, at most 2147483647"),
    ] {
        assert_eq!(message(spec), format!("table `ads`: {expected}"));
    }
}
