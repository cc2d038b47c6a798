//! All devices of the machine.

use super::super::nic::{Device as Found, Nic, NicError, NicResult, Provider};
use super::domain::Opened;
use super::library::Library;
use super::nic::RealNic;
use super::raw::Device;
use super::{last_refused, ports};
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The machine's NICs, through libibverbs.
pub struct Verbs {
    library: Arc<Library>,
}

impl Verbs {
    /// Opens libibverbs: from the folders of [`super::SEARCH_VARIABLE`], else wherever the system's
    /// loader finds it.
    ///
    /// # Errors
    /// [`NicError::Unavailable`] with the places that were looked at, and what to do.
    pub fn open() -> NicResult<Arc<Self>> {
        Ok(Arc::new(Self { library: Library::open()? }))
    }

    /// The library's file, or its bare name where the system's loader has found it.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// Opens a device by its name, as what it is: see [`Provider::open`].
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be opened.
    pub fn open_nic(&self, name: &str) -> NicResult<Arc<RealNic>> {
        let list = List::new(&self.library)?;
        let Some(device) = list.devices().iter().find(|device| name_of(**device) == name) else {
            let names: Vec<String> = list.devices().iter().map(|device| name_of(*device)).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(NicError::Unavailable(format!(
                "no device is called `{name}`; there are: {names}"
            )));
        };
        RealNic::new(self.open_device(*device)?).map(Arc::new)
    }

    fn open_device(&self, device: *mut Device) -> NicResult<Opened> {
        let (name, folder) = (name_of(device), folder_of(device));
        // SAFETY: the device is of a list that has not been freed.
        let raw = unsafe { (self.library.functions.open_device)(device) };
        if raw.is_null() {
            return Err(last_refused(format!(
                "opening {name} (its file is below /dev/infiniband)"
            )));
        }
        Opened::new(self.library.clone(), raw, name, folder)
    }

    fn describe(&self, device: *mut Device) -> NicResult<Found> {
        let opened = self.open_device(device)?;
        let ports = (1..=opened.num_ports()).map(|number| ports::query(&opened, number));
        Ok(Found {
            name: opened.name().to_owned(),
            numa_node: ports::numa_node(opened.folder()),
            path: ports::bus_path(opened.folder()),
            ports: ports.collect::<NicResult<_>>()?,
        })
    }
}

impl Provider for Verbs {
    fn name(&self) -> &str {
        "libibverbs"
    }

    /// A device that cannot be opened is left out, unless none can.
    fn devices(&self) -> NicResult<Vec<Found>> {
        let list = List::new(&self.library)?;
        let found: Vec<NicResult<Found>> =
            list.devices().iter().map(|device| self.describe(*device)).collect();
        let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(NicResult::is_ok);
        match (good.is_empty(), bad.into_iter().next()) {
            (true, Some(refused)) => Err(refused.expect_err("only refusals were put here")),
            _ => good.into_iter().collect(),
        }
    }

    fn open(&self, device: &str) -> NicResult<Arc<dyn Nic>> {
        let nic: Arc<dyn Nic> = self.open_nic(device)?;
        Ok(nic)
    }
}

struct List<'a> {
    library: &'a Library,
    first: *mut *mut Device,
    count: usize,
}

impl<'a> List<'a> {
    fn new(library: &'a Library) -> NicResult<Self> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a number that lives.
        let first = unsafe { (library.functions.get_device_list)(&mut count) };
        if first.is_null() {
            let error = std::io::Error::last_os_error();
            let reason = match error.raw_os_error() {
                Some(libc::ENOSYS) => "this kernel has no RDMA (module ib_uverbs)".to_owned(),
                _ => format!("ibv_get_device_list: {error}"),
            };
            return Err(NicError::Unavailable(reason));
        }
        Ok(Self { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut Device] {
        // SAFETY: the list has this many devices and is freed no earlier than `self`.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`, and freed once. Devices that were opened stay open.
        unsafe { (self.library.functions.free_device_list)(self.first) }
    }
}

fn name_of(device: *mut Device) -> String {
    // SAFETY: a device of a live list; its name ends in a zero.
    unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned()
}

/// The device's folder below `/sys/class/infiniband`.
fn folder_of(device: *mut Device) -> PathBuf {
    // SAFETY: a device of a live list; its path ends in a zero.
    let path = unsafe { CStr::from_ptr((*device).ibdev_path.as_ptr()) };
    PathBuf::from(path.to_string_lossy().into_owned())
}
