//! What the checks read: files under a root, so that tests can show them a broken machine, and
//! facts that no file has.

use headlong_comm::launcher_env::{self, Environment};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A machine, as far as it can be looked at without touching it.
pub(super) struct System {
    root: PathBuf,
    pub environment: Environment,
    /// Version, file and abilities of NCCL; or where it was looked for.
    pub nccl: Result<String, String>,
    /// Version of UCX; or why there is none.
    pub ucx: Result<String, String>,
    /// What `nvidia-smi` says of the GPUs, a line for each, in the order of
    /// [`SMI_FIELDS`].
    pub smi: Option<String>,
    /// Whether memory without a file can be made and shared.
    pub memfd: Result<(), String>,
}

impl System {
    pub fn this() -> Self {
        let nccl = headlong_comm::device::nccl::report();
        Self {
            root: "/".into(),
            environment: launcher_env::environment(),
            nccl: nccl.map(|nccl| {
                let collnet = match nccl.collnet {
                    Ok(()) => "a plugin for SHARP".to_owned(),
                    Err(reason) => format!("no SHARP: {reason}"),
                };
                format!(
                    "{}, {}: {}; {collnet}",
                    nccl.version,
                    nccl.path.display(),
                    nccl.capabilities
                )
            }),
            ucx: headlong_ucx::version(),
            smi: ask_smi(),
            memfd: try_memfd(),
        }
    }

    /// A machine of a test's making, with nothing.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.into(),
            environment: Environment::new(),
            nccl: Err("libnccl.so.2 was not found".into()),
            ucx: Err("libucp.so.0 was not found".into()),
            smi: None,
            memfd: Ok(()),
        }
    }

    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name)?.to_str()
    }

    /// Where everything lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of a file, without what surrounds it.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = std::fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    pub fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The bytes of a file.
    pub fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        std::fs::read(self.root.join(path)).ok()
    }

    /// What lies in a folder, in order.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Where links lead in the end.
    pub fn real(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.root.join(path).canonicalize().ok()
    }

    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }
}

/// What is asked of `nvidia-smi`, in this order.
pub(super) const SMI_FIELDS: &str = "index,power.limit,power.default_limit,clocks.sm,clocks.max.sm,\
    clocks_throttle_reasons.active,persistence_mode,ecc.errors.uncorrected.volatile.total";
/// A driver that is in trouble lets `nvidia-smi` hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer of `nvidia-smi`, where there is one within [`PATIENCE`].
pub(super) fn ask_smi() -> Option<String> {
    let arguments =
        [format!("--query-gpu={SMI_FIELDS}"), "--format=csv,noheader,nounits".to_owned()];
    let mut child = Command::new("nvidia-smi")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + PATIENCE;
    // A few lines: they fit the pipe, so that it ends before it is read.
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes memory without a file, and gives it back.
pub(super) fn try_memfd() -> Result<(), String> {
    let made = rustix::fs::memfd_create("headlong-doctor", rustix::fs::MemfdFlags::CLOEXEC);
    made.map(drop).map_err(|error| error.to_string())
}

/// Looks for a library where the loader would, by name; it is not opened.
pub(super) fn find_library(root: &Path, name: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = [
        "lib",
        "lib64",
        "usr/lib",
        "usr/lib64",
        "usr/local/lib",
        "usr/local/lib64",
        "usr/local/cuda/lib64",
        "usr/lib/x86_64-linux-gnu",
        "lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib/wsl/lib",
        "run/opengl-driver/lib",
    ]
    .iter()
    .map(|folder| root.join(folder))
    .collect();
    let lists = std::fs::read_dir(root.join("etc/ld.so.conf.d")).into_iter().flatten().flatten();
    for text in lists.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()) {
        let lines = text.lines().map(str::trim).filter_map(|line| line.strip_prefix('/'));
        folders.extend(lines.map(|line| root.join(line)));
    }
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.exists())
}
