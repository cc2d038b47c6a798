//! What the checks read: files under a root, so that tests can show them a broken machine, and
//! facts that no file has.

use headlong_comm::launcher_env::{self, Environment};
use std::path::{Path, PathBuf};

/// A machine, as far as it can be looked at without touching it.
pub(super) struct System {
    root: PathBuf,
    /// The variables of this process.
    pub environment: Environment,
    /// Version, file and abilities of NCCL; or where it was looked for.
    pub nccl: Result<String, String>,
    /// What `nvidia-smi` says of the GPUs, a line for each, in the order of
    /// [`SMI_FIELDS`](super::gpu::SMI_FIELDS).
    pub smi: Option<String>,
    /// Whether memory without a file can be made and shared.
    pub memfd: Result<(), String>,
}

impl System {
    /// This machine.
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
            smi: super::gpu::ask_smi(),
            memfd: super::memory::try_memfd(),
        }
    }

    /// A machine of a test's making, with nothing.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.into(),
            environment: Environment::new(),
            nccl: Err("libnccl.so.2 was not found".into()),
            smi: None,
            memfd: Ok(()),
        }
    }

    /// A variable that is text.
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

    /// The number in a file.
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

    /// Whether it is there.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }
}
