//! libibverbs, opened at run time: real NICs behind [`super::nic`].
//!
//! Nothing of RDMA is needed to build this, and a program on a machine without `libibverbs.so.1`
//! starts and works; asked for a NIC, it says where it has looked ([`Verbs::open`]). The decision
//! for a layer of our own is in `docs/decisions/002-verbs.md`.
//!
//! | file | holds |
//! |---|---|
//! | `raw` | structs and constants as C has them |
//! | `library` | the library: where it is looked for, its functions |
//! | `provider`, `ports` | devices, ports and addresses as they are found |
//! | `domain` | an open device |
//! | `nic` | its memory and events |
//! | `completions`, `receives`, `pair` | queues; what moves data |
//!
//! **Order of destruction.** Each object holds what it was made of: a queue pair its queues,
//! queues and memory their protection domain, that its device, that the library. So each is given
//! back before what it was made of.
//!
//! **Threads.** libibverbs takes its own locks for everything but the life of an object, which
//! Rust's ownership keeps.

mod completions;
mod domain;
#[cfg(any(test, feature = "verbs-linked"))]
mod layout;
mod library;
mod nic;
mod pair;
mod ports;
mod provider;
mod raw;
mod receives;
mod requests;

#[cfg(feature = "verbs-linked")]
pub use layout::compare_with_crate;
pub use library::SEARCH_VARIABLE;
pub use nic::RealNic;
pub use provider::Verbs;

use super::nic::NicError;
use std::ffi::c_int;
use std::io;

fn refused(what: impl Into<String>, errno: c_int) -> NicError {
    let reason = io::Error::from_raw_os_error(errno).to_string();
    NicError::Refused { what: what.into(), reason, errno: Some(errno) }
}

/// A refusal of a call that has left its reason in `errno`.
fn last_refused(what: impl Into<String>) -> NicError {
    refused(what, io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// A call's answer that is 0 or a number of an error, here or, where it is negative, in `errno`.
fn checked(what: impl FnOnce() -> String, answer: c_int) -> Result<(), NicError> {
    match answer {
        0 => Ok(()),
        errno if errno > 0 => Err(refused(what(), errno)),
        _ => Err(last_refused(what())),
    }
}
