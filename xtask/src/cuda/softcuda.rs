//! `cargo xtask softcuda`: builds the software device, plain or for a sanitizer, where its sources
//! are newer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};

use super::Had;
use crate::process::{self, At as _};

/// Where the sources are, from the workspace's root.
const SOURCES: &str = "device/softcuda";
/// Devices that tests see: the most that one test uses.
pub const DEVICES: &str = "8";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sanitizer {
    /// Nothing.
    None,
    Address,
    Thread,
}

impl Sanitizer {
    /// What `build.sh` calls it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Address => Some("address"),
            Self::Thread => Some("thread"),
        }
    }

    /// The folder below `target/`.
    fn folder(self) -> String {
        self.name().map_or("softcuda".into(), |name| format!("softcuda-{name}"))
    }
}

pub fn run(root: &Path, target: &Path) -> Result<bool> {
    match build(root, target, Sanitizer::None)? {
        Had::Here(folder) => {
            println!(
                "softcuda: HEADLONG_CUDA_LIBS={} SOFTCUDA_DEVICES={DEVICES}",
                folder.display()
            );
            Ok(true)
        }
        Had::Not(reason) => bail!("the software device cannot be built, because {reason}"),
    }
}

/// Builds the device into `target`, where there is a compiler and something has changed.
pub fn build(root: &Path, target: &Path, sanitizer: Sanitizer) -> Result<Had> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Had::Not("softcuda is for x86-64".into()));
    }
    if !process::answers("g++", &["--version"]) {
        return Ok(Had::Not("g++, which builds softcuda, is not installed".into()));
    }
    let folder = target.join(sanitizer.folder());
    // The mark is written last: a build that was broken off is begun again.
    let mark = folder.join("built");
    let sources = sources_of(&root.join(SOURCES))?;
    if is_newer(&mark, &sources) {
        return Ok(Had::Here(folder));
    }
    fs::create_dir_all(&folder).at(&folder)?;
    let mut command = process::command("sh", &["device/softcuda/build.sh"], root);
    command.arg(&folder).args(sanitizer.name());
    if !process::show(command)? {
        bail!("device/softcuda/build.sh has failed");
    }
    fs::write(&mark, "").at(&mark)?;
    Ok(Had::Here(folder))
}

fn sources_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).at(folder)?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

/// Whether the file at `mark` is there and newer than all of `sources`.
fn is_newer(mark: &Path, sources: &[PathBuf]) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(built) = changed(mark) else { return false };
    sources.iter().all(|source| changed(source).unwrap_or(SystemTime::now()) < built)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_older_than_a_source_is_built_again() {
        let folder = std::env::temp_dir().join(format!("headlong-softcuda-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, mark) = (folder.join("a.cpp"), folder.join("built"));
        fs::write(&source, "").unwrap();
        assert!(!is_newer(&mark, std::slice::from_ref(&source)));
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::create(&mark).unwrap().set_modified(later).unwrap();
        assert!(is_newer(&mark, std::slice::from_ref(&source)));
        fs::File::create(&source).unwrap().set_modified(later + Duration::from_secs(1)).unwrap();
        assert!(!is_newer(&mark, std::slice::from_ref(&source)));
        fs::remove_dir_all(&folder).unwrap();
    }
}
