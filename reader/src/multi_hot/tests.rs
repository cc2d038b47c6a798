use super::*;
use crate::samples::DenseKind;

/// Rows and ids a sample, as in `tests/python/multi_hot.py`: one row, one id, more than 2¹⁶
/// numbers.
const TABLES: [(u64, u32); 7] =
    [(7, 3), (1, 4), (10, 1), (1000, 2), (3, 2), (40_000_000, 1), (65_536, 5)];

/// Bytes that keep all of [`TABLES`], all but the last, which is the largest by far, with many
/// marks and few, and none of them.
const BOUNDS: [Option<u64>; 4] = [None, Some(900_000), Some(100_000), Some(1)];

fn tables(distribution: Distribution, memory_bytes: Option<u64>) -> MultiHot {
    let (rows, sizes): (Vec<u64>, Vec<u32>) = TABLES.into_iter().unzip();
    MultiHot::new(&rows, &MultiHotSpec { sizes, distribution, seed: 0, memory_bytes }).unwrap()
}

/// The numbers drawn for all rows of a table.
fn others(tables: &MultiHot, table: usize) -> Vec<u32> {
    let (mut bags, size) = (Vec::new(), tables.sizes[table] as usize);
    let rows: Vec<u64> = if size > 1 { (0..tables.rows[table]).collect() } else { Vec::new() };
    tables.fill(table, &rows, &mut bags);
    bags.chunks(size).flat_map(|bag| bag[1..].iter().map(|&other| other as u32)).collect()
}

/// What numpy 1 and 2 print for `tests/python/multi_hot.py`: of each table the first twelve
/// numbers, and the sum of all.
fn check(distribution: Distribution, expected: &[(&[u32], u64)]) {
    // Row after row is made again from the mark before it, which takes its time where there is only
    // one.
    for &memory_bytes in &BOUNDS[..3] {
        let tables = tables(distribution, memory_bytes);
        for (table, expected) in expected.iter().enumerate() {
            let of_table =
                format!("{distribution:?} in {memory_bytes:?} bytes, table {}", table + 1);
            let others = others(&tables, table);
            assert_eq!(&others[..others.len().min(12)], expected.0, "{of_table}");
            let sum: u64 = others.iter().map(|&other| u64::from(other)).sum();
            assert_eq!(sum, expected.1, "{of_table}");
        }
    }
}

/// In any order, again and again, from the cache and from marks: the bags of draws that are all
/// kept.
#[test]
fn bags_do_not_depend_on_memory() {
    let random = headlong_device::rng::CounterRng::new(1, 2);
    for distribution in [Distribution::Uniform, Distribution::Pareto] {
        let kept = tables(distribution, None);
        for memory_bytes in &BOUNDS[1..] {
            let bounded = tables(distribution, *memory_bytes);
            for (table, (rows, size)) in
                TABLES.into_iter().enumerate().filter(|(_, (_, size))| *size > 1)
            {
                // Low rows come often, others once.
                let row = |index: u64| (random.uniform(index).powi(4) * rows as f32) as u64;
                let asked: Vec<u64> = (0..3000).map(|index| row(index).min(rows - 1)).collect();
                let [mut expected, mut found] = [Vec::new(), Vec::new()];
                kept.fill(table, &asked, &mut expected);
                bounded.fill(table, &asked, &mut found);
                assert_eq!(
                    found,
                    expected,
                    "{distribution:?} in {memory_bytes:?} bytes, table {}, {size} ids",
                    table + 1
                );
            }
        }
    }
}

/// At MLPerf's sizes with at most 40 million rows a table: no draw is needed for this.
#[test]
fn a_bound_holds_at_full_size() {
    let rows = [
        40_000_000, 39_060, 17_295, 7424, 20_265, 3, 7122, 1543, 63, 40_000_000, 3_067_956,
        405_282, 10, 2209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152,
        12_973, 108, 36,
    ];
    let all = MultiHot::bytes_needed(&rows, &MLPERF_SIZES, None);
    assert_eq!(
        all,
        rows.iter()
            .zip(MLPERF_SIZES)
            .map(|(rows, size)| rows * u64::from(size - 1) * 4)
            .sum::<u64>()
    );
    for bound in [1 << 28, 1 << 30, 4 << 30, 16 << 30] {
        let bytes = MultiHot::bytes_needed(&rows, &MLPERF_SIZES, Some(bound));
        assert!(bytes <= bound && bytes > bound / 10 * 9, "{bytes} of {bound}");
    }
    assert_eq!(MultiHot::bytes_needed(&rows, &MLPERF_SIZES, Some(all)), all);
}

#[test]
fn uniform_draws_are_numpys() {
    check(
        Distribution::Uniform,
        &[
            (&[4, 5, 0, 3, 3, 3, 1, 3, 5, 2, 4, 6], 39),
            (&[0, 0, 0], 0),
            (&[], 0),
            (&[396, 314, 705, 486, 551, 87, 174, 600, 849, 677, 537, 845], 504_718),
            (&[1, 2, 2], 5),
            (&[], 0),
            (
                &[
                    32_637, 5382, 41_574, 28_582, 45_387, 62_834, 58_709, 28_030, 18_802, 23_218,
                    32_563, 27_906,
                ],
                8_578_278_292,
            ),
        ],
    );
}

#[test]
fn pareto_draws_are_numpys() {
    check(
        Distribution::Pareto,
        &[
            (&[2, 3, 4, 1, 1, 6, 1, 0, 3, 5, 5, 5], 44),
            (&[0, 0, 0], 0),
            (&[], 0),
            (&[273, 411, 501, 476, 613, 10, 430, 0, 58, 0, 688, 18], 140_643),
            (&[2, 0, 1], 3),
            (&[], 0),
            (&[1, 47, 58, 11_530, 412, 1889, 13, 1, 0, 0, 11, 0], 832_795_841),
        ],
    );
}

#[test]
fn bags_are_expanded_where_they_lie() {
    let tables = tables(Distribution::Uniform, None);
    let one_hot = |values: &[u64]| Jagged {
        values: values.to_vec(),
        offsets: (0..=values.len() as u32).collect(),
    };
    let mut sparse = TABLES.map(|(rows, _)| one_hot(&[0, 2 % rows, 0])).to_vec();
    let mut buffer = Vec::new();
    tables.expand(&mut sparse, &mut buffer);
    // Rows 0 and 2 of the first table: the first two of the numbers above, and the fifth and sixth.
    assert_eq!(sparse[0].values, [0, 4, 5, 2, 3, 3, 0, 4, 5]);
    assert_eq!(*sparse[0].offsets, [0, 3, 6, 9]);
    assert_eq!(sparse[2], one_hot(&[0, 2, 0]), "one id stays one");
    assert_eq!(*sparse[6].offsets, [0, 5, 10, 15]);
    assert_eq!(others(&tables, 3)[2], 705);
}

#[test]
fn samples_on_their_way_are_expanded_and_checked() {
    let tables = tables(Distribution::Uniform, None);
    let schema = DataSchema::numbered(true, 0, DenseKind::Integers, &[Hotness::Fixed(1); 7]);
    let expanded = MultiHot::expanded(tables.sizes(), &schema).unwrap();
    assert_eq!(expanded.fixed_hotness().unwrap(), TABLES.map(|(_, size)| size));
    let bags = |id: u64| IdBags { ids: vec![id; 2], offsets: Vec::new() };
    let mut sparse = TABLES.map(|(rows, _)| bags(1 % rows)).to_vec();
    tables.expand_samples(&mut sparse, &mut Vec::new()).unwrap();
    assert_eq!(sparse[0].ids, [1, 0, 3, 1, 0, 3]);
    sparse = vec![bags(0); 7];
    sparse[4] = bags(3);
    let error = tables.expand_samples(&mut sparse, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("C5: id 3 is none of the table's 3 rows"), "{error}");
    let varying = DataSchema::numbered(true, 0, DenseKind::Integers, &[Hotness::Varying; 7]);
    let error = MultiHot::expanded(tables.sizes(), &varying).unwrap_err().to_string();
    assert!(error.contains("column C1 has Varying"), "{error}");
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    let refused = |rows: &[u64], sizes: &[u32]| {
        let spec = MultiHotSpec {
            sizes: sizes.to_vec(),
            distribution: Distribution::Uniform,
            seed: 0,
            memory_bytes: None,
        };
        MultiHot::new(rows, &spec).unwrap_err().to_string()
    };
    assert!(refused(&[3, 4], &[1]).contains("expected 2 sizes"), "{}", refused(&[3, 4], &[1]));
    assert!(refused(&[3, 4], &[1, 0]).contains("at least 1"));
    assert!(refused(&[3, 1 << 40], &[1, 2]).contains("C2: expected 1 to 2^31 rows"));
    assert!(refused(&[1 << 31], &[u32::MAX]).contains("the system refuses"));
}

#[test]
fn mlperfs_sizes() {
    assert_eq!(MLPERF_SIZES.iter().sum::<u32>(), 214);
    assert_eq!(MultiHot::bytes_needed(&[10, 5], &[3, 1], None), 80);
}
