use super::*;
use crate::formats::testing::read_ranges;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type,
};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;

use crate::columns::{BinnedColumn, Bins, ColumnFunction, DenseColumns};
use crate::convert::Described;
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::formats::named::{DenseReading, NamedColumns, id_of_text};
use crate::formats::{Sink, Source};
use crate::hashing::{MISSING_ID, fmix64};
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples, SparseColumn};
use crate::times::{TimeColumn, TimePart};
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
            let id =
                |at: u64| if column == 0 && bits % 7 == 0 { MISSING_ID } else { fmix64(bits + at) };
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

fn described(columns: Option<&NamedColumns>) -> Described {
    Described {
        transform: DenseTransform::Identity,
        columns: columns.cloned(),
        ..Described::default()
    }
}

fn read(
    paths: &[PathBuf],
    columns: Option<&NamedColumns>,
    ranges: Vec<Range<u64>>,
) -> Result<Samples> {
    let source = ParquetSource::open(paths, &described(columns))?;
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
        let source = ParquetSource::open(&paths, &described(None)).unwrap();
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
        weight: None,
        dense: vec!["I1".to_owned(), "I2".to_owned(), "I3".to_owned()],
        dense_reading: reading,
        sparse: hotness
            .iter()
            .enumerate()
            .map(|(index, &hotness)| SparseColumn { name: format!("C{}", index + 1), hotness })
            .collect(),
        dense_columns: None,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: Vec::new(),
    }
}

#[test]
fn columns_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.parquet")];
    let schema =
        DataSchema::numbered(true, 3, DenseKind::Transformed(DenseTransform::Identity), &HOTNESS);
    let mut sink = Box::new(ParquetSink::create_with(&paths[0], &schema, None).unwrap());
    sink.write(&samples(&schema, 10)).unwrap();
    sink.finish().unwrap();
    let refused = |hotness: &[Hotness], reading: DenseReading| {
        read(&paths, Some(&columns(hotness, reading)), whole(10)).unwrap_err().to_string()
    };
    let raw = DenseReading::Raw(DenseTransform::Identity);
    let message = refused(&[Hotness::Fixed(1); 3], raw);
    assert!(
        message.contains("a.parquet: column `C2`: expected one value a row, found a list"),
        "{message}"
    );
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
    assert!(
        message.contains("row 0, column `I1`: expected an integer of 32 bits, found"),
        "{message}"
    );
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
    // Our own page checksums would be another program's surprise; what decodes at all keeps its
    // shape.
    for byte in (4..good.len()).step_by(101) {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        std::fs::write(&paths[0], &bad).unwrap();
        let _ = read(&paths, None, whole(500));
    }
}

/// A file as other writers make it: a row group of columns that `fill` writes.
fn write_foreign(
    path: &Path,
    message: &str,
    compression: Compression,
    fill: impl FnOnce(&mut SerializedRowGroupWriter<'_, File>),
) {
    let schema = Arc::new(parse_message_type(message).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    fill(&mut group);
    group.close().unwrap();
    writer.close().unwrap();
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    defined: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(values, defined, None).unwrap();
    column.close().unwrap();
}

/// A table as pandas and polars write it: truth values as labels, numbers and ids with gaps, words,
/// lists as text.
const FOREIGN: &str = "message table {
    required boolean clicked; optional double price; optional int64 shop; optional double year;
    optional binary genres (UTF8); required boolean is_new; }";

fn write_foreign_table(path: &Path, compression: Compression) {
    write_foreign(path, FOREIGN, compression, |group| {
        put::<BoolType>(group, &[true, false, true, false], None);
        put::<DoubleType>(group, &[3.0, f64::NAN, 0.0], Some(&[1, 0, 1, 1]));
        put::<Int64Type>(group, &[-1, 7, 1 << 32], Some(&[1, 1, 0, 1]));
        put::<DoubleType>(group, &[1996.0, f64::NAN, 0.5, -2.0], Some(&[1; 4]));
        let texts = ["drama|war", "", "war"].map(ByteArray::from);
        put::<ByteArrayType>(group, &texts, Some(&[1, 1, 0, 1]));
        put::<BoolType>(group, &[true, true, false, false], None);
    });
}

fn foreign_columns() -> NamedColumns {
    let sparse =
        [("shop", Hotness::Fixed(1)), ("year", Hotness::Fixed(1)), ("genres", Hotness::Varying)];
    NamedColumns {
        label: Some("clicked".to_owned()),
        weight: None,
        dense: vec!["price".to_owned(), "is_new".to_owned()],
        dense_reading: DenseReading::Raw(DenseTransform::Identity),
        sparse: sparse
            .map(|(name, hotness)| SparseColumn { name: name.to_owned(), hotness })
            .to_vec(),
        dense_columns: None,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: Vec::new(),
    }
}

#[test]
fn what_pandas_and_polars_write_is_read_in_every_compression() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    for compression in compressions {
        write_foreign_table(&path, compression);
        let paths = std::slice::from_ref(&path);
        let source = ParquetSource::open(paths, &described(Some(&foreign_columns()))).unwrap();
        let mut stream =
            source.read(Box::new(std::iter::once(0..4)), &DiskOptions::default()).unwrap();
        let mut samples = Samples::default();
        assert!(stream.next(&mut samples).unwrap(), "{compression}");
        assert_eq!(samples.labels, [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(
            samples.dense,
            DenseValues::Numbers(vec![3.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        );
        assert_eq!(samples.dense_missing, [2, 0], "a null and what stands for one");
        let word = |text: &str| id_of_text(text.as_bytes());
        // Numbers are the ids that their text has in a CSV file.
        assert_eq!(samples.sparse[0].ids, [word("-1"), 7, MISSING_ID, word("4294967296")]);
        assert_eq!(samples.sparse[1].ids, [1996, MISSING_ID, word("0.5"), word("-2")]);
        assert_eq!(
            (&samples.sparse[2].offsets[..], samples.sparse[2].ids[1]),
            (&[0, 2, 2, 2, 3][..], word("war"))
        );
    }
}

/// Of 3.0, a null, what stands for one, and 0.0.
#[test]
fn numbers_have_functions_and_bins_of_their_own_which_own_files_of_numbers_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_foreign_table(&path, Compression::UNCOMPRESSED);
    let plain = ColumnFunction { transform: DenseTransform::Identity, standard: None };
    let each = DenseColumns::new(
        DenseTransform::Identity,
        vec![ColumnFunction { standard: Some((1.0, 4.0)), ..plain }, plain],
        vec![BinnedColumn { column: 0, bins: Bins::Edges(vec![1.0]) }],
    );
    let dense_columns = Some(Arc::new(each));
    let columns = NamedColumns { dense_columns: dense_columns.clone(), ..foreign_columns() };
    let samples = read(&[path], Some(&columns), whole(4)).unwrap();
    assert_eq!(samples.dense, DenseValues::Numbers(vec![0.5, 1.0, 0.0, 1.0, 0.0, 0.0, -0.25, 0.0]));
    assert_eq!((samples.sparse.len(), &samples.sparse[3].ids[..]), (4, &[2, 0, 0, 1][..]));

    let own = folder.path().join("b.parquet");
    let kind = DenseKind::Transformed(DenseTransform::LnPlus3);
    let schema = DataSchema::numbered(true, 3, kind, &HOTNESS);
    write(&own, &schema, &self::samples(&schema, 10));
    let described = Described { dense_columns, ..described(None) };
    let error = ParquetSource::open(&[own], &described).err().unwrap().to_string();
    assert!(error.contains("b.parquet") && error.contains("[[column]]"), "{error}");
}

#[test]
fn an_empty_word_is_a_missing_value_as_it_is_in_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_foreign_table(&path, Compression::UNCOMPRESSED);
    let mut columns = foreign_columns();
    columns.sparse[2].hotness = Hotness::Fixed(1);
    let samples = read(&[path], Some(&columns), whole(4)).unwrap();
    let word = |text: &str| id_of_text(text.as_bytes());
    assert_eq!(samples.sparse[2].ids, [word("drama|war"), MISSING_ID, MISSING_ID, word("war")]);
}

/// Their integers are counts of a unit that the writer has chosen, or lack a point.
#[test]
fn dates_times_and_decimals_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let columns = |name: &str| NamedColumns {
        label: None,
        weight: None,
        dense: Vec::new(),
        sparse: vec![SparseColumn { name: name.to_owned(), hotness: Hotness::Fixed(1) }],
        ignored: vec!["I1".to_owned(), "C1".to_owned()],
        ..foreign_columns()
    };
    for (kind, annotation, found) in [
        ("int64", "(TIMESTAMP(NANOS,true))", "timestamps"),
        ("int64", "(TIMESTAMP_MICROS)", "timestamps"),
        ("int32", "(DATE)", "dates"),
        ("int32", "(TIME_MILLIS)", "times of day"),
        ("int64", "(TIME(NANOS,false))", "times of day"),
        ("int64", "(DECIMAL(9,2))", "decimals"),
        ("binary", "(DECIMAL(9,2))", "decimals"),
        ("fixed_len_byte_array(2)", "(FLOAT16)", "16-bit numbers"),
        ("fixed_len_byte_array(4)", "", "bytes of a fixed length"),
        ("int96", "", "timestamps (INT96)"),
    ] {
        let message = format!(
            "message m {{ optional {kind} I1 {annotation}; required {kind} C1 {annotation}; }}"
        );
        let schema = Arc::new(parse_message_type(&message).unwrap());
        let file = File::create(&path).unwrap();
        SerializedFileWriter::new(file, schema, Arc::default()).unwrap().close().unwrap();
        let open = |columns: &NamedColumns| {
            let paths = std::slice::from_ref(&path);
            ParquetSource::open(paths, &described(Some(columns))).map(drop)
        };
        let dense =
            NamedColumns { dense: vec!["I1".to_owned()], sparse: Vec::new(), ..columns("") };
        for (columns, name) in [(columns("C1"), "C1"), (dense, "I1")] {
            let refused = open(&columns).unwrap_err().to_string();
            let expected =
                format!("column `{name}`: expected numbers, truth values or words, found {found};");
            assert!(refused.contains(&expected), "{message}: {refused}");
            assert!(refused.contains("write it as"), "{refused}");
        }
        open(&NamedColumns { sparse: Vec::new(), ..columns("") }).unwrap();
    }
}

/// 2024-03-07 13:05:22 as writers of files count it, and a gap.
#[test]
fn times_of_every_type_have_the_same_parts() {
    const SECONDS: i64 = 1_709_816_722;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let table = "message m { optional int64 ns (TIMESTAMP(NANOS,true));
        optional int64 ms (TIMESTAMP_MILLIS); optional int32 day (DATE); optional int64 s;
        optional double float; optional binary text (UTF8); }";
    let write = |text: &str| {
        write_foreign(&path, table, Compression::UNCOMPRESSED, |group| {
            let gap = Some(&[0, 1][..]);
            put::<Int64Type>(group, &[SECONDS * 1_000_000_000 + 999_999_999], gap);
            put::<Int64Type>(group, &[SECONDS * 1000], gap);
            put::<Int32Type>(group, &[(SECONDS / 86_400) as i32], gap);
            put::<Int64Type>(group, &[SECONDS], gap);
            put::<DoubleType>(group, &[f64::NAN, SECONDS as f64], Some(&[1, 1]));
            put::<ByteArrayType>(group, &[ByteArray::from(text)], gap);
        });
    };
    write("2024-03-07T13:05:22Z");
    let times = ["ns", "ms", "day", "s", "float", "text"];
    let of_times = |name: &str| TimeColumn {
        name: name.to_owned(),
        parts: vec![TimePart::Weekday, TimePart::Hour],
    };
    let columns = NamedColumns {
        label: None,
        dense: Vec::new(),
        sparse: Vec::new(),
        times: times.map(of_times).to_vec(),
        ..foreign_columns()
    };
    let paths = [path.clone()];
    let found = read(&paths, Some(&columns), whole(2)).unwrap();
    let ids: Vec<_> = found.sparse.iter().map(|bags| &bags.ids[..]).collect();
    let (weekday, hour) = (&[0, 4][..], &[0, 14][..]);
    let mut expected = [weekday, hour].repeat(6);
    expected[5] = &[0, 0];
    assert_eq!(ids, expected);
    assert_eq!(columns.schema(false).sparse[1].name, "ns.hour");
    write("7 March");
    let message = read(&paths, Some(&columns), whole(2)).unwrap_err().to_string();
    let words = "row 1, column `text`: expected a time such as 2024-03-07 13:05:22, or whole \
                 seconds since 1970, found \"7 March\"";
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_field_of_a_structure_is_not_taken_for_its_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let named = |dense: &str| NamedColumns {
        label: None,
        weight: None,
        dense: vec![dense.to_owned()],
        sparse: vec![SparseColumn { name: "C1".to_owned(), hotness: Hotness::Varying }],
        ..foreign_columns()
    };
    for (message, column) in [
        ("message m { required group I3 { required int32 a; } required binary C1 (UTF8); }", "I3"),
        (
            "message m { required int32 I3; required group C1 (LIST) { repeated group list { \
             required group element { required int32 a; } } } }",
            "C1",
        ),
        (
            "message m { required int32 I3; required group C1 (LIST) { repeated group array { \
             required int32 a; } } }",
            "C1",
        ),
    ] {
        write_foreign(&path, message, Compression::SNAPPY, |group| {
            while let Some(mut column) = group.next_column().unwrap() {
                match column.untyped() {
                    ColumnWriter::Int32ColumnWriter(writer) => {
                        writer.write_batch(&[5], Some(&[1]), Some(&[0])).unwrap()
                    }
                    ColumnWriter::ByteArrayColumnWriter(writer) => {
                        writer.write_batch(&[ByteArray::from("x")], None, None).unwrap()
                    }
                    _ => panic!("another column"),
                };
                column.close().unwrap();
            }
        });
        let message = read(std::slice::from_ref(&path), Some(&named("I3")), whole(1))
            .unwrap_err()
            .to_string();
        let expected =
            format!("column `{column}`: expected values or lists of them, found a structure");
        assert!(message.contains(&expected), "{message}");
    }
}
