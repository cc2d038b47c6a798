use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A power law over `rows` rows: the inverse of its continuous distribution, from a counter-based
/// generator.
fn zipf(exponent: f64, rows: u64, seed: u64, draws: usize) -> Vec<u64> {
    let rng = headlong_device::rng::CounterRng::new(seed, 3);
    let end = (rows as f64).powf(1.0 - exponent);
    let draw = |index: usize| {
        let [a, b, ..] = rng.bits(index as u64);
        let uniform = (f64::from(a) + f64::from(b) / 4294967296.0) / 4294967296.0;
        let rank = (1.0 + uniform * (end - 1.0)).powf(1.0 / (1.0 - exponent));
        (rank as u64 - 1).min(rows - 1)
    };
    (0..draws).map(draw).collect()
}

fn collect(spec: &TableSpec, capacity: usize, batches: &[&[u64]]) -> Statistics {
    let mut collector = Collector::new(std::slice::from_ref(spec), &StatisticsOptions { capacity });
    for batch in batches {
        collector.add(0, batch);
        collector.end_batch(batch.len());
    }
    collector.finish()
}

fn true_counts(rows: &[u64]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    rows.iter().for_each(|&row| *counts.entry(row).or_default() += 1);
    counts
}

fn distinct(rows: &[u64]) -> f64 {
    true_counts(rows).len() as f64
}

#[test]
fn counts_are_exact_within_the_capacity() {
    let lookups = zipf(1.1, 5000, 1, 20_000);
    let statistics =
        collect(&TableSpec::new("a", 5000, 4), 5000, &[&lookups[..9000], &lookups[9000..]]);
    let table = &statistics.tables[0];
    assert_eq!(
        (statistics.num_batches, statistics.num_samples, statistics.batch_size),
        (2, 20_000, 11_000)
    );
    assert!(table.is_exact() && table.sample.is_none());
    let counted: BTreeMap<u64, u64> =
        table.counted.iter().map(|row| (row.row, row.count)).collect();
    assert_eq!(counted, true_counts(&lookups));
    assert!(
        table
            .counted
            .windows(2)
            .all(|two| (two[0].count, two[1].row) >= (two[1].count, two[0].row))
    );
    assert_eq!(table.covered_by_top(usize::MAX), 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_full_table_keeps_its_promises(
        seed in 0_u64..1000, capacity in 1_usize..200, exponent in 0.3_f64..1.8,
        draws in 1_usize..4000,
    ) {
        let lookups = zipf(exponent, 1 << 40, seed, draws);
        let table =
            collect(&TableSpec::new("a", 1 << 40, 4), capacity, &[&lookups]).tables.remove(0);
        let truth = true_counts(&lookups);
        prop_assert!(table.error_bound <= (draws / capacity) as u64);
        prop_assert!(table.counted.len() <= capacity);
        prop_assert_eq!(table.is_exact(), truth.len() <= capacity);
        let listed: BTreeMap<u64, u64> =
            table.counted.iter().map(|row| (row.row, row.count)).collect();
        for (row, &count) in &truth {
            let certain = listed.get(row).copied().unwrap_or(0);
            prop_assert!(
                (certain..=certain + table.error_bound).contains(&count),
                "row {row}: {certain} of {count}"
            );
        }
        if let Some(sample) = &table.sample {
            prop_assert!(sample.rows.len() <= counter::sample_capacity(capacity));
            for row in &sample.rows {
                prop_assert_eq!(row.count, truth[&row.row]);
            }
            let expected =
                truth.keys().filter(|&&row| counter::is_sampled(row, sample.level)).count();
            prop_assert_eq!(sample.rows.len(), expected);
        }
    }

    #[test]
    fn bytes_bring_back_the_same(
        seed in 0_u64..1000, capacity in 1_usize..300, draws in 0_usize..2000, raw in any::<bool>(),
    ) {
        let mut spec = TableSpec::new("größe", 1 << 40, 4);
        if raw {
            spec.keys = Keys::RawIds;
        }
        let statistics = collect(&spec, capacity, &[&zipf(0.9, 1 << 40, seed, draws)]);
        prop_assert_eq!(Statistics::from_bytes(&statistics.to_bytes()), Ok(statistics));
    }

    #[test]
    fn any_damage_is_named(position in 0_usize..400, flip in 1_u8..=255, cut in 0_usize..400) {
        let statistics = collect(&TableSpec::new("a", 50, 4), 100, &[&zipf(1.2, 50, 1, 500)]);
        let bytes = statistics.to_bytes();
        let mut damaged = bytes.clone();
        damaged[position % bytes.len()] ^= flip;
        prop_assert!(Statistics::from_bytes(&damaged).is_err());
        prop_assert!(Statistics::from_bytes(&bytes[..cut % bytes.len()]).is_err());
    }
}

#[test]
fn each_damage_has_its_name() {
    use StatisticsError as E;
    let statistics = collect(&TableSpec::new("a", 50, 4), 100, &[&[1, 1, 2]]);
    let bytes = statistics.to_bytes();
    let with = |position: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[position] = value;
        Statistics::from_bytes(&bytes).unwrap_err()
    };
    assert!(matches!(with(0, b'x'), E::Magic { .. }));
    assert_eq!(with(8, 9), E::Version { expected: 1, found: 9 });
    assert!(matches!(with(14, 77), E::Checksum { .. }));
    assert!(matches!(Statistics::from_bytes(&bytes[..10]).unwrap_err(), E::Truncated { .. }));
    assert!(matches!(Statistics::from_bytes(&bytes[..30]).unwrap_err(), E::Checksum { .. }));
    assert!(with(14, 77).to_string().contains("checksum"));
    // A wrong length under a right checksum is no reason to ask for a terabyte of memory.
    let mut forged = bytes[..12].to_vec();
    forged.extend([1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    forged.extend(xxhash_rust::xxh3::xxh3_64(&forged).to_le_bytes());
    assert!(matches!(Statistics::from_bytes(&forged).unwrap_err(), E::Truncated { .. }));
    let other = [TableSpec::new("b", 50, 4)];
    assert!(statistics.check_tables(&other).unwrap_err().to_string().contains("`b`"));
    assert!(
        statistics.check_tables(&[TableSpec::new("a", 50, 8)]).is_ok(),
        "the width plays no part"
    );
}

#[test]
fn distinct_rows_of_fewer_samples_come_from_those_seen() {
    let spec = TableSpec::new("a", 1_000_000, 4);
    let lookups = zipf(1.05, 1_000_000, 5, 80_000);
    let (seen, other) = lookups.split_at(40_000);
    let statistics = collect(&spec, 1 << 20, &[seen]);
    let table = &statistics.tables[0];
    for size in [100, 512, 2048, 20_000, 40_000] {
        let measured: Vec<f64> = other.chunks_exact(size).map(distinct).collect();
        let mean = measured.iter().sum::<f64>() / measured.len() as f64;
        let predicted = statistics.expected_distinct(0, size as u64);
        assert!(
            (predicted / mean - 1.0).abs() < 0.02,
            "{size}: {predicted} predicted, {mean} counted"
        );
        // Rates of classes must say the same, unseen rows included.
        let rates = table.rates();
        let by_rates = rates.expected_distinct(size as f64);
        assert!(
            (by_rates / mean - 1.0).abs() < 0.03,
            "{size}: {by_rates} by rates, {mean} counted"
        );
    }
    let rates = table.rates();
    let worth: f64 = rates.classes.iter().map(|class| class.rows * class.worth).sum();
    assert!((worth - 40_000.0).abs() < 1e-6 * 40_000.0);
}

#[test]
fn distinct_rows_of_more_samples_count_those_not_seen() {
    let spec = TableSpec::new("a", 1_000_000, 4);
    let lookups = zipf(1.05, 1_000_000, 8, 60_000);
    let statistics = collect(&spec, 1 << 20, &[&lookups[..10_000]]);
    let (predicted, counted) =
        (statistics.expected_distinct(0, 20_000), distinct(&lookups[20_000..40_000]));
    let naive: f64 =
        statistics.tables[0].counted.iter().map(|row| 1.0 - (-2.0 * row.count as f64).exp()).sum();
    assert!((predicted / counted - 1.0).abs() < 0.08, "{predicted} predicted, {counted} counted");
    assert!(
        (naive / counted - 1.0).abs() > 0.3,
        "rows never seen are {naive} of {counted}: why all this is needed"
    );
}

#[test]
fn the_sketch_predicts_as_the_exact_count_does() {
    let spec = TableSpec::new("a", 1 << 30, 4);
    let lookups = zipf(1.0001, 1 << 30, 9, 100_000);
    let exact = collect(&spec, 1 << 20, &[&lookups]);
    let sketch = collect(&spec, 1 << 13, &[&lookups]);
    assert!(exact.tables[0].is_exact() && !sketch.tables[0].is_exact());
    for size in [500, 5000, 50_000] {
        let ratio = sketch.expected_distinct(0, size) / exact.expected_distinct(0, size);
        assert!((ratio - 1.0).abs() < 0.03, "{size}: {ratio}");
    }
}

#[test]
fn a_closed_table_has_no_unseen_rows() {
    let rows: Vec<u64> = (0..1000).map(|index| index % 3).collect();
    let table = collect(&TableSpec::new("a", 3, 4), 10, &[&rows]).tables.remove(0);
    let rates = table.rates();
    assert_eq!(rates.classes.len(), 2, "counts 334 and 333");
    assert_eq!(rates.worth(334), 334.0);
    assert!((table.expected_distinct(500.0) - 3.0).abs() < 1e-9);
    assert!((table.expected_distinct(1e6) - 3.0).abs() < 1e-9);
}

#[test]
fn nothing_counted_is_nothing_expected() {
    let statistics = collect(&TableSpec::new("a", 3, 4), 10, &[]);
    assert_eq!(statistics.expected_distinct(0, 100), 0.0);
    assert_eq!(statistics.tables[0].covered_by_top(3), 0.0);
    assert_eq!(statistics.lambda(0, 10), 0.0);
}
