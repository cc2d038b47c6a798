//! Multiply-adds from registers alone, one body an instruction set.
//!
//! Written with intrinsics: the compiler does not keep sixteen vectors of sums in registers by
//! itself.

use headlong_device::simd::{Bf16Products, Isa, bf16_products, isa};
#[cfg(target_arch = "x86_64")]
use std::hint::black_box;

/// Independent sums: enough to hide a latency of four cycles on two units.
const SUMS: usize = 16;

/// Does `rounds` rounds of `sum = sum * factor + term` in every lane of every sum. Returns the FLOP
/// done and a number that depends on all of them, so that none is left out.
pub fn multiply_adds(rounds: u64, factor: f32, term: f32) -> (u64, f32) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` answers `Avx512` only where the processor has AVX-512 F.
        Isa::Avx512 => unsafe { avx512(rounds, factor, term) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` answers `Avx2` only where the processor has AVX2 and FMA.
        Isa::Avx2 => unsafe { avx2(rounds, factor, term) },
        _ => portable(rounds, factor, term),
    }
}

/// As [`multiply_adds`], of bf16; none where the processor does not multiply it.
pub fn multiply_adds_bf16(rounds: u64) -> Option<(u64, f32)> {
    #[cfg(target_arch = "x86_64")]
    if bf16_products() >= Bf16Products::Pairs {
        // SAFETY: the processor has AVX-512 F and BF16, by the line above.
        return Some(unsafe { avx512_bf16(rounds) });
    }
    let _ = rounds;
    None
}

/// As [`multiply_adds`], of tiles of bf16; none where the processor does not multiply them.
pub fn multiply_adds_tiles(rounds: u64) -> Option<(u64, f32)> {
    #[cfg(target_arch = "x86_64")]
    if bf16_products() == Bf16Products::Tiles {
        return Some((headlong_mlp::gemm::multiply_tiles(rounds), 0.0));
    }
    let _ = rounds;
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn avx512_bf16(rounds: u64) -> (u64, f32) {
    use std::arch::x86_64::{
        __m512bh, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_reduce_add_ps,
        _mm512_set1_ps,
    };
    let small: __m512bh =
        black_box(_mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3), _mm512_set1_ps(1e-3)));
    let mut sums: [_; SUMS] = std::array::from_fn(|i| _mm512_set1_ps(i as f32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, small, small);
        }
    }
    let total = sums.into_iter().fold(_mm512_set1_ps(0.0), |total, sum| _mm512_add_ps(total, sum));
    (rounds * (4 * 16 * SUMS) as u64, _mm512_reduce_add_ps(total))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rounds: u64, factor: f32, term: f32) -> (u64, f32) {
    use std::arch::x86_64::{_mm512_add_ps, _mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (factor, term) = (_mm512_set1_ps(factor), _mm512_set1_ps(term));
    let mut sums: [_; SUMS] = std::array::from_fn(|i| _mm512_set1_ps(i as f32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    let total = sums.into_iter().fold(_mm512_set1_ps(0.0), |total, sum| _mm512_add_ps(total, sum));
    (rounds * (2 * 16 * SUMS) as u64, _mm512_reduce_add_ps(total))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: u64, factor: f32, term: f32) -> (u64, f32) {
    use std::arch::x86_64::{_mm256_add_ps, _mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps};
    // Fewer sums than with AVX-512: there are sixteen registers in all.
    const SUMS: usize = 12;
    let (factor, term) = (_mm256_set1_ps(factor), _mm256_set1_ps(term));
    let mut sums: [_; SUMS] = std::array::from_fn(|i| _mm256_set1_ps(i as f32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, term);
        }
    }
    let total = sums.into_iter().fold(_mm256_set1_ps(0.0), |total, sum| _mm256_add_ps(total, sum));
    (rounds * (2 * 8 * SUMS) as u64, _mm256_cvtss_f32(total))
}

/// What the compiler makes of plain code: four lanes on most processors.
fn portable(rounds: u64, factor: f32, term: f32) -> (u64, f32) {
    let mut sums: [[f32; 4]; 8] = std::array::from_fn(|i| [i as f32; 4]);
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.map(|lane| lane * factor + term);
        }
    }
    (rounds * (2 * 4 * 8), sums.iter().flatten().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_counts_and_computes() {
        // Every lane ends at the fixed point of x = x / 2 + 1/4.
        let (flop, value) = portable(100, 0.5, 0.25);
        assert_eq!((flop, value), (6400, 16.0));
        let (flop, value) = multiply_adds(100, 0.5, 0.25);
        assert!(flop >= 6400 && value > 0.0);
    }
}
