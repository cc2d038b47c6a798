//! Batches inside the iteration: this rank's share of each, and what was made of it ahead of time.

use super::on_device::Staging;
use crate::iteration::share::{Share, copy_share};
use headlong_device::{JaggedRef, Mat};
use headlong_embedding::Ids;
use headlong_embedding::hybrid::{HybridRoute, HybridSet, NodeProxy};
use headlong_reader::{Batch, Position};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A batch on its way through the iteration: as it came from the reader, and what was made of it
/// ahead of time.
pub struct BatchSlot {
    purpose: Purpose,
    batch: RwLock<Batch>,
    /// Every rank's share, where owners find out for themselves which rows are wanted.
    shares: RwLock<Vec<Batch>>,
    route: RwLock<HybridRoute>,
    /// This rank as a proxy for its node, where equal rows are merged there.
    proxy: Option<Mutex<NodeProxy>>,
    /// Samples of the batch of all ranks.
    num_samples_of_all: AtomicUsize,
    pub(crate) labels: Mat,
    pub(crate) dense: Mat,
    /// Page-locked memory, where the model lies on a device with memory of its own.
    pub(super) staging: Option<Staging>,
}

/// What a slot's batches are for: they are cut into shares accordingly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Training,
    Evaluation,
}

// Note: the schedule orders readers and writers, so none of these locks is ever waited for; a lock
// whose holder panicked holds plain data still, and the panic ends the step.
impl BatchSlot {
    /// An empty slot; `num_shares` is the number of ranks where every rank's share is kept, else 0.
    fn new(
        purpose: Purpose,
        (labels, dense): (Mat, Mat),
        route: HybridRoute,
        proxy: Option<NodeProxy>,
        num_shares: usize,
    ) -> Self {
        Self {
            purpose,
            batch: RwLock::default(),
            shares: RwLock::new(vec![Batch::default(); num_shares]),
            route: RwLock::new(route),
            proxy: proxy.map(Mutex::new),
            num_samples_of_all: AtomicUsize::new(0),
            labels,
            dense,
            staging: None,
        }
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// This rank's share of the batch.
    pub fn batch(&self) -> RwLockReadGuard<'_, Batch> {
        self.batch.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn route(&self) -> RwLockReadGuard<'_, HybridRoute> {
        self.route.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn route_mut(&self) -> RwLockWriteGuard<'_, HybridRoute> {
        self.route.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank as a proxy, where equal rows are merged in the node.
    pub(crate) fn proxy(&self) -> Option<MutexGuard<'_, NodeProxy>> {
        self.proxy.as_ref().map(|proxy| proxy.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Every rank's share, in the order of ranks.
    pub(crate) fn shares(&self) -> RwLockReadGuard<'_, Vec<Batch>> {
        self.shares.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples of the batch of all ranks.
    pub fn num_samples_of_all(&self) -> usize {
        self.num_samples_of_all.load(Ordering::Relaxed)
    }

    /// Takes the shares of `incoming`, which is all ranks' batch or this rank's share of it; the
    /// latter not where every rank's share is kept.
    pub(super) fn take(&self, incoming: &Batch, share: &Share) {
        let num_samples = incoming.share_of.unwrap_or(incoming.num_samples);
        self.num_samples_of_all.store(num_samples, Ordering::Relaxed);
        self.copy(incoming, share, &mut self.batch.write().unwrap_or_else(PoisonError::into_inner));
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        for (rank, batch) in shares.iter_mut().enumerate() {
            self.copy(incoming, &share.of_rank(rank), batch);
        }
    }

    /// Takes the place of a batch whose samples have stayed on the device: `head` is what its route
    /// knows of it.
    pub(super) fn recall(&self, head: &[u32], num_samples_of_all: usize, position: Position) {
        self.num_samples_of_all.store(num_samples_of_all, Ordering::Relaxed);
        let mut route = self.route_mut();
        route.recall(head);
        let mut batch = self.batch.write().unwrap_or_else(PoisonError::into_inner);
        (batch.num_samples, batch.position) = (route.num_samples(), position);
    }

    /// Takes the place of `incoming`, of which `samples` samples of this rank are on their way to
    /// the device and are not kept here.
    pub(super) fn take_note(&self, incoming: &Batch, samples: usize) {
        let num_samples = incoming.share_of.unwrap_or(incoming.num_samples);
        self.num_samples_of_all.store(num_samples, Ordering::Relaxed);
        let mut batch = self.batch.write().unwrap_or_else(PoisonError::into_inner);
        (batch.num_samples, batch.position) = (samples, incoming.position);
    }

    /// This rank's samples of `incoming`, where they are neighbours in it.
    pub(super) fn only_run(&self, incoming: &Batch, share: &Share) -> Option<Range<usize>> {
        match self.purpose {
            _ if incoming.share_of.is_some() => Some(0..incoming.num_samples),
            Purpose::Training => {
                let mut runs = share.in_step(incoming.num_samples);
                let first = runs.next()?;
                runs.next().is_none().then_some(first)
            }
            Purpose::Evaluation => Some(share.in_evaluation(incoming.num_samples)),
        }
    }

    /// Takes the batch of another slot of the same size, but not its route.
    pub(crate) fn adopt(&self, former: &Self) {
        self.num_samples_of_all.store(former.num_samples_of_all(), Ordering::Relaxed);
        let mut batch = self.batch.write().unwrap_or_else(PoisonError::into_inner);
        if self.staging.is_some() {
            // It is copied again before it is routed again.
            former.staged(&mut batch);
            return;
        }
        batch.clone_from(&former.batch());
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        shares.clone_from(&former.shares());
        for (mine, former) in [(&self.labels, &former.labels), (&self.dense, &former.dense)] {
            mine.write::<f32>().data_mut().copy_from_slice(former.read::<f32>().data());
        }
    }

    fn copy(&self, incoming: &Batch, share: &Share, batch: &mut Batch) {
        match self.only_run(incoming, share) {
            Some(run) => copy_share(incoming, std::iter::once(run), batch),
            None => copy_share(incoming, share.in_step(incoming.num_samples), batch),
        }
    }
}

/// The slots of the batch of now, of next and of an evaluation.
pub(super) fn batch_slots(
    tables: &HybridSet,
    routes: [HybridRoute; 3],
    matrices: [(Mat, Mat); 3],
    by_node: bool,
    num_shares: usize,
) -> [BatchSlot; 3] {
    let mut purposes = [Purpose::Training, Purpose::Training, Purpose::Evaluation].into_iter();
    let mut routes = routes.into_iter();
    matrices.map(|inputs| {
        let (purpose, route) = purposes.next().zip(routes.next()).expect("there are three slots");
        // On a device the tables are proxies themselves.
        let proxy = (by_node && tables.slots().is_none()).then(|| tables.new_node_proxy());
        BatchSlot::new(purpose, inputs, route, proxy, num_shares)
    })
}

/// The row indices of a batch as the embedding ops take them.
pub(crate) struct BatchIds<'a>(pub(crate) &'a Batch);

impl Ids for BatchIds<'_> {
    fn num_tables(&self) -> usize {
        self.0.sparse.len()
    }

    fn table(&self, index: usize) -> JaggedRef<'_> {
        let bags = &self.0.sparse[index];
        JaggedRef { values: &bags.values, offsets: &bags.offsets }
    }
}
