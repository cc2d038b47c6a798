//! One body, several instruction sets, chosen at run time.
//!
//! [`vectorized!`](crate::vectorized) compiles a function's body three times: for AVX-512, for AVX2
//! with FMA, and for the portable baseline. The compiler vectorises each by itself. Rust never
//! fuses `a * b + c` on its own, so bodies that write `*`, `+` and `mul_add` explicitly give the
//! same bits on every instruction set.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// An instruction set that bodies are compiled for, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and FMA (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, DQ and VL (x86-64-v4).
    Avx512,
}

impl Isa {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Isa::Portable),
            2 => Some(Isa::Avx2),
            3 => Some(Isa::Avx512),
            _ => None,
        }
    }
}

/// 0 until first asked.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The best instruction set of this processor, or the one forced by [`force_isa`].
#[inline]
pub fn isa() -> Isa {
    match Isa::from_code(CHOSEN.load(Ordering::Relaxed)) {
        Some(isa) => isa,
        None => {
            let best = detect();
            CHOSEN.store(best as u8 + 1, Ordering::Relaxed);
            best
        }
    }
}

/// Makes bodies use at most `isa`: for tests that compare paths, and for `--isa`-like switches.
///
/// Returns what is in force afterwards: never more than the processor has. Process-wide; it changes
/// speed, not results.
pub fn force_isa(isa: Isa) -> Isa {
    let allowed = isa.min(detect());
    CHOSEN.store(allowed as u8 + 1, Ordering::Relaxed);
    allowed
}

/// Whether products of bf16 may use instructions of their own.
static BF16_ALLOWED: AtomicBool = AtomicBool::new(true);

/// Whether products of bf16 have instructions of their own: AVX-512 BF16 is there, [`isa`] is
/// AVX-512, and [`allow_bf16`] has not said otherwise.
#[inline]
pub fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    let detected = is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let detected = false;
    detected && isa() == Isa::Avx512 && BF16_ALLOWED.load(Ordering::Relaxed)
}

/// Allows the instructions of [`has_bf16`], or has products of bf16 do without: for tests that
/// compare paths. Process-wide; it changes speed, not results.
pub fn allow_bf16(allowed: bool) {
    BF16_ALLOWED.store(allowed, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Defines functions whose bodies are compiled for each instruction set and dispatched at run time.
///
/// Helpers called from the body must be `#[inline(always)]`, else they stay compiled for the
/// baseline.
///
/// ```
/// headlong_device::vectorized! {
///     /// Adds `x` to `y`.
///     pub fn add(y: &mut [f32], x: &[f32]) {
///         for (y, x) in y.iter_mut().zip(x) {
///             *y += x;
///         }
///     }
/// }
/// let mut y = [1.0; 3];
/// add(&mut y, &[2.0; 3]);
/// assert_eq!(y, [3.0; 3]);
/// ```
#[macro_export]
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            match $crate::simd::isa() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `isa` answers `Avx512` only where the processor has every feature named
                // above.
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above, for AVX2 and FMA.
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    )*};
}

/// Asks the processor to bring `data[index]`'s cache line near; out-of-range indices are ignored.
#[inline(always)]
pub fn prefetch<T>(data: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if index < data.len() {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address lies inside `data`; a prefetch has no effect but on speed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().add(index).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, index);
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::vectorized! {
        fn saxpy(y: &mut [f32], a: f32, x: &[f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = a.mul_add(*x, *y * 0.3);
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32).sin()).collect();
        let mut results = Vec::new();
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            if force_isa(isa) != isa {
                println!("skipped, because this processor has no {}", isa.name());
                continue;
            }
            let mut y: Vec<f32> = (0..1003).map(|i| (i as f32).cos()).collect();
            saxpy(&mut y, 0.7, &x);
            results.push(y);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        force_isa(Isa::Avx512);
    }
}
