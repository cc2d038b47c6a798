//! NCCL's interface as C sees it. Results and kinds are plain integers, so that a value of a newer
//! library is no undefined behaviour.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);
    pub(crate) const IN_PROGRESS: Code = Code(7);
}

pub(crate) type Comm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(crate) type Stream = *mut c_void;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [c_char; 128]);

/// `ncclConfig_t` as of 2.31. Its fields were appended version by version, and NCCL reads as many
/// bytes as `size` says: a library gets the part that it knows.
#[repr(C)]
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) size: usize,
    magic: c_uint,
    pub(crate) version: c_uint,
    blocking: c_int,
    ctas: [c_int; 3],
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    pub(crate) collnet_enable: c_int,
    policies: [c_int; 3],
    since_28: [c_int; 2],
    since_31: [c_int; 8],
    pub(crate) nvls_host_mode: c_int,
}

/// Which version appended what, newest first: the number that goes with a size, and the size.
const LAYOUTS: [(c_uint, usize); 4] = [
    (23100, size_of::<Config>()),
    (22800, offset_of!(Config, since_31)),
    (22700, offset_of!(Config, since_28)),
    (21800, offset_of!(Config, traffic_class).next_multiple_of(8)),
];

impl Config {
    /// Everything as NCCL likes it, for a library of this number; its calls do not block.
    pub(crate) fn new(library: c_uint) -> Self {
        /// What NCCL takes its own default for.
        const UNDEFINED: c_int = c_int::MIN;
        let known = LAYOUTS.iter().find(|(version, _)| *version <= library);
        let (version, size) = *known.unwrap_or(&LAYOUTS[LAYOUTS.len() - 1]);
        Self {
            size,
            magic: MAGIC,
            version,
            blocking: 0,
            ctas: [UNDEFINED; 3],
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEFINED,
            policies: [UNDEFINED; 3],
            since_28: [UNDEFINED; 2],
            since_31: [UNDEFINED; 8],
            nvls_host_mode: UNDEFINED,
        }
    }
}

/// `ncclCommProperties_t` as of 2.29.2, with room after it for what later libraries add.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Properties {
    size: usize,
    magic: c_uint,
    version: c_uint,
    place: [c_int; 4],
    device_api: u8,
    /// Whether the communicator's devices can add up in NVSwitch.
    pub(crate) multimem: u8,
    gin: u8,
    room: [u8; 221],
}

impl Properties {
    pub(crate) fn new() -> Self {
        let size = offset_of!(Self, room).next_multiple_of(8);
        let (magic, version) = (MAGIC, 22902);
        Self {
            size,
            magic,
            version,
            place: [0; 4],
            device_api: 0,
            multimem: 0,
            gin: 0,
            room: [0; 221],
        }
    }
}

/// By this NCCL knows that a struct of its interface was initialised.
const MAGIC: c_uint = 0xcafe_beef;

macro_rules! resolve {
    ($lookup:expr, $symbol:literal, ($($type:ty),*) -> $result:ty) => {{
        type Found = Option<unsafe extern "C" fn($($type),*) -> $result>;
        // SAFETY: null is none, and else it is by the caller's word this function.
        unsafe { std::mem::transmute::<*mut c_void, Found>($lookup($symbol)) }
    }};
}

/// Declares [`Functions`] and how it is filled: what every version has, and what came later.
macro_rules! functions {
    (
        $($field:ident = $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*
        => $($late:ident = $late_symbol:literal
            ($($late_argument:ident: $late_type:ty),*) -> $late_result:ty;)*
    ) => {
        /// Every function of NCCL that this crate calls.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
            $(pub(crate) $late:
                Option<unsafe extern "C" fn($($late_argument: $late_type),*) -> $late_result>,)*
        }

        impl Functions {
            /// Takes each function from `symbol`; the first name that every version has and this
            /// one has not is the error.
            ///
            /// # Safety
            /// What `symbol` gives for a name is null or the function of that name of NCCL's
            /// interface.
            pub(crate) unsafe fn load(
                symbol: impl Fn(&CStr) -> *mut c_void,
            ) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: resolve!(symbol, $symbol, ($($type),*) -> $result).ok_or($symbol)?,)*
                    $($late: resolve!(symbol, $late_symbol, ($($late_type),*) -> $late_result),)*
                })
            }
        }
    };
}

functions! {
    get_version = c"ncclGetVersion" (version: *mut c_int) -> Code;
    get_unique_id = c"ncclGetUniqueId" (id: *mut UniqueId) -> Code;
    get_error_string = c"ncclGetErrorString" (code: Code) -> *const c_char;
    get_last_error = c"ncclGetLastError" (comm: Comm) -> *const c_char;
    comm_init_rank_config = c"ncclCommInitRankConfig"
        (comm: *mut Comm, num_ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> Code;
    comm_finalize = c"ncclCommFinalize" (comm: Comm) -> Code;
    comm_destroy = c"ncclCommDestroy" (comm: Comm) -> Code;
    comm_abort = c"ncclCommAbort" (comm: Comm) -> Code;
    comm_get_async_error = c"ncclCommGetAsyncError" (comm: Comm, state: *mut Code) -> Code;
    group_start = c"ncclGroupStart" () -> Code;
    group_end = c"ncclGroupEnd" () -> Code;
    send = c"ncclSend"
        (from: *const c_void, count: usize, kind: c_int, peer: c_int, comm: Comm, stream: Stream)
        -> Code;
    recv = c"ncclRecv"
        (to: *mut c_void, count: usize, kind: c_int, peer: c_int, comm: Comm, stream: Stream)
        -> Code;
    all_reduce = c"ncclAllReduce"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, op: c_int, comm: Comm,
         stream: Stream)
        -> Code;
    reduce = c"ncclReduce"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, op: c_int, root: c_int,
         comm: Comm, stream: Stream)
        -> Code;
    all_gather = c"ncclAllGather"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, comm: Comm,
         stream: Stream)
        -> Code;
    broadcast = c"ncclBroadcast"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, root: c_int, comm: Comm,
         stream: Stream)
        -> Code;
=>
    comm_query_properties = c"ncclCommQueryProperties"
        (comm: Comm, properties: *mut Properties) -> Code;
    all_to_all = c"ncclAlltoAll"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, comm: Comm,
         stream: Stream)
        -> Code;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_gets_the_part_of_the_settings_that_it_knows() {
        // Offsets as a C compiler lays out the structs of nccl.h of these versions, on 64-bit
        // systems.
        let size_of_version = |library| (Config::new(library).version, Config::new(library).size);
        assert_eq!(size_of_version(21903), (21800, 48));
        assert_eq!(size_of_version(22605), (21800, 48));
        assert_eq!(size_of_version(22703), (22700, 72));
        assert_eq!(size_of_version(22809), (22800, 80));
        assert_eq!(size_of_version(23007), (22800, 80));
        assert_eq!(size_of_version(23100), (23100, 120));
        assert_eq!(size_of_version(29901), (23100, 120));
    }

    #[test]
    fn properties_lie_where_the_header_has_them() {
        let offsets = [
            offset_of!(Properties, place),
            offset_of!(Properties, device_api),
            offset_of!(Properties, multimem),
        ];
        assert_eq!((offsets, Properties::new().size), ([16, 32, 33], 40));
    }
}
