use super::*;
use crate::formats::testing;

use std::path::PathBuf;

use crate::disk::DiskOptions;
use crate::formats::Sink;
use crate::hashing::{MISSING_ID, fmix64};
use crate::samples::{DenseKind, DenseValues, Hotness, Samples};
use crate::{ReaderError, Result};

fn header(hotness: &[Hotness], dense_kind: DenseKind) -> Header {
    let schema = DataSchema::numbered(true, 3, dense_kind, hotness);
    Header { format_version: 1, schema, samples_per_block: 100, ids: "raw".to_owned() }
}

fn samples(header: &Header, count: usize, seed: u64) -> Samples {
    let mut samples = Samples::default();
    samples.clear(&header.schema);
    samples.num_samples = count;
    for index in 0..count as u64 {
        let random = |column: u64| fmix64(seed ^ (index << 8 | column));
        samples.labels.push((random(0) % 2) as f32);
        match &mut samples.dense {
            DenseValues::Integers(values) => values.extend((1..4).map(|column| random(column) as i32)),
            DenseValues::Numbers(values) => values.extend((1..4).map(|column| random(column) as f32 * 1e-19)),
        }
        for (column, (bags, named)) in samples.sparse.iter_mut().zip(&header.schema.sparse).enumerate() {
            let random = random(10 + column as u64);
            let hotness = match named.hotness {
                Hotness::Fixed(hotness) => u64::from(hotness),
                Hotness::Varying => random % 4,
            };
            // Some blocks need wide ids, and some do not.
            let wide = column == 0 && index / 100 == 1;
            let id = |at: u64| if wide { MISSING_ID + at } else { fmix64(random + at) >> 32 };
            bags.ids.extend((0..hotness).map(id));
            if named.hotness == Hotness::Varying {
                bags.offsets.push(bags.ids.len() as u32);
            }
        }
    }
    samples
}

fn write(path: &std::path::Path, header: &Header, samples: &Samples) {
    let mut sink = Box::new(HeadlongSink::create(path, header.clone()).unwrap());
    // In unequal portions.
    let mut from = 0;
    for portion in [1, 250, 33, 7, usize::MAX] {
        let to = samples.num_samples.min(from + portion.min(samples.num_samples - from));
        let mut some = Samples::default();
        some.clear(&header.schema);
        some.extend_from(samples, from..to, &header.schema);
        sink.write(&some).unwrap();
        from = to;
    }
    sink.finish().unwrap();
}

fn read(paths: &[PathBuf], range: std::ops::Range<u64>) -> Result<Samples> {
    read_ranges(paths, std::iter::once(range).collect())
}

fn read_ranges(paths: &[PathBuf], ranges: Vec<std::ops::Range<u64>>) -> Result<Samples> {
    let source = HeadlongSource::open(paths)?;
    // Small reads, so that blocks come in pieces.
    let options = DiskOptions { block_bytes: 4096, depth: 3, ..DiskOptions::default() };
    testing::read_ranges(&source, ranges, &options)
}

#[test]
fn what_is_written_is_read_again_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.hld"), folder.path().join("b.hld")];
    let kinds = [DenseKind::Integers, DenseKind::Transformed(crate::DenseTransform::LnPlus3)];
    for kind in kinds {
        let header = header(&[Hotness::Fixed(1), Hotness::Varying, Hotness::Fixed(40)], kind);
        let (first, second) = (samples(&header, 731, 1), samples(&header, 200, 2));
        write(&paths[0], &header, &first);
        write(&paths[1], &header, &second);
        let mut expected = first.clone();
        expected.extend_from(&second, 0..200, &header.schema);
        assert!(read(&paths, 0..931).unwrap() == expected);
        let ranges = vec![730..732, 99..101, 5..5, 0..931, 250..260];
        let mut wanted = Samples::default();
        wanted.clear(&header.schema);
        for range in &ranges {
            wanted.extend_from(&expected, range.start as usize..range.end as usize, &header.schema);
        }
        assert!(read_ranges(&paths, ranges).unwrap() == wanted);
        assert_eq!(HeadlongSource::open(&paths).unwrap().header(), &header);
    }
}

#[test]
fn every_flipped_bit_is_found_and_names_its_block() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let header = header(&[Hotness::Fixed(1), Hotness::Varying], DenseKind::Integers);
    let samples = samples(&header, 250, 7);
    write(&path, &header, &samples);
    let good = std::fs::read(&path).unwrap();
    let mut named = 0;
    for byte in (0..good.len()).step_by(13) {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        std::fs::write(&path, &bad).unwrap();
        match read(std::slice::from_ref(&path), 0..250) {
            Ok(found) => {
                // Names of columns and padding are not data.
                assert!(byte < 4096 && found == samples, "byte {byte}");
            }
            Err(ReaderError::Format { message, .. }) if message.contains("checksum: expected") => named += 1,
            Err(ReaderError::Format { .. } | ReaderError::Invalid { .. } | ReaderError::Disk { .. }) => {}
            Err(other) => panic!("byte {byte}: {other}"),
        }
    }
    assert!(named > 100, "{named}");
    let mut bad = good.clone();
    bad[4096 + 10] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let message = read(std::slice::from_ref(&path), 0..250).unwrap_err().to_string();
    assert!(message.contains("a.hld: block 0 (samples 0 to 99): checksum: expected"), "{message}");
}

#[test]
fn a_truncated_file_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let header = header(&[Hotness::Fixed(1)], DenseKind::Integers);
    write(&path, &header, &samples(&header, 250, 7));
    let good = std::fs::read(&path).unwrap();
    for length in [0, 5, 4096, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(HeadlongSource::open(std::slice::from_ref(&path)).is_err(), "{length} bytes");
    }
}

#[test]
fn files_of_other_columns_or_ids_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.hld"), folder.path().join("b.hld")];
    let one = header(&[Hotness::Fixed(1)], DenseKind::Integers);
    let transformed = header(&[Hotness::Fixed(1)], DenseKind::Transformed(crate::DenseTransform::LnPlus1));
    let other_ids = Header { ids: "dictionary 5".to_owned(), ..one.clone() };
    for (other, expected) in
        [(transformed, "dense numbers: expected Integers"), (other_ids, "expected ids of \"raw\"")]
    {
        write(&paths[0], &one, &samples(&one, 10, 1));
        write(&paths[1], &other, &samples(&other, 10, 1));
        let message = HeadlongSource::open(&paths).err().unwrap().to_string();
        assert!(message.contains(expected) && message.contains("b.hld"), "{message}");
    }
}
