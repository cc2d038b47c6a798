//! Machines that have a folder each, and what they have together.

use super::job::folder_in_memory;
use headlong::state::checkpoint::{MANIFEST_FILE, Manifest, steps};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The machines of a job.
#[derive(Debug, Clone)]
pub struct Machines {
    pub ranks_of_one: usize,
    pub count: usize,
    /// The one that has rank 0.
    pub first: usize,
}

impl Machines {
    /// That of a rank.
    pub fn of(&self, rank: usize) -> usize {
        (rank / self.ranks_of_one + self.first) % self.count
    }

    /// What a machine has, of all that lies in `folder`.
    pub fn folder(&self, folder: &Path, machine: usize) -> PathBuf {
        folder.join(format!("machine-{machine}"))
    }
}

/// A folder with each checkpoint of which the machines have all files together.
pub fn assembled(folder: &Path, machines: &Machines) -> Result<TempDir, String> {
    let whole = folder_in_memory();
    let folders = (0..machines.count).map(|machine| machines.folder(folder, machine));
    let folders: Vec<PathBuf> = folders.filter(|folder| folder.exists()).collect();
    let mut all = BTreeSet::new();
    for folder in &folders {
        for (_, path) in steps(folder).map_err(|error| error.to_string())? {
            all.insert(path.file_name().expect("a step").to_owned());
        }
    }
    for step in all {
        let places: Vec<PathBuf> =
            folders.iter().map(|folder| folder.join(&step)).filter(|path| path.exists()).collect();
        let manifests = places.iter().map(|place| fs::read(place.join(MANIFEST_FILE)));
        let mut manifests: Vec<Vec<u8>> =
            manifests.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        manifests.dedup();
        // Of a step that was saved twice, each time by other machines.
        let [manifest] = &manifests[..] else { continue };
        let manifest = Manifest::parse(&places[0], manifest).map_err(|error| error.to_string())?;
        let names = manifest.files.iter().map(|entry| entry.file.as_str()).chain([MANIFEST_FILE]);
        let files = names
            .map(|name| places.iter().map(|place| place.join(name)).find(|file| file.exists()));
        let Some(files) = files.collect::<Option<Vec<PathBuf>>>() else { continue };
        let into = whole.path().join(&step);
        fs::create_dir(&into).unwrap();
        for file in files {
            fs::copy(&file, into.join(file.file_name().unwrap())).unwrap();
        }
    }
    Ok(whole)
}
