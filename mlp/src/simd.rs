//! What the ops' bodies share and what needs `unsafe`: disjoint tiles of one matrix for many tasks,
//! pieces of kernels.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod panels;
mod tiles;

pub use panels::{PanelsMut, change_bands, pack_bands};
pub use tiles::{Tile, for_each_chunk_of_three, for_each_row, for_each_row_of_two, for_each_tile};

/// Runs `body` with `i` = 0, 1, … below `n` (at most 14), written out: accumulators stay in
/// registers only where every index is a constant.
#[cfg(target_arch = "x86_64")]
macro_rules! unrolled {
    ($i:ident < $n:ident $body:block) => {
        $crate::simd::unrolled!($i < $n $body: 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($i:ident < $n:ident $body:block: $($index:literal)*) => {$(
        if $index < $n {
            let $i = $index;
            $body
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
pub(crate) use unrolled;
