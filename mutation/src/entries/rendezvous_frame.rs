use headlong_comm::launcher_env::SecretSource;
use headlong_comm::rendezvous::handshake::{
    Asking, CLAIM_BYTES, Claims, HELLO_BYTES, Purpose, VERDICT_BYTES, hello, is_hello, read_claim,
    verdict_length,
};
use headlong_comm::rendezvous::proof::Secret;
use headlong_comm::transport::tcp::control_frame::{Control, Frames};
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
        _ => drop(control_stream(bytes, usize::from(choice >> 3))),
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
    if is_hello(&frame, purpose) {
        let nonce = fixed(&frame[HELLO_BYTES - 32..]);
        assert_eq!(hello(purpose, &nonce), frame);
    }
}

fn try_claim(bytes: &[u8], purpose: Purpose) {
    let hello = hello(purpose, &[7; 32]);
    // Whatever it is, it is not proven, except with a chance of one in 2^128.
    let frame: [u8; CLAIM_BYTES] = fixed(bytes);
    assert!(read_claim(&frame, &SECRET, &hello).is_none());
    // Any words of a rank that knows the secret are read, and said again.
    let claims = Claims::from_bytes(fixed(bytes));
    for text in [&claims.job, &claims.build] {
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    let (_, frame) = Asking::claim(&SECRET, &hello, &claims).expect("the system has random bytes");
    let (_, again) = read_claim(&frame, &SECRET, &hello).expect("ours");
    // Texts may have grown when they were made readable.
    assert!(claims.job.starts_with(&again.job) && claims.build.starts_with(&again.build));
    assert_eq!(Claims { job: claims.job.clone(), build: claims.build.clone(), ..again }, claims);
}

fn try_verdict(bytes: &[u8], purpose: Purpose) {
    let hello = hello(purpose, &[7; 32]);
    let asked =
        || Asking::claim(&SECRET, &hello, &Claims::default()).expect("the system has random bytes");
    let head: [u8; VERDICT_BYTES] = fixed(bytes);
    let message = bytes.get(VERDICT_BYTES..).unwrap_or_default();
    let made_up = asked().0.read_verdict(&head, message).map(drop);
    assert_eq!(made_up, Err(None), "no one has proven anything");
    // A refusal of any words comes across, cut where it is too long.
    let words = String::from_utf8_lossy(bytes);
    let (asking, claim) = asked();
    let (session, _) = read_claim(&claim, &SECRET, &hello).expect("ours");
    let frame = session.refuse(&words).expect("the system has random bytes");
    let (head, message) = frame.split_first_chunk().expect("a head");
    assert_eq!(verdict_length(head), Some(message.len()));
    let refusal = asking.read_verdict(head, message).err().expect("a refusal");
    assert!(refusal.is_some_and(|refusal| !refusal.contains(char::is_control)));
}

/// A stream in pieces of `piece` bytes gives the same frames, and the same end, as all of it at
/// once. How many frames that are.
pub fn control_stream(bytes: &[u8], piece: usize) -> usize {
    let mut whole = Frames::new(RANKS);
    whole.push(bytes);
    let frames = frames_of(&mut whole);
    let mut pieces = Frames::new(RANKS);
    let mut slowly = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        if pieces.end().is_none() {
            pieces.push(piece);
            slowly.extend(frames_of(&mut pieces));
        }
    }
    assert_eq!(slowly, frames);
    assert_eq!(pieces.end(), whole.end());
    for frame in &frames {
        let mut again = Frames::new(RANKS);
        again.push(&frame.to_bytes());
        assert_eq!(again.next_frame().as_ref(), Some(frame));
        assert_eq!((again.next_frame(), again.end()), (None, None));
    }
    frames.len()
}

fn frames_of(reader: &mut Frames) -> Vec<Control> {
    std::iter::from_fn(|| reader.next_frame()).collect()
}
