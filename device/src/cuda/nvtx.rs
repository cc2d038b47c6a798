//! Named ranges for NVIDIA's profilers, by NVTX's own protocol and with nothing linked.
//!
//! A profiler (Nsight Systems) starts the program with `NVTX_INJECTION64_PATH` set to a library of
//! its own. That library is opened here and fills a table of functions, of which two are used.
//! Without a profiler a range costs one comparison.
//!
//! Source: the header-only NVTX 3, `nvtxInit.h` and `nvtxTypes.h`. Note: not tried with a profiler
//! yet.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Functions of NVTX's core module, as many as its first version has; place 0 is no function.
const CORE_FUNCTIONS: usize = 16;
/// `nvtxRangePushA` and `nvtxRangePop` in the core module.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
/// The core module, the table of tables and the version, in NVTX's numbering.
const MODULE_CORE: u32 = 1;
const TABLE_CALLBACKS: u32 = 1;
const TABLE_VERSION: u32 = 3;

/// Filled by the profiler's library; 0 is none.
static FUNCTIONS: [AtomicUsize; CORE_FUNCTIONS] = [const { AtomicUsize::new(0) }; CORE_FUNCTIONS];

/// The library's entry: takes the function that hands out tables; 0 is a refusal.
type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;

/// A range of the calling thread, which ends when this is dropped. Ranges of a thread nest.
#[derive(Debug)]
pub struct Range(std::marker::PhantomData<*const ()>);

/// Begins a range, if a profiler listens.
#[inline]
pub fn range(name: &CStr) -> Option<Range> {
    if !is_listening() {
        return None;
    }
    let push = FUNCTIONS[RANGE_PUSH].load(Ordering::Acquire);
    if push == 0 {
        return None;
    }
    // SAFETY: the profiler put a function of this type there; it copies the name.
    unsafe {
        let push = std::mem::transmute::<usize, unsafe extern "C" fn(*const c_char) -> c_int>(push);
        push(name.as_ptr());
    }
    Some(Range(std::marker::PhantomData))
}

impl Drop for Range {
    fn drop(&mut self) {
        let pop = FUNCTIONS[RANGE_POP].load(Ordering::Acquire);
        if pop != 0 {
            // SAFETY: the profiler put a function of this type there; this thread's range began in
            // `range`.
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(pop)() };
        }
    }
}

/// Whether a profiler started this process. The first call opens its library.
pub fn is_listening() -> bool {
    static LISTENING: OnceLock<bool> = OnceLock::new();
    *LISTENING.get_or_init(|| {
        let path = std::env::var_os("NVTX_INJECTION64_PATH").unwrap_or_default();
        let Ok(path) = CString::new(path.as_encoded_bytes()) else { return false };
        !path.is_empty() && open(&path).is_some_and(install)
    })
}

fn open(path: &CStr) -> Option<Initialize> {
    // SAFETY: opening a library runs its initialisers: the profiler's, which the user started.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is open and never closed.
    let entry = unsafe { libc::dlsym(handle, c"InitializeInjectionNvtx2".as_ptr()) };
    if entry.is_null() {
        return None;
    }
    // SAFETY: the symbol of this name has this type, by NVTX's protocol.
    Some(unsafe { std::mem::transmute::<*mut c_void, Initialize>(entry) })
}

/// Lets the library fill the table.
fn install(initialize: Initialize) -> bool {
    // SAFETY: a function of the type that NVTX's protocol has; the tables it asks for are static.
    unsafe { initialize(tables) != 0 }
}

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module: extern "C" fn(u32, *mut *const Place, *mut u32) -> c_int,
}

#[repr(C)]
struct Version {
    bytes: usize,
    version: u32,
    reserved: u32,
    set: extern "C" fn(u32),
}

/// A place of the table: the address of a function pointer that the profiler sets.
#[repr(transparent)]
struct Place(*const AtomicUsize);

// SAFETY: the address of a static.
unsafe impl Sync for Place {}

static PLACES: [Place; CORE_FUNCTIONS] = {
    let mut places = [const { Place(std::ptr::null()) }; CORE_FUNCTIONS];
    let mut index = 1;
    while index < CORE_FUNCTIONS {
        places[index] = Place(&FUNCTIONS[index]);
        index += 1;
    }
    places
};

extern "C" fn tables(which: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module };
    static VERSION: Version =
        Version { bytes: size_of::<Version>(), version: 3, reserved: 0, set: version_of_profiler };
    match which {
        TABLE_CALLBACKS => (&raw const CALLBACKS).cast(),
        TABLE_VERSION => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn version_of_profiler(_version: u32) {}

extern "C" fn module(which: u32, table: *mut *const Place, len: *mut u32) -> c_int {
    if which != MODULE_CORE {
        return 0;
    }
    // SAFETY: null, or a place that the profiler wants filled.
    if let Some(table) = unsafe { table.as_mut() } {
        *table = PLACES.as_ptr();
    }
    // SAFETY: as above.
    if let Some(len) = unsafe { len.as_mut() } {
        *len = CORE_FUNCTIONS as u32 - 1;
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: `range` gives a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        SEEN.lock().unwrap().push(name);
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        SEEN.lock().unwrap().push("end".to_owned());
        0
    }

    /// What a profiler's library does, by NVTX's protocol.
    unsafe extern "C" fn profiler(tables: extern "C" fn(u32) -> *const c_void) -> c_int {
        let callbacks = tables(TABLE_CALLBACKS).cast::<Callbacks>();
        let (mut table, mut len) = (std::ptr::null(), 0);
        // SAFETY: the table of callbacks is static; the places asked for are ours.
        let known = unsafe { ((*callbacks).module)(MODULE_CORE, &mut table, &mut len) };
        assert_eq!((known, len), (1, 15));
        for (index, function) in [(RANGE_PUSH, push as *const ()), (RANGE_POP, pop as *const ())] {
            // SAFETY: fewer than `len` places, each of a static.
            unsafe { (*(*table.add(index)).0).store(function as usize, Ordering::Release) };
        }
        1
    }

    #[test]
    fn a_profiler_sees_nested_ranges_and_no_one_else_does() {
        assert!(range(c"unseen").is_none());
        assert!(install(profiler));
        // The process was not started by a profiler: what it would do is done by hand.
        let begin = |name: &CStr| {
            // SAFETY: the function that `profiler` put there.
            unsafe { push(name.as_ptr()) };
            Range(std::marker::PhantomData)
        };
        let outer = begin(c"step");
        drop(begin(c"lookup"));
        drop(outer);
        assert_eq!(*SEEN.lock().unwrap(), ["step", "lookup", "end", "end"]);
        assert_eq!(tables(7), std::ptr::null());
        assert_eq!(module(2, std::ptr::null_mut(), std::ptr::null_mut()), 0);
    }
}
