//! A context with one worker, and what it has made: endpoints and requests.
//!
//! **Threads.** Any thread may call, one at a time: every call that reaches UCX takes the worker by
//! `&mut`. An endpoint and a request are used with the worker that has made them, and end before
//! it.

use super::library::Library;
use super::raw::{
    CLOSE_FORCE, EP_PARAM_ERR_HANDLER, EP_PARAM_ERR_HANDLING_MODE, EP_PARAM_REMOTE_ADDRESS,
    ERR_HANDLING_PEER, EpParams, FEATURE_TAG, FEATURE_WAKEUP, IN_PROGRESS, LAST_ERROR, OK, OLDEST,
    OP_ATTR_FLAGS, OP_ATTR_MEMORY_TYPE, OP_ATTR_NO_IMMEDIATE, PARAM_ESTIMATED_NUM_EPS,
    PARAM_FEATURES, PARAM_TAG_SENDER_MASK, Params, RequestParam, SERIALIZED, Status, TagReceived,
    WORKER_PARAM_THREAD_MODE, WorkerParams,
};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicI8, Ordering};

/// Why a call or a request has failed: UCX's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwell(pub(crate) Status);

/// Something that UCX is doing; freed by [`Worker::free`] once it is complete.
#[derive(Debug)]
pub(crate) struct Request(NonNull<c_void>);

/// The way to one peer.
pub(crate) struct Endpoint {
    handle: NonNull<c_void>,
    /// The status with which it has broken, written by UCX inside of its calls; 0 before.
    broken: Box<AtomicI8>,
}

/// The worker of a rank, in a context of its own.
pub(crate) struct Worker {
    library: Library,
    context: NonNull<c_void>,
    worker: NonNull<c_void>,
    moves: u32,
}

// SAFETY: the worker is made for any thread, one at a time.
unsafe impl Send for Worker {}
// SAFETY: used with its worker only, which one thread at a time has.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Send for Request {}

/// Called by UCX inside of a call of this process when an endpoint breaks.
unsafe extern "C" fn note_broken(argument: *mut c_void, _endpoint: *mut c_void, status: Status) {
    // SAFETY: the flag of the endpoint, which outlives it.
    let broken = unsafe { &*argument.cast::<AtomicI8>() };
    broken.store(status, Ordering::Relaxed);
}

impl Endpoint {
    /// Why it leads nowhere any more.
    pub(crate) fn check(&self) -> Result<(), Unwell> {
        match self.broken.load(Ordering::Relaxed) {
            OK => Ok(()),
            status => Err(Unwell(status)),
        }
    }
}

fn checked(status: Status) -> Result<(), Unwell> {
    if status == OK { Ok(()) } else { Err(Unwell(status)) }
}

/// What a call has given that may take longer: nothing to wait for, a request, or an error.
fn request(answer: *mut c_void) -> Result<Option<Request>, Unwell> {
    // Note: the last hundred addresses are errors, as in UCX's own macros.
    match answer as isize {
        status if (isize::from(LAST_ERROR)..0).contains(&status) => Err(Unwell(status as Status)),
        _ => Ok(NonNull::new(answer).map(Request)),
    }
}

impl Worker {
    /// A context and its worker, for about `num_peers` endpoints; `sender_mask` has the bits of a
    /// tag that say who sends. Settings are UCX's own, from its environment.
    ///
    /// # Errors
    /// What UCX refuses, in its words.
    pub(crate) fn open(
        library: Library,
        num_peers: usize,
        sender_mask: u64,
    ) -> Result<Self, String> {
        let refused = |library: &Library, what: &str, Unwell(status)| {
            format!("UCX {}: no {what}: {}", library.version(), library.words(status))
        };
        let params = Params {
            field_mask: PARAM_FEATURES | PARAM_TAG_SENDER_MASK | PARAM_ESTIMATED_NUM_EPS,
            features: FEATURE_TAG | FEATURE_WAKEUP,
            request_size: 0,
            request_init: null(),
            request_cleanup: null(),
            tag_sender_mask: sender_mask,
            mt_workers_shared: 0,
            estimated_num_eps: num_peers,
            estimated_num_ppn: 0,
            name: null(),
        };
        let config = Self::settings(&library);
        let mut context = null_mut();
        let init = library.functions.init;
        // SAFETY: parameters with the fields that their mask names, settings or none, and a place
        // for the answer.
        let status = unsafe { init(OLDEST.0, OLDEST.1, &params, config, &mut context) };
        if !config.is_null() {
            // SAFETY: as it was given, once; the context has its own.
            unsafe { (library.functions.config_release)(config) };
        }
        checked(status).map_err(|unwell| refused(&library, "context", unwell))?;
        let context = NonNull::new(context).ok_or("UCX has given no context")?;
        let params = WorkerParams {
            field_mask: WORKER_PARAM_THREAD_MODE,
            thread_mode: SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: null(),
            event_fd: 0,
            flags: 0,
            name: null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut worker = null_mut();
        let create = library.functions.worker_create;
        // SAFETY: the context is open; as above.
        let status = unsafe { create(context.as_ptr(), &params, &mut worker) };
        let made = checked(status).map_err(|unwell| refused(&library, "worker", unwell));
        let worker = made.and_then(|()| NonNull::new(worker).ok_or("UCX: no worker".to_owned()));
        let worker = worker.inspect_err(|_| {
            // SAFETY: nothing has been made of the context.
            unsafe { (library.functions.cleanup)(context.as_ptr()) }
        })?;
        Ok(Self { library, context, worker, moves: 0 })
    }

    /// UCX's own settings, with its shared memory among what notices that a peer is gone: else UCX
    /// takes TCP between processes of one machine. Null: what it has by itself.
    fn settings(library: &Library) -> *mut c_void {
        let functions = &library.functions;
        let mut config = null_mut();
        // SAFETY: no prefix, no file, and a place for the answer.
        if unsafe { (functions.config_read)(null(), null(), &mut config) } != OK {
            return null_mut();
        }
        // Note: refused where UCX has no such setting; then it takes TCP.
        // SAFETY: the settings that were read, and two texts.
        unsafe { (functions.config_modify)(config, c"MM_ERROR_HANDLING".as_ptr(), c"y".as_ptr()) };
        config
    }

    /// UCX's words for what has gone wrong.
    pub(crate) fn words(&self, Unwell(status): Unwell) -> String {
        format!("UCX: {}", self.library.words(status))
    }

    /// What a peer needs to reach this worker.
    pub(crate) fn address(&mut self) -> Result<Vec<u8>, Unwell> {
        let (mut address, mut length) = (null_mut(), 0);
        let worker = self.worker.as_ptr();
        let functions = &self.library.functions;
        // SAFETY: the worker is open; places for both answers.
        checked(unsafe { (functions.worker_get_address)(worker, &mut address, &mut length) })?;
        // SAFETY: UCX has put so many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) }.to_vec();
        // SAFETY: as it was given, once.
        unsafe { (functions.worker_release_address)(worker, address) };
        Ok(bytes)
    }

    /// Moves what can be moved.
    pub(crate) fn progress(&mut self) {
        // SAFETY: the worker is open, and no one else calls it.
        let moved = unsafe { (self.library.functions.worker_progress)(self.worker.as_ptr()) };
        self.moves = self.moves.wrapping_add(u32::from(moved > 0));
    }

    /// Counts the calls of [`Worker::progress`] that have moved something.
    pub(crate) fn moves(&self) -> u32 {
        self.moves
    }

    /// What can be read when there is something to do, once [`Worker::arm`] has been called.
    ///
    /// # Errors
    /// What UCX refuses.
    pub(crate) fn events(&mut self) -> Result<OwnedFd, String> {
        let (get, mut fd) = (self.library.functions.worker_get_efd, -1);
        // SAFETY: the worker is open, and a place for the answer.
        checked(unsafe { get(self.worker.as_ptr(), &mut fd) })
            .map_err(|unwell| self.words(unwell))?;
        // SAFETY: the descriptor is open, as long as the worker is.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        borrowed.try_clone_to_owned().map_err(|error| error.to_string())
    }

    /// From now on, the descriptor shows what comes; false: something has come already.
    pub(crate) fn arm(&mut self) -> bool {
        // SAFETY: the worker is open.
        unsafe { (self.library.functions.worker_arm)(self.worker.as_ptr()) == OK }
    }

    /// The way to the worker with this address.
    pub(crate) fn endpoint(&mut self, address: &[u8]) -> Result<Endpoint, Unwell> {
        let broken = Box::new(AtomicI8::new(OK));
        let params = EpParams {
            field_mask: EP_PARAM_REMOTE_ADDRESS | EP_PARAM_ERR_HANDLING_MODE | EP_PARAM_ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: ERR_HANDLING_PEER,
            err_handler: Some(note_broken),
            err_handler_argument: (&raw const *broken).cast_mut().cast(),
            user_data: null(),
            flags: 0,
            sockaddr: [0; 2],
            conn_request: null(),
            name: null(),
            local_sockaddr: [0; 2],
        };
        let mut handle = null_mut();
        let create = self.library.functions.ep_create;
        // SAFETY: the worker is open, the parameters have the fields that their mask names, and the
        // flag lives as long as the endpoint.
        checked(unsafe { create(self.worker.as_ptr(), &params, &mut handle) })?;
        let handle = NonNull::new(handle).expect("an endpoint that UCX has made is somewhere");
        Ok(Endpoint { handle, broken })
    }

    /// Sends `length` bytes; none: they may be written again already.
    ///
    /// # Safety
    /// The bytes stay where they are, unchanged, until the request is complete.
    pub(crate) unsafe fn send(
        &mut self,
        endpoint: &Endpoint,
        bytes: *const u8,
        length: usize,
        tag: u64,
    ) -> Result<Option<Request>, Unwell> {
        const PARAM: RequestParam = RequestParam::new(OP_ATTR_MEMORY_TYPE, 0);
        let (send, endpoint) = (self.library.functions.tag_send, endpoint.handle.as_ptr());
        // SAFETY: the endpoint is open; the bytes stay, by the contract.
        request(unsafe { send(endpoint, bytes.cast(), length, tag, &PARAM) })
    }

    /// Makes room for a message with this tag, of at most `length` bytes.
    ///
    /// # Safety
    /// The room is UCX's alone until the request is complete.
    pub(crate) unsafe fn receive(
        &mut self,
        room: *mut u8,
        length: usize,
        tag: u64,
    ) -> Result<Request, Unwell> {
        const PARAM: RequestParam =
            RequestParam::new(OP_ATTR_MEMORY_TYPE | OP_ATTR_NO_IMMEDIATE, 0);
        let (receive, worker) = (self.library.functions.tag_receive, self.worker.as_ptr());
        // SAFETY: the worker is open; the room is UCX's, by the contract.
        let answer = unsafe { receive(worker, room.cast(), length, tag, u64::MAX, &PARAM) };
        Ok(request(answer)?.expect("a request was asked for, even where it is complete at once"))
    }

    /// Whether a request is complete.
    pub(crate) fn is_complete(&self, request: &Request) -> Result<bool, Unwell> {
        // SAFETY: the request is not freed.
        match unsafe { (self.library.functions.request_status)(request.0.as_ptr()) } {
            IN_PROGRESS => Ok(false),
            status => checked(status).map(|()| true),
        }
    }

    /// The bytes that have come, once a receive is complete.
    pub(crate) fn received(&self, request: &Request) -> Result<Option<usize>, Unwell> {
        let mut info = TagReceived::default();
        let test = self.library.functions.tag_receive_test;
        // SAFETY: the request of a receive, not freed, and a place for the answer.
        match unsafe { test(request.0.as_ptr(), &mut info) } {
            IN_PROGRESS => Ok(None),
            status => checked(status).map(|()| Some(info.length)),
        }
    }

    /// Asks for a request to end; it is complete some calls of [`Worker::progress`] later.
    pub(crate) fn cancel(&mut self, request: &Request) {
        // SAFETY: the worker is open, and the request not freed.
        unsafe { (self.library.functions.request_cancel)(self.worker.as_ptr(), request.0.as_ptr()) }
    }

    /// Gives a request back, complete or in error.
    pub(crate) fn free(&mut self, request: Request) {
        // SAFETY: made by this worker, and freed once, because it is taken.
        unsafe { (self.library.functions.request_free)(request.0.as_ptr()) }
    }

    /// Lets everything that was sent leave; none: it has.
    pub(crate) fn flush(&mut self) -> Result<Option<Request>, Unwell> {
        const PARAM: RequestParam = RequestParam::new(0, 0);
        // SAFETY: the worker is open.
        request(unsafe { (self.library.functions.worker_flush)(self.worker.as_ptr(), &PARAM) })
    }

    /// Closes an endpoint without a word of its peer: what it still does ends in error. Its flag
    /// must outlive the request, if there is one.
    pub(crate) fn close(&mut self, endpoint: &Endpoint) -> Result<Option<Request>, Unwell> {
        const PARAM: RequestParam = RequestParam::new(OP_ATTR_FLAGS, CLOSE_FORCE);
        // SAFETY: the endpoint is open; its owner closes it once.
        request(unsafe { (self.library.functions.ep_close)(endpoint.handle.as_ptr(), &PARAM) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: its owner has ended what was made of it, and no one calls it any more.
        unsafe { (self.library.functions.worker_destroy)(self.worker.as_ptr()) };
        // SAFETY: its only worker is gone.
        unsafe { (self.library.functions.cleanup)(self.context.as_ptr()) };
    }
}
