//! What a command reads and writes, by the flags that name it: no output is an input, and no two
//! outputs are one file.

use crate::commands::launch::launched;
use crate::error::{Error, Result};
use crate::report::output::JsonOutput;
use crate::state::checkpoint;
use headlong_reader::convert::{files_of, is_folder_or_stem};
use headlong_reader::formats::Format;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The files of a command.
#[derive(Debug, Default)]
pub struct CommandFiles {
    reads: Vec<Named>,
    writes: Vec<Named>,
    /// Folders of checkpoints that are read: nothing is written into them.
    closed: Vec<Named>,
}

/// A file, and what named it.
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

/// Device and inode of a pipe.
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

    /// Adds files that are written.
    pub fn writes<P: AsRef<Path>>(mut self, by: &str, paths: impl IntoIterator<Item = P>) -> Self {
        let paths = paths.into_iter().map(|path| stream(path.as_ref(), "/dev/stdout"));
        self.writes.extend(paths.map(|path| Named { by: by.to_owned(), path }));
        self
    }

    /// Adds a checkpoint that is read, or the newest one of a folder.
    pub fn reads_checkpoint(mut self, by: &str, folder: Option<&PathBuf>) -> Self {
        self.closed
            .extend(folder.map(|folder| Named { by: by.to_owned(), path: checkpoint_at(folder) }));
        self
    }

    pub fn writes_json(self, json: &JsonOutput) -> Self {
        self.writes("--json-file", &json.json_file)
    }

    /// Refuses an output, standard output included, that is an input; two outputs that are one; and
    /// a pipe that is named twice, of
    /// which each reader would have a part.
    ///
    /// # Errors
    /// [`Error::Usage`] with both flags and the file.
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
            let Some(place) = Place::of(&output.path) else { continue };
            let is_same = |other: &&Named| Place::of(&other.path).as_ref() == Some(&place);
            if let Some(input) = self.reads.iter().find(is_same) {
                return Err(output.clash("is the file that", input, "reads"));
            }
            let is_named = index < self.writes.len();
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
        Ok(())
    }

    /// As [`CommandFiles::check`], for a command that is the work of one process: several that a
    /// launcher has started would all write the same file.
    ///
    /// # Errors
    /// As [`CommandFiles::check`]; [`Error::Usage`] where several processes were started.
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

/// A path, or for `-` that of the standard stream.
fn stream(path: &Path, standard: &str) -> PathBuf {
    PathBuf::from(if path == Path::new("-") { Path::new(standard) } else { path })
}

/// A checkpoint, or the newest one of a folder.
pub(crate) fn checkpoint_at(folder: &Path) -> PathBuf {
    let newest = checkpoint::steps(folder).ok().and_then(|mut steps| steps.pop());
    newest.map_or_else(|| folder.to_owned(), |(_, path)| path)
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
