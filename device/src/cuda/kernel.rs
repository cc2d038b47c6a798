//! Kernels: source text, compiled per device with its constants, loaded once, launched by value.

use super::source::{Define, Source};
use super::{CudaDevice, CudaStream, cache, driver};
use crate::error::{DeviceError, Result};
use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Numbers of blocks or threads along x, y and z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of fields say it")]
pub struct Dim {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim {
    fn from((x, y): (u32, u32)) -> Self {
        Self { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self { x, y, z }
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: Dim,
    /// Threads of a block.
    pub block: Dim,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Launch {
    /// A launch without dynamic shared memory.
    pub fn new(grid: impl Into<Dim>, block: impl Into<Dim>) -> Self {
        Self { grid: grid.into(), block: block.into(), shared_bytes: 0 }
    }

    /// The same with `bytes` of dynamic shared memory.
    #[must_use]
    pub fn with_shared(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

/// A loaded kernel. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Kernel(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    function: sys::CUfunction,
    name: String,
    /// Dynamic shared memory the function may use so far: above 48 KiB it must be allowed first.
    allowed_shared_bytes: AtomicU32,
    /// Blocks that a multiprocessor has room for, and of how many threads; zeros: not known yet.
    resident: AtomicU64,
}

// SAFETY: a handle of the driver, which locks inside; modules live as long as their device.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// What every device allows without being asked.
const USUAL_SHARED_BYTES: u32 = 48 << 10;

impl Kernel {
    /// `source:entry`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The kernel as the device's table keeps it, for as long as the process: for messages.
    pub(crate) fn kept(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }

    /// The name of a kernel that [`Self::kept`] gave.
    ///
    /// # Safety
    /// `kept` is null or came from a kernel found in a device's table.
    pub(crate) unsafe fn name_of(kept: *const ()) -> Option<String> {
        // SAFETY: tables never drop a kernel, by the caller's promise it is one of theirs.
        let loaded = unsafe { kept.cast::<Loaded>().as_ref() };
        loaded.map(|loaded| loaded.name.clone())
    }

    pub(crate) fn launch(
        &self,
        stream: sys::CUstream,
        shape: Launch,
        args: *const c_void,
    ) -> Result<()> {
        let Launch { grid, block, shared_bytes } = shape;
        if grid.x == 0 || grid.y == 0 || grid.z == 0 {
            return Ok(());
        }
        if shared_bytes > self.0.allowed_shared_bytes.load(Ordering::Relaxed) {
            self.allow_shared(shared_bytes)?;
        }
        let mut args = [args.cast_mut()];
        // SAFETY: the function takes one argument of this type by value, as `layout_test!` checks;
        // the driver copies it before it returns. What the kernel reads and writes is its op's
        // responsibility.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.0.function,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                stream,
                args.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver::check(code, || format!("launching {} with {grid:?} × {block:?}", self.name()))
    }

    /// Blocks of so many threads, without dynamic shared memory, that one multiprocessor has room
    /// for: at least one.
    pub(crate) fn resident_blocks(&self, threads: u32) -> Result<u32> {
        let known = self.0.resident.load(Ordering::Relaxed);
        if (known >> 32) as u32 == threads {
            return Ok(known as u32);
        }
        let mut blocks = 0;
        // SAFETY: a loaded function, and a place for the answer.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.0.function,
                threads as i32,
                0,
            )
        };
        driver::check(code, || format!("resident blocks of {}", self.name()))?;
        let blocks = blocks.max(1) as u32;
        self.0.resident.store(u64::from(threads) << 32 | u64::from(blocks), Ordering::Relaxed);
        Ok(blocks)
    }

    #[cold]
    fn allow_shared(&self, bytes: u32) -> Result<()> {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a loaded function.
        let code = unsafe { sys::cuFuncSetAttribute(self.0.function, attribute, bytes as i32) };
        driver::check(code, || format!("{bytes} bytes of shared memory for {}", self.name()))?;
        self.0.allowed_shared_bytes.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// The modules loaded on a device and the kernels found in them.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// By a hash of source, defines and entry, so that finding a kernel takes no memory; then
    /// compared.
    kernels: RwLock<HashMap<u64, Vec<Entry>>>,
    /// Held while compiling and loading; each source instance once.
    modules: Mutex<HashMap<(usize, Vec<Define>), usize>>,
}

#[derive(Debug)]
struct Entry {
    source: &'static Source,
    defines: Vec<Define>,
    entry: &'static str,
    kernel: Kernel,
}

impl Modules {
    /// The kernel, from the table or loaded now.
    pub(crate) fn kernel(
        &self,
        stream: &CudaStream,
        source: &'static Source,
        defines: &[Define],
        entry: &'static str,
    ) -> Result<Kernel> {
        let mut hasher = std::hash::DefaultHasher::new();
        (std::ptr::from_ref(source) as usize, defines, entry).hash(&mut hasher);
        let key = hasher.finish();
        let is_it = |e: &&Entry| {
            std::ptr::eq(e.source, source) && e.defines == defines && (e.entry == entry)
        };
        let known = self.kernels.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&key).and_then(|entries| entries.iter().find(is_it)) {
            return Ok(found.kernel.clone());
        }
        drop(known);
        if stream.is_capturing()? {
            let what = format!("kernel {}:{entry}", source.name);
            let reason =
                "it is not loaded, and a capture must not load: run the same step once before";
            return Err(DeviceError::Misuse { what, reason: reason.to_owned() });
        }
        let kernel = self.load(stream.device(), source, defines, entry)?;
        let entry = Entry { source, defines: defines.to_vec(), entry, kernel: kernel.clone() };
        let mut known = self.kernels.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(key).or_default().push(entry);
        Ok(kernel)
    }

    fn load(
        &self,
        device: &CudaDevice,
        source: &'static Source,
        defines: &[Define],
        entry: &str,
    ) -> Result<Kernel> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (std::ptr::from_ref(source) as usize, defines.to_vec());
        device.bind()?;
        let module = match modules.get(&key) {
            Some(&module) => module as sys::CUmodule,
            None => {
                let module = load_module(device, source, defines)?;
                modules.insert(key, module as usize);
                module
            }
        };
        let name = format!("{}:{entry}", source.name);
        let symbol = CString::new(entry).map_err(|error| DeviceError::Misuse {
            what: name.clone(),
            reason: error.to_string(),
        })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a loaded module and a C string.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, module, symbol.as_ptr()) };
        driver::check(code, || format!("finding kernel {name}"))?;
        Ok(Kernel(Arc::new(Loaded {
            function,
            name,
            allowed_shared_bytes: AtomicU32::new(USUAL_SHARED_BYTES),
            resident: AtomicU64::new(0),
        })))
    }
}

/// From the cache or the compiler to the device. Modules stay loaded as long as the process, as
/// contexts do.
fn load_module(
    device: &CudaDevice,
    source: &'static Source,
    defines: &[Define],
) -> Result<sys::CUmodule> {
    let cache = cache::KernelCache::new(device.files().kernels.clone());
    let compiled = cache.get(source, defines, &device.arch(), device.is_software())?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the device's context is current; the bytes are a whole cubin, checked against their
    // sum by the cache.
    let code = unsafe { sys::cuModuleLoadData(&mut module, compiled.cubin.as_ptr().cast()) };
    driver::check(code, || format!("loading kernel source {} on {device}", source.name))?;
    Ok(module)
}
