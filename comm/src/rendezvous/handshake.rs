//! The words of the handshake and their places in bytes.
//!
//! ```text
//! host  → peer   HELLO    magic 8 | purpose 1 | host's nonce 32
//! peer  → host   CLAIM    magic 8 | Noise message 1: key 32, claims 256, tag 16
//! host  → peer   VERDICT  magic 8 | length 2 | Noise message 2: key 32, admitted 1, text ≤ 1024, tag 16
//! ```
//!
//! The messages are those of `Noise_NNpsk0`, by the crate `snow`: the pre-shared key is the job's
//! secret, and the HELLO is the prologue. So a claim that opens proves that its sender knows the
//! secret and has seen this very HELLO; a verdict that opens proves the same of the host. Both
//! sides then have keys that no one else has, also not one who learns the secret later.
//!
//! Everything before the proof has a fixed length, so an unauthenticated peer can neither ask for
//! memory nor make anybody wait for more than one small frame.

use super::channel::Channel;
use super::proof::{Nonce, Secret};
use crate::error::{CommError, Result};
use crate::readable::readable;
use snow::{Builder, HandshakeState};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// The first bytes of every frame of a handshake.
pub const MAGIC: [u8; 8] = *b"headlng3";
/// Bytes of a HELLO.
pub const HELLO_BYTES: usize = size_of::<Hello>();
/// Bytes of a CLAIM.
pub const CLAIM_BYTES: usize = size_of::<Claim>();
/// Bytes of a VERDICT before its message.
pub const VERDICT_BYTES: usize = size_of::<Verdict>();
/// Longest text of a verdict.
pub const MAX_VERDICT_TEXT: usize = 1024;

const CLAIMS: usize = size_of::<ClaimWords>();
/// What Noise adds to the words of a message: a key of this handshake, and a tag.
const NOISE_BYTES: usize = 32 + 16;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// What a host says, in place of a verdict, to one that must come again because all places are
/// taken: the head of a message of no bytes. It proves nothing, and says nothing about the secret.
pub const FULL: [u8; VERDICT_BYTES] = *b"headlng3\0\0";

/// A host's first words.
pub type HelloFrame = [u8; HELLO_BYTES];

/// What a listener is for; a proof for one listener does not open another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Rank 0's listener, at which the job comes together.
    Rendezvous = 1,
    /// A rank's listener for its peers' messages.
    Data = 2,
    /// The socket at which the ranks of a node get their memory.
    Memory = 3,
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
    message: [u8; NOISE_BYTES + CLAIMS],
}

/// A verdict before its message.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Verdict {
    magic: [u8; 8],
    length: U16,
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

    /// What the words of a claim say, with texts that can be shown.
    pub fn from_bytes(bytes: [u8; CLAIMS]) -> Self {
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
pub fn hello(purpose: Purpose, nonce: &Nonce) -> HelloFrame {
    transmute!(Hello { magic: MAGIC, purpose: purpose as u8, nonce: *nonce })
}

/// Whether these are a host's first words for `purpose`.
pub fn is_hello(bytes: &HelloFrame, purpose: Purpose) -> bool {
    let hello: Hello = transmute!(*bytes);
    hello.magic == MAGIC && hello.purpose == purpose as u8
}

/// Whether these are a host's first words in an earlier or later version.
pub fn is_of_another_version(bytes: &HelloFrame) -> bool {
    bytes.starts_with(&MAGIC[..7]) && !bytes.starts_with(&MAGIC)
}

fn builder<'a>(secret: &'a Secret, hello: &'a HelloFrame) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("a pattern that the crate knows");
    let builder = crate::system::noise(pattern).psk(0, secret.key());
    builder.and_then(|builder| builder.prologue(hello)).expect("each is set once")
}

fn failed(error: snow::Error) -> CommError {
    CommError::system("making the keys of a connection", error)
}

/// The peer's side between its claim and the verdict.
pub struct Asking(HandshakeState);

impl Asking {
    /// The claims of a peer that has heard `hello`, sealed with the secret.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn claim(
        secret: &Secret,
        hello: &HelloFrame,
        claims: &Claims,
    ) -> Result<(Self, [u8; CLAIM_BYTES])> {
        let mut state = builder(secret, hello).build_initiator().map_err(failed)?;
        let mut message = [0; NOISE_BYTES + CLAIMS];
        state.write_message(&claims.to_bytes(), &mut message).map_err(failed)?;
        Ok((Self(state), transmute!(Claim { magic: MAGIC, message })))
    }

    /// The verdict.
    ///
    /// # Errors
    /// `Some`: refused, and why. `None`: this host does not know the secret.
    pub fn read_verdict(
        self,
        head: &[u8; VERDICT_BYTES],
        message: &[u8],
    ) -> Result<Channel, Option<String>> {
        let Self(mut state) = self;
        let mut words = [0; 1 + MAX_VERDICT_TEXT];
        let is_whole = verdict_length(head) == Some(message.len());
        let read = state.read_message(message, &mut words).ok().filter(|_| is_whole);
        match read.and_then(|length| words[..length].split_first()) {
            Some((1, _)) => {
                state.into_stateless_transport_mode().map(Channel::new).map_err(|_| None)
            }
            Some((_, text)) => Err(Some(readable(&String::from_utf8_lossy(text)))),
            None => Err(None),
        }
    }
}

/// Reads the verdict's head: length of the message that follows, or `None` where this is no
/// verdict.
pub fn verdict_length(head: &[u8; VERDICT_BYTES]) -> Option<usize> {
    let head: Verdict = transmute!(*head);
    let length = usize::from(head.length.get());
    let fits = (NOISE_BYTES + 1..=NOISE_BYTES + 1 + MAX_VERDICT_TEXT).contains(&length);
    (head.magic == MAGIC && fits).then_some(length)
}

/// The host's side between a claim that was proven and its verdict.
pub struct Session(HandshakeState);

/// A peer's claims, if the frame is one and proves the secret to the host that has said `hello`.
pub fn read_claim(
    bytes: &[u8; CLAIM_BYTES],
    secret: &Secret,
    hello: &HelloFrame,
) -> Option<(Session, Claims)> {
    let claim: Claim = transmute!(*bytes);
    let mut state = builder(secret, hello).build_responder().ok()?;
    let mut words = [0; CLAIMS];
    let read = state.read_message(&claim.message, &mut words).ok()?;
    let is_claim = claim.magic == MAGIC && read == CLAIMS;
    is_claim.then(|| (Session(state), Claims::from_bytes(words)))
}

impl Session {
    /// The verdict for a peer that is let in, and the keys of its connection.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn admit(mut self) -> Result<(Vec<u8>, Channel)> {
        let verdict = self.verdict(1, "").map_err(failed)?;
        let keys = self.0.into_stateless_transport_mode().map_err(failed)?;
        Ok((verdict, Channel::new(keys)))
    }

    /// The verdict for a peer that is not, with the reason, cut where it is too long.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn refuse(mut self, reason: &str) -> Result<Vec<u8>> {
        self.verdict(0, cut(reason, MAX_VERDICT_TEXT)).map_err(failed)
    }

    fn verdict(&mut self, admitted: u8, text: &str) -> Result<Vec<u8>, snow::Error> {
        let words = [&[admitted], text.as_bytes()].concat();
        let length = NOISE_BYTES + words.len();
        let head = Verdict { magic: MAGIC, length: (length as u16).into() };
        let mut frame = head.as_bytes().to_vec();
        frame.resize(VERDICT_BYTES + length, 0);
        self.0.write_message(&words, &mut frame[VERDICT_BYTES..])?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        let mut key = [0; 32];
        key[..text.len()].copy_from_slice(text.as_bytes());
        Secret::of_key(key)
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

    fn asked(purpose: Purpose) -> (HelloFrame, Asking, [u8; CLAIM_BYTES]) {
        let hello = hello(purpose, &[7; 32]);
        let (asking, frame) = Asking::claim(&secret("s"), &hello, &claims()).unwrap();
        (hello, asking, frame)
    }

    #[test]
    fn claims_come_back_and_no_one_else_reads_them() {
        let (hello, _, frame) = asked(Purpose::Data);
        let (_, read) = read_claim(&frame, &secret("s"), &hello).expect("a claim");
        assert!(claims().job.starts_with(&read.job) && read.job.len() > 60, "{}", read.job);
        assert_eq!(Claims { job: claims().job, ..read }, claims());
        assert!(!frame.windows(32).any(|bytes| bytes == [2; 32]), "claims are encrypted");
        let (_, _, again) = asked(Purpose::Data);
        assert_ne!(frame, again, "each handshake has keys of its own");
    }

    #[test]
    fn any_changed_bit_listener_or_number_is_unauthenticated() {
        let (hello, _, frame) = asked(Purpose::Rendezvous);
        let accepts =
            |frame: &_, hello: &HelloFrame| read_claim(frame, &secret("s"), hello).is_some();
        assert!(accepts(&frame, &hello));
        for place in 0..CLAIM_BYTES {
            let mut other = frame;
            other[place] ^= 0x10;
            assert!(!accepts(&other, &hello), "byte {place}");
        }
        // A claim that was recorded is of no use at another listener or another time.
        assert!(!accepts(&frame, &super::hello(Purpose::Data, &[7; 32])));
        assert!(!accepts(&frame, &super::hello(Purpose::Rendezvous, &[6; 32])));
        assert!(read_claim(&frame, &secret("t"), &hello).is_none());
    }

    #[test]
    fn verdicts_are_proven_too() {
        let verdict = |secret: &Secret, refusal: Option<&str>| {
            let (hello, asking, frame) = asked(Purpose::Rendezvous);
            let session = read_claim(&frame, secret, &hello).map(|(session, _)| session);
            // A host that does not know the secret can only make one up.
            let session = session.unwrap_or_else(|| {
                let mut state = builder(secret, &hello).build_responder().unwrap();
                let (_, own) = Asking::claim(secret, &hello, &claims()).unwrap();
                let claim: Claim = transmute!(own);
                state.read_message(&claim.message, &mut [0; CLAIMS]).unwrap();
                Session(state)
            });
            let frame = match refusal {
                None => session.admit().unwrap().0,
                Some(reason) => session.refuse(reason).unwrap(),
            };
            let (head, message) = frame.split_first_chunk::<VERDICT_BYTES>().unwrap();
            assert_eq!(verdict_length(head), Some(message.len()));
            asking.read_verdict(head, message).map(drop)
        };
        let long = "no ".repeat(1000);
        for refusal in [None, Some("no"), Some(&*long)] {
            let expected = refusal.map_or(Ok(()), |why| Err(Some(why.to_owned())));
            match verdict(&secret("s"), refusal) {
                Err(Some(text)) => assert!(text.starts_with("no"), "{text}"),
                other => assert_eq!(other, expected),
            }
            assert_eq!(verdict(&secret("other"), refusal), Err(None));
        }
        assert_eq!((HELLO_BYTES, CLAIMS, CLAIM_BYTES, VERDICT_BYTES), (41, 256, 312, 10));
        assert!(is_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Data));
        assert!(!is_hello(&hello(Purpose::Data, &[5; 32]), Purpose::Rendezvous));
        let mut earlier = hello(Purpose::Data, &[5; 32]);
        assert!(!is_of_another_version(&earlier) && !is_of_another_version(&[b'h'; HELLO_BYTES]));
        earlier[7] -= 1;
        assert!(is_of_another_version(&earlier) && !is_hello(&earlier, Purpose::Data));
        for length in [0, 48, 49 + MAX_VERDICT_TEXT + 1, 65_535] {
            let head = Verdict { magic: MAGIC, length: (length as u16).into() };
            assert_eq!(verdict_length(&transmute!(head)), None, "{length}");
        }
    }
}
