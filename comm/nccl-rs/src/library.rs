//! The opened library.

use crate::error::{Error, Result};
use crate::search::Search;
use crate::sys::{self, Code, Functions};
use crate::version::{COLLNET_SINCE, NVLS_SINCE, OLDEST, Version};
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a library can do beyond what every version can: a name, and whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities([(&'static str, bool); 6]);

impl fmt::Display for Capabilities {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with =
            |has| self.0.iter().filter(move |(_, there)| *there == has).map(|(name, _)| *name);
        let (has, lacks) = (with(true).collect::<Vec<_>>(), with(false).collect::<Vec<_>>());
        formatter.write_str(if has.is_empty() { "the basics" } else { "" })?;
        formatter.write_str(&has.join(", "))?;
        match lacks.is_empty() {
            true => Ok(()),
            false => write!(formatter, "; without {}", lacks.join(", ")),
        }
    }
}

/// NCCL, opened. It stays open until the process ends, because it has threads of its own.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    version: Version,
    capabilities: Capabilities,
    pub(crate) functions: Functions,
}

impl Library {
    /// Opens the first `libnccl.so.2` of `search` that can be opened.
    ///
    /// # Errors
    /// [`Error::NotFound`] with every place and what was wrong there; [`Error::Broken`] and
    /// [`Error::TooOld`] for a library that could be opened but not used: nothing is looked for
    /// after it, so that a wrong installation is noticed.
    pub fn open(search: &Search) -> Result<Arc<Self>> {
        let mut looked = Vec::new();
        let opened = search.first(|path| match open_shared(path) {
            Ok(handle) => Some((path.to_path_buf(), handle)),
            Err(reason) => {
                looked.push(match path.is_absolute() && !path.exists() {
                    true => format!("{} (no such file)", path.display()),
                    false => format!("{} ({reason})", path.display()),
                });
                None
            }
        });
        let Some((path, handle)) = opened else { return Err(Error::NotFound { looked }) };
        Self::from_handle(path, handle).map(Arc::new)
    }

    fn from_handle(path: PathBuf, handle: *mut c_void) -> Result<Self> {
        // SAFETY: the handle is open and the name ends in a zero.
        let symbol = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        // The version first: an old library lacks functions, and its age is the better message.
        let version = symbol(c"ncclGetVersion");
        if !version.is_null() {
            let mut number = 0;
            // SAFETY: the function of this name takes a pointer to an int, in every version.
            let code = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> Code>(
                    version,
                )(&mut number)
            };
            let found = Version::from_number(number);
            if code == Code::SUCCESS && found < OLDEST {
                return Err(Error::TooOld { path, found, needed: OLDEST });
            }
        }
        // SAFETY: dlsym gives null or the library's function of that name.
        unsafe { Self::from_symbols(path, symbol) }
    }

    /// The library whose functions `symbol` gives.
    ///
    /// # Safety
    /// What `symbol` gives for a name is null or the function of that name of NCCL's interface.
    pub(crate) unsafe fn from_symbols(
        path: PathBuf,
        symbol: impl Fn(&CStr) -> *mut c_void,
    ) -> Result<Self> {
        // SAFETY: the caller's word.
        let functions = match unsafe { Functions::load(&symbol) } {
            Ok(functions) => functions,
            Err(missing) => {
                return Err(Error::Broken {
                    path,
                    reason: format!("it has no {}", missing.to_string_lossy()),
                });
            }
        };
        let mut library =
            Self { path, version: OLDEST, capabilities: Capabilities([("", false); 6]), functions };
        let mut number = 0;
        // SAFETY: the pointer is to an int that lives.
        let code = unsafe { (library.functions.get_version)(&mut number) };
        library.result("ncclGetVersion", code, std::ptr::null_mut())?;
        library.version = Version::from_number(number);
        let has = |names: &[&CStr]| names.iter().all(|name| !symbol(name).is_null());
        library.capabilities = Capabilities([
            ("all-to-all in one call", library.functions.all_to_all.is_some()),
            ("registered memory", has(&[c"ncclCommRegister", c"ncclCommDeregister"])),
            ("windows", has(&[c"ncclCommWindowRegister", c"ncclCommWindowDeregister"])),
            ("its own memory", has(&[c"ncclMemAlloc", c"ncclMemFree"])),
            ("CollNet per communicator", library.version >= COLLNET_SINCE),
            ("NVLS per communicator", library.version >= NVLS_SINCE),
        ]);
        Ok(library)
    }

    /// The file, or the bare name where the system's loader has found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What it can do beyond what every version can.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// NCCL's answer as a result; "in progress" is none of a blocking call and counts as an error
    /// here.
    pub(crate) fn result(&self, function: &'static str, code: Code, comm: sys::Comm) -> Result<()> {
        if code == Code::SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any code; the text is the library's own.
        let text = unsafe { text_of((self.functions.get_error_string)(code)) };
        // SAFETY: the communicator is null, which NCCL allows, or alive; the text is the library's
        // own.
        let detail = unsafe { text_of((self.functions.get_last_error)(comm)) };
        let detail = detail.trim().to_owned();
        Err(Error::Call { function, code: code.0, text, detail })
    }
}

/// A text of the library's, or nothing.
///
/// # Safety
/// `text` is null or a text that ends in a zero and lives during the call.
unsafe fn text_of(text: *const std::ffi::c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: not null; the rest is the caller's word.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// Opens a shared library; the loader's words where it does not.
pub(crate) fn open_shared(path: &Path) -> Result<*mut c_void, String> {
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "a zero in the path".to_owned())?;
    // SAFETY: the name ends in a zero; the library's own initialisation is trusted as the library
    // is.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: the loader's text of this thread's last failure.
    let text = unsafe { text_of(libc::dlerror()) };
    // The loader repeats the path, which precedes it already.
    let path = OsStr::new(path).to_string_lossy();
    Err(text.trim_start_matches(&*path).trim_start_matches(": ").to_owned())
}
