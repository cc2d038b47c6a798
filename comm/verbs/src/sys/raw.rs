//! libibverbs' interface as C sees it, as far as it is called here. States, kinds and flags are
//! plain integers, so that a value of a newer library is no undefined behaviour.
//!
//! Sizes and offsets are compared with a table of the real header in [`super::layout`]. Source:
//! `infiniband/verbs.h` of rdma-core; what the library has after the part of a struct that is used
//! here is left out.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handle, which nothing here looks into.
#[repr(C)]
pub(crate) struct Pd {
    _private: [u8; 0],
}

#[repr(C)]
pub(crate) struct Device {
    pub(crate) unused_head: [u64; 3],
    pub(crate) name: [c_char; 64],
    pub(crate) unused_paths: [c_char; 320],
    pub(crate) ibdev_path: [c_char; 256],
}

/// An entry of the table of operations that is not called from here.
type Unused = Option<unsafe extern "C" fn()>;

/// `struct ibv_context_ops`. What moves data is not exported by the library but found here.
#[repr(C)]
pub(crate) struct ContextOps {
    pub(crate) unused_before_poll: [Unused; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub(crate) unused_before_srq: [Unused; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub(crate) unused_before_post: [Unused; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub(crate) unused_at_end: [Unused; 5],
}

/// `struct ibv_context`, without its lock and what follows.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) unused_names: [u64; 14],
    pub(crate) max_qp_wr: c_int,
    pub(crate) unused_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) unused_queues: [c_int; 2],
    pub(crate) max_cqe: c_int,
    pub(crate) unused_memory: [c_int; 2],
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) unused_ee: [c_int; 2],
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) unused_ee_init: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) unused_limits: [c_int; 11],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) unused_keys: [u8; 7],
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) unused_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) unused_counters: [u32; 4],
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) unused_subnet: [u8; 10],
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) unused_at_end: [u8; 4],
}

/// `union ibv_gid`: 16 bytes as on the wire. The union is aligned to 8.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
pub(crate) struct Mr {
    pub(crate) unused_head: [u64; 4],
    pub(crate) unused_handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) unused_count: c_int,
}

/// `struct ibv_cq`, without its lock and what follows.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
}

/// `struct ibv_srq`, without its lock and what follows.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
}

#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// `struct ibv_qp`, without its lock and what follows.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) unused_queues: [u64; 5],
    pub(crate) unused_handle: u32,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) unused_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) unused_path: [u32; 2],
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) unused_cap: [u32; 5],
    pub(crate) ah_attr: AhAttr,
    pub(crate) unused_alternative: [u64; 4],
    pub(crate) pkey_index: u16,
    pub(crate) unused_drain: [u16; 2],
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) unused_ports: [u8; 2],
    pub(crate) unused_rate: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The member `rdma` of a send request's union.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaPart {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The member `atomic` of a send request's union.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicPart {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The union `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union WrPart {
    pub(crate) rdma: RdmaPart,
    pub(crate) atomic: AtomicPart,
}

#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// In the order of the network.
    pub(crate) imm_data: u32,
    pub(crate) wr: WrPart,
    pub(crate) unused_xrc: u32,
    /// Memory windows and segmentation offload: as large as the largest of them.
    pub(crate) unused_windows: [u64; 6],
}

#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In the order of the network.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) unused_at_end: [u32; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent {
    /// A pointer to what it is about, or a port's number in the first four bytes.
    pub(crate) element: u64,
    pub(crate) event_type: c_int,
}

/// `IBV_QPF_GRH_REQUIRED`, of a port's flags. The crate `ibverbs-sys` leaves it out, so nothing
/// compares it.
pub(crate) const PORT_GRH_REQUIRED: u32 = 1;

/// Declares constants, and a table of them with the names that C gives them.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $c_name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: u32 = $value;)*
        /// Every constant: C's name, ours.
        #[cfg(any(test, feature = "verbs-linked"))]
        pub(crate) const CONSTANTS: &[(&str, u32)] = &[$((stringify!($c_name), $name)),*];
    };
}

constants! {
    PORT_DOWN = IBV_PORT_DOWN = 1;
    PORT_INIT = IBV_PORT_INIT = 2;
    PORT_ARMED = IBV_PORT_ARMED = 3;
    PORT_ACTIVE = IBV_PORT_ACTIVE = 4;
    LINK_ETHERNET = IBV_LINK_LAYER_ETHERNET = 2;
    GID_ROCE_V1 = IBV_GID_TYPE_ROCE_V1 = 1;
    GID_ROCE_V2 = IBV_GID_TYPE_ROCE_V2 = 2;
    ATOMIC_NONE = IBV_ATOMIC_NONE = 0;
    ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE = 1;
    ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE = 2;
    ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ = 4;
    ACCESS_REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC = 8;
    ACCESS_RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING = 0x10_0000;
    QPT_RC = IBV_QPT_RC = 2;
    QPS_INIT = IBV_QPS_INIT = 1;
    QPS_RTR = IBV_QPS_RTR = 2;
    QPS_RTS = IBV_QPS_RTS = 3;
    QPS_ERR = IBV_QPS_ERR = 6;
    QP_STATE = IBV_QP_STATE = 0x1;
    QP_ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS = 0x8;
    QP_PKEY_INDEX = IBV_QP_PKEY_INDEX = 0x10;
    QP_PORT = IBV_QP_PORT = 0x20;
    QP_AV = IBV_QP_AV = 0x80;
    QP_PATH_MTU = IBV_QP_PATH_MTU = 0x100;
    QP_TIMEOUT = IBV_QP_TIMEOUT = 0x200;
    QP_RETRY_CNT = IBV_QP_RETRY_CNT = 0x400;
    QP_RNR_RETRY = IBV_QP_RNR_RETRY = 0x800;
    QP_RQ_PSN = IBV_QP_RQ_PSN = 0x1000;
    QP_MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC = 0x2000;
    QP_MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER = 0x8000;
    QP_SQ_PSN = IBV_QP_SQ_PSN = 0x1_0000;
    QP_MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC = 0x2_0000;
    QP_DEST_QPN = IBV_QP_DEST_QPN = 0x10_0000;
    WR_RDMA_WRITE = IBV_WR_RDMA_WRITE = 0;
    WR_RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    WR_SEND = IBV_WR_SEND = 2;
    WR_RDMA_READ = IBV_WR_RDMA_READ = 4;
    WR_ATOMIC_FETCH_AND_ADD = IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
    SEND_SIGNALED = IBV_SEND_SIGNALED = 2;
    SEND_INLINE = IBV_SEND_INLINE = 8;
    WC_SUCCESS = IBV_WC_SUCCESS = 0;
    WC_LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR = 1;
    WC_LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR = 4;
    WC_WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR = 5;
    WC_REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR = 9;
    WC_REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR = 10;
    WC_REM_OP_ERR = IBV_WC_REM_OP_ERR = 11;
    WC_RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR = 12;
    WC_RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR = 13;
    WC_OP_SEND = IBV_WC_SEND = 0;
    WC_OP_RDMA_WRITE = IBV_WC_RDMA_WRITE = 1;
    WC_OP_RDMA_READ = IBV_WC_RDMA_READ = 2;
    WC_OP_FETCH_ADD = IBV_WC_FETCH_ADD = 4;
    WC_OP_RECV = IBV_WC_RECV = 128;
    WC_OP_RECV_RDMA_WITH_IMM = IBV_WC_RECV_RDMA_WITH_IMM = 129;
    EVENT_CQ_ERR = IBV_EVENT_CQ_ERR = 0;
    EVENT_QP_FATAL = IBV_EVENT_QP_FATAL = 1;
    EVENT_QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR = 2;
    EVENT_QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR = 3;
    EVENT_DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL = 8;
    EVENT_PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE = 9;
    EVENT_PORT_ERR = IBV_EVENT_PORT_ERR = 10;
    EVENT_SRQ_ERR = IBV_EVENT_SRQ_ERR = 14;
}
