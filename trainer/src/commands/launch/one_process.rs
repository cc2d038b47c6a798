//! Commands that are the work of one process, where a launcher has started several.

use crate::report::output::say;
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
