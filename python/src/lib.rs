//! The module `headlong._headlong`: what the Python package calls.
//!
//! What it is for: training and applying models as the commands `train`, `eval` and `predict` do,
//! on data frames in memory and on files. What it will never do: decide anything that the commands
//! decide. The package around it (`python/headlong`) has the names that users see.

mod columns;
mod error;
mod frame;
mod work;

use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_pyarrow::FromPyArrow as _;
use error::Error;
use frame::ArrowFrame;
use headlong::Registry;
use headlong::commands::called::{self, Caller, Rows, StopRequest};
use headlong::commands::checkpoint::Which;
use headlong::commands::inference::{self, Inputs, ModelInputs, Models};
use headlong_reader::frame::Frame as _;
use headlong_reader::io::DataFile;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
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
        // What is not whole panics in the crate that reads it.
        let open = || RecordBatchStreamReader::from_pyarrow_bound(object);
        let stream =
            catch_unwind(AssertUnwindSafe(open)).map_err(|panic| error::odd(&*panic))??;
        let read = AssertUnwindSafe(move || ArrowFrame::read(stream));
        let read = object.py().detach(|| catch_unwind(read));
        read.map_err(|panic| error::odd(&*panic))?.map(|frame| Self(Arc::new(frame)))
    }

    /// Rows of columns by name: lists of Python's values, or pairs of a type and its bytes.
    #[staticmethod]
    fn of_columns(columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        columns::frame_of(columns).map(|frame| Self(Arc::new(frame)))
    }

    /// The same rows with numbers, a type and its bytes, in a column more.
    fn with_column(&self, name: &str, numbers: (String, Bound<'_, PyBytes>)) -> PyResult<Self> {
        let wider = self.0.with_column(name, &columns::of_bytes(&numbers)?)?;
        Ok(Self(Arc::new(wider)))
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

/// The models in a folder: its best checkpoints, or the newest ones.
fn models_of(folder: PathBuf, newest: bool) -> Models {
    Models { folder, which: if newest { Which::Newest } else { Which::Best } }
}

/// The probability of every row of `data`, as 32-bit floats, by the models in a folder; and what
/// there is to say of it.
#[pyfunction]
fn predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    newest: bool,
    data: Vec<Input<'_>>,
) -> PyResult<(Bound<'py, PyByteArray>, Vec<String>)> {
    let (data, models) = (files("data", data), models_of(folder, newest));
    let work = move || inference::probabilities_of(&models, &data, &Registry::default());
    let (found, warnings) = apply(py, work)?;
    Ok((bytes_of(py, &found, f32::to_ne_bytes)?, worded(&warnings)))
}

/// The metrics of labelled `data`, by the models in a folder: a JSON document; and what there is to
/// say of it.
#[pyfunction]
fn evaluate(
    py: Python<'_>,
    folder: PathBuf,
    newest: bool,
    data: Vec<Input<'_>>,
) -> PyResult<(String, Vec<String>)> {
    let (data, models) = (files("data", data), models_of(folder, newest));
    let work = move || inference::metrics_of(&models, data, &Registry::default());
    let (document, warnings) = apply(py, work)?;
    Ok((document.to_string(), worded(&warnings)))
}

fn worded(warnings: &[String]) -> Vec<String> {
    warnings.iter().map(|warning| error::in_python(warning)).collect()
}

/// What the networks of a model take, made of rows as the model's data was read.
#[pyclass(frozen, module = "headlong._headlong")]
struct Columns(Arc<ModelInputs>);

/// How many rows there are; numbers as 32-bit floats; and of each table rows as 64-bit integers,
/// and how many of them each row of data has where that is not one.
type Read<'py> = (
    usize,
    Bound<'py, PyByteArray>,
    Vec<(Bound<'py, PyByteArray>, Option<Bound<'py, PyByteArray>>)>,
);

#[pymethods]
impl Columns {
    /// By files of a checkpoint: its configuration, and its dictionary and the state of admitted
    /// ids where it has them; `rows` are those of its tables.
    #[new]
    #[pyo3(signature = (config, rows, dictionary=None, admitted=None))]
    fn new(
        config: &str,
        rows: Vec<u64>,
        dictionary: Option<&[u8]>,
        admitted: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let inputs = ModelInputs::new(config, rows, dictionary, admitted);
        inputs.map(|inputs| Self(Arc::new(inputs))).map_err(|error| error::raised(&error))
    }

    /// All rows of `data`, labelled or not.
    fn read<'py>(&self, py: Python<'py>, data: Vec<Input<'_>>) -> PyResult<Read<'py>> {
        let (data, inputs) = (files("data", data), Arc::clone(&self.0));
        let Inputs { num_samples, dense, rows, counts } = apply(py, move || inputs.read(&data))?;
        let words = |words: &[u64]| bytes_of(py, words, u64::to_ne_bytes);
        let table = |(rows, counts): (Vec<u64>, Option<Vec<u64>>)| {
            Ok((words(&rows)?, counts.as_deref().map(words).transpose()?))
        };
        let tables = rows.into_iter().zip(counts).map(table).collect::<PyResult<_>>()?;
        Ok((num_samples, bytes_of(py, &dense, f32::to_ne_bytes)?, tables))
    }
}

/// Numbers, one after another.
fn bytes_of<'py, T: Copy, const N: usize>(
    py: Python<'py>,
    numbers: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, N * numbers.len(), |to| {
        for (to, &number) in to.chunks_exact_mut(N).zip(numbers) {
            to.copy_from_slice(&bytes(number));
        }
        Ok(())
    })
}

/// Writes the models in a folder as `headlong checkpoint export --format torch` does.
#[pyfunction]
fn export_torch(py: Python<'_>, folder: PathBuf, newest: bool, output: PathBuf) -> PyResult<()> {
    apply(py, move || inference::export_torch(&models_of(folder, newest), &output))
}

/// How many models a folder has that are trained.
#[pyfunction]
fn models(folder: PathBuf, newest: bool) -> PyResult<usize> {
    inference::models_in(&models_of(folder, newest)).map_err(|error| error::raised(&error))
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

/// A message of the command, with Python's names of its flags.
#[pyfunction]
fn in_python(text: &str) -> String {
    error::in_python(text)
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
    module.add_class::<Columns>()?;
    module.add_function(wrap_pyfunction!(train, module)?)?;
    module.add_function(wrap_pyfunction!(predict, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate, module)?)?;
    module.add_function(wrap_pyfunction!(export_torch, module)?)?;
    module.add_function(wrap_pyfunction!(models, module)?)?;
    module.add_function(wrap_pyfunction!(flags, module)?)?;
    module.add_function(wrap_pyfunction!(to_toml, module)?)?;
    module.add_function(wrap_pyfunction!(in_python, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
