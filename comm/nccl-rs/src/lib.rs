//! NCCL, opened at run time.
//!
//! What it is for: collectives between GPUs of different processes, on machines where the library
//! may or may not be there. Nothing of CUDA or NCCL is needed to build it, and a program that never
//! opens the library never notices that it is absent.
//!
//! What it will never do: panic because a library, a symbol or a peer is missing; panic in `Drop`;
//! wait longer than its deadline.
//!
//! Its words: a **unique id** is what rank 0 makes and every rank is given by other means; a
//! **communicator** is one rank's end; a **group** is a list of operations that start together.
//!
//! - [`Library`]: finds and opens `libnccl.so.2`, and says where it has looked;
//! - [`UniqueId`], [`Comm`]: ranks come together; [`Comm::check`] is how a peer's failure is heard
//!   of, [`Comm::abort`] how waiting ends;
//! - [`Group`]: what is enqueued on a stream.
//!
//! **Threads.** NCCL allows one call at a time on a communicator; [`Comm`] takes turns. Calls that
//! NCCL answers with "in progress" are waited for, at most for the deadline of the communicator.
//! Each communicator has a thread that looks for what went wrong meanwhile, and that alone aborts:
//! an abort never waits for a thread that is stuck.
//!
//! **Context.** Every call that makes or uses a communicator needs the CUDA context of its device
//! current on the calling thread; NCCL takes the device from there.
//!
//! Source: `nccl.h` of NCCL 2.28.9 (the settings as of 2.31), and its [user
//! guide](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/).
//!
//! ```
//! use nccl_rs::{Library, Search};
//!
//! match Library::open(&Search::in_directories(["/nowhere"]).and_nowhere_else()) {
//!     Ok(library) => println!("NCCL {} from {}", library.version(), library.path().display()),
//!     Err(error) => println!("no NCCL: {error}"), // names every place that was looked at
//! }
//! ```

mod communicator;
mod config;
mod demand;
mod error;
#[cfg(test)]
mod fake;
mod group;
mod kinds;
mod library;
mod search;
mod state;
mod sys;
mod version;

pub use communicator::{Comm, UniqueId};
pub use config::{Config, Feature};
pub use demand::collnet_plugin;
pub use error::{Error, Result};
pub use group::{Data, Group};
pub use kinds::{DataType, ReduceOp};
pub use library::{Capabilities, Library};
pub use search::Search;
pub use version::{OLDEST, Version};
