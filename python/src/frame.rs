//! Data frames: batches of Arrow's columns, whose values are read where they are.

use crate::error::Error;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Date32Type, Date64Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayAccessor, ArrayRef, GenericListArray, OffsetSizeTrait, RecordBatch,
    RecordBatchReader,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use headlong_reader::frame::{Frame, FrameColumn, FrameKind, FrameValues, Values};
use headlong_reader::times::Clock;
use pyo3::PyResult;
use std::ops::Range;
use std::sync::Arc;

const TIME: &str = "make it text, or integers of one unit";
const NUMBER: &str = "make it 32- or 64-bit numbers, or text";
/// More columns than this would take minutes, and are mostly rows by mistake.
pub const MOST_COLUMNS: usize = 10_000;
/// Thousandths of a second in a day.
const DAY_MS: i64 = 86_400_000;

/// Refuses frames of more than [`MOST_COLUMNS`].
pub fn check_width(columns: usize) -> PyResult<()> {
    match columns > MOST_COLUMNS {
        true => {
            let message = format!(
                "expected at most {MOST_COLUMNS} columns, found {columns}; are they its rows?"
            );
            Err(Error::new_err(message))
        }
        false => Ok(()),
    }
}

/// Batches of the same columns, one after another.
#[derive(Clone)]
pub struct ArrowFrame {
    columns: Vec<FrameColumn>,
    /// Whether a value of the column is missing anywhere.
    has_missing: Vec<bool>,
    batches: Vec<RecordBatch>,
    /// Rows before each batch, and all of them at the end.
    starts: Vec<u64>,
}

impl ArrowFrame {
    /// All batches of a stream, which are not copied.
    pub fn read(stream: impl RecordBatchReader) -> PyResult<Self> {
        let schema = stream.schema();
        check_width(schema.fields().len())?;
        let batches = stream.collect::<Result<Vec<_>, _>>();
        let batches = batches.map_err(|error| Error::new_err(error.to_string()))?;
        Ok(Self::new(&schema, batches))
    }

    pub fn new(schema: &Schema, batches: Vec<RecordBatch>) -> Self {
        let fields = schema.fields().iter();
        let column = |field: &Arc<Field>| FrameColumn {
            name: field.name().clone(),
            kind: kind_of(field.data_type()),
        };
        let columns: Vec<_> = fields.map(column).collect();
        let batches: Vec<_> = batches.into_iter().filter(|batch| batch.num_rows() > 0).collect();
        let has_missing = (0..columns.len())
            .map(|column| batches.iter().any(|batch| has_missing(batch.column(column))));
        let mut starts = vec![0];
        for batch in &batches {
            starts.push(starts[starts.len() - 1] + batch.num_rows() as u64);
        }
        Self { has_missing: has_missing.collect(), columns, batches, starts }
    }

    /// The same rows with numbers, none of which is missing, in a column more.
    pub fn with_column(&self, name: &str, numbers: &ArrayRef) -> PyResult<Self> {
        if numbers.len() as u64 != self.num_rows() {
            let message = format!("{} values for {} rows", numbers.len(), self.num_rows());
            return Err(Error::new_err(message));
        }
        let mut labelled = self.clone();
        labelled.columns.push(FrameColumn { name: name.to_owned(), kind: FrameKind::Numbers });
        labelled.has_missing.push(false);
        for (batch, start) in labelled.batches.iter_mut().zip(&self.starts) {
            let mut columns = batch.columns().to_vec();
            columns.push(numbers.slice(*start as usize, batch.num_rows()));
            let mut fields = batch.schema().fields().to_vec();
            fields.push(Arc::new(Field::new(name, numbers.data_type().clone(), false)));
            let joined = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
            *batch = joined.map_err(|error| Error::new_err(error.to_string()))?;
        }
        Ok(labelled)
    }
}

impl Frame for ArrowFrame {
    fn columns(&self) -> &[FrameColumn] {
        &self.columns
    }

    fn num_rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    fn bytes(&self) -> u64 {
        self.batches.iter().map(|batch| batch.get_array_memory_size() as u64).sum()
    }

    fn read(&self, column: usize, rows: Range<u64>) -> FrameValues {
        let mut gathered = Gathered::default();
        let first = self.starts.partition_point(|&start| start <= rows.start).max(1) - 1;
        for (batch, &start) in self.batches.iter().zip(&self.starts).skip(first) {
            let end = rows.end.min(start + batch.num_rows() as u64);
            let begin = rows.start.max(start);
            if begin >= end {
                break;
            }
            let rows = (begin - start) as usize..(end - start) as usize;
            let array = batch.column(column);
            match self.columns[column].kind {
                FrameKind::Lists => gathered.take_lists(array, rows),
                _ => gathered.take(array, rows, i16::from(self.has_missing[column])),
            }
        }
        gathered.finish()
    }
}

/// What a column of a type holds. What Parquet refuses, this does, too.
fn kind_of(data_type: &DataType) -> FrameKind {
    use FrameKind::Refused;
    match data_type {
        DataType::Dictionary(_, values) => match kind_of(values) {
            FrameKind::Lists => Refused("a dictionary of lists", "make it lists"),
            other => other,
        },
        DataType::List(of) | DataType::LargeList(of) => match kind_of(of.data_type()) {
            FrameKind::Lists => Refused("lists of lists", "make it lists"),
            FrameKind::Numbers | FrameKind::Words => FrameKind::Lists,
            FrameKind::Times => Refused("lists of times", TIME),
            refused => refused,
        },
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => FrameKind::Words,
        DataType::Float16 => Refused("16-bit numbers", NUMBER),
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => FrameKind::Times,
        DataType::Time32(_) | DataType::Time64(_) => Refused("times of day", TIME),
        DataType::Duration(_) | DataType::Interval(_) => Refused("intervals of time", TIME),
        DataType::FixedSizeBinary(_) => Refused("bytes of a fixed length", "make it text"),
        DataType::Struct(_) | DataType::Map(..) | DataType::Union(..) => {
            Refused("a structure of columns", "make each of them a column")
        }
        // Nothing at all, which may be of lists, as text may.
        DataType::Null => FrameKind::Words,
        DataType::Boolean => FrameKind::Numbers,
        number if number.is_integer() || number.is_floating() => FrameKind::Numbers,
        number if number.is_decimal() => Refused("decimals", NUMBER),
        _ => Refused("a type that is not supported", "make it numbers, text or lists"),
    }
}

fn has_missing(array: &ArrayRef) -> bool {
    array.logical_null_count() > 0
}

/// Values as they are gathered from batches.
#[derive(Default)]
struct Gathered {
    values: Option<Values>,
    text: Vec<u8>,
    ends: Vec<usize>,
    defined: Vec<i16>,
    repeated: Vec<i16>,
}

/// Adds the values of a primitive type to those of a variant of [`Values`].
macro_rules! primitive {
    ($self:ident, $array:ident, $rows:ident, $level:ident,
     $type:ty => $variant:ident as $wide:ty) => {{
        let array = $array.as_primitive::<$type>();
        let values = $self.values.get_or_insert_with(|| Values::$variant(Vec::new()));
        if let Values::$variant(to) = values {
            each(array, $rows, $level, &mut $self.defined, |row| {
                to.push(<$wide>::from(array.value(row)))
            });
        }
    }};
}

/// As [`primitive`], of points in time that count as `$clock` says.
macro_rules! times {
    ($self:ident, $array:ident, $rows:ident, $level:ident,
     $type:ty => $clock:expr, $count:expr) => {{
        let array = $array.as_primitive::<$type>();
        let values = $self.values.get_or_insert_with(|| Values::Times(Vec::new(), $clock));
        if let Values::Times(to, _) = values {
            each(array, $rows, $level, &mut $self.defined, |row| {
                to.push($count(i64::from(array.value(row))))
            });
        }
    }};
}

impl Gathered {
    /// Adds `rows` of an array. `level` is noted of values that are there, one below of others;
    /// nothing where `level` is 0, and all are there.
    fn take(&mut self, array: &dyn Array, rows: Range<usize>, level: i16) {
        match array.data_type() {
            DataType::Null => each(array, rows, level, &mut self.defined, |_| {}),
            DataType::Boolean => {
                let array = array.as_boolean();
                let values = self.values.get_or_insert_with(|| Values::Bools(Vec::new()));
                if let Values::Bools(to) = values {
                    each(array, rows, level, &mut self.defined, |row| to.push(array.value(row)));
                }
            }
            DataType::Int8 => primitive!(self, array, rows, level, Int8Type => Integers as i64),
            DataType::Int16 => primitive!(self, array, rows, level, Int16Type => Integers as i64),
            DataType::Int32 => primitive!(self, array, rows, level, Int32Type => Integers as i64),
            DataType::Int64 => primitive!(self, array, rows, level, Int64Type => Integers as i64),
            DataType::UInt8 => primitive!(self, array, rows, level, UInt8Type => Unsigned as u64),
            DataType::UInt16 => primitive!(self, array, rows, level, UInt16Type => Unsigned as u64),
            DataType::UInt32 => primitive!(self, array, rows, level, UInt32Type => Unsigned as u64),
            DataType::UInt64 => primitive!(self, array, rows, level, UInt64Type => Unsigned as u64),
            DataType::Float32 => primitive!(self, array, rows, level, Float32Type => Floats as f32),
            DataType::Float64 => {
                primitive!(self, array, rows, level, Float64Type => Doubles as f64)
            }
            DataType::Utf8 => self.words(array.as_string::<i32>(), rows, level),
            DataType::LargeUtf8 => self.words(array.as_string::<i64>(), rows, level),
            DataType::Binary => self.words(array.as_binary::<i32>(), rows, level),
            DataType::LargeBinary => self.words(array.as_binary::<i64>(), rows, level),
            DataType::Utf8View => self.words(array.as_string_view(), rows, level),
            DataType::BinaryView => self.words(array.as_binary_view(), rows, level),
            DataType::Dictionary(..) => self.take_keys(array, rows, level),
            _ => self.take_times(array, rows, level),
        }
    }

    fn take_times(&mut self, array: &dyn Array, rows: Range<usize>, level: i16) {
        let same = |count: i64| count;
        match array.data_type() {
            DataType::Date32 => {
                times!(self, array, rows, level, Date32Type => Clock::Days, same)
            }
            DataType::Date64 => {
                let days = |count: i64| count.div_euclid(DAY_MS);
                times!(self, array, rows, level, Date64Type => Clock::Days, days)
            }
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => {
                    times!(self, array, rows, level, TimestampSecondType
                        => Clock::PerSecond(1), same)
                }
                TimeUnit::Millisecond => {
                    times!(self, array, rows, level, TimestampMillisecondType
                        => Clock::PerSecond(1000), same)
                }
                TimeUnit::Microsecond => {
                    times!(self, array, rows, level, TimestampMicrosecondType
                        => Clock::PerSecond(1_000_000), same)
                }
                TimeUnit::Nanosecond => {
                    times!(self, array, rows, level, TimestampNanosecondType
                        => Clock::PerSecond(1_000_000_000), same)
                }
            },
            other => unreachable!("{other} was refused"),
        }
    }

    fn words<A: ArrayAccessor>(&mut self, array: A, rows: Range<usize>, level: i16)
    where
        A::Item: AsRef<[u8]>,
    {
        let (text, ends) = (&mut self.text, &mut self.ends);
        each(&array, rows, level, &mut self.defined, |row| {
            text.extend_from_slice(array.value(row).as_ref());
            ends.push(text.len());
        });
    }

    fn take_keys(&mut self, array: &dyn Array, rows: Range<usize>, level: i16) {
        let array = array.slice(rows.start, rows.len());
        let dictionary = array.as_any_dictionary();
        let values = dictionary.values();
        let keys = if values.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
        for row in 0..rows.len() {
            let key = keys.get(row).copied();
            let key = key.filter(|&key| array.is_valid(row) && values.is_valid(key));
            if level > 0 {
                self.defined.push(level - i16::from(key.is_none()));
            }
            if let Some(key) = key {
                self.take(values, key..key + 1, 0);
            }
        }
    }

    fn take_lists(&mut self, array: &dyn Array, rows: Range<usize>) {
        match array.data_type() {
            DataType::LargeList(_) => self.lists(array.as_list::<i64>(), rows),
            _ => self.lists(array.as_list::<i32>(), rows),
        }
    }

    fn lists<O: OffsetSizeTrait>(&mut self, array: &GenericListArray<O>, rows: Range<usize>) {
        let offsets = array.value_offsets();
        for row in rows {
            let elements = offsets[row].as_usize()..offsets[row + 1].as_usize();
            if array.is_null(row) || elements.is_empty() {
                self.defined.push(0);
                self.repeated.push(0);
                continue;
            }
            self.repeated.push(0);
            self.repeated.resize(self.repeated.len() + elements.len() - 1, 1);
            self.take(array.values(), elements, 2);
        }
    }

    fn finish(self) -> FrameValues {
        let Self { values, text, ends, defined, repeated } = self;
        let values = match values {
            Some(values) => values,
            None if ends.is_empty() => Values::Doubles(Vec::new()),
            None => {
                let (text, mut start) = (Bytes::from(text), 0);
                let word = |end: usize| text.slice(std::mem::replace(&mut start, end)..end);
                Values::Words(ends.into_iter().map(word).collect())
            }
        };
        FrameValues { values, defined, repeated }
    }
}

/// Calls `push` for the rows whose value is there, and notes in `defined` which these are.
fn each(
    array: &dyn Array,
    rows: Range<usize>,
    level: i16,
    defined: &mut Vec<i16>,
    mut push: impl FnMut(usize),
) {
    if level == 0 {
        return rows.for_each(push);
    }
    let is_null = array.data_type() == &DataType::Null;
    for row in rows {
        let is_there = !is_null && array.is_valid(row);
        defined.push(level - i16::from(!is_there));
        if is_there {
            push(row);
        }
    }
}
