//! NCCL's interface as C sees it. Results and kinds are plain integers, so that a value of a newer library is no undefined
//! behaviour.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `ncclResult_t`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);
    pub(crate) const IN_PROGRESS: Code = Code(7);
}

/// `ncclComm_t`.
pub(crate) type Comm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(crate) type Stream = *mut c_void;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [c_char; 128]);

/// `ncclConfig_t` as of 2.18. NCCL reads as many bytes as `size` says and takes its own defaults for what came later.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Everything as NCCL likes it, but for `blocking`.
    pub(crate) fn new(blocking: bool) -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21800,
            blocking: c_int::from(blocking),
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// Declares [`Functions`] and how it is filled.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// Every function of NCCL that this crate calls.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $field: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl Functions {
            /// Takes each function from `symbol`; the first name that it does not know is the error.
            ///
            /// # Safety
            /// What `symbol` gives for a name is null or the function of that name of NCCL's interface.
            pub(crate) unsafe fn load(symbol: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static str> {
                $(
                    let $field = {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a symbol without zeros"),
                        };
                        let address = symbol(NAME);
                        if address.is_null() {
                            return Err($symbol);
                        }
                        // SAFETY: not null, and by the caller's word this function.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> $result,
                            >(address)
                        }
                    };
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion" (version: *mut c_int) -> Code;
    get_unique_id = "ncclGetUniqueId" (id: *mut UniqueId) -> Code;
    get_error_string = "ncclGetErrorString" (code: Code) -> *const c_char;
    get_last_error = "ncclGetLastError" (comm: Comm) -> *const c_char;
    comm_init_rank_config = "ncclCommInitRankConfig"
        (comm: *mut Comm, num_ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> Code;
    comm_finalize = "ncclCommFinalize" (comm: Comm) -> Code;
    comm_destroy = "ncclCommDestroy" (comm: Comm) -> Code;
    comm_abort = "ncclCommAbort" (comm: Comm) -> Code;
    comm_get_async_error = "ncclCommGetAsyncError" (comm: Comm, state: *mut Code) -> Code;
    comm_count = "ncclCommCount" (comm: Comm, count: *mut c_int) -> Code;
    comm_cu_device = "ncclCommCuDevice" (comm: Comm, device: *mut c_int) -> Code;
    comm_user_rank = "ncclCommUserRank" (comm: Comm, rank: *mut c_int) -> Code;
    comm_register = "ncclCommRegister"
        (comm: Comm, address: *mut c_void, bytes: usize, handle: *mut *mut c_void) -> Code;
    comm_deregister = "ncclCommDeregister" (comm: Comm, handle: *mut c_void) -> Code;
    mem_alloc = "ncclMemAlloc" (address: *mut *mut c_void, bytes: usize) -> Code;
    mem_free = "ncclMemFree" (address: *mut c_void) -> Code;
    group_start = "ncclGroupStart" () -> Code;
    group_end = "ncclGroupEnd" () -> Code;
    send = "ncclSend"
        (from: *const c_void, count: usize, kind: c_int, peer: c_int, comm: Comm, stream: Stream) -> Code;
    recv = "ncclRecv"
        (to: *mut c_void, count: usize, kind: c_int, peer: c_int, comm: Comm, stream: Stream) -> Code;
    all_reduce = "ncclAllReduce"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, op: c_int, comm: Comm, stream: Stream)
        -> Code;
    reduce_scatter = "ncclReduceScatter"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, op: c_int, comm: Comm, stream: Stream)
        -> Code;
    all_gather = "ncclAllGather"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, comm: Comm, stream: Stream) -> Code;
    broadcast = "ncclBroadcast"
        (from: *const c_void, to: *mut c_void, count: usize, kind: c_int, root: c_int, comm: Comm, stream: Stream)
        -> Code;
}
