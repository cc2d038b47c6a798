//! The tensors of a checkpoint on their way into a model, whose rows lie with one process or with
//! several.

use super::difference::first_difference;
use super::error::{CheckpointError, Result};
use super::layout::{CheckpointSink, Peers, Portion, Processes};
use super::manifest::FileEntry;
use super::read::{Checkpoint, TensorInput};
use super::shard::{Content, Piece, pieces, portions};
use crate::state::digest::{CHUNK_BYTES, WeightsDigest, exchange_error};
use zerocopy::IntoBytes as _;

/// What [`Checkpoint::load`] hands to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Weights and optimiser states: to resume.
    All,
    /// Weights alone: to evaluate, predict, export, or start another run from.
    WeightsOnly,
}

impl Select {
    fn wants(self, portion: &Portion) -> bool {
        self == Self::All || portion.tensor.state.is_none()
    }
}

/// Rows that are delivered at once are at least this many bytes.
const SMALLEST_PORTION_BYTES: u64 = 64 << 10;

impl Checkpoint {
    /// Streams the tensors into `sink`, some MiB at a time, and checks every checksum. Where the
    /// rows lie with several processes, all of them load the same checkpoint together: each reads
    /// and checks a part of the files. After an error the sink is half filled and must not be used.
    ///
    /// # Errors
    /// The layout of the sink is another one (the first difference is named), a damaged file, or an
    /// error of the sink.
    pub fn load(&self, sink: &mut dyn CheckpointSink, select: Select) -> Result<()> {
        let saved = self.manifest().layout.clone();
        let (expected, found) = match select {
            Select::All => (sink.layout(), saved),
            Select::WeightsOnly => (sink.layout().weights_only(), saved.weights_only()),
        };
        let expected = expected.with_entries_of(&found);
        if let Some(difference) = first_difference("layout", &expected, &found) {
            return Err(self.other_model(difference));
        }
        if sink.processes().is_some() {
            return load_together(self, sink, select);
        }
        self.stream(&mut |piece, portion, values| put(sink, select, piece, &portion, values))
    }
}

fn put(
    sink: &mut dyn CheckpointSink,
    select: Select,
    piece: &Piece,
    portion: &Portion,
    values: &[f32],
) -> Result<()> {
    if !select.wants(portion) {
        return Ok(());
    }
    sink.write(portion.tensor, portion.first_row, values).map_err(|source| {
        let (tensor, action) = (piece.name.clone(), "put into the model");
        CheckpointError::Tensor { tensor, action, source }
    })
}

fn load_together(
    checkpoint: &Checkpoint,
    sink: &mut dyn CheckpointSink,
    select: Select,
) -> Result<()> {
    let layout = &checkpoint.manifest().layout;
    let takes_in_order = |entry: &FileEntry| match &entry.content {
        Content::Rows { ranges } => ranges.iter().any(|range| {
            let table = layout.tables.iter().position(|table| table.name == range.table);
            table.is_some_and(|table| of(sink).takes_in_order(table))
        }),
        Content::Dense | Content::Blob => false,
    };
    let files = checkpoint.manifest().files.iter().filter(|entry| entry.content != Content::Blob);
    let files: Vec<_> = files.collect();
    let readers = readers(checkpoint, &files, of(sink))?;
    let (in_order, divided): (Vec<_>, Vec<_>) =
        files.into_iter().zip(readers).partition(|(entry, _)| takes_in_order(entry));
    let mut digest = WeightsDigest::default();
    for (entry, reader) in in_order {
        digest.merge(load_in_order(checkpoint, entry, reader, sink, select)?);
    }
    digest.merge(load_divided(checkpoint, &divided, sink, select)?);
    let digest = digest.of_all(of(sink))?;
    match of(sink).own() {
        0 => checkpoint.check_digest(digest),
        _ => Ok(()),
    }
}

fn of(sink: &dyn CheckpointSink) -> &dyn Processes {
    sink.processes().expect("rows that lie with several processes do so all the time")
}

/// One process reads the file, and all get all of its rows. The digest is that of the rows which
/// this one has read.
fn load_in_order(
    checkpoint: &Checkpoint,
    entry: &FileEntry,
    reader: usize,
    sink: &mut dyn CheckpointSink,
    select: Select,
) -> Result<WeightsDigest> {
    let reads = of(sink).own() == reader;
    let mut input = reads.then(|| TensorInput::open(checkpoint, entry)).transpose()?;
    let mut values = Vec::new();
    let pieces = pieces(&checkpoint.manifest().layout, &entry.content)?;
    for (piece, portion) in portions(&pieces, CHUNK_BYTES) {
        values.resize(portion.len(), 0.0);
        if let Some(input) = &mut input {
            input.read(piece, &portion, &mut values)?;
        }
        of(sink).tell(reader, values.as_mut_bytes()).map_err(exchange_error("the rows"))?;
        put(sink, select, piece, &portion, &values)?;
    }
    input.map_or_else(|| Ok(WeightsDigest::default()), |input| input.finish(entry))
}

/// Each process reads some of the files; what it reads goes to those that hold it. The digest is
/// that of the rows which this one has read.
fn load_divided(
    checkpoint: &Checkpoint,
    files: &[(&FileEntry, usize)],
    sink: &mut dyn CheckpointSink,
    select: Select,
) -> Result<WeightsDigest> {
    let (own, count) = (of(sink).own(), of(sink).count());
    let layout = &checkpoint.manifest().layout;
    let all_pieces: Vec<Vec<Piece>> =
        files.iter().map(|(entry, _)| pieces(layout, &entry.content)).collect::<Result<_>>()?;
    // What comes in a round is together as long as one portion of a process that loads alone.
    let portion_bytes = (CHUNK_BYTES / count as u64).max(SMALLEST_PORTION_BYTES);
    let files_of = |process: usize| {
        let own = all_pieces.iter().enumerate();
        let own = own.filter(move |(file, _)| files[*file].1 == process);
        own.flat_map(|(file, pieces)| {
            portions(pieces, portion_bytes).map(move |portion| (file, portion))
        })
    };
    let mut queues: Vec<_> = (0..count).map(files_of).collect();
    let (mut digest, mut values) = (WeightsDigest::default(), Vec::new());
    let mut input: Option<(usize, TensorInput)> = None;
    loop {
        let next: Vec<_> = queues.iter_mut().map(Iterator::next).collect();
        if next.iter().all(Option::is_none) {
            break;
        }
        if let Some((file, (piece, portion))) = next[own] {
            if let Some((done, read)) = input.take_if(|(open, _)| *open != file) {
                digest.merge(read.finish(files[done].0)?);
            }
            let (_, input) = match &mut input {
                Some(input) => input,
                empty => empty.insert((file, TensorInput::open(checkpoint, files[file].0)?)),
            };
            input.read(piece, &portion, &mut values)?;
        }
        let wanted = |next: &Option<(usize, (&Piece, Portion))>| {
            next.map(|(_, (_, portion))| portion).filter(|portion| select.wants(portion))
        };
        let read: Vec<Option<Portion>> = next.iter().map(wanted).collect();
        let delivered = of(sink).deliver(&read, &values).map_err(exchange_error("the rows"))?;
        let mut rest = &delivered[..];
        for (piece, portion) in next.iter().flatten().map(|(_, next)| next) {
            if select.wants(portion) {
                let (values, behind) = rest.split_at(portion.len());
                put(sink, select, piece, portion, values)?;
                rest = behind;
            }
        }
    }
    if let Some((done, read)) = input {
        digest.merge(read.finish(files[done].0)?);
    }
    Ok(digest)
}

/// Who reads which file: of the processes that have it, the one that reads the least.
fn readers(
    checkpoint: &Checkpoint,
    files: &[&FileEntry],
    processes: &dyn Peers,
) -> Result<Vec<usize>> {
    let refused = || exchange_error("who has which file");
    let own: Vec<u8> = files.iter().map(|entry| u8::from(checkpoint.has(entry))).collect();
    let said = processes.gather(&own).map_err(refused())?;
    let mut chosen = vec![0_u64; files.len()];
    let mut loads = vec![0_u64; said.len()];
    for (index, (entry, reader)) in files.iter().zip(&mut chosen).enumerate() {
        if processes.own() != 0 {
            break;
        }
        let has = |process: &usize| said[*process].get(index) == Some(&1);
        let least = (0..said.len()).filter(has).min_by_key(|&process| loads[process]);
        let Some(least) = least else {
            return Err(CheckpointError::MissingFile { file: checkpoint.path().join(&entry.file) });
        };
        loads[least] += entry.bytes;
        *reader = least as u64;
    }
    processes.tell(0, chosen.as_mut_bytes()).map_err(refused())?;
    Ok(chosen.into_iter().map(|reader| (reader as usize).min(processes.count() - 1)).collect())
}
