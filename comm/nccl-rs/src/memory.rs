//! Memory that NCCL can send from, and receive into, without a copy.

use crate::communicator::Comm;
use crate::error::Result;
use crate::library::Library;
use crate::sys::{self, Code};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Device memory from NCCL's allocator, of the device whose context was current. Dropped, it is
/// freed.
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
    /// [`Error::Call`](crate::Error::Call); [`Error::Unsupported`](crate::Error::Unsupported) of an
    /// old library.
    pub fn new(library: &Arc<Library>, bytes: usize) -> Result<Self> {
        let allocate = library.later("ncclMemAlloc", library.functions.mem_alloc)?;
        library.later("ncclMemFree", library.functions.mem_free)?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer that lives.
        let code = unsafe { allocate(&mut address, bytes) };
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
        if let Some(free) = self.library.functions.mem_free {
            // SAFETY: from `ncclMemAlloc`, and freed once. A failure leaks memory and nothing else.
            let _ = unsafe { free(self.address as *mut c_void) };
        }
    }
}

/// The function that forgets a registration.
type Forget = unsafe extern "C" fn(sys::Comm, *mut c_void) -> Code;

/// Memory that a communicator knows. Dropped, it is forgotten.
#[derive(Debug)]
pub struct Registration<'a> {
    comm: &'a Comm,
    handle: *mut c_void,
    forget: (&'static str, Forget),
}

impl Comm {
    /// Makes memory of this rank's device known, so that operations on it need no copy. All ranks
    /// do so.
    ///
    /// # Errors
    /// [`Error::Call`](crate::Error::Call), [`Error::Aborted`](crate::Error::Aborted);
    /// [`Error::Unsupported`](crate::Error::Unsupported) of an old library.
    ///
    /// # Safety
    /// `address` is of `bytes` of device memory that outlives the registration.
    pub unsafe fn register(&self, address: u64, bytes: usize) -> Result<Registration<'_>> {
        let functions = &self.library().functions;
        let register = self.library().later("ncclCommRegister", functions.comm_register)?;
        let forget = self.library().later("ncclCommDeregister", functions.comm_deregister)?;
        self.known("ncclCommRegister", ("ncclCommDeregister", forget), |comm, handle| {
            // SAFETY: the communicator is alive, and the memory is the caller's word.
            unsafe { register(comm, address as *mut c_void, bytes, handle) }
        })
    }

    /// Makes memory known that all ranks have in the same shape: small operations on it are kernels
    /// that read the peers' memory. All ranks call this together, with memory from [`Allocation`]
    /// (2.27).
    ///
    /// # Safety
    /// As [`Comm::register`].
    pub unsafe fn register_window(&self, address: u64, bytes: usize) -> Result<Registration<'_>> {
        const SYMMETRIC: c_int = 1;
        let functions = &self.library().functions;
        let register = self.library().later("ncclCommWindowRegister", functions.window_register)?;
        let forget =
            self.library().later("ncclCommWindowDeregister", functions.window_deregister)?;
        self.known(
            "ncclCommWindowRegister",
            ("ncclCommWindowDeregister", forget),
            |comm, window| {
                // SAFETY: the communicator is alive, and the memory is the caller's word.
                unsafe { register(comm, address as *mut c_void, bytes, window, SYMMETRIC) }
            },
        )
    }

    fn known(
        &self,
        function: &'static str,
        forget: (&'static str, Forget),
        register: impl FnOnce(sys::Comm, *mut *mut c_void) -> Code,
    ) -> Result<Registration<'_>> {
        // NCCL writes here until the call is done: where it never is, the place is leaked rather
        // than given back.
        let place = Box::into_raw(Box::new(std::ptr::null_mut()));
        self.turn(function)?.finish(function, |comm| register(comm, place))?;
        // SAFETY: made above by `Box`, and NCCL is done with it.
        let handle = *unsafe { Box::from_raw(place) };
        Ok(Registration { comm: self, handle, forget })
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let (function, forget) = self.forget;
        if self.handle.is_null() {
            return;
        }
        // An aborted communicator has forgotten everything.
        if let Ok(turn) = self.comm.last_turn(function) {
            // SAFETY: the communicator is alive and the handle its own, given back once.
            let _ = turn.finish(function, |comm| unsafe { forget(comm, self.handle) });
        }
    }
}
