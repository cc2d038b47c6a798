//! What kernels are given: one struct by value, laid out as in the kernel's source.

use super::DevicePtr;
use crate::Mat;

/// The addresses of `N` matrices, then the elements from one row of each to the next.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Mats<const N: usize> {
    pointers: [DevicePtr; N],
    strides: [u64; N],
}

impl<const N: usize> Mats<N> {
    /// Those of matrices in device memory.
    pub fn new(mats: [&Mat; N]) -> Self {
        Self { pointers: mats.map(Mat::device_ptr), strides: mats.map(|mat| mat.stride() as u64) }
    }
}

impl<const N: usize> Default for Mats<N> {
    fn default() -> Self {
        Self { pointers: [DevicePtr::NULL; N], strides: [0; N] }
    }
}

/// Defines arguments of kernels: their matrices in parentheses, then other fields by type. In the
/// kernel's source, each matrix is a pointer `name`, and after all pointers `u64 name_stride`.
/// [`layout_test!`](crate::layout_test) compares the two.
///
/// ```
/// # use headlong_device::cuda::DevicePtr;
/// headlong_device::kernel_args! {
///     struct ScaleArgs(from, to) { sums: DevicePtr; rows, cols: u64; factor: f32; }
/// }
/// ```
#[macro_export]
macro_rules! kernel_args {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident $(($($mat:ident),+))? {
        $($($field:ident),+: $type:ty;)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        $vis struct $name {
            $(pub mats: $crate::cuda::Mats<{ [$(stringify!($mat)),+].len() }>,)?
            $($(pub $field: $type,)+)*
        }

        #[cfg(test)]
        impl $name {
            /// Names and offsets of all fields.
            pub fn fields() -> Vec<(&'static str, usize)> {
                let names = [
                    $($(stringify!($mat),)+ $(concat!(stringify!($mat), "_stride"),)+)?
                ];
                let mats = names.into_iter().zip((0..).step_by(8));
                mats.chain([$($((stringify!($field), std::mem::offset_of!($name, $field)),)+)*])
                    .collect()
            }
        }
    )*};
}
pub use crate::kernel_args;
