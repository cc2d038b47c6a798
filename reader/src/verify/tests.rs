use std::fs;
use std::io::Write;

use super::*;

const SMALL: Schema = Schema { labelled: true, num_dense: 2, num_sparse: 2 };

fn verified(files: &[DataFile], most_bad_rows: usize) -> (VerifyReport, Vec<String>) {
    let options = VerifyOptions { schema: SMALL, most_bad_rows };
    let mut seen = Vec::new();
    let mut on_bad_row = |row: &BadRow| seen.push(row.to_string());
    let report = verify(files, &options, &Pool::new(2), &mut on_bad_row, &mut |_| ()).unwrap();
    (report, seen)
}

#[test]
fn every_bad_line_is_named_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let good = "1\t5\t1\ta\tb\n0\t6\t2\tc\td\n";
    let files = ["a.txt", "b.txt"].map(|name| DataFile::from(folder.path().join(name)));
    fs::write(&files[0], format!("{good}2\t5\t1\ta\tb\n{good}1\tx\t1\ta\tb\r\n1\t5\t1\ta\n"))
        .unwrap();
    fs::write(&files[1], format!("1\t5\t1\tg\tb\n{good}")).unwrap();
    let (report, seen) = verified(&files, 3);
    assert_eq!((report.rows, report.bad_rows, report.is_sound()), (6, 4, false));
    let expected = [
        "a.txt, line 3: column label: expected 0 or 1",
        "a.txt, line 6: column I1: expected an integer",
        "a.txt, line 7: expected 5 tab-separated columns, found 4",
        "b.txt, line 1: column C1: expected up to 8 hexadecimal digits",
    ];
    assert_eq!((seen.len(), &report.first_bad_rows), (3, &seen));
    let (_, all) = verified(&files, 10);
    assert_eq!(all.len(), 4);
    for (seen, expected) in all.iter().zip(expected) {
        assert!(seen.contains(expected), "{seen}");
    }
    let text = report.to_string();
    assert!(
        text.contains("and 1 more bad rows")
            && text.ends_with("not every line is a row: 6 good, 4 bad\n"),
        "{text}"
    );
}

#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let files =
        ["none.txt", "cut.gz", "good.txt"].map(|name| DataFile::from(folder.path().join(name)));
    let good = "1\t5\t1\ta\tb\n0\t6\t2\tc\td\n";
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(good.repeat(1000).as_bytes()).unwrap();
    let bytes = encoder.finish().unwrap();
    fs::write(&files[1], &bytes[..bytes.len() - 9]).unwrap();
    fs::write(&files[2], good).unwrap();
    let (report, seen) = verified(&files, 10);
    let failures: Vec<_> =
        report.files.iter().map(|file| file.failure.as_deref().unwrap_or("")).collect();
    assert!(failures[0].starts_with("cannot open"), "{failures:?}");
    assert!(failures[1].contains("truncated"), "{failures:?}");
    assert_eq!(
        (failures[2], report.files[2].rows, seen.len(), report.is_sound()),
        ("", 2, 0, false)
    );
    assert!(report.to_string().contains("failed: cannot open"));
}

#[test]
fn strange_columns_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let file = DataFile::from(folder.path().join("a.txt"));
    fs::write(&file, "0\t-3\t\ta\t\n0\t4\t\ta\t5\n").unwrap();
    let (report, _) = verified(&[file], 10);
    assert!(report.is_sound());
    let found: Vec<String> = report
        .anomalies
        .iter()
        .map(|anomaly| format!("{}: {}", anomaly.column, anomaly.message))
        .collect();
    let expected = [
        "label: it is 0 in all 2 rows: a model learns nothing of one class",
        "I1: 1 negative values (the least is -3), which ln(x+1) takes for 0",
        "I2: it is missing in all 2 rows",
        "C1: it has the same value in all 2 rows",
    ];
    assert_eq!(found, expected);
}
