//! Numbers at a fixed place of every record, to columns and back.

use half::f16;

use crate::error::{ReaderError, Result};
use crate::samples::{DataSchema, DenseValues, Hotness, Samples, present, present_id};

/// Declares [`Element`]: its variants with their Rust type, numpy's name of it, and numpy's
/// description of an array of it.
macro_rules! elements {
    ($($element:ident: $type:ty, $name:literal, $description:literal;)+) => {
        /// A type of number in a file, little-endian.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum Element {
            $($element),+
        }

        impl Element {
            const ALL: &[Self] = &[$(Self::$element),+];

            /// Bytes of one.
            pub fn bytes(self) -> usize {
                match self {
                    $(Self::$element => size_of::<$type>()),+
                }
            }

            /// numpy's name of it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$element => $name),+
                }
            }

            fn description(self) -> &'static str {
                match self {
                    $(Self::$element => $description),+
                }
            }
        }
    };
}

elements! {
    Bool: bool, "bool", "|b1";
    I8: i8, "int8", "|i1";
    U8: u8, "uint8", "|u1";
    I16: i16, "int16", "<i2";
    U16: u16, "uint16", "<u2";
    I32: i32, "int32", "<i4";
    U32: u32, "uint32", "<u4";
    I64: i64, "int64", "<i8";
    F16: f16, "float16", "<f2";
    F32: f32, "float32", "<f4";
    F64: f64, "float64", "<f8";
}

impl Element {
    /// The one of this name of numpy's.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|element| element.name() == name)
    }

    /// The one of an array that numpy describes so.
    pub fn described(description: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|element| element.description() == description)
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
        self.decode_numbers(records, record_bytes, labels);
        match labels[first..].iter().position(|&label| label != 0.0 && label != 1.0) {
            None => Ok(()),
            Some(record) => {
                let what = format!("label: expected 0 or 1, found {}", labels[first + record]);
                Err(BadValue { record, what })
            }
        }
    }

    fn decode_dense(&self, records: &[u8], record_bytes: usize, dense: &mut DenseValues) {
        match dense {
            DenseValues::Numbers(to) => self.decode_numbers(records, record_bytes, to),
            DenseValues::Integers(to) => {
                each_integer!(records, record_bytes, self, |_record, value| to.push(value as i32));
            }
        }
    }

    fn decode_numbers(&self, records: &[u8], record_bytes: usize, to: &mut Vec<f32>) {
        match self.element {
            Element::F16 => {
                each!(records, record_bytes, self, f16, |_record, value| to.push(value.to_f32()));
            }
            Element::F32 => {
                each!(records, record_bytes, self, f32, |_record, value| to.push(value))
            }
            Element::F64 => {
                each!(records, record_bytes, self, f64, |_record, value| to.push(value as f32));
            }
            _ => {
                each_integer!(records, record_bytes, self, |_record, value| to.push(value as f32));
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

#[derive(Clone, Copy)]
enum Value {
    Integer(i64),
    Float(f32),
}

impl Element {
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

pub(super) fn bad_value(file: &std::path::Path, first_record: u64, bad: BadValue) -> ReaderError {
    ReaderError::format(
        file,
        format!("record {}: {}", first_record + bad.record as u64 + 1, bad.what),
    )
}
