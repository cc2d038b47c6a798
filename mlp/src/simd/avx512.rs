//! Pieces of AVX-512 kernels.

use std::arch::x86_64::{
    __m512, __mmask16, _mm512_castpd_ps, _mm512_castps_pd, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

/// The first `count` lanes of a vector, all of them where there are more.
#[inline]
pub fn lanes(count: usize) -> __mmask16 {
    ((1_u32 << count.min(16)) - 1) as __mmask16
}

/// The transpose of a 16 × 16 block in registers: pairs of rows are interleaved four times.
#[target_feature(enable = "avx512f")]
#[inline]
pub fn transpose(rows: &[__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    let (mut pairs, mut quads, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    let double = |x: __m512| _mm512_castps_pd(x);
    for i in 0..4 {
        for j in 0..2 {
            let (a, b) = (double(pairs[4 * i + j]), double(pairs[4 * i + j + 2]));
            quads[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            quads[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    // `quads[4i + j]` holds, in its 128-bit part l, column 4l + j of the rows 4i ….
    for j in 0..4 {
        let (a, b) = (quads[j], quads[4 + j]);
        let (c, d) = (quads[8 + j], quads[12 + j]);
        let even = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d));
        let odd = (_mm512_shuffle_f32x4::<0xDD>(a, b), _mm512_shuffle_f32x4::<0xDD>(c, d));
        out[j] = _mm512_shuffle_f32x4::<0x88>(even.0, even.1);
        out[8 + j] = _mm512_shuffle_f32x4::<0xDD>(even.0, even.1);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd.0, odd.1);
        out[12 + j] = _mm512_shuffle_f32x4::<0xDD>(odd.0, odd.1);
    }
    out
}
