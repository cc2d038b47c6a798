//! Samples to columns.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use ::parquet::data_type::{DataType, FloatType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::types::Type;
use headlong_device::files::OutputFile;
use headlong_device::label::parts;

use super::SCHEMA_KEY;
use crate::criteo::parse::MISSING_DENSE;
use crate::error::{ReaderError, Result, invalid};
use crate::formats::Sink;
use crate::hashing::MISSING_ID;
use crate::output;
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, IdBags, Samples};

const GROUP_SAMPLES: usize = 1 << 16;

/// Writes one file: `label` as `INT32`, weights as `FLOAT`, dense numbers as `INT32` (null:
/// missing) or `FLOAT`, ids as `UINT_64` (null: missing), several ids as lists of them. Compressed
/// by Snappy.
pub struct ParquetSink {
    path: PathBuf,
    writer: SerializedFileWriter<OutputFile>,
    schema: DataSchema,
    pending: Samples,
}

type Written<T> = std::result::Result<T, ParquetError>;

impl ParquetSink {
    /// Creates the file.
    pub fn create(path: &Path, schema: &DataSchema) -> Result<Self> {
        let json = serde_json::to_string(schema)
            .map_err(|error| invalid!("{}: {error}", path.display()))?;
        Self::create_with(path, schema, Some(vec![KeyValue::new(SCHEMA_KEY.to_owned(), json)]))
    }

    pub(super) fn create_with(
        path: &Path,
        schema: &DataSchema,
        metadata: Option<Vec<KeyValue>>,
    ) -> Result<Self> {
        let file = output::create(path)?;
        let failed = |error: ParquetError| write_error(path, error);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("headlong ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(metadata)
            .build();
        let message = Arc::new(message(schema).map_err(failed)?);
        let writer =
            SerializedFileWriter::new(file, message, Arc::new(properties)).map_err(failed)?;
        let mut pending = Samples::default();
        pending.clear(schema);
        Ok(Self { path: path.to_owned(), writer, schema: schema.clone(), pending })
    }

    fn write_group(&mut self) -> Result<()> {
        let failed = |error: ParquetError| write_error(&self.path, error);
        let mut group = self.writer.next_row_group().map_err(failed)?;
        write_columns(&mut group, &self.pending, &self.schema).map_err(failed)?;
        group.close().map_err(failed)?;
        self.pending.clear(&self.schema);
        Ok(())
    }
}

fn write_error(path: &Path, error: ParquetError) -> ReaderError {
    output::write_error(path)(std::io::Error::other(error))
}

fn message(schema: &DataSchema) -> Written<Type> {
    let leaf = |name: &str, physical, repetition, converted| {
        let builder = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        builder.with_converted_type(converted).build().map(Arc::new)
    };
    let mut fields = Vec::new();
    if schema.labelled {
        fields.push(leaf(
            schema.label_name(),
            Physical::INT32,
            Repetition::REQUIRED,
            ConvertedType::NONE,
        )?);
    }
    if let Some(name) = &schema.weight {
        fields.push(leaf(name, Physical::FLOAT, Repetition::REQUIRED, ConvertedType::NONE)?);
    }
    for name in &schema.dense {
        fields.push(match schema.dense_kind {
            DenseKind::Integers => {
                leaf(name, Physical::INT32, Repetition::OPTIONAL, ConvertedType::NONE)?
            }
            DenseKind::Transformed(_) => {
                leaf(name, Physical::FLOAT, Repetition::REQUIRED, ConvertedType::NONE)?
            }
        });
    }
    for column in &schema.sparse {
        let (name, wide) = (&*column.name, ConvertedType::UINT_64);
        if column.hotness == Hotness::Fixed(1) {
            fields.push(leaf(name, Physical::INT64, Repetition::OPTIONAL, wide)?);
            continue;
        }
        let element = leaf("element", Physical::INT64, Repetition::REQUIRED, wide)?;
        let list = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let list = Arc::new(list.with_fields(vec![element]).build()?);
        let group = Type::group_type_builder(name).with_repetition(Repetition::REQUIRED);
        let group = group.with_converted_type(ConvertedType::LIST).with_fields(vec![list]);
        fields.push(Arc::new(group.build()?));
    }
    Type::group_type_builder("samples").with_fields(fields).build()
}

fn write_columns(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    samples: &Samples,
    schema: &DataSchema,
) -> Written<()> {
    if schema.labelled {
        let parts = samples.labels.iter().map(|&label| parts(label));
        let labels: Vec<i32> = parts.clone().map(|(label, _)| i32::from(label)).collect();
        write::<Int32Type>(group, &labels, None, None)?;
        if schema.weight.is_some() {
            let weights: Vec<f32> = parts.map(|(_, weight)| weight).collect();
            write::<FloatType>(group, &weights, None, None)?;
        }
    }
    let width = schema.dense.len();
    for column in 0..width {
        match &samples.dense {
            DenseValues::Integers(values) => {
                let values = values.iter().copied().skip(column).step_by(width);
                let (present, defined) = split_missing(values, |value| value != MISSING_DENSE);
                write::<Int32Type>(group, &present, Some(&defined), None)?;
            }
            DenseValues::Numbers(values) => {
                let values: Vec<f32> = values.iter().copied().skip(column).step_by(width).collect();
                write::<FloatType>(group, &values, None, None)?;
            }
        }
    }
    for (bags, column) in samples.sparse.iter().zip(&schema.sparse) {
        if column.hotness == Hotness::Fixed(1) {
            let ids = bags.ids.iter().map(|&id| id as i64);
            let (present, defined) = split_missing(ids, |id| id != MISSING_ID as i64);
            write::<Int64Type>(group, &present, Some(&defined), None)?;
        } else {
            write_lists(group, bags, column.hotness, samples.num_samples)?;
        }
    }
    Ok(())
}

/// The values that are there, and for each whether it is.
fn split_missing<T: Copy>(
    values: impl Iterator<Item = T>,
    is_there: impl Fn(T) -> bool,
) -> (Vec<T>, Vec<i16>) {
    let (mut present, mut defined) = (Vec::new(), Vec::new());
    for value in values {
        defined.push(i16::from(is_there(value)));
        present.extend(is_there(value).then_some(value));
    }
    (present, defined)
}

fn write_lists(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    bags: &IdBags,
    hotness: Hotness,
    num_samples: usize,
) -> Written<()> {
    if bags.ids.contains(&MISSING_ID) {
        let message = "a list with a missing id: write csv or headlong".to_owned();
        return Err(ParquetError::General(message));
    }
    let ids: Vec<i64> = bags.ids.iter().map(|&id| id as i64).collect();
    let (mut defined, mut repeated) = (Vec::new(), Vec::new());
    for sample in 0..num_samples {
        let count = bags.range(sample..sample + 1, hotness).len();
        // An empty list is one entry without an element.
        defined.extend(std::iter::repeat_n(i16::from(count > 0), count.max(1)));
        repeated.push(0);
        repeated.extend(std::iter::repeat_n(1, count.saturating_sub(1)));
    }
    write::<Int64Type>(group, &ids, Some(&defined), Some(&repeated))
}

fn write<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    values: &[T::T],
    defined: Option<&[i16]>,
    repeated: Option<&[i16]>,
) -> Written<()> {
    let missing = || ParquetError::General("fewer columns than the schema has".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, defined, repeated)?;
    column.close()
}

impl Sink for ParquetSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        let mut from = 0;
        while from < samples.num_samples {
            let to = samples.num_samples.min(from + GROUP_SAMPLES - self.pending.num_samples);
            self.pending.extend_from(samples, from..to, &self.schema);
            from = to;
            if self.pending.num_samples == GROUP_SAMPLES {
                self.write_group()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<PathBuf>> {
        if self.pending.num_samples > 0 {
            self.write_group()?;
        }
        let path = self.path;
        let file = self.writer.into_inner().map_err(|error| write_error(&path, error))?;
        output::commit(file)?;
        Ok(vec![path])
    }
}
