//! Source text of kernels, and the constants that it is compiled with.

use crate::dtype::DType;

/// The CUDA C++ text of an op, embedded in the program: `Source { name: "embedding/lookup", text:
/// include_str!("lookup.cu") }`.
#[derive(Debug)]
pub struct Source {
    /// `crate/op`.
    pub name: &'static str,
    /// The text, without the prelude.
    pub text: &'static str,
}

/// A constant given to the compiler: `-DNAME=VALUE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Define {
    /// The macro's name.
    pub name: &'static str,
    /// Its value.
    pub value: i64,
}

impl Define {
    /// `-Dname=value`.
    pub const fn new(name: &'static str, value: i64) -> Self {
        Self { name, value }
    }

    /// An element type, for the prelude's `Element<NAME>`: 0 f32, 1 f16, 2 bf16.
    ///
    /// # Panics
    /// For a type that is not one of these.
    pub const fn dtype(name: &'static str, dtype: DType) -> Self {
        let value = match dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
            DType::U32 | DType::U64 => panic!("an element type of floating-point numbers"),
        };
        Self { name, value }
    }
}

/// One instance of a source that a model needs.
#[derive(Debug, Clone)]
pub struct Build {
    /// The text.
    pub source: &'static Source,
    /// Its constants.
    pub defines: Vec<Define>,
}
