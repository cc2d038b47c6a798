//! Memory planned once, allocated once, frozen before the first step.
//!
//! An [`ArenaPlan`] collects named slots; [`ArenaPlan::freeze`] takes one allocation for all of
//! them. A [`Mat`] is a handle to a slot: cheap to clone, free of borrows, so that stages of the
//! schedule can hold it. The schedule owns the order of readers and writers; every access checks
//! it: a slot has either one writer or any number of readers, and breaking that is a panic that
//! names the slot, in release builds too (one atomic operation per op, not per element).
//!
//! An arena frozen on a CUDA stream lies in the device's memory: its handles have a
//! [`Mat::device_ptr`] for kernels, cannot be opened on the host, and are read and written as a
//! whole by [`Mat::to_vec`] and [`Mat::copy_from`] outside of steps.

use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::memory::{HostMemory, Memory};
use crate::stream::Stream;
use crate::view::{MatMut, MatRef, shape_getters, span};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

mod transfer;

/// Every slot starts at a multiple of this many bytes: one cache line, one 512-bit vector.
pub const SLOT_ALIGN_BYTES: usize = 64;

/// Names a slot of one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotId(usize);

#[derive(Debug, Clone)]
struct SlotPlan {
    name: String,
    dtype: DType,
    rows: usize,
    cols: usize,
    offset_bytes: usize,
}

/// The slots of an arena before there is memory for them.
#[derive(Debug, Clone)]
pub struct ArenaPlan {
    name: String,
    slots: Vec<SlotPlan>,
    bytes: usize,
}

/// Where the next slot begins.
fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(SLOT_ALIGN_BYTES).unwrap_or(usize::MAX)
}

impl ArenaPlan {
    /// An empty plan; `name` appears in errors and reports.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), slots: Vec::new(), bytes: 0 }
    }

    /// Adds a dense row-major matrix slot. A plan that is larger than an address space counts as
    /// `usize::MAX` bytes, which freezing refuses.
    pub fn matrix(&mut self, name: &str, dtype: DType, rows: usize, cols: usize) -> SlotId {
        let offset_bytes = aligned(self.bytes);
        self.bytes =
            offset_bytes.saturating_add(rows.saturating_mul(cols).saturating_mul(dtype.bytes()));
        self.slots.push(SlotPlan { name: name.to_owned(), dtype, rows, cols, offset_bytes });
        SlotId(self.slots.len() - 1)
    }

    /// Bytes that freezing will take.
    pub fn bytes(&self) -> usize {
        aligned(self.bytes)
    }

    /// Where each slot will lie in the list of [`Arena::write_all`], as [`Arena::elements_of`] says
    /// once there is memory.
    pub fn elements(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.slots.iter().map(|slot| {
            let start = slot.offset_bytes / slot.dtype.bytes();
            start..start.saturating_add(slot.rows.saturating_mul(slot.cols))
        })
    }

    /// Takes one zeroed allocation of host memory for all slots.
    pub fn freeze(self) -> Result<Arena> {
        let (whole, _) = Self::freeze_together([self])?;
        Ok(whole)
    }

    /// Takes one zeroed allocation for all slots, in the memory of the stream's device.
    pub fn freeze_on(self, stream: &Stream) -> Result<Arena> {
        let (whole, _) = Self::freeze_together_on([self], stream)?;
        Ok(whole)
    }

    /// Takes one zeroed allocation of host memory for several plans, one after the other: the
    /// whole as one arena, and each as its own. They share their slots, so that a user of a part is
    /// seen by users of the whole.
    pub fn freeze_together<const N: usize>(plans: [Self; N]) -> Result<(Arena, [Arena; N])> {
        Self::freeze_in(plans, |name, bytes| HostMemory::zeroed(name, bytes).map(Memory::Host))
    }

    /// The same in the memory of the stream's device.
    pub fn freeze_together_on<const N: usize>(
        plans: [Self; N],
        stream: &Stream,
    ) -> Result<(Arena, [Arena; N])> {
        Self::freeze_in(plans, |name, bytes| Memory::zeroed_on(stream, name, bytes))
    }

    fn freeze_in<const N: usize>(
        plans: [Self; N],
        allocate: impl FnOnce(&str, usize) -> Result<Memory>,
    ) -> Result<(Arena, [Arena; N])> {
        let name = plans.iter().map(|plan| plan.name.as_str()).next().unwrap_or_default();
        let bytes = plans.iter().map(Self::bytes).fold(0, usize::saturating_add);
        let memory = Arc::new(allocate(name, bytes)?);
        let mut start = 0;
        let parts = plans.map(|plan| {
            let range = start..start + plan.bytes();
            start = range.end;
            let slots = plan.slots.into_iter().map(|mut slot| {
                slot.offset_bytes += range.start;
                Arc::new(Slot { plan: slot, memory: Arc::clone(&memory), users: AtomicI32::new(0) })
            });
            Arena { slots: slots.collect(), memory: Arc::clone(&memory), range }
        });
        let slots = parts.iter().flat_map(|part| part.slots.iter().cloned()).collect();
        Ok((Arena { slots, memory, range: 0..bytes }, parts))
    }
}

/// Frozen memory and its slots.
#[derive(Debug, Clone)]
pub struct Arena {
    slots: Vec<Arc<Slot>>,
    memory: Arc<Memory>,
    /// Its bytes of the memory.
    range: Range<usize>,
}

impl Arena {
    /// The handle of a slot.
    pub fn mat(&self, slot: SlotId) -> Mat {
        let slot = Arc::clone(&self.slots[slot.0]);
        let (rows, cols) = (slot.plan.rows, slot.plan.cols);
        Mat { slot, offset: 0, rows, cols, stride: cols }
    }

    /// The handles of all slots, in the order of the plan.
    pub fn mats(&self) -> impl Iterator<Item = Mat> {
        (0..self.slots.len()).map(|index| self.mat(SlotId(index)))
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Where a whole slot of this arena lies in the list of [`Self::write_all`].
    ///
    /// # Panics
    /// When the slot is another arena's.
    pub fn elements_of(&self, mat: &Mat) -> Range<usize> {
        let (slot, size) = (&mat.slot.plan, mat.dtype().bytes());
        let bytes = slot.offset_bytes..slot.offset_bytes + slot.rows * slot.cols * size;
        let is_ours = Arc::ptr_eq(&mat.slot.memory, &self.memory)
            && self.range.start <= bytes.start
            && bytes.end <= self.range.end;
        assert!(is_ours, "slot `{}` lies in the arena", slot.name);
        (bytes.start - self.range.start) / size..(bytes.end - self.range.start) / size
    }

    /// All slots as one writable list of `T`, gaps of alignment included, while nothing else uses
    /// any of them.
    ///
    /// This is how an optimiser passes over all dense parameters at once, and how one all-reduce
    /// takes all gradients.
    ///
    /// # Panics
    /// When a slot is in use, or holds another element type, or the arena lies on a device.
    pub fn write_all<T: Element>(&self) -> WriteAll<'_, T> {
        let (start, len) = self.whole::<T>();
        self.slots.iter().for_each(|slot| slot.begin_write());
        // SAFETY: the arena's part of the mapping, alive with it; all slots are held for writing
        // until the guard is dropped, so that nothing else has a view of it.
        let data = unsafe { std::slice::from_raw_parts_mut(start, len) };
        WriteAll { data, slots: &self.slots }
    }

    /// All slots as one read-only list of `T`, gaps of alignment included.
    ///
    /// # Panics
    /// When a slot is being written, or holds another element type, or the arena lies on a device.
    pub fn read_all<T: Element>(&self) -> ReadAll<'_, T> {
        let (start, len) = self.whole::<T>();
        self.slots.iter().for_each(|slot| slot.begin_read());
        // SAFETY: as in `write_all`; all slots are held for reading.
        let data = unsafe { std::slice::from_raw_parts(start, len) };
        ReadAll { data, slots: &self.slots }
    }

    fn whole<T: Element>(&self) -> (*mut T, usize) {
        self.slots.iter().for_each(|slot| slot.check_dtype::<T>());
        assert!(self.range.end <= self.memory.bytes(), "an arena lies in its memory");
        // SAFETY: the start of the range lies inside the mapping, by the assertion.
        let start = unsafe { self.host_start().add(self.range.start) };
        (start.as_ptr().cast(), self.range.len() / size_of::<T>())
    }
}

/// State of a slot's users: -1 is one writer, n > 0 are n readers.
#[derive(Debug)]
struct Slot {
    plan: SlotPlan,
    memory: Arc<Memory>,
    users: AtomicI32,
}

impl Slot {
    fn check_dtype<T: Element>(&self) {
        assert_eq!(
            self.plan.dtype,
            T::DTYPE,
            "slot `{}` holds another element type",
            self.plan.name
        );
    }

    /// First byte of host memory.
    fn host_start(&self) -> NonNull<u8> {
        self.memory.host_start(&self.plan.name)
    }

    fn begin_read(&self) {
        let before = self.users.fetch_add(1, Ordering::Acquire);
        if before < 0 {
            self.users.fetch_sub(1, Ordering::Release);
            panic!(
                "slot `{}` is read while it is being written: the schedule misses a wait",
                self.plan.name
            );
        }
    }

    fn end_read(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    fn begin_write(&self) {
        let free = self.users.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed);
        assert!(
            free.is_ok(),
            "slot `{}` is written while it is in use: the schedule misses a wait",
            self.plan.name
        );
    }

    fn end_write(&self) {
        self.users.fetch_sub(WRITER, Ordering::Release);
    }
}

/// Far below zero, so that readers who come by mistake and go again never make it look free.
const WRITER: i32 = i32::MIN / 2;

/// A handle to a matrix in an arena: `rows × cols` elements, `stride` elements between the starts
/// of rows.
#[derive(Debug, Clone)]
pub struct Mat {
    slot: Arc<Slot>,
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl Mat {
    shape_getters!();

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.slot.plan.dtype
    }

    /// Name of the slot.
    pub fn name(&self) -> &str {
        &self.slot.plan.name
    }

    /// The first `count` rows: a partial batch in a full batch's slot.
    pub fn first_rows(&self, count: usize) -> Mat {
        assert!(count <= self.rows, "slot `{}`: {count} rows of {}", self.name(), self.rows);
        Mat { rows: count, ..self.clone() }
    }

    /// The rows `first .. first + count`: one micro-batch of a batch, say.
    pub fn rows_range(&self, first: usize, count: usize) -> Mat {
        assert!(
            first + count <= self.rows,
            "slot `{}`: rows {first}+{count} of {}",
            self.name(),
            self.rows
        );
        Mat { offset: self.offset + first * self.stride, rows: count, ..self.clone() }
    }

    /// The columns `first .. first + count` of all rows. Note: readers and writers are checked per
    /// slot, not per column.
    pub fn columns(&self, first: usize, count: usize) -> Mat {
        assert!(
            first + count <= self.cols,
            "slot `{}`: columns {first}+{count} of {}",
            self.name(),
            self.cols
        );
        Mat { offset: self.offset + first, cols: count, ..self.clone() }
    }

    /// The same rows up to column `cols`, what fills them up included.
    ///
    /// # Panics
    /// When rows have no room for so many.
    pub fn filled_up(&self, cols: usize) -> Mat {
        let first = self.offset % self.stride.max(1);
        assert!(
            first + cols <= self.stride,
            "slot `{}`: {cols} columns from {first} on in rows of {}",
            self.name(),
            self.stride
        );
        Mat { cols, ..self.clone() }
    }

    /// Opens the matrix for reading.
    ///
    /// # Panics
    /// When the slot is being written, or holds another element type, or lies on a device.
    pub fn read<T: Element>(&self) -> Read<'_, T> {
        self.slot.check_dtype::<T>();
        self.slot.host_start();
        self.slot.begin_read();
        let (start, len) = self.extent::<T>();
        // SAFETY: `extent` lies inside the slot's memory, which the `Arc` in `self` keeps alive;
        // `begin_read` made sure that no writer is active until `Read` is dropped; every bit
        // pattern is a value of an `Element`.
        let data = unsafe { std::slice::from_raw_parts(start, len) };
        Read {
            view: MatRef::with_stride(data, self.rows, self.cols, self.stride),
            slot: &self.slot,
        }
    }

    /// Opens the matrix for writing.
    ///
    /// # Panics
    /// When the slot is in use, or holds another element type, or lies on a device.
    pub fn write<T: Element>(&self) -> Write<'_, T> {
        self.slot.check_dtype::<T>();
        self.slot.host_start();
        self.slot.begin_write();
        let (start, len) = self.extent::<T>();
        // SAFETY: as in `read`; `begin_write` made sure that this is the only user until `Write` is
        // dropped.
        let data = unsafe { std::slice::from_raw_parts_mut(start, len) };
        Write {
            view: MatMut::with_stride(data, self.rows, self.cols, self.stride),
            slot: &self.slot,
        }
    }

    fn extent<T: Element>(&self) -> (*mut T, usize) {
        // An empty range may start after the last row; it spans nothing.
        let len = span(self.rows, self.cols, self.stride);
        let byte = self.slot.plan.offset_bytes + self.offset * size_of::<T>();
        assert!(
            byte + len * size_of::<T>() <= self.slot.memory.bytes(),
            "slot `{}` ends early",
            self.name()
        );
        // SAFETY: `byte` is at most the length of the mapping, by the line above.
        let start = unsafe { self.slot.host_start().add(byte) };
        (start.as_ptr().cast(), len)
    }
}

/// A matrix opened for reading; closed when dropped.
#[derive(Debug)]
pub struct Read<'a, T: Element> {
    view: MatRef<'a, T>,
    slot: &'a Slot,
}

// Note: no `Deref` to the view. A view copied out of the guard would outlive the check that
// protects it.
impl<T: Element> Read<'_, T> {
    /// The matrix, for as long as this guard lives.
    pub fn view(&self) -> MatRef<'_, T> {
        self.view
    }

    /// Row `index`.
    pub fn row(&self, index: usize) -> &[T] {
        self.view.row(index)
    }

    /// All elements, gaps between rows included.
    pub fn data(&self) -> &[T] {
        self.view.data()
    }
}

impl<T: Element> Drop for Read<'_, T> {
    fn drop(&mut self) {
        self.slot.end_read();
    }
}

/// A matrix opened for writing; closed when dropped.
#[derive(Debug)]
pub struct Write<'a, T: Element> {
    view: MatMut<'a, T>,
    slot: &'a Slot,
}

impl<T: Element> Write<'_, T> {
    /// The matrix, writable, for as long as this guard is borrowed.
    pub fn view(&mut self) -> MatMut<'_, T> {
        self.view.reborrow()
    }

    /// Row `index`, writable.
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        self.view.row_mut(index)
    }

    /// All elements, gaps between rows included, writable.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.view.data_mut()
    }
}

impl<T: Element> Drop for Write<'_, T> {
    fn drop(&mut self) {
        self.slot.end_write();
    }
}

/// A whole arena opened for reading.
#[derive(Debug)]
pub struct ReadAll<'a, T> {
    data: &'a [T],
    slots: &'a [Arc<Slot>],
}

/// A whole arena opened for writing.
#[derive(Debug)]
pub struct WriteAll<'a, T> {
    data: &'a mut [T],
    slots: &'a [Arc<Slot>],
}

impl<T> Deref for ReadAll<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T> Deref for WriteAll<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T> DerefMut for WriteAll<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.data
    }
}

impl<T> Drop for ReadAll<'_, T> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| slot.end_read());
    }
}

impl<T> Drop for WriteAll<'_, T> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| slot.end_write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_slots() -> (Arena, SlotId, SlotId) {
        let mut plan = ArenaPlan::new("test");
        let a = plan.matrix("a", DType::F32, 3, 5);
        let b = plan.matrix("b", DType::F32, 2, 2);
        (plan.freeze().unwrap(), a, b)
    }

    #[test]
    fn slots_are_zeroed_aligned_and_apart() {
        let (arena, a, b) = two_slots();
        let (a, b) = (arena.mat(a), arena.mat(b));
        a.write::<f32>().data_mut().fill(1.0);
        assert!(b.read::<f32>().data().iter().all(|&x| x == 0.0));
        assert_eq!(b.read::<f32>().data().as_ptr() as usize % SLOT_ALIGN_BYTES, 0);
        assert_eq!(arena.read_all::<f32>().iter().sum::<f32>(), 15.0);
        assert_eq!(a.columns(1, 2).first_rows(2).read::<f32>().row(1), [1.0, 1.0]);
        a.rows_range(1, 2).write::<f32>().row_mut(1).fill(2.0);
        assert_eq!(a.read::<f32>().row(2), [2.0; 5]);
        assert_eq!(b.rows_range(2, 0).read::<f32>().data().len(), 0);
    }

    #[test]
    fn more_than_an_address_space_is_refused() {
        let mut plan = ArenaPlan::new("large");
        let small = plan.matrix("small", DType::F32, 3, 5);
        plan.matrix("large", DType::F32, usize::MAX / 2, 3);
        plan.matrix("more", DType::F32, 3, 5);
        assert_eq!(plan.bytes(), usize::MAX);
        let error = plan.clone().freeze().map(|arena| arena.mat(small).rows()).unwrap_err();
        assert!(error.to_string().contains("large"), "{error}");
        assert!(ArenaPlan::freeze_together([plan, ArenaPlan::new("other")]).is_err());
    }

    #[test]
    fn arenas_of_one_memory_lie_one_behind_the_other() {
        let plan = |name: &str, rows| {
            let mut plan = ArenaPlan::new(name);
            let slot = plan.matrix(name, DType::F32, rows, 3);
            (plan, slot)
        };
        let ((first, a), (second, b)) = (plan("a", 2), plan("b", 5));
        let (whole, [first, second]) = ArenaPlan::freeze_together([first, second]).unwrap();
        let (of_a, of_b) = (first.mat(a), second.mat(b));
        assert_eq!((first.elements_of(&of_a), second.elements_of(&of_b)), (0..6, 0..15));
        assert_eq!(whole.elements_of(&of_b), 16..31, "after the first, at the next cache line");
        first.mat(a).write::<f32>().data_mut().fill(1.0);
        second.write_all::<f32>().fill(2.0);
        assert_eq!(second.mat(b).read::<f32>().row(4), [2.0; 3]);
        assert_eq!((first.bytes(), second.bytes(), whole.bytes()), (64, 64, 128));
        let all = whole.read_all::<f32>();
        assert_eq!((all[0], all[6], all[16], all[31]), (1.0, 0.0, 2.0, 2.0));
        let taken = std::panic::catch_unwind(|| drop(first.mat(a).write::<f32>()));
        assert!(taken.is_err(), "the whole is being read, so no part may be written");
    }

    #[test]
    #[should_panic(expected = "slot `a` is written while it is in use")]
    fn a_reader_keeps_writers_out() {
        let (arena, a, _) = two_slots();
        let a = arena.mat(a);
        let _reader = a.read::<f32>();
        a.write::<f32>();
    }

    #[test]
    #[should_panic(expected = "slot `a` is read while it is being written")]
    fn a_writer_keeps_readers_out() {
        let (arena, a, _) = two_slots();
        let a = arena.mat(a);
        let _writer = a.write::<f32>();
        a.read::<f32>();
    }

    #[test]
    #[should_panic(expected = "another element type")]
    fn element_types_are_checked() {
        let (arena, a, _) = two_slots();
        arena.mat(a).read::<u32>();
    }
}
