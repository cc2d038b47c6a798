//! Waits for descriptors.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::AsFd;
use std::time::Duration;

/// Waits until one of `descriptors` is ready, or `longest` is over. False: the wait was interrupted
/// or has failed, and says nothing about them; its caller looks again.
pub(crate) fn poll(descriptors: &mut [PollFd<'_>], longest: Duration) -> bool {
    let time = Timespec::try_from(longest).expect("waits are shorter than centuries");
    rustix::event::poll(descriptors, Some(&time)).is_ok()
}

/// As [`poll`], until one descriptor can be read.
pub(crate) fn poll_read(descriptor: &impl AsFd, longest: Duration) {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], longest);
}
