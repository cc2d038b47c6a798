//! A reliable connection to one peer.

use super::super::nic::{
    Action, CompletionQueue, Endpoint, NicError, NicResult, Patch, Prepared, QueuePair,
    QueuePairOptions, QueuePairSettings, Receive, ReceiveQueue, Request,
};
use super::completions::Completions;
use super::domain::{Domain, access_flags};
use super::ports::mtu_number;
use super::raw::{self, AhAttr, Gid, GlobalRoute, Qp, QpAttr, QpCap, QpInitAttr, SendWr};
use super::receives::{Receives, posted};
use super::requests::{self, Chain};
use super::{checked, last_refused};
use std::any::Any;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

pub(super) struct Pair {
    domain: Arc<Domain>,
    raw: *mut Qp,
    chains: Vec<Chain>,
    max_segments: u32,
    max_inline: u32,
    /// Its queues live as long as it does.
    _completions: [Arc<dyn CompletionQueue>; 2],
    shared: Option<Arc<dyn ReceiveQueue>>,
}

// SAFETY: libibverbs' queue pairs may be used from any thread; the chains' pointers lead into their
// own memory.
unsafe impl Send for Pair {}

impl Pair {
    pub(super) fn new(domain: &Arc<Domain>, options: &QueuePairOptions<'_>) -> NicResult<Self> {
        let what = || {
            let QueuePairOptions { max_sends, max_receives, max_inline, .. } = options;
            format!(
                "{}: a queue pair of {max_sends} sends and {max_receives} receives, with \
                 {max_inline} bytes inline",
                domain.device.name()
            )
        };
        let foreign = || {
            let reason = "its queues are of another NIC".to_owned();
            NicError::Refused { what: what(), reason, errno: None }
        };
        let queue = |queue: &Arc<dyn CompletionQueue>| {
            let queue: &dyn Any = &**queue;
            let queue = queue.downcast_ref::<Completions>();
            queue
                .filter(|queue| Arc::ptr_eq(queue.domain(), domain))
                .map(Completions::raw)
                .ok_or_else(foreign)
        };
        let shared = |queue: &Arc<dyn ReceiveQueue>| {
            let queue: &dyn Any = &**queue;
            let queue = queue.downcast_ref::<Receives>();
            queue
                .filter(|queue| Arc::ptr_eq(queue.domain(), domain))
                .map(Receives::raw)
                .ok_or_else(foreign)
        };
        let mut attr = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue(options.sends)?,
            recv_cq: queue(options.receives)?,
            srq: options.shared.map(shared).transpose()?.unwrap_or(ptr::null_mut()),
            cap: QpCap {
                max_send_wr: options.max_sends,
                max_recv_wr: if options.shared.is_some() { 0 } else { options.max_receives },
                max_send_sge: options.max_segments,
                max_recv_sge: 1,
                max_inline_data: options.max_inline,
            },
            qp_type: raw::QPT_RC as c_int,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive and of one device; the pointer is to a struct that
        // lives.
        let raw = unsafe { (domain.device.library().functions.create_qp)(domain.raw, &mut attr) };
        if raw.is_null() {
            return Err(last_refused(what()));
        }
        Ok(Self {
            domain: domain.clone(),
            raw,
            chains: Vec::new(),
            max_segments: options.max_segments,
            max_inline: options.max_inline,
            _completions: [options.sends.clone(), options.receives.clone()],
            shared: options.shared.cloned(),
        })
    }

    fn what(&self, what: &str) -> String {
        format!("{}: queue pair {:#x}: {what}", self.domain.device.name(), self.number())
    }

    fn modify(&mut self, what: &str, mut attr: QpAttr, mask: u32) -> NicResult<()> {
        let modify = self.domain.device.library().functions.modify_qp;
        // SAFETY: the queue pair is alive, and the pointer to a struct that lives.
        let answer = unsafe { modify(self.raw, &mut attr, (mask | raw::QP_STATE) as c_int) };
        checked(|| self.what(what), answer)
    }

    fn fault(&self, request: &Request) -> Option<String> {
        let bytes: u64 = request.segments.iter().map(|segment| u64::from(segment.length)).sum();
        let is_atomic = matches!(request.action, Action::FetchAdd(..));
        let segments = request.segments.len();
        if segments > self.max_segments as usize {
            return Some(format!("{segments} segments, of at most {}", self.max_segments));
        }
        if request.inline && bytes > u64::from(self.max_inline) {
            return Some(format!("{bytes} bytes inline, of at most {}", self.max_inline));
        }
        if is_atomic && (segments, bytes) != (1, 8) {
            return Some(format!(
                "an atomic gives 8 bytes into one segment, not {bytes} into {segments}"
            ));
        }
        None
    }
}

/// Nothing set; a mask says what of it is read.
fn blank(state: u32) -> QpAttr {
    // SAFETY: all zeros is a value of this struct of integers.
    let mut attr: QpAttr = unsafe { std::mem::zeroed() };
    attr.qp_state = state as c_int;
    attr
}

fn route(settings: &QueuePairSettings, peer: &Endpoint) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid(peer.gid),
            flow_label: 0,
            sgid_index: settings.gid_index.unwrap_or(0) as u8,
            hop_limit: settings.hop_limit,
            traffic_class: settings.traffic_class,
        },
        dlid: peer.lid,
        sl: settings.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(settings.gid_index.is_some()),
        port_num: settings.port,
    }
}

impl QueuePair for Pair {
    fn number(&self) -> u32 {
        // SAFETY: alive until `self` is dropped.
        unsafe { (*self.raw).qp_num }
    }

    fn init(&mut self, settings: &QueuePairSettings) -> NicResult<()> {
        let mut attr = blank(raw::QPS_INIT);
        attr.pkey_index = settings.partition_index;
        attr.port_num = settings.port;
        attr.qp_access_flags = access_flags(settings.access);
        let mask = raw::QP_PKEY_INDEX | raw::QP_PORT | raw::QP_ACCESS_FLAGS;
        self.modify("to initialised", attr, mask)
    }

    fn ready_to_receive(&mut self, settings: &QueuePairSettings, peer: &Endpoint) -> NicResult<()> {
        let mut attr = blank(raw::QPS_RTR);
        attr.path_mtu = mtu_number(settings.mtu);
        attr.dest_qp_num = peer.queue_pair;
        attr.rq_psn = peer.first_packet;
        attr.max_dest_rd_atomic = settings.reads;
        attr.min_rnr_timer = settings.receiver_timer;
        attr.ah_attr = route(settings, peer);
        let mask = raw::QP_AV
            | raw::QP_PATH_MTU
            | raw::QP_DEST_QPN
            | raw::QP_RQ_PSN
            | raw::QP_MAX_DEST_RD_ATOMIC
            | raw::QP_MIN_RNR_TIMER;
        self.modify("to ready to receive", attr, mask)
    }

    fn ready_to_send(&mut self, settings: &QueuePairSettings, first_packet: u32) -> NicResult<()> {
        let mut attr = blank(raw::QPS_RTS);
        attr.sq_psn = first_packet;
        attr.timeout = settings.timeout;
        attr.retry_cnt = settings.retries;
        attr.rnr_retry = settings.receiver_retries;
        attr.max_rd_atomic = settings.reads;
        let mask = raw::QP_TIMEOUT
            | raw::QP_RETRY_CNT
            | raw::QP_RNR_RETRY
            | raw::QP_SQ_PSN
            | raw::QP_MAX_QP_RD_ATOMIC;
        self.modify("to ready to send", attr, mask)
    }

    unsafe fn prepare(&mut self, chain: &[Request]) -> NicResult<Prepared> {
        if let Some(reason) = chain.iter().find_map(|request| self.fault(request)) {
            return Err(NicError::Refused {
                what: self.what("preparing a request"),
                reason,
                errno: None,
            });
        }
        self.chains.push(Chain::new(chain));
        Ok(Prepared(self.chains.len() - 1))
    }

    fn post(&mut self, chain: Prepared, patches: &[Patch]) -> NicResult<()> {
        let chain = &mut self.chains[chain.0];
        patches.iter().for_each(|patch| chain.patch(patch));
        let (first, mut bad): (_, *mut SendWr) = (chain.first(), ptr::null_mut());
        // SAFETY: the queue pair is alive, and so is its device.
        let Some(post) = (unsafe { (*(*self.raw).context).ops.post_send }) else {
            return Err(super::refused(self.what("ibv_post_send"), libc::EOPNOTSUPP));
        };
        // SAFETY: the chain lives, its pointers were set just now, and nothing else touches it
        // during the call.
        let answer = unsafe { post(self.raw, first, &mut bad) };
        match answer {
            0 => Ok(()),
            // A part of the chain is on its way: there is no going back.
            libc::ENOMEM if bad != first => {
                let reason = "the queue was full in the middle of a chain".to_owned();
                let what = self.what("ibv_post_send");
                Err(NicError::Refused { what, reason, errno: Some(libc::ENOMEM) })
            }
            answer => posted(|| self.what("ibv_post_send"), answer),
        }
    }

    fn post_receives(&mut self, receives: &[Receive]) -> NicResult<()> {
        let what = || self.what("ibv_post_recv");
        if self.shared.is_some() {
            let reason = "its receives are shared".to_owned();
            return Err(NicError::Refused { what: what(), reason, errno: None });
        }
        // SAFETY: the queue pair is alive, and so is its device.
        let Some(post) = (unsafe { (*(*self.raw).context).ops.post_recv }) else {
            return Err(super::refused(what(), libc::EOPNOTSUPP));
        };
        let answer = requests::receive(receives, |first| {
            let mut bad = ptr::null_mut();
            // SAFETY: a chain of requests that live during the call.
            unsafe { post(self.raw, first, &mut bad) }
        });
        posted(what, answer)
    }

    fn fail(&mut self) -> NicResult<()> {
        self.modify("to error", blank(raw::QPS_ERR), 0)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is alive and destroyed once, before its queues and its domain.
        let _ = unsafe { (self.domain.device.library().functions.destroy_qp)(self.raw) };
    }
}
