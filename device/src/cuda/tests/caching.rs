//! The cache of compiled kernels: one file per instance, safe under concurrent writers, never
//! trusted when damaged.

use crate::cuda::{Compiled, Define, KernelCache, Source, build_into, compiler_version};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

static CACHED: Source = Source {
    name: "device/cached",
    text: "#ifndef N\n#define N 1\n#endif\nstruct A { u32* out; };\n\
           extern \"C\" __global__ void cached(const A a) { *a.out = N; }\n",
};

/// A folder of the test's own, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("headlong-kernels-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn is_software() -> Option<bool> {
    match compiler_version() {
        Ok((_, minor)) => Some(minor >= 1000),
        Err(error) => {
            eprintln!("skipped, because {error}");
            None
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn get(cache: &KernelCache, value: i64, software: bool) -> Compiled {
    cache.get(&CACHED, &[Define::new("N", value)], "sm_90a", software).unwrap()
}

#[test]
fn what_was_compiled_is_found_and_what_is_damaged_is_compiled_again() {
    let Some(software) = is_software() else { return };
    let folder = Folder::new("damaged");
    let cache = KernelCache { bundle: None, cache: Some(folder.0.clone()) };
    let compiled = get(&cache, 1, software);
    let [file] = files(&folder.0).try_into().unwrap();
    let written = std::fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(get(&cache, 1, software).cubin, compiled.cubin);
    assert_eq!(
        std::fs::metadata(&file).unwrap().modified().unwrap(),
        written,
        "found, not compiled"
    );
    // Cut off, and with a bit flipped.
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    flipped[40] ^= 1;
    for damaged in [&whole[..whole.len() / 2], &flipped[..], &[]] {
        std::fs::write(&file, damaged).unwrap();
        assert!(!get(&cache, 1, software).cubin.is_empty());
        assert_eq!(std::fs::read(&file).unwrap().len(), whole.len(), "written again");
    }
    // Another constant is another file.
    get(&cache, 2, software);
    assert_eq!(files(&folder.0).len(), 2);
}

#[test]
fn a_bundle_is_enough() {
    let Some(software) = is_software() else { return };
    let folder = Folder::new("bundle");
    let built = build_into(&folder.0, &CACHED, &[Define::new("N", 3)], "sm_90a").unwrap();
    let cache = KernelCache { bundle: Some(folder.0.clone()), cache: None };
    assert_eq!(get(&cache, 3, software).cubin, built.cubin);
    // A bundle for one kind of device is nothing to the other.
    let expected = if software { "sm_90a-software" } else { "sm_90a" };
    assert!(folder.0.join(expected).is_dir());
    assert_eq!(files(&folder.0).len(), 1);
}

#[test]
fn threads_that_want_one_kernel_compile_it_once() {
    let Some(software) = is_software() else { return };
    let folder = Folder::new("threads");
    let cache = KernelCache { bundle: None, cache: Some(folder.0.clone()) };
    // Each compilation ends in a file of its own, renamed over the last one.
    let seen_by = |value| {
        assert!(!get(&cache, value, software).cubin.is_empty());
        let found = files(&folder.0);
        found.iter().map(|file| std::fs::metadata(file).unwrap().ino()).collect::<Vec<_>>()
    };
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| seen_by(0))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(seen.iter().all(|files| files.len() == 1 && files == &seen[0]), "{seen:?}");
}

#[test]
fn four_processes_fill_one_users_cache() {
    if crate::cuda::testing::device().is_none() {
        return;
    }
    let folder = Folder::new("processes");
    let process = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["cuda::tests::streams::kernels_of_one_stream_run_in_order", "--exact"])
            .env("XDG_CACHE_HOME", &folder.0)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    for running in [process(), process(), process(), process()] {
        let ended = running.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }
    let [file] = files(&folder.0).try_into().unwrap();
    assert!(file.to_string_lossy().contains("headlong/kernels/sm_"), "{}", file.display());
}
