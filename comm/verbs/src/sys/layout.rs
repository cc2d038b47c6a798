//! Our structs against the real header, as a table that is checked in: names, sizes and offsets
//! that a C compiler has given for rdma-core 44's `infiniband/verbs.h` on x86-64. With the feature
//! `verbs-linked`, the crate `ibverbs-sys`, which has its own header, is compared with the same
//! table.

use super::raw;
use std::mem::offset_of;

/// One struct as C has it.
struct Layout {
    name: &'static str,
    /// Only the beginning is declared by us.
    is_begin: bool,
    size: usize,
    fields: Vec<Field>,
}

/// One field: name, offset, size.
type Field = (&'static str, usize, usize);

fn size_of_field<Struct, Field>(_: impl FnOnce(&Struct) -> &Field) -> usize {
    size_of::<Field>()
}

#[cfg(feature = "verbs-linked")]
macro_rules! linked_field {
    // Its fields are private there.
    (ibv_wc, $field:ident $(, $theirs:ident)?) => {
        (stringify!($field), offset_of!(raw::Wc, $field), size_of_field(|of: &raw::Wc| &of.$field))
    };
    ($c_name:ident, $field:ident) => {
        (
            stringify!($field),
            offset_of!(ibverbs_sys::$c_name, $field),
            size_of_field(|of: &ibverbs_sys::$c_name| &of.$field),
        )
    };
    // The member of a union without a name, which bindgen gives one.
    ($c_name:ident, $field:ident, $theirs:ident) => {
        (
            stringify!($field),
            offset_of!(ibverbs_sys::$c_name, $theirs),
            size_of_field(|of: &ibverbs_sys::$c_name| &of.$theirs),
        )
    };
}

macro_rules! layouts {
    ($($kind:ident $ours:ident = $c_name:ident, $size:literal {
        $($field:ident $(as $theirs:ident)? $offset:literal $bytes:literal,)*
    })*) => {
        /// As the C compiler has them.
        fn table() -> Vec<Layout> {
            vec![$(Layout {
                name: stringify!($c_name),
                is_begin: stringify!($kind) == "begin",
                size: $size,
                fields: vec![$((stringify!($field), $offset, $bytes)),*],
            }),*]
        }

        /// As we have them.
        #[cfg(test)]
        fn ours() -> Vec<(usize, Vec<Field>)> {
            vec![$((
                size_of::<raw::$ours>(),
                vec![$((
                    stringify!($field),
                    offset_of!(raw::$ours, $field),
                    size_of_field(|of: &raw::$ours| &of.$field),
                )),*],
            )),*]
        }

        /// As the crate `ibverbs-sys` has them.
        #[cfg(feature = "verbs-linked")]
        fn linked() -> Vec<(usize, Vec<Field>)> {
            vec![$((
                size_of::<ibverbs_sys::$c_name>(),
                vec![$(linked_field!($c_name, $field $(, $theirs)?)),*],
            )),*]
        }
    };
}

#[rustfmt::skip]
layouts! {
    whole Device = ibv_device, 664 {
        name 24 64, ibdev_path 408 256,
    }
    whole ContextOps = ibv_context_ops, 256 {
        poll_cq 88 8, req_notify_cq 96 8, post_srq_recv 160 8, post_send 200 8, post_recv 208 8,
    }
    begin Context = ibv_context, 328 {
        device 0 8, ops 8 256, cmd_fd 264 4, async_fd 268 4,
    }
    whole DeviceAttr = ibv_device_attr, 232 {
        max_qp_wr 112 4, max_sge 120 4, max_cqe 132 4, max_qp_rd_atom 144 4,
        max_qp_init_rd_atom 156 4, atomic_cap 164 4, max_srq 212 4, max_srq_wr 216 4,
        phys_port_cnt 227 1,
    }
    whole PortAttr = ibv_port_attr, 52 {
        state 0 4, active_mtu 8 4, gid_tbl_len 12 4, pkey_tbl_len 32 2, lid 34 2, link_layer 46 1,
        flags 47 1,
    }
    whole GidEntry = ibv_gid_entry, 32 {
        gid 0 16, gid_index 16 4, port_num 20 4, gid_type 24 4, ndev_ifindex 28 4,
    }
    whole Mr = ibv_mr, 48 {
        lkey 36 4, rkey 40 4,
    }
    whole CompChannel = ibv_comp_channel, 16 {
        context 0 8, fd 8 4,
    }
    begin Cq = ibv_cq, 128 {
        context 0 8,
    }
    begin Srq = ibv_srq, 128 {
        context 0 8,
    }
    whole SrqAttr = ibv_srq_attr, 12 {
        max_wr 0 4, max_sge 4 4, srq_limit 8 4,
    }
    whole SrqInitAttr = ibv_srq_init_attr, 24 {
        srq_context 0 8, attr 8 12,
    }
    begin Qp = ibv_qp, 160 {
        context 0 8, qp_num 52 4,
    }
    whole QpCap = ibv_qp_cap, 20 {
        max_send_wr 0 4, max_recv_wr 4 4, max_send_sge 8 4, max_recv_sge 12 4, max_inline_data 16 4,
    }
    whole QpInitAttr = ibv_qp_init_attr, 64 {
        qp_context 0 8, send_cq 8 8, recv_cq 16 8, srq 24 8, cap 32 20, qp_type 52 4,
        sq_sig_all 56 4,
    }
    whole GlobalRoute = ibv_global_route, 24 {
        dgid 0 16, flow_label 16 4, sgid_index 20 1, hop_limit 21 1, traffic_class 22 1,
    }
    whole AhAttr = ibv_ah_attr, 32 {
        grh 0 24, dlid 24 2, sl 26 1, src_path_bits 27 1, static_rate 28 1, is_global 29 1,
        port_num 30 1,
    }
    whole QpAttr = ibv_qp_attr, 144 {
        qp_state 0 4, path_mtu 8 4, rq_psn 20 4, sq_psn 24 4, dest_qp_num 28 4,
        qp_access_flags 32 4, ah_attr 56 32, pkey_index 120 2, max_rd_atomic 126 1,
        max_dest_rd_atomic 127 1, min_rnr_timer 128 1, port_num 129 1, timeout 130 1,
        retry_cnt 131 1, rnr_retry 132 1,
    }
    whole Sge = ibv_sge, 16 {
        addr 0 8, length 8 4, lkey 12 4,
    }
    whole SendWr = ibv_send_wr, 128 {
        wr_id 0 8, next 8 8, sg_list 16 8, num_sge 24 4, opcode 28 4, send_flags 32 4,
        imm_data as __bindgen_anon_1 36 4,
        wr 40 32,
    }
    whole RecvWr = ibv_recv_wr, 32 {
        wr_id 0 8, next 8 8, sg_list 16 8, num_sge 24 4,
    }
    whole Wc = ibv_wc, 48 {
        wr_id 0 8, status 8 4, opcode 12 4, vendor_err 16 4, byte_len 20 4,
        imm_data as __bindgen_anon_1 24 4, qp_num 28 4,
    }
    whole AsyncEvent = ibv_async_event, 16 {
        element 0 8, event_type 8 4,
    }
}

#[test]
fn our_structs_are_laid_out_as_the_header_says() {
    for (layout, (size, fields)) in table().into_iter().zip(ours()) {
        let is_right = if layout.is_begin { size <= layout.size } else { size == layout.size };
        assert!(is_right, "{} has {size} bytes, expected {}", layout.name, layout.size);
        assert_eq!(fields, layout.fields, "{}: (field, offset, size)", layout.name);
    }
}

#[test]
fn constants_have_one_name_each() {
    let mut names: Vec<&str> = raw::CONSTANTS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), raw::CONSTANTS.len());
}

/// The constants of `ibverbs-sys`, by the form that bindgen has given each kind.
#[cfg(feature = "verbs-linked")]
macro_rules! linked_constants {
    (@module $group:ident $name:ident) => { ibverbs_sys::$group::$name };
    (@bits $group:ident $name:ident) => { ibverbs_sys::$group::$name.0 };
    (@plain $group:ident $name:ident) => { ibverbs_sys::$name };
    ($($kind:ident $group:ident { $($name:ident,)* })*) => {
        linked_constants!(@all $($(($kind $group $name))*)*);
    };
    (@all $(($kind:ident $group:ident $name:ident))*) => {
        fn linked_constants() -> Vec<(&'static str, u32)> {
            vec![$((stringify!($name), linked_constants!(@$kind $group $name) as u32)),*]
        }
    };
}

#[rustfmt::skip]
#[cfg(feature = "verbs-linked")]
linked_constants! {
    module ibv_port_state {
        IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE,
    }
    plain constants {
        IBV_LINK_LAYER_ETHERNET, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_ATOMIC_NONE,
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SRQ_ERR, IBV_EVENT_GID_CHANGE,
    }
    bits ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_RELAXED_ORDERING,
    }
    module ibv_qp_type {
        IBV_QPT_RC,
    }
    module ibv_qp_state {
        IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR,
    }
    bits ibv_qp_attr_mask {
        IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN,
    }
    module ibv_wr_opcode {
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    }
    bits ibv_send_flags {
        IBV_SEND_SIGNALED, IBV_SEND_INLINE,
    }
    module ibv_wc_status {
        IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    }
    module ibv_wc_opcode {
        IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
        IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// Structs that are longer in the crate's header, which is of a later rdma-core, and how long. They
/// are only filled in: the symbol of version 1.1 that does it fills in what that version had.
#[cfg(feature = "verbs-linked")]
const GROWN: [(&str, usize); 1] = [("ibv_port_attr", 56)];

/// Compares our declarations with those of the crate `ibverbs-sys`: how many structs and constants
/// agree.
///
/// # Errors
/// The first that differs.
#[cfg(feature = "verbs-linked")]
pub fn compare_with_crate() -> Result<(usize, usize), String> {
    let table = table();
    for (layout, (size, fields)) in table.iter().zip(linked()) {
        let grown = GROWN.iter().find(|(name, _)| *name == layout.name).map(|(_, size)| *size);
        let is_right = match layout.is_begin {
            true => size >= layout.size,
            false => size == grown.unwrap_or(layout.size),
        };
        if !is_right || fields != layout.fields {
            let Layout { name, size: ours, fields: expected, .. } = layout;
            return Err(format!(
                "{name} has {size} bytes in ibverbs-sys, {ours} here; its fields (name, offset, \
                 size) {fields:?}, here {expected:?}"
            ));
        }
    }
    let theirs = linked_constants();
    let of = |name: &str| theirs.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
    for (name, value) in raw::CONSTANTS {
        if of(name) != Some(*value) {
            return Err(format!("{name} is {:?} in ibverbs-sys, {value} here", of(name)));
        }
    }
    Ok((table.len(), raw::CONSTANTS.len()))
}
