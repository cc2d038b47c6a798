//! Commands that are the work of one process, where a launcher has started several.

use crate::Registry;
use crate::config::Config;
use crate::error::Result;
use crate::report::output::say;
use crate::run::device::{self, RanksHere};
use headlong_comm::launcher_env::{self, Launch};

/// The launch where a launcher has started several processes.
pub fn launch_of_several() -> Option<Launch> {
    // A process that its environment does not tell from a lone one is a lone one.
    launcher_env::read().ok()?.launch().filter(|launch| launch.world_size > 1)
}

/// Rank and number of processes where a launcher has started several.
pub fn launched() -> Option<(usize, usize)> {
    launch_of_several().map(|launch| (launch.rank.0, launch.world_size))
}

/// The ranks of this process and of its machine. Where a launcher does not say how many the machine
/// has, it may have all.
fn ranks_here(config: &Config) -> RanksHere {
    match launch_of_several() {
        None => RanksHere::single_process(config),
        Some(Launch { rank, world_size, local_rank, local_size, .. }) => RanksHere {
            first: local_rank.unwrap_or(rank.0),
            of_process: 1,
            of_machine: local_size.unwrap_or(world_size),
            of_job: world_size,
        },
    }
}

/// Decides `run.device` where it is `auto`; the first rank of each machine says how.
///
/// # Errors
/// As [`device::decide`].
pub fn with_device(config: &Config, registry: &Registry) -> Result<Config> {
    let here = ranks_here(config);
    let decided = device::decide(config, here, registry)?;
    if let (0, Some(note)) = (here.first, decided.note) {
        say(note);
    }
    Ok(decided.config)
}

/// Whether this process does the work of a command that one process does. Of several, rank 0 does
/// it, and says so.
pub fn does_the_work(command: &str) -> bool {
    match launched() {
        Some((0, processes)) => {
            say(format_args!(
                "`{command}` is the work of one process: rank 0 of {processes} does it, the others \
                 end at once"
            ));
            true
        }
        Some(_) => false,
        None => true,
    }
}
