//! What products of dense layers are computed in.

use crate::gemm::FactorType;
use crate::rounding::Rounding;
use headlong_device::cuda::blas::Math;
use headlong_device::simd::{Bf16Products, bf16_products};
use headlong_device::{DType, Device};

/// What products take; sums are f32 in each, and so are weights, gradients and the optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compute {
    /// f32.
    #[default]
    F32,
    /// f32, rounded to TF32 (ten bits of fraction) by the tensor cores. Devices only.
    Tf32,
    /// bf16: activations between layers, their gradients and a copy of the weights are bf16.
    /// Devices only.
    Bf16,
    /// f16, likewise. Gradients below 2⁻²⁴ are lost unless the loss is scaled. Devices only.
    F16,
    /// f32, of what was rounded as in [`Self::Bf16`] or [`Self::F16`]: the processor's way. Biases
    /// are not rounded. Products of bf16 are added up in pairs ([`FactorType::Bf16`]). What lies
    /// between layers is stored in 16 bits where the processor multiplies bf16.
    Rounded(Rounding),
    /// As [`Self::Rounded`] to bf16, with products added up in tiles ([`FactorType::Bf16Tiles`]).
    RoundedTiles,
}

impl Compute {
    /// The same precision on a device of this kind.
    pub fn on(self, device: &Device) -> Self {
        match (self, device) {
            (Compute::Bf16, Device::Cpu) => Compute::Rounded(Rounding::Bf16),
            (Compute::F16, Device::Cpu) => Compute::Rounded(Rounding::F16),
            _ => self,
        }
    }

    /// What values are rounded to that keep the type f32.
    pub const fn rounding(self) -> Option<Rounding> {
        match self {
            Compute::Rounded(rounding) => Some(rounding),
            Compute::RoundedTiles => Some(Rounding::Bf16),
            _ => None,
        }
    }

    /// What the factors of the processor's products hold.
    pub(crate) const fn factor_type(self) -> FactorType {
        match self {
            Compute::Rounded(Rounding::Bf16) => FactorType::Bf16,
            Compute::RoundedTiles => FactorType::Bf16Tiles,
            _ => FactorType::F32,
        }
    }

    /// Type of the activations between layers.
    pub const fn dtype(self) -> DType {
        match self {
            Compute::F32 | Compute::Tf32 | Compute::Rounded(_) | Compute::RoundedTiles => {
                DType::F32
            }
            Compute::Bf16 => DType::Bf16,
            Compute::F16 => DType::F16,
        }
    }

    /// Type in which networks keep what lies between their layers: as [`Self::dtype`], but bf16
    /// where a processor multiplies that, with the same bits.
    pub fn stored(self) -> DType {
        match self.factor_type().is_bf16() && bf16_products() >= Bf16Products::Pairs {
            true => DType::Bf16,
            false => self.dtype(),
        }
    }

    /// Whether activations are 16 bits wide.
    pub const fn is_16_bit(self) -> bool {
        matches!(self, Compute::Bf16 | Compute::F16)
    }

    pub(crate) const fn math(self) -> Math {
        match self {
            Compute::Tf32 => Math::Tf32,
            _ => Math::Full,
        }
    }
}
