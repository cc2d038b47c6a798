//! The words of the handshake and their places in bytes.
//!
//! ```text
//! host  → peer   HELLO    magic 8 | purpose 1 | host's nonce 32
//! 41 bytes peer → host    CLAIM    magic 8 | peer's nonce 32 | claims 256 | tag 32
//! 328 bytes host  → peer   VERDICT  magic 8 | admitted 1 | length of text 2 | tag 32 | text ≤ 1024
//! ```
//!
//! Everything before the proof has a fixed length, so an unauthenticated peer can neither ask for
//! memory nor make anybody wait for more than one small frame.

use super::proof::{Nonce, Role, Secret, Tag};
use crate::readable::readable;

/// The first bytes of every frame of a handshake.
pub const MAGIC: [u8; 8] = *b"headlng1";
/// Bytes of a HELLO.
pub const HELLO_BYTES: usize = 41;
/// Bytes of a CLAIM.
pub const CLAIM_BYTES: usize = 8 + 32 + CLAIMS + 32;
/// Bytes of a VERDICT before its text.
pub const VERDICT_BYTES: usize = 8 + 1 + 2 + 32;
/// Longest text of a verdict.
pub const MAX_VERDICT_TEXT: usize = 1024;

const CLAIMS: usize = 256;

/// What a listener is for; a proof for one listener does not open another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Rank 0's listener, at which the job comes together.
    Rendezvous = 1,
    /// A rank's listener for its peers' messages.
    Data = 2,
}

/// What a peer says it is. At a data listener only rank, epoch and job count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// Its rank.
    pub rank: u32,
    /// How many ranks it expects.
    pub world_size: u32,
    /// Number of this coming-together; 0 at the rendezvous, which gives it.
    pub epoch: u32,
    /// Port of its data listener.
    pub data_port: u16,
    /// Hash of the job's name.
    pub job_hash: [u8; 32],
    /// The job's name, cut to 64 bytes, for messages.
    pub job: String,
    /// Version of the program and of the protocol.
    pub build: String,
    /// Fingerprint of what must be equal on all ranks.
    pub config: [u8; 32],
    /// The machine it runs on.
    pub host: [u8; 32],
}

/// The longest beginning of `text` of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    &text[..ends.take_while(|end| *end <= bytes).last().unwrap_or(0)]
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    /// A text in a field of `length` bytes, cut at a character and filled up with zeros.
    fn put_text(&mut self, text: &str, length: usize) {
        let cut = cut(text, length);
        self.put(cut.as_bytes());
        self.at += length - cut.len();
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .0
            .split_first_chunk::<N>()
            .expect("frames have fixed lengths, longer than their fields");
        self.0 = rest;
        *field
    }

    fn take_text(&mut self, length: usize) -> String {
        let (field, rest) = self.0.split_at(length);
        self.0 = rest;
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
        // Note: what a proven peer calls itself is still printed on a terminal.
        String::from_utf8_lossy(&field[..end])
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect()
    }
}

impl Claims {
    fn to_bytes(&self) -> [u8; CLAIMS] {
        let mut bytes = [0; CLAIMS];
        let mut writer = Writer { bytes: &mut bytes, at: 0 };
        writer.put(&self.rank.to_le_bytes());
        writer.put(&self.world_size.to_le_bytes());
        writer.put(&self.epoch.to_le_bytes());
        writer.put(&self.data_port.to_le_bytes());
        writer.put(&self.job_hash);
        writer.put(&self.config);
        writer.put(&self.host);
        writer.put_text(&self.job, 64);
        writer.put_text(&self.build, 64);
        bytes
    }

    fn from_bytes(bytes: &[u8; CLAIMS]) -> Self {
        let mut reader = Reader(bytes);
        Self {
            rank: u32::from_le_bytes(reader.take()),
            world_size: u32::from_le_bytes(reader.take()),
            epoch: u32::from_le_bytes(reader.take()),
            data_port: u16::from_le_bytes(reader.take()),
            job_hash: reader.take(),
            config: reader.take(),
            host: reader.take(),
            job: reader.take_text(64),
            build: reader.take_text(64),
        }
    }
}

/// The host's first words.
pub fn hello(purpose: Purpose, nonce: &Nonce) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    let mut writer = Writer { bytes: &mut bytes, at: 0 };
    writer.put(&MAGIC);
    writer.put(&[purpose as u8]);
    writer.put(nonce);
    bytes
}

/// The host's number, if these are a host's first words for `purpose`.
pub fn read_hello(bytes: &[u8; HELLO_BYTES], purpose: Purpose) -> Option<Nonce> {
    let mut reader = Reader(bytes);
    let is_ours = reader.take::<8>() == MAGIC && reader.take::<1>() == [purpose as u8];
    is_ours.then(|| reader.take())
}

/// Both numbers of a handshake and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// The listener.
    pub purpose: Purpose,
    /// Of the side that listens.
    pub host_nonce: Nonce,
    /// Of the side that has connected.
    pub peer_nonce: Nonce,
}

impl Session {
    fn tag(&self, secret: &Secret, role: Role, words: &[u8]) -> Tag {
        secret.tag(role, &[&[self.purpose as u8], &self.host_nonce, &self.peer_nonce, words])
    }

    fn accepts(&self, secret: &Secret, role: Role, words: &[u8], tag: &[u8]) -> bool {
        secret.accepts(
            role,
            &[&[self.purpose as u8], &self.host_nonce, &self.peer_nonce, words],
            tag,
        )
    }

    /// The peer's claims and its proof.
    pub fn claim(&self, secret: &Secret, claims: &Claims) -> [u8; CLAIM_BYTES] {
        let words = claims.to_bytes();
        let mut bytes = [0; CLAIM_BYTES];
        let mut writer = Writer { bytes: &mut bytes, at: 0 };
        writer.put(&MAGIC);
        writer.put(&self.peer_nonce);
        writer.put(&words);
        writer.put(&self.tag(secret, Role::Peer, &words));
        bytes
    }

    /// The host's verdict and its proof.
    pub fn verdict(&self, secret: &Secret, refusal: Option<&str>) -> Vec<u8> {
        let text = refusal.unwrap_or("");
        let text = cut(text, MAX_VERDICT_TEXT);
        let admitted = u8::from(refusal.is_none());
        let words = [&[admitted], text.as_bytes()].concat();
        let mut bytes = MAGIC.to_vec();
        bytes.push(admitted);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(self.tag(secret, Role::Host, &words));
        bytes.extend(text.as_bytes());
        bytes
    }

    /// Reads the verdict's head: length of the text that follows, or `None` where this is no
    /// verdict.
    pub fn verdict_text_length(head: &[u8; VERDICT_BYTES]) -> Option<usize> {
        let mut reader = Reader(head);
        let is_ours = reader.take::<8>() == MAGIC;
        let _admitted: [u8; 1] = reader.take();
        let length = usize::from(u16::from_le_bytes(reader.take()));
        (is_ours && length <= MAX_VERDICT_TEXT).then_some(length)
    }

    /// The verdict: `Ok` admitted, `Err(Some(why))` refused, `Err(None)` this host does not know
    /// the secret.
    pub fn read_verdict(
        &self,
        secret: &Secret,
        head: &[u8; VERDICT_BYTES],
        text: &[u8],
    ) -> Result<(), Option<String>> {
        let mut reader = Reader(&head[8..]);
        let [admitted] = reader.take::<1>();
        let _length: [u8; 2] = reader.take();
        let tag: Tag = reader.take();
        let words = [&[admitted], text].concat();
        match (self.accepts(secret, Role::Host, &words, &tag), admitted) {
            (false, _) => Err(None),
            (true, 1) => Ok(()),
            (true, _) => Err(Some(readable(&String::from_utf8_lossy(text)))),
        }
    }
}

/// A peer's claims and its number, if the frame is one and the proof is right.
pub fn read_claim(
    bytes: &[u8; CLAIM_BYTES],
    secret: &Secret,
    purpose: Purpose,
    host_nonce: &Nonce,
) -> Option<(Session, Claims)> {
    let mut reader = Reader(bytes);
    if reader.take::<8>() != MAGIC {
        return None;
    }
    let session = Session { purpose, host_nonce: *host_nonce, peer_nonce: reader.take() };
    let words: [u8; CLAIMS] = reader.take();
    let tag: Tag = reader.take();
    session.accepts(secret, Role::Peer, &words, &tag).then(|| (session, Claims::from_bytes(&words)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher_env::SecretSource;

    fn secret(text: &str) -> Secret {
        Secret::load(&SecretSource::Value(format!("{text}, and sixteen bytes").into()), "job")
            .unwrap()
    }

    fn claims() -> Claims {
        Claims {
            rank: 3,
            world_size: 4,
            epoch: 9,
            data_port: 4000,
            job_hash: [1; 32],
            job: "über ".repeat(20),
            build: "0.1".into(),
            config: [2; 32],
            host: [3; 32],
        }
    }

    #[test]
    fn claims_come_back() {
        let session = Session { purpose: Purpose::Data, host_nonce: [7; 32], peer_nonce: [8; 32] };
        let frame = session.claim(&secret("s"), &claims());
        let (found, read) =
            read_claim(&frame, &secret("s"), Purpose::Data, &[7; 32]).expect("a claim");
        assert_eq!(found.peer_nonce, [8; 32]);
        assert!(claims().job.starts_with(&read.job) && read.job.len() > 60, "{}", read.job);
        assert_eq!(Claims { job: claims().job, ..read }, claims());
    }

    #[test]
    fn any_changed_bit_any_other_door_or_number_is_a_stranger() {
        let session =
            Session { purpose: Purpose::Rendezvous, host_nonce: [7; 32], peer_nonce: [8; 32] };
        let frame = session.claim(&secret("s"), &claims());
        let accepts = |frame: &_, purpose, nonce: &_| {
            read_claim(frame, &secret("s"), purpose, nonce).is_some()
        };
        assert!(accepts(&frame, Purpose::Rendezvous, &[7; 32]));
        for place in 0..CLAIM_BYTES {
            let mut other = frame;
            other[place] ^= 0x10;
            assert!(!accepts(&other, Purpose::Rendezvous, &[7; 32]), "byte {place}");
        }
        assert!(!accepts(&frame, Purpose::Data, &[7; 32]));
        assert!(!accepts(&frame, Purpose::Rendezvous, &[6; 32]));
        assert!(read_claim(&frame, &secret("t"), Purpose::Rendezvous, &[7; 32]).is_none());
    }

    #[test]
    fn verdicts_are_proven_too() {
        let session =
            Session { purpose: Purpose::Rendezvous, host_nonce: [7; 32], peer_nonce: [8; 32] };
        for refusal in [None, Some("no")] {
            let frame = session.verdict(&secret("s"), refusal);
            let (head, text) = frame.split_first_chunk::<VERDICT_BYTES>().unwrap();
            assert_eq!(Session::verdict_text_length(head), Some(text.len()));
            let expected = refusal.map_or(Ok(()), |why| Err(Some(why.to_string())));
            assert_eq!(session.read_verdict(&secret("s"), head, text), expected);
            assert_eq!(session.read_verdict(&secret("other"), head, text), Err(None));
        }
        assert_eq!(hello(Purpose::Data, &[5; 32]).len(), HELLO_BYTES);
        assert_eq!(read_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Data), Some([5; 32]));
        assert_eq!(read_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Rendezvous), None);
    }
}
