//! Whether the folder of snapshots has room for them.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::report::bytes;
use crate::state::checkpoint;
use rustix::fs::statvfs;

/// Refuses a folder of snapshots that has not the room for those of a run.
///
/// # Errors
/// [`Error::Config`] naming folder and sizes.
pub fn check_room(config: &Config, plan: &Plan) -> Result<()> {
    let Some((folder, plan)) = config.snapshot_dir().zip(plan.snapshots) else { return Ok(()) };
    let there = folder.ancestors().find(|path| path.exists());
    let Some(disk) = there.and_then(|path| statvfs(path).ok()) else { return Ok(()) };
    // One that the run continues from stays where there is no room for the next: training says so
    // when that is due.
    let has_one = checkpoint::newest_part(&folder).is_ok_and(|found| found.is_some());
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if has_one || plan.bytes.fits(free) {
        return Ok(());
    }
    let message = format!(
        "{} has {} free, and snapshots need {} on this machine: make it larger (mount -o \
         remount,size=..., docker run --shm-size=...), or name another folder in memory",
        folder.display(),
        bytes(free),
        bytes(plan.bytes.get())
    );
    Err(Error::config("checkpoint.snapshot_dir", message))
}
