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
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// The first bytes of every frame of a handshake.
pub const MAGIC: [u8; 8] = *b"headlng1";
/// Bytes of a HELLO.
pub const HELLO_BYTES: usize = size_of::<Hello>();
/// Bytes of a CLAIM.
pub const CLAIM_BYTES: usize = size_of::<Claim>();
/// Bytes of a VERDICT before its text.
pub const VERDICT_BYTES: usize = size_of::<Verdict>();
/// Longest text of a verdict.
pub const MAX_VERDICT_TEXT: usize = 1024;

const CLAIMS: usize = size_of::<ClaimWords>();

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
#[expect(missing_docs, reason = "the names say it")]
pub struct Claims {
    pub rank: u32,
    pub world_size: u32,
    /// Number of this coming-together; 0 at the rendezvous, which gives it.
    pub epoch: u32,
    pub data_port: u16,
    pub job_hash: [u8; 32],
    /// The job's name, cut to 64 bytes, for messages.
    pub job: String,
    /// Version of the program and of the protocol.
    pub build: String,
    /// Fingerprint of what must be equal on all ranks.
    pub config: [u8; 32],
    pub host: [u8; 32],
}

/// The longest beginning of `text` of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    &text[..ends.take_while(|end| *end <= bytes).last().unwrap_or(0)]
}

/// A text in a field, cut at a character and filled up with zeros.
type Field = [u8; 64];

fn field(text: &str) -> Field {
    let mut field = [0; 64];
    let text = cut(text, field.len());
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

fn text(field: &Field) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    // Note: what a proven peer calls itself is still printed on a terminal.
    let text = String::from_utf8_lossy(&field[..end]);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Hello {
    magic: [u8; 8],
    purpose: u8,
    nonce: Nonce,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ClaimWords {
    rank: U32,
    world_size: U32,
    epoch: U32,
    data_port: U16,
    job_hash: [u8; 32],
    config: [u8; 32],
    host: [u8; 32],
    job: Field,
    build: Field,
    unused: [u8; 18],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Claim {
    magic: [u8; 8],
    nonce: Nonce,
    words: [u8; CLAIMS],
    tag: Tag,
}

/// A verdict before its text.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Verdict {
    magic: [u8; 8],
    admitted: u8,
    length: U16,
    tag: Tag,
}

impl Claims {
    fn to_bytes(&self) -> [u8; CLAIMS] {
        transmute!(ClaimWords {
            rank: self.rank.into(),
            world_size: self.world_size.into(),
            epoch: self.epoch.into(),
            data_port: self.data_port.into(),
            job_hash: self.job_hash,
            config: self.config,
            host: self.host,
            job: field(&self.job),
            build: field(&self.build),
            unused: [0; 18],
        })
    }

    fn from_bytes(bytes: [u8; CLAIMS]) -> Self {
        let words: ClaimWords = transmute!(bytes);
        Self {
            rank: words.rank.get(),
            world_size: words.world_size.get(),
            epoch: words.epoch.get(),
            data_port: words.data_port.get(),
            job_hash: words.job_hash,
            config: words.config,
            host: words.host,
            job: text(&words.job),
            build: text(&words.build),
        }
    }
}

/// The host's first words.
pub fn hello(purpose: Purpose, nonce: &Nonce) -> [u8; HELLO_BYTES] {
    transmute!(Hello { magic: MAGIC, purpose: purpose as u8, nonce: *nonce })
}

/// The host's number, if these are a host's first words for `purpose`.
pub fn read_hello(bytes: &[u8; HELLO_BYTES], purpose: Purpose) -> Option<Nonce> {
    let hello: Hello = transmute!(*bytes);
    (hello.magic == MAGIC && hello.purpose == purpose as u8).then_some(hello.nonce)
}

/// Both numbers of a handshake and what it is for.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Session {
    pub purpose: Purpose,
    pub host_nonce: Nonce,
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
        let tag = self.tag(secret, Role::Peer, &words);
        transmute!(Claim { magic: MAGIC, nonce: self.peer_nonce, words, tag })
    }

    /// The host's verdict and its proof.
    pub fn verdict(&self, secret: &Secret, refusal: Option<&str>) -> Vec<u8> {
        let text = cut(refusal.unwrap_or(""), MAX_VERDICT_TEXT);
        let admitted = u8::from(refusal.is_none());
        let tag = self.tag(secret, Role::Host, &[&[admitted], text.as_bytes()].concat());
        let head = Verdict { magic: MAGIC, admitted, length: (text.len() as u16).into(), tag };
        [head.as_bytes(), text.as_bytes()].concat()
    }

    /// Reads the verdict's head: length of the text that follows, or `None` where this is no
    /// verdict.
    pub fn verdict_text_length(head: &[u8; VERDICT_BYTES]) -> Option<usize> {
        let head: Verdict = transmute!(*head);
        let length = usize::from(head.length.get());
        (head.magic == MAGIC && length <= MAX_VERDICT_TEXT).then_some(length)
    }

    /// The verdict: `Ok` admitted, `Err(Some(why))` refused, `Err(None)` this host does not know
    /// the secret.
    pub fn read_verdict(
        &self,
        secret: &Secret,
        head: &[u8; VERDICT_BYTES],
        text: &[u8],
    ) -> Result<(), Option<String>> {
        let Verdict { admitted, tag, .. } = transmute!(*head);
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
    let claim: Claim = transmute!(*bytes);
    let session = Session { purpose, host_nonce: *host_nonce, peer_nonce: claim.nonce };
    let is_proven =
        claim.magic == MAGIC && session.accepts(secret, Role::Peer, &claim.words, &claim.tag);
    is_proven.then(|| (session, Claims::from_bytes(claim.words)))
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
    fn any_changed_bit_listener_or_number_is_unauthenticated() {
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
        assert_eq!((HELLO_BYTES, CLAIMS, CLAIM_BYTES, VERDICT_BYTES), (41, 256, 328, 43));
        assert_eq!(read_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Data), Some([5; 32]));
        assert_eq!(read_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Rendezvous), None);
    }
}
