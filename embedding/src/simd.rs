//! Prefetches that the kernels of this crate share.

use headlong_device::simd::prefetch;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Entries of `width` floats to prefetch: two kilobytes of them, but neither few nor many.
#[inline(always)]
pub(crate) const fn entries_ahead(width: usize) -> usize {
    match 512 / width {
        0..8 => 8,
        8..16 => 512 / width,
        _ => 16,
    }
}

/// Prefetches the lines of `width` elements from `start` on; what lies outside `data` is ignored.
#[inline(always)]
pub(crate) fn prefetch_row<T>(data: &[T], start: usize, width: usize) {
    let line_len = LINE / size_of::<T>();
    for line in 0..width.div_ceil(line_len) {
        prefetch(data, start.wrapping_add(line * line_len));
    }
}
