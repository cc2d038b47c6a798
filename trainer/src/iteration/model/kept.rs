//! Batches that stay on the device (`data.cache = "device"`): this rank's share of each as it was
//! staged, so that it comes again without a reader, and without a copy from the host.
//!
//! Where they may be kept, `copy_batch` is one kernel, whose list of copies the host leaves in
//! page-locked memory of the slot (`headlong_device::cuda::pieces`). What the list names decides
//! whence a batch comes: from page-locked memory, from there and to where it is kept, or from where
//! it is kept. So one captured step does for all three, on the same lane and after the same waits.
//! Copies by the driver would have to lie outside of the graph, or be captured once for each.
//!
//! The host remembers what a route and a score need besides: the heads of staged batches
//! ([`HybridRoute::staged_head`](headlong_embedding::hybrid::HybridRoute::staged_head)), numbers of
//! samples, the labels of evaluations.

use super::on_device::{lock, refused};
use super::{BatchSlot, Incoming, Model, Purpose};
use crate::config::Config;
use crate::error::{Error, Result};
use headlong_device::Stream;
use headlong_device::cuda::{DeviceMemory, DevicePtr, Piece, Pieces};
use headlong_device::pool::Pool;
use headlong_embedding::cuda::StagedPart;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Words at whose multiples parts start, so that they are copied sixteen bytes at a time.
const ALIGN: usize = 4;

/// Parts of a batch besides those of its ids: labels and dense features.
const DENSE_PARTS: usize = 2;

/// Bytes that a rank keeps of `batches` batches of at most `samples` samples of its own each.
pub(crate) fn kept_bytes(config: &Config, samples: usize, batches: u64) -> u64 {
    let aligned = |words: usize| words.next_multiple_of(ALIGN) as u64;
    let of_table = |column: usize| {
        let most = config.max_ids_per_sample(column);
        // Any number of ids, or several: then it is said where each bag begins.
        let has_bags = most > 1 || config.data.hotness.get(column) == Some(&0);
        aligned(samples.saturating_mul(most)) + if has_bags { aligned(samples + 1) } else { 0 }
    };
    let ids = (0..config.data.num_sparse).map(of_table).fold(0, u64::saturating_add);
    let words = aligned(samples) + aligned(samples.saturating_mul(config.data.num_dense));
    words.saturating_add(ids).saturating_mul(4).saturating_mul(batches)
}

/// Batches in the memory of the device, in the order in which they came.
pub(super) struct Kept {
    memory: DeviceMemory,
    batches: Vec<KeptBatch>,
    /// Words of each batch.
    heads: Vec<u32>,
    /// Of batches of evaluations.
    labels: Vec<f32>,
}

#[derive(Debug, Clone)]
struct KeptBatch {
    bytes: Range<usize>,
    heads: Range<usize>,
    labels: Range<usize>,
    /// Samples of all ranks, as it was staged.
    num_samples_of_all: usize,
}

impl Kept {
    /// Room for the parts of batch number `index` behind those before it, which stay.
    fn begin(&mut self, index: usize, slot: &BatchSlot, with_dense: bool) -> Result<DevicePtr> {
        self.batches.truncate(index);
        assert_eq!(self.batches.len(), index, "batches are kept in the order in which they come");
        let (first, head, label) = self
            .batches
            .last()
            .map_or((0, 0, 0), |last| (last.bytes.end, last.heads.end, last.labels.end));
        let mut bytes = 0;
        slot.parts(with_dense, &mut |part| bytes += kept_part(&part));
        if first + bytes > self.memory.bytes() {
            return Err(Error::config(
                "data.cache",
                format!(
                    "batch {} of a pass needs more than the {} bytes that were planned for all: \
                     has the data changed since the run began?",
                    index + 1,
                    self.memory.bytes()
                ),
            ));
        }
        let route = slot.route();
        self.heads.truncate(head);
        self.heads.extend_from_slice(route.staged_head());
        self.labels.truncate(label);
        self.batches.push(KeptBatch {
            bytes: first..first + bytes,
            heads: head..self.heads.len(),
            labels: label..label,
            num_samples_of_all: slot.num_samples_of_all(),
        });
        Ok(self.memory.ptr().offset(first))
    }
}

/// Bytes that are kept of a part.
fn kept_part(part: &StagedPart) -> usize {
    if part.is_head { 0 } else { 4 * part.words.next_multiple_of(ALIGN) }
}

/// Whence a slot's batch comes, and where it goes besides.
#[derive(Clone, Copy)]
enum Way {
    Staged,
    /// It is kept from here on.
    Keep(DevicePtr),
    /// It was.
    Kept(DevicePtr),
}

impl BatchSlot {
    /// Names the copies that bring the staged batch to the device.
    fn list(&self, way: Way, with_dense: bool) {
        let Some(pieces) = &self.staging().pieces else { return };
        let mut pieces = lock(pieces);
        pieces.clear();
        let mut bytes = 0;
        self.parts(with_dense, &mut |part| {
            let (mut from, mut also) = (part.from, DevicePtr::NULL);
            match way {
                Way::Keep(first) if !part.is_head => also = first.offset(bytes),
                Way::Kept(first) if !part.is_head => from = first.offset(bytes),
                _ => {}
            }
            bytes += kept_part(&part);
            pieces.push(&Piece { from, to: part.to, also, words: part.words as u64 });
        });
    }
}

impl Model {
    /// Takes room for `batches` batches, before the first one.
    pub(crate) fn keep(&mut self, stream: &Stream, purpose: Purpose, batches: u64) -> Result<()> {
        let device = stream.cuda_body().device();
        let slots = match purpose {
            Purpose::Training => &mut self.slots[..Self::EVALUATION_SLOT],
            Purpose::Evaluation => &mut self.slots[Self::EVALUATION_SLOT..],
        };
        let samples = match purpose {
            Purpose::Training => slots[0].labels.rows(),
            // Its slot has room for more, where steps are larger.
            Purpose::Evaluation => self.config.eval.batch_size.div_ceil(self.share.num_ranks()),
        };
        let mut head = 0;
        for slot in slots {
            let most = DENSE_PARTS + slot.route().most_staged_parts();
            head = slot.route().staged_head().len();
            let pieces = Pieces::new(device, most).map_err(refused)?;
            slot.staging.as_mut().expect("the model lies on a device").pieces =
                Some(Mutex::new(pieces));
        }
        let bytes = kept_bytes(&self.config, samples, batches);
        let labels = if purpose == Purpose::Evaluation { batches as usize * samples } else { 0 };
        let memory = DeviceMemory::new(device, "batches that stay (data.cache)", bytes as usize);
        self.kept[purpose as usize] = Some(Mutex::new(Kept {
            memory: memory.map_err(refused)?,
            batches: Vec::with_capacity(batches as usize),
            heads: Vec::with_capacity(batches as usize * head),
            labels: Vec::with_capacity(labels),
        }));
        Ok(())
    }

    /// Whether there is room for batches.
    pub(crate) fn keeps(&self, purpose: Purpose) -> bool {
        self.kept[purpose as usize].is_some()
    }

    fn kept(&self, purpose: Purpose) -> MutexGuard<'_, Kept> {
        let kept = self.kept[purpose as usize].as_ref();
        lock(kept.expect("there is room for batches that stay"))
    }

    /// Brings a batch that comes in to where the device's copies find it.
    pub(crate) fn stage(
        &self,
        pool: &Pool,
        slot: &BatchSlot,
        incoming: Incoming<'_>,
    ) -> Result<()> {
        let with_dense = self.copies_dense();
        let way = match incoming {
            Incoming::Read(batch) | Incoming::Keep { batch, .. } => {
                slot.stage_share(pool, batch, &self.share, with_dense)?;
                match incoming {
                    Incoming::Keep { index, .. } => {
                        Way::Keep(self.kept(slot.purpose()).begin(index, slot, with_dense)?)
                    }
                    _ => Way::Staged,
                }
            }
            Incoming::Kept { index, position } => {
                let kept = self.kept(slot.purpose());
                let KeptBatch { bytes, heads, num_samples_of_all, .. } = &kept.batches[index];
                slot.recall(&kept.heads[heads.clone()], *num_samples_of_all, position);
                Way::Kept(kept.memory.ptr().offset(bytes.start))
            }
        };
        slot.list(way, with_dense);
        Ok(())
    }

    /// Samples of an evaluation's batch that was kept, of all ranks.
    pub(crate) fn kept_samples(&self, index: usize) -> usize {
        self.kept(Purpose::Evaluation).batches[index].num_samples_of_all
    }

    /// Remembers this rank's labels of the evaluation's batch that was kept last.
    pub(crate) fn keep_labels(&self, labels: &[f32]) {
        let mut kept = self.kept(Purpose::Evaluation);
        let Kept { batches, labels: all, .. } = &mut *kept;
        all.extend_from_slice(labels);
        batches.last_mut().expect("a batch was kept").labels.end = all.len();
    }

    /// Hands those of a batch to `take`.
    pub(crate) fn kept_labels(
        &self,
        index: usize,
        take: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let kept = self.kept(Purpose::Evaluation);
        take(&kept.labels[kept.batches[index].labels.clone()])
    }
}
