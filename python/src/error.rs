//! Errors of Headlong, as exceptions.

use pyo3::exceptions::PyValueError;
use pyo3::{PyErr, create_exception};
use std::any::Any;

create_exception!(
    headlong,
    Error,
    PyValueError,
    "What Headlong cannot do, in one sentence: file or frame, row, column, key, what was expected \
     and what was found. The texts are those of the command `headlong`."
);

/// The exception of an error, with all of its causes.
pub fn raised(error: &headlong::Error) -> PyErr {
    Error::new_err(headlong::commands::called::chain(error))
}

/// The exception of a panic, which is a mistake of Headlong's own.
pub fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    Error::new_err(format!("a mistake in Headlong, please report it: {text}"))
}
