use super::*;
use crate::kind::Shard;
use crate::table::EmbeddingTable;
use crate::tables::dense::DenseTable;
use headlong_device::optimizer::Optimizer;
use headlong_device::{DType, Stream};

#[test]
fn any_cut_gives_the_same_values() {
    let values = InitialValues::new(&TableSpec::new("t", 400, 5), 7, 3);
    let mut whole = vec![0.0; 2000];
    values.fill(0, &mut whole);
    assert!(whole.iter().all(|x| x.abs() <= 0.05));
    assert!(whole.iter().any(|x| *x < -0.04) && whole.iter().any(|x| *x > 0.04));
    for (first, len) in [(0, 2000), (1, 1999), (3, 5), (7, 130), (64, 64), (1030, 900), (1999, 1)] {
        let mut part = vec![9.0; len];
        values.fill(first as u64, &mut part);
        assert_eq!(part, whole[first..first + len], "elements {first}+{len}");
    }
}

/// Rows in any order, and dims that fill groups of lanes or do not: what `fill` says of each row.
#[test]
fn rows_one_by_one_are_the_same_values() {
    for dim in [1, 4, 5, 16, 20, 128, 2052] {
        let values = InitialValues::new(&TableSpec::new("t", 1 << 40, dim), 7, 3);
        let row_of = |index: u64| (index * 0x0004_0001 + 5) % (1 << 34);
        for rows in [0, 1, 3, 150] {
            let mut out = vec![9.0; rows * dim];
            values.fill_rows(dim, row_of, &mut out);
            for (index, row) in (0..).zip(out.chunks(dim)) {
                let mut expected = vec![0.0; dim];
                values.fill(row_of(index) * dim as u64, &mut expected);
                assert_eq!(row, expected, "row {index} of dim {dim}");
            }
        }
    }
}

#[test]
fn seed_and_table_matter_and_zeros_are_zero() {
    let spec = TableSpec::new("t", 100, 4);
    let first = |seed, table| {
        let mut out = [0.0; 4];
        InitialValues::new(&spec, seed, table).fill(40, &mut out);
        out
    };
    assert_ne!(first(1, 0), first(2, 0));
    assert_ne!(first(1, 0), first(1, 1));
    let zeros = TableSpec { init: Init::Zeros, ..spec.clone() };
    let mut out = [1.0; 3];
    InitialValues::new(&zeros, 1, 0).fill(2, &mut out);
    assert_eq!(out, [0.0; 3]);
}

/// Every element as the generator's definition has it, one by one.
fn expected(spec: &TableSpec, env: &TableEnv, bound: f32) -> Vec<f32> {
    let numbers = CounterRng::new(env.seed, STREAM_OF_TABLES | env.table_index);
    let value = |row: u64, column: usize| {
        let unit = numbers.uniform(env.row_of_local(row) * spec.dim as u64 + column as u64);
        let exact = -bound + 2.0 * bound * unit;
        match spec.dtype {
            DType::F16 => half::f16::from_f32(exact).to_f32(),
            DType::Bf16 => half::bf16::from_f32(exact).to_f32(),
            _ => exact,
        }
    };
    (0..spec.rows).flat_map(|row| (0..spec.dim).map(move |column| value(row, column))).collect()
}

/// A table of `rows` local rows, those of a larger table that `row_of_local` names, holds what the
/// definition says.
fn check(stream: &Stream, (rows, dim): (u64, usize), dtype: DType, shard: Option<Shard>) {
    let optimizer = Optimizer::RowWiseAdagrad { epsilon: 0.0, initial_accumulator: 0.25 };
    let env = TableEnv { stream, optimizer: &optimizer, seed: 5 << 40 | 3, table_index: 17, shard };
    let bound = 0.3;
    let spec =
        TableSpec { dtype, init: Init::Uniform { bound }, ..TableSpec::new("city", rows, dim) };
    let table = DenseTable::new(&spec, &env).unwrap();
    let tensor = |tensor: usize, cols: usize| {
        let mut values = vec![f32::NAN; rows as usize * cols];
        table.read_rows(tensor, 0, &mut values).unwrap();
        values
    };
    let what = format!("{rows} rows of {dim} {dtype:?}, shard {}", shard.is_some());
    assert!(tensor(0, dim) == expected(&spec, &env, bound), "{what}");
    assert!(tensor(1, 1).iter().all(|&x| x == 0.25), "{what}: accumulators");
}

/// Whole tables and shards with rows in any order, up to the last that a device takes; dims that
/// are groups of four or not.
fn check_all(stream: &Stream, dtypes: &[DType]) {
    let row_of_local = |row: u64| (row * 0x0123_4567 + 89) % ((1 << 31) - 2);
    let shard = Shard { table_rows: (1 << 31) - 2, row_of_local: &row_of_local };
    for &dtype in dtypes {
        for dim in [1, 4, 5, 16, 128] {
            check(stream, (150, dim), dtype, None);
            check(stream, (150, dim), dtype, Some(shard));
        }
    }
    // More rows than have their numbers on a device at a time.
    check(stream, (65_700, 4), DType::F32, Some(shard));
}

#[test]
fn tables_begin_as_defined() {
    check_all(&Stream::cpu(2), &[DType::F32]);
}

mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::stream;

    #[test]
    fn tables_on_a_device_begin_as_defined() {
        let Some(stream) = stream() else { return };
        check_all(&stream, &[DType::F32, DType::F16, DType::Bf16]);
    }
}
