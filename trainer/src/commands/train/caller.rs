//! What has called for a run: a person by a command line, or a program by a call.

use crate::Registry;
use crate::commands::train_arguments::{Caller, TrainArguments, TrainOptions, of_training};
use crate::error::Result;
use crate::report::{LogTarget, Reporter};
use crate::system::signals::StopRequest;

/// Trains as the flags say; for the command line where there is no `caller`.
///
/// # Errors
/// As [`run`](super::run), and of flags that contradict each other.
pub fn from_arguments(
    arguments: &TrainArguments,
    registry: &Registry,
    caller: Option<Caller>,
) -> Result<()> {
    let (config, options) = arguments.resolve(registry)?;
    config.require_data()?;
    of_training(arguments, &config).check()?;
    super::run(&config, &TrainOptions { caller, ..options })
}

pub(super) fn reporter(options: &TrainOptions, appends: bool) -> Result<Reporter> {
    match &options.caller {
        Some(caller) => Ok(Reporter::to_caller(&caller.listen, caller.shows_bar)),
        None => Reporter::new(log_target(&options.flags), appends),
    }
}

/// Where the JSON log goes. A dry run leaves the log of an earlier run alone; to standard output it
/// writes nothing else, either.
fn log_target(flags: &TrainArguments) -> Option<&LogTarget> {
    let target = flags.log_json.as_ref();
    target.filter(|target| !flags.dry_run || **target == LogTarget::Stdout)
}

/// Signals are a command line's: a program hears those of its process itself.
pub(super) fn stop_request(options: &TrainOptions) -> Result<StopRequest> {
    match &options.caller {
        Some(caller) => Ok(caller.stop.clone()),
        None => StopRequest::listen(),
    }
}
