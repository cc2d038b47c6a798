//! A save on several machines that have a folder each: every file lies on two of them.
//!
//! A file is written on the machine of its writer and, at the same time, on the next machine, whose
//! process gets the rows as the writer does. Process 0 sends what only it knows, the manifest the
//! last; when all machines have everything, each gives its folder the final name, and when all have
//! done so, each removes what was there before. So at any moment there is a checkpoint of which any
//! one machine may be lost.

use super::directory::{Begun, CheckpointDirectory, SaveReport};
use super::error::{Cause, CheckpointError, Result};
use super::files::Files;
use super::layout::{CheckpointSource, Peers, Processes};
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest, check_name, checksum_text};
use super::read::{Checkpoint, aside_of};
use super::shard::{Content, DEFAULT_SHARD_BYTES};
use super::tensor_file::{FilePlan, Output, TensorFile};
use super::together::{agreed, gather_parts, write_parts};
use super::write::{Blob, Snapshot};
use crate::state::digest::{CHUNK_BYTES, WeightsDigest, exchange_error};
use std::io::Read as _;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::IntoBytes as _;

/// How a process takes part in such a save.
pub struct Mirrored<'a> {
    pub files: &'a dyn Files,
    /// The folder of its machine.
    pub folder: &'a Path,
    /// The same, of the first process of each machine.
    pub directory: Option<&'a CheckpointDirectory>,
}

/// Saves `source` as `step`: all of its processes do so together. `snapshot` is that of process 0,
/// which gets the report.
///
/// # Errors
/// As of [`CheckpointDirectory::save`], on the machine where it happens. The newest checkpoint from
/// before is as it was.
pub fn save_mirrored(
    own: &Mirrored<'_>,
    source: &dyn CheckpointSource,
    step: u64,
    snapshot: Option<&Snapshot<'_>>,
) -> Result<Option<SaveReport>> {
    let processes = source.processes().ok_or_else(|| CheckpointError::Layout {
        message: "its rows lie with one process".to_owned(),
    })?;
    let plan = FilePlan::new(source, DEFAULT_SHARD_BYTES)?;
    let save = Save { own, plan, processes, mirrors: mirrors(processes) };
    let needed = save.bytes_on(processes.machine_of(processes.own()));
    let begin = |directory: &CheckpointDirectory| directory.begin_aside(step, needed);
    let begun = agreed(Some(processes), own.directory.map(begin).transpose())?;
    let place = own.directory.zip(begun);
    let saved = save.write(&aside_of(own.folder, step), snapshot, place.as_ref());
    match (place, saved) {
        (Some((directory, begun)), Ok(saved)) => {
            let report = directory.conclude(begun, saved.bytes, saved.weights_digest);
            Ok(snapshot.map(|_| report))
        }
        (Some((directory, begun)), Err(error)) => Err(directory.abandon(begun, error)),
        (None, saved) => saved.map(|_| None),
    }
}

struct Save<'a> {
    own: &'a Mirrored<'a>,
    plan: FilePlan,
    processes: &'a dyn Processes,
    /// The process that writes what another one does, once more.
    mirrors: Vec<usize>,
}

/// For each process, the one that has its place on the next machine.
fn mirrors(processes: &dyn Peers) -> Vec<usize> {
    let mut machines: Vec<Vec<usize>> = Vec::new();
    let mut places = Vec::new();
    for process in 0..processes.count() {
        let machine = processes.machine_of(process);
        machines.resize(machines.len().max(machine + 1), Vec::new());
        places.push((machine, machines[machine].len()));
        machines[machine].push(process);
    }
    let mirror = |(machine, place): (usize, usize)| {
        let next = &machines[(machine + 1) % machines.len()];
        next[place % next.len()]
    };
    places.into_iter().map(mirror).collect()
}

/// What process 0 knows of the whole.
#[derive(Default)]
struct Saved {
    bytes: u64,
    weights_digest: String,
}

impl Save<'_> {
    fn write(
        &self,
        aside: &Path,
        snapshot: Option<&Snapshot<'_>>,
        place: Option<&(&CheckpointDirectory, Begun)>,
    ) -> Result<Saved> {
        let Mirrored { files, .. } = *self.own;
        let writes = |process, file: &TensorFile| self.writes(process, file);
        let parts = write_parts(files, aside, &self.plan, self.processes, &writes)?;
        let mut parts = gather_parts(&parts, self.processes)?;
        // Each file is there twice. Where the two differed, the manifest would name it twice, which
        // its check refuses.
        parts.dedup();
        let (mut entries, mut digest) = (Vec::new(), WeightsDigest::default());
        for part in parts {
            entries.push(part.entry);
            digest.merge(part.digest);
        }
        let mut saved = Saved::default();
        let mut small = Vec::new();
        if let Some(snapshot) = snapshot {
            self.plan.layout.tensors()?.iter().for_each(|tensor| digest.shape(tensor));
            saved.weights_digest = digest.finish();
            for blob in &snapshot.blobs {
                let (entry, bytes) = in_memory(blob)?;
                small.push((entry.file.clone(), bytes));
                entries.push(entry);
            }
            saved.bytes = entries.iter().map(|entry| entry.bytes).sum();
            let (state, layout) = (snapshot.state.clone(), self.plan.layout.clone());
            let manifest = Manifest::new(state, layout, saved.weights_digest.clone(), entries);
            manifest.check().map_err(|message| CheckpointError::Layout { message })?;
            small.push((MANIFEST_FILE.to_owned(), manifest.to_bytes()));
        }
        let tell = |word: &mut [u8]| self.processes.tell(0, word);
        let shared = share(&tell, small, place.map(|_| (files, aside)))?;
        let shared = shared.and_then(|()| match place {
            Some(_) => files.sync_dir(aside).map_err(CheckpointError::io("flush", aside)),
            None => Ok(()),
        });
        agreed(Some(self.processes), shared)?;
        place.map_or(Ok(()), |(directory, begun)| directory.move_into_place(begun))?;
        self.wait_for_all()?;
        Ok(saved)
    }

    /// A process writes its own files and those of the machine before.
    fn writes(&self, process: usize, file: &TensorFile) -> bool {
        process == file.writer || process == self.mirrors[file.writer]
    }

    /// Bytes of the files that a machine gets.
    fn bytes_on(&self, machine: usize) -> u64 {
        let on = |process: usize| self.processes.machine_of(process) == machine;
        let files = self.plan.files.iter();
        let here = files.filter(|file| on(file.writer) || on(self.mirrors[file.writer]));
        here.map(TensorFile::bytes).fold(0, u64::saturating_add)
    }

    fn wait_for_all(&self) -> Result<()> {
        self.processes.all_say(true).map(drop).map_err(exchange_error("how far a save has come"))
    }
}

/// Gives each process the bytes of one of them, which are as long.
type Tell<'a> = dyn Fn(&mut [u8]) -> Result<(), Cause> + 'a;

/// Gives the manifest of `own`, and its files without tensors, to the machines that lack them: into
/// `directory` there. All processes call this together; the one whose bytes `tell` gives has `own`.
///
/// # Errors
/// A file that cannot be read or written; what the processes exchange.
pub(super) fn share_manifest(
    tell: &Tell<'_>,
    step: u64,
    own: Option<&Checkpoint>,
    directory: Option<&CheckpointDirectory>,
) -> Result<()> {
    let mut small = Vec::new();
    if let Some(checkpoint) = own {
        let manifest = checkpoint.manifest();
        for FileEntry { file, .. } in manifest.files.iter().filter(|it| it.content == Content::Blob)
        {
            let mut bytes = Vec::new();
            let path = checkpoint.path().join(file);
            let blob = checkpoint.blob(file)?;
            let read = blob.map_or(Ok(0), |mut blob| blob.read_to_end(&mut bytes));
            read.map_err(CheckpointError::io("read", &path))?;
            small.push((file.clone(), bytes));
        }
        small.push((MANIFEST_FILE.to_owned(), manifest.to_bytes()));
    }
    let begun = directory.map(|directory| directory.begin(step, 0)).transpose()?;
    let into = directory.zip(begun);
    let place = into.as_ref().map(|(directory, begun)| (directory.files(), begun.aside.as_path()));
    if let Some((files, aside)) = place {
        files.create_dir(aside).map_err(CheckpointError::io("create", aside))?;
    }
    share(tell, small, place)??;
    if let Some((directory, begun)) = &into {
        let flushed = directory.files().sync_dir(&begun.aside);
        flushed.map_err(CheckpointError::io("flush", &begun.aside))?;
        directory.move_into_place(begun)?;
    }
    Ok(())
}

/// Writes the files that one process has in `small` where there is a place for them. Gives whether
/// this process could: it hears them out also where not.
fn share(
    tell: &Tell<'_>,
    small: Vec<(String, Vec<u8>)>,
    place: Option<(&dyn Files, &Path)>,
) -> Result<Result<()>> {
    let mut written = Ok(());
    let refused = || exchange_error("the manifest");
    let tell = |word: &mut [u8]| tell(word).map_err(refused());
    let lengths: Vec<_> = small.iter().map(|(name, bytes)| (name, bytes.len())).collect();
    let mut names = serde_json::to_vec(&lengths).expect("a list has text keys only");
    let mut length = [names.len() as u64];
    tell(length.as_mut_bytes())?;
    names.resize(length[0] as usize, 0);
    tell(&mut names)?;
    let names: Vec<(String, usize)> =
        serde_json::from_slice(&names).map_err(|error| refused()(error.into()))?;
    for (index, (name, length)) in names.into_iter().enumerate() {
        if name != MANIFEST_FILE {
            check_name(&name).map_err(|message| CheckpointError::Layout { message })?;
        }
        let create =
            |(files, aside): (&dyn Files, &Path)| Output::create(files, &aside.join(&name));
        let mut output = None;
        if let (Some(place), Ok(())) = (place, &written) {
            match create(place) {
                Ok(created) => output = Some(created),
                Err(error) => written = Err(error),
            }
        }
        let mut chunk = Vec::new();
        for begin in (0..length).step_by(CHUNK_BYTES as usize) {
            let end = length.min(begin + CHUNK_BYTES as usize);
            chunk.clear();
            match small.get(index) {
                Some((_, bytes)) => chunk.extend_from_slice(&bytes[begin..end]),
                None => chunk.resize(end - begin, 0),
            }
            tell(&mut chunk)?;
            if written.is_ok() {
                written = output.as_mut().map_or(Ok(()), |output| output.put(&chunk));
            }
        }
        if written.is_ok() {
            written = output.map_or(Ok(()), |output| output.finish(&name, Content::Blob).map(drop));
        }
    }
    Ok(written)
}

fn in_memory(blob: &Blob<'_>) -> Result<(FileEntry, Vec<u8>)> {
    let mut bytes = Vec::new();
    (blob.write)(&mut bytes).map_err(CheckpointError::io("write", Path::new(&blob.file)))?;
    let xxh3_128 = checksum_text(xxh3_128(&bytes));
    let (file, content) = (blob.file.clone(), Content::Blob);
    Ok((FileEntry { file, bytes: bytes.len() as u64, xxh3_128, content }, bytes))
}
