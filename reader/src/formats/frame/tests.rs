use std::ops::Range;
use std::sync::Arc;

use crate::convert::{self, Described};
use crate::disk::DiskOptions;
use crate::excerpt::{Limits, OfText, excerpt};
use crate::formats::named::{DenseReading, NamedColumns};
use crate::formats::testing::read_ranges;
use crate::formats::{Format, Source, carried::Carried};
use crate::frame::{Frame, FrameColumn, FrameKind, FrameValues, Values};
use crate::io::DataFile;
use crate::samples::{Hotness, SparseColumn};
use crate::transform::DenseTransform;

/// Columns of optional numbers, words, and lists of words.
enum Cells {
    Numbers(Vec<Option<f64>>),
    Words(Vec<Option<&'static str>>),
    Lists(Vec<Vec<Option<&'static str>>>),
}

struct Table {
    columns: Vec<FrameColumn>,
    cells: Vec<Cells>,
}

fn words(found: Vec<Option<&'static str>>) -> Values {
    Values::Words(found.into_iter().flatten().map(|word| word.as_bytes().into()).collect())
}

impl Frame for Table {
    fn columns(&self) -> &[FrameColumn] {
        &self.columns
    }

    fn num_rows(&self) -> u64 {
        match &self.cells[0] {
            Cells::Numbers(cells) => cells.len() as u64,
            Cells::Words(cells) => cells.len() as u64,
            Cells::Lists(cells) => cells.len() as u64,
        }
    }

    fn bytes(&self) -> u64 {
        100
    }

    fn read(&self, column: usize, rows: Range<u64>) -> FrameValues {
        let rows = rows.start as usize..rows.end as usize;
        let repeated = Vec::new();
        match &self.cells[column] {
            Cells::Numbers(cells) => {
                let defined = cells[rows.clone()].iter().map(|cell| cell.is_some().into());
                let values = cells[rows.clone()].iter().flatten().copied().collect();
                FrameValues {
                    values: Values::Doubles(values),
                    defined: defined.collect(),
                    repeated,
                }
            }
            Cells::Words(cells) => {
                let defined = cells[rows.clone()].iter().map(|cell| cell.is_some().into());
                let values = words(cells[rows.clone()].to_vec());
                FrameValues { values, defined: defined.collect(), repeated }
            }
            Cells::Lists(cells) => {
                let (mut defined, mut repeated) = (Vec::new(), Vec::new());
                for list in &cells[rows.clone()] {
                    repeated.push(0);
                    repeated.extend(list.iter().skip(1).map(|_| 1));
                    match list.is_empty() {
                        true => defined.push(0),
                        false => {
                            defined.extend(list.iter().map(|cell| 1 + i16::from(cell.is_some())))
                        }
                    }
                }
                FrameValues { values: words(cells[rows].concat()), defined, repeated }
            }
        }
    }
}

fn table() -> Table {
    let column = |name: &str, kind| FrameColumn { name: name.to_owned(), kind };
    Table {
        columns: vec![
            column("label", FrameKind::Numbers),
            column("age", FrameKind::Numbers),
            column("page", FrameKind::Words),
            column("genres", FrameKind::Lists),
            column("when", FrameKind::Refused("dates", "write them as text")),
        ],
        cells: vec![
            Cells::Numbers([0.0, 1.0, 1.0, 0.0].map(Some).to_vec()),
            Cells::Numbers(vec![Some(17.0), None, Some(2.5), Some(f64::NAN)]),
            Cells::Words(vec![Some("7"), Some("a b"), None, Some("  ")]),
            Cells::Lists(vec![vec![Some("x"), Some("y")], vec![], vec![None], vec![Some("x")]]),
            Cells::Numbers(vec![None; 4]),
        ],
    }
}

fn described() -> Described {
    let sparse = |name: &str, hotness| SparseColumn { name: name.to_owned(), hotness };
    let columns = NamedColumns {
        label: Some("label".to_owned()),
        weight: None,
        times: Vec::new(),
        dense: vec!["age".to_owned()],
        dense_reading: DenseReading::Raw(DenseTransform::LnPlus1),
        dense_columns: None,
        sparse: vec![sparse("page", Hotness::Fixed(1)), sparse("genres", Hotness::Varying)],
        separator: None,
        list_separator: b'|',
        ignored: vec!["*".to_owned()],
    };
    Described { columns: Some(columns), ..Described::default() }
}

fn all_rows() -> Vec<Range<u64>> {
    std::iter::once(0..4).collect()
}

fn files() -> Vec<DataFile> {
    vec![DataFile::of_frame("data", Arc::new(table()))]
}

#[test]
fn a_frame_gives_the_samples_of_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let text = "label,age,page,genres,when\n0,17,7,x|y,\n1,,a b,,\n1,2.5,, ,\n0,,,x,\n";
    std::fs::write(&path, text).unwrap();
    let of_text = convert::open(Format::Csv, &[path.into()], &described()).unwrap();
    let of_frame = convert::open(Format::Parquet, &files(), &described()).unwrap();
    let read =
        |source: &dyn Source, ranges| read_ranges(source, ranges, &DiskOptions::default()).unwrap();
    let all = read(&*of_frame, all_rows());
    let expected = read(&*of_text, all_rows());
    assert_eq!((&all.labels, &all.dense), (&expected.labels, &expected.dense));
    assert_eq!(all.dense_missing, expected.dense_missing);
    assert_eq!(all.sparse[0], expected.sparse[0]);
    // A list of one missing value is written as nothing in text, and is no empty list here.
    assert_eq!(all.sparse[1].ids[..2], expected.sparse[1].ids[..2]);
    assert_eq!(all.sparse[1].offsets, [0, 2, 2, 3, 4]);
    assert!(of_frame.about().is_random && of_frame.num_samples() == Some(4));
    let turned = read(&*of_frame, vec![2..4, 0..2]);
    assert_eq!(turned.labels, [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_look_at_a_frame_and_its_carried_columns_are_its_texts() {
    let found = excerpt(Format::Parquet, &files(), Limits::default(), OfText::default()).unwrap();
    assert!(found.is_whole() && found.rows == 4);
    let texts = |column: usize| -> Vec<_> {
        let fields = found.columns[column].fields.iter();
        fields.map(|field| String::from_utf8(field.to_vec()).unwrap()).collect()
    };
    assert_eq!(texts(1), ["17", "", "2.5", ""]);
    assert_eq!(texts(2), ["7", "a b", "", ""]);
    assert_eq!(texts(3), ["x\u{1f}y", "", "", "x"]);
    assert!(found.columns[3].is_list && found.columns[4].refused == Some("dates"));
    let names = ["page", "genres"].map(str::to_owned);
    let mut carried = Carried::new(Format::Parquet, &files(), &names, &described()).unwrap();
    let mut row = Vec::new();
    assert!(carried.next(&mut row).unwrap() && row == ["7", "x|y"]);
    let rest = std::iter::from_fn(|| carried.next(&mut row).unwrap().then_some(())).count();
    assert_eq!(rest, 3);
}

#[test]
fn what_is_wrong_is_named_by_frame_column_and_row() {
    let message = |change: &dyn Fn(&mut Described), table: Table| {
        let mut described = described();
        change(&mut described);
        let files = [DataFile::of_frame("data", Arc::new(table))];
        let source = convert::open(Format::Parquet, &files, &described);
        let read = source.and_then(|source| {
            read_ranges(&*source, all_rows(), &DiskOptions::default()).map(drop)
        });
        read.unwrap_err().to_string()
    };
    let dense = |name: &'static str| {
        move |described: &mut Described| {
            described.columns.as_mut().unwrap().dense = vec![name.to_owned()];
        }
    };
    let same: &dyn Fn(&mut Described) = &|_| {};
    let mut wrong = table();
    wrong.cells[0] = Cells::Numbers([0.0, 1.0, 3.0, 0.0].map(Some).to_vec());
    let found = message(same, wrong);
    assert_eq!(found, "data: row 2, column `label`: expected 0 or 1, found 3");
    let found = message(&dense("when"), table());
    assert!(found.starts_with("data: column `when`: expected numbers, truth values or words"));
    let found = message(&dense("genres_"), table());
    assert!(found.contains("data: header: expected a column `genres_`"), "{found}");
    let found = message(&dense("genres"), table());
    assert!(found.contains("`genres`"), "{found}");
    let mixed = [files().remove(0), DataFile::from("rows.parquet")];
    let found = convert::open(Format::Parquet, &mixed, &described()).err().unwrap().to_string();
    assert!(found.contains("rows.parquet: expected a data frame"), "{found}");
}
