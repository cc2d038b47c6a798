//! A CUDA device: its primary context, what it is, and the kernels loaded on it.

use super::kernel::Modules;
use super::{driver, stream};
use crate::error::{DeviceError, Result};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const SOFTWARE_DEVICE_NAME: &str = "Headlong software device";

/// An open device. Cheap to clone; all clones, and all openings of one ordinal, are the same
/// device.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
    files: Arc<CudaFiles>,
}

/// Where work on a device looks for what was made before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CudaFiles {
    /// The folder of compiled kernels that is looked in first, made by `headlong kernels build`.
    pub kernels: Option<PathBuf>,
    /// The file in which algorithms of products are kept; none: the user's, for a GPU.
    pub algorithms: Option<PathBuf>,
}

#[derive(Debug)]
struct Inner {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    modules: Modules,
    /// For copies and fills outside of every schedule: at start, at checkpoints and in tests.
    service: OnceLock<usize>,
    /// cuBLASLt's handle, made with the first plan.
    blas: OnceLock<usize>,
}

// SAFETY: handles of the driver, which locks inside; contexts live as long as the process.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CudaDevice {
    /// Opens a device and retains its primary context for the life of the process.
    pub fn open(ordinal: u32) -> Result<Self> {
        // Note: one table per process, as there is one primary context per device and process.
        static OPEN: Mutex<Vec<CudaDevice>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.iter().find(|device| device.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let device = Self::open_new(ordinal)?;
        open.push(device.clone());
        Ok(device)
    }

    fn open_new(ordinal: u32) -> Result<Self> {
        let count = Self::count()?;
        if ordinal >= count {
            let reason = format!("this machine has {count} CUDA devices");
            return Err(DeviceError::Unavailable { device: format!("cuda:{ordinal}"), reason });
        }
        let handle = handle_of(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a valid device; the context is never released.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) };
        driver::check(code, || format!("opening cuda:{ordinal}"))?;
        let attribute = |which| attribute(handle, which);
        let inner = Inner {
            ordinal,
            handle,
            context,
            name: name_of(handle)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            modules: Modules::default(),
            service: OnceLock::new(),
            blas: OnceLock::new(),
        };
        let device = Self { inner: Arc::new(inner), files: Arc::default() };
        device.bind()?;
        Ok(device)
    }

    /// The same device for work that looks in `files`. A kernel that is loaded already stays: it is
    /// the same wherever it came from.
    #[must_use]
    pub fn with_files(self, files: CudaFiles) -> Self {
        Self { files: Arc::new(files), ..self }
    }

    /// Where its work looks.
    pub fn files(&self) -> &Arc<CudaFiles> {
        &self.files
    }

    /// Devices of this machine.
    pub fn count() -> Result<u32> {
        driver::start()?;
        let mut count = 0;
        // SAFETY: the driver is started.
        driver::check(unsafe { sys::cuDeviceGetCount(&mut count) }, || {
            "counting devices".to_owned()
        })?;
        Ok(count.max(0) as u32)
    }

    /// Its number on this machine.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// The name the driver gives it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its address on the bus, as sysfs writes it: `0000:1b:00.0`. None where the driver does not
    /// say.
    pub fn bus_id(&self) -> Option<String> {
        let mut id = [0_u8; 32];
        // SAFETY: a valid device; the buffer is as long as said, and the driver ends the text with
        // a zero.
        let code = unsafe {
            sys::cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), id.len() as i32, self.inner.handle)
        };
        let end = id.iter().position(|&byte| byte == 0)?;
        let text = String::from_utf8_lossy(&id[..end]).to_lowercase();
        (code == sys::CUresult::CUDA_SUCCESS && !text.is_empty()).then_some(text)
    }

    /// Whether this is the software device of the tests, not a GPU.
    pub fn is_software(&self) -> bool {
        is_software(self.name())
    }

    /// The architecture kernels are compiled for: `sm_90a`, `sm_80`.
    pub fn arch(&self) -> String {
        arch_of(self.inner.capability)
    }

    /// Streaming multiprocessors: grids are sized by them.
    pub fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    /// Bytes free and in all.
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        if self.bind().is_ok() {
            // SAFETY: the device's context is current; a failure leaves both at 0.
            unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        }
        (free, total)
    }

    /// Whether this device can read and write the other's memory.
    pub fn can_access_peer(&self, other: &CudaDevice) -> bool {
        let mut can = 0;
        // SAFETY: both are valid devices.
        let code =
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.inner.handle, other.inner.handle) };
        code == sys::CUresult::CUDA_SUCCESS && can != 0
    }

    /// Lets kernels and copies of this device use the other's memory; asking again is fine.
    pub fn enable_peer_access(&self, other: &CudaDevice) -> Result<()> {
        if self.ordinal() == other.ordinal() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: this device's context is current, the other's lives as long as the process.
        let code = unsafe { sys::cuCtxEnablePeerAccess(other.inner.context, 0) };
        if code == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        driver::check(code, || format!("letting {self} use the memory of {other}"))
    }

    /// Waits until everything given to any stream of the device is done.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the device's context is current.
        driver::check(unsafe { sys::cuCtxSynchronize() }, || format!("waiting for {self}"))
    }

    /// Makes the device's context the calling thread's own.
    #[inline]
    pub(crate) fn bind(&self) -> Result<()> {
        driver::bind(self.inner.context)
    }

    pub(super) fn handle(&self) -> sys::CUdevice {
        self.inner.handle
    }

    pub(crate) fn blas_handle(&self) -> &OnceLock<usize> {
        &self.inner.blas
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.inner.modules
    }

    /// The stream for copies and fills outside of every schedule.
    pub(crate) fn service(&self) -> Result<sys::CUstream> {
        if let Some(&raw) = self.inner.service.get() {
            return Ok(raw as sys::CUstream);
        }
        let raw = stream::create_raw(self, None)? as usize;
        // Two threads may come at once: one of the two streams stays unused.
        Ok(*self.inner.service.get_or_init(|| raw) as sys::CUstream)
    }
}

impl std::fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal(), self.name())
    }
}

pub(crate) fn is_software(name: &str) -> bool {
    name.starts_with(SOFTWARE_DEVICE_NAME)
}

/// Hopper's own instructions need the `a`; they are on no other architecture.
pub(crate) fn arch_of((major, minor): (u32, u32)) -> String {
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

pub(crate) fn handle_of(ordinal: u32) -> Result<sys::CUdevice> {
    let mut handle = 0;
    // SAFETY: the driver is started, or it says that it is not.
    driver::check(unsafe { sys::cuDeviceGet(&mut handle, ordinal as i32) }, || {
        format!("cuda:{ordinal}")
    })?;
    Ok(handle)
}

pub(crate) fn attribute(handle: sys::CUdevice, which: Attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: a valid device and a place for the answer.
    driver::check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) }, || {
        format!("{which:?}")
    })?;
    Ok(value)
}

pub(crate) fn name_of(handle: sys::CUdevice) -> Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is as long as said; the driver ends the name with a zero.
    let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, handle) };
    driver::check(code, || "a device's name".to_owned())?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}
