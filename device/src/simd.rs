//! One body, several instruction sets, chosen at run time.
//!
//! [`vectorized!`](crate::vectorized) compiles a function's body three times: for AVX-512, for AVX2
//! with FMA, and for the portable baseline. The compiler vectorises each by itself. Rust never
//! fuses `a * b + c` on its own, so bodies that write `*`, `+` and `mul_add` explicitly give the
//! same bits on every instruction set.

#[cfg(target_arch = "x86_64")]
mod tiles;

use std::cell::Cell;

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
}

/// Instructions for products of bf16, in rising order; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bf16Products {
    /// None of their own.
    None,
    /// Of pairs of numbers (AVX-512 BF16).
    Pairs,
    /// Of tiles of 16 × 32 numbers (AMX).
    Tiles,
}

impl Bf16Products {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Bf16Products::None => "none",
            Bf16Products::Pairs => "pairs",
            Bf16Products::Tiles => "tiles",
        }
    }
}

/// What the bodies of a thread may use. It changes speed, not results.
///
/// A thread may use all that the processor has, until [`Self::set`] or [`Self::run`] says otherwise
/// for it. Tasks of a [`Pool`](crate::pool::Pool) follow the thread that hands them out: so two
/// runs of one process may have limits of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    isa: Isa,
    bf16: Bf16Products,
}

thread_local! {
    /// None until first asked for.
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

impl Limit {
    /// At most `isa`, and with it for products of bf16 at most `bf16`; never more than the
    /// processor has.
    pub fn new(isa: Isa, bf16: Bf16Products) -> Self {
        let isa = isa.min(detect());
        let bf16 = if isa == Isa::Avx512 { bf16.min(detect_bf16()) } else { Bf16Products::None };
        Self { isa, bf16 }
    }

    /// At most `isa`, with all that it has for products of bf16.
    pub fn at_most(isa: Isa) -> Self {
        Self::new(isa, Bf16Products::Tiles)
    }

    /// All that the processor has.
    pub fn all() -> Self {
        Self::at_most(Isa::Avx512)
    }

    /// That of this thread.
    #[inline]
    pub fn current() -> Self {
        LIMIT.get().unwrap_or_else(|| {
            let limit = Self::all();
            limit.set();
            limit
        })
    }

    /// Limits this thread from here on.
    #[inline]
    pub fn set(self) {
        LIMIT.set(Some(self));
    }

    /// Limits this thread while `body` runs.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
        let _restored = Restored(LIMIT.replace(Some(self)));
        body()
    }
}

/// Gives a thread its limit back, also after a panic.
struct Restored(Option<Limit>);

impl Drop for Restored {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

/// The best instruction set that this thread may use.
#[inline]
pub fn isa() -> Isa {
    Limit::current().isa
}

/// The best instructions for products of bf16 that this thread may use.
#[inline]
pub fn bf16_products() -> Bf16Products {
    Limit::current().bf16
}

#[cfg(target_arch = "x86_64")]
fn detect_bf16() -> Bf16Products {
    match is_x86_feature_detected!("avx512bf16") {
        true if tiles::are_permitted() => Bf16Products::Tiles,
        true => Bf16Products::Pairs,
        false => Bf16Products::None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_bf16() -> Bf16Products {
    Bf16Products::None
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
/// baseline. A function may have one constant of type `bool`.
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
        $vis:vis fn $name:ident $(<const $flag:ident: $kind:ty>)?
            ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name $(<const $flag: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body $(<const $flag: $kind>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512 $(<const $flag: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
                body $(::<$flag>)? ($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2 $(<const $flag: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
                body $(::<$flag>)? ($($arg),*)
            }

            match $crate::simd::isa() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `isa` answers `Avx512` only where the processor has every feature named
                // above.
                $crate::simd::Isa::Avx512 => unsafe { avx512 $(::<$flag>)? ($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above, for AVX2 and FMA.
                $crate::simd::Isa::Avx2 => unsafe { avx2 $(::<$flag>)? ($($arg),*) },
                _ => body $(::<$flag>)? ($($arg),*),
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
    use crate::pool::Pool;
    use std::collections::HashSet;
    use std::sync::Mutex;

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
            let limit = Limit::at_most(isa);
            if limit.isa != isa {
                println!("skipped, because this processor has no {}", isa.name());
                continue;
            }
            let mut y: Vec<f32> = (0..1003).map(|i| (i as f32).cos()).collect();
            limit.run(|| saxpy(&mut y, 0.7, &x));
            results.push(y);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn tasks_follow_the_thread_that_hands_them_out() {
        let pool = Pool::new(3);
        let used_by = |limit: Limit| {
            let used = Mutex::new(HashSet::new());
            limit.run(|| {
                pool.run(64, &|_| {
                    std::thread::yield_now();
                    used.lock().unwrap().insert(isa());
                })
            });
            used.into_inner().unwrap()
        };
        for isa in [Isa::Portable, Isa::Avx512] {
            let limit = Limit::at_most(isa);
            assert_eq!(used_by(limit), HashSet::from([limit.isa]));
        }
        assert_eq!(Limit::current(), Limit::all(), "a limit ends with its body");
    }
}
