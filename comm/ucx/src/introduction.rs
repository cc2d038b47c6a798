//! What two ranks tell each other before they are connected, over the control transport.

use headlong_comm::error::{CommError, Result};
use headlong_comm::operation::{Algorithm, Collective, fingerprint};
use headlong_comm::readable::readable;
use headlong_comm::topology::Rank;
use headlong_comm::transport::{Incoming, Outgoing, SET_UP, StepId, Transport};
use serde::{Deserialize, Serialize};

/// Number of this protocol: it changes with tags, heads or this.
const PROTOCOL: u32 = 1;
/// Longest introduction: the address of a worker has some hundred bytes for each NIC.
const LONGEST: usize = 1 << 17;

/// Where a rank is to be found; or why it cannot be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    protocol: u32,
    failure: Option<String>,
    /// Of its worker, as UCX writes it; none where the step is another.
    pub(crate) address: Vec<u8>,
}

impl Introduction {
    pub(crate) fn new(address: std::result::Result<Vec<u8>, String>) -> Self {
        let (failure, address) = match address {
            Ok(address) => (None, address),
            Err(reason) => (Some(readable(&reason)), Vec::new()),
        };
        Self { protocol: PROTOCOL, failure, address }
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String> {
        let told: Self =
            serde_json::from_slice(bytes).map_err(|error| readable(&error.to_string()))?;
        match told.protocol {
            PROTOCOL => Ok(Self { failure: told.failure.as_deref().map(readable), ..told }),
            other => Err(format!("it speaks protocol {other}, this rank {PROTOCOL}")),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an introduction is plain data, written to memory")
    }
}

/// What a peer has told, read and written again: for programs that try any bytes.
///
/// # Errors
/// Why they are no introduction.
#[doc(hidden)]
pub fn introduction_again(bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
    Introduction::from_bytes(bytes).map(|told| told.to_bytes())
}

/// Gives `mine` to each of `peers` and takes theirs. All ranks call it, with the same `round`.
///
/// # Errors
/// The job's first error; a rank that has failed, this one included, with its reason. Then the job
/// has ended.
pub(crate) fn introduce(
    control: &dyn Transport,
    round: u64,
    peers: &[Rank],
    mine: &Introduction,
) -> Result<Vec<Introduction>> {
    let bytes = mine.to_bytes();
    let own_length = (bytes.len() as u64).to_le_bytes();
    let mut lengths = vec![[0; 8]; peers.len()];
    swap(control, (round, 0), peers, &own_length, lengths.iter_mut().map(|room| &mut room[..]))?;
    let length = |room: &[u8; 8]| u64::from_le_bytes(*room) as usize;
    if let Some(at) = lengths.iter().position(|room| length(room) > LONGEST) {
        let reason =
            format!("it announced {} bytes, at most {LONGEST} make sense", length(&lengths[at]));
        return Err(end(control, peers[at], reason));
    }
    let mut told: Vec<Vec<u8>> = lengths.iter().map(|room| vec![0; length(room)]).collect();
    swap(control, (round, 1), peers, &bytes, told.iter_mut().map(|room| &mut room[..]))?;
    let own = mine.failure.clone().map(|reason| (control.rank(), reason));
    let mut failures: Vec<(Rank, String)> = own.into_iter().collect();
    let mut all = Vec::with_capacity(peers.len());
    for (&peer, bytes) in peers.iter().zip(&told) {
        match Introduction::from_bytes(bytes) {
            Ok(Introduction { failure: Some(reason), .. }) | Err(reason) => {
                failures.push((peer, reason));
            }
            Ok(introduction) => all.push(introduction),
        }
    }
    // Note: where several fail at once, all name the same one.
    match failures.into_iter().min() {
        Some((culprit, reason)) => Err(end(control, culprit, reason)),
        None => Ok(all),
    }
}

fn swap<'r>(
    control: &dyn Transport,
    (round, step): (u64, u32),
    peers: &[Rank],
    mine: &[u8],
    parts: impl Iterator<Item = &'r mut [u8]>,
) -> Result<()> {
    let fingerprint = fingerprint(Collective::AllToAll, 0, Algorithm::Direct, 0);
    let operation = "connecting over ucx";
    let id = StepId { sequence: SET_UP + round, step, fingerprint, operation };
    let outgoing: Vec<Outgoing> = peers.iter().map(|&to| Outgoing { to, bytes: mine }).collect();
    let pairs = peers.iter().zip(parts);
    let mut incoming: Vec<Incoming> =
        pairs.map(|(&from, bytes)| Incoming { from, bytes }).collect();
    control.exchange(&id, &outgoing, &mut incoming)
}

/// Ends the job because of `culprit`; the job's first error.
fn end(control: &dyn Transport, culprit: Rank, reason: String) -> CommError {
    let error = CommError::Aborted { culprit, reason: format!("ucx: {reason}") };
    control.abort(error.clone());
    control.check().err().unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_comes_back_and_another_protocol_is_refused() {
        let told = Introduction::new(Ok(vec![0, 255, 7]));
        assert_eq!(Introduction::from_bytes(&told.to_bytes()), Ok(told.clone()));
        let other = Introduction { protocol: 9, ..told };
        let text = Introduction::from_bytes(&other.to_bytes()).expect_err("another protocol");
        assert_eq!(text, "it speaks protocol 9, this rank 1");
        assert!(introduction_again(b"{}").is_err());
    }

    #[test]
    fn reasons_are_made_fit_for_a_terminal() {
        let told = Introduction::new(Err("no\u{1b}[2J".to_owned()));
        assert_eq!(told.failure.as_deref(), Some("no\\u{1b}[2J"));
    }
}
