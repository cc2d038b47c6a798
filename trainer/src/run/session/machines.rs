//! Snapshots on machines that have a folder each: what they have together, and what each of them
//! gets to start from it.

use super::checkpoints::open_snapshots_on;
use crate::config::Config;
use crate::error::{Error, Result, exchange_failed};
use crate::state::checkpoint::{self, Checkpoint, Content, SystemFiles, share_manifest, steps};
use headlong_comm::{Communicator, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Whether the ranks are on several machines that do not share this folder.
pub(super) fn have_a_folder_each(folder: &Path, ranks: &Communicator) -> Result<bool> {
    if ranks.topology().num_nodes() == 1 {
        return Ok(false);
    }
    // The rank that makes the folder, or a file in it, has done so.
    ranks.barrier().map_err(exchange_failed("where snapshots are"))?;
    // Folders of two machines do not change in the same nanosecond under the same number.
    let mark = fs::metadata(folder).map_or([0; 4], |seen| {
        [seen.dev(), seen.ino(), seen.ctime() as u64, seen.ctime_nsec() as u64]
    });
    let mut all = vec![0; mark.len() * ranks.num_ranks()];
    ranks.all_gather(&mark, &mut all).map_err(exchange_failed("where snapshots are"))?;
    Ok(all.chunks_exact(mark.len()).any(|other| other != &all[..mark.len()]))
}

/// Whether this rank is the first of its machine.
pub(super) fn is_first_of_machine(ranks: &Communicator) -> bool {
    let topology = ranks.topology();
    topology.ranks_of(topology.node_of(ranks.rank())).first() == Some(&ranks.rank())
}

/// A snapshot that a machine has files of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    step: u64,
    /// Of its manifest.
    hash: u64,
    /// For each file of the manifest, whether it is there.
    files: Vec<bool>,
}

impl Found {
    fn mark(&self) -> (u64, u64) {
        (self.step, self.hash)
    }
}

/// Where the machines of `ranks` have a folder of snapshots each: finds the newest that they have
/// together, gives each machine its manifest, and removes all others, which no longer have all of
/// their files. So the newest of each machine is the same one. Says what was removed or lost.
///
/// # Errors
/// A folder that cannot be used; what the ranks exchange.
pub fn gather_snapshot(config: &Config, ranks: &Communicator) -> Result<Vec<String>> {
    let Some(folder) = config.snapshot_dir() else { return Ok(Vec::new()) };
    if !have_a_folder_each(&folder, ranks)? {
        return Ok(Vec::new());
    }
    let failed = || Error::failed("the run cannot be resumed");
    let (mut directory, mut own) = (None, Vec::new());
    if is_first_of_machine(ranks) {
        directory = open_snapshots_on(Arc::new(SystemFiles), config, 1)?;
        own = found_in(&folder).map_err(failed())?;
    }
    let found: Vec<&Found> = own.iter().map(|(found, _)| found).collect();
    let said = tell_all(ranks, &found)?;
    let chosen = newest_whole(&said);
    if let Some(chosen) = chosen {
        let has = |rank: usize| said[rank].iter().any(|found| found.mark() == chosen);
        let giver = (0..said.len()).position(has).unwrap_or(0);
        let tell = |word: &mut [u8]| Ok(ranks.broadcast(Rank(giver), word)?);
        let mine = own.iter().find(|(found, _)| found.mark() == chosen).map(|(_, mine)| mine);
        let given = mine.filter(|_| ranks.rank() == Rank(giver));
        let into = directory.as_ref().filter(|_| mine.is_none());
        share_manifest(&tell, chosen.0, given, into).map_err(failed())?;
    }
    let mut remarks = Vec::new();
    if let Some(directory) = &directory {
        for (found, left) in own {
            if chosen.is_some_and(|(step, _)| step == found.step) {
                continue;
            }
            directory.remove_step(found.step).map_err(failed())?;
            let left = left.path().display();
            remarks.push(format!("removed {left}: the machines of this job lack a part of it"));
        }
    }
    drop(directory);
    ranks.barrier().map_err(exchange_failed("the snapshot to start from"))?;
    Ok(remarks)
}

/// What this machine has.
fn found_in(folder: &Path) -> checkpoint::Result<Vec<(Found, Checkpoint)>> {
    // What is damaged here may be whole on another machine, and is replaced by it then.
    let opened =
        steps(folder)?.into_iter().filter_map(|(_, path)| Checkpoint::open_part(&path).ok());
    let found = |checkpoint: Checkpoint| {
        let manifest = checkpoint.manifest();
        let tensors = manifest.files.iter().filter(|entry| entry.content != Content::Blob);
        let found = Found {
            step: manifest.state.step,
            hash: xxh3_64(&manifest.to_bytes()),
            files: tensors.map(|entry| checkpoint.has(entry)).collect(),
        };
        (found, checkpoint)
    };
    Ok(opened.map(found).collect())
}

/// The newest of which each file is somewhere.
fn newest_whole(said: &[Vec<Found>]) -> Option<(u64, u64)> {
    let mut all: BTreeMap<(u64, u64), Vec<bool>> = BTreeMap::new();
    for found in said.iter().flatten() {
        let files = all.entry(found.mark()).or_insert_with(|| vec![false; found.files.len()]);
        files.iter_mut().zip(&found.files).for_each(|(any, here)| *any |= here);
    }
    let is_whole = |files: &Vec<bool>| files.iter().all(|any| *any);
    all.into_iter().rev().find(|(_, files)| is_whole(files)).map(|(mark, _)| mark)
}

/// What each rank says, for all.
fn tell_all(ranks: &Communicator, own: &[&Found]) -> Result<Vec<Vec<Found>>> {
    let failed = || exchange_failed("which snapshots there are");
    let mut own = serde_json::to_vec(own).expect("a list has text keys only");
    let mut lengths = vec![0_u64; ranks.num_ranks()];
    ranks.all_gather(&[own.len() as u64], &mut lengths).map_err(failed())?;
    let longest = lengths.iter().max().map_or(0, |&longest| longest as usize);
    own.resize(longest, b' ');
    let mut all = vec![0; longest * lengths.len()];
    ranks.all_gather(&own, &mut all).map_err(failed())?;
    let parse = |text: &[u8]| {
        serde_json::from_slice(text).map_err(Error::failed("what a rank says of its snapshots"))
    };
    all.chunks_exact(longest).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(step: u64, hash: u64, files: &[u8]) -> Found {
        Found { step, hash, files: files.iter().map(|&there| there == 1).collect() }
    }

    #[test]
    fn the_newest_counts_of_which_no_file_is_lost() {
        // Three machines; each has its own file and that of the one before.
        let old = [&[1, 0, 1][..], &[1, 1, 0], &[0, 1, 1]];
        let mut said: Vec<Vec<Found>> = old.iter().map(|files| vec![found(10, 1, files)]).collect();
        assert_eq!(newest_whole(&said), Some((10, 1)));
        assert_eq!(newest_whole(&said[1..]), Some((10, 1)), "any machine may be lost");
        assert_eq!(newest_whole(&said[2..]), None, "two may not");
        // The next has its name on one machine only when the job ends.
        said[0].push(found(20, 2, &[1, 0, 1]));
        assert_eq!(newest_whole(&said), Some((10, 1)));
        said[1].push(found(20, 2, &[1, 1, 0]));
        assert_eq!(newest_whole(&said), Some((20, 2)));
        // Files of two runs are not one snapshot.
        said[2].push(found(30, 3, &[1, 1, 0]));
        said[1].push(found(30, 4, &[0, 0, 1]));
        assert_eq!(newest_whole(&said), Some((20, 2)));
        assert_eq!(newest_whole(&[Vec::new(), Vec::new()]), None);
    }
}
