//! One rank: what others would exchange is copied.

use super::{Blocks, DeviceCollectives, Parts, SumLen};
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::Transport;
use headlong_device::Stream;
use headlong_device::cuda::DevicePtr;
use std::sync::Arc;

/// Collectives of one rank. What it enqueues fails as the stream's other work does: by the stream's
/// own check.
pub struct SingleRank {
    transport: Arc<dyn Transport>,
}

impl SingleRank {
    pub(super) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport }
    }
}

impl DeviceCollectives for SingleRank {
    fn name(&self) -> &'static str {
        "one rank"
    }

    fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn all_to_all_v(&self, stream: &Stream, blocks: Blocks) -> Result<()> {
        stream.cuda_body().copy(blocks.to, blocks.from, blocks.bytes_per_peer);
        Ok(())
    }

    fn sends_what_counts(&self) -> bool {
        true
    }

    fn all_reduce(&self, _stream: &Stream, _data: DevicePtr, _len: SumLen) -> Result<()> {
        Ok(())
    }

    fn reduce_to_parts(&self, _stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(1);
        Ok(())
    }

    fn gather_parts(&self, _stream: &Stream, parts: Parts<'_>) -> Result<()> {
        parts.check(1);
        Ok(())
    }

    fn all_gather(
        &self,
        stream: &Stream,
        from: DevicePtr,
        to: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        if from.0 != to.0 {
            stream.cuda_body().copy(to, from, bytes);
        }
        Ok(())
    }

    fn broadcast(
        &self,
        _stream: &Stream,
        root: Rank,
        _data: DevicePtr,
        _bytes: usize,
    ) -> Result<()> {
        assert!(root.0 == 0, "there is one rank, no {root}");
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.transport.check()
    }
}
