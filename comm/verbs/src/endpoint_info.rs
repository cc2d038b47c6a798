//! What two ranks tell each other before they are connected, over the control transport.

use super::nic::{Endpoint, Remote};
use headlong_comm::error::{CommError, Result};
use headlong_comm::operation::{Algorithm, Collective, fingerprint};
use headlong_comm::readable::readable;
use headlong_comm::topology::Rank;
use headlong_comm::transport::{Incoming, Outgoing, SET_UP, StepId, Transport};
use serde::{Deserialize, Serialize};

/// Number of this protocol: it changes with the layout of a slot or of this information.
const PROTOCOL: u32 = 2;
/// Bytes of it on the way. Both sides know the length beforehand.
const INFO_BYTES: usize = 4096;

/// Where a rank's side of a connection is to be found, and how it is set up; or why there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointInfo {
    pub(super) protocol: u32,
    pub(super) failure: Option<String>,
    /// Device, port and address, for people.
    pub(super) way: String,
    pub(super) rail: usize,
    pub(super) mtu: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) queue_pair: u32,
    pub(super) first_packet: u32,
    /// Address and key of the first slot to receive in.
    pub(super) slots: (u64, u32),
    pub(super) flags: (u64, u32),
    /// Everything that must be equal on both sides, in words.
    pub(super) agreement: String,
}

impl EndpointInfo {
    /// One that says why this rank cannot connect, or nothing.
    pub(super) fn verdict(failure: Option<String>) -> Self {
        const LONGEST: usize = 900;
        let shorten = |text: String| text.chars().take(LONGEST).collect();
        Self { protocol: PROTOCOL, failure: failure.map(shorten), ..Self::default() }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        let Self { lid, gid, queue_pair, first_packet, .. } = *self;
        Endpoint { lid, gid, queue_pair, first_packet }
    }

    pub(super) fn memory(&self) -> (Remote, Remote) {
        let remote = |(address, key)| Remote { address, key };
        (remote(self.slots), remote(self.flags))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("endpoint info is plain data");
        assert!(bytes.len() <= INFO_BYTES, "endpoint info fits its place: {} bytes", bytes.len());
        bytes.resize(INFO_BYTES, b' ');
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let info: Self =
            serde_json::from_slice(bytes).map_err(|error| readable(&error.to_string()))?;
        let (way, agreement) = (readable(&info.way), readable(&info.agreement));
        let info = Self { failure: info.failure.as_deref().map(readable), way, agreement, ..info };
        match info.protocol {
            PROTOCOL => Ok(info),
            other => Err(format!("it speaks protocol {other}, this rank {PROTOCOL}")),
        }
    }
}

/// What a peer has told, read and written again: for programs that try any bytes.
///
/// # Errors
/// Why they are no endpoint info.
#[doc(hidden)]
pub fn info_again(bytes: &[u8]) -> Result<Vec<u8>, String> {
    EndpointInfo::from_bytes(bytes)
        .map(|info| serde_json::to_vec(&info).expect("endpoint info is plain data"))
}

/// Where a connection leads, as numbers that collectives carry.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: Remote,
    pub(crate) mtu: u32,
}

/// Numbers of a [`Way`].
pub(crate) const WAY_WORDS: usize = 8;

impl Way {
    pub(crate) fn to_words(self) -> [u64; WAY_WORDS] {
        let Endpoint { lid, gid, queue_pair, first_packet } = self.endpoint;
        let gid = u128::from_be_bytes(gid);
        [
            u64::from(lid),
            (gid >> 64) as u64,
            gid as u64,
            u64::from(queue_pair),
            u64::from(first_packet),
            self.memory.address,
            u64::from(self.memory.key),
            u64::from(self.mtu),
        ]
    }

    /// What a peer has told.
    ///
    /// # Errors
    /// A number that no such way has.
    pub(crate) fn from_words(words: &[u64]) -> Result<Self, String> {
        let below = |what: &str, place: usize, most: u64| match words[place] {
            number if number <= most => Ok(number as u32),
            found => Err(format!("its {what} is {found}, expected at most {most}")),
        };
        let gid = (u128::from(words[1]) << 64 | u128::from(words[2])).to_be_bytes();
        let endpoint = Endpoint {
            lid: below("local identifier", 0, 0xffff)? as u16,
            gid,
            queue_pair: below("queue pair number", 3, 0xff_ffff)?,
            first_packet: below("first packet number", 4, 0xff_ffff)?,
        };
        let memory = Remote { address: words[5], key: below("key of memory", 6, 0xffff_ffff)? };
        Ok(Self { endpoint, memory, mtu: below("MTU", 7, 0xffff)? })
    }
}

/// Gives one endpoint info to each of `peers` and takes theirs. All ranks call it, with the same
/// `round`.
///
/// # Errors
/// The job's first error; a rank that has failed, this one included, with its reason. Then the job
/// has ended.
pub(super) fn exchange(
    control: &dyn Transport,
    round: u64,
    peers: &[Rank],
    mine: &[EndpointInfo],
) -> Result<Vec<EndpointInfo>> {
    let fingerprint = fingerprint(Collective::AllToAll, 0, Algorithm::Direct, 0);
    let id = StepId {
        sequence: SET_UP + round,
        step: 0,
        fingerprint,
        operation: "connecting over verbs",
    };
    let sent: Vec<Vec<u8>> = mine.iter().map(EndpointInfo::to_bytes).collect();
    let mut received = vec![vec![0; INFO_BYTES]; peers.len()];
    let outgoing: Vec<Outgoing> =
        peers.iter().zip(&sent).map(|(&to, bytes)| Outgoing { to, bytes }).collect();
    let pairs = peers.iter().zip(&mut received);
    let mut incoming: Vec<Incoming> =
        pairs.map(|(&from, bytes)| Incoming { from, bytes }).collect();
    control.exchange(&id, &outgoing, &mut incoming)?;
    let own =
        mine.first().and_then(|info| info.failure.clone()).map(|reason| (control.rank(), reason));
    let mut failures: Vec<(Rank, String)> = own.into_iter().collect();
    let mut infos = Vec::with_capacity(peers.len());
    for (&peer, bytes) in peers.iter().zip(&received) {
        match EndpointInfo::from_bytes(bytes) {
            Ok(EndpointInfo { failure: Some(reason), .. }) | Err(reason) => {
                failures.push((peer, reason))
            }
            Ok(info) => infos.push(info),
        }
    }
    // Note: where several fail at once, all name the same one.
    match failures.into_iter().min() {
        Some((culprit, reason)) => Err(end(control, culprit, reason)),
        None => Ok(infos),
    }
}

/// Ends the job because of `culprit`; the job's first error.
pub(super) fn end(control: &dyn Transport, culprit: Rank, reason: String) -> CommError {
    let error = CommError::Aborted { culprit, reason: format!("verbs: {reason}") };
    control.abort(error.clone());
    control.check().err().unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_comes_back_and_numbers_that_no_way_has_are_refused() {
        let words = [7, 1 << 63, 9, 0xff_ffff, 3, u64::MAX, 0xffff_ffff, 4096];
        let way = Way::from_words(&words).unwrap();
        assert_eq!(way.to_words(), words);
        assert_eq!((way.endpoint.queue_pair, way.memory.key), (0xff_ffff, 0xffff_ffff));
        for (place, found, what) in [
            (0, 0x1_0000, "local identifier"),
            (3, 0x100_0000, "queue pair number"),
            (4, u64::MAX, "first packet number"),
            (6, 1 << 32, "key of memory"),
            (7, 1 << 40, "MTU"),
        ] {
            let mut other = words;
            other[place] = found;
            let text = Way::from_words(&other).err().expect("it is refused");
            assert!(text.starts_with(&format!("its {what} is {found}, expected")), "{text}");
        }
    }
}
