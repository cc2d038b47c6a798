//! Prefetches that the kernels of this room share.

use headlong_device::vector::prefetch;

/// Floats in a cache line.
const LINE: usize = 16;

/// Entries of `width` floats to ask for ahead of use: two kilobytes of them, but neither few nor many.
#[inline(always)]
pub(crate) const fn entries_ahead(width: usize) -> usize {
    match 512 / width {
        0..8 => 8,
        8..16 => 512 / width,
        _ => 16,
    }
}

/// Asks for the lines of `width` floats from `start` on; what lies outside `data` is ignored.
#[inline(always)]
pub(crate) fn prefetch_row(data: &[f32], start: usize, width: usize) {
    for line in 0..width.div_ceil(LINE) {
        prefetch(data, start.wrapping_add(line * LINE));
    }
}
