//! Tables one by one: conformance, custom tables through the set, errors, checkpoints, sizes beyond
//! 32 bits.

use crate::common::{Jagged, Pair, matrix, random_bags, views};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{DType, JaggedRef, MatMut, MatRef, Stream};
use headlong_embedding::testing::{check_table, every_optimizer};
use headlong_embedding::*;

/// What a table leaves to the one inside it.
macro_rules! as_inner {
    () => {
        fn spec(&self) -> &TableSpec {
            self.0.spec()
        }
        fn memory(&self) -> MemoryNeeds {
            self.0.memory()
        }
        fn tensors(&self) -> Vec<TensorSpec> {
            self.0.tensors()
        }
        fn lookup(&mut self, stream: &Stream, rows: Rows, out: MatMut) -> Result<()> {
            self.0.lookup(stream, rows, out)
        }
    };
}

/// A dense table that hides its rows, so that the set has to go through the trait.
struct Shy(Box<dyn EmbeddingTable>);

impl EmbeddingTable for Shy {
    as_inner!();
    fn apply(
        &mut self,
        stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        assert!(rows.indices().is_sorted_by(|a, b| a < b), "rows are unique and rising");
        self.0.apply(stream, rows, gradients, step)
    }
    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        self.0.save(sink)
    }
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        self.0.load(source)
    }
}

fn registry_with_shy() -> Registry {
    let mut registry = Registry::default();
    registry.register("shy", |spec: &TableSpec, env: &TableEnv| {
        let dense = Registry::default()
            .kind(&TableSpec { kind: "dense".to_owned(), ..spec.clone() })?
            .build(spec, env)?;
        let table: Box<dyn EmbeddingTable> = Box::new(Shy(dense));
        Ok(table)
    });
    registry
}

fn options(max_ids: &[usize]) -> SetOptions<'_> {
    let optimizer = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    SetOptions {
        optimizer,
        seed: 3,
        max_samples: 512,
        max_ids,
        sum_blocks: 4,
        frozen: false,
        narrow: None,
    }
}

#[test]
fn our_tables_conform() {
    let registry = registry_with_shy();
    for kind in ["dense", "shy"] {
        for (rows, dim) in [(2, 1), (1000, 16), (77, 33)] {
            let spec = TableSpec { kind: kind.to_owned(), ..TableSpec::new("t", rows, dim) };
            check_table(registry.kind(&spec).unwrap(), &spec);
        }
    }
    let zeros = TableSpec { init: Init::Zeros, ..TableSpec::new("t", 20, 8) };
    check_table(registry.kind(&zeros).unwrap(), &zeros);
    let narrow = TableSpec { dtype: DType::Bf16, ..TableSpec::new("t", 50, 8) };
    check_table(registry.kind(&narrow).unwrap(), &narrow);
}

/// A table that forgets its optimiser state when saved, and keeps its own when loaded.
struct Forgetful(Shy);

impl EmbeddingTable for Forgetful {
    as_inner!();
    fn apply(
        &mut self,
        stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        self.0.apply(stream, rows, gradients, step)
    }
    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        let mut all = SavedRows::default();
        self.0.save(&mut all)?;
        let mut tensors = self.tensors().into_iter();
        tensors.try_for_each(|tensor| match tensor.name.as_str() {
            "weight" => sink.rows(&tensor, 0, all.tensor("weight").unwrap_or_default()),
            _ => sink.rows(&tensor, 0, &vec![0.0; tensor.rows as usize * tensor.cols]),
        })
    }
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        let mut fresh = SavedRows::default();
        self.0.save(&mut fresh)?;
        let mut merged = SavedRows::default();
        for tensor in self.0.tensors() {
            let mut values = fresh.tensor(&tensor.name).unwrap_or_default().to_vec();
            if tensor.name == "weight" {
                source.rows(&tensor, 0, &mut values)?;
            }
            RowSink::rows(&mut merged, &tensor, 0, &values)?;
        }
        self.0.load(&mut merged)
    }
}

#[test]
#[should_panic(expected = "a loaded table continues differently")]
fn the_suite_finds_a_table_that_forgets_its_state() {
    let kind = |spec: &TableSpec, env: &TableEnv| {
        let shy = Shy(Registry::default().kind(spec)?.build(spec, env)?);
        let table: Box<dyn EmbeddingTable> = Box::new(Forgetful(shy));
        Ok(table)
    };
    check_table(&kind, &TableSpec::new("t", 10, 4));
}

/// Through the trait and its staging, or fused: the same bits.
#[test]
fn a_custom_table_trains_like_a_dense_one() {
    let stream = Stream::cpu(2);
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("b", 60, 35) };
    let dense = [TableSpec::new("a", 100, 16), mean];
    let shy = dense.clone().map(|spec| TableSpec { kind: "shy".to_owned(), ..spec });
    let registry = registry_with_shy();
    let ids = [Jagged::new(&random_bags(1, 512, 100, 0)), Jagged::new(&random_bags(2, 512, 60, 4))];
    let mut results = Vec::new();
    for specs in [dense.to_vec(), shy.to_vec(), vec![dense[0].clone(), shy[1].clone()]] {
        let options = options(&[512, 4096]);
        let set = EmbeddingSet::with_registry(&registry, &stream, &specs, &options).unwrap();
        let mut route = set.new_route().unwrap();
        let d_vectors = uniform(1, 512 * set.width());
        let (_gradients, d_vectors) = matrix(512, set.width(), &d_vectors);
        let (_vectors, vectors) = matrix(512, set.width(), &vec![f32::NAN; 512 * set.width()]);
        for number in 1..=2 {
            set.route(&stream, &views(&ids), &mut route).unwrap();
            set.update(&stream, &route, &d_vectors, &Step { learning_rate: 0.1, number }).unwrap();
            set.lookup(&stream, &views(&ids), &vectors).unwrap();
        }
        let mut saved = [SavedRows::default(), SavedRows::default()];
        for (table, saved) in saved.iter_mut().enumerate() {
            set.table(table).save(saved).unwrap();
        }
        results.push((saved, vectors.read::<f32>().data().to_vec()));
    }
    assert!(results[0] == results[1] && results[0] == results[2]);
    assert!(results[0].1.iter().all(|x| x.is_finite()));
}

#[test]
fn ids_out_of_range_are_named() {
    let stream = Stream::cpu(2);
    let specs = [TableSpec::new("C1", 5, 4), TableSpec::new("C2", 648, 4)];
    let set = EmbeddingSet::new(&stream, &specs, &options(&[512, 512])).unwrap();
    let mut route = set.new_route().unwrap();
    let (_arena, vectors) = matrix(300, 8, &vec![0.0; 300 * 8]);
    let mut bags = [vec![vec![4]; 300], vec![vec![647]; 300]];
    bags[1][289] = vec![648];
    bags[1][295] = vec![u64::MAX];
    let ids = bags.map(|bags| Jagged::new(&bags));
    let expected = "table `C2`: row index 648 in sample 289 of the batch is out of range, the \
                    table has 648 rows";
    assert_eq!(set.route(&stream, &views(&ids), &mut route).unwrap_err().to_string(), expected);
    assert_eq!(set.lookup(&stream, &views(&ids), &vectors).unwrap_err().to_string(), expected);
    // The route holds nothing of the bad table, so an update after the error cannot reach it.
    assert!(route.table(1).rows().is_empty());
}

#[test]
fn batches_of_another_shape_are_refused() {
    let stream = Stream::cpu(1);
    let specs = [TableSpec::new("C1", 5, 4), TableSpec::new("C2", 5, 4)];
    let set = EmbeddingSet::new(&stream, &specs, &options(&[512, 3])).unwrap();
    let mut route = set.new_route().unwrap();
    let mut message =
        |ids: &[JaggedRef]| set.route(&stream, ids, &mut route).unwrap_err().to_string();
    let four = JaggedRef::new(&[0; 4], &[0, 1, 2, 3, 4]);
    let three = JaggedRef::new(&[0; 3], &[0, 1, 2, 3]);
    assert_eq!(message(&[four]), "the batch has ids of 1 tables, the set has 2 tables");
    assert_eq!(message(&[four, three]), "table `C2`: ids of 3 samples in a batch of 4");
    assert_eq!(message(&[four, four]), "table `C2`: 4 ids in one batch, planned for at most 3");
    let many = vec![0_u32; 514];
    let empty = JaggedRef::new(&[], &many);
    assert_eq!(
        message(&[empty, empty]),
        "table `C1`: 513 samples in one batch, planned for at most 512"
    );
}

#[test]
fn descriptions_that_cannot_be_built() {
    let stream = Stream::cpu(1);
    let good = TableSpec::new("ads", 10, 4);
    let message = |spec: TableSpec| {
        EmbeddingSet::new(&stream, &[spec], &options(&[8]))
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let cases = [
        (
            TableSpec { rows: 0, ..good.clone() },
            "table `ads`: a table has at least one row, got rows = 0",
        ),
        (TableSpec { dim: 4096, ..good.clone() }, "table `ads`: dim lies in 1..=2048, got 4096"),
        (
            TableSpec { rows: u64::MAX, ..good.clone() },
            "table `ads`: 18446744073709551615 rows of 4 elements are more than 2^60",
        ),
        (
            TableSpec { dtype: DType::F16, ..good.clone() },
            "table `ads`: dense tables hold f32 or bf16 on the CPU, got dtype = f16",
        ),
        (
            TableSpec { keys: Keys::RawIds, ..good.clone() },
            "table `ads`: a dense table is keyed by row indices, got keys = raw ids",
        ),
        (
            TableSpec { kind: "hashd".to_owned(), ..good.clone() },
            "table `ads`: no table kind `hashd`; known kinds: dense, hashed",
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(message(spec), expected);
    }
    // An address space is 2^47 bytes: the system itself refuses this one.
    let huge = TableSpec { init: Init::Zeros, ..TableSpec::new("ads", 1 << 46, 16) };
    assert!(
        message(huge).starts_with("arena `table ads`: the system refused"),
        "a refusal that names the table"
    );
}

#[test]
fn saved_and_loaded_it_continues_the_same() {
    let stream = Stream::cpu(2);
    let specs = [TableSpec::new("a", 300, 16), TableSpec::new("b", 9000, 128)];
    for optimizer in every_optimizer() {
        let bags = specs.each_ref().map(|spec| random_bags(4, 400, spec.rows, 2));
        let mut pair = Pair::new(&stream, &specs, optimizer, 1);
        let d_vectors = uniform(6, 400 * pair.set.width());
        pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.1, number: 1 });
        let max_ids = [20_000; 2];
        let options = SetOptions {
            optimizer,
            seed: 99,
            max_samples: 4096,
            sum_blocks: 1,
            ..options(&max_ids)
        };
        let resumed = EmbeddingSet::new(&stream, &specs, &options).unwrap();
        for table in 0..2 {
            let mut saved = SavedRows::default();
            pair.set.table(table).save(&mut saved).unwrap();
            resumed.table(table).load(&mut saved).unwrap();
        }
        pair.set = resumed;
        pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.1, number: 2 });
        pair.assert_equal();
    }
}

#[test]
fn rows_outside_a_tensor_and_unknown_tensors() {
    let stream = Stream::cpu(1);
    let set = EmbeddingSet::new(&stream, &[TableSpec::new("a", 10, 4)], &options(&[8])).unwrap();
    let names: Vec<_> = set.tensors(0).iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["weight", "accumulator"]);
    let mut out = [0.0; 8];
    let error = set.read_rows(0, 1, 9, &mut out).unwrap_err().to_string();
    assert_eq!(error, "table `a`, tensor `accumulator`: rows 9+2 of 10");
    let error = set.write_rows(0, 2, 0, &out).unwrap_err().to_string();
    assert_eq!(error, "table `a` has no tensor `number 2`; it has weight, accumulator");
    let mut empty = SavedRows::default();
    let error = set.table(0).load(&mut empty).unwrap_err().to_string();
    assert!(
        error.contains("tensor `weight`: saved rows: 40 elements from row 0 on were not saved"),
        "{error}"
    );
}

/// 40 million rows of 64: 2.56e9 elements, more than 2³¹. Zeros take no memory before they are
/// written.
#[test]
fn offsets_beyond_32_bits() {
    let stream = Stream::cpu(2);
    let rows = 40_000_000;
    let spec = TableSpec { init: Init::Zeros, ..TableSpec::new("big", rows, 64) };
    assert!(rows * 64 > 1 << 31);
    let set = EmbeddingSet::new(&stream, &[spec], &options(&[512])).unwrap();
    let mut route = set.new_route().unwrap();
    let touched = [rows - 1, 0, (1 << 25) + 1, (1 << 26) / 2 - 1, rows - 1];
    let bags: Vec<_> = touched.iter().map(|&row| vec![row]).collect();
    let ids = [Jagged::new(&bags)];
    let gradients: Vec<f32> = (0..5).flat_map(|sample| [(sample + 1) as f32; 64]).collect();
    let (_d, d_vectors) = matrix(5, 64, &gradients);
    let (_v, vectors) = matrix(5, 64, &[f32::NAN; 5 * 64]);
    set.route(&stream, &views(&ids), &mut route).unwrap();
    set.update(&stream, &route, &d_vectors, &Step { learning_rate: 0.5, number: 1 }).unwrap();
    set.lookup(&stream, &views(&ids), &vectors).unwrap();
    // Adagrad's first step goes by the learning rate, whatever the gradient.
    assert!(vectors.read::<f32>().data().iter().all(|x| (x + 0.5).abs() < 1e-6));
    for (row, squared) in [(rows - 1, 36.0), (0, 4.0), ((1 << 25) + 1, 9.0), (1, 0.0)] {
        let mut state = [f32::NAN; 64];
        set.read_rows(0, 1, row, &mut state).unwrap();
        assert_eq!(state, [squared; 64], "row {row}");
    }
}

#[test]
#[should_panic(expected = "the route was made by this set")]
fn a_route_of_another_set_is_refused() {
    let stream = Stream::cpu(1);
    let set =
        |rows| EmbeddingSet::new(&stream, &[TableSpec::new("a", rows, 4)], &options(&[8])).unwrap();
    let (small, large) = (set(10), set(1000));
    let mut route = large.new_route().unwrap();
    large.route(&stream, &[JaggedRef::new(&[999], &[0, 1])][..], &mut route).unwrap();
    let (_arena, d_vectors) = matrix(1, 4, &[1.0; 4]);
    let _ = small.update(&stream, &route, &d_vectors, &Step { learning_rate: 0.1, number: 1 });
}
