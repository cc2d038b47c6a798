//! The tensors of a checkpoint on their way into a model, whose rows lie with one process or with
//! several.

use super::difference::first_difference;
use super::error::{CheckpointError, Result};
use super::layout::{CheckpointSink, Portion, Processes};
use super::manifest::FileEntry;
use super::read::{Checkpoint, TensorInput};
use super::shard::{Content, Piece, pieces, portions};
use super::tensor_file::give_to_least;
use crate::state::digest::{CHUNK_BYTES, WeightsDigest, exchange_error};

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
    let (in_order, divided): (Vec<_>, Vec<_>) = files.partition(|entry| takes_in_order(entry));
    let mut digest = WeightsDigest::default();
    for entry in in_order {
        let mut read = WeightsDigest::default();
        checkpoint.stream_file(entry, &mut read, &mut |piece, portion, values| {
            put(sink, select, piece, &portion, values)
        })?;
        if of(sink).own() == 0 {
            digest.merge(read);
        }
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

/// Each process reads some of the files; what it reads goes to those that hold it. The digest is
/// that of the rows which this one has read.
fn load_divided(
    checkpoint: &Checkpoint,
    files: &[&FileEntry],
    sink: &mut dyn CheckpointSink,
    select: Select,
) -> Result<WeightsDigest> {
    let (own, count) = (of(sink).own(), of(sink).count());
    let layout = &checkpoint.manifest().layout;
    let all_pieces: Vec<Vec<Piece>> =
        files.iter().map(|entry| pieces(layout, &entry.content)).collect::<Result<_>>()?;
    // What comes in a round is together as long as one portion of a process that loads alone.
    let portion_bytes = (CHUNK_BYTES / count as u64).max(SMALLEST_PORTION_BYTES);
    let readers = &readers(files, count);
    let files_of = |process: usize| {
        let own = all_pieces.iter().enumerate();
        let own = own.filter(move |(file, _)| readers[*file] == process);
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
                digest.merge(read.finish(files[done])?);
            }
            let (_, input) = match &mut input {
                Some(input) => input,
                empty => empty.insert((file, TensorInput::open(checkpoint, files[file])?)),
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
        digest.merge(read.finish(files[done])?);
    }
    Ok(digest)
}

/// Who reads which file.
fn readers(files: &[&FileEntry], count: usize) -> Vec<usize> {
    let mut loads = vec![0; count];
    files.iter().map(|entry| give_to_least(&mut loads, entry.bytes)).collect()
}
