//! The numbers that can be exchanged and added up.
//!
//! **The deterministic sum.** Over ranks 0..N it is one fixed binary tree, for each element alone:
//! 0+1, 2+3, …, then (0+1)+(2+3), …; a part without a neighbour waits. It is the tree that sums
//! over blocks of samples continue with, so N ranks with S/N blocks each give the bits of one rank
//! with S blocks. f16 and bf16 are widened, added as f32 and rounded at every node of the tree, so
//! that the sum over some ranks is an exact part of the whole, in 16 bits; integers wrap.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use headlong_device::{bf16 as codec, vectorized};
use std::fmt::Debug;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What collectives know: f32, f16, bf16, u8, u32, u64, i32, i64, and [`Held`] bits.
pub trait Element:
    FromBytes
    + IntoBytes
    + Immutable
    + KnownLayout
    + Copy
    + Default
    + PartialEq
    + Debug
    + Send
    + Sync
    + 'static
{
    /// Its place in the list of names that errors use.
    const CODE: u8;

    /// The deterministic sum over ranks. `own` is the part of rank `index` and becomes the sum;
    /// `others` are the parts of the other ranks, rising, as long as `own`.
    ///
    /// # Panics
    /// When a part has another length or is not aligned for its type.
    fn add_in_tree(own: &mut [Self], index: usize, others: &[&[u8]]);

    /// For exchanges with compression: f32 as itself, every other type as nothing.
    #[doc(hidden)]
    fn as_f32(_data: &[Self]) -> Option<&[f32]> {
        None
    }

    #[doc(hidden)]
    fn as_f32_mut(_data: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}

/// Elements of one tile: a tile of every level of the tree stays in the first cache.
const TILE: usize = 256;

/// How a type is added up: in which type, and how tiles get there and back.
pub(crate) trait Lane: Element {
    type Sum: Copy + Default;
    fn load(from: &[Self], into: &mut [Self::Sum]);
    fn store(from: &[Self::Sum], into: &mut [Self]);
    fn add(one: Self::Sum, other: Self::Sum) -> Self::Sum;

    /// Rounds sums to the type that is added up.
    #[inline(always)]
    fn round(_sums: &mut [Self::Sum]) {}
}

/// The part of `other` among the `others` of rank `index`.
#[inline(always)]
fn part_of<'a, T: Element>(other: usize, index: usize, others: &[&'a [u8]]) -> &'a [T] {
    let bytes = others[other - usize::from(other > index)];
    <[T]>::ref_from_bytes(bytes).expect("parts have the type's length and alignment")
}

/// The tree, tile by tile: sums wait on a stack of levels until their neighbour is complete.
#[inline(always)]
fn add_tiles<T: Lane, const LEVELS: usize>(own: &mut [T], index: usize, others: &[&[u8]]) {
    let mut levels = [[T::Sum::default(); TILE]; LEVELS];
    let mut start = 0;
    while start < own.len() {
        let tile = start..own.len().min(start + TILE);
        let len = tile.len();
        let mut height = 0;
        for rank in 0..=others.len() {
            let level = &mut levels[height][..len];
            match rank == index {
                true => T::load(&own[tile.clone()], level),
                false => T::load(&part_of(rank, index, others)[tile.clone()], level),
            }
            height += 1;
            // As many neighbours are complete as the rank's number ends in ones.
            for _ in 0..rank.trailing_ones() {
                height -= 1;
                add_top::<T>(&mut levels, height, len);
            }
        }
        while height > 1 {
            height -= 1;
            add_top::<T>(&mut levels, height, len);
        }
        T::store(&levels[0][..len], &mut own[tile.clone()]);
        start = tile.end;
    }
}

/// Adds level `top` to the one below.
#[inline(always)]
fn add_top<T: Lane>(levels: &mut [[T::Sum; TILE]], top: usize, len: usize) {
    let (below, above) = levels.split_at_mut(top);
    for (into, from) in below[top - 1][..len].iter_mut().zip(&above[0][..len]) {
        *into = T::add(*into, *from);
    }
    T::round(&mut below[top - 1][..len]);
}

#[inline(always)]
fn add_two<T: Lane<Sum = T>>(own: &mut [T], other: &[T]) {
    assert_eq!(own.len(), other.len(), "parts are equally long");
    for (own, other) in own.iter_mut().zip(other) {
        *own = T::add(*own, *other);
    }
}

#[inline(always)]
fn add_four<T: Lane<Sum = T>>(own: &mut [T], index: usize, others: &[&[u8]]) {
    let neighbour = part_of::<T>(index ^ 1, index, others);
    let first = part_of::<T>(index & 2 ^ 2, index, others);
    let second = part_of::<T>(index & 2 ^ 3, index, others);
    let len = own.len();
    assert!(
        [neighbour, first, second].iter().all(|part| part.len() == len),
        "parts are equally long"
    );
    for i in 0..len {
        own[i] = T::add(T::add(own[i], neighbour[i]), T::add(first[i], second[i]));
    }
}

/// Types that are their own sum: two and four ranks need no tiles.
#[inline(always)]
fn add_plain<T: Lane<Sum = T>>(own: &mut [T], index: usize, others: &[&[u8]]) {
    match others.len() {
        0 => {}
        1 => add_two(own, part_of(1 - index, index, others)),
        3 => add_four(own, index, others),
        _ => add_any(own, index, others),
    }
}

#[inline(always)]
fn add_any<T: Lane>(own: &mut [T], index: usize, others: &[&[u8]]) {
    match others.len() {
        0 => {}
        1..=7 => add_tiles::<T, 4>(own, index, others),
        _ => {
            assert!(others.len() < 1 << 20, "a million ranks");
            add_tiles::<T, 21>(own, index, others)
        }
    }
}

/// A type that is its own sum.
macro_rules! plain {
    ($type:ty, $code:expr, |$a:ident, $b:ident| $sum:expr $(, $as:item, $as_mut:item)?) => {
        impl Element for $type {
            const CODE: u8 = $code;

            fn add_in_tree(own: &mut [Self], index: usize, others: &[&[u8]]) {
                vectorized! {
                    fn add(own: &mut [$type], index: usize, others: &[&[u8]]) {
                        add_plain(own, index, others);
                    }
                }
                add(own, index, others);
            }

            $($as $as_mut)?
        }

        impl Lane for $type {
            type Sum = $type;

            #[inline(always)]
            fn load(from: &[Self], into: &mut [Self]) {
                into.copy_from_slice(from);
            }

            #[inline(always)]
            fn store(from: &[Self], into: &mut [Self]) {
                into.copy_from_slice(from);
            }

            #[inline(always)]
            fn add($a: Self, $b: Self) -> Self {
                $sum
            }
        }
    };
}

plain!(
    f32,
    1,
    |a, b| a + b,
    fn as_f32(data: &[Self]) -> Option<&[f32]> {
        Some(data)
    },
    fn as_f32_mut(data: &mut [Self]) -> Option<&mut [f32]> {
        Some(data)
    }
);
plain!(u8, 0, |a, b| a.wrapping_add(b));
plain!(u32, 4, |a, b| a.wrapping_add(b));
plain!(u64, 5, |a, b| a.wrapping_add(b));
plain!(i32, 6, |a, b| a.wrapping_add(b));
plain!(i64, 7, |a, b| a.wrapping_add(b));
plain!(Held, 8, |a, b| Held(a.0 | b.0));

/// The bits of a number that some ranks hold, all the same ones, while the others have zero bits:
/// it is put together, not added up.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Held(pub u32);

/// A type that is added up as f32.
macro_rules! widened {
    ($type:ty, $code:expr, $load:expr, $store:expr, $round:expr) => {
        impl Element for $type {
            const CODE: u8 = $code;

            fn add_in_tree(own: &mut [Self], index: usize, others: &[&[u8]]) {
                vectorized! {
                    fn add(own: &mut [$type], index: usize, others: &[&[u8]]) {
                        add_any(own, index, others);
                    }
                }
                add(own, index, others);
            }
        }

        impl Lane for $type {
            type Sum = f32;

            #[inline(always)]
            fn load(from: &[Self], into: &mut [f32]) {
                $load(from, into);
            }

            #[inline(always)]
            fn store(from: &[f32], into: &mut [Self]) {
                $store(from, into);
            }

            #[inline(always)]
            fn add(one: f32, other: f32) -> f32 {
                one + other
            }

            #[inline(always)]
            fn round(sums: &mut [f32]) {
                $round(sums);
            }
        }
    };
}

widened!(
    f16,
    2,
    |from: &[f16], into: &mut [f32]| from.convert_to_f32_slice(into),
    |from: &[f32], into: &mut [f16]| into.convert_from_f32_slice(from),
    headlong_device::f16::round_in_place
);
widened!(bf16, 3, codec::expand, codec::compress, codec::round_in_place);

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as a recursion: the left half is the largest power of two below the number of
    /// parts.
    fn oracle<T: Element>(parts: &[T], narrow: &impl Fn(f32) -> T, widen: &impl Fn(T) -> f32) -> T {
        match parts {
            [one] => *one,
            _ => {
                let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
                let [left, right] = [left, right].map(|part| widen(oracle(part, narrow, widen)));
                narrow(left + right)
            }
        }
    }

    fn check<T: Element>(
        ranks: usize,
        len: usize,
        narrow: impl Fn(f32) -> T,
        widen: impl Fn(T) -> f32,
    ) {
        let value = |rank: usize, i: usize| narrow(((rank * 977 + i * 31) as f32).sin() * 3.0);
        let parts: Vec<Vec<T>> =
            (0..ranks).map(|rank| (0..len).map(|i| value(rank, i)).collect()).collect();
        let expected: Vec<T> = (0..len)
            .map(|i| parts.iter().map(|part| part[i]).collect::<Vec<_>>())
            .map(|parts| oracle(&parts, &narrow, &widen))
            .collect();
        for index in 0..ranks {
            let others: Vec<&[u8]> = (0..ranks)
                .filter(|&rank| rank != index)
                .map(|rank| parts[rank].as_bytes())
                .collect();
            let mut own = parts[index].clone();
            T::add_in_tree(&mut own, index, &others);
            assert_eq!(own, expected, "{ranks} ranks, rank {index}, {len} elements");
        }
    }

    #[test]
    fn the_tree_on_every_rank() {
        for ranks in (1..=9).chain([16, 17, 23]) {
            for len in [0, 1, 7, 255, 256, 257, 1000] {
                check::<f32>(ranks, len, |value| value, |value| value);
                check::<bf16>(ranks, len, bf16::from_f32, bf16::to_f32);
                check::<f16>(ranks, len, f16::from_f32, f16::to_f32);
            }
        }
    }

    #[test]
    fn integers_wrap() {
        for ranks in 2..=5 {
            let others = vec![[250u8, 1, 255]; ranks - 1];
            let others: Vec<&[u8]> = others.iter().map(|part| part.as_slice()).collect();
            let mut own = [250u8, 1, 255];
            u8::add_in_tree(&mut own, ranks - 1, &others);
            assert_eq!(own, [250u8, 1, 255].map(|value| value.wrapping_mul(ranks as u8)));
        }
    }
}
