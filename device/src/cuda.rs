//! CUDA: devices, streams, memory and kernels, with nothing of CUDA needed to build or to start.
//!
//! ```text
//! libraries  finds and opens libcuda, libnvrtc, libcublasLt
//! probe      what this machine has
//! device     context, architecture, loaded kernels
//! memory     device memory, pinned host memory
//! dmabuf     device memory that NICs reach
//! ipc        device memory of other processes
//! stream     work in order; errors are kept until asked for
//! event      order between streams, and time
//! graph      a captured step, replayed by one call
//! source     text of kernels and their defines
//! compile    text to cubin by NVRTC
//! cache      compiled kernels on disk
//! kernel     loaded kernels, launches
//! blas       matrix products of cuBLASLt, planned once
//! step       learning rate and step number on the device
//! pieces     copies of what a list of the host names
//! nvtx       named ranges for profilers
//! ```
//!
//! Every `.cu` file is compiled after `device/cuda/prelude.cuh`; its kernels are `extern "C"` and
//! take one struct by value. Only this module calls the driver (through cudarc's declarations); the
//! other crates launch kernels on a [`CudaStream`].

mod args;
pub mod blas;
mod cache;
mod compile;
mod device;
mod dmabuf;
pub(crate) mod driver;
mod event;
mod graph;
mod ipc;
mod kernel;
mod libraries;
mod memory;
pub mod nvtx;
pub mod pieces;
mod probe;
mod source;
mod step;
mod stream;
pub mod testing;
#[cfg(test)]
mod tests;

pub use args::{Mats, kernel_args};
pub use cache::{KernelCache, build_into, path_in_bundle, read_from};
pub use compile::{Compiled, KernelReport, PRELUDE, compile, compiler_version};
pub use device::{CudaDevice, CudaFiles};
pub use dmabuf::DmabufMemory;
pub use event::Event;
pub use graph::Graph;
pub use ipc::{ForeignMemory, HANDLE_BYTES, SharedPlace};
pub use kernel::{Dim, Kernel, Launch};
pub use libraries::{Found, Library, SEARCH_VARIABLE};
pub use memory::{DeviceMemory, DevicePtr, Pinned};
pub use pieces::{Piece, Pieces};
pub use probe::{Probe, ProbedDevice, probe};
pub use source::{Build, Define, Source};
pub use step::{DeviceStep, OptimizerConstants};
pub use stream::CudaStream;
