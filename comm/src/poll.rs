//! Waits for descriptors.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::AsFd;
use std::time::Duration;

/// Waits until one of `descriptors` is ready, or `longest` is over. An interrupted or failed wait
/// ends early: its caller looks again.
pub(crate) fn poll(descriptors: &mut [PollFd<'_>], longest: Duration) {
    let time = Timespec::try_from(longest).expect("waits are shorter than centuries");
    let _ = rustix::event::poll(descriptors, Some(&time));
}

/// As [`poll`], until one descriptor can be read.
pub(crate) fn poll_read(descriptor: &impl AsFd, longest: Duration) {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], longest);
}
