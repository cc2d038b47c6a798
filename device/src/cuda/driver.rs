//! The few lines round every call of the driver: its codes as errors, its context on the calling
//! thread.

use super::libraries::Library;
use crate::error::{DeviceError, Result};
use cudarc::driver::sys;
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// The driver's code as an error that says what was being done.
#[inline]
pub(crate) fn check(code: sys::CUresult, what: impl FnOnce() -> String) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(error(code, what())) }
}

/// An error of the driver, with the driver's own words for it.
#[cold]
pub(crate) fn error(code: sys::CUresult, what: String) -> DeviceError {
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the driver is open, or there would be no code; it fills the pointers with static
    // strings.
    unsafe { sys::cuGetErrorName(code, &mut name) };
    // SAFETY: as above.
    unsafe { sys::cuGetErrorString(code, &mut text) };
    let (name, text) = (string(name), string(text));
    let text = if text.is_empty() || text == name { name } else { format!("{name}: {text}") };
    DeviceError::Driver { what, code: code as i32, text }
}

pub(crate) fn string(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null; the driver and the compiler hand out static C strings.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Opens the driver and starts it, once per process.
pub(crate) fn start() -> Result<()> {
    static STARTED: OnceLock<Result<()>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        Library::Driver.require()?;
        // SAFETY: the driver is open and has this symbol.
        check(unsafe { sys::cuInit(0) }, || "starting the CUDA driver".to_owned())
    });
    started.as_ref().map(|_| ()).map_err(Clone::clone)
}

thread_local! {
    /// The context this thread set last. Contexts live as long as the process, so none is ever
    /// stale.
    static CURRENT: Cell<sys::CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// Makes `context` the calling thread's own.
#[inline]
pub(crate) fn bind(context: sys::CUcontext) -> Result<()> {
    if CURRENT.get() == context {
        return Ok(());
    }
    // SAFETY: a primary context that is retained for the life of the process.
    check(unsafe { sys::cuCtxSetCurrent(context) }, || "taking the device's context".to_owned())?;
    CURRENT.set(context);
    Ok(())
}
