//! Columns of Python's own values.

use crate::error::Error;
use crate::frame::{ArrowFrame, check_width};
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, Int64Type, UInt8Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, PrimitiveArray, RecordBatch, StringArray,
};
use arrow_buffer::{Buffer, ScalarBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::Arc;

/// A frame of columns by name: lists of values of one kind, or pairs of a type and its bytes.
pub fn frame_of(columns: &Bound<'_, PyDict>) -> PyResult<ArrowFrame> {
    check_width(columns.len())?;
    let mut arrays: Vec<(String, ArrayRef)> = Vec::new();
    for (name, values) in columns {
        let name: String = name.extract()?;
        let array = match values.cast::<PyTuple>() {
            Ok(pair) => of_bytes(&pair.extract::<(String, Bound<'_, PyBytes>)>()?)?,
            Err(_) => of_list(&name, values.cast::<PyList>()?)?,
        };
        if let Some((first, other)) = arrays.first().filter(|(_, other)| other.len() != array.len())
        {
            let (expected, found) = (other.len(), array.len());
            let message = format!(
                "column `{name}`: expected {expected} values, as column `{first}` has, found \
                 {found}"
            );
            return Err(Error::new_err(message));
        }
        arrays.push((name, array));
    }
    let batch = RecordBatch::try_from_iter(arrays);
    let batch = batch.map_err(|error| Error::new_err(error.to_string()))?;
    Ok(ArrowFrame::new(&batch.schema(), vec![batch]))
}

/// Numbers of a kind and their bytes: of 32 and 64 bits, integers of 64, and bytes.
pub fn of_bytes((kind, bytes): &(String, Bound<'_, PyBytes>)) -> PyResult<ArrayRef> {
    let bytes = bytes.as_bytes();
    match kind.as_str() {
        "f4" => Ok(numbers::<Float32Type>(bytes)),
        "f8" => Ok(numbers::<Float64Type>(bytes)),
        "i8" => Ok(numbers::<Int64Type>(bytes)),
        "u1" => Ok(numbers::<UInt8Type>(bytes)),
        other => Err(Error::new_err(format!("expected f4, f8, i8 or u1, found {other}"))),
    }
}

fn numbers<T: ArrowPrimitiveType>(bytes: &[u8]) -> ArrayRef {
    let values = ScalarBuffer::<T::Native>::from(Buffer::from_slice_ref(bytes));
    Arc::new(PrimitiveArray::<T>::new(values, None))
}

/// A list whose values are all of one kind, or missing; integers among floats are floats.
fn of_list(name: &str, values: &Bound<'_, PyList>) -> PyResult<ArrayRef> {
    let (mut kind, mut since) = (Kind::Missing, 0);
    for (row, value) in values.iter().enumerate() {
        let found = Kind::of(&value);
        kind = match (kind, found) {
            (known, Kind::Missing) => known,
            (Kind::Integer, Kind::Float) | (Kind::Float, Kind::Integer) => Kind::Float,
            (Kind::Missing, found) if found != Kind::Other => {
                since = row;
                found
            }
            (known, found) if known == found && found != Kind::Other => found,
            (known, _) => {
                let found = value.get_type().name()?;
                let expected = match known {
                    Kind::Missing => "truth values, integers, floats or text".to_owned(),
                    _ => format!("values of one kind, as in row {since}"),
                };
                return Err(wrong(name, row, &expected, &found.to_string()));
            }
        };
    }
    Ok(match kind {
        Kind::Truth => Arc::new(BooleanArray::from(of_type::<bool>(name, values)?)),
        Kind::Integer => Arc::new(Int64Array::from(of_type::<i64>(name, values)?)),
        Kind::Text => Arc::new(StringArray::from(of_type::<String>(name, values)?)),
        _ => Arc::new(Float64Array::from(of_type::<f64>(name, values)?)),
    })
}

/// What a value of a list is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    Truth,
    Integer,
    Float,
    Text,
    Other,
}

impl Kind {
    fn of(value: &Bound<'_, PyAny>) -> Self {
        match value {
            none if none.is_none() => Self::Missing,
            // Python's truth values are integers, too.
            truth if truth.is_instance_of::<PyBool>() => Self::Truth,
            integer if integer.is_instance_of::<PyInt>() => Self::Integer,
            float if float.is_instance_of::<PyFloat>() => Self::Float,
            text if text.is_instance_of::<PyString>() => Self::Text,
            _ => Self::Other,
        }
    }
}

fn of_type<'py, T: for<'a> FromPyObject<'a, 'py>>(
    name: &str,
    values: &Bound<'py, PyList>,
) -> PyResult<Vec<Option<T>>> {
    let extract = |(row, value): (usize, Bound<'py, PyAny>)| {
        value.extract::<Option<T>>().map_err(|error| {
            let error: PyErr = error.into();
            wrong(name, row, "integers of 64 bits, floats or text", &error.to_string())
        })
    };
    values.iter().enumerate().map(extract).collect()
}

fn wrong(name: &str, row: usize, expected: &str, found: &str) -> PyErr {
    Error::new_err(format!("row {row}, column `{name}`: expected {expected}, found {found}"))
}
