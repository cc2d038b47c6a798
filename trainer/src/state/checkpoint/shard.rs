//! Which rows lie in which file, and the safetensors header of each file.
//!
//! A file's header is a function of the layout and of the file's contents alone, so the exact size
//! of a checkpoint is known before its first byte is written, and a reader can tell a wrong header
//! without trusting it.

use super::error::{CheckpointError, Result};
use super::layout::{Layout, Portion, Section, Tensor, TensorId};
use crate::state::digest::chunks_of;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Shards are cut at about this size unless asked otherwise.
pub const DEFAULT_SHARD_BYTES: u64 = 1 << 30;

/// What a file of a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// All dense parameters and their optimiser states.
    Dense,
    /// Ranges of rows of tables: per range the weights and then the optimiser states.
    Rows { ranges: Vec<RowRange> },
    /// Bytes that belong to another part of the program: configuration, state of the ids.
    Blob,
}

/// A range of rows of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowRange {
    pub table: String,
    pub first_row: u64,
    pub rows: u64,
}

/// The part of one tensor that lies in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub id: TensorId,
    pub name: String,
    /// Shape within the file: the first axis is `rows`.
    pub shape: Vec<u64>,
    pub first_row: u64,
    pub rows: u64,
    pub width: u64,
}

impl Piece {
    fn of(tensor: Tensor, first_row: u64, rows: u64) -> Self {
        let Tensor { id, name, mut shape, width, .. } = tensor;
        if let Some(axis) = shape.first_mut() {
            *axis = rows;
        }
        Self { id, name, shape, first_row, rows, width }
    }

    /// Size in the file. Cannot overflow: a tensor has at most 2⁶⁰ numbers.
    pub fn bytes(&self) -> u64 {
        self.rows * self.width * 4
    }
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFile {
    pub name: String,
    pub content: Content,
    /// The process that holds all of it, where `holder_of` names one.
    pub holder: Option<usize>,
}

/// The files that the tensors of `layout` are written to: `dense.safetensors` and
/// `tables-00001.safetensors` …, each at most about `shard_bytes` long (one row at least). Small
/// tables share a file, where they have the same holder.
pub(crate) fn plan_files(
    layout: &Layout,
    shard_bytes: u64,
    holder_of: &dyn Fn(usize) -> Option<usize>,
) -> Result<Vec<PlannedFile>> {
    let mut files = Vec::new();
    if !layout.dense.is_empty() {
        let name = "dense.safetensors".to_owned();
        files.push(PlannedFile { name, content: Content::Dense, holder: None });
    }
    let mut tables: Vec<_> = (0..layout.tables.len()).collect();
    tables.sort_by_key(|&table| holder_of(table));
    let mut shards: Vec<(Option<usize>, Vec<RowRange>)> = Vec::new();
    let mut room = 0;
    for index in tables {
        let (table, holder) = (&layout.tables[index], holder_of(index));
        let row_bytes: u64 =
            layout.tensors_of(Section::Tables, index)?.iter().map(|tensor| tensor.width * 4).sum();
        let mut first_row = 0;
        while first_row < table.rows {
            if room < row_bytes || shards.last().is_none_or(|(last, _)| *last != holder) {
                shards.push((holder, Vec::new()));
                room = shard_bytes.max(row_bytes);
            }
            let rows = (room / row_bytes).min(table.rows - first_row);
            let range = RowRange { table: table.name.clone(), first_row, rows };
            shards.last_mut().expect("a shard was opened above").1.push(range);
            room -= rows * row_bytes;
            first_row += rows;
        }
    }
    for (number, (holder, ranges)) in (1..).zip(shards) {
        let name = format!("tables-{number:05}.safetensors");
        files.push(PlannedFile { name, content: Content::Rows { ranges }, holder });
    }
    Ok(files)
}

/// The pieces of tensors in a file, in file order. Blobs have none.
pub(crate) fn pieces(layout: &Layout, content: &Content) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    match content {
        Content::Blob => {}
        Content::Dense => {
            for index in 0..layout.dense.len() {
                let tensors = layout.tensors_of(Section::Dense, index)?;
                pieces.extend(tensors.into_iter().map(|tensor| {
                    let rows = tensor.rows;
                    Piece::of(tensor, 0, rows)
                }));
            }
        }
        Content::Rows { ranges } => {
            for range in ranges {
                let index = layout.tables.iter().position(|table| table.name == range.table);
                let inside = |index: &usize| {
                    let end = range.first_row.checked_add(range.rows);
                    range.rows > 0 && end.is_some_and(|end| end <= layout.tables[*index].rows)
                };
                let index = index.filter(inside).ok_or_else(|| CheckpointError::Layout {
                    message: format!(
                        "rows {} + {} of the table `{}` do not exist",
                        range.first_row, range.rows, range.table
                    ),
                })?;
                let tensors = layout.tensors_of(Section::Tables, index)?;
                pieces.extend(
                    tensors
                        .into_iter()
                        .map(|tensor| Piece::of(tensor, range.first_row, range.rows)),
                );
            }
        }
    }
    Ok(pieces)
}

/// What a file with `pieces` holds, in its order, in portions of about so many bytes.
pub(crate) fn portions(
    pieces: &[Piece],
    portion_bytes: u64,
) -> impl Iterator<Item = (&Piece, Portion)> {
    pieces.iter().flat_map(move |piece| {
        let Piece { id, width, .. } = *piece;
        chunks_of(portion_bytes, width, piece.first_row, piece.rows)
            .map(move |(first_row, rows)| (piece, Portion { tensor: id, first_row, rows, width }))
    })
}

/// The safetensors header of a file with `pieces`: eight bytes of length (little-endian), then
/// JSON, filled with spaces to a multiple of eight bytes.
pub(crate) fn header(pieces: &[Piece]) -> Vec<u8> {
    let mut entries = Map::new();
    let mut ranges = Map::new();
    let mut offset = 0;
    for piece in pieces {
        let end = offset + piece.bytes();
        let entry = json!({ "dtype": "F32", "shape": piece.shape, "data_offsets": [offset, end] });
        entries.insert(piece.name.clone(), entry);
        if piece.id.section == Section::Tables {
            let rows = format!("{}..{}", piece.first_row, piece.first_row + piece.rows);
            ranges.insert(format!("{}.rows", piece.name), Value::String(rows));
        }
        offset = end;
    }
    ranges.insert("format".to_owned(), Value::String("headlong".to_owned()));
    entries.insert("__metadata__".to_owned(), Value::Object(ranges));
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

/// Exact size of a file with `pieces`; `None` where it exceeds 2⁶⁴ bytes.
pub(crate) fn file_bytes(pieces: &[Piece]) -> Option<u64> {
    let header = header_checked(pieces)?.len() as u64;
    pieces.iter().try_fold(header, |sum, piece| sum.checked_add(piece.bytes()))
}

/// The header, where the offsets of all pieces fit into 64 bits.
fn header_checked(pieces: &[Piece]) -> Option<Vec<u8>> {
    pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes()))?;
    Some(header(pieces))
}

#[cfg(test)]
mod tests {
    use super::super::layout::{DenseLayout, RowState, TableLayout};
    use super::*;

    fn layout() -> Layout {
        let table = |name: &str, rows| TableLayout {
            name: name.into(),
            rows,
            dim: 2,
            states: vec![RowState { name: "accumulator".into(), width: 1 }],
            by_id: false,
        };
        Layout {
            dense: vec![DenseLayout { name: "b".into(), shape: vec![3], states: vec![] }],
            tables: vec![table("C1", 10), table("C2", 3)],
        }
    }

    fn ranges(
        shard_bytes: u64,
        holder_of: &dyn Fn(usize) -> Option<usize>,
    ) -> Vec<Vec<(String, u64, u64)>> {
        let files = plan_files(&layout(), shard_bytes, holder_of).unwrap();
        let of = |file: PlannedFile| match file.content {
            Content::Rows { ranges } => {
                ranges.into_iter().map(|range| (range.table, range.first_row, range.rows)).collect()
            }
            _ => vec![],
        };
        files.into_iter().skip(1).map(of).collect()
    }

    #[test]
    fn rows_are_cut_at_the_shard_size_and_small_tables_share_a_file() {
        let c = |name: &str, first, rows| (name.to_owned(), first, rows);
        let of_all = |shard_bytes| ranges(shard_bytes, &|_| None);
        // A row of weights and states is 12 bytes.
        assert_eq!(of_all(1 << 20), [[c("C1", 0, 10), c("C2", 0, 3)]]);
        assert_eq!(of_all(96), [vec![c("C1", 0, 8)], vec![c("C1", 8, 2), c("C2", 0, 3)]]);
        assert_eq!(of_all(60), [vec![c("C1", 0, 5)], vec![c("C1", 5, 5)], vec![c("C2", 0, 3)]]);
        assert_eq!(of_all(1).len(), 13);
    }

    #[test]
    fn tables_of_different_holders_share_no_file() {
        let held = |holders: [Option<usize>; 2]| {
            let holder_of = move |table: usize| holders[table];
            let names = |file: Vec<(String, u64, u64)>| -> Vec<String> {
                file.into_iter().map(|(name, ..)| name).collect()
            };
            ranges(1 << 20, &holder_of).into_iter().map(names).collect::<Vec<_>>()
        };
        assert_eq!(held([Some(1), Some(1)]), [["C1", "C2"]]);
        assert_eq!(held([Some(1), Some(0)]), [["C2"], ["C1"]]);
        assert_eq!(held([Some(0), None]), [["C2"], ["C1"]]);
    }

    #[test]
    fn the_header_is_what_the_format_says() {
        let content =
            Content::Rows { ranges: vec![RowRange { table: "C2".into(), first_row: 1, rows: 2 }] };
        let pieces = pieces(&layout(), &content).unwrap();
        let header = header(&pieces);
        let expected = concat!(
            r#"{"__metadata__":{"format":"headlong","table.C2.accumulator.rows":"1..3","#,
            r#""table.C2.weight.rows":"1..3"},"#,
            r#""table.C2.accumulator":{"data_offsets":[16,24],"dtype":"F32","shape":[2,1]},"#,
            r#""table.C2.weight":{"data_offsets":[0,16],"dtype":"F32","shape":[2,2]}}"#
        );
        assert_eq!(header.len() % 8, 0);
        assert_eq!(u64::from_le_bytes(header[..8].try_into().unwrap()) as usize, header.len() - 8);
        assert_eq!(std::str::from_utf8(&header[8..]).unwrap().trim_end(), expected);
        assert_eq!(file_bytes(&pieces), Some(header.len() as u64 + 24));
    }

    #[test]
    fn the_safetensors_crate_reads_a_file() {
        let pieces = pieces(&layout(), &Content::Dense).unwrap();
        let mut file = header(&pieces);
        file.extend([1.5_f32, -2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()));
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let tensor = tensors.tensor("dense.b").unwrap();
        assert_eq!((tensor.shape(), tensor.dtype()), (&[3][..], safetensors::Dtype::F32));
        assert_eq!(&tensor.data()[..4], 1.5_f32.to_le_bytes());
    }

    #[test]
    fn ranges_outside_the_table_are_refused() {
        for (table, first_row, rows) in
            [("C3", 0, 1), ("C2", 0, 4), ("C2", u64::MAX, 2), ("C2", 0, 0)]
        {
            let content =
                Content::Rows { ranges: vec![RowRange { table: table.into(), first_row, rows }] };
            assert!(pieces(&layout(), &content).unwrap_err().to_string().contains(table));
        }
    }
}
