//! An open device, and what belongs together on it.

use super::super::nic::{Access, NicResult};
use super::library::Library;
use super::raw::{self, Context, DeviceAttr, Pd};
use super::{checked, last_refused};
use std::ffi::{c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Opened {
    library: Arc<Library>,
    raw: *mut Context,
    name: String,
    folder: PathBuf,
    pub(super) attr: DeviceAttr,
}

// SAFETY: libibverbs' contexts may be used from any thread, and from several at the same time.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    pub(super) fn new(
        library: Arc<Library>,
        raw: *mut Context,
        name: String,
        folder: PathBuf,
    ) -> NicResult<Self> {
        // SAFETY: all zeros is a value of this struct of integers.
        let attr: DeviceAttr = unsafe { std::mem::zeroed() };
        let mut opened = Self { library, raw, name, folder, attr };
        // SAFETY: the context is open, and the pointer to a struct that lives.
        let answer = unsafe { (opened.library.functions.query_device)(raw, &mut opened.attr) };
        checked(|| format!("{}: ibv_query_device", opened.name), answer)?;
        // SAFETY: the context is open.
        let events = unsafe { (*raw).async_fd };
        // SAFETY: the descriptor is the open context's own.
        let flags = unsafe { libc::fcntl(events, libc::F_GETFL) };
        // Events are asked for, never waited for.
        // SAFETY: as above.
        let is_set = |flags: c_int| unsafe { libc::fcntl(events, libc::F_SETFL, flags) } >= 0;
        if flags < 0 || !is_set(flags | libc::O_NONBLOCK) {
            return Err(last_refused(format!("{}: its events cannot be asked for", opened.name)));
        }
        Ok(opened)
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn raw(&self) -> *mut Context {
        self.raw
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn num_ports(&self) -> u8 {
        self.attr.phys_port_cnt
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the context is open, nothing that was made of it is left, and it is closed once.
        let _ = unsafe { (self.library.functions.close_device)(self.raw) };
    }
}

/// A protection domain: what belongs together on a NIC. Given back when dropped.
pub(super) struct Domain {
    pub(super) device: Opened,
    pub(super) raw: *mut Pd,
}

// SAFETY: as for contexts.
unsafe impl Send for Domain {}
// SAFETY: as for contexts.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the domain is alive, nothing that was made in it is left, and the device is
        // closed after it.
        let _ = unsafe { (self.device.library.functions.dealloc_pd)(self.raw) };
    }
}

pub(super) fn access_flags(access: Access) -> c_uint {
    let flag = |wanted: bool, flag| if wanted { flag } else { 0 };
    flag(access.local_write, raw::ACCESS_LOCAL_WRITE)
        | flag(access.remote_write, raw::ACCESS_REMOTE_WRITE)
        | flag(access.remote_read, raw::ACCESS_REMOTE_READ)
        | flag(access.remote_atomic, raw::ACCESS_REMOTE_ATOMIC)
        | flag(access.relaxed_ordering, raw::ACCESS_RELAXED_ORDERING)
}
