//! Pieces of AVX2 kernels.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_castpd_ps, _mm256_castps_pd, _mm256_loadu_si256,
    _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps,
    _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

/// The first `count` lanes of a vector, all of them where there are more.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub fn lanes(count: usize) -> __m256i {
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: eight elements from 0 to 8 on.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count.min(8)).cast()) }
}

/// The transpose of an 8 × 8 block in registers.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub fn transpose(rows: &[__m256; 8]) -> [__m256; 8] {
    let mut pairs = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // `quads[4h + c]` holds, in its two parts, the columns c and 4 + c of the rows 4h ….
    let mut quads = pairs;
    for h in 0..2 {
        for c in 0..2 {
            let (a, b) =
                (_mm256_castps_pd(pairs[4 * h + c]), _mm256_castps_pd(pairs[4 * h + c + 2]));
            quads[4 * h + 2 * c] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            quads[4 * h + 2 * c + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
    let mut out = quads;
    for c in 0..4 {
        out[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
        out[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
    }
    out
}
