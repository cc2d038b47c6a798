//! What of CUDA this machine has. Never panics, never needs a device.

use super::device::{arch_of, attribute, handle_of, is_software, name_of};
use super::libraries::{Found, Library, driver_version};
use super::{CudaDevice, driver};
use crate::error::Result;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

/// What was looked for and found.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Libraries, each with its file or why there is none.
    pub libraries: Vec<Found>,
    /// The CUDA version the driver supports, as (major, minor).
    pub driver_version: Option<(u32, u32)>,
    /// Devices the driver knows.
    pub devices: Vec<ProbedDevice>,
    /// Why there is no device to work on, when there is none.
    pub problem: Option<String>,
}

/// One device, without opening it.
#[derive(Debug, Clone)]
pub struct ProbedDevice {
    /// Its number on this machine.
    pub ordinal: u32,
    /// The driver's name of it.
    pub name: String,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Compute capability, (major, minor).
    pub capability: (u32, u32),
    /// The architecture that kernels are compiled for.
    pub arch: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The software device of the tests, not a GPU.
    pub is_software: bool,
}

/// Looks for the driver, its devices and its libraries. Opens libraries, but no device.
pub fn probe() -> Probe {
    let mut found =
        Probe { libraries: Vec::new(), driver_version: None, devices: Vec::new(), problem: None };
    found.libraries.extend(Library::ALL.map(Library::find));
    match devices(&mut found) {
        Ok(()) if found.devices.is_empty() => {
            found.problem = Some("the driver knows no device".to_owned())
        }
        Ok(()) => {}
        Err(error) => found.problem = Some(error.to_string()),
    }
    found
}

fn devices(found: &mut Probe) -> Result<()> {
    driver::start()?;
    found.driver_version = driver_version();
    for ordinal in 0..CudaDevice::count()? {
        found.devices.push(probe_device(ordinal)?);
    }
    Ok(())
}

fn probe_device(ordinal: u32) -> Result<ProbedDevice> {
    let handle = handle_of(ordinal)?;
    let name = name_of(handle)?;
    let mut memory_bytes = 0;
    // SAFETY: a valid device and a place for the answer.
    let code = unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, handle) };
    driver::check(code, || format!("memory of {name}"))?;
    let capability = (
        attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
        attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
    );
    let multiprocessors =
        attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
    let (arch, is_software) = (arch_of(capability), is_software(&name));
    Ok(ProbedDevice { ordinal, name, memory_bytes, capability, arch, multiprocessors, is_software })
}
