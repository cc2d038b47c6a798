//! What `headlong launch --elastic` tells the processes that it starts.

use headlong_comm::launcher_env::environment;
use std::path::PathBuf;

/// The variable that names the folder of the job's snapshots.
pub const SNAPSHOT_DIR: &str = "HEADLONG_SNAPSHOT_DIR";
/// The variable that says how often the job has been started again.
pub const RESTART_COUNT: &str = "HEADLONG_RESTART_COUNT";

/// The folder that the launcher has for snapshots, if it has one.
pub fn snapshot_dir() -> Option<PathBuf> {
    environment().remove(SNAPSHOT_DIR).map(PathBuf::from)
}

/// Whether this job has lost a rank before, and is to continue where it can.
pub fn has_restarted() -> bool {
    let count = environment().remove(RESTART_COUNT).and_then(|count| count.into_string().ok());
    count.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 0)
}
