//! Where the library may lie.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The library's file name, as its `SONAME` says.
pub(crate) const NAME: &str = "libnccl.so.2";
/// Where a wheel (`nvidia-nccl-cu13`, which PyTorch brings along) has it, below `site-packages`.
const WHEEL: &str = "nvidia/nccl/lib";

/// Where to look for `libnccl.so.2`, in this order: the caller's directories, what the system's
/// loader knows, and the wheels of the machine's Pythons.
#[derive(Debug, Clone, Default)]
pub struct Search {
    directories: Vec<PathBuf>,
    only_directories: bool,
}

impl Search {
    /// These directories first; one that is a file is taken for the library itself.
    pub fn in_directories(directories: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            directories: directories.into_iter().map(Into::into).collect(),
            only_directories: false,
        }
    }

    /// Only the directories: neither the system nor any wheel. For a library that must be a certain
    /// one, as that of a software device.
    pub fn and_nowhere_else(mut self) -> Self {
        self.only_directories = true;
        self
    }

    /// Calls `open` with each place that may hold the library until it gives something. A bare file
    /// name means: wherever the system's loader finds it. The wheels of `python3` are asked for
    /// only when all else has failed, because starting it takes longer than everything before.
    pub(crate) fn first<T>(&self, mut open: impl FnMut(&Path) -> Option<T>) -> Option<T> {
        let file = |place: &PathBuf| if place.is_file() { place.clone() } else { place.join(NAME) };
        let found = self.directories.iter().map(file).find_map(|path| open(&path));
        if found.is_some() || self.only_directories {
            return found;
        }
        open(Path::new(NAME))
            .or_else(|| wheels(installed_packages()).iter().find_map(|path| open(path)))
            .or_else(|| wheels(packages_of_python()).iter().find_map(|path| open(path)))
    }
}

/// The libraries that lie in these `site-packages`.
fn wheels(packages: Vec<PathBuf>) -> Vec<PathBuf> {
    let files = packages.into_iter().map(|folder| folder.join(WHEEL).join(NAME));
    files.filter(|path| path.is_file()).collect()
}

fn installed_packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in ["/usr/local/lib", "/usr/lib", "/opt/venv/lib", "/opt/conda/lib"] {
        let Ok(entries) = fs::read_dir(root) else { continue };
        let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        pythons.retain(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        });
        pythons.sort();
        found.extend(pythons.iter().rev().flat_map(|python| {
            ["site-packages", "dist-packages"].map(|packages| python.join(packages))
        }));
    }
    found
}

/// What `python3` would import from: virtual environments, pyenv and the user's own packages.
fn packages_of_python() -> Vec<PathBuf> {
    let output = Command::new("python3")
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.ends_with("-packages")).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_directories_come_first_and_then_the_system() {
        let mut asked = Vec::new();
        let found = Search::in_directories(["/a", "/b"]).first(|path| {
            asked.push(path.to_path_buf());
            (path == Path::new(NAME)).then_some(())
        });
        assert_eq!(found, Some(()));
        assert_eq!(
            asked,
            ["/a/libnccl.so.2", "/b/libnccl.so.2", "libnccl.so.2"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_search_of_directories_alone_ends_there() {
        let mut asked = 0;
        let found = Search::in_directories(["/a"]).and_nowhere_else().first(|_| {
            asked += 1;
            None::<()>
        });
        assert_eq!((found, asked), (None, 1));
    }

    #[test]
    fn wheels_are_found_below_site_packages() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("python3.12/site-packages");
        fs::create_dir_all(packages.join(WHEEL)).unwrap();
        assert!(wheels(vec![packages.clone()]).is_empty());
        let library = packages.join(WHEEL).join(NAME);
        fs::write(&library, "").unwrap();
        assert_eq!(wheels(vec!["/nowhere".into(), packages]), [library]);
    }
}
