//! Faults of the code above the transport: wrapped around one rank's end, they change what it
//! sends, receives or counts.

use std::sync::{Arc, Mutex};

use headlong_comm::operation::Algorithm;
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, Rank, Topology};

/// A fault in the use of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An operation in which a rank has nothing to send does not count.
    SequenceStays,
    /// A carrier of the hierarchical exchange takes the parts of two sources for each other's.
    MixStrips,
    /// A carrier of the hierarchical exchange forgets the end of the last part.
    ForgetLastStrip,
    /// A rank that has failed says nothing and leaves politely.
    FailQuietly,
}

/// All of them.
#[allow(dead_code, reason = "used by the example alone")]
pub const ALL: [Fault; 4] =
    [Fault::SequenceStays, Fault::MixStrips, Fault::ForgetLastStrip, Fault::FailQuietly];

/// An end with a fault.
pub struct Faulty {
    inner: Arc<dyn Transport>,
    fault: Fault,
    /// The operations that did not count.
    uncounted: Mutex<Vec<u64>>,
}

impl Faulty {
    /// `inner` with a fault.
    pub fn new(inner: Arc<dyn Transport>, fault: Fault) -> Self {
        Self { inner, fault, uncounted: Mutex::default() }
    }

    /// The operation as this rank counts.
    fn count(&self, id: &StepId, outgoing: &[Outgoing]) -> StepId {
        let mut uncounted = self.uncounted.lock().expect("no panic");
        let lag = uncounted.iter().filter(|&&sequence| sequence < id.sequence).count() as u64;
        let nothing =
            !outgoing.is_empty() && outgoing.iter().all(|message| message.bytes.is_empty());
        if self.fault == Fault::SequenceStays && nothing && !uncounted.contains(&id.sequence) {
            uncounted.push(id.sequence);
        }
        StepId { sequence: id.sequence - lag, ..*id }
    }
}

/// The number of the hierarchical algorithm in a fingerprint.
const HIERARCHICAL: u32 = Algorithm::Hierarchical as u32;

impl Transport for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn topology(&self) -> &Topology {
        self.inner.topology()
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> Result<(), CommError> {
        let id = self.count(id, outgoing);
        let hierarchical = id.fingerprint >> 16 & 0xf == HIERARCHICAL;
        match self.fault {
            Fault::MixStrips => {
                self.inner.exchange(&id, outgoing, incoming)?;
                if let [first, .., last] = incoming
                    && hierarchical
                    && first.bytes.len() == last.bytes.len()
                {
                    first.bytes.swap_with_slice(last.bytes);
                }
                Ok(())
            }
            Fault::ForgetLastStrip if hierarchical && id.step > 0 => {
                let forget = |bytes: &[u8]| {
                    let mut bytes = bytes.to_vec();
                    let keep = bytes.len().saturating_sub(8);
                    bytes[keep..].fill(0);
                    bytes
                };
                let sent: Vec<Vec<u8>> =
                    outgoing.iter().map(|message| forget(message.bytes)).collect();
                let messages = outgoing.iter().zip(&sent);
                let outgoing: Vec<Outgoing> =
                    messages.map(|(message, bytes)| Outgoing { to: message.to, bytes }).collect();
                self.inner.exchange(&id, &outgoing, incoming)
            }
            _ => self.inner.exchange(&id, outgoing, incoming),
        }
    }

    fn abort(&self, error: CommError) {
        if self.fault == Fault::FailQuietly {
            // The rank that failed here has the error and believes that everybody knows.
            let _ = self.inner.close();
        } else {
            self.inner.abort(error);
        }
    }

    fn check(&self) -> Result<(), CommError> {
        self.inner.check()
    }

    fn close(&self) -> Result<(), CommError> {
        self.inner.close()
    }
}
