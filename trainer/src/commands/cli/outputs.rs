//! What each command reads and writes: no output of one is an input.

use super::{BenchCommand, Command, ConfigCommand, DataCommand, KernelsCommand};
use crate::commands::checkpoint::{CheckpointCommand, ExportFormat, export_target};
use crate::commands::convert::ConvertArguments;
use crate::commands::export::onnx;
use crate::commands::files::{CommandFiles, checkpoints_at};
use crate::commands::{report, tune};
use crate::error::Result;
use headlong_reader::convert::files_of;
use headlong_reader::formats::Format;

/// Refuses outputs of `command` that are inputs. Commands with a configuration look again when they
/// have it.
pub(super) fn check(command: &Command) -> Result<()> {
    let files = CommandFiles::default();
    match command {
        Command::Tune(arguments) => tune::files(arguments).check_for_one_process(),
        Command::Eval(arguments) => {
            let files = files.reads("--data", &arguments.data).writes_json(&arguments.json);
            files.reads_checkpoint("--checkpoint", Some(&arguments.checkpoint)).check()
        }
        Command::Predict(arguments) => {
            let files =
                files.reads("--data", &arguments.data).writes("--output", [&arguments.output]);
            files.reads_checkpoint("--checkpoint", Some(&arguments.checkpoint)).check()
        }
        Command::Report(arguments) => report::files(arguments).check_for_one_process(),
        Command::Data(command) => of_data(command).check_for_one_process(),
        Command::Checkpoint(command) => of_checkpoint(command)?.check_for_one_process(),
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
        | Command::Recipe
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Reference { .. } => Ok(()),
    }
}

fn of_data(command: &DataCommand) -> CommandFiles {
    let files = CommandFiles::default();
    match command {
        DataCommand::Make(arguments) => files
            .reads("--data", &arguments.data)
            .makes("--output", [&arguments.output])
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
    let is_folder = arguments.to == Format::Split;
    CommandFiles::default()
        .reads("--data", &arguments.data)
        .reads("--config", &arguments.what.config)
        .makes("--output", is_folder.then_some(&arguments.output))
        .writes("--output", written)
        .writes_json(&arguments.json)
}

fn of_checkpoint(command: &CheckpointCommand) -> Result<CommandFiles> {
    let files = CommandFiles::default();
    Ok(match command {
        CheckpointCommand::Inspect { dir, json } | CheckpointCommand::Verify { dir, json } => {
            files.reads_checkpoint("DIR", Some(dir)).writes_json(json)
        }
        CheckpointCommand::Export { dir, format, output, .. } => {
            // Whichever of a folder it is of: next to it.
            let checkpoint = checkpoints_at(dir).pop().unwrap_or_else(|| dir.clone());
            let format = ExportFormat::of(*format, output.as_deref())?;
            let target = export_target(&checkpoint, format, output.as_deref());
            // Where there are many weights, a graph has them next to it.
            let weights = (format == ExportFormat::Onnx).then(|| onnx::data_file(&target));
            let written = std::iter::once(target).chain(weights);
            files.reads_checkpoint("DIR", Some(dir)).writes("--output", written)
        }
    })
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
        BenchCommand::Embedding(arguments) => files.writes_json(&arguments.json).check(),
        BenchCommand::Machine(arguments) => files.writes_json(&arguments.json).check(),
        BenchCommand::P2p(arguments) => files.writes_json(&arguments.json).check(),
        BenchCommand::Exchange(arguments) => files.writes_json(&arguments.json).check(),
        BenchCommand::Tune(arguments) => files.writes("--output", &arguments.output).check(),
        BenchCommand::Iteration(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use clap::CommandFactory as _;

    /// Flags that name files or folders, and what this file does about them. A new one
    /// is added here, and above.
    const KNOWN: [&str; 26] = [
        // Read.
        "baseline",
        "cluster",
        "config",
        "data",
        "files",
        "md5",
        "messages",
        "space",
        "tuning",
        "valid",
        // The folder of a run, of which a report is made.
        "run_dir",
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
        // Written, folders of many files: `output` of `data build-dictionary` and `kernels build`,
        // too.
        "checkpoint_dir",
        "output_dir",
        "snapshot_dir",
        "tensorboard",
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
