//! Copies of memory that are as fast wherever it lies.

/// Bytes from which glibc's `memcpy` may leave the work to the processor (`rep movsb`).
const LARGE: usize = 4096;

/// Bytes that it copies with vectors.
const SMALL: usize = 2048;

/// As [`slice::copy_from_slice`]. AMD's Zen 3, where it was measured, copies twenty times slower
/// with `rep movsb` where `to` is up to 31 bytes ahead of `from`, whole pages aside: from the
/// beginning of a page to a large allocation, for example, which begins 16 bytes behind that of a
/// page.
///
/// # Panics
/// When the lengths differ.
pub fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "what is copied fits");
    // SAFETY: both are as long, and of a type that may be copied; a mutable slice overlaps no
    // other.
    unsafe { copy_raw(from.as_ptr().cast(), to.as_mut_ptr().cast(), size_of_val(from)) }
}

/// As [`std::ptr::copy_nonoverlapping`] of bytes.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, which do not overlap.
pub unsafe fn copy_raw(from: *const u8, to: *mut u8, len: usize) {
    let part = if len >= LARGE && is_slow(from, to) { SMALL } else { len };
    for begin in (0..len).step_by(part.max(1)) {
        // SAFETY: a part of what the caller vouches for.
        unsafe {
            let (from, to) = (from.add(begin), to.add(begin));
            std::ptr::copy_nonoverlapping(from, to, part.min(len - begin));
        }
    }
}

fn is_slow(from: *const u8, to: *const u8) -> bool {
    let ahead = to.addr().wrapping_sub(from.addr()) % 4096;
    cfg!(target_arch = "x86_64") && (1..32).contains(&ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distance_and_length_is_copied_whole() {
        let source: Vec<u8> = (0..20_000_u32).map(|index| (index * 7 % 251) as u8).collect();
        for ahead in [0, 1, 16, 31, 32, 63, 4095] {
            for len in [0, 1, 2047, 4095, 4096, 4097, 8192, 10_000] {
                let mut room = vec![0_u8; 20_000];
                let from = &source[100..100 + len];
                // As far ahead of it, whole pages aside.
                let begin = (0..4096)
                    .find(|&begin| {
                        let to = room[begin..].as_ptr().addr();
                        to.wrapping_sub(from.as_ptr().addr()) % 4096 == ahead
                    })
                    .unwrap();
                copy(from, &mut room[begin..begin + len]);
                assert_eq!(&room[begin..begin + len], from);
                assert!(room[begin + len..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
