//! Words of any length from every rank to every rank.

use crate::error::{CommError, Result};
use crate::operation::{Algorithm, Collective, fingerprint};
use crate::readable::readable;
use crate::topology::Rank;
use crate::transport::tcp::TcpTransport;
use crate::transport::{CHOICE, Incoming, Outgoing, StepId, Transport as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest word: many reasons of a system fit.
const LONGEST: usize = 1 << 16;

/// Tells `word` to all and gives back what all have told, by rank. `number`: how often before.
///
/// Every rank passes on what it has heard: in each round it gives the words of the ranks from it on
/// to one before it, and gets as many of the ranks behind them. So a rank talks to few of many.
///
/// ```text
/// round 0, rank r:  r      to r - 1,   r + 1             from r + 1
/// round 1, rank r:  r, r+1 to r - 2,   r + 2, r + 3      from r + 2      and so on, twice as far
/// ```
pub(super) fn tell_all<W: Serialize + DeserializeOwned>(
    control: &TcpTransport,
    number: u64,
    word: &W,
) -> Result<Vec<W>> {
    let (ranks, Rank(me)) = (control.topology().num_ranks(), control.rank());
    // From this rank on, and from rank 0 on after the last.
    let mut heard =
        vec![serde_json::to_vec(word).expect("words are plain data, written to memory")];
    let fingerprint = fingerprint(Collective::AllGather, 0, Algorithm::Hierarchical, 0);
    let mut id = StepId { sequence: number, step: 0, fingerprint, operation: CHOICE };
    while heard.len() < ranks {
        let distance = heard.len();
        let (to, from) = (Rank((me + ranks - distance) % ranks), Rank((me + distance) % ranks));
        let told = &heard[..distance.min(ranks - distance)];
        let lengths: Vec<u8> =
            told.iter().flat_map(|word| (word.len() as u32).to_le_bytes()).collect();
        let lengths = pass(control, &mut id, (to, &lengths), (from, lengths.len()))?;
        let lengths: Vec<usize> =
            lengths.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect();
        if let Some(length) = lengths.iter().find(|length| **length > LONGEST) {
            let found = format!("{length} bytes, at most {LONGEST} make sense");
            return Err(senseless(control, from, &found));
        }
        let words = pass(control, &mut id, (to, &told.concat()), (from, lengths.iter().sum()))?;
        let mut rest = &words[..];
        for length in lengths {
            heard.push(rest.split_off(..length).unwrap_or_default().to_vec());
        }
    }
    heard.rotate_right(me);
    let read = |(rank, bytes): (usize, Vec<u8>)| {
        serde_json::from_slice(&bytes)
            .map_err(|error| senseless(control, Rank(rank), &readable(&error.to_string())))
    };
    heard.into_iter().enumerate().map(read).collect()
}

fn senseless(control: &TcpTransport, culprit: Rank, found: &str) -> CommError {
    control.health().suspect(CommError::Mismatch {
        culprit,
        seen_by: control.rank(),
        expected: "what it can and cannot do".into(),
        found: found.into(),
    })
}

/// Sends to one rank while another sends this one so many bytes.
fn pass(
    control: &TcpTransport,
    id: &mut StepId,
    (to, bytes): (Rank, &[u8]),
    (from, length): (Rank, usize),
) -> Result<Vec<u8>> {
    let mut heard = vec![0; length];
    let incoming = Incoming { from, bytes: &mut heard };
    control.exchange(id, &[Outgoing { to, bytes }], &mut [incoming])?;
    id.step += 1;
    Ok(heard)
}
