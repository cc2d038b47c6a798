//! Memory that NCCL can send from, and receive into, without a copy.

use crate::communicator::Comm;
use crate::error::{Error, Result};
use crate::library::Library;
use std::ffi::c_void;
use std::sync::Arc;

/// Device memory from NCCL's allocator, of the device whose context was current. Dropped, it is freed.
#[derive(Debug)]
pub struct Allocation {
    library: Arc<Library>,
    address: u64,
    bytes: usize,
}

impl Allocation {
    /// `bytes` of memory, not zeroed.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(library: &Arc<Library>, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer that lives.
        let code = unsafe { (library.functions.mem_alloc)(&mut address, bytes) };
        library.result("ncclMemAlloc", code, std::ptr::null_mut())?;
        Ok(Self { library: library.clone(), address: address as u64, bytes })
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: from `ncclMemAlloc`, and freed once. A failure leaks memory and nothing else.
        let _ = unsafe { (self.library.functions.mem_free)(self.address as *mut c_void) };
    }
}

/// Memory that a communicator knows. Dropped, it is forgotten.
#[derive(Debug)]
pub struct Registration<'a> {
    comm: &'a Comm,
    handle: *mut c_void,
}

impl Comm {
    /// Makes memory of this rank's device known, so that operations on it need no copy.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Aborted`].
    ///
    /// # Safety
    /// `address` is of `bytes` of device memory that outlives the registration.
    pub unsafe fn register(&self, address: u64, bytes: usize) -> Result<Registration<'_>> {
        const FUNCTION: &str = "ncclCommRegister";
        let held = self.lock(FUNCTION)?;
        let mut handle = std::ptr::null_mut();
        let functions = &self.library().functions;
        // SAFETY: the communicator is alive, and the memory is the caller's word.
        let code = unsafe { (functions.comm_register)(held.raw, address as *mut c_void, bytes, &mut handle) };
        held.finish(FUNCTION, code)?;
        Ok(Registration { comm: self, handle })
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // An aborted communicator has forgotten everything.
        let held: Result<_, Error> = self.comm.lock("ncclCommDeregister");
        if let Ok(held) = held {
            // SAFETY: the communicator is alive and the handle its own, given back once.
            let _ = unsafe { (self.comm.library().functions.comm_deregister)(held.raw, self.handle) };
        }
    }
}
