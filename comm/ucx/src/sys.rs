//! libucp, opened at run time: a worker, its endpoints, and messages with tags.
//!
//! Nothing of UCX is needed to build this, and a program on a machine without `libucp.so.0` starts
//! and works. UCX reads its own settings (`UCX_TLS`, `UCX_NET_DEVICES`, …) from the environment.
//!
//! | file | holds |
//! |---|---|
//! | `raw` | structs and constants as C has them |
//! | `library` | the library, its version, its functions |
//! | `worker` | what sends and receives |

mod library;
mod raw;
mod worker;

pub(crate) use library::Library;
pub(crate) use worker::{Endpoint, Request, Unwell, Worker};
