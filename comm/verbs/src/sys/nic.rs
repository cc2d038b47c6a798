//! A NIC: its limits, its memory, its events.

use super::super::nic::{
    Access, CompletionQueue, Event, Limits, Memory, Nic, NicError, NicResult, Port, QueuePair,
    QueuePairOptions, ReceiveQueue, Region,
};
use super::completions::Completions;
use super::domain::{Domain, Opened, access_flags};
use super::pair::Pair;
use super::raw::{self, AsyncEvent, Mr, Qp};
use super::receives::Receives;
use super::{last_refused, ports};
use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

/// An open NIC.
pub struct RealNic {
    domain: Arc<Domain>,
}

impl RealNic {
    pub(super) fn new(device: Opened) -> NicResult<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (device.library().functions.alloc_pd)(device.raw()) };
        if raw.is_null() {
            return Err(last_refused(format!("{}: ibv_alloc_pd", device.name())));
        }
        Ok(Self { domain: Arc::new(Domain { device, raw }) })
    }

    /// Whether memory of other devices can be registered by a dmabuf's descriptor; else why not.
    ///
    /// There is no question for it: a descriptor that is none is registered, and a kernel or a
    /// driver that could do it complains of the descriptor.
    ///
    /// # Errors
    /// [`NicError::Refused`] with the reason.
    pub fn dmabuf(&self) -> NicResult<()> {
        let Err(error) = self.register_dmabuf(-1, 0, 4096, 0, 0) else { return Ok(()) };
        match error {
            NicError::Refused { errno: Some(libc::EBADF), .. } => Ok(()),
            error => Err(error),
        }
    }

    fn register_dmabuf(
        &self,
        fd: c_int,
        offset: u64,
        length: usize,
        address: u64,
        access: c_uint,
    ) -> NicResult<*mut Mr> {
        let device = &self.domain.device;
        let what = || format!("{}: registering a dmabuf of {length} bytes", device.name());
        let Some(register) = device.library().functions.reg_dmabuf_mr else {
            let reason = "libibverbs is older than 1.12 of its interface (rdma-core 34)".to_owned();
            return Err(NicError::Refused { what: what(), reason, errno: Some(libc::EOPNOTSUPP) });
        };
        // SAFETY: the domain is alive; a descriptor that is none is refused.
        let raw =
            unsafe { register(self.domain.raw, offset, length, address, fd, access as c_int) };
        if raw.is_null() { Err(last_refused(what())) } else { Ok(raw) }
    }

    /// # Safety
    /// As [`Nic::register`].
    unsafe fn register_host(
        &self,
        start: *mut u8,
        length: usize,
        access: c_uint,
    ) -> NicResult<*mut Mr> {
        let device = &self.domain.device;
        let functions = &device.library().functions;
        let domain = self.domain.raw;
        let raw = match functions.reg_mr_iova2 {
            Some(register) if access & raw::ACCESS_RELAXED_ORDERING != 0 => {
                // SAFETY: the domain is alive; the memory is the caller's word.
                unsafe { register(domain, start.cast(), length, start as u64, access) }
            }
            // A library that does not know relaxed ordering orders strictly, which is right, too.
            _ => {
                let access = access & !raw::ACCESS_RELAXED_ORDERING;
                // SAFETY: as above.
                unsafe { (functions.reg_mr)(domain, start.cast(), length, access as c_int) }
            }
        };
        if !raw.is_null() {
            return Ok(raw);
        }
        let error =
            last_refused(format!("{}: registering {length} bytes of memory", device.name()));
        Err(with_locked_limit(error))
    }
}

/// The refusal with what to do, where the limit on locked memory is the likely reason.
fn with_locked_limit(error: NicError) -> NicError {
    match error {
        NicError::Refused {
            what,
            reason,
            errno: Some(errno @ (libc::ENOMEM | libc::EAGAIN | libc::EPERM)),
        } => {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the pointer is to a struct that lives.
            let _ = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
            let limit = match limit.rlim_cur {
                libc::RLIM_INFINITY => "without a limit".to_owned(),
                bytes => format!("{bytes} bytes; raise it: ulimit -l unlimited"),
            };
            let reason = format!("{reason}; locked memory of this process is {limit}");
            NicError::Refused { what, reason, errno: Some(errno) }
        }
        error => error,
    }
}

impl Nic for RealNic {
    fn name(&self) -> &str {
        self.domain.device.name()
    }

    fn limits(&self) -> Limits {
        let attr = &self.domain.device.attr;
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        Limits {
            work_requests: count(attr.max_qp_wr),
            segments: count(attr.max_sge),
            completions: count(attr.max_cqe),
            shared_receives: if attr.max_srq > 0 { count(attr.max_srq_wr) } else { 0 },
            reads: count(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom)),
            atomics: attr.atomic_cap as u32 != raw::ATOMIC_NONE,
        }
    }

    fn port(&self, number: u8) -> NicResult<Port> {
        ports::query(&self.domain.device, number)
    }

    unsafe fn register(&self, memory: Memory<'_>, access: Access) -> NicResult<Box<dyn Region>> {
        let flags = access_flags(access);
        let (raw, address) = match memory {
            Memory::Host { start, length } => {
                // SAFETY: the memory is the caller's word.
                (unsafe { self.register_host(start, length, flags) }?, start as u64)
            }
            Memory::Dmabuf { fd, offset, length, address } => {
                (self.register_dmabuf(fd.as_raw_fd(), offset, length, address, flags)?, address)
            }
        };
        Ok(Box::new(Registered { domain: self.domain.clone(), raw, address }))
    }

    fn completion_queue(&self, depth: u32) -> NicResult<Arc<dyn CompletionQueue>> {
        let queue: Arc<dyn CompletionQueue> = Arc::new(Completions::new(&self.domain, depth)?);
        Ok(queue)
    }

    fn receive_queue(&self, depth: u32) -> NicResult<Arc<dyn ReceiveQueue>> {
        let queue: Arc<dyn ReceiveQueue> = Arc::new(Receives::new(&self.domain, depth)?);
        Ok(queue)
    }

    fn queue_pair(&self, options: &QueuePairOptions<'_>) -> NicResult<Box<dyn QueuePair>> {
        Ok(Box::new(Pair::new(&self.domain, options)?))
    }

    fn event(&self) -> NicResult<Option<Event>> {
        let device = &self.domain.device;
        let functions = &device.library().functions;
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        // SAFETY: the device is open, and its descriptor never blocks.
        if unsafe { (functions.get_async_event)(device.raw(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            let is_none =
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if is_none {
                Ok(None)
            } else {
                Err(last_refused(format!("{}: its events", device.name())))
            };
        }
        let described = describe(device, &event);
        // SAFETY: the event was got just now and is given back once.
        unsafe { (functions.ack_async_event)(&mut event) };
        Ok(Some(described))
    }
}

fn describe(device: &Opened, event: &AsyncEvent) -> Event {
    // The number is in the first four bytes of the union.
    let [a, b, c, d, ..] = event.element.to_ne_bytes();
    let port = u32::from_ne_bytes([a, b, c, d]) as u8;
    match event.event_type as u32 {
        raw::EVENT_PORT_ERR => Event::PortDown(port),
        raw::EVENT_PORT_ACTIVE => Event::PortUp(port),
        raw::EVENT_DEVICE_FATAL => Event::DeviceFatal,
        raw::EVENT_QP_FATAL | raw::EVENT_QP_REQ_ERR | raw::EVENT_QP_ACCESS_ERR => {
            // SAFETY: the event is of a queue pair, which is not destroyed before the event is
            // given back.
            Event::QueuePairFatal(unsafe { (*(event.element as *const Qp)).qp_num })
        }
        raw::EVENT_CQ_ERR => Event::CompletionsLost,
        raw::EVENT_SRQ_ERR => Event::ReceivesLost,
        _ => Event::Other(device.library().event_words(event.event_type)),
    }
}

struct Registered {
    domain: Arc<Domain>,
    raw: *mut Mr,
    address: u64,
}

// SAFETY: as for contexts; only its keys are read.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Region for Registered {
    fn address(&self) -> u64 {
        self.address
    }

    fn local_key(&self) -> u32 {
        // SAFETY: alive until `self` is dropped, and never written.
        unsafe { (*self.raw).lkey }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).rkey }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered in this domain, which lives, and forgotten once.
        let _ = unsafe { (self.domain.device.library().functions.dereg_mr)(self.raw) };
    }
}
