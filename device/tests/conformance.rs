//! The rules of the CUDA driver that this project stands on, each a test that says it. They run on
//! the software device here and on a GPU where there is one; without either, every test says so in
//! one line and passes.
//!
//! ```text
//! memory     allocations, copies, fills         capture    what a graph is made of, and what is refused meanwhile
//! streams    order, events, queries             kernels    shapes, shared memory, warps, atomics
//! words      streams that write words and wait for them, eagerly and in graphs
//! software   what only the software device shows: seeds, counts of calls, injected faults, five mutations
//! metered    likewise: sectors, bytes and bank conflicts, two mutations
//! ```

#[path = "conformance/capture.rs"]
mod capture;
#[path = "conformance/kernels.rs"]
mod kernels;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/metered.rs"]
mod metered;
#[path = "conformance/software.rs"]
mod software;
#[path = "conformance/streams.rs"]
mod streams;
#[path = "conformance/words.rs"]
mod words;

use cudarc::driver::sys::{self, CUresult as Code};
use headlong_device::cuda::testing::{self, download, upload};
use headlong_device::cuda::{
    CudaDevice, CudaStream, Define, DeviceMemory, DevicePtr, Event, Launch, Source,
};
use std::cell::RefCell;
use std::fmt::Debug;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

static KERNELS: Source =
    Source { name: "device/conformance", text: include_str!("conformance/kernels.cu") };

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Args {
    to: DevicePtr,
    from: DevicePtr,
    n: u32,
    value: u32,
}

thread_local! {
    /// What the device of this test has answered otherwise than its rule says.
    static FACTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Holds an answer of the driver against the rule. Where they differ the test continues, fails at
/// its end, and names all of them, as facts that the software device has yet to learn.
fn note<T: PartialEq + Debug>(asked: &str, found: &T, expected: &T) {
    if found != expected {
        let asked = asked.split_whitespace().collect::<Vec<_>>().join(" ");
        let fact = format!("fact: {asked} is {found:?}, the rule says {expected:?}");
        FACTS.with_borrow_mut(|facts| facts.push(fact));
    }
}

/// [`note`] of what an expression comes to.
macro_rules! says {
    ($found:expr, $expected:expr $(, $why:expr)? $(,)?) => {
        $crate::note(stringify!($found), &$found, &$expected)
    };
}
use says;

impl Drop for Rig {
    fn drop(&mut self) {
        let facts = FACTS.take();
        facts.iter().for_each(|fact| println!("{fact}"));
        assert!(std::thread::panicking() || facts.is_empty(), "{} rules differ", facts.len());
    }
}

/// The device to oneself: seeds and captures are the whole process's.
struct Rig {
    device: CudaDevice,
    first: CudaStream,
    second: CudaStream,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

fn rig() -> Option<Rig> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = testing::device()?;
    let (first, second) = (a_stream(&device), a_stream(&device));
    let rig = Rig { device, first, second, _alone: alone };
    // The kernels are loaded before anything is captured.
    let out = rig.zeros(1);
    rig.run("store", 32, args(&out, &out, 0));
    rig.scale(&rig.first, &out, &out, 0);
    rig.finish();
    Some(rig)
}

fn a_stream(device: &CudaDevice) -> CudaStream {
    CudaStream::new(device).expect("a stream")
}

impl Rig {
    fn words(&self, words: &[u32]) -> DeviceMemory {
        upload(&self.device, words).expect("an upload")
    }

    fn zeros(&self, n: usize) -> DeviceMemory {
        DeviceMemory::new(&self.device, "words", 4 * n).expect("an allocation")
    }

    fn event(&self) -> Event {
        Event::new(&self.device).expect("an event")
    }

    /// Waits for the first stream, which must have had no error.
    fn finish(&self) {
        self.first.synchronize().expect("work without an error");
    }

    /// One block of a kernel on the first stream.
    fn run(&self, entry: &'static str, threads: u32, args: Args) {
        self.run_with(&[], entry, Launch::new(1, threads), args);
    }

    fn run_with(&self, defines: &[Define], entry: &'static str, shape: Launch, args: Args) {
        self.first.run(&KERNELS, defines, entry, shape, &args);
    }

    /// `to[i] = from[i] * 3 + value`.
    fn scale(&self, on: &CudaStream, to: &DeviceMemory, from: &DeviceMemory, value: u32) {
        on.run(&KERNELS, &[], "scale", Launch::new(2, 64), &args(to, from, value));
    }
}

fn args(to: &DeviceMemory, from: &DeviceMemory, value: u32) -> Args {
    Args { to: to.ptr(), from: from.ptr(), n: (from.bytes() / 4) as u32, value }
}

fn words_of(memory: &DeviceMemory) -> Vec<u32> {
    download(memory).expect("a download")
}

/// A call of the driver's own interface, for what the crate's surface does not let through.
macro_rules! driver {
    ($call:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: handles and ranges are the test's own, or the mistake that the driver must
        // refuse.
        unsafe { sys::$call($($argument),*) }
    };
}
use driver;

fn raw(stream: &CudaStream) -> sys::CUstream {
    stream.raw().cast()
}

/// An event of the driver, without timing.
fn raw_event() -> sys::CUevent {
    let mut event = null_mut();
    assert_eq!(driver!(cuEventCreate(&mut event, 2)), Code::CUDA_SUCCESS);
    event
}

/// Runs one test of this file again, in a process of its own: for errors after which a device is of
/// no use.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", test, "--nocapture"]).env("CONFORMANCE_CHILD", test);
    command.envs(variables.iter().copied()).output().expect("this program starts")
}

/// `true` in that process.
fn is_child() -> bool {
    std::env::var_os("CONFORMANCE_CHILD").is_some()
}

/// The sanitizer that kernels run under, if any: it ends the process at a mistake that is otherwise
/// an error.
fn sanitizer() -> Option<String> {
    std::env::var("SOFTCUDA_SANITIZE").ok()
}

/// Runs the test in a process of its own, which must pass and print what is given.
fn in_a_child(test: &str, variables: &[(&str, &str)], prints: &str) {
    if testing::device().is_none() {
        return;
    }
    let output = child(test, variables);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(text.contains(prints), "`{prints}` is not in:\n{text}");
}
