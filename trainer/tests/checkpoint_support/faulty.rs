//! A file system that fails at one operation, and then loses what a power cut may lose. It notes
//! what was flushed and flushes nothing, so that thousands of saves take seconds.

use headlong::state::checkpoint::{FileWriter, Files, SystemFiles};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does half its work, and nothing works from then on: the process is gone.
    Crash,
    /// It fails, and everything else works.
    Once,
    /// Nothing can be written from then on, for want of space; removing works.
    DiskFull,
}

/// What is lost after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: the process was killed, the machine ran on.
    Nothing,
    /// All that was not flushed: contents, names, renames.
    Unflushed,
    /// Contents and names that were not flushed, while renames reached the disk.
    UnflushedButRenames,
}

/// Shared by the files it hands out.
#[derive(Clone)]
pub struct FaultyFiles {
    world: Arc<Mutex<World>>,
}

struct World {
    fault: Fault,
    at: usize,
    operation: usize,
    free: Option<u64>,
    /// Files whose contents are not flushed.
    contents: Vec<PathBuf>,
    /// Names that are not flushed in their directory.
    names: Vec<PathBuf>,
    /// Renames that are not flushed in their directory.
    renames: Vec<(PathBuf, PathBuf)>,
}

enum Verdict {
    Go,
    FailHalfway(io::Error),
    Fail(io::Error),
}

impl FaultyFiles {
    pub fn new(fault: Fault, at: usize) -> Self {
        let (contents, names, renames) = Default::default();
        let world = World { fault, at, operation: 0, free: None, contents, names, renames };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Never fails.
    pub fn good() -> Self {
        Self::new(Fault::Once, usize::MAX)
    }

    /// Never fails, and says how much is free.
    pub fn with_free_bytes(free: u64) -> Self {
        let files = Self::good();
        files.world.lock().unwrap().free = Some(free);
        files
    }

    /// Operations so far.
    pub fn operations(&self) -> usize {
        self.world.lock().unwrap().operation
    }

    /// Takes from the disk what the crash loses.
    pub fn lose(&self, loss: Loss) {
        let mut world = self.world.lock().unwrap();
        if loss == Loss::Nothing {
            return;
        }
        if loss == Loss::Unflushed {
            while let Some((from, to)) = world.renames.pop() {
                if to.exists() {
                    fs::rename(&to, &from).unwrap();
                }
                world.moved(&to, &from);
            }
        }
        for path in world.contents.iter().filter(|path| path.exists()) {
            fs::File::create(path).unwrap();
        }
        for path in &world.names {
            // Fails where the path is not there, or not of that sort: then there is nothing to
            // lose.
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
        }
    }
}

impl World {
    fn judge(&mut self, writes: bool) -> Verdict {
        let operation = self.operation;
        self.operation += 1;
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        match self.fault {
            Fault::Crash if operation == self.at => Verdict::FailHalfway(io::Error::other("crash")),
            Fault::Crash if operation > self.at => {
                Verdict::Fail(io::Error::other("crashed before"))
            }
            Fault::Once if operation == self.at => {
                Verdict::FailHalfway(io::Error::other("injected"))
            }
            Fault::DiskFull if operation == self.at && writes => Verdict::FailHalfway(full()),
            Fault::DiskFull if operation > self.at && writes => Verdict::Fail(full()),
            _ => Verdict::Go,
        }
    }

    fn moved(&mut self, from: &Path, to: &Path) {
        for path in self.contents.iter_mut().chain(&mut self.names) {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }
}

impl FaultyFiles {
    /// Runs `whole`, or fails before it, or after `half`.
    fn run(
        &self,
        writes: bool,
        half: impl FnOnce(),
        whole: impl FnOnce(&mut World) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut world = self.world.lock().unwrap();
        match world.judge(writes) {
            Verdict::Go => whole(&mut world),
            Verdict::Fail(error) => Err(error),
            Verdict::FailHalfway(error) => {
                half();
                Err(error)
            }
        }
    }
}

impl Files for FaultyFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let whole = |world: &mut World| {
            world.names.push(path.to_owned());
            SystemFiles.create_dir(path)
        };
        self.run(true, || (), whole)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let mut created = None;
        self.run(
            true,
            || (),
            |world| {
                world.names.push(path.to_owned());
                world.contents.push(path.to_owned());
                created = Some(SystemFiles.create_file(path)?);
                Ok(())
            },
        )?;
        let inner = created.expect("the file was made above");
        Ok(Box::new(FaultyWriter { files: self.clone(), path: path.to_owned(), inner }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let whole = |world: &mut World| {
            SystemFiles.rename(from, to)?;
            world.moved(from, to);
            world.renames.push((from.to_owned(), to.to_owned()));
            Ok(())
        };
        self.run(true, || (), whole)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let whole = |world: &mut World| {
            world.names.retain(|name| name.parent() != Some(path));
            world.renames.retain(|(_, to)| to.parent() != Some(path));
            Ok(())
        };
        self.run(true, || (), whole)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let half = || {
            // The manifest first: the worst order for a later reader.
            let _ = fs::remove_file(path.join("manifest.json"));
        };
        self.run(false, half, |_| SystemFiles.remove_dir_all(path))
    }

    fn free_bytes(&self, _path: &Path) -> Option<u64> {
        self.world.lock().unwrap().free
    }
}

struct FaultyWriter {
    files: FaultyFiles,
    path: PathBuf,
    inner: Box<dyn FileWriter>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let verdict = self.files.world.lock().unwrap().judge(true);
        match verdict {
            Verdict::Go => {
                self.inner.write_all(bytes)?;
                Ok(bytes.len())
            }
            Verdict::Fail(error) => Err(error),
            Verdict::FailHalfway(error) => {
                self.inner.write_all(&bytes[..bytes.len() / 2])?;
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FileWriter for FaultyWriter {
    fn sync(&mut self) -> io::Result<()> {
        let files = self.files.clone();
        let path = self.path.clone();
        files.run(
            true,
            || (),
            |world| {
                world.contents.retain(|unflushed| *unflushed != path);
                Ok(())
            },
        )
    }
}
