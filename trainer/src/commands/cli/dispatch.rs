//! The program: reads the command line, calls the command, prints errors, gives the exit code.

use super::{
    BenchCommand, Cli, Command, ConfigCommand, DataCommand, KernelsCommand, completions, man,
    outputs, reference,
};
use crate::commands::bench::collectives::{self, operation::Operation};
use crate::commands::launch::does_the_work;
use crate::commands::train;
use crate::error::{Error, Result};
use crate::report::lines;
use crate::system::command_line;
use crate::{
    Registry, commands::checkpoint as checkpoint_command, commands::config as config_command,
    commands::data as data_command, commands::doctor, commands::inference,
    commands::plan as plan_command, commands::report, report::output,
};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// The program `headlong`, whole, with the kinds of tables that `registry` knows: the `main` of a
/// program with tables of its own.
///
/// ```no_run
/// use headlong::table::{Registry, TableEnv, TableSpec};
///
/// fn main() -> std::process::ExitCode {
///     let mut registry = Registry::default();
///     // A type of one's own, as a rule. This kind has half of the rows that are asked for.
///     registry.register("half", |spec: &TableSpec, env: &TableEnv| {
///         let (kind, rows) = ("dense".to_owned(), spec.rows.div_ceil(2));
///         let half = TableSpec { kind, rows, ..spec.clone() };
///         Registry::default().kind(&half)?.build(&half, env)
///     });
///     headlong::main_with(registry)
/// }
/// ```
///
/// Reads the command line of this process. Commands that start processes (`launch`, `bench`) start
/// this program.
pub fn main_with(registry: Registry) -> ExitCode {
    ExitCode::from(code_of_main(&registry))
}

/// The program `headlong` inside another one: the exit code of its command line `arguments`, of
/// which the first is its name. `program` starts it as another process, by more arguments.
#[doc(hidden)]
pub fn main_called(registry: &Registry, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    command_line::is_called(arguments, program);
    let code = code_of_main(registry);
    // What a program does at its end.
    let _ = std::io::stdout().flush();
    code
}

fn code_of_main(registry: &Registry) -> u8 {
    let command = match Cli::try_parse_from(command_line::arguments()) {
        Ok(cli) => cli.command,
        Err(error) if error.kind() == ErrorKind::InvalidUtf8 => {
            let error = not_text();
            lines::last_words(&error);
            return error.exit_code();
        }
        Err(error) => {
            // As `clap::Error::exit` does; a closed stream changes nothing.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let launched = crate::system::signals::outlive_file_limits()
        .and_then(|()| crate::commands::launch::follow_launcher());
    let answer = launched.and_then(|()| match command {
        Some(command) => dispatch(command, registry),
        None => output::print(&Cli::command().render_help().to_string()),
    });
    match answer {
        Ok(()) => 0,
        Err(error) => {
            crate::commands::launch::tell_launcher(&error);
            lines::last_words(&error);
            error.exit_code()
        }
    }
}

/// The error of an argument that must be text. Paths may be any bytes, but not where they are the
/// value of a key.
fn not_text() -> Error {
    let arguments = command_line::arguments().into_iter();
    let arguments = arguments.filter(|argument| argument.to_str().is_none());
    let names: Vec<_> = arguments.map(|argument| format!("`{}`", argument.display())).collect();
    Error::Usage(format!("one of these arguments must be UTF-8 text: {}", names.join(", ")))
}

fn dispatch(command: Command, registry: &Registry) -> Result<()> {
    outputs::check(&command)?;
    if work_of_one(&command).is_some_and(|name| !does_the_work(name)) {
        return Ok(());
    }
    match command {
        Command::Train(arguments) => train::from_arguments(&arguments, registry, None),
        Command::Tune(arguments) => crate::commands::tune::run(&arguments, registry),
        Command::Eval(arguments) => inference::eval(&arguments, registry),
        Command::Predict(arguments) => inference::predict(&arguments, registry),
        Command::Report(arguments) => report::run(&arguments, registry),
        Command::Plan(arguments) => plan_command::run(&arguments, registry),
        Command::Data(command) => data(&command),
        Command::Checkpoint(command) => checkpoint_command::run(&command),
        Command::Launch(arguments) => crate::commands::launch::run(&arguments),
        Command::Bench(command) => bench(&command, registry),
        Command::Kernels(KernelsCommand::Build(arguments)) => {
            crate::commands::kernels::build(&arguments, registry)
        }
        Command::Kernels(KernelsCommand::List(arguments)) => {
            crate::commands::kernels::list(&arguments, registry)
        }
        Command::Config(ConfigCommand::Show(arguments)) => {
            config_command::show(&arguments, registry)
        }
        Command::Config(ConfigCommand::Check(arguments)) => {
            config_command::check(&arguments, registry)
        }
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Recipe => output::print(include_str!("../../../../docs/mlperf.md")),
        Command::Completions { shell } => output::print(&completions::script(shell, &program())),
        Command::Man { dir: Some(dir) } => man::write(&dir),
        Command::Man { dir: None } => output::print(&man::page()),
        Command::Reference { page } => output::print(&reference::page(page)),
    }
}

/// The name of a command that is the work of one process, of several that a launcher has started.
fn work_of_one(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Plan(_) => "plan",
        Command::Eval(_) => "eval",
        Command::Predict(_) => "predict",
        Command::Data(DataCommand::Inspect(_)) => "data inspect",
        Command::Data(DataCommand::Verify(_)) => "data verify",
        Command::Checkpoint(_) => "checkpoint",
        Command::Config(_) => "config",
        Command::Recipe => "recipe",
        Command::Completions { .. } => "completions",
        Command::Man { .. } => "man",
        Command::Reference { .. } => "reference",
        _ => return None,
    })
}

fn data(command: &DataCommand) -> Result<()> {
    match command {
        DataCommand::Make(arguments) => data_command::make(arguments),
        DataCommand::Inspect(arguments) => data_command::inspect(arguments),
        DataCommand::Verify(arguments) => crate::commands::verify::verify(arguments),
        DataCommand::Convert(arguments) => crate::commands::convert::run(arguments),
        DataCommand::MultiHot(arguments) => crate::commands::convert::run_multi_hot(arguments),
    }
}

fn bench(command: &BenchCommand, registry: &Registry) -> Result<()> {
    match command {
        BenchCommand::Iteration(arguments) => crate::commands::bench::iteration::run(arguments),
        BenchCommand::Forecast(arguments) => crate::commands::bench::forecast::run(arguments),
        BenchCommand::Machine(arguments) => crate::commands::bench::machine::run(arguments),
        BenchCommand::Reader(arguments) => crate::commands::bench::reader::run(arguments),
        BenchCommand::Embedding(arguments) => crate::commands::bench::embedding::run(arguments),
        BenchCommand::AllReduce(arguments) => collectives::run(Operation::AllReduce, arguments),
        BenchCommand::ReduceScatter(arguments) => {
            collectives::run(Operation::ReduceScatter, arguments)
        }
        BenchCommand::AllGather(arguments) => collectives::run(Operation::AllGather, arguments),
        BenchCommand::Broadcast(arguments) => collectives::run(Operation::Broadcast, arguments),
        BenchCommand::Alltoall(arguments) => collectives::run(Operation::AllToAll, arguments),
        BenchCommand::Alltoallv(arguments) => collectives::run(Operation::AllToAllV, arguments),
        BenchCommand::Sendrecv(arguments) => collectives::run(Operation::SendReceive, arguments),
        BenchCommand::Barrier(arguments) => collectives::run(Operation::Barrier, arguments),
        BenchCommand::P2p(arguments) => crate::commands::bench::p2p::run(arguments),
        BenchCommand::Exchange(arguments) => {
            crate::commands::bench::exchange::run(arguments, registry)
        }
        BenchCommand::Tune(arguments) => crate::commands::bench::tune::run(arguments),
    }
}

fn program() -> String {
    let called = command_line::arguments().into_iter().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
    if name.is_empty() { "headlong".to_owned() } else { name.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, EvalEvery};
    use crate::iteration::job::as_launched;
    use crate::plan::{Facts, Plan};
    use crate::system::machine::{DeviceFacts, Machine};
    use headlong_comm::Rank;
    use headlong_comm::launcher_env::{Launch, Launcher, SecretSource};

    /// The commands of docs/mlperf.md: nodes of eight processes, `train …`.
    fn mlperf_commands() -> Vec<(usize, Vec<&'static str>)> {
        let page = include_str!("../../../../docs/mlperf.md");
        let blocks = page.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
        let commands = blocks.flat_map(|block| block.split("\n\n"));
        let words = |command: &'static str| {
            let nodes = match (command.contains("srun -N 14"), command.contains("launch -n 8")) {
                (true, _) => 14,
                (_, true) => 1,
                (false, false) => 0,
            };
            let lines = command.lines().filter(|line| !line.starts_with('#'));
            let words = lines.flat_map(|line| line.trim_end_matches('\\').split_whitespace());
            (nodes, words.skip_while(|&word| word != "train").collect())
        };
        commands.map(words).collect()
    }

    fn mlperf_config(words: &[&str]) -> Config {
        let cli = Cli::try_parse_from(["headlong"].iter().chain(words));
        let cli = cli.unwrap_or_else(|error| panic!("{error}"));
        let Some(Command::Train(arguments)) = cli.command else { panic!("not a training command") };
        let (config, options) =
            arguments.resolve(&Registry::default()).unwrap_or_else(|error| panic!("{error}"));
        assert!(options.flags.mllog.is_some());
        config
    }

    #[test]
    fn every_mlperf_command_is_one_of_this_program_and_keeps_the_rules() {
        let commands = mlperf_commands();
        assert_eq!(commands.len(), 6);
        for (_, words) in commands {
            let config = mlperf_config(&words);
            assert_eq!(config.eval.every, EvalEvery::EpochFraction(0.05));
            assert!(config.eval.target_auc.is_some());
            let batch_size = config.train.batch_size;
            assert!(batch_size.is_multiple_of(112) || batch_size == 55_296);
        }
    }

    /// Captured, sixteen bits for vectors, and by node where there are nodes, without a flag.
    #[test]
    fn mlperf_commands_need_no_flag_for_how_devices_exchange() {
        for (nodes, words) in mlperf_commands() {
            let config = mlperf_config(&words);
            let config = match nodes {
                0 => config,
                nodes => as_launched(&config, &launch_of(8 * nodes)).unwrap(),
            };
            let rows = config.table_rows(None).unwrap();
            let device = DeviceFacts { name: "a".to_owned(), free_bytes: 140 << 30, count: 8 };
            let machine = Machine { device: Some(device), ..Machine::detect() };
            let registry = Registry::default();
            let facts = Facts {
                separate: nodes > 0,
                ranks_here: Some(8).filter(|_| nodes > 0),
                ..Facts::new(&rows, &machine, &registry)
            };
            let choices = Plan::new(&config, &facts).choices;
            let chosen = |what| {
                let choice = choices.iter().find(|choice| choice.what == what);
                choice.map(|choice| choice.chosen.as_str())
            };
            assert_eq!(chosen("schedule"), Some("captured"));
            assert_eq!(chosen("vectors"), Some("bf16").filter(|_| nodes > 0));
            let found = ["devices exchange", "carried by", "strips"].map(chosen);
            let expected = match nodes {
                0 => [None; 3],
                1 => ["flat", "peer memory", "as long as what they carry"].map(Some),
                _ => {
                    let carrier = "peer memory in nodes, NCCL between";
                    ["hierarchical", carrier, "of lengths a sixteenth apart"].map(Some)
                }
            };
            assert_eq!(found, expected);
        }
    }

    fn launch_of(processes: usize) -> Launch {
        Launch {
            launcher: Launcher::Headlong,
            rank: Rank(0),
            world_size: processes,
            local_rank: Some(0),
            local_size: Some(8),
            master_host: "localhost".to_owned(),
            master_port: 1,
            job: "job".to_owned(),
            secret: SecretSource::None,
            remarks: Vec::new(),
        }
    }
}
