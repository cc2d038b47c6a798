//! The system that the files of this crate are compiled over: what `comm/src/system.rs` names, with
//! threads in turn, a virtual clock and connections in memory.

pub mod faults;
pub mod history;
mod network;
mod streams;
mod sync;
mod time;
mod trace;
mod world;

pub use faults::{At, Fault, What};
pub use history::{Body, Finish, JoinHandle, Report, num_cores, run, spawn};
pub use network::{Model, machine};
pub use rustix::event::PollFlags;
pub use streams::{
    PollFd, Pollable, TcpListener, TcpStream, listen, listening, peek, poll, poll_read, receive,
    receive_parts, send, send_parts,
};
pub use sync::{Condvar, Mutex, MutexGuard, WakeUp};
pub use time::{Instant, fill_random, noise, sleep, yield_now};
pub use world::{NEVER, Options, Time, makes};
