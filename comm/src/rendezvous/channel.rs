//! What a handshake leaves: the keys of one connection, and the records that they seal.
//!
//! A record is what it carries, encrypted, and 16 bytes that authenticate it and its place in the
//! stream: a record that was changed, left out, repeated or made up does not open. Each direction
//! has a key of its own, which ends with the connection.

use snow::StatelessTransportState;
use std::sync::Arc;

/// Bytes by which a record is longer than what it carries.
pub const TAG_BYTES: usize = 16;
/// The most bytes that one record carries.
pub const MOST_BYTES: usize = 65_535 - TAG_BYTES;

/// Why a record is not taken.
pub const FORGED: &str = "a record that does not open: something between the two ranks has \
                          changed, repeated or left out what they send";

/// The keys of a connection, of this rank's side.
pub struct Channel(Arc<StatelessTransportState>);

/// Seals what leaves, in order.
pub struct Sealer {
    state: Arc<StatelessTransportState>,
    next: u64,
}

/// Opens what comes, in order.
pub struct Opener {
    state: Arc<StatelessTransportState>,
    next: u64,
}

impl Channel {
    pub(super) fn new(state: StatelessTransportState) -> Self {
        Self(Arc::new(state))
    }

    /// Both directions. Numbers of records begin at 0, so keys are split once.
    pub fn split(self) -> (Sealer, Opener) {
        let state = Arc::clone(&self.0);
        (Sealer { state, next: 0 }, Opener { state: self.0, next: 0 })
    }
}

impl Sealer {
    /// Seals at most [`MOST_BYTES`] into `record`, which is [`TAG_BYTES`] longer.
    ///
    /// # Panics
    /// When `record` has another length, or `bytes` are too many.
    pub fn seal(&mut self, bytes: &[u8], record: &mut [u8]) {
        assert_eq!(record.len(), bytes.len() + TAG_BYTES, "a record is its content and a tag");
        let sealed = self.state.write_message(self.next, bytes, record);
        sealed.expect("a record of this length, after less than 2^64 others");
        self.next += 1;
    }
}

impl Opener {
    /// Opens the next record into `bytes`, which is [`TAG_BYTES`] shorter. Says whether it is the
    /// one that the peer has sealed; after one that is not, none opens.
    #[must_use]
    pub fn open(&mut self, record: &[u8], bytes: &mut [u8]) -> bool {
        let length = record.len().checked_sub(TAG_BYTES);
        let opened = length == Some(bytes.len())
            && self.state.read_message(self.next, record, bytes).is_ok();
        match opened {
            true => self.next += 1,
            // No sender gets this far: nothing fits this number.
            false => self.next = u64::MAX,
        }
        opened
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Opener(after {})", self.next)
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Sealer(after {})", self.next)
    }
}

/// Both ends of a connection, for tests of what uses one.
#[cfg(test)]
pub fn pair() -> (Channel, Channel) {
    use super::handshake::{Asking, Claims, Purpose, VERDICT_BYTES, hello, read_claim};
    use super::proof::Secret;
    let (secret, hello) = (Secret::of_key([1; 32]), hello(Purpose::Data, &[2; 32]));
    let (asking, claim) = Asking::claim(&secret, &hello, &Claims::default()).unwrap();
    let (session, _) = read_claim(&claim, &secret, &hello).expect("it is proven");
    let (verdict, host) = session.admit().unwrap();
    let (head, message) = verdict.split_first_chunk::<VERDICT_BYTES>().unwrap();
    let peer = asking.read_verdict(head, message).unwrap();
    (host, peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
        let mut record = vec![0; bytes.len() + TAG_BYTES];
        sealer.seal(bytes, &mut record);
        record
    }

    fn opened(opener: &mut Opener, record: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; record.len().saturating_sub(TAG_BYTES)];
        opener.open(record, &mut bytes).then_some(bytes)
    }

    #[test]
    fn records_open_once_in_order_and_at_the_other_end() {
        let (host, peer) = pair();
        let ((mut out, mut back), (mut there, mut incoming)) = (host.split(), peer.split());
        let all: Vec<Vec<u8>> = [&b"one"[..], b"", &[7; MOST_BYTES]]
            .iter()
            .map(|bytes| sealed(&mut out, bytes))
            .collect();
        assert!(all[0].windows(3).all(|bytes| bytes != b"one"), "it is encrypted");
        for (record, expected) in all.iter().zip([&b"one"[..], b"", &[7; MOST_BYTES]]) {
            assert_eq!(opened(&mut incoming, record).as_deref(), Some(expected));
        }
        let answer = sealed(&mut there, b"back");
        assert_eq!(opened(&mut back, &answer).as_deref(), Some(&b"back"[..]));
    }

    #[test]
    fn a_record_that_was_changed_repeated_left_out_or_turned_round_does_not_open() {
        for (name, record, good_after) in cases() {
            let (host, peer) = pair();
            let (mut out, (_, mut incoming)) = (host.split().0, peer.split());
            let records: Vec<Vec<u8>> =
                (0..3).map(|number| sealed(&mut out, &[number; 5])).collect();
            assert!(opened(&mut incoming, &records[0]).is_some());
            assert_eq!(opened(&mut incoming, &record(&records)), None, "{name}");
            assert_eq!(opened(&mut incoming, &records[good_after]), None, "{name}: none opens");
        }
        // What this end has sealed is not taken for what the other has.
        let (mut sealer, mut opener) = pair().0.split();
        let own = sealed(&mut sealer, b"own");
        assert_eq!(opened(&mut opener, &own), None);
    }

    type Forgery = fn(&[Vec<u8>]) -> Vec<u8>;

    fn cases() -> [(&'static str, Forgery, usize); 5] {
        [
            ("a changed bit", |all| [&[all[1][0] ^ 1], &all[1][1..]].concat(), 1),
            ("once more", |all| all[0].clone(), 1),
            ("one left out", |all| all[2].clone(), 1),
            ("cut", |all| all[1][..20].to_vec(), 1),
            ("too short for any", |_| vec![1; 3], 1),
        ]
    }
}
