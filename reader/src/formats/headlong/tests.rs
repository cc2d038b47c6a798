use super::*;
use crate::formats::testing;

use std::path::PathBuf;

use crate::disk::DiskOptions;
use crate::formats::{Sink, Source as _};
use crate::hashing::{MISSING_ID, fmix64};
use crate::samples::{DenseKind, DenseValues, Hotness, Samples};
use crate::{ReaderError, Result};

fn header(hotness: &[Hotness], dense_kind: DenseKind) -> Header {
    let schema = DataSchema::numbered(true, 3, dense_kind, hotness);
    Header { samples_per_block: 100, ..Header::new(schema, "raw") }
}

fn samples(header: &Header, count: usize, seed: u64) -> Samples {
    let mut samples = Samples::default();
    samples.clear(&header.schema);
    samples.num_samples = count;
    for index in 0..count as u64 {
        let random = |column: u64| fmix64(seed ^ (index << 8 | column));
        samples.labels.push((random(0) % 2) as f32);
        match &mut samples.dense {
            DenseValues::Integers(values) => {
                values.extend((1..4).map(|column| random(column) as i32))
            }
            DenseValues::Numbers(values) => {
                values.extend((1..4).map(|column| random(column) as f32 * 1e-19))
            }
        }
        for (column, (bags, named)) in
            samples.sparse.iter_mut().zip(&header.schema.sparse).enumerate()
        {
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
fn a_block_of_which_parts_are_wanted_one_after_another_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let header = header(&[Hotness::Fixed(1), Hotness::Varying], DenseKind::Integers);
    write(&path, &header, &samples(&header, 450, 3));
    let source = HeadlongSource::open(std::slice::from_ref(&path)).unwrap();
    let bytes_read = |ranges: Vec<std::ops::Range<u64>>| {
        let options = DiskOptions::default();
        let mut stream = source.read(Box::new(ranges.into_iter()), &options).unwrap();
        let (mut some, mut count) = (Samples::default(), 0);
        while stream.next(&mut some).unwrap() {
            count += some.num_samples;
        }
        (count, stream.bytes_read())
    };
    let (count, once) = bytes_read(std::iter::once(0..450).collect());
    assert_eq!(count, 450);
    // Slices of batches, and a block that comes again later.
    let slices = (0..450).step_by(20).map(|first| first..first + 10).collect();
    let (count, of_slices) = bytes_read(slices);
    assert!(count == 230 && of_slices <= once, "{count} samples, {of_slices} of {once} bytes");
    let wanted = vec![10..20, 20..30, 0..100, 0..100, 5..6, 105..110, 5..6];
    assert_eq!(read_ranges(&[path], wanted).unwrap().num_samples, 227);
    let (two, three) = (vec![0..1, 100..101], vec![0..1, 100..101, 0..1]);
    assert!(bytes_read(three).1 > bytes_read(two).1, "it is not kept for longer");
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
            Ok(_) => panic!("byte {byte}: a flipped bit was not found"),
            Err(ReaderError::Format { message, .. }) if message.contains("checksum: expected") => {
                named += 1
            }
            Err(
                ReaderError::Format { .. } | ReaderError::Invalid { .. } | ReaderError::Disk { .. },
            ) => {}
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

/// A file of 250 samples with another header, checksums corrected.
fn with_header(change: impl Fn(String) -> String) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let header = header(&[Hotness::Fixed(1), Hotness::Varying], DenseKind::Integers);
    write(&path, &header, &samples(&header, 250, 7));
    let mut bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let json = change(String::from_utf8(bytes[16..16 + length].to_vec()).unwrap());
    bytes[8..16].copy_from_slice(&(json.len() as u64).to_le_bytes());
    bytes[16..4088].fill(0);
    bytes[16..16 + json.len()].copy_from_slice(json.as_bytes());
    sign(&mut bytes, 0..4096);
    bytes
}

/// The same with other words in its header.
fn with_words(from: &str, to: &str) -> Vec<u8> {
    with_header(|json| {
        assert!(json.contains(from), "{json}");
        json.replace(from, to)
    })
}

/// Makes the last eight bytes of a range the checksum of its others.
fn sign(bytes: &mut [u8], range: std::ops::Range<usize>) {
    let covered = range.start..range.end - 8;
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[covered.clone()]);
    bytes[covered.end..range.end].copy_from_slice(&checksum.to_le_bytes());
}

fn refused(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    std::fs::write(&path, bytes).unwrap();
    let message = read(&[path], 0..250).unwrap_err().to_string();
    assert!(message.contains("a.hld: "), "{message}");
    message
}

#[test]
fn a_header_that_no_data_can_have_is_refused_by_name() {
    let fine = with_words("raw", "rows");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    std::fs::write(&path, &fine).unwrap();
    assert_eq!(read(&[path], 0..250).unwrap().num_samples, 250);
    for (from, to, words) in [
        ("\"samples_per_block\":100", "\"samples_per_block\":0", "expected at least 1, found 0"),
        ("{\"fixed\":1}", "{\"fixed\":0}", "column C1: expected at least one id a sample"),
        ("\"format_version\":2", "\"format_version\":3", "expected format version 2, found 3"),
        ("\"format_version\":2", "\"format_version\":1", "expected format version 2, found 1"),
        ("{\"fixed\":1}", "{\"fixed\":4294967295}", "its columns do not fit its size"),
    ] {
        let message = refused(&with_words(from, to));
        assert!(message.contains(words), "{message}");
    }
    // No columns: samples would take no bytes, and four billion of them would fit any file.
    let schema = DataSchema::numbered(false, 0, DenseKind::Integers, &[]);
    let none = Header { samples_per_block: u32::MAX, ..Header::new(schema, "raw") };
    let none = with_header(|_| serde_json::to_string(&none).unwrap());
    assert!(refused(&none).contains("expected at least one dense or categorical column"));
}

#[test]
fn a_label_that_is_neither_0_nor_1_is_refused_where_it_is_read_and_written() {
    let mut bytes = with_header(|json| json);
    bytes[4096 + 7] = 2;
    let tail = bytes.len() - 8 - 4 * 8;
    let index_from = u64::from_le_bytes(bytes[tail + 16..tail + 24].try_into().unwrap()) as usize;
    let end = u64::from_le_bytes(bytes[index_from..index_from + 8].try_into().unwrap()) as usize;
    sign(&mut bytes, 4096..end);
    let message = refused(&bytes);
    assert!(message.contains("record 8: label: expected 0 or 1, found 2"), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let header =
        header(&[Hotness::Fixed(1)], DenseKind::Transformed(crate::DenseTransform::LnPlus1));
    let good = samples(&header, 120, 7);
    let mut of_label = good.clone();
    of_label.labels[104] = 0.5;
    let mut of_number = good;
    let DenseValues::Numbers(numbers) = &mut of_number.dense else { panic!("numbers were made") };
    numbers[3 * 110 + 2] = f32::INFINITY;
    for (bad, words) in [
        (of_label, "record 105: label: expected 0 or 1, found 0.5"),
        (of_number, "record 111, column I3: expected a finite number, found inf"),
    ] {
        let mut sink = Box::new(HeadlongSink::create(&path, header.clone()).unwrap());
        let message = sink.write(&bad).and_then(|()| sink.finish()).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn files_of_version_1_are_read_and_have_no_checksum_over_their_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let mut bytes = with_words("\"format_version\":2", "\"format_version\":1");
    bytes[..8].copy_from_slice(b"HLDATA01");
    bytes[4088..4096].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let header = header(&[Hotness::Fixed(1), Hotness::Varying], DenseKind::Integers);
    assert!(read(std::slice::from_ref(&path), 0..250).unwrap() == samples(&header, 250, 7));
    assert!(is_headlong(&bytes));
}

#[test]
fn sizes_that_a_sparse_file_promises_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.hld");
    let mut bytes = with_header(|json| json);
    bytes[8..16].copy_from_slice(&(100_u64 << 30).to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(200 << 30).unwrap();
    let message = HeadlongSource::open(std::slice::from_ref(&path)).err().unwrap().to_string();
    assert!(message.contains("expected a header of at most 16777216 bytes"), "{message}");
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
    let transformed =
        header(&[Hotness::Fixed(1)], DenseKind::Transformed(crate::DenseTransform::LnPlus1));
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
