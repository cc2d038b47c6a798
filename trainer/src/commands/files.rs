//! What a command reads and writes, by the flags that name it: no output is an input, and no two
//! outputs are one file.

use crate::commands::launch::{launched, standard_output};
use crate::error::{Error, Result};
use crate::report::output::JsonOutput;
use crate::state::checkpoint;
use headlong_reader::convert::{files_of, is_folder_or_stem};
use headlong_reader::formats::Format;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Debug, Default)]
pub struct CommandFiles {
    reads: Vec<Named>,
    writes: Vec<Named>,
    /// Folders that are made where they are not there.
    makes: Vec<Named>,
    /// Folders of checkpoints that are read: nothing is written into them.
    closed: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    by: String,
    path: PathBuf,
}

/// What a path is, whatever it is called.
#[derive(PartialEq, Eq)]
enum Place {
    /// Device and inode of a regular file.
    File(u64, u64),
    /// One that is not there: its folder, by its only name, and its name.
    Absent(PathBuf),
}

impl Place {
    /// Nothing for what is no regular file: a device or a pipe may well be both read and written.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Some(Self::File(found.dev(), found.ino())),
            Ok(_) => None,
            Err(_) => {
                let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?;
                Some(Self::Absent(folder.join(path.file_name()?)))
            }
        }
    }
}

fn pipe_at(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_fifo().then(|| (found.dev(), found.ino()))
}

impl CommandFiles {
    /// Adds files that are read: where a folder of data is named those in it, and of a shard all
    /// its files.
    pub fn reads<P: AsRef<Path>>(mut self, by: &str, paths: impl IntoIterator<Item = P>) -> Self {
        for path in paths {
            let path = stream(path.as_ref(), "/dev/stdin");
            let of_data = match is_folder_or_stem(&path)
                || path.extension().is_some_and(|end| end == "npy")
            {
                true if path.is_dir() => files_of(Format::Split, std::slice::from_ref(&path)),
                true => files_of(Format::Npy, std::slice::from_ref(&path)),
                false => Vec::new(),
            };
            let all = of_data.into_iter().chain([path]);
            self.reads.extend(all.map(|path| Named { by: by.to_owned(), path }));
        }
        self
    }

    pub fn writes<P: AsRef<Path>>(mut self, by: &str, paths: impl IntoIterator<Item = P>) -> Self {
        let paths = paths.into_iter().map(|path| stream(path.as_ref(), "/dev/stdout"));
        self.writes.extend(paths.map(|path| Named { by: by.to_owned(), path }));
        self
    }

    /// Adds folders that are made where they are not there.
    pub fn makes<P: AsRef<Path>>(mut self, by: &str, folders: impl IntoIterator<Item = P>) -> Self {
        let named = |path: P| Named { by: by.to_owned(), path: path.as_ref().to_owned() };
        self.makes.extend(folders.into_iter().map(named));
        self
    }

    /// Adds a checkpoint that is read, or all of a folder, of which one is.
    pub fn reads_checkpoint(mut self, by: &str, folder: Option<&PathBuf>) -> Self {
        let paths = folder.into_iter().flat_map(|folder| checkpoints_at(folder));
        self.closed.extend(paths.map(|path| Named { by: by.to_owned(), path }));
        self
    }

    pub fn writes_json(self, json: &JsonOutput) -> Self {
        self.writes("--json-file", &json.json_file)
    }

    /// Refuses an output, standard output included, that is an input; two outputs that are one; and
    /// a pipe that is named twice, of which each reader would have a part; and outputs that cannot
    /// be made, as far as that is known without writing.
    pub fn check(&self) -> Result<()> {
        let mut pipes = Vec::new();
        for input in &self.reads {
            let Some(pipe) = pipe_at(&input.path) else { continue };
            if pipes.contains(&pipe) {
                let (by, path) = (&input.by, input.path.display());
                let message = format!(
                    "{by} {path} is one pipe, named twice: each reader would have a part of it"
                );
                return Err(Error::Usage(message));
            }
            pipes.push(pipe);
        }
        let printed =
            Named { by: "standard output".to_owned(), path: PathBuf::from("/dev/stdout") };
        for (index, output) in self.writes.iter().chain([&printed]).enumerate() {
            let is_named = index < self.writes.len();
            let path = if is_named { &output.path } else { &standard_output() };
            let Some(place) = Place::of(path) else { continue };
            let is_same = |other: &&Named| Place::of(&other.path).as_ref() == Some(&place);
            if let Some(input) = self.reads.iter().find(is_same) {
                return Err(output.clash("is the file that", input, "reads"));
            }
            let mut earlier = self.writes[..index].iter().filter(|_| is_named);
            if let Some(other) = earlier.find(is_same) {
                return Err(output.clash("is the file that", other, "writes"));
            }
            let folder = output.path.parent().and_then(|folder| fs::canonicalize(folder).ok());
            let is_inside = |closed: &&Named| {
                let path = fs::canonicalize(&closed.path).ok();
                let is_below = folder
                    .as_ref()
                    .zip(path)
                    .is_some_and(|(folder, path)| folder.starts_with(path));
                let mut entries = fs::read_dir(&closed.path).into_iter().flatten().flatten();
                is_below || entries.any(|entry| Place::of(&entry.path()).as_ref() == Some(&place))
            };
            if let Some(closed) = self.closed.iter().find(is_inside) {
                return Err(output.clash("lies in the checkpoint that", closed, "reads"));
            }
        }
        self.check_places()
    }

    fn check_places(&self) -> Result<()> {
        for Named { path, .. } in &self.makes {
            takes_files(path, true).map_err(Error::io("create", path))?;
        }
        for Named { path, .. } in &self.writes {
            let is_in_made = self.makes.iter().any(|folder| path.starts_with(&folder.path));
            let outcome = match fs::metadata(path) {
                Ok(found) if found.is_dir() => Err(io::Error::other("it is a directory")),
                Err(_) if !is_in_made => takes_files(path.parent().unwrap_or(path), false),
                _ => Ok(()),
            };
            outcome.map_err(Error::io("write", path))?;
        }
        Ok(())
    }

    /// As [`CommandFiles::check`], for a command that is the work of one process: several that a
    /// launcher has started would all write the same file.
    pub fn check_for_one_process(&self) -> Result<()> {
        self.check()?;
        match (launched(), self.writes.first()) {
            (Some((_, processes)), Some(output)) => Err(Error::Usage(format!(
                "{processes} processes would all write {} {}: this command is the work of one \
                 process, run it without a launcher",
                output.by,
                output.path.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses a folder in which nothing can be made, told without writing; where it may be made
/// itself, the nearest one above it that is there.
fn takes_files(folder: &Path, may_be_made: bool) -> io::Result<()> {
    let named = folder.ancestors().map(|path| match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    });
    let depth = if may_be_made { usize::MAX } else { 1 };
    let there = named.take(depth).find_map(|path| Some((path, fs::metadata(path).ok()?)));
    let Some((path, found)) = there else {
        let message = format!("there is no folder {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    };
    if !found.is_dir() {
        return Err(io::Error::other(format!("{} is not a folder", path.display())));
    }
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(path, access)?;
    // The superuser may write to any folder, but /proc and /sys have no room for what is new.
    match found.mode() & 0o222 == 0 && rustix::fs::statvfs(path)?.f_blocks == 0 {
        true => Err(io::Error::other(format!("nothing can be made in {}", path.display()))),
        false => Ok(()),
    }
}

/// A path, or for `-` that of the standard stream.
fn stream(path: &Path, standard: &str) -> PathBuf {
    PathBuf::from(if path == Path::new("-") { Path::new(standard) } else { path })
}

/// A checkpoint, or those of a folder.
pub(crate) fn checkpoints_at(folder: &Path) -> Vec<PathBuf> {
    match checkpoint::steps(folder) {
        Ok(steps) if !steps.is_empty() => steps.into_iter().map(|(_, path)| path).collect(),
        _ => vec![folder.to_owned()],
    }
}

impl Named {
    fn clash(&self, what: &str, other: &Self, does: &str) -> Error {
        let (path, other_path) = (self.path.display(), other.path.display());
        Error::Usage(format!(
            "{} {path} {what} {} {other_path} {does}: name another file",
            self.by, other.by
        ))
    }
}
