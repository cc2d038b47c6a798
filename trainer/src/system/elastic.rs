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

/// How often this job has lost a rank before, and was started again to continue where it can.
pub fn restarts() -> u64 {
    let count = environment().remove(RESTART_COUNT).and_then(|count| count.into_string().ok());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
