//! Shared libraries of foreign transports, opened at run time.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;

/// A shared library that stays open until the process ends: those of networks load drivers of
/// their own, whose threads nothing ends.
#[derive(Debug)]
pub struct SharedLibrary {
    handle: NonNull<c_void>,
}

// SAFETY: a handle of the loader, whose functions any thread may call.
unsafe impl Send for SharedLibrary {}
// SAFETY: as above.
unsafe impl Sync for SharedLibrary {}

impl SharedLibrary {
    /// Opens the file, or, where `path` is a bare name, what the system's loader finds by it.
    ///
    /// # Errors
    /// The loader's words, without the path.
    pub fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| "a zero in the path".to_owned())?;
        // SAFETY: the name ends in a zero; the library's own initialisation is trusted as the
        // library is.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if let Some(handle) = NonNull::new(handle) {
            return Ok(Self { handle });
        }
        // SAFETY: the loader's text of this thread's last failure, or null.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err("the loader gives no reason".to_owned());
        }
        // SAFETY: not null, and lives until the thread's next call of the loader.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // The loader repeats the path, which the caller names already.
        let path = OsStr::new(path).to_string_lossy();
        Err(text.trim_start_matches(&*path).trim_start_matches(": ").to_owned())
    }

    /// The address of a name in this library, or in one that it needs; null: there is none.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, and the name ends in a zero.
        unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) }
    }

    /// As [`SharedLibrary::symbol`], of one version of the library's interface.
    #[cfg(not(target_env = "musl"))]
    pub fn versioned_symbol(&self, name: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, and both names end in a zero.
        unsafe { libc::dlvsym(self.handle.as_ptr(), name.as_ptr(), version.as_ptr()) }
    }

    /// As [`SharedLibrary::symbol`]: musl's loader knows no versions, and a library that it opens
    /// has one of each function.
    #[cfg(target_env = "musl")]
    pub fn versioned_symbol(&self, name: &CStr, _version: &CStr) -> *mut c_void {
        self.symbol(name)
    }
}
