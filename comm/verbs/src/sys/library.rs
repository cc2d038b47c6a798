//! The opened library.

use super::super::nic::{NicError, NicResult};
use super::raw::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr, Srq, SrqInitAttr,
};
use headlong_comm::transport::foreign::SharedLibrary;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders to look in first, separated by colons. It finds the library and changes no result.
pub const SEARCH_VARIABLE: &str = "HEADLONG_VERBS_LIBS";

/// The library's file name, as its `SONAME` says.
const NAME: &str = "libibverbs.so.1";

/// libibverbs, opened. It stays open until the process ends, because it loads a driver of its own
/// for each kind of NIC.
#[derive(Debug)]
pub(super) struct Library {
    path: PathBuf,
    pub(super) functions: Functions,
}

impl Library {
    /// Opens the library: from the folders of [`SEARCH_VARIABLE`], else wherever the system's
    /// loader finds it.
    pub(super) fn open() -> NicResult<Arc<Self>> {
        let folders = std::env::var_os(SEARCH_VARIABLE).unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&folders)
            .filter(|folder| !folder.as_os_str().is_empty())
            .collect();
        Self::open_in(&folders)
    }

    /// Opens the first of `folders`' libraries that can be opened, else the system's.
    pub(super) fn open_in(folders: &[PathBuf]) -> NicResult<Arc<Self>> {
        let places = folders.iter().map(|folder| folder.join(NAME)).chain([PathBuf::from(NAME)]);
        let mut looked = Vec::new();
        for place in places {
            match SharedLibrary::open(&place) {
                Ok(opened) => return Self::of(place, &opened).map(Arc::new),
                Err(reason) => looked.push(format!("{} ({reason})", place.display())),
            }
        }
        let looked = looked.join("; ");
        let advice =
            format!("install libibverbs1 (rdma-core), or name its folder in {SEARCH_VARIABLE}");
        Err(NicError::Unavailable(format!("{NAME} was not found; looked at {looked}; {advice}")))
    }

    fn of(path: PathBuf, opened: &SharedLibrary) -> NicResult<Self> {
        let symbol = |name: &CStr, version: &CStr| opened.versioned_symbol(name, version);
        // SAFETY: the loader gives null or the function of that name and version.
        let functions = unsafe { Functions::load(symbol) }.map_err(|missing| {
            NicError::Unavailable(format!(
                "{}: not a usable libibverbs: it has no {missing}",
                path.display()
            ))
        })?;
        // Memory that a NIC writes must not be copied away when this process forks. Kernels of
        // today see to it alone, and then this does nothing; where it is refused, older ones work
        // as long as nothing forks. SAFETY: it takes no arguments and comes before any memory is
        // registered through this handle.
        let _ = unsafe { (functions.fork_init)() };
        Ok(Self { path, functions })
    }

    /// The file, or the bare name where the system's loader has found it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn event_words(&self, kind: c_int) -> String {
        // SAFETY: it takes any number; the text is the library's own.
        let text = unsafe { (self.functions.event_type_str)(kind) };
        if text.is_null() {
            return format!("event {kind}");
        }
        // SAFETY: not null, and a text of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Declares [`Functions`] and how it is filled: a field, the symbol, and the version of the
/// library's interface that it has its present form since. `later` functions came after the first
/// version and may be absent.
macro_rules! functions {
    (
        always {
            $($field:ident = $symbol:literal $version:literal
                ($($argument:ident: $type:ty),*) -> $result:ty;)*
        }
        later {
            $($late:ident = $late_symbol:literal $late_version:literal
                ($($la:ident: $lt:ty),*) -> $lr:ty;)*
        }
    ) => {
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
            $(pub(super) $late: Option<unsafe extern "C" fn($($la: $lt),*) -> $lr>,)*
        }

        impl Functions {
            /// Takes each function from `symbol`; the first name that it does not know is the
            /// error.
            ///
            /// # Safety
            /// What `symbol` gives for a name and a version is null or that function of libibverbs.
            unsafe fn load(
                symbol: impl Fn(&CStr, &CStr) -> *mut c_void,
            ) -> Result<Self, String> {
                let missing = |name: &CStr, version: &CStr| {
                    format!("{}@{}", name.to_string_lossy(), version.to_string_lossy())
                };
                Ok(Self {
                    $($field: {
                        type Found = Option<unsafe extern "C" fn($($type),*) -> $result>;
                        let address = symbol($symbol, $version);
                        // SAFETY: null is none, and else it is by the caller's word this function.
                        let found = unsafe { std::mem::transmute::<*mut c_void, Found>(address) };
                        found.ok_or_else(|| missing($symbol, $version))?
                    },)*
                    $($late: {
                        type Found = Option<unsafe extern "C" fn($($lt),*) -> $lr>;
                        let address = symbol($late_symbol, $late_version);
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, Found>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    always {
        fork_init = c"ibv_fork_init" c"IBVERBS_1.1" () -> c_int;
        get_device_list = c"ibv_get_device_list" c"IBVERBS_1.1"
            (count: *mut c_int) -> *mut *mut Device;
        free_device_list = c"ibv_free_device_list" c"IBVERBS_1.1" (list: *mut *mut Device) -> ();
        open_device = c"ibv_open_device" c"IBVERBS_1.1" (device: *mut Device) -> *mut Context;
        close_device = c"ibv_close_device" c"IBVERBS_1.1" (context: *mut Context) -> c_int;
        get_async_event = c"ibv_get_async_event" c"IBVERBS_1.1"
            (context: *mut Context, event: *mut AsyncEvent) -> c_int;
        ack_async_event = c"ibv_ack_async_event" c"IBVERBS_1.1" (event: *mut AsyncEvent) -> ();
        event_type_str = c"ibv_event_type_str" c"IBVERBS_1.1" (kind: c_int) -> *const c_char;
        query_device = c"ibv_query_device" c"IBVERBS_1.1"
            (context: *mut Context, attr: *mut DeviceAttr) -> c_int;
        query_port = c"ibv_query_port" c"IBVERBS_1.1"
            (context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
        query_gid = c"ibv_query_gid" c"IBVERBS_1.1"
            (context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
        query_pkey = c"ibv_query_pkey" c"IBVERBS_1.1"
            (context: *mut Context, port: u8, index: c_int, key: *mut u16) -> c_int;
        alloc_pd = c"ibv_alloc_pd" c"IBVERBS_1.1" (context: *mut Context) -> *mut Pd;
        dealloc_pd = c"ibv_dealloc_pd" c"IBVERBS_1.1" (pd: *mut Pd) -> c_int;
        reg_mr = c"ibv_reg_mr" c"IBVERBS_1.1"
            (pd: *mut Pd, start: *mut c_void, length: usize, access: c_int) -> *mut Mr;
        dereg_mr = c"ibv_dereg_mr" c"IBVERBS_1.1" (mr: *mut Mr) -> c_int;
        create_cq = c"ibv_create_cq" c"IBVERBS_1.1"
            (context: *mut Context, depth: c_int, mine: *mut c_void, channel: *mut CompChannel,
             vector: c_int)
            -> *mut Cq;
        destroy_cq = c"ibv_destroy_cq" c"IBVERBS_1.1" (cq: *mut Cq) -> c_int;
        create_comp_channel = c"ibv_create_comp_channel" c"IBVERBS_1.0"
            (context: *mut Context) -> *mut CompChannel;
        destroy_comp_channel = c"ibv_destroy_comp_channel" c"IBVERBS_1.0"
            (channel: *mut CompChannel) -> c_int;
        get_cq_event = c"ibv_get_cq_event" c"IBVERBS_1.1"
            (channel: *mut CompChannel, cq: *mut *mut Cq, mine: *mut *mut c_void) -> c_int;
        ack_cq_events = c"ibv_ack_cq_events" c"IBVERBS_1.1" (cq: *mut Cq, count: c_uint) -> ();
        create_srq = c"ibv_create_srq" c"IBVERBS_1.1"
            (pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
        destroy_srq = c"ibv_destroy_srq" c"IBVERBS_1.1" (srq: *mut Srq) -> c_int;
        create_qp = c"ibv_create_qp" c"IBVERBS_1.1" (pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
        modify_qp = c"ibv_modify_qp" c"IBVERBS_1.1"
            (qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
        destroy_qp = c"ibv_destroy_qp" c"IBVERBS_1.1" (qp: *mut Qp) -> c_int;
    }
    later {
        reg_mr_iova2 = c"ibv_reg_mr_iova2" c"IBVERBS_1.8"
            (pd: *mut Pd, start: *mut c_void, length: usize, address: u64, access: c_uint)
            -> *mut Mr;
        query_gid_table = c"_ibv_query_gid_table" c"IBVERBS_1.11"
            (context: *mut Context, entries: *mut GidEntry, most: usize, flags: u32,
             entry_size: usize)
            -> isize;
        reg_dmabuf_mr = c"ibv_reg_dmabuf_mr" c"IBVERBS_1.12"
            (pd: *mut Pd, offset: u64, length: usize, address: u64, fd: c_int, access: c_int)
            -> *mut Mr;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_an_error_that_names_the_places() {
        let folder = tempfile::tempdir().unwrap();
        // Whether the machine has the library or not: what lies in the folder is no library.
        std::fs::write(folder.path().join(NAME), "no library").unwrap();
        match Library::open_in(&[folder.path().to_path_buf()]) {
            Ok(library) => {
                assert_eq!(library.path(), Path::new(NAME), "the system's, after the folder")
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&format!("{}/{NAME} (", folder.path().display())), "{text}");
                assert!(text.contains(SEARCH_VARIABLE), "{text}");
            }
        }
    }

    #[test]
    fn a_library_without_the_functions_names_the_first_that_is_missing() {
        let found = |name: &CStr, version: &CStr| match (name.to_str(), version.to_str()) {
            (Ok("ibv_get_device_list"), _) | (_, Ok("IBVERBS_1.0")) => std::ptr::null_mut(),
            _ => std::ptr::dangling_mut(),
        };
        // SAFETY: nothing is called; the addresses are only looked at.
        let missing = unsafe { Functions::load(found) }.expect_err("one function is missing");
        assert_eq!(missing, "ibv_get_device_list@IBVERBS_1.1");
    }
}
