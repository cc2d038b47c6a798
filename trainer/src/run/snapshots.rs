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
    // One that the run continues from is replaced by the next.
    let taken = checkpoint::newest_part(&folder).ok().flatten().map_or(0, |found| found.bytes());
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(taken);
    if plan.bytes.fits(free) {
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
