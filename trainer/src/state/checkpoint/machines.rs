//! Checkpoints on machines that have a folder each: what they have together, and what each of them
//! gets to start from it.

use super::directory::{CheckpointDirectory, steps};
use super::error::{CheckpointError, Result};
use super::files::mark;
use super::layout::Peers;
use super::mirrored::share_manifest;
use super::read::Checkpoint;
use super::shard::Content;
use crate::state::digest::exchange_error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes as _;

/// Whether machines have a folder of this name each. Processes of one machine have the same.
///
/// # Errors
/// A process that has another folder than the first of its machine; what the processes exchange.
pub fn have_a_folder_each(folder: &Path, peers: &dyn Peers) -> Result<bool> {
    let refused = || exchange_error("where its directory is");
    // The process that makes the folder, or a file in it, has done so.
    peers.all_say(true).map_err(refused())?;
    let said = peers.gather(mark(folder).as_bytes()).map_err(refused())?;
    let is_odd = |process: &usize| said[first_of_machine(peers, *process)] != said[*process];
    let odd = (0..said.len()).find(is_odd).map_or(u64::MAX, |process| process as u64);
    let mut decided = [u64::from(said.iter().any(|mark| *mark != said[0])), odd];
    peers.tell(0, decided.as_mut_bytes()).map_err(refused())?;
    match decided {
        [each, u64::MAX] => Ok(each == 1),
        [_, rank] => Err(CheckpointError::OtherFolder { path: folder.to_owned(), rank }),
    }
}

/// Whether this process is the first of its machine.
pub fn is_first_of_machine(peers: &dyn Peers) -> bool {
    first_of_machine(peers, peers.own()) == peers.own()
}

/// The first process of the machine that has this one.
fn first_of_machine(peers: &dyn Peers, process: usize) -> usize {
    let is_there = |other: &usize| peers.machine_of(*other) == peers.machine_of(process);
    (0..process).find(is_there).unwrap_or(process)
}

/// A checkpoint that a machine has files of.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    step: u64,
    /// Of its manifest.
    hash: u64,
    /// For each file of tensors, whether it is there.
    files: Vec<bool>,
}

impl Found {
    fn mark(&self) -> (u64, u64) {
        (self.step, self.hash)
    }
}

/// Finds the newest checkpoint that the machines have together, gives each of them its manifest,
/// and leaves out all others, until another one is saved: they lack files, or a newer one is whole.
/// So the newest of each machine is the same one. A file that is damaged here counts as one that is
/// not. The first process of each machine has its `directory`. Says what is damaged or lacks files.
///
/// # Errors
/// A folder that cannot be used; what the processes exchange.
pub fn gather_mirrored(
    directory: Option<&CheckpointDirectory>,
    peers: &dyn Peers,
) -> Result<Vec<String>> {
    let refused = || exchange_error("which checkpoints there are");
    let (mut remarks, mut own) = (Vec::new(), Vec::new());
    if let Some(directory) = directory {
        directory.bring_back()?;
        own = found_in(directory.path(), &mut remarks)?;
    }
    let found: Vec<&Found> = own.iter().map(|(found, _)| found).collect();
    let found = serde_json::to_vec(&found).expect("a list has text keys only");
    let mut said: Vec<Vec<Found>> = Vec::new();
    for text in peers.gather(&found).map_err(refused())? {
        said.push(serde_json::from_slice(&text).map_err(|error| refused()(error.into()))?);
    }
    // Process 0 decides: whether there is one, its step and hash, and a process that has it.
    let mut decided = [0_u64; 4];
    if let Some(chosen) = newest_whole(&said) {
        let has = |found: &Vec<Found>| found.iter().any(|found| found.mark() == chosen);
        let giver = said.iter().position(has).unwrap_or(0) as u64;
        decided = [1, chosen.0, chosen.1, giver];
    }
    peers.tell(0, decided.as_mut_bytes()).map_err(refused())?;
    let [is_one, step, hash, giver] = decided;
    let giver = (giver as usize).min(peers.count() - 1);
    let chosen = (is_one == 1).then_some((step, hash));
    if chosen.is_some() {
        let mine = own.iter().find(|(found, _)| Some(found.mark()) == chosen);
        let given = mine.map(|(_, mine)| mine).filter(|_| peers.own() == giver);
        let into = directory.filter(|_| mine.is_none());
        share_manifest(&|word| peers.tell(giver, word), step, given, into)?;
    }
    // Only now: until here, what a machine has may be needed.
    peers.all_say(true).map_err(refused())?;
    let Some(directory) = directory else { return Ok(remarks) };
    for (left, path) in steps(directory.path())? {
        if chosen.is_some_and(|(step, _)| step == left) {
            continue;
        }
        directory.leave_out(left)?;
        // An older one is no loss.
        if chosen.is_none_or(|(step, _)| step < left) {
            let path = path.display();
            remarks.push(format!("{path} is left out: the machines of this job lack a part of it"));
        }
    }
    Ok(remarks)
}

/// What this machine has; says what is damaged.
fn found_in(folder: &Path, remarks: &mut Vec<String>) -> Result<Vec<(Found, Checkpoint)>> {
    let mut all = Vec::new();
    for (step, path) in steps(folder)? {
        // What is damaged here may be whole on another machine.
        let checked = Checkpoint::open_part(&path).and_then(|found| found.without_damaged(remarks));
        let checkpoint = match checked {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                remarks.push(error.with_cause());
                continue;
            }
        };
        let manifest = checkpoint.manifest();
        let tensors = manifest.files.iter().filter(|entry| entry.content != Content::Blob);
        let files = tensors.map(|entry| checkpoint.has(entry)).collect();
        let hash = xxh3_64(&manifest.to_bytes());
        all.push((Found { step, hash, files }, checkpoint));
    }
    Ok(all)
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
