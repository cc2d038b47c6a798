use super::*;
use crate::formats::testing::read_ranges;

/// Real-looking text: missing values, negative integers, ids of all sizes.
fn text(rows: usize) -> String {
    let mut text = String::new();
    for row in 0..rows as u64 {
        let random = |column: u64| crate::hashing::fmix64(row << 8 | column);
        text.push_str(if random(0) % 4 == 0 { "1" } else { "0" });
        for column in 1..14 {
            let value = random(column);
            match value % 5 {
                0 => text.push('\t'),
                1 => text.push_str(&format!("\t-{}", value % 3 + 1)),
                _ => text.push_str(&format!("\t{}", value >> 45)),
            }
        }
        for column in 14..40 {
            let value = random(column);
            text.push_str(&if value % 7 == 0 {
                "\t".to_owned()
            } else {
                format!("\t{:08x}", value >> 32)
            });
        }
        text.push('\n');
    }
    text
}

fn run(
    from: Format,
    paths: &[PathBuf],
    to: Format,
    output: &Path,
    options: &ConvertOptions,
) -> Result<Converted> {
    let files: Vec<DataFile> = paths.iter().map(DataFile::from).collect();
    let source = open(from, &files, &Described::default())?;
    convert(&*source, to, output, options, &mut |_| {})
}

fn plain() -> ConvertOptions {
    ConvertOptions {
        transform: None,
        keep_integers: false,
        rows: None,
        sizes: None,
        disk: DiskOptions::default(),
    }
}

fn all(format: Format, path: &Path) -> Samples {
    let source = open(format, &[path.into()], &Described::default()).unwrap();
    let end = source.num_samples().unwrap_or(u64::MAX);
    read_ranges(&*source, std::iter::once(0..end).collect(), &DiskOptions::default()).unwrap()
}

fn convert(
    source: &dyn Source,
    format: Format,
    output: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Converted> {
    Conversion::begin(source, format, output, options)?.run(None, progress)
}

#[test]
fn text_survives_our_own_format_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let [first, ours, back] = ["a.txt", "a.hld", "b.txt"].map(|name| folder.path().join(name));
    std::fs::write(&first, text(9000)).unwrap();
    let converted =
        run(Format::Criteo, std::slice::from_ref(&first), Format::Headlong, &ours, &plain())
            .unwrap();
    assert_eq!(converted.num_samples, 9000);
    assert_eq!(detect(&ours.clone().into()).unwrap(), Format::Headlong);
    run(Format::Headlong, &[ours], Format::Criteo, &back, &plain()).unwrap();
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&back).unwrap());
}

#[test]
fn formats_with_less_keep_what_they_have_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let [first, ours] = ["a.txt", "a.hld"].map(|name| folder.path().join(name));
    std::fs::write(&first, text(3000)).unwrap();
    let rows: Vec<u64> = (0..26).map(|column| [100, 1000, 1 << 20][column % 3]).collect();
    let options = ConvertOptions {
        transform: Some(DenseTransform::LnPlus1),
        rows: Some(rows.clone()),
        ..plain()
    };
    run(Format::Criteo, std::slice::from_ref(&first), Format::Headlong, &ours, &options).unwrap();
    let expected = all(Format::Headlong, &ours);
    let cases = [
        (Format::Raw, "a.raw", "a.raw", Format::Raw),
        (Format::Npy, "day_0", "day_0_dense.npy", Format::Npy),
        (Format::Split, "split/train", "split/train", Format::Split),
    ];
    for (format, output, path, detected) in cases {
        let output = folder.path().join(output);
        run(Format::Headlong, std::slice::from_ref(&ours), format, &output, &options).unwrap();
        let path = folder.path().join(path);
        if format != Format::Raw {
            assert_eq!(detect(&path.clone().into()).unwrap(), detected);
        }
        let described = Described {
            raw: (13, DenseKind::Transformed(DenseTransform::LnPlus1), vec![1; 26]),
            ..Described::default()
        };
        let source = open(format, &[path.clone().into()], &described).unwrap();
        let again = folder.path().join(format!("again-{format}.hld"));
        convert(&*source, Format::Headlong, &again, &options, &mut |_| {}).unwrap();
        let found = all(Format::Headlong, &again);
        assert_eq!(found.labels, expected.labels, "{format}");
        assert_eq!(found.sparse, expected.sparse, "{format}");
        match (&found.dense, &expected.dense) {
            (DenseValues::Numbers(found), DenseValues::Numbers(expected))
                if format == Format::Split =>
            {
                let halves: Vec<f32> =
                    expected.iter().map(|&value| half::f16::from_f32(value).to_f32()).collect();
                assert_eq!(*found, halves, "split data has 16-bit numbers");
            }
            (found, expected) => assert_eq!(found, expected, "{format}"),
        }
    }
    assert_eq!(split_rows(&folder.path().join("split/train")).unwrap(), rows);
}

#[test]
fn a_shard_of_arrays_replaces_all_of_a_former_one() {
    let folder = tempfile::tempdir().unwrap();
    let stem = folder.path().join("day_0");
    let write = |num_dense, hotness| {
        let kind = DenseKind::Transformed(DenseTransform::LnPlus1);
        let schema = DataSchema::numbered(true, num_dense, kind, &[Hotness::Fixed(hotness)]);
        let mut samples = Samples::default();
        samples.clear(&schema);
        samples.num_samples = 1;
        samples.labels.push(1.0);
        samples.dense = DenseValues::Numbers(vec![0.5; num_dense]);
        samples.sparse[0].ids = vec![u64::from(hotness); hotness as usize];
        let mut sink = create(Format::Npy, &stem, &schema, &plain()).unwrap();
        sink.write(&samples).unwrap();
        sink.finish().unwrap();
    };
    for (num_dense, hotness) in [(2, 3), (2, 1), (0, 3), (0, 1)] {
        write(num_dense, hotness);
        let found = all(Format::Npy, &stem);
        assert_eq!(found.sparse[0].ids, vec![u64::from(hotness); hotness as usize]);
        assert_eq!(found.dense, DenseValues::Numbers(vec![0.5; num_dense]));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_a_format_cannot_hold_is_refused_before_a_file_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("a.txt");
    std::fs::write(&first, text(10)).unwrap();
    let cases = [
        (Format::Npy, "npy holds transformed numbers"),
        (
            Format::Raw,
            "(--dense-transform \"ln(x+1)\"), or that another program reads integers (--integers)",
        ),
        (Format::Split, "rows of every column's table"),
    ];
    for (format, expected) in cases {
        let output = folder.path().join("out");
        let message = run(Format::Criteo, std::slice::from_ref(&first), format, &output, &plain())
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{message}");
    }
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.txt"]);
}

/// All of `path` again as our own format has it.
fn as_ours(format: Format, path: &Path, described: &Described, folder: &Path) -> Samples {
    let source = open(format, &[path.into()], described).unwrap();
    let ours = folder.join("ours.hld");
    convert(&*source, Format::Headlong, &ours, &plain(), &mut |_| {}).unwrap();
    all(Format::Headlong, &ours)
}

/// Every pair of `formats`, from and to; samples stay what they are to the bit.
fn check_pairs(formats: &[Format], expected: &Samples, first: &Path, described: &Described) {
    let folder = tempfile::tempdir().unwrap();
    let options = ConvertOptions { rows: Some(vec![1000; expected.sparse.len()]), ..plain() };
    let path = |name: &str, format: Format| folder.path().join(format!("{name}-{format}/{format}"));
    for &from in formats {
        for name in ["one", "two"] {
            std::fs::create_dir_all(path(name, from).parent().unwrap()).unwrap();
        }
        let start = open(Format::Headlong, &[first.into()], described).unwrap();
        convert(&*start, from, &path("one", from), &options, &mut |_| {}).unwrap();
    }
    for &from in formats {
        for &to in formats {
            let source = open(from, &[path("one", from).into()], described).unwrap();
            convert(&*source, to, &path("two", to), &options, &mut |_| {}).unwrap();
            let found = as_ours(to, &path("two", to), described, folder.path());
            assert_eq!(found.labels, expected.labels, "{from} to {to}");
            assert_eq!(found.dense, expected.dense, "{from} to {to}");
            assert_eq!(found.sparse, expected.sparse, "{from} to {to}");
        }
    }
}

#[test]
fn any_two_formats_become_each_other_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let [text_file, ours, halves] =
        ["a.txt", "a.hld", "b.hld"].map(|name| folder.path().join(name));
    std::fs::write(
        &text_file,
        text(700)
            .replace('-', "")
            .replace("\t\t", "\t0\t")
            .replace("\t\t", "\t0\t")
            .replace("\t\n", "\t0\n"),
    )
    .unwrap();
    let rows = ConvertOptions { rows: Some(vec![1000; 26]), ..plain() };
    run(Format::Criteo, &[text_file], Format::Headlong, &ours, &rows).unwrap();
    let integers = Described { dense_reading: DenseReading::Integers, ..Described::default() };
    let formats = [Format::Headlong, Format::Mlperf, Format::Parquet, Format::Csv, Format::Criteo];
    check_pairs(&formats, &all(Format::Headlong, &ours), &ours, &integers);

    // Numbers of 16 bits, which split data can hold.
    let schema = DataSchema::numbered(
        true,
        13,
        DenseKind::Transformed(DenseTransform::LnPlus1),
        &[Hotness::Fixed(1); 26],
    );
    let mut samples = all(Format::Headlong, &ours);
    if let DenseValues::Integers(values) = &samples.dense {
        samples.dense = DenseValues::Numbers(
            values.iter().map(|&value| (value % 2048) as f32 / 64.0).collect(),
        );
    }
    let mut sink = create(Format::Headlong, &halves, &schema, &plain()).unwrap();
    sink.write(&samples).unwrap();
    sink.finish().unwrap();
    let described = Described { raw: (13, schema.dense_kind, vec![1; 26]), ..Described::default() };
    let formats =
        [Format::Headlong, Format::Raw, Format::Npy, Format::Split, Format::Parquet, Format::Csv];
    check_pairs(&formats, &samples, &halves, &described);
}
