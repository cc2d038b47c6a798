use super::*;
use crate::formats::testing::read_ranges;

use crate::DenseTransform;
use crate::convert::{self, Described};
use crate::criteo::BlockOptions;
use crate::formats::Format;
use crate::formats::named::{DenseReading, id_of_text};
use crate::io::testing::write;
use crate::samples::SparseColumn;

fn columns(dense: &[&str], sparse: &[(&str, Hotness)], ignored: &[&str]) -> NamedColumns {
    NamedColumns {
        label: Some("clicked".to_owned()),
        weight: None,
        dense: dense.iter().map(|&name| name.to_owned()).collect(),
        dense_reading: DenseReading::Raw(DenseTransform::LnPlus1),
        sparse: sparse
            .iter()
            .map(|&(name, hotness)| SparseColumn { name: name.to_owned(), hotness })
            .collect(),
        dense_columns: None,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: ignored.iter().map(|&name| name.to_owned()).collect(),
    }
}

const ONE: Hotness = Hotness::Fixed(1);

fn films() -> NamedColumns {
    columns(&["price"], &[("film", ONE), ("genres", Hotness::Varying)], &["session"])
}

fn all(source: &dyn Source, ranges: Vec<Range<u64>>) -> Result<Samples> {
    read_ranges(source, ranges, &DiskOptions::default())
}

fn read(text: &str, columns: &NamedColumns) -> Result<Samples> {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", text.as_bytes());
    let source = DelimitedSource::open(&[path], columns, BadRowPolicy::Error)?;
    all(&source, std::iter::once(0..source.num_samples().unwrap()).collect())
}

#[test]
fn quoted_fields_lists_gaps_and_long_ids_are_read_as_they_are_meant() {
    let text = "genres,session,clicked,price,film\r\n\
                drama|war,18446744073709551616,1,0,7\r\n\
                \"\",12345678901234567890,0,,\"a \"\"film\"\", long\"\r\n\
                \"drama\",3,0,1.5e1,18446744073709551615\r\n";
    let samples = read(text, &films()).unwrap();
    assert_eq!((samples.num_samples, &samples.labels[..]), (3, &[1.0, 0.0, 0.0][..]));
    assert_eq!(samples.dense, DenseValues::Numbers(vec![0.0, 0.0, 16_f64.ln() as f32]));
    assert_eq!(samples.sparse[0].ids, [7, id_of_text(b"a \"film\", long"), u64::MAX]);
    assert_eq!(samples.sparse[1].offsets, [0, 2, 2, 3]);
    let drama = id_of_text(b"drama");
    assert_eq!(samples.sparse[1].ids, [drama, id_of_text(b"war"), drama]);
    assert!(drama >> 63 == 1, "words and small numbers never meet");
}

#[test]
fn ids_of_text_are_numbers_where_they_can_be_written_back() {
    for (text, id) in [("0", 0), ("42", 42), ("9999999999", 9_999_999_999)] {
        assert_eq!(id_of_text(text.as_bytes()), id);
    }
    // Other spellings are words, and so is the number that means a missing value.
    for text in ["007", "+1", "-1", "1.0", "4294967296", "18446744073709551616", ""] {
        assert!(id_of_text(text.as_bytes()) >> 63 == 1, "{text}");
    }
}

#[test]
fn what_is_wrong_is_named_with_line_and_column() {
    let header = "clicked,price,film,genres,session\n";
    let refused = |rows: &str| read(&format!("{header}{rows}"), &films()).unwrap_err().to_string();
    for (rows, words) in [
        (
            "1,2,3,a,4\nmaybe,2,3,a,4\n",
            "a.csv: line 3, column `clicked` (label): expected 0 or 1, found \"maybe\"",
        ),
        ("1,cheap,3,a,4\n", "line 2, column `price` (dense): expected a number, found \"cheap\""),
        ("1,nan,3,a,4\n", "expected a number, found \"nan\""),
        (
            "1,2,3,a,4\n1,2,3,\"a\nb\",4\n1,2,3,4\n",
            "line 5: expected 5 fields as in the header, found 4",
        ),
    ] {
        let message = refused(rows);
        assert!(message.contains(words), "{message}");
    }
    let mapping = |change: fn(&mut NamedColumns)| {
        let mut columns = films();
        change(&mut columns);
        read(&format!("{header}1,2,3,a,4\n"), &columns).unwrap_err().to_string()
    };
    let message = mapping(|columns| columns.sparse[0].name = "movie".to_owned());
    assert!(
        message.contains("expected a column `movie`, found `clicked`, `price`, `film`"),
        "{message}"
    );
    let message = mapping(|columns| columns.ignored.clear());
    assert!(message.contains("column `session` has no place"), "{message}");
    let message = mapping(|columns| columns.sparse[1].hotness = Hotness::Fixed(2));
    assert!(
        message.contains("column `genres` (categorical): expected as many values"),
        "{message}"
    );
    let message =
        read("clicked,film,film\n1,2,3\n", &columns(&[], &[("film", ONE)], &[])).unwrap_err();
    assert!(message.to_string().contains("column `film` is there 2 times"), "{message}");
}

#[test]
fn samples_come_in_any_order_from_plain_files_and_from_front_to_back_from_compressed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<String> =
        (0..5000).map(|row| format!("{},{},\"{row}\nx\"", row % 2, row * 3)).collect();
    let text = format!("clicked,film,session\n{}\n", rows.join("\n"));
    let columns = columns(&[], &[("film", ONE)], &["*"]);
    let plain = write(folder.path(), "a.csv", text.as_bytes());
    let packed = {
        use std::io::Write;
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        write(folder.path(), "a.csv.gz", &out.finish().unwrap())
    };
    let ranges = vec![4990..5003, 10..20, 0..1, 19..3000];
    let expected: Vec<u64> =
        ranges.iter().cloned().flatten().map(|row: u64| row % 5000 * 3).collect();
    for (paths, is_random) in
        [(vec![plain.clone(), plain.clone()], true), (vec![plain, packed], false)]
    {
        let source = DelimitedSource::open(&paths, &columns, BadRowPolicy::Error).unwrap();
        assert_eq!((source.num_samples(), source.about().is_random), (Some(10_000), is_random));
        assert_eq!(all(&source, ranges.clone()).unwrap().sparse[0].ids, expected);
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("clicked,film\n{}", "1,2\n".repeat(300));
    let path = write(folder.path(), "a.csv", text.as_bytes());
    let columns = columns(&[], &[("film", ONE)], &[]);
    for changed in [format!("{text}0,3\n"), text[..text.len() - 40].to_owned()] {
        std::fs::write(&path, &text).unwrap();
        let source =
            DelimitedSource::open(std::slice::from_ref(&path), &columns, BadRowPolicy::Error)
                .unwrap();
        std::fs::write(&path, changed).unwrap();
        let message = all(&source, vec![0..300, 0..10]).unwrap_err().to_string();
        assert!(message.contains("a.csv: it has changed while it was read: expected"), "{message}");
    }
}

#[test]
fn one_quote_that_is_not_closed_does_not_read_the_rest_of_the_file() {
    let columns = columns(&[], &[("film", ONE)], &["*"]);
    let refused = |text: &str| read(text, &columns).unwrap_err().to_string();
    let header = "clicked,film,session\n1,2,3\n";
    // The second field of line 4, after a first one that goes over two lines.
    let open = format!("{header}1,2,\"a\nb\"\n1,\"2,3\n{}", "0,5,6\n".repeat(100));
    let message = refused(&open);
    assert!(
        message.contains("a.csv: line 5: the quote of the field that begins here is not closed"),
        "{message}"
    );
    let long = format!("{open}{}", "0,5,6\n".repeat(100_000));
    let message = refused(&long);
    assert!(
        message.contains("line 5: the field that begins here is longer than 65536 bytes"),
        "{message}"
    );
    let message = refused(&format!("{header}1,\""));
    assert!(message.contains("line 3: the quote of the field that begins here"), "{message}");
    let wide = format!("{header}1,2{}\n", ",3".repeat(70_000));
    assert!(refused(&wide).contains("line 3: expected at most 65536 fields"));
    let wide = format!("{header}1,2{}\n", format!(",{}", "3".repeat(60_000)).repeat(20));
    assert!(refused(&wide).contains("line 3: expected a record of at most 1048576 bytes"));
    // What is within the limits is data, whatever it holds.
    let text = format!("{header}\n\r\n0,\"{}\",\"\"\"\"\r\n0,4,\"\"", "x\n".repeat(30_000));
    assert_eq!(read(&text, &columns).unwrap().num_samples, 3);
}

#[test]
fn a_mark_of_utf_8_and_truth_values_are_read() {
    let text =
        "\u{feff}clicked,price,film,genres,session\nTrue,true,1,,\nfalse,,2,,\nFALSE,FALSE,3,,\n";
    let samples = read(text, &films()).unwrap();
    assert_eq!(samples.labels, [1.0, 0.0, 0.0]);
    assert_eq!(samples.dense, DenseValues::Numbers(vec![2_f64.ln() as f32, 0.0, 0.0]));
}

#[test]
fn an_empty_word_of_a_list_is_a_missing_value() {
    let text = "genres,session,clicked,price,film\nwar||x,1,1,0,7\n|x,2,0,0,8\n,3,0,0,9\n";
    let samples = read(text, &films()).unwrap();
    let [war, x] = [b"war".as_slice(), b"x"].map(id_of_text);
    assert_eq!(samples.sparse[1].ids, [war, MISSING_ID, x, MISSING_ID, x]);
    assert_eq!(samples.sparse[1].offsets, [0, 3, 5, 5]);
}

#[test]
fn a_compressed_file_that_ends_early_says_so() {
    let text = format!("clicked,film\n{}", "1,2\n".repeat(30_000));
    let packed = crate::io::testing::gzip(text.as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv.gz", &packed[..packed.len() - 9]);
    let message =
        DelimitedSource::open(&[path], &columns(&[], &[("film", ONE)], &[]), BadRowPolicy::Error)
            .err()
            .unwrap()
            .to_string();
    assert!(
        message.contains("a.csv.gz is truncated: the gzip stream ends early, after line"),
        "{message}"
    );
}

#[test]
fn a_pipe_gives_the_samples_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<String> =
        (0..5000).map(|row| format!("{},{},x{row}", row % 2, row * 3)).collect();
    let text = format!("clicked,film,session\n{}\n", rows.join("\n"));
    let columns = columns(&[], &[("film", ONE)], &["*"]);
    let file = write(folder.path(), "a.csv", text.as_bytes());
    let expected = read(&text, &columns).unwrap();
    for bytes in [text.clone().into_bytes(), crate::io::testing::gzip(text.as_bytes())] {
        let (pipe, writer) = crate::io::testing::pipe(folder.path(), bytes);
        // A file before it and one after it.
        let files = [file.clone(), pipe, file.clone()];
        let source = DelimitedSource::open(&files, &columns, BadRowPolicy::Error).unwrap();
        assert_eq!((source.num_samples(), source.about().is_random), (None, false));
        let found = all(&source, std::iter::once(0..u64::MAX).collect()).unwrap();
        let thrice: Vec<u64> = expected.sparse[0].ids.repeat(3);
        assert!(found.num_samples == 15_000 && found.sparse[0].ids == thrice);
        writer.join().unwrap();
        let message = all(&source, std::iter::once(0..10).collect()).unwrap_err().to_string();
        assert!(message.contains("can only be read from front to back"), "{message}");
    }
}

/// Rows of too few fields, and with a word for a number, in a file that is read in any order and in
/// one that is compressed: the good ones are the same as without them.
#[test]
fn bad_rows_are_skipped_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let columns = columns(&["price"], &[("film", ONE)], &[]);
    let line = |row: u64| format!("{},{row}.5,{}\n", row % 2, row * 7);
    let header = "clicked,price,film\n";
    let good: String = (0..300).map(line).collect();
    let with_bad = |row: u64| match row {
        0 => "1,2\n".to_owned() + &line(row),
        63 | 64 => line(row) + "0,many,5\n",
        299 => line(row) + "2,1,5",
        row => line(row),
    };
    let bad: String = (0..300).map(with_bad).collect();
    let good = write(folder.path(), "good.csv", (header.to_owned() + &good).as_bytes());
    let bad_bytes = (header.to_owned() + &bad).into_bytes();
    let bad = write(folder.path(), "bad.csv", &bad_bytes);
    let packed = write(folder.path(), "bad.csv.zst", &zstd::encode_all(&*bad_bytes, 1).unwrap());
    let open = |file: &DataFile, policy| {
        DelimitedSource::open(std::slice::from_ref(file), &columns, policy)
    };
    let expected = open(&good, BadRowPolicy::Error).unwrap();
    assert_eq!(expected.skip_report(), SkipReport::default());
    for file in [&bad, &packed] {
        let error = open(file, BadRowPolicy::Error).err().unwrap().to_string();
        assert!(error.contains("line 2: expected 3 fields"), "{error}");
        let source = open(file, BadRowPolicy::Skip).unwrap();
        assert_eq!(source.num_samples(), Some(300));
        let report = source.skip_report();
        let lines: Vec<u64> = report.first.iter().map(|row| row.line).collect();
        assert_eq!((report.total, lines), (4, vec![2, 67, 69, 305]));
        let found = report.first[1].to_string();
        let words = "line 67: column `price` (dense): expected a number, found \"many\"";
        assert!(found.ends_with(words), "{found}");
        let ranges = match file.name().extension().unwrap() == "zst" {
            true => vec![0..170, 170..300],
            false => vec![250..300, 0..70, 130..131],
        };
        let found = all(&source, ranges.clone()).unwrap();
        assert!(found == all(&expected, ranges).unwrap());
    }
    let none = write(folder.path(), "none.csv", b"clicked,price,film\n1\n");
    let described = Described {
        columns: Some(columns.clone()),
        text: BlockOptions { on_bad_row: BadRowPolicy::Skip, ..BlockOptions::default() },
        ..Described::default()
    };
    let error = convert::open(Format::Csv, &[none], &described).err().unwrap().to_string();
    assert!(error.contains("1 bad lines were skipped, the first:"), "{error}");
}

#[test]
fn what_is_between_fields_is_told_or_said() {
    let folder = tempfile::tempdir().unwrap();
    let columns = columns(&[], &[("film", ONE)], &["*"]);
    for (text, said) in [("clicked|film\n1|7\n", None), ("a;b clicked film\n0 1 7\n", Some(b' '))] {
        let path = write(folder.path(), "a.csv", text.as_bytes());
        let columns = NamedColumns { separator: said, ..columns.clone() };
        let source = DelimitedSource::open(&[path], &columns, BadRowPolicy::Error).unwrap();
        let found = all(&source, std::iter::once(0..1).collect()).unwrap();
        assert_eq!((found.labels, &*found.sparse[0].ids), (vec![1.0], &[7][..]));
    }
}
