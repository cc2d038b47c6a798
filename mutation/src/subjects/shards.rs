//! A whole checkpoint: its manifest, shards of dense parameters and of rows, and a blob, with
//! checksums that fit what was damaged.

use super::{Files, Subject, as_it_is, one, refused};
use crate::entries::signed_manifest;
use crate::mutate;
use headlong::state::checkpoint::{
    Blob, Cause, Checkpoint, CheckpointDirectory, CheckpointSource, DirectoryOptions, Layout,
    MANIFEST_FILE, Manifest, Snapshot, TensorId,
};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

const FOLDER: &str = "step-000000003";

pub const CHECKPOINT: Subject = Subject {
    name: "checkpoint",
    bound_mib: 32,
    good: |folder| Ok(vec![save(folder, 1 << 20)?, save(folder, 300)?]),
    damage: |good, random| {
        let mut files = one(good, random);
        for _ in 0..=random.below(2) {
            let file = random.below(files.len());
            mutate::bytes(&mut files[file].1, random);
            if !random.once_in(4) {
                sign(&mut files, file);
            }
        }
        files
    },
    seal: as_it_is,
    on_disk: true,
    read: |folder, _| {
        let checkpoint = Checkpoint::open(&folder.join(FOLDER)).map_err(refused)?;
        checkpoint.verify().map_err(refused)
    },
};

/// A model whose values are all the same.
struct Constant(Layout);

impl CheckpointSource for Constant {
    fn layout(&self) -> Layout {
        self.0.clone()
    }

    fn read(&self, _: TensorId, _: u64, out: &mut [f32]) -> Result<(), Cause> {
        out.fill(0.5);
        Ok(())
    }
}

fn save(folder: &Path, shard_bytes: u64) -> anyhow::Result<Files> {
    let body = include_bytes!("../../../fuzz/seeds/checkpoint_manifest/one_shard.json");
    let manifest = Manifest::parse(Path::new(MANIFEST_FILE), &signed_manifest(body))?;
    let source = Constant(manifest.layout);
    let blob = Blob {
        file: "config.toml".to_owned(),
        estimated_bytes: 20,
        write: Box::new(|to| to.write_all(b"[model]\ndim = 4\n")),
    };
    let options = DirectoryOptions { shard_bytes, ..DirectoryOptions::default() };
    let directory = CheckpointDirectory::open(folder, options)?;
    directory.save(&Snapshot { source: &source, state: manifest.state, blobs: vec![blob] })?;
    drop(directory);
    let mut files = super::read::take_files(folder)?;
    files.retain(|(name, _)| name.starts_with(FOLDER));
    // The folders stay, and a checkpoint of the name would be replaced.
    std::fs::remove_dir_all(folder.join(FOLDER))?;
    Ok(files)
}

/// Makes the manifest say the size and the checksum that `file` has, or signs itself.
fn sign(files: &mut Files, file: usize) {
    let is_manifest = |name: &str| name.ends_with(MANIFEST_FILE);
    let Some(place) = files.iter().position(|(name, _)| is_manifest(name)) else { return };
    let text = String::from_utf8_lossy(&files[place].1);
    // What follows the line of the checksum.
    let body = text.splitn(3, '\n').nth(2).unwrap_or_default().trim_end_matches('\n').to_owned();
    if file == place {
        files[place].1 = signed_manifest(body.as_bytes());
        return;
    }
    let path = Path::new(MANIFEST_FILE);
    let Ok(mut manifest) = Manifest::parse(path, &files[place].1) else { return };
    let (name, bytes) = &files[file];
    for entry in manifest.files.iter_mut().filter(|entry| name.ends_with(&entry.file)) {
        entry.bytes = bytes.len() as u64;
        entry.xxh3_128 = format!("{:032x}", xxh3_128(bytes));
    }
    files[place].1 = manifest.to_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else damage would be found by checksums alone.
    #[test]
    fn what_was_damaged_and_signed_gets_past_the_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = save(folder.path(), 1 << 20).unwrap();
        let shard = files.iter().position(|(name, _)| name.ends_with("dense.safetensors")).unwrap();
        *files[shard].1.last_mut().unwrap() ^= 1;
        sign(&mut files, shard);
        crate::worker::write_files(&files, folder.path()).unwrap();
        let error = (CHECKPOINT.read)(folder.path(), &files).unwrap_err();
        assert!(error.contains("digest"), "{error}");
    }
}
