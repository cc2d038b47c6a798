//! Which ids a table knows, where each is kept, and how often and when it was seen: open addressing
//! with linear probing.
//!
//! Nothing that is visible from outside depends on the order in which ids came: slots are found by
//! id and victims are chosen by what was seen.

use crate::hybrid::mix;

/// Which ids go first when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Those not seen for the longest; of these the less frequent; of these the smaller id.
    LeastRecent,
    /// Those seen in the fewest steps; of these the ones not seen for longer; of these the smaller
    /// id.
    LeastFrequent,
}

/// How often an id was seen, in steps, and in which step last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Use {
    pub count: u64,
    pub last_step: u64,
}

impl Use {
    /// One more step in which the id was seen.
    pub fn seen(self, now: u64) -> Self {
        Self { count: self.count + 1, last_step: now }
    }
}

/// Orders ids by how soon they go; no two ids are equal.
type Rank = [u64; 3];

impl Eviction {
    pub fn rank(self, seen: Use, id: u64) -> Rank {
        match self {
            Eviction::LeastRecent => [seen.last_step, seen.count, id],
            Eviction::LeastFrequent => [seen.count, seen.last_step, id],
        }
    }
}

/// A bounded set of ids, each with a slot of its own below the capacity.
#[derive(Debug)]
pub(super) struct Members {
    /// Slot plus one; 0 where nothing is. A power of two, at most half full.
    index: Vec<u32>,
    ids: Vec<u64>,
    uses: Vec<Use>,
    free: Vec<u32>,
    ranked: Vec<(Rank, u32)>,
}

impl Members {
    /// Slots are numbered with 32 bits, and the index needs room for a zero.
    pub const MAX_CAPACITY: u64 = (1 << 31) - 1;

    /// Bytes of a set of `capacity` ids.
    pub fn bytes(capacity: u64) -> u64 {
        let of_slot =
            size_of::<u64>() + size_of::<Use>() + size_of::<u32>() + size_of::<(Rank, u32)>();
        Self::index_len(capacity) * size_of::<u32>() as u64 + capacity * of_slot as u64
    }

    fn index_len(capacity: u64) -> u64 {
        (2 * capacity).next_power_of_two().max(2)
    }

    /// An empty set; takes all memory that it will need.
    pub fn new(capacity: u64) -> Self {
        let len = capacity as usize;
        let free = (0..capacity as u32).rev().collect();
        Self {
            index: vec![0; Self::index_len(capacity) as usize],
            ids: vec![0; len],
            uses: vec![Use::default(); len],
            free,
            ranked: Vec::with_capacity(len),
        }
    }

    pub fn capacity(&self) -> usize {
        self.ids.len()
    }

    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Where the search for `id` starts. Owners are chosen by the low bits of the same hash: the
    /// high ones are independent.
    fn home(&self, id: u64) -> usize {
        mix(id).rotate_left(32) as usize & (self.index.len() - 1)
    }

    /// Position in the index of `id`, or of the gap where it would go.
    fn position(&self, id: u64) -> usize {
        let mask = self.index.len() - 1;
        let mut at = self.home(id);
        while self.index[at] != 0 && self.ids[self.index[at] as usize - 1] != id {
            at = (at + 1) & mask;
        }
        at
    }

    pub fn find(&self, id: u64) -> Option<usize> {
        (self.index[self.position(id)] as usize).checked_sub(1)
    }

    pub fn seen(&self, slot: usize) -> Use {
        self.uses[slot]
    }

    pub fn set_seen(&mut self, slot: usize, seen: Use) {
        self.uses[slot] = seen;
    }

    /// The slot of a new id; `None` where there is no room.
    pub fn insert(&mut self, id: u64, seen: Use) -> Option<usize> {
        let at = self.position(id);
        assert_eq!(self.index[at], 0, "id {id} is new");
        let slot = self.free.pop()?;
        self.index[at] = slot + 1;
        self.ids[slot as usize] = id;
        self.uses[slot as usize] = seen;
        Some(slot as usize)
    }

    /// Forgets an id, if it is known.
    pub fn remove(&mut self, id: u64) {
        let mask = self.index.len() - 1;
        let mut gap = self.position(id);
        if self.index[gap] == 0 {
            return;
        }
        self.free.push(self.index[gap] - 1);
        // Ids after the gap move into it, unless their search starts after it.
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let Some(slot) = (self.index[at] as usize).checked_sub(1) else { break };
            let home = self.home(self.ids[slot]);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.index[gap] = self.index[at];
                gap = at;
            }
        }
        self.index[gap] = 0;
    }

    /// Forgets the `count` ids that go first, or as many as there are, of those that were not seen
    /// in step `now`.
    pub fn evict(&mut self, eviction: Eviction, count: usize, now: Option<u64>) {
        self.ranked.clear();
        for &slot in self.index.iter().filter(|&&slot| slot != 0) {
            let (id, seen) = (self.ids[slot as usize - 1], self.uses[slot as usize - 1]);
            if Some(seen.last_step) != now {
                self.ranked.push((eviction.rank(seen, id), slot - 1));
            }
        }
        let mut ranked = std::mem::take(&mut self.ranked);
        if count > 0 && count < ranked.len() {
            ranked.select_nth_unstable(count - 1);
            ranked.truncate(count);
        }
        for (_, slot) in &ranked {
            self.remove(self.ids[*slot as usize]);
        }
        self.ranked = ranked;
    }

    /// Rank and slot of the id that goes first.
    pub fn first_to_go(&self, eviction: Eviction) -> Option<(Rank, usize)> {
        let slots = self.index.iter().filter(|&&slot| slot != 0).map(|&slot| slot as usize - 1);
        slots.map(|slot| (eviction.rank(self.uses[slot], self.ids[slot]), slot)).min()
    }

    /// The ids known, in no order.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.index.iter().filter(|&&slot| slot != 0).map(|&slot| self.ids[slot as usize - 1])
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.index.fill(0);
        self.free.clear();
        self.free.extend((0..self.ids.len() as u32).rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Against a map, through thousands of insertions and removals in a set that is nearly full.
    #[test]
    fn it_is_a_bounded_map() {
        let (mut members, mut model) = (Members::new(61), BTreeMap::new());
        let mut random = 7_u64;
        for step in 0..20_000 {
            random = mix(random.wrapping_add(step));
            let id = (random % 200).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match (members.find(id), random >> 60 < 7) {
                (Some(slot), false) => assert_eq!(members.seen(slot).count, model[&id]),
                (Some(_), true) => {
                    members.remove(id);
                    model.remove(&id);
                }
                (None, _) => match members.insert(id, Use { count: step, last_step: 0 }) {
                    Some(_) => drop(model.insert(id, step)),
                    None => assert_eq!(model.len(), 61),
                },
            }
            assert_eq!(members.num_free(), 61 - model.len());
        }
        let mut ids: Vec<_> = members.ids().collect();
        ids.sort_unstable();
        assert_eq!(ids, model.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn victims_go_by_their_use() {
        let seen = |count, last_step| Use { count, last_step };
        let left = |eviction, count, now| {
            let mut members = Members::new(4);
            for (id, seen) in
                [(10, seen(9, 1)), (20, seen(1, 5)), (30, seen(1, 4)), (40, seen(2, 5))]
            {
                members.insert(id, seen).unwrap();
            }
            members.evict(eviction, count, now);
            let mut ids: Vec<_> = members.ids().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(left(Eviction::LeastRecent, 1, None), [20, 30, 40]);
        assert_eq!(left(Eviction::LeastRecent, 2, None), [20, 40]);
        assert_eq!(left(Eviction::LeastFrequent, 1, None), [10, 20, 40]);
        assert_eq!(left(Eviction::LeastFrequent, 3, None), [10]);
        assert_eq!(left(Eviction::LeastRecent, 3, Some(5)), [20, 40], "what is in use stays");
        assert_eq!(left(Eviction::LeastRecent, 9, None), [0; 0]);
    }
}
