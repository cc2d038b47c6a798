//! The opened library.

use super::raw::{EpParams, OK, OLDEST, Params, RequestParam, Status, TagReceived, WorkerParams};
use headlong_comm::transport::foreign::SharedLibrary;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

/// The library's file name, as its `SONAME` says.
const NAME: &str = "libucp.so.0";

/// libucp, opened; it stays open until the process ends.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) functions: Functions,
    version: (c_uint, c_uint, c_uint),
}

impl Library {
    /// Opens the library where the system's loader finds it.
    ///
    /// # Errors
    /// Why there is none that can be used, and what to install.
    pub(crate) fn open() -> Result<Self, String> {
        Self::open_as(NAME)
    }

    fn open_as(name: &str) -> Result<Self, String> {
        let library = SharedLibrary::open(Path::new(name)).map_err(|reason| {
            format!(
                "{name} was not found ({reason}); install UCX (Debian: libucx0), or name its \
                 folder in LD_LIBRARY_PATH"
            )
        })?;
        // SAFETY: the loader gives null or the function of that name.
        let functions = unsafe { Functions::load(|name| library.symbol(name)) }
            .map_err(|missing| format!("{name} has no {missing}: it is no usable UCX"))?;
        let mut version = (0, 0, 0);
        // SAFETY: three places for three numbers.
        unsafe { (functions.get_version)(&mut version.0, &mut version.1, &mut version.2) };
        check_version(version)?;
        be_quiet(&library);
        Ok(Self { functions, version })
    }

    /// As people write it: `1.13.1`.
    pub(crate) fn version(&self) -> String {
        let (major, minor, release) = self.version;
        format!("{major}.{minor}.{release}")
    }

    /// The library's words for a status.
    pub(crate) fn words(&self, status: Status) -> String {
        // SAFETY: it takes any number; the text is the library's own.
        let text = unsafe { (self.functions.status_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: not null, and a text of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// UCX prints on standard output, where answers of programs go. Unless its variable
/// `UCX_LOG_LEVEL` asks for another level than UCX has by itself, it prints no more than why it
/// ends the process.
fn be_quiet(library: &SharedLibrary) {
    type Get = Option<unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> Status>;
    type Set = Option<unsafe extern "C" fn(*const c_char, *const c_char) -> Status>;
    let get = library.symbol(c"ucs_global_opts_get_value");
    // SAFETY: null is none, and else it is this function of libucs.
    let get = unsafe { std::mem::transmute::<*mut c_void, Get>(get) };
    let set = library.symbol(c"ucs_global_opts_set_value");
    // SAFETY: as above.
    let set = unsafe { std::mem::transmute::<*mut c_void, Set>(set) };
    let (Some(get), Some(set)) = (get, set) else { return };
    let mut level = [0_u8; 32];
    // SAFETY: a name, and room for the answer with a zero at its end.
    let status = unsafe { get(c"LOG_LEVEL".as_ptr(), level.as_mut_ptr().cast(), level.len()) };
    let level = CStr::from_bytes_until_nul(&level).map_or(&[][..], CStr::to_bytes);
    if status == OK && level.eq_ignore_ascii_case(b"warn") {
        // SAFETY: a name and a value.
        unsafe { set(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr()) };
    }
}

fn check_version((major, minor, release): (c_uint, c_uint, c_uint)) -> Result<(), String> {
    match major == OLDEST.0 && minor >= OLDEST.1 {
        true => Ok(()),
        false => Err(format!(
            "UCX {major}.{minor}.{release} is installed, expected {}.{} or a later {}.x",
            OLDEST.0, OLDEST.1, OLDEST.0
        )),
    }
}

/// Declares [`Functions`] and how it is filled: a field, and the symbol.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl Functions {
            /// Takes each function from `symbol`; the first name that it does not know is the
            /// error.
            ///
            /// # Safety
            /// What `symbol` gives for a name is null or that function of UCX.
            unsafe fn load(symbol: impl Fn(&CStr) -> *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        type Found = Option<unsafe extern "C" fn($($type),*) -> $result>;
                        let address = symbol($symbol);
                        // SAFETY: null is none, and else it is by the caller's word this function.
                        let found = unsafe { std::mem::transmute::<*mut c_void, Found>(address) };
                        found.ok_or_else(|| $symbol.to_string_lossy().into_owned())?
                    },)*
                })
            }
        }
    };
}

functions! {
    get_version = c"ucp_get_version"
        (major: *mut c_uint, minor: *mut c_uint, release: *mut c_uint) -> ();
    status_string = c"ucs_status_string" (status: Status) -> *const c_char;
    config_read = c"ucp_config_read"
        (prefix: *const c_char, file: *const c_char, config: *mut *mut c_void) -> Status;
    config_modify = c"ucp_config_modify"
        (config: *mut c_void, name: *const c_char, value: *const c_char) -> Status;
    config_release = c"ucp_config_release" (config: *mut c_void) -> ();
    init = c"ucp_init_version"
        (major: c_uint, minor: c_uint, params: *const Params, config: *const c_void,
         context: *mut *mut c_void)
        -> Status;
    cleanup = c"ucp_cleanup" (context: *mut c_void) -> ();
    worker_create = c"ucp_worker_create"
        (context: *mut c_void, params: *const WorkerParams, worker: *mut *mut c_void) -> Status;
    worker_destroy = c"ucp_worker_destroy" (worker: *mut c_void) -> ();
    worker_get_address = c"ucp_worker_get_address"
        (worker: *mut c_void, address: *mut *mut c_void, length: *mut usize) -> Status;
    worker_release_address = c"ucp_worker_release_address"
        (worker: *mut c_void, address: *mut c_void) -> ();
    worker_progress = c"ucp_worker_progress" (worker: *mut c_void) -> c_uint;
    worker_get_efd = c"ucp_worker_get_efd" (worker: *mut c_void, fd: *mut c_int) -> Status;
    worker_arm = c"ucp_worker_arm" (worker: *mut c_void) -> Status;
    worker_flush = c"ucp_worker_flush_nbx"
        (worker: *mut c_void, param: *const RequestParam) -> *mut c_void;
    ep_create = c"ucp_ep_create"
        (worker: *mut c_void, params: *const EpParams, endpoint: *mut *mut c_void) -> Status;
    ep_close = c"ucp_ep_close_nbx"
        (endpoint: *mut c_void, param: *const RequestParam) -> *mut c_void;
    tag_send = c"ucp_tag_send_nbx"
        (endpoint: *mut c_void, buffer: *const c_void, count: usize, tag: u64,
         param: *const RequestParam)
        -> *mut c_void;
    tag_receive = c"ucp_tag_recv_nbx"
        (worker: *mut c_void, buffer: *mut c_void, count: usize, tag: u64, mask: u64,
         param: *const RequestParam)
        -> *mut c_void;
    request_status = c"ucp_request_check_status" (request: *mut c_void) -> Status;
    tag_receive_test = c"ucp_tag_recv_request_test"
        (request: *mut c_void, info: *mut TagReceived) -> Status;
    request_cancel = c"ucp_request_cancel" (worker: *mut c_void, request: *mut c_void) -> ();
    request_free = c"ucp_request_free" (request: *mut c_void) -> ();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_an_error_that_names_the_package() {
        let text = Library::open_as("libucp-of-no-machine.so.0").expect_err("there is none");
        assert!(text.starts_with("libucp-of-no-machine.so.0 was not found ("), "{text}");
        assert!(text.contains("Debian: libucx0"), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_names_the_first_that_is_missing() {
        // The C library is no UCX.
        let text = Library::open_as("libc.so.6").expect_err("it is no UCX");
        assert!(text.contains("no ucp_get_version"), "{text}");
    }

    #[test]
    fn only_the_versions_that_have_what_is_called_are_used() {
        assert_eq!(check_version((1, 10, 0)), Ok(()));
        assert_eq!(check_version((1, 19, 1)), Ok(()));
        let words = |version| check_version(version).expect_err("it is another");
        assert_eq!(words((1, 9, 2)), "UCX 1.9.2 is installed, expected 1.10 or a later 1.x");
        assert!(words((2, 0, 0)).contains("2.0.0"));
    }
}
