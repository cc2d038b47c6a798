//! What kernels find wrong with strips, and how the host hears of it: a few words in page-locked
//! memory, which it may look at while the device works.

use super::nodes::Nodes;
use crate::error::CommError;
use headlong_device::cuda::{CudaDevice, DevicePtr, Pinned};

/// Words of `struct Report`: code, peer, expected, found.
const WORDS: usize = 6;

pub(super) struct Report {
    words: Pinned,
}

impl Report {
    pub(super) fn new(device: &CudaDevice) -> Result<Self, String> {
        let words = Pinned::new(device, 4 * WORDS).map_err(|error| error.to_string())?;
        Ok(Self { words })
    }

    pub(super) fn at(&self) -> DevicePtr {
        self.words.device_visible()
    }

    pub(super) fn read(&self, nodes: &Nodes) -> Option<CommError> {
        let code = self.words.load_acquire(0);
        if code == 0 {
            return None;
        }
        let words = self.words.as_slice::<u32>();
        let long = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        Some(describe(nodes, code, words[1] as usize, long(2), long(4)))
    }
}

/// The codes are those of state.cuh; `peer` is a place among the ranks of this node where this
/// node's blocks are meant, else a rank.
fn describe(nodes: &Nodes, code: u32, peer: usize, expected: u64, found: u64) -> CommError {
    let of_node = |place: usize| nodes.peers().get(place).map_or(place, |rank| rank.0);
    let reason = match code {
        1 => format!(
            "rank {} has {found} bytes for one rank, and a slot has room for {expected}: make \
             slots larger",
            of_node(peer)
        ),
        2 => format!(
            "a block in the strip of rank {peer} has {found} bytes, and a slot has room for \
             {expected}: make slots larger"
        ),
        3 => format!(
            "what came from rank {peer} is no strip of this job (epoch {found:#x}, not \
             {expected:#x})"
        ),
        4 => format!(
            "rank {peer} is in another exchange: expected number or fingerprint {expected:#x}, \
             found {found:#x}"
        ),
        6 => format!(
            "no strip of exchange number {expected} has come from rank {peer} in time, the last \
             was number {found}"
        ),
        7 => format!(
            "the strips of exchange number {expected} were not delivered in time, the last were \
             those of number {found}"
        ),
        _ => format!(
            "the strip of rank {peer} does not fit: expected {expected} blocks, found {found} or \
             longer ones"
        ),
    };
    CommError::Device {
        seen_by: nodes.rank(),
        operation: "a hierarchical exchange between devices".to_owned(),
        reason,
    }
}
