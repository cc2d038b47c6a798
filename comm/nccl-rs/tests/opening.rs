//! Finding and opening: what is missing is named, and where it was looked for. Small libraries are
//! made with the C compiler.

use nccl_rs::{Comm, Config, Data, DataType, Error, Library, OLDEST, Search, UniqueId};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Functions that every stand-in has; `NUMBER` is its version.
const BASICS: &str = r#"
int ncclGetVersion(int* version) { *version = NUMBER; return 0; }
const char* ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "some error"; }
const char* ncclGetLastError(void* comm) { return "the stand-in refuses"; }
"#;

/// All the others: they succeed, except for what a test wants to see.
const REST: &str = r#"
typedef struct { char bytes[128]; } Id;
static int comm, aborts;
int ncclGetUniqueId(Id* id) { for (int i = 0; i < 128; i++) id->bytes[i] = (char)i; return 0; }
int ncclCommInitRankConfig(void** made, int ranks, Id id, int rank, int* config) {
    if (id.bytes[127] != 127) return 4;
    *made = &comm;
    return ranks == 9 ? 5 : ranks == 8 ? 100 + aborts : 7;
}
int ncclCommFinalize(void* c) { return 0; }
int ncclCommDestroy(void* c) { return 0; }
int ncclCommAbort(void* c) { aborts++; return 0; }
int ncclCommGetAsyncError(void* c, int* state) {
    static int looks;
    *state = STATE;
    if (*state == 7 && ++looks % 3 == 0 && !NEVER) *state = 0;
    return 0;
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 7; }
int ncclSend(void) { return 0; }
int ncclRecv(void) { return 5; }
int ncclAllReduce(void) { return 0; }
int ncclReduce(void) { return 0; }
int ncclAllGather(void) { return 0; }
int ncclBroadcast(void) { return 0; }
"#;

/// A stand-in for `libnccl.so.2` in `folder`; None, with a line, without a C compiler.
fn stand_in(folder: &Path, source: &str, defines: &[&str]) -> Option<Search> {
    let file = folder.join("nccl.c");
    std::fs::write(&file, source).expect("a temporary folder can be written");
    let library = folder.join("libnccl.so.2");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .args(defines)
        .arg(file)
        .status();
    match built {
        Ok(status) if status.success() => Some(Search::in_directories([folder]).and_nowhere_else()),
        _ => {
            println!("skipped, because cc builds no shared library");
            None
        }
    }
}

fn whole(folder: &Path, defines: &[&str]) -> Option<Arc<Library>> {
    let mut all = vec!["-DNUMBER=22809"];
    all.extend(defines);
    let search = stand_in(folder, &format!("{BASICS}{REST}"), &all)?;
    Some(Library::open(&search).expect("the stand-in has every function"))
}

fn comm(library: &Arc<Library>, num_ranks: usize) -> nccl_rs::Result<Comm> {
    let id = UniqueId::new(library)?;
    let config = Config { deadline: Duration::from_millis(60), ..Config::default() };
    Comm::init(library, &id, 1, num_ranks, config)
}

#[test]
fn an_absent_library_is_an_error_that_names_every_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libnccl.so.2"), "no library at all").unwrap();
    let search =
        Search::in_directories([Path::new("/nowhere/lib"), folder.path()]).and_nowhere_else();
    let error = Library::open(&search).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NotFound { .. }), "{text}");
    assert!(text.contains("/nowhere/lib/libnccl.so.2 (no such file)"), "{text}");
    assert!(text.contains(&format!("{}/libnccl.so.2 (", folder.path().display())), "{text}");
    assert!(text.contains("file too short") || text.contains("invalid ELF header"), "{text}");
}

#[test]
fn an_old_library_is_refused_by_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let Some(search) = stand_in(folder.path(), BASICS, &["-DNUMBER=21805"]) else { return };
    let error = Library::open(&search).unwrap_err();
    assert!(matches!(
        &error, Error::TooOld { found, needed, .. } if *needed == OLDEST && found.minor == 18
    ));
    assert!(
        error.to_string().ends_with("NCCL 2.18.5 is too old, 2.19.0 or newer is needed"),
        "{error}"
    );
}

#[test]
fn a_missing_function_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(search) = stand_in(folder.path(), BASICS, &["-DNUMBER=22809"]) else { return };
    let error = Library::open(&search).unwrap_err();
    assert!(
        matches!(&error, Error::Broken { reason, .. } if reason == "it has no ncclGetUniqueId"),
        "{error}"
    );
}

#[test]
fn calls_in_progress_are_waited_for_and_refusals_have_the_librarys_words() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = whole(folder.path(), &["-DSTATE=7", "-DNEVER=0"]) else { return };
    assert_eq!(library.version().to_string(), "2.28.9");
    let one = comm(&library, 2).unwrap();
    one.check().unwrap();
    let data = Data { from: 0, to: 0, count: 8, kind: DataType::F32, stream: std::ptr::null_mut() };
    // SAFETY: the stand-in looks at neither address nor stream.
    one.group(|group| unsafe { group.send(data, 0) }).unwrap();
    // SAFETY: as above.
    let refused = one.group(|group| unsafe { group.receive(data, 0) }).unwrap_err();
    assert_eq!(refused.to_string(), "ncclRecv: invalid usage (NCCL error 5): the stand-in refuses");
    let refused = comm(&library, 9).unwrap_err();
    assert!(
        matches!(refused, Error::Call { function: "ncclCommInitRankConfig", code: 5, .. }),
        "{refused}"
    );
    one.close().unwrap();
}

#[test]
fn a_communicator_ends_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = whole(folder.path(), &["-DSTATE=0", "-DNEVER=0"]) else { return };
    let aborted = comm(&library, 2).unwrap();
    aborted.abort().unwrap();
    aborted.abort().unwrap();
    assert_eq!(aborted.check(), Err(Error::Aborted { function: "ncclCommGetAsyncError" }));
    assert!(matches!(aborted.group(|_| Ok(())), Err(Error::Aborted { .. })));
    drop(aborted);
    drop(comm(&library, 2).unwrap());
    comm(&library, 2).unwrap().close().unwrap();
    // The stand-in tells eight ranks its number of aborts: one by hand, one by dropping, none by
    // closing.
    let counted = comm(&library, 8).unwrap_err();
    assert!(matches!(counted, Error::Call { code: 102, .. }), "{counted}");
}

#[test]
fn ranks_that_never_come_end_the_wait_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = whole(folder.path(), &["-DSTATE=7", "-DNEVER=1"]) else { return };
    let error = comm(&library, 2).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { function: "ncclCommInitRankConfig", waited_ms: 60.. }),
        "{error}"
    );
}

#[test]
fn what_went_wrong_later_is_found_by_looking() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = whole(folder.path(), &["-DSTATE=6", "-DNEVER=0"]) else { return };
    let error = comm(&library, 2).unwrap_err();
    assert!(error.is_remote(), "{error}");
}

#[test]
fn the_real_library_answers_without_a_gpu() {
    let library = match Library::open(&Search::default()) {
        Ok(library) => library,
        Err(error) => return println!("skipped, because {error}"),
    };
    println!("NCCL {} from {}", library.version(), library.path().display());
    assert!(library.version() >= OLDEST);
    match UniqueId::new(&library) {
        Ok(id) => assert_ne!(id.to_bytes(), [0; UniqueId::BYTES]),
        // A machine without any network interface.
        Err(error) => {
            assert!(matches!(error, Error::Call { function: "ncclGetUniqueId", .. }), "{error}")
        }
    }
}
