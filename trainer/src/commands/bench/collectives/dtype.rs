//! The element types of the command line, with nccl-tests' names.

use super::known::Known;
use super::operation::Case;
use super::subject::{HostBuffers, Subject};
use clap::ValueEnum;
use half::{bf16, f16};
use headlong_comm::Communicator;
use serde::{Deserialize, Serialize};

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "lowercase")]
pub enum Dtype {
    /// Bytes.
    Uint8,
    /// 32 bits, signed.
    Int32,
    /// 32 bits.
    Uint32,
    /// 64 bits, signed.
    Int64,
    /// 64 bits.
    Uint64,
    /// f16.
    Half,
    /// f32.
    Float,
    /// bf16.
    Bfloat16,
    /// All of these, one after the other.
    All,
}

impl Dtype {
    pub const EACH: [Dtype; 8] = [
        Dtype::Uint8,
        Dtype::Int32,
        Dtype::Uint32,
        Dtype::Int64,
        Dtype::Uint64,
        Dtype::Half,
        Dtype::Float,
        Dtype::Bfloat16,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::Uint8 => "uint8",
            Dtype::Int32 => "int32",
            Dtype::Uint32 => "uint32",
            Dtype::Int64 => "int64",
            Dtype::Uint64 => "uint64",
            Dtype::Half => "half",
            Dtype::Float => "float",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::All => "all",
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Dtype::Uint8 | Dtype::All => 1,
            Dtype::Half | Dtype::Bfloat16 => 2,
            Dtype::Int32 | Dtype::Uint32 | Dtype::Float => 4,
            Dtype::Int64 | Dtype::Uint64 => 8,
        }
    }

    /// Buffers of this type in the host's memory.
    pub fn host_buffers(self, communicator: &Communicator, case: Case) -> Box<dyn Subject + '_> {
        fn of<T: Known>(communicator: &Communicator, case: Case) -> Box<dyn Subject + '_> {
            Box::new(HostBuffers::<T>::new(communicator, case))
        }
        match self {
            Dtype::Uint8 | Dtype::All => of::<u8>(communicator, case),
            Dtype::Int32 => of::<i32>(communicator, case),
            Dtype::Uint32 => of::<u32>(communicator, case),
            Dtype::Int64 => of::<i64>(communicator, case),
            Dtype::Uint64 => of::<u64>(communicator, case),
            Dtype::Half => of::<f16>(communicator, case),
            Dtype::Float => of::<f32>(communicator, case),
            Dtype::Bfloat16 => of::<bf16>(communicator, case),
        }
    }
}
