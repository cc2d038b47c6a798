//! Element types: an enum at the granularity of an op, not a type parameter on every signature.

use serde::{Deserialize, Serialize};

/// The type of the elements of a slot. A configuration names those that rows can be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    #[default]
    F32,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Unsigned 32-bit integers: counts, positions.
    #[serde(skip)]
    U32,
    /// Unsigned 64-bit integers: row indices.
    #[serde(skip)]
    U64,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 | DType::U32 => 4,
            DType::U64 => 8,
        }
    }

    /// The name used in configuration and checkpoints.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }
}

/// Rust types that can be the element of a slot.
///
/// Implemented for the plain number types of [`DType`] and for nothing else: every bit pattern is a
/// value of them.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {
    /// The matching [`DType`].
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {
        $(impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
element!(f32 => F32, half::f16 => F16, half::bf16 => Bf16, u32 => U32, u64 => U64);
