//! The program `headlong`: reads the command line, calls the command, prints errors, sets the exit code.

use clap::{CommandFactory as _, Parser as _};
use headlong::bench::collectives::{self, operation::Operation};
use headlong::cli::{BenchCommand, Cli, Command, ConfigCommand, DataCommand, KernelsCommand, TrainArguments};
use headlong::error::{Error, Result, chain};
use headlong::{checkpoint_command, config_command, data_command, doctor, inference, output, plan_command};
use std::process::ExitCode;

fn main() -> ExitCode {
    headlong::launch::follow_launcher();
    let answer = match Cli::parse().command {
        Some(command) => dispatch(command),
        None => output::print(&Cli::command().render_help().to_string()),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Train(arguments) => train(&arguments),
        Command::Eval(arguments) => inference::eval(&arguments),
        Command::Predict(arguments) => inference::predict(&arguments),
        Command::Plan(arguments) => plan_command::run(&arguments),
        Command::Data(command) => data(&command),
        Command::Checkpoint(command) => checkpoint_command::run(&command),
        Command::Launch(arguments) => headlong::launch::run(&arguments),
        Command::Bench(command) => bench(&command),
        Command::Kernels(KernelsCommand::Build(arguments)) => headlong::kernels_command::build(&arguments),
        Command::Kernels(KernelsCommand::List(arguments)) => headlong::kernels_command::list(&arguments),
        Command::Config(ConfigCommand::Show(arguments)) => config_command::show(&arguments),
        Command::Config(ConfigCommand::Check(arguments)) => config_command::check(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments.json),
        Command::Recipe(arguments) => headlong::recipe::run(&arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "headlong", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    }
}

fn train(arguments: &TrainArguments) -> Result<()> {
    let (config, options) = arguments.resolve()?;
    config.require_data()?;
    headlong::train::run(&config, &options)
}

fn data(command: &DataCommand) -> Result<()> {
    match command {
        DataCommand::Make(arguments) => data_command::make(arguments),
        DataCommand::Inspect(arguments) => data_command::inspect(arguments),
        DataCommand::Verify(arguments) => headlong::verify_command::verify(arguments),
        DataCommand::Convert(arguments) => headlong::convert_command::run(arguments),
        DataCommand::MultiHot(arguments) => headlong::convert_command::run_multi_hot(arguments),
    }
}

fn bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Iteration(arguments) => headlong::bench::iteration::run(arguments),
        BenchCommand::Forecast(arguments) => headlong::bench::forecast::run(arguments),
        BenchCommand::Reader(arguments) => headlong::bench::reader::run(arguments),
        BenchCommand::Embedding(_) => absent("headlong bench embedding"),
        BenchCommand::AllReduce(arguments) => collectives::run(Operation::AllReduce, arguments),
        BenchCommand::ReduceScatter(arguments) => collectives::run(Operation::ReduceScatter, arguments),
        BenchCommand::AllGather(arguments) => collectives::run(Operation::AllGather, arguments),
        BenchCommand::Broadcast(arguments) => collectives::run(Operation::Broadcast, arguments),
        BenchCommand::Alltoall(arguments) => collectives::run(Operation::AllToAll, arguments),
        BenchCommand::Alltoallv(arguments) => collectives::run(Operation::AllToAllV, arguments),
        BenchCommand::Sendrecv(arguments) => collectives::run(Operation::SendReceive, arguments),
        BenchCommand::Barrier(arguments) => collectives::run(Operation::Barrier, arguments),
        BenchCommand::P2p(arguments) => headlong::bench::p2p::run(arguments),
        BenchCommand::Exchange(arguments) => headlong::bench::exchange::run(arguments),
        BenchCommand::Tune(arguments) => headlong::bench::tune::run(arguments),
    }
}

/// Refuses a command that this build does not have.
fn absent(command: &str) -> Result<()> {
    Err(Error::unsupported(format!("`{command}`"), "it is not in this build"))
}
