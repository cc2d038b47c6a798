//! Tools for tests of CUDA bodies: a device if there is one, data to and fro, struct layouts
//! compared.

use super::{CudaDevice, CudaStream, Define, DeviceMemory, DevicePtr, Launch, Source};
use crate::dtype::Element;
use crate::error::Result;
use crate::pool::Pool;
use crate::stream::Stream;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// How often the driver's function of this name was called so far; none where no software device
/// counts.
pub fn driver_calls(name: &CStr) -> Option<u64> {
    let count = super::Library::Driver.symbol(c"softcudaCallCount").ok()?;
    // SAFETY: the function has this type, see device/softcuda/driver_calls.cpp.
    let count =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> u64>(count) };
    Some(count(name.as_ptr()))
}

/// Bytes that NCCL's sends of this process have carried to other ranks so far, without those of
/// sums and other collectives; none where no software NCCL counts.
pub fn nccl_message_bytes() -> Option<u64> {
    nccl_count(c"softcudaNcclMessageBytes")
}

/// Operations that NCCL has put on streams of this process so far, each group as one; none where no
/// software NCCL counts.
pub fn nccl_operations() -> Option<u64> {
    nccl_count(c"softcudaNcclOperations")
}

/// How cuBLASLt misbehaves: a bit for each of its proposals; or an epilogue of all of them, by its
/// number there.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProductFaults {
    /// Refused when they are to run.
    pub refused: u32,
    /// Other bits at each run.
    pub varying: u32,
    /// Milliseconds, not microseconds.
    pub slow: u32,
    /// As `refused`.
    pub refused_epilogue: u32,
    /// As `slow`.
    pub slow_epilogue: u32,
}

/// Products that this thread enqueues from now on; false where no software cuBLASLt does as told.
pub fn set_product_faults(faults: ProductFaults) -> bool {
    let Ok(set) = super::Library::CublasLt.symbol(c"softcudaProducts") else { return false };
    // SAFETY: the function has this type, see device/softcuda/cublaslt.cpp.
    let set =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32, u32, u32, u32, u32)>(set) };
    let ProductFaults { refused, varying, slow, refused_epilogue, slow_epilogue } = faults;
    set(refused, varying, slow, refused_epilogue, slow_epilogue);
    true
}

fn nccl_count(name: &CStr) -> Option<u64> {
    let count = super::Library::Nccl.symbol(name).ok()?;
    // SAFETY: the functions have this type, see device/softcuda/nccl.cpp.
    let count = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(count) };
    Some(count())
}

/// The first device, a GPU or the software device. `None`, and one line that says why, where there
/// is none.
///
/// # Panics
/// Where there is none and the environment's `REQUIRE` holds `hostcuda` or `cuda`; the latter asks
/// for a GPU.
pub fn device() -> Option<CudaDevice> {
    let required = std::env::var("REQUIRE").unwrap_or_default();
    let requires = |what: &str| required.split(',').any(|word| word.trim() == what);
    match CudaDevice::open(0) {
        Ok(device) => {
            let is_gpu = !device.is_software();
            assert!(
                is_gpu || !requires("cuda"),
                "REQUIRE=cuda, but {device} is a software device, not a GPU"
            );
            Some(device)
        }
        Err(error) => {
            assert!(!requires("cuda") && !requires("hostcuda"), "REQUIRE={required}, but {error}");
            eprintln!("skipped, because {error}");
            None
        }
    }
}

/// Whether there are `needed` devices; else one line says why not.
///
/// # Panics
/// As [`device`].
pub fn has_devices(needed: usize) -> bool {
    let Some(_) = device() else { return false };
    let found = CudaDevice::count().map_or(0, |found| found as usize);
    if found < needed {
        println!("skipped, because it needs {needed} CUDA devices and there are {found}");
    }
    found >= needed
}

/// The same of software devices; else one line says why not.
///
/// # Panics
/// As [`device`].
pub fn has_software_devices(needed: usize) -> bool {
    let Some(device) = device() else { return false };
    if !device.is_software() {
        println!("skipped, because {device} is no software device");
    }
    device.is_software() && has_devices(needed)
}

/// A CPU stream of two threads, and a stream of the first device where there is one: what `check`
/// runs on.
pub fn streams() -> Vec<Stream> {
    let pool = Arc::new(Pool::new(2));
    let mut streams = vec![Stream::on_pool(Arc::clone(&pool))];
    if let Some(device) = device() {
        streams.push(Stream::cuda(&device, pool).unwrap_or_else(|error| panic!("{error}")));
    }
    streams
}

/// A stream of the first device, for tests of what only a device does.
pub fn stream() -> Option<Stream> {
    streams().into_iter().nth(1)
}

/// The bytes of elements.
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// New device memory holding `values`.
pub fn upload<T: Element>(device: &CudaDevice, values: &[T]) -> Result<DeviceMemory> {
    let memory = DeviceMemory::new(device, "test", size_of_val(values))?;
    memory.write(0, bytes_of(values))?;
    Ok(memory)
}

/// What device memory holds, after all work of the device.
pub fn download<T: Element>(memory: &DeviceMemory) -> Result<Vec<T>> {
    let mut values = vec![T::default(); memory.bytes() / size_of::<T>()];
    let bytes = size_of_val(values.as_slice());
    // SAFETY: exclusively borrowed elements, for which every bit pattern is a value.
    let target = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), bytes) };
    memory.read(0, target)?;
    Ok(values)
}

/// The text of a kernel that writes size and offsets of a struct of `source`.
pub(crate) fn layout_probe(source: &Source, name: &str, fields: &[&str]) -> String {
    let mut text = format!("{}\nstruct HlLayoutArgs {{ u64* out; }};\n", source.text);
    text += "extern \"C\" __global__ void hl_layout(const HlLayoutArgs a) {\n";
    text += &format!("  a.out[0] = sizeof({name});\n");
    for (index, field) in fields.iter().enumerate() {
        // NVRTC has no `offsetof`: the address of a field of a struct that would lie at 4096.
        let field = format!("&reinterpret_cast<{name}*>(4096)->{field}");
        text += &format!("  a.out[{}] = reinterpret_cast<u64>({field}) - 4096;\n", index + 1);
    }
    text + "}\n"
}

/// Size and offsets of a struct as the kernel's compiler sees it: for `layout_test!`.
pub fn device_layout(
    stream: &CudaStream,
    source: &Source,
    defines: &[Define],
    name: &str,
    fields: &[&str],
) -> Result<Vec<usize>> {
    // Tests only: a source lives as long as the process.
    let text: &'static str = Box::leak(layout_probe(source, name, fields).into_boxed_str());
    let probe_name: &'static str =
        Box::leak(format!("{}-layout-{name}", source.name).into_boxed_str());
    let probe: &'static Source = Box::leak(Box::new(Source { name: probe_name, text }));
    let out = DeviceMemory::new(stream.device(), "layout", 8 * (fields.len() + 1))?;
    stream.run::<DevicePtr>(probe, defines, "hl_layout", Launch::new(1, 1), &out.ptr());
    stream.synchronize()?;
    Ok(download::<u64>(&out)?.into_iter().map(|value| value as usize).collect())
}

/// Inside a test: checks that a `#[repr(C)]` struct has the size and the field offsets that the
/// kernel's compiler gives the struct of the same name in the source. Skipped where there is no
/// device. The fields are those of [`kernel_args!`](crate::kernel_args), or named.
///
/// ```ignore
/// layout_test!(LookupArgs, &LOOKUP, &[Define::new("DIM", 16)]);
/// layout_test!(Rows, &LOOKUP, &[]; first, count);
/// ```
#[macro_export]
macro_rules! layout_test {
    ($struct:ident, $source:expr, $defines:expr; $($field:ident),+ $(,)?) => {
        $crate::cuda::testing::check_layout::<$struct>(
            $source, $defines, stringify!($struct),
            &[$((stringify!($field), ::std::mem::offset_of!($struct, $field))),+],
        )
    };
    ($struct:ident, $source:expr, $defines:expr) => {
        $crate::cuda::testing::check_layout::<$struct>(
            $source, $defines, stringify!($struct), &$struct::fields(),
        )
    };
}
pub use crate::layout_test;

/// The check of [`layout_test!`](crate::layout_test): `fields` are names and offsets.
pub fn check_layout<T>(
    source: &Source,
    defines: &[Define],
    name: &str,
    fields: &[(&'static str, usize)],
) {
    let Some(stream) = stream() else { return };
    let (names, offsets): (Vec<_>, Vec<_>) = fields.iter().copied().unzip();
    let rust = [vec![size_of::<T>()], offsets].concat();
    match device_layout(stream.cuda_body(), source, defines, name, &names) {
        Ok(cuda) => {
            assert_eq!(rust, cuda, "size and offsets of {name} {names:?}: Rust left, CUDA right")
        }
        Err(error) => panic!("{error}"),
    }
}
