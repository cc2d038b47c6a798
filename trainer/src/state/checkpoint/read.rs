//! Reading a checkpoint: nothing is believed before its checksum agrees, and nothing large is held
//! in memory.

use super::difference::{Difference, first_difference};
use super::error::{CheckpointError, Result};
use super::layout::Portion;
use super::manifest::{
    DataFingerprint, FileEntry, MANIFEST_FILE, Manifest, ModelFingerprint, OptimizerFingerprint,
    checksum_text, optimizer_text,
};
use super::shard::{Content, Piece, header, pieces, portions};
use crate::state::digest::{CHUNK_BYTES, WeightsDigest};
use headlong_device::files::{open_regular, read_bounded};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;
use zerocopy::IntoBytes as _;

/// Manifests above this size are refused unread.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Is handed the rows of every piece: the piece, which of its rows, their numbers.
pub(super) type Visitor<'a> = dyn FnMut(&Piece, Portion, &[f32]) -> Result<()> + 'a;

/// A checkpoint whose manifest has been read and agrees with itself, and whose files are there with
/// the right sizes.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    /// Names of files that lie on other machines alone.
    absent: HashSet<String>,
}

impl Checkpoint {
    /// Opens the checkpoint in the directory `path`. Reads the manifest and the sizes of the files,
    /// no tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_part(path)?;
        let files = checkpoint.manifest.files.iter();
        match files
            .filter(|entry| checkpoint.absent.contains(&entry.file))
            .min_by_key(|it| &it.file)
        {
            Some(entry) => {
                checkpoint.open_file(entry)?;
                Err(CheckpointError::MissingFile { file: path.join(&entry.file) })
            }
            None => Ok(checkpoint),
        }
    }

    /// The same, where files of tensors may lie on other machines alone.
    pub fn open_part(path: &Path) -> Result<Self> {
        let file = path.join(MANIFEST_FILE);
        let manifest = Manifest::parse(&file, &read_manifest(path, &file)?)?;
        let mut checkpoint = Self { path: path.to_owned(), manifest, absent: HashSet::new() };
        checkpoint.check_name()?;
        let mut absent = HashSet::new();
        for entry in &checkpoint.manifest.files {
            match checkpoint.open_file(entry) {
                Err(CheckpointError::MissingFile { .. } | CheckpointError::WrongSize { .. })
                    if entry.content != Content::Blob =>
                {
                    absent.insert(entry.file.clone());
                }
                opened => drop(opened?),
            }
        }
        checkpoint.absent = absent;
        Ok(checkpoint)
    }

    /// Reads every byte that is here, and removes files of tensors that are damaged: they may be
    /// whole elsewhere. Says which.
    pub(super) fn without_damaged(mut self, remarks: &mut Vec<String>) -> Result<Self> {
        for entry in &self.manifest.files {
            match self.checked(entry) {
                Err(CheckpointError::MissingFile { .. }) if self.absent.contains(&entry.file) => {}
                Err(
                    damage
                    @ (CheckpointError::Corrupted { .. } | CheckpointError::WrongSize { .. }),
                ) if entry.content != Content::Blob => {
                    let path = self.path.join(&entry.file);
                    std::fs::remove_file(&path).map_err(CheckpointError::io("remove", &path))?;
                    remarks.push(format!("removed, since another machine may have it: {damage}"));
                    self.absent.insert(entry.file.clone());
                }
                checked => drop(checked?),
            }
        }
        Ok(self)
    }

    /// Whether this machine has all files.
    pub fn is_whole(&self) -> bool {
        self.absent.is_empty()
    }

    /// Whether this machine has a file of the manifest.
    pub fn has(&self, entry: &FileEntry) -> bool {
        !self.absent.contains(&entry.file)
    }

    /// By its name a directory is found, kept and removed: one of another step must not bear it.
    fn check_name(&self) -> Result<()> {
        let step = self.manifest.state.step;
        match step_named(&self.path, "") {
            Some(named) if named != step => Err(CheckpointError::NotACheckpoint {
                path: self.path.clone(),
                message: format!("it is one of step {step}: give it the name {}", step_name(step)),
            }),
            _ => Ok(()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of all files that are here.
    pub fn bytes(&self) -> u64 {
        let manifest = self.manifest.to_bytes().len() as u64;
        let here = self.manifest.files.iter().filter(|entry| self.has(entry));
        here.map(|entry| entry.bytes).sum::<u64>() + manifest
    }

    /// Refuses a checkpoint of another model, naming the first key that differs.
    pub fn check_model(&self, expected: &ModelFingerprint) -> Result<()> {
        let difference = first_difference("model", expected, &self.manifest.state.model);
        difference.map_or(Ok(()), |difference| Err(self.other_model(difference)))
    }

    /// Refuses a checkpoint of other optimisers, naming the first key that differs.
    pub fn check_optimizers(&self, expected: &OptimizerFingerprint) -> Result<()> {
        let in_words = |OptimizerFingerprint { dense, sparse }: &OptimizerFingerprint| {
            OptimizerFingerprint { dense: optimizer_text(dense), sparse: optimizer_text(sparse) }
        };
        let found = in_words(&self.manifest.state.optimizers);
        let difference = first_difference("optimizers", &in_words(expected), &found);
        difference.map_or(Ok(()), |difference| Err(self.other_model(difference)))
    }

    /// Refuses to use the weights on data that was prepared otherwise: another dense transform,
    /// another hash.
    pub fn check_data(&self, expected: &DataFingerprint) -> Result<()> {
        let difference = first_difference("data", expected, &self.manifest.state.data);
        difference.map_or(Ok(()), |Difference { key, expected, found }| {
            Err(CheckpointError::OtherData { path: self.path.clone(), key, expected, found })
        })
    }

    pub(super) fn other_model(
        &self,
        Difference { key, expected, found }: Difference,
    ) -> CheckpointError {
        CheckpointError::OtherModel { path: self.path.clone(), key, expected, found }
    }

    /// Reads every byte of the checkpoint and compares all checksums and the digest of the weights.
    pub fn verify(&self) -> Result<()> {
        self.stream(&mut |_, _, _| Ok(()))?;
        for entry in self.manifest.files.iter().filter(|entry| entry.content == Content::Blob) {
            self.checked(entry)?;
        }
        Ok(())
    }

    /// The bytes of the file `name` that another part of the program saved, their checksum
    /// compared; `None` where the checkpoint has no such file.
    pub fn blob(&self, name: &str) -> Result<Option<BufReader<File>>> {
        let entry = self.manifest.file(name).filter(|entry| entry.content == Content::Blob);
        entry.map(|entry| self.checked(entry)).transpose()
    }

    fn checked(&self, entry: &FileEntry) -> Result<BufReader<File>> {
        let mut input = self.open_file(entry)?;
        input.rest()?;
        input.finish(entry)?;
        Ok(BufReader::new(self.open_file(entry)?.file))
    }

    pub(super) fn stream(&self, visit: &mut Visitor<'_>) -> Result<()> {
        let mut digest = WeightsDigest::default();
        for entry in self.manifest.files.iter().filter(|entry| entry.content != Content::Blob) {
            self.stream_file(entry, &mut digest, visit)?;
        }
        self.check_digest(digest)
    }

    /// Whether these are the rows that were saved, of all files together.
    pub(super) fn check_digest(&self, mut digest: WeightsDigest) -> Result<()> {
        self.manifest.layout.tensors()?.iter().for_each(|tensor| digest.shape(tensor));
        let (expected, found) = (self.manifest.weights_digest.clone(), digest.finish());
        if expected == found {
            Ok(())
        } else {
            Err(CheckpointError::OtherDigest { path: self.path.clone(), expected, found })
        }
    }

    /// Reads one file, adds its rows to `digest`, and hands them to `visit`.
    pub(super) fn stream_file(
        &self,
        entry: &FileEntry,
        digest: &mut WeightsDigest,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let mut input = TensorInput::open(self, entry)?;
        let mut values = Vec::new();
        for (piece, portion) in
            portions(&pieces(&self.manifest.layout, &entry.content)?, CHUNK_BYTES)
        {
            input.read(piece, &portion, &mut values)?;
            visit(piece, portion, &values)?;
        }
        digest.merge(input.finish(entry)?);
        Ok(())
    }

    /// Opens a file of the checkpoint, which must have the size that the manifest says.
    fn open_file(&self, entry: &FileEntry) -> Result<Input> {
        let path = self.path.join(&entry.file);
        let file = open_regular(&path).map_err(CheckpointError::io("read", &path))?;
        let metadata = file.metadata().map_err(CheckpointError::io("read", &path))?;
        if metadata.len() != entry.bytes {
            let (expected, found) = (entry.bytes, metadata.len());
            return Err(CheckpointError::WrongSize { file: path, expected, found });
        }
        Ok(Input { path, file, checksum: Xxh3Default::new() })
    }
}

fn read_manifest(path: &Path, file: &Path) -> Result<Vec<u8>> {
    let not_a_checkpoint =
        |message: String| CheckpointError::NotACheckpoint { path: path.to_owned(), message };
    match open_regular(file) {
        // What the system says of its size is not believed: the file may grow.
        Ok(opened) => read_bounded(opened, MAX_MANIFEST_BYTES).map_err(|error| {
            not_a_checkpoint(format!("its {MANIFEST_FILE} cannot be read: {error}"))
        }),
        Err(_) if path.is_file() => {
            Err(not_a_checkpoint("it is a file, expected a directory".to_owned()))
        }
        Err(_) if !path.is_dir() => Err(not_a_checkpoint("there is no such directory".to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(not_a_checkpoint(format!("it has no {MANIFEST_FILE}")))
        }
        Err(error) => Err(CheckpointError::io("read", file)(error)),
    }
}

/// A file of tensors being read, with the digest of its rows so far.
pub(super) struct TensorInput {
    input: Input,
    digest: WeightsDigest,
    bytes: Vec<u8>,
}

impl TensorInput {
    /// Opens a file, whose header must be that of its tensors.
    pub fn open(checkpoint: &Checkpoint, entry: &FileEntry) -> Result<Self> {
        let expected = header(&pieces(&checkpoint.manifest.layout, &entry.content)?);
        let mut input = checkpoint.open_file(entry)?;
        let mut bytes = vec![0; expected.len()];
        input.take(&mut bytes)?;
        if bytes != expected {
            input.rest()?;
            let path = input.path.clone();
            input.finish(entry)?;
            let message = format!("the header of {} is not that of its tensors", entry.file);
            return Err(CheckpointError::Manifest { file: path, message });
        }
        Ok(Self { input, digest: WeightsDigest::default(), bytes })
    }

    /// The next rows of the file.
    pub fn read(&mut self, piece: &Piece, portion: &Portion, values: &mut Vec<f32>) -> Result<()> {
        self.bytes.resize(portion.len() * 4, 0);
        self.input.take(&mut self.bytes)?;
        self.digest.add(&piece.name, piece.width, portion.first_row, &self.bytes);
        from_bytes(&self.bytes, values);
        Ok(())
    }

    /// The digest of all rows, once the checksum agrees.
    pub fn finish(self, entry: &FileEntry) -> Result<WeightsDigest> {
        self.input.finish(entry)?;
        Ok(self.digest)
    }
}

/// A file being read, with the checksum of what was read so far.
struct Input {
    path: PathBuf,
    file: File,
    checksum: Xxh3Default,
}

impl Input {
    fn take(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(CheckpointError::io("read", &self.path))?;
        self.checksum.update(bytes);
        Ok(())
    }

    fn rest(&mut self) -> Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        loop {
            match self.file.read(&mut buffer).map_err(CheckpointError::io("read", &self.path))? {
                0 => return Ok(()),
                count => self.checksum.update(&buffer[..count]),
            }
        }
    }

    /// Compares the checksum once all bytes were read.
    fn finish(self, entry: &FileEntry) -> Result<()> {
        let found = checksum_text(self.checksum.digest128());
        if found == entry.xxh3_128 {
            Ok(())
        } else {
            let expected = entry.xxh3_128.clone();
            Err(CheckpointError::Corrupted { file: self.path, expected, found })
        }
    }
}

fn from_bytes(bytes: &[u8], values: &mut Vec<f32>) {
    values.resize(bytes.len() / 4, 0.0);
    let len = values.len() * 4;
    values.as_mut_slice().as_mut_bytes().copy_from_slice(&bytes[..len]);
    if cfg!(target_endian = "big") {
        values.as_mut_slice().as_mut_bytes().chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
}

const STEP: &str = "step-";

/// Name of the directory of the checkpoint of a step.
pub fn step_name(step: u64) -> String {
    format!("{STEP}{step:09}")
}

/// What the name of a checkpoint begins with that is being written or removed.
pub(super) const ASIDE: &str = ".tmp-";

/// Where a checkpoint in `directory` is written.
pub(super) fn aside_of(directory: &Path, step: u64) -> PathBuf {
    directory.join(format!("{ASIDE}{}", step_name(step)))
}

/// The step of a name that is written here: `prefix` and the name of a step's directory, digit for
/// digit.
pub(super) fn step_named(path: &Path, prefix: &str) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix(prefix)?;
    let step = name.strip_prefix(STEP)?.parse().ok()?;
    (name == step_name(step)).then_some(step)
}
