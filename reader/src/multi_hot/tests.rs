use super::*;
use crate::samples::DenseKind;

/// Rows and ids a sample, as in `tests/python/multi_hot.py`: one row, one id, more than 2¹⁶ numbers.
const TABLES: [(u64, u32); 7] = [(7, 3), (1, 4), (10, 1), (1000, 2), (3, 2), (40_000_000, 1), (65_536, 5)];

fn tables(distribution: Distribution) -> MultiHot {
    let (rows, sizes): (Vec<u64>, Vec<u32>) = TABLES.into_iter().unzip();
    MultiHot::new(&rows, &MultiHotSpec { sizes, distribution, seed: 0 }).unwrap()
}

/// What numpy 1 and 2 print for `tests/python/multi_hot.py`: of each table the first twelve numbers, and the sum of all.
fn check(distribution: Distribution, expected: &[(&[u32], u64)]) {
    let tables = tables(distribution);
    for ((others, expected), table) in tables.others.iter().zip(expected).zip(1..) {
        assert_eq!(&others[..others.len().min(12)], expected.0, "{distribution:?}, table {table}");
        let sum: u64 = others.iter().map(|&other| u64::from(other)).sum();
        assert_eq!(sum, expected.1, "{distribution:?}, table {table}");
    }
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
                    32_637, 5382, 41_574, 28_582, 45_387, 62_834, 58_709, 28_030, 18_802, 23_218, 32_563,
                    27_906,
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
    let tables = tables(Distribution::Uniform);
    let one_hot =
        |values: &[u64]| Jagged { values: values.to_vec(), offsets: (0..=values.len() as u32).collect() };
    let mut sparse = TABLES.map(|(rows, _)| one_hot(&[0, 2 % rows, 0])).to_vec();
    let mut buffer = Vec::new();
    tables.expand(&mut sparse, &mut buffer);
    // Rows 0 and 2 of the first table: the first two of the numbers above, and the fifth and sixth.
    assert_eq!(sparse[0].values, [0, 4, 5, 2, 3, 3, 0, 4, 5]);
    assert_eq!(sparse[0].offsets, [0, 3, 6, 9]);
    assert_eq!(sparse[2], one_hot(&[0, 2, 0]), "one id stays one");
    assert_eq!(sparse[6].offsets, [0, 5, 10, 15]);
    assert_eq!(tables.others(3, 2), [705]);
}

#[test]
fn samples_on_their_way_are_expanded_and_checked() {
    let tables = tables(Distribution::Uniform);
    let schema = DataSchema::numbered(true, 0, DenseKind::Integers, &[Hotness::Fixed(1); 7]);
    let expanded = tables.expanded(&schema).unwrap();
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
    let error = tables.expanded(&varying).unwrap_err().to_string();
    assert!(error.contains("column C1 has Varying"), "{error}");
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    let refused = |rows: &[u64], sizes: &[u32]| {
        let spec = MultiHotSpec { sizes: sizes.to_vec(), distribution: Distribution::Uniform, seed: 0 };
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
    assert_eq!(MultiHot::bytes_needed(&[10, 5], &[3, 1]), 80);
}
