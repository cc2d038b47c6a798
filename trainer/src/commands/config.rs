//! `headlong config show` and `headlong config check`.

use crate::Registry;
use crate::commands::train_arguments::TrainArguments;
use crate::error::Result;
use crate::report::output;

/// Prints the effective configuration as TOML that can be read back.
pub fn show(arguments: &TrainArguments, registry: &Registry) -> Result<()> {
    let (config, options) = arguments.resolve(registry)?;
    config.check_paths_are_text()?;
    output::print(&format!("# From {}.\n\n{}", options.origin, config.to_commented_toml()))
}

/// Checks the effective configuration, and that the files it names can be read.
pub fn check(arguments: &TrainArguments, registry: &Registry) -> Result<()> {
    let (config, options) = arguments.resolve(registry)?;
    config.check_files()?;
    let data = match (config.data.train.len(), config.synthetic.enabled) {
        (0, true) => "synthetic data".to_owned(),
        (0, false) => "no data named".to_owned(),
        (1, _) => "1 training file".to_owned(),
        (files, _) => format!("{files} training files"),
    };
    output::print(&format!("{}: no faults found ({data})", options.origin))
}
