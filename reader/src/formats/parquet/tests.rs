use super::*;
use crate::formats::testing::read_ranges;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::formats::named::{DenseReading, NamedColumns};
use crate::formats::{Sink, Source};
use crate::hashing::{MISSING_ID, fmix64};
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples, SparseColumn};
use crate::{DenseTransform, Result};

const HOTNESS: [Hotness; 3] = [Hotness::Fixed(1), Hotness::Varying, Hotness::Fixed(4)];

/// Samples with everything that can be in a file: missing values, empty lists, the largest ids.
fn samples(schema: &DataSchema, count: usize) -> Samples {
    let mut samples = Samples::default();
    samples.clear(schema);
    samples.num_samples = count;
    for index in 0..count as u64 {
        let random = |column: u64| fmix64(index << 8 | column);
        samples.labels.push((random(0) % 2) as f32);
        for column in 1..4 {
            let bits = random(column);
            match &mut samples.dense {
                DenseValues::Integers(values) if bits % 5 == 0 => values.push(MISSING_DENSE),
                DenseValues::Integers(values) => values.push(bits as i32 | 1),
                DenseValues::Numbers(values) => values.push(bits as f32 * 1e-19 - 0.5),
            }
        }
        for (column, bags) in samples.sparse.iter_mut().enumerate() {
            let bits = random(10 + column as u64);
            let hotness = [1, bits % 4, 4][column];
            let id = |at: u64| if column == 0 && bits % 7 == 0 { MISSING_ID } else { fmix64(bits + at) };
            bags.ids.extend((0..hotness).map(id));
            if column == 1 {
                bags.offsets.push(bags.ids.len() as u32);
            }
        }
    }
    samples
}

fn write(path: &Path, schema: &DataSchema, samples: &Samples) {
    let mut sink = Box::new(ParquetSink::create(path, schema).unwrap());
    sink.write(samples).unwrap();
    sink.finish().unwrap();
}

fn read(paths: &[PathBuf], columns: Option<&NamedColumns>, ranges: Vec<Range<u64>>) -> Result<Samples> {
    let source = ParquetSource::open(paths, columns, DenseTransform::Identity)?;
    read_ranges(&source, ranges, &DiskOptions::default())
}

#[test]
fn what_is_written_is_read_again_over_row_groups_and_files() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [DenseKind::Integers, DenseKind::Transformed(DenseTransform::LnPlus3)] {
        let schema = DataSchema::numbered(true, 3, kind, &HOTNESS);
        let (first, second) = (samples(&schema, 70_000), samples(&schema, 10));
        let paths = [folder.path().join("a.parquet"), folder.path().join("b.parquet")];
        write(&paths[0], &schema, &first);
        write(&paths[1], &schema, &second);
        let source = ParquetSource::open(&paths, None, DenseTransform::Identity).unwrap();
        assert_eq!((source.schema(), source.num_samples()), (&schema, Some(70_010)));
        let ranges = vec![0..70_010, 65_530..65_540, 3..5, 4..5000, 69_999..70_001];
        let mut expected = Samples::default();
        expected.clear(&schema);
        let mut all = first.clone();
        all.extend_from(&second, 0..10, &schema);
        for range in &ranges {
            expected.extend_from(&all, range.start as usize..range.end as usize, &schema);
        }
        assert!(read(&paths, None, ranges).unwrap() == expected, "{kind:?}");
    }
}

fn whole(count: u64) -> Vec<Range<u64>> {
    std::iter::once(0..count).collect()
}

fn columns(hotness: &[Hotness], reading: DenseReading) -> NamedColumns {
    NamedColumns {
        label: Some("label".to_owned()),
        dense: vec!["I1".to_owned(), "I2".to_owned(), "I3".to_owned()],
        dense_reading: reading,
        sparse: hotness
            .iter()
            .enumerate()
            .map(|(index, &hotness)| SparseColumn { name: format!("C{}", index + 1), hotness })
            .collect(),
        list_separator: b'|',
        ignored: Vec::new(),
    }
}

#[test]
fn columns_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.parquet")];
    let schema = DataSchema::numbered(true, 3, DenseKind::Transformed(DenseTransform::Identity), &HOTNESS);
    let mut sink = Box::new(ParquetSink::create_with(&paths[0], &schema, None).unwrap());
    sink.write(&samples(&schema, 10)).unwrap();
    sink.finish().unwrap();
    let refused = |hotness: &[Hotness], reading: DenseReading| {
        read(&paths, Some(&columns(hotness, reading)), whole(10)).unwrap_err().to_string()
    };
    let raw = DenseReading::Raw(DenseTransform::Identity);
    let message = refused(&[Hotness::Fixed(1); 3], raw);
    assert!(message.contains("a.parquet: column `C2`: expected one value a row, found a list"), "{message}");
    let message = refused(&[Hotness::Varying; 3], raw);
    assert!(message.contains("column `C1`: expected a list, found one value a row"), "{message}");
    let message = refused(&HOTNESS[..2], raw);
    assert!(message.contains("column `C3` has no place"), "{message}");
    let message = refused(&[HOTNESS[0], HOTNESS[1], Hotness::Fixed(5)], raw);
    assert!(
        message.contains("row 0, column `C3`: expected as many values as in every sample, found 4"),
        "{message}"
    );
    let message = refused(&HOTNESS, DenseReading::Integers);
    assert!(message.contains("row 0, column `I1`: expected an integer of 32 bits, found"), "{message}");
}

#[test]
fn a_damaged_file_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.parquet")];
    let schema = DataSchema::numbered(true, 3, DenseKind::Integers, &HOTNESS);
    write(&paths[0], &schema, &samples(&schema, 500));
    let good = std::fs::read(&paths[0]).unwrap();
    for length in [0, 3, good.len() / 2, good.len() - 1] {
        std::fs::write(&paths[0], &good[..length]).unwrap();
        let message = read(&paths, None, whole(500)).unwrap_err().to_string();
        assert!(message.contains("a.parquet"), "{message}");
    }
    // Our own page checksums would be another program's surprise; what decodes at all keeps its shape.
    for byte in (4..good.len()).step_by(101) {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        std::fs::write(&paths[0], &bad).unwrap();
        let _ = read(&paths, None, whole(500));
    }
}
