//! Points in a stream that other streams and the host can wait for.

use super::{CudaDevice, Library, driver};
use crate::error::Result;
use cudarc::driver::sys::{self, CUevent_flags_enum as Flags};
use std::ffi::c_void;

/// A point in a stream. Recording it again moves it.
#[derive(Debug)]
pub struct Event {
    device: CudaDevice,
    raw: sys::CUevent,
}

// SAFETY: a handle of the driver, which locks inside.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

impl Event {
    /// An event for order only: the cheap kind.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::with_flags(device, Flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that also says when it happened.
    pub fn with_timing(device: &CudaDevice) -> Result<Self> {
        Self::with_flags(device, Flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(device: &CudaDevice, flags: Flags) -> Result<Self> {
        device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device's context is current.
        let code = unsafe { sys::cuEventCreate(&mut raw, flags as u32) };
        driver::check(code, || "making an event".to_owned())?;
        Ok(Self { device: device.clone(), raw })
    }

    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Whether everything before it is done. An event that was never recorded is.
    pub fn query(&self) -> Result<bool> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => driver::check(code, || format!("asking for an event of {}", self.device))
                .map(|()| true),
        }
    }

    /// Waits until everything before it is done.
    pub fn synchronize(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        let code = unsafe { sys::cuEventSynchronize(self.raw) };
        driver::check(code, || format!("waiting for an event of {}", self.device))
    }

    /// Microseconds from `earlier` to this one; both with timing, recorded and done.
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64> {
        self.device.bind()?;
        let mut milliseconds = 0.0;
        // Drivers before CUDA 12.8 have the call's first version only, and the bindings its second.
        let elapsed = Library::Driver.symbol(c"cuEventElapsedTime")?;
        // SAFETY: the driver's function has this type.
        let elapsed = unsafe { std::mem::transmute::<*mut c_void, ElapsedTime>(elapsed) };
        // SAFETY: both events are alive.
        let code = unsafe { elapsed(&mut milliseconds, earlier.raw, self.raw) };
        driver::check(code, || "the time between two events".to_owned())?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made in `with_flags`, destroyed only here; the driver waits with it until the
            // event is past.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
