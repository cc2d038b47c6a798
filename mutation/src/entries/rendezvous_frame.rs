use headlong_comm::launcher_env::SecretSource;
use headlong_comm::rendezvous::handshake::{
    CLAIM_BYTES, Claims, HELLO_BYTES, MAGIC, Purpose, Session, VERDICT_BYTES, hello, read_claim,
    read_hello,
};
use headlong_comm::rendezvous::proof::{Role, Secret};
use headlong_comm::transport::tcp::control_frame::{Control, FrameReader};
use std::sync::LazyLock;

/// Ranks of the job that frames speak of.
const RANKS: usize = 4;

static SECRET: LazyLock<Secret> = LazyLock::new(|| {
    Secret::load(&SecretSource::Value(b"the secret of the fuzzer".into()), "job")
        .expect("a value is always there")
});

/// What unauthenticated hosts and peers send while a job comes together, as arbitrary bytes: the
/// frames of the handshake, with a proof that does not fit and with one that does, and the words on
/// a control connection.
///
/// The first byte chooses the frame, the rest is its bytes.
pub fn rendezvous_frame(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let purpose = if choice & 1 == 0 { Purpose::Rendezvous } else { Purpose::Data };
    match choice >> 1 & 3 {
        0 => try_hello(bytes, purpose),
        1 => try_claim(bytes, purpose),
        2 => try_verdict(bytes, purpose),
        _ => try_control(bytes, usize::from(choice >> 3)),
    }
}

/// `N` bytes, filled up with zeros.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    let length = bytes.len().min(N);
    all[..length].copy_from_slice(&bytes[..length]);
    all
}

fn try_hello(bytes: &[u8], purpose: Purpose) {
    let frame: [u8; HELLO_BYTES] = fixed(bytes);
    if let Some(nonce) = read_hello(&frame, purpose) {
        assert_eq!(hello(purpose, &nonce), frame);
    }
}

fn try_claim(bytes: &[u8], purpose: Purpose) {
    let host_nonce = [7; 32];
    // Whatever it is, it is not proven, except with a chance of one in 2^256.
    assert!(read_claim(&fixed(bytes), &SECRET, purpose, &host_nonce).is_none());
    let words: [u8; 256] = fixed(bytes);
    let peer_nonce = [9; 32];
    let tag = SECRET.tag(Role::Peer, &[&[purpose as u8], &host_nonce, &peer_nonce, &words]);
    let frame: [u8; CLAIM_BYTES] = fixed(&[&MAGIC[..], &peer_nonce, &words, &tag].concat());
    let (session, claims) =
        read_claim(&frame, &SECRET, purpose, &host_nonce).expect("the proof fits");
    assert_eq!(session.peer_nonce, peer_nonce);
    for text in [&claims.job, &claims.build] {
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    // What was read is said again, except for texts that grew when they were made readable.
    let (_, again) =
        read_claim(&session.claim(&SECRET, &claims), &SECRET, purpose, &host_nonce).expect("ours");
    assert!(claims.job.starts_with(&again.job) && claims.build.starts_with(&again.build));
    assert_eq!(Claims { job: claims.job.clone(), build: claims.build.clone(), ..again }, claims);
}

fn try_verdict(bytes: &[u8], purpose: Purpose) {
    let session = Session { purpose, host_nonce: [7; 32], peer_nonce: [9; 32] };
    let head: [u8; VERDICT_BYTES] = fixed(bytes);
    let text = bytes.get(VERDICT_BYTES..).unwrap_or_default();
    if let Some(length) = Session::verdict_text_length(&head) {
        let text = &text[..length.min(text.len())];
        assert_eq!(
            session.read_verdict(&SECRET, &head, text),
            Err(None),
            "no one has proven anything"
        );
    }
    // A refusal of any words comes across, cut where it is too long.
    let words = String::from_utf8_lossy(bytes);
    let frame = session.verdict(&SECRET, Some(&words));
    let head: [u8; VERDICT_BYTES] = fixed(&frame);
    let length = Session::verdict_text_length(&head).expect("a verdict");
    assert_eq!(frame.len(), VERDICT_BYTES + length);
    let refusal =
        session.read_verdict(&SECRET, &head, &frame[VERDICT_BYTES..]).expect_err("a refusal");
    assert!(refusal.is_some_and(|refusal| !refusal.contains(char::is_control)));
}

/// A stream in pieces of `piece` bytes gives the same frames, and the same end, as all of it at
/// once.
fn try_control(bytes: &[u8], piece: usize) {
    let mut whole = FrameReader::new(RANKS);
    whole.push(bytes);
    let frames = frames_of(&mut whole);
    let mut pieces = FrameReader::new(RANKS);
    let mut slowly = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        if pieces.end().is_none() {
            pieces.push(piece);
            slowly.extend(frames_of(&mut pieces));
        }
    }
    assert_eq!(slowly, frames);
    assert_eq!(pieces.end(), whole.end());
    for frame in frames {
        let mut again = FrameReader::new(RANKS);
        again.push(&frame.to_bytes());
        assert_eq!(again.next_frame(), Some(frame));
        assert_eq!((again.next_frame(), again.end()), (None, None));
    }
}

fn frames_of(reader: &mut FrameReader) -> Vec<Control> {
    std::iter::from_fn(|| reader.next_frame()).collect()
}
