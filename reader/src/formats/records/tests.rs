use super::*;
use crate::formats::testing::read_ranges;

use crate::disk::DiskOptions;
use crate::formats::{Sink, Source};
use crate::samples::{DenseValues, Samples};

/// Samples that a layout can hold, from a seed.
fn samples(layout: &RecordLayout, count: usize, seed: u64) -> Samples {
    let mut samples = Samples::default();
    samples.clear(&layout.schema);
    samples.num_samples = count;
    let mut state = seed;
    let mut random = move || {
        state += 1;
        crate::hashing::fmix64(state)
    };
    samples.labels.extend((0..count).map(|_| (random() % 2) as f32));
    let num_dense = layout.schema.dense.len();
    match &mut samples.dense {
        DenseValues::Integers(values) => {
            values.extend((0..count * num_dense).map(|_| (random() >> 40) as i32))
        }
        DenseValues::Numbers(values) => {
            values.extend((0..count * num_dense).map(|_| (random() >> 40) as f32 / 1024.0));
        }
    }
    for (bags, column) in samples.sparse.iter_mut().zip(&layout.schema.sparse) {
        let Hotness::Fixed(hotness) = column.hotness else {
            unreachable!("records have a fixed hotness")
        };
        bags.ids.extend((0..count * hotness as usize).map(|_| random() >> 33));
    }
    samples
}

fn read_all(source: &dyn Source, range: std::ops::Range<u64>) -> Result<Samples> {
    read_ranges(source, std::iter::once(range).collect(), &DiskOptions::default())
}

#[test]
fn records_have_the_published_sizes() {
    assert_eq!(RecordLayout::mlperf().record_bytes, 160);
    assert_eq!(RecordLayout::dcnv2().record_bytes, 912);
    assert_eq!(DCNV2_HOTNESS.iter().sum::<u32>(), 214);
}

#[test]
fn what_is_written_is_read_again_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let raw = RecordLayout::raw(true, 0, DenseKind::Integers, &[2, 5]).unwrap();
    for (name, layout) in
        [("mlperf", RecordLayout::mlperf()), ("dcnv2", RecordLayout::dcnv2()), ("raw", raw)]
    {
        let paths =
            [folder.path().join(format!("{name}.0")), folder.path().join(format!("{name}.1"))];
        let parts = [samples(&layout, 5000, 1), samples(&layout, 2999, 2)];
        let mut expected = Samples::default();
        expected.clear(&layout.schema);
        for (path, part) in paths.iter().zip(&parts) {
            let mut sink = Box::new(layout.create(path).unwrap());
            sink.write(part).unwrap();
            assert!(!path.exists(), "a file has its name when it is whole");
            sink.finish().unwrap();
            expected.extend_from(part, 0..part.num_samples, &layout.schema);
        }
        let source = layout.open(&paths).unwrap();
        assert_eq!(source.num_samples(), Some(7999));
        assert!(read_all(&source, 0..7999).unwrap() == expected, "{name}");
        let ranges = vec![4990..5010, 7998..7999, 0..1, 3000..3000, 17..4999];
        let mut wanted = Samples::default();
        wanted.clear(&layout.schema);
        for range in &ranges {
            wanted.extend_from(&expected, range.start as usize..range.end as usize, &layout.schema);
        }
        assert!(read_ranges(&source, ranges, &DiskOptions::default()).unwrap() == wanted, "{name}");
    }
}

#[test]
fn mlperf_records_are_little_endian_integers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.bin");
    let numbers: Vec<i32> =
        std::iter::once(1).chain(100..113).chain(-1..0).chain(1000..1025).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(bytes.len(), 160);
    std::fs::write(&path, &bytes).unwrap();
    let source = RecordLayout::mlperf().open(std::slice::from_ref(&path)).unwrap();
    let read = read_all(&source, 0..1).unwrap();
    assert_eq!(read.labels, [1.0]);
    assert_eq!(read.dense, DenseValues::Integers((100..113).collect()));
    assert_eq!(read.sparse[0].ids, [u64::from(u32::MAX)], "ids are the 32 bits of the file");
    assert_eq!(read.sparse[25].ids, [1024]);
}

#[test]
fn damage_is_named_with_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.bin");
    let layout = RecordLayout::mlperf();
    let mut sink = Box::new(layout.create(&path).unwrap());
    sink.write(&samples(&layout, 3000, 3)).unwrap();
    sink.finish().unwrap();
    let good = std::fs::read(&path).unwrap();

    std::fs::write(&path, &good[..good.len() - 7]).unwrap();
    let message = layout.open(std::slice::from_ref(&path)).err().unwrap().to_string();
    assert!(
        message.contains("day.bin: truncated") && message.contains("2999 records and 153 bytes"),
        "{message}"
    );

    let mut bad = good.clone();
    bad[2500 * 160] = 7;
    std::fs::write(&path, &bad).unwrap();
    let source = layout.open(std::slice::from_ref(&path)).unwrap();
    let message = read_all(&source, 0..3000).unwrap_err().to_string();
    assert!(message.contains("day.bin: record 2501: label: expected 0 or 1, found 7"), "{message}");
}

#[test]
fn a_value_that_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let layout = RecordLayout::mlperf();
    let mut too_large = samples(&layout, 3, 4);
    too_large.sparse[4].ids[1] = 1 << 40;
    let mut sink = Box::new(layout.create(&folder.path().join("x")).unwrap());
    let message = sink.write(&too_large).unwrap_err().to_string();
    assert!(
        message.contains(
            "record 2: column C5: expected an id of at most 4294967295, found 1099511627776: --rows"
        ),
        "{message}"
    );
}
