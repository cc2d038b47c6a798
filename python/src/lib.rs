//! The module `headlong._headlong`: what the Python package calls.
//!
//! What it is for: training and applying models as the commands `train`, `eval` and `predict` do,
//! on data frames in memory and on files. What it will never do: decide anything that the commands
//! decide. The package around it (`python/headlong`) has the names that users see.

mod columns;
mod error;
mod frame;
mod work;

use arrow_pyarrow::FromPyArrow as _;
use error::Error;
use frame::ArrowFrame;
use headlong::Registry;
use headlong::commands::called::{self, Caller, Rows, StopRequest};
use headlong::commands::inference;
use headlong_reader::frame::Frame as _;
use headlong_reader::io::DataFile;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// The signal by which a callback ends a run.
const TERMINATE: i32 = 15;

/// Rows in memory, which are not copied.
#[pyclass(frozen, module = "headlong._headlong")]
struct Frame(Arc<ArrowFrame>);

#[pymethods]
impl Frame {
    /// Rows of an object with `__arrow_c_stream__`.
    #[staticmethod]
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let stream = arrow_array::ffi_stream::RecordBatchStreamReader::from_pyarrow_bound(object)?;
        // What is not whole panics in the crate that reads it.
        let read = AssertUnwindSafe(move || ArrowFrame::read(stream));
        let read = object.py().detach(|| catch_unwind(read));
        read.map_err(|panic| error::panicked(&*panic))?.map(|frame| Self(Arc::new(frame)))
    }

    /// Rows of columns by name: lists of Python's values, or pairs of a type and its bytes.
    #[staticmethod]
    fn of_columns(columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        columns::frame_of(columns).map(|frame| Self(Arc::new(frame)))
    }

    /// The same rows with labels, a byte each, in a column more.
    fn with_labels(&self, name: &str, labels: &Bound<'_, PyBytes>) -> PyResult<Self> {
        let labels = self.0.with_labels(name, labels.as_bytes().to_vec())?;
        Ok(Self(Arc::new(labels)))
    }

    /// The names of its columns.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.columns().iter().map(|column| column.name.clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.num_rows() as usize
    }
}

/// Data as Python names it.
#[derive(FromPyObject)]
enum Input<'py> {
    Frame(Bound<'py, Frame>),
    Path(PathBuf),
}

/// `inputs` as files, of which frames are called `name`, and by their number where there are
/// several.
fn files(name: &str, inputs: Vec<Input<'_>>) -> Vec<DataFile> {
    let several = inputs.len() > 1;
    let file = |(index, input)| match input {
        Input::Path(path) => DataFile::from(path),
        Input::Frame(frame) => {
            let rows = Arc::clone(&frame.get().0);
            let name = if several { format!("{name}[{index}]") } else { name.to_owned() };
            DataFile::of_frame(&name, rows)
        }
    };
    inputs.into_iter().enumerate().map(file).collect()
}

/// Trains as `headlong train` with flags `words`, and calls `listen` with every line of the JSON
/// log, which may end the run by returning `False`.
#[pyfunction]
fn train(
    py: Python<'_>,
    words: Vec<OsString>,
    data: Vec<Input<'_>>,
    valid: Vec<Input<'_>>,
    label: Option<String>,
    listen: &Bound<'_, PyAny>,
    shows_bar: bool,
) -> PyResult<()> {
    let rows = Rows { data: files("data", data), valid: files("valid", valid), label };
    let (sender, news) = mpsc::channel::<Vec<u8>>();
    let stop = StopRequest::new();
    let caller = Caller {
        stop: stop.clone(),
        // No one hears what comes after the end.
        listen: Arc::new(move |line| drop(sender.send(line.to_vec()))),
        shows_bar,
    };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let has_stopped = Arc::clone(&is_stopped);
    let work = move || match called::train(&words, rows, &Registry::default(), caller) {
        // That is what was asked for.
        Err(headlong::Error::Interrupted { .. }) if has_stopped.load(Ordering::Relaxed) => Ok(()),
        outcome => outcome,
    };
    let ask = || {
        is_stopped.store(true, Ordering::Relaxed);
        stop.ask(TERMINATE);
    };
    let hear = |line: Vec<u8>| {
        let answer = listen.call1((String::from_utf8_lossy(&line).into_owned(),))?;
        if answer.is_exact_instance_of::<pyo3::types::PyBool>() && !answer.is_truthy()? {
            ask();
        }
        Ok(())
    };
    work::done(py, news, work, hear, ask)
}

/// The probability of every row of `data`, as 32-bit floats, by the models in a folder.
#[pyfunction]
fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    data: Vec<Input<'_>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let data = files("data", data);
    let found =
        apply(py, move || inference::probabilities_of(&folder, &data, &Registry::default()))?;
    PyBytes::new_with(py, 4 * found.len(), |bytes| {
        for (to, number) in bytes.chunks_exact_mut(4).zip(found) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    })
}

/// The metrics of labelled `data`, by the models in a folder: a JSON document.
#[pyfunction]
fn evaluate(py: Python<'_>, folder: PathBuf, data: Vec<Input<'_>>) -> PyResult<String> {
    let data = files("data", data);
    let work = move || inference::metrics_of(&folder, data, &Registry::default());
    apply(py, work).map(|document| document.to_string())
}

/// How many models a folder has that are trained.
#[pyfunction]
fn models(folder: PathBuf) -> PyResult<usize> {
    inference::models_in(&folder).map_err(|error| error::raised(&error))
}

fn apply<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> headlong::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, news) = mpsc::channel::<()>();
    let work = move || {
        let outcome = work();
        drop(sender);
        outcome
    };
    work::done(py, news, work, |()| Ok(()), || {})
}

/// The flags of `headlong train`, without their dashes.
#[pyfunction]
fn flags() -> Vec<String> {
    called::flags()
}

/// A configuration as TOML; it comes as JSON.
#[pyfunction]
fn to_toml(json: &str) -> PyResult<String> {
    let failed = |error: &dyn std::fmt::Display| Error::new_err(format!("config: {error}"));
    let value: toml::Table = serde_json::from_str(json).map_err(|error| failed(&error))?;
    toml::to_string(&value).map_err(|error| failed(&error))
}

/// The command `headlong`: its exit code. `program` starts it in another process.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    py.detach(|| headlong::commands::cli::main_called(&Registry::default(), arguments, program))
}

#[pymodule]
fn _headlong(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_class::<Frame>()?;
    module.add_function(wrap_pyfunction!(train, module)?)?;
    module.add_function(wrap_pyfunction!(predict, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate, module)?)?;
    module.add_function(wrap_pyfunction!(models, module)?)?;
    module.add_function(wrap_pyfunction!(flags, module)?)?;
    module.add_function(wrap_pyfunction!(to_toml, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
