//! Formats without structure of their own: files of records of one size, with numbers at fixed
//! places.
//!
//! MLPerf's and HugeCTR's have all columns in one record; TorchRec's arrays and NVIDIA's split
//! files have a file for a few columns each, read side by side. A **shard** is the files that hold
//! the same samples; shards follow each other.

mod field;
mod source;
mod write;

pub use field::{Element, Field, Target};
pub use source::{FieldFile, RecordSource, Shard};
pub use write::RecordSink;

use std::path::{Path, PathBuf};

use crate::error::{Result, invalid, refuse};
use crate::samples::{DataSchema, DenseKind, Hotness, MOST_COLUMNS};
use crate::transform::DenseTransform;

/// The longest record that any file may have. Bounds the memory that a damaged shape can ask for.
pub const MOST_RECORD_BYTES: u64 = 16 << 20;

/// Records that hold all columns, without a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Its columns.
    pub schema: DataSchema,
    /// Where they are in a record.
    pub fields: Vec<Field>,
    /// Bytes of a record.
    pub record_bytes: usize,
}

impl RecordLayout {
    /// MLPerf v1's: label, 13 integers that are not negative (their logarithm is still to be
    /// taken), 26 ids; all `i32`, little-endian; 160 bytes.
    pub fn mlperf() -> Self {
        Self::packed(Element::I32, 13, Element::I32, DenseKind::Integers, &[1; 26])
    }

    /// HugeCTR's raw format: label, `num_dense` numbers, then `hotness[t]` ids of each column; four
    /// bytes each, little-endian. Dense numbers are `f32`, transformed already, or integers (`u32`)
    /// to be transformed.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) for columns that no file has: see
    /// [`DataSchema::check`] and [`MOST_RECORD_BYTES`].
    pub fn raw(
        float_label: bool,
        num_dense: usize,
        kind: DenseKind,
        hotness: &[u32],
    ) -> Result<Self> {
        let refuse = |message: String| Err(invalid!("raw records: {message}"));
        // Before names are made for all of them.
        if num_dense > MOST_COLUMNS {
            return refuse(format!(
                "expected at most {MOST_COLUMNS} dense numbers, found {num_dense}"
            ));
        }
        let bytes = 4
            + 4 * num_dense as u64
            + hotness.iter().map(|&count| 4 * u64::from(count)).sum::<u64>();
        if bytes > MOST_RECORD_BYTES {
            return refuse(format!(
                "expected at most {MOST_RECORD_BYTES} bytes a sample, found {bytes}"
            ));
        }
        let label = if float_label { Element::F32 } else { Element::I32 };
        let dense = if kind == DenseKind::Integers { Element::I32 } else { Element::F32 };
        let layout = Self::packed(label, num_dense, dense, kind, hotness);
        layout.schema.check()?;
        Ok(layout)
    }

    /// HugeCTR's records of DLRM-DCNv2: `i32` label, 13 `f32` that are `ln(x+1)` already, 214 ids;
    /// 912 bytes.
    pub fn dcnv2() -> Self {
        let kind = DenseKind::Transformed(DenseTransform::LnPlus1);
        Self::packed(Element::I32, 13, Element::F32, kind, &DCNV2_HOTNESS)
    }

    fn packed(
        label: Element,
        num_dense: usize,
        dense: Element,
        kind: DenseKind,
        hotness: &[u32],
    ) -> Self {
        let fixed: Vec<_> = hotness.iter().map(|&count| Hotness::Fixed(count)).collect();
        let mut fields = vec![Field { at: 0, element: label, count: 1, target: Target::Label }];
        let mut at = label.bytes();
        if num_dense > 0 {
            fields.push(Field { at, element: dense, count: num_dense, target: Target::Dense });
            at += num_dense * dense.bytes();
        }
        for (column, &count) in hotness.iter().enumerate() {
            let count = count as usize;
            fields.push(Field { at, element: Element::U32, count, target: Target::Column(column) });
            at += count * Element::U32.bytes();
        }
        Self {
            schema: DataSchema::numbered(true, num_dense, kind, &fixed),
            fields,
            record_bytes: at,
        }
    }

    /// Opens files of such records.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`](crate::ReaderError::Format) for a file that ends
    /// inside a record.
    pub fn open(&self, paths: &[PathBuf]) -> Result<RecordSource> {
        let shard = |path: &PathBuf| -> Result<Shard> {
            let file = FieldFile {
                path: path.clone(),
                first_byte: 0,
                num_bytes: None,
                record_bytes: self.record_bytes as u64,
                fields: self.fields.clone(),
            };
            Ok(Shard { name: path.display().to_string(), files: vec![file], num_samples: None })
        };
        if paths.is_empty() {
            refuse!("no data file was named");
        }
        RecordSource::open(self.schema.clone(), paths.iter().map(shard).collect::<Result<_>>()?)
    }

    /// Writes a file of such records.
    pub fn create(&self, path: &Path) -> Result<RecordSink> {
        RecordSink::create(
            self.schema.clone(),
            vec![(path.to_owned(), Vec::new(), self.record_bytes, self.fields.clone())],
        )
    }
}

/// Ids a sample in each column of the multi-hot DLRM-DCNv2 data (MLPerf training v3.0).
pub const DCNV2_HOTNESS: [u32; 26] =
    [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1];

#[cfg(test)]
mod tests;
