//! Structs and constants as `ucp.h` has them.
//!
//! The declarations are those of UCX 1.13.1 (Debian's libucx-dev). UCX adds fields at the end of
//! these structs only, and reads those whose bit is set in the mask at the beginning, so that they
//! hold for every 1.x since [`OLDEST`].

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The first release of API 1 that has every function of [`super::library::Functions`].
pub(crate) const OLDEST: (c_uint, c_uint) = (1, 10);

/// `ucs_status_t`, an enumeration that is packed into one byte: negative for errors.
pub(crate) type Status = i8;
pub(crate) const OK: Status = 0;
pub(crate) const IN_PROGRESS: Status = 1;
/// Pointers from this status on are no requests, but errors.
pub(crate) const LAST_ERROR: Status = -100;

pub(crate) const FEATURE_TAG: u64 = 1 << 0;
pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;

pub(crate) const PARAM_FEATURES: u64 = 1 << 0;
pub(crate) const PARAM_TAG_SENDER_MASK: u64 = 1 << 4;
pub(crate) const PARAM_ESTIMATED_NUM_EPS: u64 = 1 << 6;

/// `ucp_params_t`.
#[repr(C)]
pub(crate) struct Params {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) request_size: usize,
    pub(crate) request_init: *const c_void,
    pub(crate) request_cleanup: *const c_void,
    pub(crate) tag_sender_mask: u64,
    pub(crate) mt_workers_shared: c_int,
    pub(crate) estimated_num_eps: usize,
    pub(crate) estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
}

pub(crate) const WORKER_PARAM_THREAD_MODE: u64 = 1 << 0;
/// `UCS_THREAD_MODE_SERIALIZED`: any thread, but one at a time.
pub(crate) const SERIALIZED: c_uint = 1;

/// `ucp_worker_params_t`.
#[repr(C)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_uint,
    pub(crate) cpu_mask: [u64; 16],
    pub(crate) events: c_uint,
    pub(crate) user_data: *const c_void,
    pub(crate) event_fd: c_int,
    pub(crate) flags: u64,
    pub(crate) name: *const c_char,
    pub(crate) am_alignment: usize,
    pub(crate) client_id: u64,
}

pub(crate) const EP_PARAM_REMOTE_ADDRESS: u64 = 1 << 0;
pub(crate) const EP_PARAM_ERR_HANDLING_MODE: u64 = 1 << 1;
pub(crate) const EP_PARAM_ERR_HANDLER: u64 = 1 << 2;
/// `UCP_ERR_HANDLING_MODE_PEER`: what was sent completes, in error where the peer is gone.
pub(crate) const ERR_HANDLING_PEER: c_uint = 1;

/// `ucp_err_handler_cb_t`.
pub(crate) type ErrorHandler =
    unsafe extern "C" fn(argument: *mut c_void, endpoint: *mut c_void, status: Status);

/// `ucp_ep_params_t`; its addresses of sockets, two words each, are not used.
#[repr(C)]
pub(crate) struct EpParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const c_void,
    pub(crate) err_mode: c_uint,
    pub(crate) err_handler: Option<ErrorHandler>,
    pub(crate) err_handler_argument: *mut c_void,
    pub(crate) user_data: *const c_void,
    pub(crate) flags: c_uint,
    pub(crate) sockaddr: [u64; 2],
    pub(crate) conn_request: *const c_void,
    pub(crate) name: *const c_char,
    pub(crate) local_sockaddr: [u64; 2],
}

pub(crate) const OP_ATTR_FLAGS: u32 = 1 << 4;
/// The type of the memory is said, here always host memory, so that UCX need not find out.
pub(crate) const OP_ATTR_MEMORY_TYPE: u32 = 1 << 6;
/// A request, even for what is complete at once.
pub(crate) const OP_ATTR_NO_IMMEDIATE: u32 = 1 << 16;
/// `UCP_EP_CLOSE_FLAG_FORCE`: without a word of the peer.
pub(crate) const CLOSE_FORCE: u32 = 1;

/// `ucp_request_param_t`.
#[repr(C)]
pub(crate) struct RequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) callback: *const c_void,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) reply_buffer: *mut c_void,
    pub(crate) memory_type: c_uint,
    pub(crate) recv_info: *mut c_void,
    pub(crate) memh: *mut c_void,
}

impl RequestParam {
    /// Contiguous bytes, with these attributes.
    pub(crate) const fn new(op_attr_mask: u32, flags: u32) -> Self {
        Self {
            op_attr_mask,
            flags,
            request: std::ptr::null_mut(),
            callback: std::ptr::null(),
            datatype: 0,
            user_data: std::ptr::null_mut(),
            reply_buffer: std::ptr::null_mut(),
            memory_type: 0,
            recv_info: std::ptr::null_mut(),
            memh: std::ptr::null_mut(),
        }
    }
}

/// `ucp_tag_recv_info_t`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct TagReceived {
    pub(crate) sender_tag: u64,
    pub(crate) length: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// As a C program prints them with the headers of Debian's libucx-dev 1.13.1, on a machine of
    /// 64 bits.
    #[test]
    fn structs_are_laid_out_as_in_c() {
        assert_eq!(size_of::<Status>(), 1);
        assert_eq!(size_of::<Params>(), 80);
        assert_eq!(offset_of!(Params, features), 8);
        assert_eq!(offset_of!(Params, request_size), 16);
        assert_eq!(offset_of!(Params, tag_sender_mask), 40);
        assert_eq!(offset_of!(Params, mt_workers_shared), 48);
        assert_eq!(offset_of!(Params, estimated_num_eps), 56);
        assert_eq!(offset_of!(Params, name), 72);
        assert_eq!(size_of::<WorkerParams>(), 200);
        assert_eq!(offset_of!(WorkerParams, thread_mode), 8);
        assert_eq!(offset_of!(WorkerParams, cpu_mask), 16);
        assert_eq!(offset_of!(WorkerParams, events), 144);
        assert_eq!(offset_of!(WorkerParams, event_fd), 160);
        assert_eq!(offset_of!(WorkerParams, flags), 168);
        assert_eq!(size_of::<EpParams>(), 104);
        assert_eq!(offset_of!(EpParams, address), 8);
        assert_eq!(offset_of!(EpParams, err_mode), 16);
        assert_eq!(offset_of!(EpParams, err_handler), 24);
        assert_eq!(offset_of!(EpParams, user_data), 40);
        assert_eq!(offset_of!(EpParams, flags), 48);
        assert_eq!(offset_of!(EpParams, sockaddr), 56);
        assert_eq!(size_of::<RequestParam>(), 72);
        assert_eq!(offset_of!(RequestParam, flags), 4);
        assert_eq!(offset_of!(RequestParam, request), 8);
        assert_eq!(offset_of!(RequestParam, callback), 16);
        assert_eq!(offset_of!(RequestParam, datatype), 24);
        assert_eq!(offset_of!(RequestParam, memory_type), 48);
        assert_eq!(offset_of!(RequestParam, recv_info), 56);
        assert_eq!(offset_of!(RequestParam, memh), 64);
        assert_eq!(size_of::<TagReceived>(), 16);
        assert_eq!(offset_of!(TagReceived, length), 8);
    }
}
