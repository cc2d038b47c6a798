//! Ranks that do something long on their hosts: save a checkpoint to a slow disk, read data that
//! comes slowly.
//!
//! A rank says so with its signs of life, rank 0 tells all, and for as long no other rank's
//! deadline comes nearer. What bounds such a time are the signs of life: they prove that the
//! process lives, not that its disk does.

use super::control_frame::BusyRank;
use crate::system::{Instant, Mutex, MutexGuard};
use crate::topology::Rank;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is over sooner is not told.
const WORTH_TELLING: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct BusyRanks {
    own: Mutex<Option<(&'static str, Instant)>>,
    /// What others have told, with who has.
    others: Mutex<Vec<(Rank, BusyRank)>>,
    excused_us: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BusyRanks {
    /// What this rank does from now on; what it did before.
    pub(super) fn set_own(&self, what: Option<&'static str>) -> Option<&'static str> {
        let mut own = lock(&self.own);
        let before = own.map(|(what, _)| what);
        if what != before {
            *own = what.map(|what| (what, Instant::now()));
        }
        before
    }

    pub(super) fn own(&self, rank: Rank) -> Option<BusyRank> {
        let (what, since) = (*lock(&self.own))?;
        let ms = Some(since.elapsed()).filter(|time| *time >= WORTH_TELLING)?.as_millis() as u64;
        Some(BusyRank { rank: rank.0, what: what.to_owned(), ms })
    }

    /// What `peer` has told last.
    pub(super) fn hear(&self, peer: Rank, busy: Vec<BusyRank>) {
        let mut others = lock(&self.others);
        others.retain(|(by, _)| *by != peer);
        others.extend(busy.into_iter().map(|busy| (peer, busy)));
    }

    /// What was told by those who have been heard of not long ago.
    pub(super) fn others(&self, is_fresh: &dyn Fn(Rank) -> bool) -> Vec<BusyRank> {
        lock(&self.others)
            .iter()
            .filter(|(by, _)| is_fresh(*by))
            .map(|(_, busy)| busy.clone())
            .collect()
    }

    pub(super) fn excuse(&self, time: Duration) {
        self.excused_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn excused(&self) -> Duration {
        Duration::from_micros(self.excused_us.load(Ordering::Relaxed))
    }
}
