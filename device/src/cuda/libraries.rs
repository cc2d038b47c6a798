//! Finding CUDA's libraries at run time: nothing of CUDA is linked, and a machine without it runs
//! everything else.
//!
//! cudarc opens libraries by name and panics when it finds none, so each library is opened here
//! first, by absolute path and for all to see; cudarc then gets the one that is already open. The
//! order of search: the folders of `HEADLONG_CUDA_LIBS`, the system's names (`LD_LIBRARY_PATH`,
//! `ld.so.cache`), `/usr/local/cuda/lib64`, and the NVIDIA wheels of the Pythons in `PATH`.

use crate::error::{DeviceError, Result};
use std::ffi::{CStr, CString, OsStr, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Folders to look in first, separated by colons. It finds libraries and changes no result.
pub const SEARCH_VARIABLE: &str = "HEADLONG_CUDA_LIBS";

/// Where toolkits are installed by default.
const TOOLKIT_FOLDERS: [&str; 2] =
    ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"];

/// One of CUDA's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The driver: `libcuda`.
    Driver,
    /// The run-time compiler: `libnvrtc`.
    Nvrtc,
    /// Matrix products: `libcublasLt`.
    CublasLt,
    /// Collectives between GPUs: `libnccl`.
    Nccl,
}

/// A library that was looked for.
#[derive(Debug, Clone)]
pub struct Found {
    /// The library's usual name.
    pub name: &'static str,
    /// The file that is open, or why there is none.
    pub path: std::result::Result<PathBuf, String>,
}

/// An open library: its handle for `dlsym`, and its file.
#[derive(Debug)]
struct Opened {
    handle: usize,
    path: PathBuf,
}

impl Library {
    /// All, in the order of reports.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Nccl];

    /// The library's usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda",
            Library::Nvrtc => "libnvrtc",
            Library::CublasLt => "libcublasLt",
            Library::Nccl => "libnccl",
        }
    }

    /// File names, the preferred one first, and a symbol every version has.
    const fn names(self) -> (&'static [&'static str], &'static CStr) {
        match self {
            Library::Driver => (&["libcuda.so.1"], c"cuInit"),
            Library::Nvrtc => (&["libnvrtc.so.13", "libnvrtc.so.12"], c"nvrtcVersion"),
            Library::CublasLt => {
                (&["libcublasLt.so.13", "libcublasLt.so.12"], c"cublasLtGetVersion")
            }
            Library::Nccl => (&["libnccl.so.2"], c"ncclGetVersion"),
        }
    }

    /// The same, those first that a driver of this version runs: code and libraries of CUDA 13 are
    /// not for drivers of CUDA 12.
    fn names_for(self, driver: Option<(u32, u32)>) -> Vec<&'static str> {
        let mut names = self.names().0.to_vec();
        if driver.is_some_and(|(major, _)| major < 13) {
            names.reverse();
        }
        names
    }

    fn slot(self) -> &'static OnceLock<std::result::Result<Opened, String>> {
        static SLOTS: [OnceLock<std::result::Result<Opened, String>>; 4] =
            [const { OnceLock::new() }; 4];
        &SLOTS[self as usize]
    }

    fn opened(self) -> std::result::Result<&'static Opened, &'static String> {
        self.slot().get_or_init(|| self.open()).as_ref()
    }

    /// Opens the library, once per process, and says which file it is.
    pub fn find(self) -> Found {
        Found {
            name: self.name(),
            path: self.opened().map(|o| o.path.clone()).map_err(String::clone),
        }
    }

    /// Opens the library, or says why it cannot be had.
    pub fn require(self) -> Result<()> {
        self.opened().map(drop).map_err(|reason| self.missing(reason))
    }

    fn missing(self, reason: &str) -> DeviceError {
        DeviceError::Unavailable { device: "cuda".to_owned(), reason: reason.to_owned() }
    }

    /// The address of a symbol of the open library.
    pub fn symbol(self, name: &CStr) -> Result<*mut c_void> {
        let opened = self.opened().map_err(|reason| self.missing(reason))?;
        // SAFETY: the handle was returned by `dlopen` and is never closed.
        let address = unsafe { libc::dlsym(opened.handle as *mut c_void, name.as_ptr()) };
        if address.is_null() {
            let reason = format!(
                "{} at {} has no {}",
                self.name(),
                opened.path.display(),
                name.to_string_lossy()
            );
            return Err(self.missing(&reason));
        }
        Ok(address)
    }

    fn open(self) -> std::result::Result<Opened, String> {
        let driver = if self == Library::Driver { None } else { driver_version() };
        let (names, (_, probe)) = (self.names_for(driver), self.names());
        let mut tried = Vec::new();
        for candidate in self.candidates(&names) {
            match open_file(&candidate) {
                Ok(handle) => return self.opened_as(handle, &candidate, probe),
                Err(reason) if candidate.is_absolute() => tried.push(reason),
                Err(_) => {}
            }
        }
        let none = listed_folders().into_iter().filter(|folder| !folder.is_dir());
        tried.extend(none.map(|it| format!("{SEARCH_VARIABLE}: {} is no folder", it.display())));
        let tried =
            if tried.is_empty() { String::new() } else { format!(" ({})", tried.join("; ")) };
        Err(format!(
            "{} is not among the system's libraries, in {SEARCH_VARIABLE}, a CUDA toolkit or a \
             Python's NVIDIA wheels{tried}",
            names[0]
        ))
    }

    /// Files and names to try, in order.
    fn candidates(self, names: &[&str]) -> Vec<PathBuf> {
        let in_folder = |folder: PathBuf| {
            names.iter().map(move |name| folder.join(name)).filter(|file| file.exists())
        };
        let mut candidates: Vec<PathBuf> =
            listed_folders().into_iter().flat_map(in_folder).collect();
        candidates.extend(names.iter().map(PathBuf::from));
        if self != Library::Driver {
            // The driver comes with the kernel module; a copy in a toolkit is a stub.
            candidates.extend(TOOLKIT_FOLDERS.iter().map(PathBuf::from).flat_map(in_folder));
            candidates.extend(wheel_folders().into_iter().flat_map(in_folder));
        }
        candidates
    }

    fn opened_as(
        self,
        handle: usize,
        candidate: &Path,
        probe: &CStr,
    ) -> std::result::Result<Opened, String> {
        // SAFETY: the handle is open; the name is a C string.
        let address = unsafe { libc::dlsym(handle as *mut c_void, probe.as_ptr()) };
        if address.is_null() {
            return Err(format!("{} is not {}", candidate.display(), self.name()));
        }
        let path = file_of(address).unwrap_or_else(|| candidate.to_owned());
        if self == Library::Nvrtc {
            open_builtins(&path);
        }
        let same = self.in_cudarc(probe).is_none_or(|theirs| theirs == address);
        if same { Ok(Opened { handle, path }) } else { Err(self.not_the_same(&path, probe)) }
    }

    /// The address of `symbol` in the library that cudarc opens by name; null where it finds none,
    /// `None` where it is not asked for this library.
    fn in_cudarc(self, symbol: &CStr) -> Option<*mut c_void> {
        use cudarc::{cublaslt, driver, nvrtc};
        // SAFETY: opens the library, which is open already, and closes it again.
        let present = unsafe {
            match self {
                Library::Driver => driver::sys::is_culib_present(),
                Library::Nvrtc => nvrtc::sys::is_culib_present(),
                Library::CublasLt => cublaslt::sys::is_culib_present(),
                Library::Nccl => return None,
            }
        };
        if !present {
            return Some(std::ptr::null_mut());
        }
        // SAFETY: the library is present, by the line above.
        let library = unsafe {
            match self {
                Library::Nvrtc => nvrtc::sys::culib(),
                Library::CublasLt => cublaslt::sys::culib(),
                Library::Driver | Library::Nccl => driver::sys::culib(),
            }
        };
        // SAFETY: only the address is used, as no type in particular.
        let found = unsafe { library.get::<*mut c_void>(symbol.to_bytes_with_nul()) };
        Some(found.map_or(std::ptr::null_mut(), |symbol| *symbol))
    }

    /// cudarc asks for `libcuda.so` before `libcuda.so.1`: where such a file lies in the system's
    /// path, it may be another one.
    fn not_the_same(self, ours: &Path, probe: &CStr) -> String {
        let theirs = self.in_cudarc(probe).and_then(|address| file_of(address)).unwrap_or_default();
        let (name, ours) = (self.name(), ours.display());
        if theirs.as_os_str().is_empty() {
            format!("{ours} is open, but not as {name}.so: its SONAME is another")
        } else {
            format!("two {name} are in reach, {ours} and {}: take one away", theirs.display())
        }
    }
}

/// NVRTC opens its built-ins by name only: next to a wheel they are found when they are open
/// already.
fn open_builtins(nvrtc: &Path) {
    let Some(entries) = nvrtc.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("libnvrtc-builtins.so.") {
            // Should it not open, the first compilation says so.
            open_file(&entry.path()).ok();
        }
    }
}

fn open_file(path: &Path) -> std::result::Result<usize, String> {
    let name =
        CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: opening a library runs its initialisers; these are NVIDIA's, or what the user put in
    // their place.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle as usize);
    }
    // SAFETY: `dlerror` returns null or a C string that stays until the thread's next call.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return Err(format!("{} does not open", path.display()));
    }
    // SAFETY: not null, by the line above.
    Err(unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned())
}

/// The file that holds the code at `address`.
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: an all-zero `Dl_info` is a valid one to be filled.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` only looks the address up.
    let known = unsafe { libc::dladdr(address, &mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of the file, a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(name.to_string_lossy().into_owned());
    Some(std::fs::canonicalize(&path).unwrap_or(path))
}

fn variable_folders(variable: &str) -> Vec<PathBuf> {
    let list = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&list).filter(|folder| folder.as_os_str() != OsStr::new("")).collect()
}

fn listed_folders() -> Vec<PathBuf> {
    let absolute = |folder: PathBuf| std::path::absolute(&folder).unwrap_or(folder);
    variable_folders(SEARCH_VARIABLE).into_iter().map(absolute).collect()
}

/// The CUDA version that the driver supports, as (major, minor); none without a driver.
pub(super) fn driver_version() -> Option<(u32, u32)> {
    use cudarc::driver::sys;
    Library::Driver.require().ok()?;
    let mut version = 0;
    // SAFETY: the library is open; the call needs no `cuInit`.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    let version = version as u32;
    (code == sys::CUresult::CUDA_SUCCESS).then_some((version / 1000, version % 1000 / 10))
}

/// The `nvidia/*/lib` folders of the Pythons in `PATH`, their users' packages included.
fn wheel_folders() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for folder in variable_folders("PATH") {
        let python = folder.join("python3");
        if !python.exists() {
            continue;
        }
        prefixes.extend(folder.parent().map(Path::to_owned));
        // A link in a folder of links: the wheels lie next to the real one.
        let real = std::fs::canonicalize(&python).unwrap_or(python);
        prefixes.extend(real.parent().and_then(Path::parent).map(Path::to_owned));
    }
    prefixes.extend(variable_folders("HOME").into_iter().map(|home| home.join(".local")));
    let mut folders = Vec::new();
    for prefix in prefixes {
        for python in children(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                folders
                    .extend(children(&nvidia, "").into_iter().map(|package| package.join("lib")));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    folders
}

fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let named =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut paths: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_gets_the_libraries_that_it_runs() {
        for (driver, first) in [(Some((12, 2)), "12"), (Some((12, 9)), "12"), (Some((13, 0)), "13")]
        {
            for library in [Library::Nvrtc, Library::CublasLt] {
                let names = library.names_for(driver);
                assert!(names[0].ends_with(first) && names.len() == 2, "{driver:?}: {names:?}");
            }
        }
        assert_eq!(Library::Nvrtc.names_for(None)[0], "libnvrtc.so.13");
    }
}
