//! Damage to arrays and split files, each found by name before a wrong number is trained on.

#![cfg(test)]

use headlong_reader::DenseTransform;
use headlong_reader::convert::{self, Described};
use headlong_reader::disk::DiskOptions;
use headlong_reader::formats::npy::NpySink;
use headlong_reader::formats::split::SplitSink;
use headlong_reader::formats::{Format, Sink};
use headlong_reader::io::DataFile;
use headlong_reader::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples};
use std::path::{Path, PathBuf};

fn schema(hotness: &[u32]) -> DataSchema {
    let hotness: Vec<_> = hotness.iter().map(|&count| Hotness::Fixed(count)).collect();
    DataSchema::numbered(true, 2, DenseKind::Transformed(DenseTransform::LnPlus1), &hotness)
}

fn samples(schema: &DataSchema, count: usize) -> Samples {
    let mut samples = Samples::default();
    samples.clear(schema);
    samples.num_samples = count;
    samples.labels.extend((0..count).map(|row| (row % 2) as f32));
    samples.dense = DenseValues::Numbers((0..2 * count).map(|index| index as f32).collect());
    for (bags, hotness) in samples.sparse.iter_mut().zip(schema.fixed_hotness().unwrap()) {
        bags.ids.extend((0..count as u64 * u64::from(hotness)).map(|id| id % 90));
    }
    samples
}

fn write_arrays(stem: &Path, hotness: &[u32], count: usize) {
    let schema = schema(hotness);
    let mut sink = Box::new(NpySink::create(stem, &schema).unwrap());
    sink.write(&samples(&schema, count)).unwrap();
    sink.finish().unwrap();
}

/// Opens and reads everything; the error as it is shown, or nothing.
fn message(format: Format, paths: &[PathBuf]) -> String {
    let read = || -> headlong_reader::Result<u64> {
        let files: Vec<_> = paths.iter().map(DataFile::from).collect();
        let source = convert::open(format, &files, &Described::default())?;
        let end = source.num_samples().unwrap_or(u64::MAX);
        let mut stream = source.read(Box::new(std::iter::once(0..end)), &DiskOptions::default())?;
        let (mut some, mut count) = (Samples::default(), 0);
        while stream.next(&mut some)? {
            count += some.num_samples as u64;
        }
        Ok(count)
    };
    read().map_or_else(|error| error.to_string(), |count| format!("{count} samples were read"))
}

/// Writes `to` over the first `from` of a file.
fn patch(file: &Path, from: &[u8], to: &[u8]) {
    let mut bytes = std::fs::read(file).unwrap();
    let at =
        bytes.windows(from.len()).position(|window| window == from).expect("the bytes are there");
    bytes[at..at + to.len()].copy_from_slice(to);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn arrays_that_are_not_what_they_should_be_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let again = || {
        write_arrays(&path("a"), &[2, 3], 100);
        write_arrays(&path("b"), &[2, 4], 100);
    };
    again();
    assert_eq!(message(Format::Npy, &[path("a")]), "100 samples were read");
    let expect = |paths: &[&str], words: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|name| path(name)).collect();
        let found = message(Format::Npy, &paths);
        words
            .iter()
            .for_each(|word| assert!(found.contains(word), "\"{word}\" is not in: {found}"));
    };
    // Another hotness, a shard that is not there, one of its files that is not there.
    expect(
        &["a", "b"],
        &["b: ids a sample: expected [Fixed(2), Fixed(3)], found [Fixed(2), Fixed(4)]"],
    );
    expect(&["a", "c"], &["c_labels.npy", "No such file"]);
    std::fs::remove_file(path("a_sparse_multi_hot.npz")).unwrap();
    expect(&["a"], &["a_sparse.npy", "No such file"]);

    again();
    patch(&path("a_dense.npy"), b"'fortran_order': False", b"'fortran_order': True ");
    expect(&["a"], &["a_dense.npy", "found Fortran order"]);
    again();
    patch(&path("a_labels.npy"), b"'<i4'", b"'>i4'");
    expect(&["a"], &["a_labels.npy", "expected little-endian numbers"]);
    again();
    write_arrays(&path("d"), &[2, 3], 99);
    std::fs::rename(path("d_dense.npy"), path("a_dense.npy")).unwrap();
    expect(&["a"], &["a_dense.npy: expected 100 samples as in", "found 99"]);
    again();
    let bytes = std::fs::read(path("a_labels.npy")).unwrap();
    std::fs::write(path("a_labels.npy"), &bytes[..bytes.len() - 2]).unwrap();
    expect(&["a"], &["a_labels.npy", "truncated"]);

    // Shapes that no data has: of no columns, of more bytes than there are, of numbers where ids
    // belong.
    for (file, from, to, words) in [
        (
            "a_labels.npy",
            "(100, 1)",
            "(100, 0)",
            "expected rows of 1 to 16777216 bytes, found the shape (100, 0)",
        ),
        ("a_labels.npy", "(100, 1)", "(0, 1)  ", "expected 0 samples as in"),
        ("a_labels.npy", "(100, 1)", "(50, 2) ", "labels: expected 1 a sample, found 2"),
        ("a_dense.npy", "(100, 2), }          ", "(100, 999999999999), }", "expected rows of 1 to"),
        (
            "a_dense.npy",
            "(100, 2), }              ",
            "(9199999999999999999, 2),}",
            "needs more than 2^64 bytes",
        ),
        (
            "a_dense.npy",
            "(100, 2), }          ",
            "(1, 4000000)        , }",
            "expected at most 65536 columns",
        ),
        ("a_sparse_multi_hot.npz", "(100, 2)", "(100, 0)", "0.npy: expected rows of 1 to"),
        (
            "a_sparse_multi_hot.npz",
            "'<i4'",
            "'<f4'",
            "ids of column C1: expected whole numbers, found float32",
        ),
    ] {
        again();
        patch(&path(file), from.as_bytes(), to.as_bytes());
        expect(&["a"], &[file, words]);
    }

    // A member that is compressed (its two headers say method 8), one whose shape is not its size,
    // an archive cut short.
    again();
    let file = path("a_sparse_multi_hot.npz");
    let mut bytes = std::fs::read(&file).unwrap();
    for (magic, method_at) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        let starts: Vec<_> =
            (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == *magic).collect();
        starts.into_iter().for_each(|at| bytes[at + method_at] = 8);
    }
    std::fs::write(&file, bytes).unwrap();
    expect(
        &["a"],
        &["a_sparse_multi_hot.npz: 0.npy is compressed", "numpy.savez, not savez_compressed"],
    );
    again();
    patch(&file, b"'shape': (100, 2)", b"'shape': (100, 3)");
    expect(&["a"], &["a_sparse_multi_hot.npz", "0.npy: its shape needs"]);
    again();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    expect(&["a"], &["a_sparse_multi_hot.npz: not an npz"]);
}

#[test]
fn a_damaged_specification_of_split_files_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (train, file) = (folder.path().join("train"), folder.path().join("feature_spec.yaml"));
    let again = || {
        let schema = schema(&[1, 1]);
        let mut sink = Box::new(SplitSink::create(&train, &schema, &[90, 90]).unwrap());
        sink.write(&samples(&schema, 100)).unwrap();
        sink.finish().unwrap();
        std::fs::read_to_string(&file).unwrap()
    };
    let text = again();
    assert_eq!(message(Format::Split, std::slice::from_ref(&train)), "100 samples were read");
    let damages = [
        (text[..text.len() / 2].to_owned(), "feature_spec.yaml"),
        ("feature_spec: [".to_owned(), "feature_spec.yaml"),
        (text.replace("float16", "float17"), "unknown dtype \"float17\""),
        (text.replace("train/numerical.bin", "train/numbers.bin"), "numbers.bin"),
        (text.replace("  train:", "  test:"), "train"),
        (text.replace("dtype: int8", "dtype: int32"), "expected"),
        (
            text.replace("dtype: int8", "dtype: float32"),
            "ids of column cat_0.bin: expected whole numbers",
        ),
        (
            text.replace("train/numerical.bin", "../train/numerical.bin"),
            "expected a path inside its folder",
        ),
        (
            text.replace("train/numerical.bin", "/dev/zero"),
            "expected a path inside its folder, found \"/dev/zero\"",
        ),
        ("[".repeat(100_000), "line 1: nested more than 32 deep"),
        ("{\n".repeat(100_000), "line 33: nested more than 32 deep"),
        ("- ".repeat(100_000), "line 1: nested more than 32 deep"),
        ("-".repeat(100_000), "feature_spec.yaml"),
        ("a: &a [".to_owned() + &"*a,".repeat(500_000) + "]", "feature_spec.yaml"),
        (" ".repeat(5 << 20), "expected at most 4194304 bytes"),
    ];
    for (damaged, word) in damages {
        std::fs::write(&file, &damaged).unwrap();
        let started = std::time::Instant::now();
        let found = message(Format::Split, std::slice::from_ref(&train));
        let shown = &damaged[..damaged.len().min(2000)];
        assert!(
            found.contains(word) && !found.ends_with("were read"),
            "\"{word}\" is not in: {found}\n{shown}"
        );
        assert!(started.elapsed().as_secs() < 5, "{:?} for {shown}", started.elapsed());
    }
    std::fs::remove_file(&file).unwrap();
    again();
    std::fs::remove_file(train.join("cat_1.bin")).unwrap();
    let found = message(Format::Split, std::slice::from_ref(&train));
    assert!(found.contains("cat_1.bin"), "{found}");
}
