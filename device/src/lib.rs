//! The base crate of Headlong: what every other crate uses.
//!
//! * [`arena`]: memory planned once, allocated once, frozen before the first step; matrices are
//!   handles to its slots.
//! * [`view`]: borrowed matrix and jagged views, which the bodies of ops work on.
//! * [`pool`]: worker threads that take tiles dynamically, so that a busy neighbour costs its share
//!   and no more.
//! * [`stream`]: where work is enqueued. On the CPU a stream runs what it is given at once, on a
//!   pool; on a CUDA device later.
//! * [`cuda`]: CUDA devices, their memory, streams, kernels and graphs; libraries are opened at run
//!   time.
//! * [`simd`]: one body compiled for AVX-512, AVX2 and the portable baseline, chosen at run time.
//! * [`rng`]: counter-based random numbers: a value depends on seed, stream and index, never on who
//!   asks first.
//! * [`files`]: files that a command writes, whole or not at all, one process at a time.
//! * [`label`]: a sample's label and weight in one number, as data has it and the loss reads it.
//! * [`optimizer`]: the formulas of SGD, Adagrad, row-wise Adagrad, Adam and FTRL, written once.
//!
//! This crate knows no model, no file format and no rank.
//!
//! ```
//! use headlong_device::{arena::ArenaPlan, dtype::DType, stream::Stream};
//!
//! let stream = Stream::cpu(2);
//! let mut plan = ArenaPlan::new("activations");
//! let slot = plan.matrix("x", DType::F32, 4, 3);
//! let arena = plan.freeze().unwrap();
//! let x = arena.mat(slot);
//! x.write::<f32>().row_mut(2).fill(1.0);
//! stream.pool().run(4, &|row| assert_eq!(x.read::<f32>().row(row).len(), 3));
//! ```

pub mod arena;
pub mod bf16;
pub mod copy;
pub mod cuda;
pub mod dtype;
pub mod error;
pub mod f16;
pub mod files;
pub mod label;
pub mod memory;
pub mod optimizer;
pub mod pool;
pub mod rng;
pub mod simd;
pub mod stream;
pub mod testing;
pub mod view;

pub use arena::{Arena, ArenaPlan, Mat, SlotId};
pub use dtype::DType;
pub use error::{DeviceError, Result};
pub use stream::{Device, Stream};
pub use view::{JaggedRef, MatMut, MatRef};
