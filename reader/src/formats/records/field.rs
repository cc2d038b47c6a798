//! Numbers at a fixed place of every record, to columns and back.

use half::f16;

use crate::error::{ReaderError, Result};
use crate::samples::{DataSchema, DenseValues, Hotness, Samples, present, present_id};

/// A type of number in a file, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Element {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    F16,
    F32,
    F64,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::Bool | Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 | Element::F16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::F64 => 8,
        }
    }

    /// numpy's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Element::Bool => "bool",
            Element::I8 => "int8",
            Element::U8 => "uint8",
            Element::I16 => "int16",
            Element::U16 => "uint16",
            Element::I32 => "int32",
            Element::U32 => "uint32",
            Element::I64 => "int64",
            Element::F16 => "float16",
            Element::F32 => "float32",
            Element::F64 => "float64",
        }
    }

    /// Whether it holds fractions.
    pub fn is_float(self) -> bool {
        matches!(self, Element::F16 | Element::F32 | Element::F64)
    }
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The label.
    Label,
    /// All dense columns.
    Dense,
    /// The ids of this categorical column.
    Column(usize),
    /// One id of each of all categorical columns, in their order.
    AllColumns,
}

/// Some numbers of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes before them in the record.
    pub at: usize,
    /// Their type.
    pub element: Element,
    /// How many.
    pub count: usize,
    /// What they are.
    pub target: Target,
}

/// What is wrong with a value: where it is in the records at hand, and what it should have been.
#[derive(Debug)]
pub(super) struct BadValue {
    pub record: usize,
    pub what: String,
}

/// Calls `put(record, index, value)` for every number of the field, in order.
macro_rules! each {
    (
        $records:expr, $record_bytes:expr, $field:expr, $type:ty,
        |$record:ident, $value:ident| $body:expr
    ) => {{
        const BYTES: usize = size_of::<$type>();
        let length = $field.count * BYTES;
        for ($record, bytes) in $records.chunks_exact($record_bytes).enumerate() {
            for number in bytes[$field.at..$field.at + length].as_chunks::<BYTES>().0 {
                let $value = <$type>::from_le_bytes(*number);
                $body
            }
        }
    }};
}

/// Picks the type of a field's integers.
macro_rules! each_integer {
    ($records:expr, $record_bytes:expr, $field:expr, |$record:ident, $value:ident| $body:expr) => {
        match $field.element {
            Element::Bool | Element::U8 => {
                each!($records, $record_bytes, $field, u8, |$record, $value| $body)
            }
            Element::I8 => each!($records, $record_bytes, $field, i8, |$record, $value| $body),
            Element::I16 => each!($records, $record_bytes, $field, i16, |$record, $value| $body),
            Element::U16 => each!($records, $record_bytes, $field, u16, |$record, $value| $body),
            Element::I32 => each!($records, $record_bytes, $field, i32, |$record, $value| $body),
            Element::U32 => each!($records, $record_bytes, $field, u32, |$record, $value| $body),
            Element::I64 => each!($records, $record_bytes, $field, i64, |$record, $value| $body),
            Element::F16 | Element::F32 | Element::F64 => unreachable!("integers were asked for"),
        }
    };
}

impl Field {
    /// Adds the numbers of whole `records` to `samples`.
    ///
    /// # Errors
    /// A label that is neither 0 nor 1, or an id below 0.
    pub(super) fn decode(
        &self,
        records: &[u8],
        record_bytes: usize,
        samples: &mut Samples,
    ) -> Result<(), BadValue> {
        match self.target {
            Target::Label => self.decode_labels(records, record_bytes, &mut samples.labels),
            Target::Dense => {
                self.decode_dense(records, record_bytes, &mut samples.dense);
                Ok(())
            }
            Target::Column(column) => {
                self.decode_ids(records, record_bytes, &mut samples.sparse[column].ids)
            }
            Target::AllColumns => {
                let bytes = self.element.bytes();
                samples.sparse.iter_mut().enumerate().try_for_each(|(column, bags)| {
                    let one = Field { at: self.at + column * bytes, count: 1, ..self.clone() };
                    one.decode_ids(records, record_bytes, &mut bags.ids)
                })
            }
        }
    }

    fn decode_labels(
        &self,
        records: &[u8],
        record_bytes: usize,
        labels: &mut Vec<f32>,
    ) -> Result<(), BadValue> {
        let first = labels.len();
        match self.element {
            Element::F16 => {
                each!(records, record_bytes, self, f16, |_record, value| labels
                    .push(value.to_f32()))
            }
            Element::F32 => {
                each!(records, record_bytes, self, f32, |_record, value| labels.push(value))
            }
            Element::F64 => {
                each!(records, record_bytes, self, f64, |_record, value| labels.push(value as f32))
            }
            _ => each_integer!(records, record_bytes, self, |_record, value| labels
                .push(value as f32)),
        }
        match labels[first..].iter().position(|&label| label != 0.0 && label != 1.0) {
            None => Ok(()),
            Some(record) => {
                let what = format!("label: expected 0 or 1, found {}", labels[first + record]);
                Err(BadValue { record, what })
            }
        }
    }

    fn decode_dense(&self, records: &[u8], record_bytes: usize, dense: &mut DenseValues) {
        match (dense, self.element) {
            (DenseValues::Numbers(to), Element::F16) => {
                each!(records, record_bytes, self, f16, |_record, value| to.push(value.to_f32()));
            }
            (DenseValues::Numbers(to), Element::F32) => {
                each!(records, record_bytes, self, f32, |_record, value| to.push(value));
            }
            (DenseValues::Numbers(to), Element::F64) => {
                each!(records, record_bytes, self, f64, |_record, value| to.push(value as f32));
            }
            (DenseValues::Numbers(to), _) => {
                each_integer!(records, record_bytes, self, |_record, value| to.push(value as f32));
            }
            (DenseValues::Integers(to), Element::F16 | Element::F32 | Element::F64) => {
                unreachable!("a layout should not call fractions integers: {} values", to.len())
            }
            (DenseValues::Integers(to), _) => {
                each_integer!(records, record_bytes, self, |_record, value| to.push(value as i32));
            }
        }
    }

    fn decode_ids(
        &self,
        records: &[u8],
        record_bytes: usize,
        ids: &mut Vec<u64>,
    ) -> Result<(), BadValue> {
        if matches!(self.element, Element::U32) {
            each!(records, record_bytes, self, u32, |_record, value| ids.push(value as u64));
            return Ok(());
        }
        let mut bad = None;
        each_integer!(records, record_bytes, self, |record, value| {
            let value = value as i64;
            if value < 0 && bad.is_none() {
                bad = Some(BadValue {
                    record,
                    what: format!("id: expected 0 or more, found {value}"),
                });
            }
            ids.push(value as u64);
        });
        bad.map_or(Ok(()), Err)
    }

    /// Writes the numbers of `samples`, which are of `schema`, into whole `records`.
    ///
    /// # Errors
    /// A value that the element cannot hold.
    pub(super) fn encode(
        &self,
        records: &mut [u8],
        record_bytes: usize,
        samples: &Samples,
        schema: &DataSchema,
    ) -> Result<(), BadValue> {
        let size = self.element.bytes();
        for (index, record) in records.chunks_exact_mut(record_bytes).enumerate() {
            let places = record[self.at..self.at + self.count * size].chunks_exact_mut(size);
            let put = |(place, value): (&mut [u8], Value)| {
                self.element.write(value, place).map_err(|what| BadValue { record: index, what })
            };
            let put_id = |place: &mut [u8], column: usize, id: u64| match present_id(id) {
                id if id <= self.element.largest_id() => put((place, Value::Integer(id as i64))),
                id => {
                    let (name, most) = (&schema.sparse[column].name, self.element.largest_id());
                    let what = format!(
                        "column {name}: expected an id of at most {most}, found {id}: --rows makes \
                         rows of ids, id mod rows"
                    );
                    Err(BadValue { record: index, what })
                }
            };
            match self.target {
                Target::Label => {
                    places.zip([Value::Float(samples.labels[index])]).try_for_each(put)?
                }
                Target::Dense => {
                    let range = index * self.count..(index + 1) * self.count;
                    match &samples.dense {
                        DenseValues::Integers(from) => {
                            let values = from[range]
                                .iter()
                                .map(|&value| Value::Integer(i64::from(present(value))));
                            places.zip(values).try_for_each(put)?;
                        }
                        DenseValues::Numbers(from) => {
                            places
                                .zip(from[range].iter().map(|&value| Value::Float(value)))
                                .try_for_each(put)?;
                        }
                    }
                }
                Target::Column(column) => {
                    let ids = samples.sparse[column].of(index, Hotness::Fixed(self.count as u32));
                    places.zip(ids).try_for_each(|(place, &id)| put_id(place, column, id))?;
                }
                Target::AllColumns => {
                    let mut columns = places.zip(&samples.sparse).enumerate();
                    columns.try_for_each(|(column, (place, bags))| {
                        put_id(place, column, bags.ids[index])
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// A number on its way into a file.
#[derive(Clone, Copy)]
enum Value {
    Integer(i64),
    Float(f32),
}

impl Element {
    /// The largest id that it holds.
    fn largest_id(self) -> u64 {
        match self {
            Element::Bool => 1,
            Element::I8 => i8::MAX as u64,
            Element::U8 => u64::from(u8::MAX),
            Element::I16 => i16::MAX as u64,
            Element::U16 => u64::from(u16::MAX),
            Element::I32 => i32::MAX as u64,
            Element::U32 => u64::from(u32::MAX),
            Element::I64 => i64::MAX as u64,
            // Ids are whole numbers.
            Element::F16 | Element::F32 | Element::F64 => 0,
        }
    }

    fn write(self, value: Value, place: &mut [u8]) -> Result<(), String> {
        let (integer, float) = match value {
            Value::Integer(integer) => (integer, integer as f64),
            Value::Float(float) => (float as i64, f64::from(float)),
        };
        if !self.is_float() && integer as f64 != float {
            return Err(format!("expected an integer, found {float}"));
        }
        let refuse = |range: String| format!("expected {range}, found {integer}");
        macro_rules! integer {
            ($type:ty) => {{
                let value = <$type>::try_from(integer);
                let value =
                    value.map_err(|_| refuse(format!("{} to {}", <$type>::MIN, <$type>::MAX)))?;
                place.copy_from_slice(&value.to_le_bytes());
            }};
        }
        match self {
            Element::Bool if !(0..=1).contains(&integer) => {
                return Err(refuse("0 or 1".to_owned()));
            }
            Element::Bool | Element::U8 => integer!(u8),
            Element::I8 => integer!(i8),
            Element::I16 => integer!(i16),
            Element::U16 => integer!(u16),
            Element::I32 => integer!(i32),
            Element::U32 => integer!(u32),
            Element::I64 => integer!(i64),
            Element::F16 => place.copy_from_slice(&f16::from_f64(float).to_le_bytes()),
            Element::F32 => place.copy_from_slice(&(float as f32).to_le_bytes()),
            Element::F64 => place.copy_from_slice(&float.to_le_bytes()),
        }
        Ok(())
    }
}

/// Turns a bad value into an error with its place.
pub(super) fn bad_value(file: &std::path::Path, first_record: u64, bad: BadValue) -> ReaderError {
    let message = format!("record {}: {}", first_record + bad.record as u64 + 1, bad.what);
    ReaderError::Format { file: file.to_owned(), message }
}
