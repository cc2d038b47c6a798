//! Open addressing with linear probing, as the dictionary and its counts share it.

use crate::hashing::fmix64;

/// The slot at which the search for `id` begins. `slots` are a power of two.
#[inline(always)]
pub(super) fn first_slot(slots: &[u64], id: u32) -> usize {
    fmix64(u64::from(id)) as usize & (slots.len() - 1)
}

/// The slot whose lower half is `id`, or the empty one (0) where it would be. One slot is empty at
/// least.
#[inline(always)]
pub(super) fn slot_of(slots: &[u64], id: u32) -> usize {
    let mut slot = first_slot(slots, id);
    while slots[slot] != 0 && slots[slot] as u32 != id {
        slot = (slot + 1) & (slots.len() - 1);
    }
    slot
}
