//! The system that the files of this crate are compiled over: what `comm/src/system.rs` names, with
//! threads in turn, a virtual clock and connections in memory.

mod history;
mod local;
mod network;
mod plan;
mod streams;
mod sync;
mod time;
mod trace;
mod world;

pub use history::{Body, Finish, JoinHandle, Report, now, num_cores, run, spawn};
pub use local::{
    UnixListener, UnixStream, connect_to, listen_at, order, peer_of, receive_file, send_file,
    sleep_at, wake_at,
};
pub use network::machine;
pub use plan::{At, Befallen, Fault, Model, NEVER, Options, Time, What};
pub use rustix::event::PollFlags;
pub use streams::{
    PollFd, Pollable, TcpListener, TcpStream, listen, listening, peek, poll, poll_read, receive,
    receive_parts, send, send_parts,
};
pub use sync::{Condvar, Mutex, MutexGuard, WakeUp};
pub use time::{Instant, fill_random, noise, sleep, yield_now};
pub use world::makes;
