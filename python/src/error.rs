//! Errors of Headlong, as exceptions.

use headlong::commands::called;
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
    Error::new_err(in_python(&called::chain(error)))
}

/// Flags that are no arguments: what is said of them is of the command.
const NOT_HERE: [&str; 7] = ["auto", "config", "dry-run", "log-json", "set", "time", "which"];

/// A message of the command, with Python's names of its flags.
pub fn in_python(text: &str) -> String {
    let flags = called::flags();
    let mut parts = text.split("--");
    let mut worded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
        let flag = part[..end.unwrap_or(part.len())].trim_end_matches('-');
        if flags.iter().any(|known| known == flag) && !NOT_HERE.contains(&flag) {
            worded += &flag.replace('-', "_");
        } else {
            worded += "--";
            worded += flag;
        }
        worded += &part[flag.len()..];
    }
    worded
}

/// The exception of a panic, which is a mistake of Headlong's own.
pub fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    let text = text_of(panic);
    Error::new_err(format!("a mistake in Headlong, please report it: {text}"))
}

/// That of a panic of what reads Arrow's memory.
pub fn odd(panic: &(dyn Any + Send)) -> PyErr {
    let text = text_of(panic);
    Error::new_err(format!("expected a data frame of whole columns by Arrow's interface: {text}"))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}
