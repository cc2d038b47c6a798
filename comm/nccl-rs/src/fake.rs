//! A library in this process that does what a test's script says, for the life of a communicator
//! without a GPU.
//!
//! The id carries the script's address; the communicator is the script itself.

mod endings;
mod operations;

use crate::communicator::{Comm, UniqueId};
use crate::config::Config;
use crate::error::Result;
use crate::library::Library;
use crate::sys::{self, Code, Stream};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What NCCL answers, and what it was asked. Tests leak it: a thread that is left to itself may
/// still look.
pub(super) struct Script {
    pub init: AtomicI32,
    pub makes_none: AtomicBool,
    /// So many questions after the state are answered by "in progress".
    pub looks: AtomicI32,
    /// What is answered then.
    pub state: AtomicI32,
    pub group_end: AtomicI32,
    pub send: AtomicI32,
    /// The end of a group only returns when the communicator is aborted.
    pub is_stuck: AtomicBool,
    /// An abort never returns.
    pub aborts_hang: AtomicBool,
    pub aborted: AtomicBool,
    pub log: Mutex<Vec<String>>,
    pub settings: Mutex<Option<sys::Config>>,
    /// The devices have NVLS.
    pub has_nvls: AtomicBool,
}

pub(super) const FOREVER: i32 = i32::MAX;

impl Script {
    pub fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            init: AtomicI32::new(7),
            makes_none: AtomicBool::default(),
            looks: AtomicI32::new(3),
            state: AtomicI32::default(),
            group_end: AtomicI32::default(),
            send: AtomicI32::default(),
            is_stuck: AtomicBool::default(),
            aborts_hang: AtomicBool::default(),
            aborted: AtomicBool::default(),
            log: Mutex::default(),
            settings: Mutex::default(),
            has_nvls: AtomicBool::new(true),
        }))
    }

    pub fn init(&'static self, library: &Arc<Library>, config: Config) -> Result<Comm> {
        let mut bytes = [0; UniqueId::BYTES];
        bytes[..8].copy_from_slice(&(&raw const *self as usize).to_le_bytes());
        Comm::init(library, &UniqueId::from_bytes(bytes), 1, 3, config)
    }

    /// How often it was asked for something; with the thread that did it, where that is not the
    /// test's own.
    pub fn count(&self, entry: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| *line == entry).count()
    }

    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn note(&self, entry: impl Into<String>) {
        let thread = std::thread::current();
        let by = if thread.name() == Some("nccl watchdog") { " by the watchdog" } else { "" };
        self.log.lock().unwrap().push(format!("{}{by}", entry.into()));
    }
}

/// Short times, so that tests are short; the deadline is long where a test must not meet it.
pub(super) fn quick(deadline_ms: u64) -> Config {
    Config {
        deadline: Duration::from_millis(deadline_ms),
        watch_every: Duration::from_millis(10),
        end_within: Duration::from_millis(300),
        ..Config::default()
    }
}

/// The fake of version `number`, with what came later where `has_later`.
pub(super) fn library(number: c_int, has_later: bool) -> Arc<Library> {
    let lookup = |name: &CStr| {
        let name = name.to_str().unwrap();
        match name {
            "ncclGetVersion" => match number {
                21903 => version::<21903> as *mut c_void,
                22809 => version::<22809> as *mut c_void,
                22902 => version::<22902> as *mut c_void,
                _ => version::<23100> as *mut c_void,
            },
            "ncclCommQueryProperties" if number >= 22902 => properties as *mut c_void,
            "ncclAlltoAll" if has_later => gather::<1> as *mut c_void,
            _ => always(name),
        }
    };
    // SAFETY: the functions below have the types of NCCL's.
    Arc::new(unsafe { Library::from_symbols("fake".into(), lookup) }.unwrap())
}

fn always(name: &str) -> *mut c_void {
    match name {
        "ncclGetUniqueId" => unique_id as *mut c_void,
        "ncclGetErrorString" => error_string as *mut c_void,
        "ncclGetLastError" => last_error as *mut c_void,
        "ncclCommInitRankConfig" => init as *mut c_void,
        "ncclCommFinalize" => finalize as *mut c_void,
        "ncclCommDestroy" => destroy as *mut c_void,
        "ncclCommAbort" => abort as *mut c_void,
        "ncclCommGetAsyncError" => async_error as *mut c_void,
        "ncclGroupStart" => group_start as *mut c_void,
        "ncclGroupEnd" => group_end as *mut c_void,
        "ncclSend" => message::<true> as *mut c_void,
        "ncclRecv" => message::<false> as *mut c_void,
        "ncclAllReduce" => sum as *mut c_void,
        "ncclReduce" => sum_for_one as *mut c_void,
        "ncclAllGather" => gather::<0> as *mut c_void,
        "ncclBroadcast" => rooted as *mut c_void,
        _ => null_mut(),
    }
}

fn script(comm: sys::Comm) -> &'static Script {
    // SAFETY: every communicator of the fake is a script, and scripts are leaked.
    unsafe { &*comm.cast::<Script>() }
}

thread_local! {
    /// The communicator of the thread's last call: the end of a group has no other.
    static LAST: std::cell::Cell<sys::Comm> = const { std::cell::Cell::new(null_mut()) };
}

extern "C" fn version<const NUMBER: c_int>(number: *mut c_int) -> Code {
    // SAFETY: NCCL's contract: a place for an int.
    unsafe { *number = NUMBER };
    Code::SUCCESS
}

extern "C" fn unique_id(_: *mut sys::UniqueId) -> Code {
    Code::SUCCESS
}

extern "C" fn error_string(_: Code) -> *const c_char {
    c"some error".as_ptr()
}

extern "C" fn last_error(_: sys::Comm) -> *const c_char {
    c"the fake says so".as_ptr()
}

extern "C" fn init(
    made: *mut sys::Comm,
    _: c_int,
    id: sys::UniqueId,
    _: c_int,
    config: *mut sys::Config,
) -> Code {
    let bytes = std::array::from_fn(|index| id.0[index] as u8);
    let comm = usize::from_le_bytes(bytes) as sys::Comm;
    let script = script(comm);
    script.note("init");
    // SAFETY: NCCL's contract: a config that lives during the call.
    *script.settings.lock().unwrap() = Some(unsafe { (*config).clone() });
    if !script.makes_none.load(SeqCst) {
        LAST.set(comm);
        // SAFETY: NCCL's contract: a place for a communicator.
        unsafe { *made = comm };
    }
    Code(script.init.load(SeqCst))
}

extern "C" fn finalize(comm: sys::Comm) -> Code {
    script(comm).note("finalize");
    Code::IN_PROGRESS
}

extern "C" fn destroy(comm: sys::Comm) -> Code {
    script(comm).note("destroy");
    Code::SUCCESS
}

extern "C" fn abort(comm: sys::Comm) -> Code {
    let script = script(comm);
    script.note("abort");
    script.aborted.store(true, SeqCst);
    while script.aborts_hang.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Code::SUCCESS
}

extern "C" fn async_error(comm: sys::Comm, state: *mut Code) -> Code {
    let script = script(comm);
    assert!(!script.aborted.load(SeqCst), "asked after its abort");
    let looks = script.looks.load(SeqCst);
    if looks != FOREVER {
        script.looks.store((looks - 1).max(0), SeqCst);
    }
    let answer = if looks > 0 { Code::IN_PROGRESS } else { Code(script.state.load(SeqCst)) };
    // SAFETY: NCCL's contract: a place for a code.
    unsafe { *state = answer };
    Code::SUCCESS
}

extern "C" fn properties(comm: sys::Comm, properties: *mut sys::Properties) -> Code {
    script(comm).note("properties");
    // SAFETY: NCCL's contract: properties that were initialised.
    unsafe { (*properties).multimem = u8::from(script(comm).has_nvls.load(SeqCst)) };
    Code::SUCCESS
}

extern "C" fn group_start() -> Code {
    Code::SUCCESS
}

extern "C" fn group_end() -> Code {
    let script = script(LAST.get());
    script.note("end");
    while script.is_stuck.load(SeqCst) && !script.aborted.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Code(script.group_end.load(SeqCst))
}

fn listed(comm: sys::Comm, entry: String) -> Code {
    LAST.set(comm);
    script(comm).note(entry);
    Code(script(comm).send.load(SeqCst))
}

extern "C" fn message<const SENDS: bool>(
    at: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: sys::Comm,
    _: Stream,
) -> Code {
    let what = if SENDS { "send" } else { "receive" };
    listed(comm, format!("{what} {count} of {kind} at {} with {peer}", at as usize))
}

extern "C" fn sum(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: sys::Comm,
    _: Stream,
) -> Code {
    listed(comm, format!("all_reduce {count} of {kind} op {op}"))
}

extern "C" fn sum_for_one(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    root: c_int,
    comm: sys::Comm,
    _: Stream,
) -> Code {
    listed(comm, format!("reduce {count} of {kind} op {op} root {root}"))
}

extern "C" fn gather<const KIND: usize>(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    comm: sys::Comm,
    _: Stream,
) -> Code {
    listed(comm, format!("{} {count} of {kind}", ["all_gather", "all_to_all"][KIND]))
}

extern "C" fn rooted(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: sys::Comm,
    _: Stream,
) -> Code {
    listed(comm, format!("broadcast {count} of {kind} root {root}"))
}
