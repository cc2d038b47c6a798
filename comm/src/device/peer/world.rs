//! Where the ranks of one process meet on the host: each learns the others' addresses when it
//! enqueues.

use crate::error::{CommError, Result};
use crate::topology::Rank;
use headlong_device::cuda::DevicePtr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct Part {
    pub(in crate::device) operation: &'static str,
    /// Its size, in bytes or elements; the same on all ranks.
    pub(in crate::device) size: u64,
    pub(in crate::device) root: usize,
    pub(in crate::device) addresses: [u64; 2],
}

impl Part {
    pub(in crate::device) fn first(&self) -> DevicePtr {
        DevicePtr(self.addresses[0])
    }
}

#[derive(Debug)]
pub(super) struct World {
    id: u64,
    ranks: Vec<Rank>,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    parts: Vec<Option<Part>>,
    last: Arc<[Part]>,
    meetings: u64,
}

/// Worlds whose ranks are still coming together: threads of one process have no other way to hand
/// each other memory.
static COMING: Mutex<Vec<Weak<World>>> = Mutex::new(Vec::new());

/// A number that no other process has: process ids are the same in containers of one machine.
pub(super) fn process() -> Result<u64> {
    static DRAWN: Mutex<Option<u64>> = Mutex::new(None);
    let mut drawn = lock(&DRAWN);
    if let Some(number) = *drawn {
        return Ok(number);
    }
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| CommError::system("drawing a random number", error))?;
    Ok(*drawn.insert(u64::from_ne_bytes(bytes)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A new world of these ranks, and the number by which other threads of this process find it
    /// while this end lives.
    pub(super) fn found(ranks: &[Rank]) -> (Arc<Self>, u64) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = State { parts: vec![None; ranks.len()], last: Arc::new([]), meetings: 0 };
        let (ranks, state) = (ranks.to_vec(), Mutex::new(state));
        let world = Arc::new(Self { id, ranks, state, moved: Condvar::new() });
        let mut coming = lock(&COMING);
        coming.retain(|world| world.strong_count() > 0);
        coming.push(Arc::downgrade(&world));
        (world, id)
    }

    pub(super) fn join(id: u64) -> Option<Arc<Self>> {
        lock(&COMING).iter().filter_map(Weak::upgrade).find(|world| world.id == id)
    }

    /// Waits until every rank has brought its part; the parts of all, in the order of ranks.
    /// `index` is this rank's place.
    ///
    /// # Errors
    /// What `check` answers meanwhile; [`CommError::Timeout`]; [`CommError::Mismatch`] where ranks
    /// are not in the same operation.
    pub(super) fn meet(
        &self,
        index: usize,
        part: Part,
        deadline: Duration,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Arc<[Part]>> {
        let started = Instant::now();
        let mut state = lock(&self.state);
        let meeting = state.meetings;
        state.parts[index] = Some(part);
        if state.parts.iter().all(Option::is_some) {
            state.last = state.parts.iter_mut().filter_map(Option::take).collect();
            state.meetings += 1;
            self.moved.notify_all();
        }
        while state.meetings == meeting {
            let missing = state.parts.iter().position(Option::is_none).unwrap_or(0);
            let waited = started.elapsed();
            let failed = match waited > deadline {
                true => Err(CommError::Timeout {
                    culprit: self.ranks[missing],
                    seen_by: self.ranks[index],
                    operation: part.operation.to_owned(),
                    sequence: meeting,
                    waited_ms: waited.as_millis() as u64,
                }),
                false => check(),
            };
            if let Err(error) = failed {
                state.parts[index] = None;
                return Err(error);
            }
            let pause = Duration::from_millis(5);
            state = self.moved.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        let parts = state.last.clone();
        drop(state);
        self.compare(index, &part, &parts)?;
        Ok(parts)
    }

    fn compare(&self, index: usize, own: &Part, parts: &[Part]) -> Result<()> {
        let same = |part: &Part| {
            (part.operation, part.size, part.root) == (own.operation, own.size, own.root)
        };
        let describe =
            |part: &Part| format!("{} of size {} (root {})", part.operation, part.size, part.root);
        match parts.iter().position(|part| !same(part)) {
            None => Ok(()),
            Some(other) => Err(CommError::Mismatch {
                culprit: self.ranks[other],
                seen_by: self.ranks[index],
                expected: describe(own),
                found: describe(&parts[other]),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(size: u64, address: u64) -> Part {
        Part { operation: "all_gather", size, root: 0, addresses: [address, 0] }
    }

    #[test]
    fn everybody_learns_every_address_again_and_again() {
        let (world, id) = World::found(&[Rank(0), Rank(1), Rank(2)]);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                scope.spawn(move || {
                    let world = World::join(id).unwrap();
                    for round in 0..200_u64 {
                        let own = part(8, round * 10 + rank as u64);
                        let parts =
                            world.meet(rank, own, Duration::from_secs(20), &|| Ok(())).unwrap();
                        let addresses: Vec<u64> =
                            parts.iter().map(|part| part.addresses[0]).collect();
                        assert_eq!(addresses, [round * 10, round * 10 + 1, round * 10 + 2]);
                    }
                });
            }
        });
        drop(world);
        assert!(World::join(id).is_none());
    }

    #[test]
    fn a_process_has_one_number() {
        assert_eq!(process(), process());
        assert!(process().is_ok());
    }

    #[test]
    fn ranks_that_do_not_come_or_come_to_something_else_are_named() {
        let (world, _) = World::found(&[Rank(0), Rank(1)]);
        let short = Duration::from_millis(20);
        let error = world.meet(1, part(8, 0), short, &|| Ok(())).unwrap_err();
        assert!(matches!(error, CommError::Timeout { culprit: Rank(0), .. }), "{error}");
        let answers = std::thread::scope(|scope| {
            let other =
                scope.spawn(|| world.meet(0, part(8, 0), Duration::from_secs(20), &|| Ok(())));
            let own = world.meet(1, part(16, 0), Duration::from_secs(20), &|| Ok(()));
            [other.join().unwrap(), own]
        });
        for answer in answers {
            assert!(matches!(answer, Err(CommError::Mismatch { .. })), "{answer:?}");
        }
    }
}
