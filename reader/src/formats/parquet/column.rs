//! Values of a column to samples.

use ::parquet::basic::ConvertedType;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::schema::types::ColumnDescriptor;
use headlong_device::label::weighted;

use super::clock::clock_of;
use crate::columns::DenseColumns;
use crate::criteo::parse::MISSING_DENSE;
use crate::excerpt::UNIT_SEPARATOR;
use crate::formats::named::{
    DenseReading, Fault, NamedColumns, Role, WEIGHT, id_of_text, label as label_of_text, push_ids,
    transformed, weight_of,
};
use crate::frame::{self, FrameValues};
use crate::hashing::MISSING_ID;
use crate::samples::{DenseValues, Hotness, IdBags, Samples};
use crate::times::{self, Clock, Moment};

pub(super) fn skip(reader: &mut ColumnReader, rows: usize) -> Result<usize, ParquetError> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
        _ => Err(ParquetError::General("a column of a type that is not supported".to_owned())),
    }
}

pub(in crate::formats) struct Column {
    values: Values,
    /// Of each value or gap: how much of it is there, and whether it begins a row (0).
    defined: Vec<i16>,
    repeated: Vec<i16>,
    most_defined: i16,
    /// From this level on there is an element of a list.
    element_from: i16,
    /// Where the integers are points in time.
    clock: Option<Clock>,
}

enum Values {
    Bools(Vec<bool>),
    /// Whether they are without a sign.
    Integers(Vec<i64>, bool),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Words(Vec<ByteArray>),
}

impl Column {
    /// The next `rows` rows.
    pub fn read(
        reader: &mut ColumnReader,
        leaf: &ColumnDescriptor,
        rows: usize,
    ) -> Result<Self, ParquetError> {
        let is_unsigned = matches!(
            leaf.converted_type(),
            ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64
        );
        let mut levels = (Vec::new(), Vec::new());
        let values = match reader {
            ColumnReader::BoolColumnReader(reader) => {
                Values::Bools(values(reader, rows, &mut levels)?)
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let narrow = values(reader, rows, &mut levels)?;
                let wide = |value: i32| {
                    if is_unsigned { i64::from(value as u32) } else { i64::from(value) }
                };
                Values::Integers(narrow.into_iter().map(wide).collect(), is_unsigned)
            }
            ColumnReader::Int64ColumnReader(reader) => {
                Values::Integers(values(reader, rows, &mut levels)?, is_unsigned)
            }
            ColumnReader::FloatColumnReader(reader) => {
                Values::Floats(values(reader, rows, &mut levels)?)
            }
            ColumnReader::DoubleColumnReader(reader) => {
                Values::Doubles(values(reader, rows, &mut levels)?)
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                Values::Words(values(reader, rows, &mut levels)?)
            }
            _ => {
                return Err(ParquetError::General(
                    "a column of a type that is not supported".to_owned(),
                ));
            }
        };
        let most_defined = leaf.max_def_level();
        let (defined, repeated) = levels;
        let element_from = most_defined - i16::from(leaf.self_type().is_optional());
        let clock = clock_of(leaf);
        Ok(Self { values, defined, repeated, most_defined, element_from, clock })
    }

    /// Those of a frame.
    pub fn of_frame(found: FrameValues) -> Self {
        let FrameValues { values, defined, repeated } = found;
        let most_defined = match (defined.is_empty(), repeated.is_empty()) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        let clock = match &values {
            frame::Values::Times(_, clock) => Some(*clock),
            _ => None,
        };
        let values = match values {
            frame::Values::Bools(values) => Values::Bools(values),
            frame::Values::Times(values, _) | frame::Values::Integers(values) => {
                Values::Integers(values, false)
            }
            frame::Values::Unsigned(values) => {
                Values::Integers(values.into_iter().map(|value| value as i64).collect(), true)
            }
            frame::Values::Floats(values) => Values::Floats(values),
            frame::Values::Doubles(values) => Values::Doubles(values),
            frame::Values::Words(values) => {
                Values::Words(values.into_iter().map(ByteArray::from).collect())
            }
        };
        Self { values, defined, repeated, most_defined, element_from: 1, clock }
    }

    /// Calls `put` with each row and the index of its value, where it has one. Always inlined: a
    /// call for each value is a tenth of the time of a column.
    #[inline(always)]
    fn single(
        &self,
        rows: usize,
        mut put: impl FnMut(usize, Option<usize>) -> Result<(), Fault>,
    ) -> Result<(), (usize, Fault)> {
        let mut value = 0;
        for row in 0..rows {
            let here = self.most_defined == 0 || self.defined[row] == self.most_defined;
            put(row, here.then_some(value)).map_err(|fault| (row, fault))?;
            value += usize::from(here);
        }
        Ok(())
    }

    /// Puts the values where `role` says; the error is the row and what is wrong there.
    pub fn put(
        &self,
        role: Role,
        columns: &NamedColumns,
        samples: &mut Samples,
        rows: usize,
    ) -> Result<(), (usize, Fault)> {
        match role {
            Role::Ignored => Ok(()),
            Role::Label => self.single(rows, |_, value| {
                samples.labels.push(self.label(value)?);
                Ok(())
            }),
            Role::Weight => {
                self.single(rows, |row, value| self.put_weight(value, &mut samples.labels[row]))
            }
            Role::Dense(column) => {
                let (width, reading) = (columns.dense.len(), columns.dense_reading);
                if let Some(each) = columns.each_dense() {
                    return self.single(rows, |row, value| {
                        self.put_of_column((row, column), value, each, samples)
                    });
                }
                self.single(rows, |row, value| match &mut samples.dense {
                    DenseValues::Integers(to) => {
                        to[row * width + column] = self.integer(value)?;
                        Ok(())
                    }
                    DenseValues::Numbers(to) => {
                        let number = self.number(value, reading)?;
                        samples.dense_missing[column] += u64::from(number.is_none());
                        to[row * width + column] = number.unwrap_or_else(|| missing(reading));
                        Ok(())
                    }
                })
            }
            Role::Sparse(column) if columns.sparse[column].hotness == Hotness::Fixed(1) => {
                let to = &mut samples.sparse[column].ids;
                self.single(rows, |_, value| {
                    to.push(value.map_or(Ok(MISSING_ID), |value| self.id_or_missing(value))?);
                    Ok(())
                })
            }
            Role::Sparse(column) if self.repeated.is_empty() => {
                let (hotness, bags) = (columns.sparse[column].hotness, &mut samples.sparse[column]);
                self.single(rows, |_, value| {
                    let text = value.map_or(&b""[..], |value| self.word(value));
                    push_ids(text.trim_ascii(), hotness, columns.list_separator, bags)
                })
            }
            Role::Time(column) => self.single(rows, |_, value| {
                columns.push_parts(column, self.moment(value)?, samples);
                Ok(())
            }),
            Role::Sparse(column) => {
                self.put_lists(columns.sparse[column].hotness, &mut samples.sparse[column])
            }
        }
    }

    /// Weighs the label of a row, which is there already.
    fn put_weight(&self, value: Option<usize>, label: &mut f32) -> Result<(), Fault> {
        let number = value.and_then(|index| self.double(index));
        let weight = number.and_then(weight_of).ok_or_else(|| (WEIGHT, self.shown(value)))?;
        *label = weighted(*label > 0.5, weight);
        Ok(())
    }

    /// Puts the number of a column that something has been said of, and its bins.
    fn put_of_column(
        &self,
        (row, column): (usize, usize),
        value: Option<usize>,
        each: &DenseColumns,
        samples: &mut Samples,
    ) -> Result<(), Fault> {
        let fault = || ("a number", self.shown(value));
        let found = value.map(|index| self.double(index).ok_or_else(fault)).transpose()?;
        // Some writers put this where a value is missing.
        let found = found.filter(|found| !found.is_nan());
        samples.dense_missing[column] += u64::from(found.is_none());
        let seen = each.functions[column].number(found);
        match &mut samples.dense {
            DenseValues::Numbers(to) if seen.is_finite() => {
                to[row * each.functions.len() + column] = seen;
            }
            _ => return Err(fault()),
        }
        each.push_bins(column, found, &mut samples.sparse);
        Ok(())
    }

    /// The values of the next rows as text; those of a list with [`UNIT_SEPARATOR`] between them.
    pub fn texts(&self, rows: usize, put: &mut dyn FnMut(&[u8])) {
        let (mut value, mut text, lists) = (0, String::new(), !self.repeated.is_empty());
        let entries = if self.defined.is_empty() { rows } else { self.defined.len() };
        for entry in 0..entries {
            let continues = lists && self.repeated[entry] > 0;
            if !continues {
                text.clear();
            } else {
                text.push(UNIT_SEPARATOR as char);
            }
            if self.most_defined == 0 || self.defined[entry] == self.most_defined {
                let of_this = match (&self.values, self.double(value)) {
                    (Values::Words(words), _) => String::from_utf8_lossy(words[value].data()),
                    (_, Some(nan)) if nan.is_nan() => "".into(),
                    _ => self.shown(Some(value)).into(),
                };
                text.push_str(&of_this);
                value += 1;
            }
            if !lists || self.repeated.get(entry + 1).is_none_or(|level| *level == 0) {
                put(text.as_bytes());
            }
        }
    }

    fn put_lists(&self, hotness: Hotness, to: &mut IdBags) -> Result<(), (usize, Fault)> {
        let (mut value, mut entry, mut row) = (0, 0, 0);
        while entry < self.repeated.len() {
            let before = to.ids.len();
            loop {
                let defined = self.defined[entry];
                if defined == self.most_defined {
                    to.ids.push(self.id_or_missing(value).map_err(|fault| (row, fault))?);
                    value += 1;
                } else if defined >= self.element_from {
                    to.ids.push(MISSING_ID);
                }
                entry += 1;
                if self.repeated.get(entry).is_none_or(|level| *level == 0) {
                    break;
                }
            }
            let found = to.ids.len() - before;
            match hotness {
                Hotness::Varying => to.offsets.push(to.ids.len() as u32),
                Hotness::Fixed(count) if count as usize == found => {}
                Hotness::Fixed(_) => {
                    return Err((row, ("as many values as in every sample", found.to_string())));
                }
            }
            row += 1;
        }
        Ok(())
    }

    fn label(&self, value: Option<usize>) -> Result<f32, Fault> {
        match (value, value.and_then(|value| self.double(value))) {
            (_, Some(0.0)) => Ok(0.0),
            (_, Some(1.0)) => Ok(1.0),
            (Some(index), None) => label_of_text(self.word(index).trim_ascii()),
            _ => Err(("0 or 1", self.shown(value))),
        }
    }

    fn integer(&self, value: Option<usize>) -> Result<i32, Fault> {
        let Some(index) = value else { return Ok(MISSING_DENSE) };
        let fitting = match &self.values {
            Values::Integers(values, _) => i32::try_from(values[index]).ok(),
            _ => None,
        };
        fitting
            .filter(|found| *found != MISSING_DENSE)
            .ok_or_else(|| ("an integer of 32 bits", self.shown(value)))
    }

    /// The number of a row as the model sees it; none where it is missing.
    fn number(&self, value: Option<usize>, reading: DenseReading) -> Result<Option<f32>, Fault> {
        let Some(index) = value else { return Ok(None) };
        let found = match (reading, &self.values) {
            (DenseReading::Transformed(_), Values::Floats(values)) => Some(values[index]),
            (DenseReading::Transformed(_), _) => self.double(index).map(|found| found as f32),
            // Some writers put this where a value is missing.
            (DenseReading::Raw(_), _) if self.double(index).is_some_and(f64::is_nan) => {
                return Ok(None);
            }
            (DenseReading::Raw(transform), _) => self
                .double(index)
                .filter(|found| found.is_finite())
                .map(|found| transformed(found, transform)),
            (DenseReading::Integers, _) => None,
        };
        let found = found.filter(|found| found.is_finite());
        found.map(Some).ok_or_else(|| ("a number", self.shown(value)))
    }

    /// The point in time of a row; none where it is missing.
    fn moment(&self, value: Option<usize>) -> Result<Option<Moment>, Fault> {
        let Some(index) = value.filter(|value| !self.is_missing(*value)) else { return Ok(None) };
        let found = match (&self.values, self.clock) {
            (Values::Integers(counts, _), Some(clock)) => clock.moment(counts[index]),
            (Values::Integers(numbers, _), None) => Moment::of_integer(numbers[index]),
            (Values::Doubles(numbers), _) => Moment::of_integer(numbers[index] as i64),
            (Values::Words(words), _) => Moment::of_text(words[index].data().trim_ascii()),
            _ => None,
        };
        found.map(Some).ok_or_else(|| (times::EXPECTED, self.shown(value)))
    }

    fn double(&self, index: usize) -> Option<f64> {
        match &self.values {
            Values::Integers(values, true) => Some(values[index] as u64 as f64),
            Values::Integers(values, false) => Some(values[index] as f64),
            Values::Floats(values) => Some(f64::from(values[index])),
            Values::Doubles(values) => Some(values[index]),
            Values::Bools(values) => Some(f64::from(u8::from(values[index]))),
            Values::Words(_) => None,
        }
    }

    fn word(&self, index: usize) -> &[u8] {
        match &self.values {
            Values::Words(words) => words[index].data(),
            _ => &[],
        }
    }

    fn is_blank(&self, index: usize) -> bool {
        matches!(&self.values, Values::Words(words) if words[index].data().trim_ascii().is_empty())
    }

    fn is_missing(&self, index: usize) -> bool {
        self.is_blank(index) || self.double(index).is_some_and(f64::is_nan)
    }

    /// Nothing but blanks is a missing value, as it is in text.
    fn id_or_missing(&self, index: usize) -> Result<u64, Fault> {
        if self.is_blank(index) { Ok(MISSING_ID) } else { self.id(index) }
    }

    fn id(&self, index: usize) -> Result<u64, Fault> {
        Ok(match &self.values {
            Values::Integers(values, true) if values[index] < 0 => values[index] as u64,
            Values::Integers(values, _) => id_of_integer(values[index]),
            Values::Floats(values) => return self.id_of_number(f64::from(values[index]), index),
            Values::Doubles(values) => return self.id_of_number(values[index], index),
            Values::Bools(values) => u64::from(values[index]),
            Values::Words(words) => id_of_text(words[index].data().trim_ascii()),
        })
    }

    /// The id of a number: a column of integers with gaps becomes one of fractions on its way
    /// through pandas.
    fn id_of_number(&self, number: f64, index: usize) -> Result<u64, Fault> {
        match number {
            missing if missing.is_nan() => Ok(MISSING_ID),
            whole if whole.fract() == 0.0 && whole.abs() < (1_u64 << 63) as f64 => {
                Ok(id_of_integer(whole as i64))
            }
            other if other.is_finite() => Ok(id_of_text(self.shown(Some(index)).as_bytes())),
            _ => Err(("an id", self.shown(Some(index)))),
        }
    }

    fn shown(&self, value: Option<usize>) -> String {
        let Some(index) = value else { return "nothing".to_owned() };
        match &self.values {
            Values::Integers(values, _) if self.clock.is_some() => {
                let moment = self.clock.and_then(|clock| clock.moment(values[index]));
                moment.map_or_else(|| values[index].to_string(), |moment| moment.to_string())
            }
            Values::Bools(values) => values[index].to_string(),
            Values::Integers(values, true) => (values[index] as u64).to_string(),
            Values::Integers(values, false) => values[index].to_string(),
            Values::Floats(values) => values[index].to_string(),
            Values::Doubles(values) => values[index].to_string(),
            Values::Words(words) => format!("\"{}\"", String::from_utf8_lossy(words[index].data())),
        }
    }
}

fn values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (defined, repeated): &mut (Vec<i16>, Vec<i16>),
) -> Result<Vec<T::T>, ParquetError> {
    let mut values = Vec::new();
    let (found, ..) = reader.read_records(rows, Some(defined), Some(repeated), &mut values)?;
    if found == rows {
        Ok(values)
    } else {
        Err(ParquetError::EOF(format!("expected {rows} more rows of a column, found {found}")))
    }
}

fn missing(reading: DenseReading) -> f32 {
    match reading {
        DenseReading::Raw(transform) => transformed(0.0, transform),
        DenseReading::Integers | DenseReading::Transformed(_) => 0.0,
    }
}

/// The id that an integer has as text, too: itself where there is such an id.
fn id_of_integer(integer: i64) -> u64 {
    let id = u64::try_from(integer).ok().filter(|id| *id != MISSING_ID);
    id.unwrap_or_else(|| id_of_text(integer.to_string().as_bytes()))
}
