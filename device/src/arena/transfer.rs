//! Whole matrices and arenas to and from host lists, in either memory: for initial
//! values, checkpoints, tests.

use super::{Arena, Mat};
use crate::cuda::{DeviceMemory, DevicePtr};
use crate::dtype::Element;
use crate::error::Result;
use crate::memory::Memory;
use std::ptr::NonNull;

impl Mat {
    /// Whether the matrix lies in a device's memory.
    pub fn is_on_device(&self) -> bool {
        matches!(*self.slot.memory, Memory::Device(_))
    }

    /// The address of the first element, for kernels. An empty matrix has one too; it must not be
    /// followed.
    ///
    /// # Panics
    /// When it lies in host memory.
    pub fn device_ptr(&self) -> DevicePtr {
        match &*self.slot.memory {
            Memory::Device(memory) => memory.ptr().offset(self.first_byte()),
            Memory::Host(_) => {
                panic!("slot `{}` lies in host memory and has no device address", self.name())
            }
        }
    }

    fn first_byte(&self) -> usize {
        self.slot.plan.offset_bytes + self.offset * self.dtype().bytes()
    }

    /// All elements, row after row without gaps. On a device: waits for all of its work first.
    ///
    /// # Panics
    /// When the slot holds another element type, or (in host memory) is being written.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let mut packed = Vec::with_capacity(self.rows * self.cols);
        match &*self.slot.memory {
            Memory::Host(_) => {
                let rows = self.read::<T>();
                (0..self.rows).for_each(|row| packed.extend_from_slice(rows.row(row)));
            }
            Memory::Device(memory) => {
                let spanned = self.spanned::<T>(memory)?;
                for row in 0..self.rows {
                    packed.extend_from_slice(&spanned[row * self.stride..][..self.cols]);
                }
            }
        }
        Ok(packed)
    }

    /// Overwrites all elements, row after row without gaps. On a device: waits for all of its work
    /// first.
    ///
    /// # Panics
    /// When the slot holds another element type, `packed` has another length, or the slot (in host
    /// memory) is in use.
    pub fn copy_from<T: Element>(&self, packed: &[T]) -> Result<()> {
        let (rows, cols) = (self.rows, self.cols);
        assert_eq!(packed.len(), rows * cols, "slot `{}` is {rows} × {cols}", self.name());
        match &*self.slot.memory {
            Memory::Host(_) => {
                let mut target = self.write::<T>();
                for row in 0..rows {
                    target.row_mut(row).copy_from_slice(&packed[row * cols..][..cols]);
                }
                Ok(())
            }
            Memory::Device(memory) if self.stride == cols || rows <= 1 => {
                self.slot.check_dtype::<T>();
                memory.write(self.first_byte(), bytes_of(packed))
            }
            Memory::Device(memory) => {
                let mut spanned = self.spanned::<T>(memory)?;
                for row in 0..rows {
                    spanned[row * self.stride..][..cols]
                        .copy_from_slice(&packed[row * cols..][..cols]);
                }
                memory.write(self.first_byte(), bytes_of(&spanned))
            }
        }
    }

    /// Everything from the first to the last element, gaps between rows included.
    fn spanned<T: Element>(&self, memory: &DeviceMemory) -> Result<Vec<T>> {
        self.slot.check_dtype::<T>();
        let len = if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.cols };
        let mut spanned = vec![T::default(); len];
        memory.read(self.first_byte(), bytes_of_mut(&mut spanned))?;
        Ok(spanned)
    }
}

impl Arena {
    /// First byte of host memory.
    pub(super) fn host_start(&self) -> NonNull<u8> {
        self.memory
            .host_start(self.slots.first().map_or("of an empty arena", |slot| &slot.plan.name))
    }

    /// Whether the arena lies in a device's memory.
    pub fn is_on_device(&self) -> bool {
        matches!(*self.memory, Memory::Device(_))
    }

    /// The address of its first byte, for kernels.
    ///
    /// # Panics
    /// When it lies in host memory.
    pub fn device_ptr(&self) -> DevicePtr {
        match &*self.memory {
            Memory::Device(memory) => memory.ptr().offset(self.range.start),
            Memory::Host(_) => panic!("an arena in host memory has no device address"),
        }
    }

    /// All slots as one list, gaps of alignment included. On a device: waits for all of its work
    /// first.
    ///
    /// # Panics
    /// When a slot holds another element type, or (in host memory) is being written.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let Memory::Device(memory) = &*self.memory else {
            return Ok(self.read_all::<T>().to_vec());
        };
        self.slots.iter().for_each(|slot| slot.check_dtype::<T>());
        let mut values = vec![T::default(); self.range.len() / size_of::<T>()];
        memory.read(self.range.start, bytes_of_mut(&mut values))?;
        Ok(values)
    }

    /// Overwrites all slots from one list, gaps of alignment included. On a device: waits for all
    /// of its work first.
    ///
    /// # Panics
    /// When a slot holds another element type, `values` has another length, or a slot (in host
    /// memory) is in use.
    pub fn copy_from<T: Element>(&self, values: &[T]) -> Result<()> {
        assert_eq!(size_of_val(values), self.range.len(), "a list as long as the arena");
        let Memory::Device(memory) = &*self.memory else {
            self.write_all::<T>().copy_from_slice(values);
            return Ok(());
        };
        self.slots.iter().for_each(|slot| slot.check_dtype::<T>());
        memory.write(self.range.start, bytes_of(values))
    }
}

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: elements are plain numbers without padding, for which every bit pattern is a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
