//! Element types that rows are stored in on the processor: f32, or bf16, which is widened as it is
//! read and rounded stochastically as it is written.
//!
//! A step is often smaller than half the distance between two bf16 neighbours, and would be lost if
//! it was rounded to the nearest. So a weight is rounded up with the probability that keeps its
//! mean. Which way it goes depends only on seed, step, table, row and column: not on threads,
//! ranks or the device, whose kernels draw the same numbers (`store_weights` in
//! `update/update.cu`).

use headlong_device::arena::{Read, Write};
use headlong_device::dtype::Element;
use headlong_device::optimizer::Step;
use headlong_device::pool::SharedMut;
use headlong_device::rng::CounterRng;
use headlong_device::{DType, Mat, MatRef, bf16, f16, vectorized};

mod whole;

pub(crate) use whole::{check_rows, read_rows, write_rows};

/// What a row can be stored in.
pub(crate) trait RowElement: Element {
    /// Whether rows are rounded as they are written.
    const IS_NARROW: bool;

    /// The number as f32; exact.
    fn wide(self) -> f32;

    /// The row itself, where it is f32.
    fn as_wide(row: &[Self]) -> Option<&[f32]>;

    /// The nearest one that can be stored.
    fn nearest(value: f32) -> Self;

    /// Rows of this type.
    ///
    /// # Panics
    /// When they are of the other.
    fn rows_of(rows: RowsRef<'_>) -> MatRef<'_, Self>;

    /// Changes a row in f32. `wide` is as long as the row, and scratch memory.
    fn change(
        row: &mut [Self],
        wide: &mut [f32],
        rounding: &Rounding,
        index: u64,
        body: impl FnOnce(&mut [f32]),
    );
}

impl RowElement for f32 {
    const IS_NARROW: bool = false;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn as_wide(row: &[Self]) -> Option<&[f32]> {
        Some(row)
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        value
    }

    fn rows_of(rows: RowsRef<'_>) -> MatRef<'_, Self> {
        let RowsRef::F32(rows) = rows else { panic!("rows are f32") };
        rows
    }

    #[inline(always)]
    fn change(
        row: &mut [Self],
        _: &mut [f32],
        _: &Rounding,
        _: u64,
        body: impl FnOnce(&mut [f32]),
    ) {
        body(row);
    }
}

impl RowElement for half::bf16 {
    const IS_NARROW: bool = true;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn as_wide(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn rows_of(rows: RowsRef<'_>) -> MatRef<'_, Self> {
        let RowsRef::Bf16(rows) = rows else { panic!("rows are bf16") };
        rows
    }

    #[inline(always)]
    fn change(
        row: &mut [Self],
        wide: &mut [f32],
        rounding: &Rounding,
        index: u64,
        body: impl FnOnce(&mut [f32]),
    ) {
        widen(row, wide);
        body(wide);
        rounding.store(index, wide, row);
    }
}

/// What a kernel rounds rows to before it adds them: nothing, f16 or bf16; see [`by_type`].
pub(crate) const EXACT: u8 = 0;
pub(crate) const TO_F16: u8 = 1;
pub(crate) const TO_BF16: u8 = 2;

/// A number of a row as f32, rounded as `TO` says.
#[inline(always)]
pub(crate) fn summand<T: RowElement, const TO: u8>(value: T) -> f32 {
    let wide = value.wide();
    match TO {
        TO_F16 => f16::nearest(wide),
        TO_BF16 if !T::IS_NARROW => bf16::nearest(wide),
        _ => wide,
    }
}

/// A row as f32; exact.
#[inline(always)]
pub(crate) fn widen<T: RowElement>(row: &[T], out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(row) {
        *out = value.wide();
    }
}

/// A row as f32, rounded to `narrow` where that is a type; in `wide`, which is as long, where the
/// row is not that already.
#[inline(always)]
pub(crate) fn summands<'a, T: RowElement>(
    row: &'a [T],
    narrow: Option<DType>,
    wide: &'a mut [f32],
) -> &'a [f32] {
    if let (Some(row), None) = (T::as_wide(row), narrow) {
        return row;
    }
    widen(row, wide);
    if let Some(narrow) = narrow {
        round_row(narrow, wide);
    }
    wide
}

vectorized! {
    /// Rounds a row to f16 or bf16.
    fn round_row(narrow: DType, row: &mut [f32]) {
        match narrow {
            DType::F16 => row.iter_mut().for_each(|value| *value = f16::nearest(*value)),
            _ => row.iter_mut().for_each(|value| *value = bf16::nearest(*value)),
        }
    }
}

/// The random numbers by which the weights of one table are rounded in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounding(CounterRng);

impl Rounding {
    pub(crate) fn new(seed: u64, step: &Step, table: usize) -> Self {
        // Kernels have the number of the step in 32 bits.
        let number = u64::from(u32::try_from(step.number).unwrap_or(u32::MAX));
        Self(CounterRng::new(seed, number << 32 | table as u64))
    }

    /// Writes `values`, row `index` of the model's table. Eight elements share the four words of
    /// one counter.
    #[inline(always)]
    fn store(&self, index: u64, values: &[f32], row: &mut [half::bf16]) {
        let first = index * values.len().div_ceil(8) as u64;
        for ((values, row), counter) in values.chunks(8).zip(row.chunks_mut(8)).zip(first..) {
            let words = self.0.bits(counter);
            for (element, (value, out)) in values.iter().zip(row).enumerate() {
                *out = stochastically_rounded(*value, words[element / 2] >> (16 * (element % 2)));
            }
        }
    }
}

/// Up with the probability that keeps the mean: `random` has 16 random bits. An infinity or no
/// number stays what it is.
#[inline(always)]
fn stochastically_rounded(value: f32, random: u32) -> half::bf16 {
    if !value.is_finite() {
        return half::bf16::from_f32(value);
    }
    half::bf16::from_bits((value.to_bits().wrapping_add(random & 0xffff) >> 16) as u16)
}

/// The rows of one table, in either type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowsRef<'a> {
    F32(MatRef<'a, f32>),
    Bf16(MatRef<'a, half::bf16>),
}

impl RowsRef<'_> {
    pub(crate) fn none() -> Self {
        RowsRef::F32(MatRef::new(&[], 0, 0))
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            RowsRef::F32(rows) => rows.rows(),
            RowsRef::Bf16(rows) => rows.rows(),
        }
    }
}

/// Runs an expression with the rows, in either type.
macro_rules! each_type {
    ($enum:ident, $value:expr, $rows:ident => $body:expr) => {
        match $value {
            $enum::F32($rows) => $body,
            $enum::Bf16($rows) => $body,
        }
    };
}
pub(crate) use each_type;

/// Calls a kernel for rows that are added as they are (none), or rounded to f16 or bf16: one kernel
/// for all, with [`summands`], pooled the long bags of a lookup 1.05 to 1.17 times as slowly.
macro_rules! by_type {
    ($to:expr, $kernel:ident($($argument:expr),*)) => {
        match $to {
            None => $kernel::<{ $crate::rows::EXACT }>($($argument),*),
            Some(headlong_device::DType::F16) => {
                $kernel::<{ $crate::rows::TO_F16 }>($($argument),*)
            }
            Some(_) => $kernel::<{ $crate::rows::TO_BF16 }>($($argument),*),
        }
    };
}
pub(crate) use by_type;

/// The rows of one table, opened for reading.
#[derive(Debug)]
pub(crate) enum OpenRows<'a> {
    F32(Read<'a, f32>),
    Bf16(Read<'a, half::bf16>),
}

impl<'a> OpenRows<'a> {
    pub(crate) fn new(mat: &'a Mat) -> Self {
        match mat.dtype() {
            DType::Bf16 => OpenRows::Bf16(mat.read()),
            _ => OpenRows::F32(mat.read()),
        }
    }

    pub(crate) fn view(&self) -> RowsRef<'_> {
        match self {
            OpenRows::F32(rows) => RowsRef::F32(rows.view()),
            OpenRows::Bf16(rows) => RowsRef::Bf16(rows.view()),
        }
    }

    /// Copies elements from `first` on.
    pub(crate) fn copy(&self, first: usize, out: &mut [f32]) {
        each_type!(OpenRows, self, rows => widen(&rows.data()[first..][..out.len()], out));
    }
}

/// The same, opened for writing.
#[derive(Debug)]
pub(crate) enum OpenRowsMut<'a> {
    F32(Write<'a, f32>),
    Bf16(Write<'a, half::bf16>),
}

impl<'a> OpenRowsMut<'a> {
    pub(crate) fn new(mat: &'a Mat) -> Self {
        match mat.dtype() {
            DType::Bf16 => OpenRowsMut::Bf16(mat.write()),
            _ => OpenRowsMut::F32(mat.write()),
        }
    }

    /// Overwrites elements from `first` on, rounded to nearest.
    pub(crate) fn overwrite(&mut self, first: usize, values: &[f32]) {
        each_type!(OpenRowsMut, self, rows => {
            let out = &mut rows.data_mut()[first..][..values.len()];
            out.iter_mut().zip(values).for_each(|(out, &value)| *out = RowElement::nearest(value));
        });
    }

    /// For the tasks of one update, each of which has rows of its own.
    pub(crate) fn share(&mut self, cols: usize) -> WeightMemory {
        match self {
            OpenRowsMut::F32(rows) => {
                WeightMemory::F32(RowMemory { data: SharedMut::new(rows.data_mut()), cols })
            }
            OpenRowsMut::Bf16(rows) => {
                WeightMemory::Bf16(RowMemory { data: SharedMut::new(rows.data_mut()), cols })
            }
        }
    }
}

/// The weights of one table, shared by the tasks of one update.
#[derive(Clone, Copy)]
pub(crate) enum WeightMemory {
    F32(RowMemory<f32>),
    Bf16(RowMemory<half::bf16>),
}

/// Rows of `cols` elements, one after the other; no columns where there is no state.
pub(crate) struct RowMemory<T> {
    pub(crate) data: SharedMut<T>,
    pub(crate) cols: usize,
}

impl<T> Clone for RowMemory<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RowMemory<T> {}
