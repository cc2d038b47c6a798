//! Rails by NCCL: sizes are the host's to say, so strips travel as long as they can be.

use super::{Exchange, Rails};
use crate::device::nccl::{NcclCollectives, Piece};
use headlong_device::cuda::CudaStream;
use std::sync::Arc;

pub(in crate::device) struct NcclRails {
    nccl: Arc<NcclCollectives>,
}

impl NcclRails {
    pub(in crate::device) fn new(nccl: Arc<NcclCollectives>) -> Self {
        Self { nccl }
    }
}

impl Rails for NcclRails {
    fn name(&self) -> &'static str {
        "nccl"
    }

    /// The stream orders uses of the one.
    fn num_slots(&self) -> usize {
        1
    }

    fn begin(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String> {
        let Exchange { route, from, to, .. } = exchange;
        let sends =
            route.sends.iter().map(|hop| Piece::new(hop.peer, from.offset(hop.offset), hop.bytes));
        let receives =
            route.receives.iter().map(|hop| Piece::new(hop.peer, to.offset(hop.offset), hop.bytes));
        self.nccl.exchange(stream, sends, receives)
    }

    fn finish(&self, _stream: &CudaStream, _exchange: &Exchange<'_>) -> Result<(), String> {
        Ok(())
    }

    /// The communicator is checked by its owner.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn give_up(&self) {}

    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}
