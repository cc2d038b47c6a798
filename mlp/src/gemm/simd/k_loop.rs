//! The loop over k, by hand: every row's address is a sum that the processor forms while it
//! loads.
//!
//! Compiled, the loop keeps a pointer for the first row and adds up the others' at each step, an
//! instruction a row: processors that issue four at a time have no room for them besides two
//! multiply-adds and a load.
//!
//! **bf16 without instructions of its own.** Two steps of k are one, the odd one first, and
//! numbers below 2⁻¹²⁶ are zero. For that there is a mode of the processor (FTZ and DAZ in MXCSR),
//! which costs nothing while it is on. Compiled code takes it to be off, so it is on inside one
//! `asm!` block. What comes before and after, loads of `C`, bias, ReLU, mask and rounding, is
//! compiled.

use super::{GROUP, Micro, PANEL_COLS};
use std::arch::asm;
use std::arch::x86_64::{__m256, __m512};

/// MXCSR as the system sets it (exceptions masked, rounding to nearest), with FTZ and DAZ.
const FLUSHING: u32 = 0x9fc0;

/// What the loop reads; steps in bytes.
pub struct Walk {
    a: *const f32,
    row_step: usize,
    k_step: usize,
    b: *const f32,
    /// Steps.
    pub k: usize,
    ahead: *const f32,
    ahead_step: usize,
}

impl Walk {
    /// From column `first` of the panel on.
    #[inline(always)]
    pub fn new(micro: &Micro, first: usize) -> Self {
        let (row_step, k_step) =
            if micro.columns { (1, micro.a_stride) } else { (micro.a_stride, 1) };
        Self {
            a: micro.a,
            row_step: row_step * size_of::<f32>(),
            k_step: k_step * size_of::<f32>(),
            b: micro.b.wrapping_add(first),
            k: micro.k,
            ahead: micro.ahead.start,
            ahead_step: micro.ahead.stride * size_of::<f32>(),
        }
    }

    /// Of the steps that follow `k` in its group every second one, `k` the first.
    #[inline(always)]
    pub fn every_second(&self, k: usize) -> Self {
        let end = self.k.min(k - k % GROUP + GROUP);
        let ahead = self.ahead.wrapping_byte_add(k * self.ahead_step);
        Self {
            a: self.a.wrapping_byte_add(k * self.k_step),
            k_step: 2 * self.k_step,
            b: self.b.wrapping_add(k * PANEL_COLS),
            k: end.saturating_sub(k).div_ceil(2),
            ahead,
            ahead_step: 2 * self.ahead_step,
            ..*self
        }
    }
}

/// One step of k of one row: its element of `A` in all lanes, times each vector of the row of
/// `B`, added to the sums.
macro_rules! multiply_add {
    ($multiply:tt, $address:tt, $factor:tt, $($sum:tt += $rhs:tt),*) => {
        concat!(
            "vbroadcastss ", $factor, ", dword ptr [", $address, "]\n",
            $($multiply, " ", $sum, ", ", $factor, ", ", $rhs, "\n",)*
        )
    };
}

/// A loop's instructions between those that prepare its addresses and the names of its registers:
/// of `$walk`, for rows (number, place in `A`: [register of a sum, its vector, register of that
/// vector of `B`] …).
macro_rules! with_registers {
    (
        ($walk:ident, $sums:ident, $factor:tt, $(($rhs:tt $offset:tt))*),
        [$(($i:tt $address:tt: $([$sum:tt $v:tt $by:tt])*))*],
        ($($instruction:expr,)*), ($($operands:tt)*)
    ) => {
        asm!(
            "lea {triple}, [{stride} + 2*{stride}]",
            "lea {fivefold}, [{stride} + 4*{stride}]",
            "lea {second}, [{first} + 2*{triple}]",
            "add {second}, {stride}",
            $($instruction,)*
            $($operands)*
            stride = in(reg) $walk.row_step,
            step = in(reg) $walk.k_step,
            ahead_step = in(reg) $walk.ahead_step,
            first = inout(reg) $walk.a => _,
            b = inout(reg) $walk.b => _,
            k = inout(reg) $walk.k => _,
            ahead = inout(reg) $walk.ahead => _,
            second = out(reg) _,
            triple = out(reg) _,
            fivefold = out(reg) _,
            $($(inout($sum) $sums[$i][$v],)*)*
            $(out($rhs) _,)*
            out($factor) _,
            options(nostack),
        )
    };
}

/// One step after the other, rows of the panel `$b_step` bytes apart, between instructions before
/// and after.
macro_rules! stepping {
    (
        [$($before:literal)*] $b_step:literal [$($after:literal)*] $operands:tt,
        $multiply:tt, ($walk:ident, $sums:ident, $factor:tt, $(($rhs:tt $offset:tt))*),
        $(($i:tt $address:tt: $([$sum:tt $v:tt $by:tt])*))*
    ) => {
        with_registers!(
            ($walk, $sums, $factor, $(($rhs $offset))*),
            [$(($i $address: $([$sum $v $by])*))*],
            (
                $($before,)*
                "test {k}, {k}",
                "jz 3f",
                "2:",
                "prefetcht1 [{ahead}]",
                "add {ahead}, {ahead_step}",
                $(concat!("vmovups ", $rhs, ", [{b} + ", $offset, "]"),)*
                $(multiply_add!($multiply, $address, $factor, $($sum += $by),*),)*
                "add {first}, {step}",
                "add {second}, {step}",
                concat!("add {b}, ", $b_step),
                "dec {k}",
                "jnz 2b",
                "3:",
                $($after,)*
            ),
            $operands
        )
    };
}

/// One step after the other, by the instruction `$multiply`.
macro_rules! steps {
    ($($loop:tt)*) => { stepping!([] "128" [] (), $($loop)*) };
}

/// Every second step, as [`Walk::every_second`] says, with zeros for tiny numbers.
macro_rules! flushed_steps {
    ($($loop:tt)*) => {{
        // Room for MXCSR as it was, and as the loop has it.
        let mut mode = [0, FLUSHING];
        stepping!(
            ["stmxcsr [{mode}]" "ldmxcsr [{mode} + 4]"] "256" ["ldmxcsr [{mode}]"]
            (mode = in(reg) mode.as_mut_ptr(),),
            $($loop)*
        )
    }};
}

/// Two steps at a time, the odd one first, with zeros for tiny numbers.
macro_rules! flushed_pairs {
    (
        $multiply:tt, ($walk:ident, $sums:ident, $factor:tt, $(($rhs:tt $offset:tt))*),
        $(($i:tt $address:tt: $([$sum:tt $v:tt $by:tt])*))*
    ) => {{
        // Room for MXCSR as it was, and as the loop has it.
        let mut mode = [0, FLUSHING];
        with_registers!(
            ($walk, $sums, $factor, $(($rhs $offset))*),
            [$(($i $address: $([$sum $v $by])*))*],
            (
                "stmxcsr [{mode}]",
                "ldmxcsr [{mode} + 4]",
                "sub {k}, 2",
                "jb 3f",
                "2:",
                "prefetcht1 [{ahead}]",
                "add {ahead}, {ahead_step}",
                // The odd step.
                "add {first}, {step}",
                "add {second}, {step}",
                $(concat!("vmovups ", $rhs, ", [{b} + 128 + ", $offset, "]"),)*
                $(multiply_add!($multiply, $address, $factor, $($sum += $by),*),)*
                // The even one before it.
                "sub {first}, {step}",
                "sub {second}, {step}",
                $(concat!("vmovups ", $rhs, ", [{b} + ", $offset, "]"),)*
                $(multiply_add!($multiply, $address, $factor, $($sum += $by),*),)*
                "lea {first}, [{first} + 2*{step}]",
                "lea {second}, [{second} + 2*{step}]",
                "add {b}, 256",
                "sub {k}, 2",
                "jae 2b",
                "3:",
                "cmp {k}, -1",
                "jne 4f",
                // The last step has no odd one after it: zeros are multiplied, and their product is
                // added.
                concat!("vxorps ", $factor, ", ", $factor, ", ", $factor),
                $($(concat!("vaddps ", $sum, ", ", $sum, ", ", $factor),)*)*
                $(concat!("vmovups ", $rhs, ", [{b} + ", $offset, "]"),)*
                $(multiply_add!($multiply, $address, $factor, $($sum += $by),*),)*
                "4:",
                "ldmxcsr [{mode}]",
            ),
            (mode = in(reg) mode.as_mut_ptr(),)
        )
    }};
}

/// The loop for the first `$rows` of the rows that are listed.
macro_rules! by_rows {
    ($loop:ident, $multiply:tt, $rows:ident, $names:tt, [$($before:tt)*]) => {};
    (
        $loop:ident, $multiply:tt, $rows:ident, $names:tt,
        [$($before:tt)*] ($i:tt $($row:tt)*) $($after:tt)*
    ) => {
        if $rows == $i + 1 {
            $loop!($multiply, $names, $($before)* ($i $($row)*));
        }
        by_rows!($loop, $multiply, $rows, $names, [$($before)* ($i $($row)*)] $($after)*);
    };
}

/// Defines a loop for up to 14 rows of one or two vectors of 512 bits.
macro_rules! define_512 {
    ($(#[$doc:meta])* $name:ident, $loop:ident, $multiply:tt) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The processor has the instructions; `walk`'s pointers cover its steps.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        #[inline]
        #[rustfmt::skip]
        pub unsafe fn $name<const ROWS: usize, const VECTORS: usize>(
            walk: &Walk,
            sums: &mut [[__m512; VECTORS]; ROWS],
        ) {
            // SAFETY: the loop reads `k` elements of each row and rows of the panel, as the
            // caller promises, asks for lines, which no address makes a fault, names every register
            // that it changes, and leaves MXCSR as it was.
            unsafe {
                if VECTORS == 1 {
                    by_rows!($loop, $multiply, ROWS, (walk, sums, "zmm30", ("zmm28" "0")), []
                        (0 "{first}": ["zmm0" 0 "zmm28"])
                        (1 "{first} + {stride}": ["zmm1" 0 "zmm28"])
                        (2 "{first} + 2*{stride}": ["zmm2" 0 "zmm28"])
                        (3 "{first} + {triple}": ["zmm3" 0 "zmm28"])
                        (4 "{first} + 4*{stride}": ["zmm4" 0 "zmm28"])
                        (5 "{first} + {fivefold}": ["zmm5" 0 "zmm28"])
                        (6 "{first} + 2*{triple}": ["zmm6" 0 "zmm28"])
                        (7 "{second}": ["zmm7" 0 "zmm28"])
                        (8 "{second} + {stride}": ["zmm8" 0 "zmm28"])
                        (9 "{second} + 2*{stride}": ["zmm9" 0 "zmm28"])
                        (10 "{second} + {triple}": ["zmm10" 0 "zmm28"])
                        (11 "{second} + 4*{stride}": ["zmm11" 0 "zmm28"])
                        (12 "{second} + {fivefold}": ["zmm12" 0 "zmm28"])
                        (13 "{second} + 2*{triple}": ["zmm13" 0 "zmm28"])
                    );
                } else {
                    by_rows!($loop, $multiply, ROWS,
                        (walk, sums, "zmm30", ("zmm28" "0") ("zmm29" "64")), []
                        (0 "{first}": ["zmm0" 0 "zmm28"] ["zmm1" 1 "zmm29"])
                        (1 "{first} + {stride}": ["zmm2" 0 "zmm28"] ["zmm3" 1 "zmm29"])
                        (2 "{first} + 2*{stride}": ["zmm4" 0 "zmm28"] ["zmm5" 1 "zmm29"])
                        (3 "{first} + {triple}": ["zmm6" 0 "zmm28"] ["zmm7" 1 "zmm29"])
                        (4 "{first} + 4*{stride}": ["zmm8" 0 "zmm28"] ["zmm9" 1 "zmm29"])
                        (5 "{first} + {fivefold}": ["zmm10" 0 "zmm28"] ["zmm11" 1 "zmm29"])
                        (6 "{first} + 2*{triple}": ["zmm12" 0 "zmm28"] ["zmm13" 1 "zmm29"])
                        (7 "{second}": ["zmm14" 0 "zmm28"] ["zmm15" 1 "zmm29"])
                        (8 "{second} + {stride}": ["zmm16" 0 "zmm28"] ["zmm17" 1 "zmm29"])
                        (9 "{second} + 2*{stride}": ["zmm18" 0 "zmm28"] ["zmm19" 1 "zmm29"])
                        (10 "{second} + {triple}": ["zmm20" 0 "zmm28"] ["zmm21" 1 "zmm29"])
                        (11 "{second} + 4*{stride}": ["zmm22" 0 "zmm28"] ["zmm23" 1 "zmm29"])
                        (12 "{second} + {fivefold}": ["zmm24" 0 "zmm28"] ["zmm25" 1 "zmm29"])
                        (13 "{second} + 2*{triple}": ["zmm26" 0 "zmm28"] ["zmm27" 1 "zmm29"])
                    );
                }
            }
        }
    };
}

define_512!(
    /// Adds the products of all steps of k to the sums: numbers of f32.
    numbers_512, steps, "vfmadd231ps"
);
define_512!(
    /// As above, of words of two bf16: with AVX-512 BF16.
    words_512, steps, "vdpbf16ps"
);
define_512!(
    /// As above, of bf16 as numbers of f32: the bits of [`words_512`].
    widened_512, flushed_pairs, "vfmadd231ps"
);
define_512!(
    /// One of the two chains of a group, of bf16 as numbers of f32.
    flushed_512, flushed_steps, "vfmadd231ps"
);

/// Defines a loop for up to 6 rows of two vectors of 256 bits.
macro_rules! define_256 {
    ($(#[$doc:meta])* $name:ident, $loop:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The processor has AVX2 and FMA; `walk`'s pointers cover its steps.
        #[target_feature(enable = "avx2,fma")]
        #[inline]
        #[rustfmt::skip]
        pub unsafe fn $name<const ROWS: usize>(
            walk: &Walk,
            sums: &mut [[__m256; 2]; ROWS],
        ) {
            // SAFETY: as above.
            unsafe {
                by_rows!($loop, "vfmadd231ps", ROWS,
                    (walk, sums, "ymm14", ("ymm12" "0") ("ymm13" "32")), []
                    (0 "{first}": ["ymm0" 0 "ymm12"] ["ymm1" 1 "ymm13"])
                    (1 "{first} + {stride}": ["ymm2" 0 "ymm12"] ["ymm3" 1 "ymm13"])
                    (2 "{first} + 2*{stride}": ["ymm4" 0 "ymm12"] ["ymm5" 1 "ymm13"])
                    (3 "{first} + {triple}": ["ymm6" 0 "ymm12"] ["ymm7" 1 "ymm13"])
                    (4 "{first} + 4*{stride}": ["ymm8" 0 "ymm12"] ["ymm9" 1 "ymm13"])
                    (5 "{first} + {fivefold}": ["ymm10" 0 "ymm12"] ["ymm11" 1 "ymm13"])
                );
            }
        }
    };
}

define_256!(
    /// As [`numbers_512`].
    numbers_256, steps
);
define_256!(
    /// As [`widened_512`].
    widened_256, flushed_pairs
);
define_256!(
    /// As [`flushed_512`].
    flushed_256, flushed_steps
);
