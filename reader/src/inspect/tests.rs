use std::fs;
use std::path::Path;

use super::*;
use crate::DenseTransform;
use crate::formats::Format;
use crate::formats::delimited::DelimitedSource;
use crate::formats::named::{DenseReading, NamedColumns};
use crate::samples::{Hotness, SparseColumn};

fn inspected(text: &str, options: &InspectOptions, threads: usize) -> Result<InspectReport> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.txt");
    fs::write(&file, text).unwrap();
    let report = inspect(&[file.into()], options, &Pool::new(threads), &mut |_| ())?;
    let files = report
        .files
        .iter()
        .map(|file| FileSummary { path: String::new(), ..file.clone() })
        .collect();
    Ok(InspectReport { files, ..report })
}

const SMALL: Schema = Schema { labelled: true, num_dense: 2, num_sparse: 2 };

fn small(on_bad_row: BadRowPolicy) -> InspectOptions {
    InspectOptions { schema: SMALL, on_bad_row, ..InspectOptions::default() }
}

/// What the table says of a column.
fn row<'a>(table: &'a str, column: &str) -> Vec<&'a str> {
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&column)).unwrap()
}

#[test]
fn a_small_file_by_hand() {
    let text = "1\t5\t\ta\t\n0\t-1\t\tb\t\n0\t\t\ta\t7\n0\t8\t\ta\t\n";
    let report = inspected(text, &small(BadRowPolicy::Error), 2).unwrap();
    assert_eq!((report.rows, report.clicks, report.click_rate), (4, Some(1), Some(0.25)));
    let first = &report.dense[0];
    assert_eq!(
        (first.minimum, first.median, first.maximum, first.mean),
        (Some(-1.0), Some(5.0), Some(8.0), Some(4.0))
    );
    assert_eq!((first.missing_share, first.negative_share, first.distinct), (0.25, 0.25, 3));
    let second = &report.dense[1];
    assert_eq!(
        (second.minimum, second.median, second.mean, second.missing_share),
        (None, None, None, 1.0)
    );
    let [first, second] = &*report.sparse else { panic!("two columns") };
    assert_eq!(
        (first.distinct, first.most_frequent.as_deref(), first.most_frequent_share),
        (2, Some("0000000a"), 0.75)
    );
    assert_eq!(
        (second.distinct, second.most_frequent.as_deref(), second.most_frequent_share),
        (1, Some("missing"), 0.75)
    );
    let table = report.to_string();
    assert!(table.contains("4 rows, 1 clicks, click rate 0.25000"), "{table}");
    assert_eq!(row(&table, "I1"), ["I1", "25.0", "25.0", "-1", "5", "5", "8", "4", "3"]);
    assert_eq!(row(&table, "C1"), ["C1", "0.0", "2", "1.00", "0000000a", "75.0"]);
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(json["sparse"][1]["name"], "C2");
}

#[test]
fn threads_change_nothing_and_limits_only_what_they_say() {
    let text = String::from_utf8(crate::criteo::testing::rows(4000, 3)).unwrap();
    let exact = inspected(&text, &InspectOptions::default(), 1).unwrap();
    assert_eq!(exact, inspected(&text, &InspectOptions::default(), 3).unwrap());
    let options = InspectOptions { exact_distinct: 100, ..InspectOptions::default() };
    let estimated = inspected(&text, &options, 2).unwrap();
    for (exact, estimated) in exact.sparse.iter().zip(&estimated.sparse) {
        assert_eq!(exact.missing_share, estimated.missing_share);
        assert_eq!(estimated.distinct_is_exact, exact.distinct <= 100);
        let error = estimated.distinct as f64 / exact.distinct as f64 - 1.0;
        assert!(
            error.abs() < 0.04,
            "{}: {} for {}",
            exact.name,
            estimated.distinct,
            exact.distinct
        );
    }
    assert!(estimated.to_string().contains("~ is an estimate"));
    assert!(estimated.dense.iter().any(|column| column.median.is_none() && column.mean.is_some()));
}

#[test]
fn bad_rows_stop_or_are_counted() {
    let text = "1\t5\t\ta\t\nrubbish\n0\t1\t\tb\t\n";
    let error = inspected(text, &small(BadRowPolicy::Error), 1).unwrap_err();
    assert!(error.to_string().contains("rows.txt, line 2"), "{error}");
    let report = inspected(text, &small(BadRowPolicy::Skip), 1).unwrap();
    assert_eq!((report.rows, report.bad_rows, report.files[0].bad_rows), (2, 1, Some(1)));
    assert!(report.first_bad_rows[0].contains("rows.txt, line 2"));
}

/// Per integer column of the real training sample: missing %, minimum, median, 99th percentile,
/// maximum, distinct.
#[rustfmt::skip]
const REAL_INTEGERS: [(f64, i32, i32, i32, i32, u64); 13] = [
    (45.5, 0, 1, 39, 330, 140), (0.0, -2, 3, 2213, 9814, 2636), (21.1, 0, 6, 218, 38443, 627),
    (21.2, 0, 4, 41, 349, 97), (2.6, 0, 2800, 347_148, 2_071_071, 23507),
    (22.4, 0, 32, 1349, 111_105, 1855),
    (4.3, 0, 3, 211, 3870, 628), (0.1, 0, 7, 48, 1689, 101), (4.3, 0, 38, 982, 9465, 1618),
    (45.5, 0, 1, 3, 7, 8), (4.3, 0, 1, 25, 115, 93), (76.9, 0, 0, 19, 161, 77),
    (21.2, 0, 4, 49, 1574, 172),
];

/// Per categorical column: distinct, missing %, most frequent value and its share in %.
#[rustfmt::skip]
const REAL_CATEGORIES: [(u64, f64, &str, f64); 26] = [
    (516, 0.0, "05db9164", 50.2), (506, 0.0, "38a947a1", 11.4), (44754, 3.5, "missing", 3.5),
    (24464, 3.5, "c18be181", 3.6), (136, 0.0, "25c83c98", 67.4), (11, 12.5, "7e0ccccf", 39.7),
    (7857, 0.0, "1c86e0eb", 2.0), (251, 0.0, "0b153874", 59.5), (3, 0.0, "a73ee510", 89.9),
    (11787, 0.0, "3b08e48b", 21.8), (3838, 0.0, "755e4a50", 3.1), (41036, 3.5, "missing", 3.5),
    (2834, 0.0, "5978055e", 3.1), (26, 0.0, "b28479f6", 35.3), (5244, 0.0, "2d0bb053", 1.6),
    (34179, 3.5, "missing", 3.5), (10, 0.0, "e5ba7672", 46.0), (2581, 0.0, "e88ffc9d", 3.3),
    (1230, 43.8, "missing", 43.8), (3, 43.8, "missing", 43.8), (38208, 3.5, "missing", 3.5),
    (12, 76.2, "missing", 76.2), (14, 0.0, "32c7478e", 43.4), (11720, 3.5, "3fdb382b", 5.2),
    (51, 43.8, "missing", 43.8), (8929, 43.8, "missing", 43.8),
];

#[test]
fn the_real_sample_is_as_published() {
    let path =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo/train.txt.gz"));
    if !path.exists() {
        println!("skipped, because {} is absent", path.display());
        return;
    }
    let report =
        inspect(&[path.into()], &InspectOptions::default(), &Pool::new(2), &mut |_| ()).unwrap();
    assert_eq!(
        (report.rows, report.bad_rows, report.files[0].compression),
        (95_997, 0, Some("gzip"))
    );
    let table = report.to_string();
    let (_, columns) = table.split_once("\n\n").unwrap();
    assert!(
        columns.lines().all(|line| line.chars().count() <= 80),
        "a terminal has 80 columns: {table}"
    );
    // The published figures are rounded.
    let near = |share: f64, percent: f64| (100.0 * share - percent).abs() < 0.0501;
    assert!((report.click_rate.unwrap() - 0.25608).abs() < 0.000_005);
    for (column, expected) in report.dense.iter().zip(REAL_INTEGERS) {
        let (missing, minimum, median, percentile_99, maximum, distinct) = expected;
        assert!(near(column.missing_share, missing), "{column:?}");
        assert_eq!(
            (column.minimum, column.maximum),
            (Some(f64::from(minimum)), Some(f64::from(maximum))),
            "{column:?}"
        );
        assert_eq!(
            (column.median, column.distinct),
            (Some(f64::from(median)), distinct),
            "{column:?}"
        );
        // The published percentile may lie between two values.
        let difference = (column.percentile_99.unwrap() - f64::from(percentile_99)).abs();
        assert!(difference <= 1.0 + 0.001 * f64::from(percentile_99), "{column:?}");
    }
    for (column, (distinct, missing, most_frequent, share)) in
        report.sparse.iter().zip(REAL_CATEGORIES)
    {
        assert_eq!(
            (column.distinct, column.most_frequent.as_deref()),
            (distinct, Some(most_frequent)),
            "{column:?}"
        );
        assert!(
            near(column.missing_share, missing) && near(column.most_frequent_share, share),
            "{column:?}"
        );
    }
}

#[test]
fn other_formats_are_described_alike() {
    let folder = tempfile::tempdir().unwrap();
    let text = "label,price,C1,tags\n1,3,7,a|b\n0,,7,\n0,-4.5,,a\n1,3,9,c|a|b\n";
    let file = crate::io::testing::write(folder.path(), "a.csv", text.as_bytes());
    let column = |name: &str, hotness| SparseColumn { name: name.to_owned(), hotness };
    let columns = NamedColumns {
        label: Some("label".to_owned()),
        weight: None,
        dense: vec!["price".to_owned()],
        dense_reading: DenseReading::Raw(DenseTransform::Identity),
        sparse: vec![column("C1", Hotness::Fixed(1)), column("tags", Hotness::Varying)],
        dense_columns: None,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: Vec::new(),
    };
    let files = [file];
    let source = DelimitedSource::open(&files, &columns, BadRowPolicy::Error).unwrap();
    let report =
        inspect_samples(&source, &files, Format::Csv, 1000, &Pool::new(2), &mut |_| ()).unwrap();
    assert_eq!((report.rows, report.clicks, report.files[0].rows), (4, Some(2), None));
    let price = &report.dense[0];
    assert_eq!((price.minimum, price.median, price.maximum), (Some(-4.5), Some(0.0), Some(3.0)));
    assert_eq!((price.missing_share, price.negative_share, price.distinct), (0.25, 0.25, 3));
    assert_eq!(price.mean, Some(0.375), "a missing number counts as 0");
    let few = inspect_samples(&source, &files, Format::Csv, 1, &Pool::new(2), &mut |_| ()).unwrap();
    assert_eq!((few.dense[0].mean, few.dense[0].median), (price.mean, None));
    let [first, tags] = &*report.sparse else { panic!("two columns") };
    assert_eq!(
        (first.distinct, first.most_frequent.as_deref(), first.missing_share),
        (2, Some("7"), 0.25)
    );
    assert_eq!((tags.distinct, tags.ids_per_sample, tags.most_frequent_share), (3, 1.5, 0.5));
    let table = report.to_string();
    assert!(
        table.contains("a.csv: 58 bytes (csv)") && table.contains("4 rows, 2 clicks"),
        "{table}"
    );
    assert_eq!(row(&table, "tags")[..4], ["tags", "0.0", "3", "1.50"]);
}

#[test]
fn a_compressed_table_says_so() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"label,I1,C1\n1,2,a\n").unwrap();
    let file = crate::io::testing::write(folder.path(), "a.csv.gz", &gzip.finish().unwrap());
    let source =
        crate::convert::open(Format::Csv, std::slice::from_ref(&file), &Default::default())
            .unwrap();
    let report =
        inspect_samples(&*source, &[file], Format::Csv, 9, &Pool::new(1), &mut |_| ()).unwrap();
    assert_eq!((report.files[0].format, report.files[0].compression), ("csv", Some("gzip")));
    assert!(report.to_string().contains(" bytes (csv, gzip)"), "{report}");
}
