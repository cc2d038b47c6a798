//! What a command reads and writes, by the flags that name it: no output is an input, and no two
//! outputs are one file.

use super::{
    BenchCommand, CheckpointCommand, Command, ConfigCommand, DataCommand, KernelsCommand,
    PlanArguments, TrainArguments,
};
use crate::commands::checkpoint::export_target;
use crate::commands::convert::ConvertArguments;
use crate::commands::launch::launched;
use crate::commands::train::prepare;
use crate::config::{Config, Ids};
use crate::error::{Error, Result};
use crate::report::{LogTarget, output::JsonOutput};
use crate::run::dictionary;
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

    fn writes_json(self, json: &JsonOutput) -> Self {
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
fn checkpoint_at(folder: &Path) -> PathBuf {
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

/// Refuses outputs of `command` that are inputs. Commands with a configuration look again when they
/// have it.
///
/// # Errors
/// As [`CommandFiles::check_for_one_process`].
pub(super) fn check(command: &Command) -> Result<()> {
    let files = CommandFiles::default();
    match command {
        Command::Eval(arguments) => {
            let files = files.reads("--data", &arguments.data).writes_json(&arguments.json);
            files.reads_checkpoint("--checkpoint", Some(&arguments.checkpoint)).check()
        }
        Command::Predict(arguments) => {
            let files =
                files.reads("--data", &arguments.data).writes("--output", [&arguments.output]);
            files.reads_checkpoint("--checkpoint", Some(&arguments.checkpoint)).check()
        }
        Command::Data(command) => of_data(command).check_for_one_process(),
        Command::Checkpoint(command) => of_checkpoint(command).check_for_one_process(),
        Command::Bench(command) => check_bench(command),
        Command::Kernels(command) => {
            let (models, json) = match command {
                KernelsCommand::Build(arguments) => (&arguments.models, &arguments.json),
                KernelsCommand::List(arguments) => (&arguments.models, &arguments.json),
            };
            files.reads("--config", &models.config).writes_json(json).check_for_one_process()
        }
        Command::Config(ConfigCommand::Show(arguments) | ConfigCommand::Check(arguments)) => {
            files.reads("--config", &arguments.config).check()
        }
        Command::Train(_)
        | Command::Plan(_)
        | Command::Doctor(_)
        | Command::Launch(_)
        | Command::Recipe(_)
        | Command::Completions { .. } => Ok(()),
    }
}

fn of_data(command: &DataCommand) -> CommandFiles {
    let files = CommandFiles::default();
    match command {
        DataCommand::Make(arguments) => files
            .reads("--data", &arguments.data)
            .writes(
                "--output",
                [arguments.output.join(headlong_reader::dictionary::DICTIONARY_FILE)],
            )
            .writes_json(&arguments.json),
        DataCommand::Convert(arguments) => of_conversion(arguments),
        DataCommand::MultiHot(arguments) => of_conversion(&arguments.conversion),
        DataCommand::Inspect(arguments) => {
            files.reads("FILE", &arguments.files).writes_json(&arguments.json)
        }
        DataCommand::Verify(arguments) => files
            .reads("FILE", &arguments.files)
            .reads("--md5", &arguments.md5)
            .reads("--config", &arguments.what.config)
            .writes_json(&arguments.json),
    }
}

fn of_conversion(arguments: &ConvertArguments) -> CommandFiles {
    let output = std::slice::from_ref(&arguments.output);
    let written = match arguments.to {
        Format::Npy => headlong_reader::formats::npy::names_of_shard(&arguments.output),
        // What else lies in the folder is not written.
        Format::Split => {
            let inside = files_of(Format::Split, output).into_iter();
            inside.filter(|file| file.extension().is_some_and(|end| end == "bin")).collect()
        }
        _ => output.to_vec(),
    };
    CommandFiles::default()
        .reads("--data", &arguments.data)
        .reads("--config", &arguments.what.config)
        .writes("--output", written)
        .writes_json(&arguments.json)
}

fn of_checkpoint(command: &CheckpointCommand) -> CommandFiles {
    let files = CommandFiles::default();
    match command {
        CheckpointCommand::Inspect { dir, json } | CheckpointCommand::Verify { dir, json } => {
            files.reads_checkpoint("DIR", Some(dir)).writes_json(json)
        }
        CheckpointCommand::Export { dir, output } => {
            let target = export_target(&checkpoint_at(dir), output.as_deref());
            files.reads_checkpoint("DIR", Some(dir)).writes("--output", [target])
        }
    }
}

fn check_bench(command: &BenchCommand) -> Result<()> {
    let files = CommandFiles::default();
    match command {
        BenchCommand::Reader(arguments) => files
            .reads("FILE", &arguments.files)
            .writes_json(&arguments.json)
            .check_for_one_process(),
        BenchCommand::Forecast(arguments) => files
            .reads("--tuning", &arguments.tuning)
            .reads("--cluster", &arguments.cluster)
            .writes("--write", &arguments.write)
            .check_for_one_process(),
        BenchCommand::AllReduce(arguments)
        | BenchCommand::ReduceScatter(arguments)
        | BenchCommand::AllGather(arguments)
        | BenchCommand::Broadcast(arguments)
        | BenchCommand::Alltoall(arguments)
        | BenchCommand::Alltoallv(arguments)
        | BenchCommand::Sendrecv(arguments)
        | BenchCommand::Barrier(arguments) => files
            .reads("--baseline", &arguments.baseline)
            .writes("--plot", &arguments.plot)
            .writes_json(&arguments.json)
            .check(),
        // No more than one file each, and none that is read.
        BenchCommand::Iteration(_)
        | BenchCommand::Embedding(_)
        | BenchCommand::P2p(_)
        | BenchCommand::Exchange(_)
        | BenchCommand::Tune(_) => Ok(()),
    }
}

/// The files of `headlong train`, those that its configuration names included.
pub fn of_training(arguments: &TrainArguments, config: &Config) -> CommandFiles {
    let data = &config.data;
    let log = arguments.log_json.iter().filter_map(|target| match target {
        LogTarget::Stdout => None,
        LogTarget::File(path) => Some(path),
    });
    let files = CommandFiles::default()
        .reads("--config", &arguments.config)
        .reads("--data", &data.train)
        .reads("--valid", &data.valid)
        .reads("data.dictionary", data.dictionary.as_deref().map(dictionary::file_at))
        .reads("comm.tuning", &config.comm.tuning)
        .reads("hybrid.latency_table", &config.hybrid.latency_table)
        .writes("run.algorithms", &config.run.algorithms)
        .writes("--log-json", log)
        .writes("--mllog", &arguments.mllog)
        .writes("--trace", &arguments.trace)
        .reads_checkpoint("--init-from", arguments.init_from.as_ref())
        .reads_checkpoint(
            "--checkpoint-dir",
            config.checkpoint.dir.as_ref().filter(|_| arguments.resume),
        );
    let makes_data = data.train.is_empty() && config.synthetic.enabled;
    let makes_dictionary = data.ids == Ids::Dictionary && data.dictionary.is_none();
    files
        .writes(
            "--output-dir",
            makes_data.then(|| prepare::synthetic_files(config)).into_iter().flatten(),
        )
        .writes("--output-dir", makes_dictionary.then(|| dictionary::built_file(config)))
}

/// The files of `headlong plan`.
pub fn of_plan(arguments: &PlanArguments, config: &Config) -> CommandFiles {
    let on_cluster = &arguments.on_cluster;
    of_training(&arguments.train, config)
        .reads("--cluster", &on_cluster.cluster)
        .writes("--plot", &on_cluster.plot)
        .writes_json(&arguments.json)
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use clap::CommandFactory as _;

    /// Flags that name files or folders, and what this file does about them. Whoever adds one adds
    /// it here, and above.
    const KNOWN: [&str; 22] = [
        // Read.
        "baseline",
        "cluster",
        "config",
        "data",
        "files",
        "md5",
        "messages",
        "tuning",
        "valid",
        // Checkpoints that are read.
        "checkpoint",
        "dir",
        "init_from",
        // Written, each a file.
        "json_file",
        "log_json",
        "mllog",
        "output",
        "plot",
        "trace",
        "write",
        // Written, folders of many files: `output` of `data make` and `kernels build`, too.
        "checkpoint_dir",
        "output_dir",
        // Compiled kernels, read by names that are sums.
        "kernels",
    ];

    #[test]
    fn every_flag_that_names_a_file_is_known_here() {
        let mut commands = vec![Cli::command()];
        let mut seen = 0;
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for argument in command.get_arguments() {
                let values = argument.get_value_names().unwrap_or_default().join(" ");
                let names_a_file = ["FILE", "DIR", "PATH"].iter().any(|word| values.contains(word));
                if names_a_file && argument.get_id() != "help" {
                    seen += 1;
                    let id = argument.get_id().as_str();
                    assert!(KNOWN.contains(&id), "{} --{id} {values}", command.get_name());
                }
            }
        }
        assert!(seen > 40, "only {seen} flags were looked at");
    }
}
