//! Words of any length from every rank to every rank.

use crate::error::{CommError, Result};
use crate::operation::{Algorithm, Collective, fingerprint};
use crate::readable::readable;
use crate::topology::Rank;
use crate::transport::tcp::TcpTransport;
use crate::transport::{Incoming, Outgoing, StepId, Transport as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest word: many reasons of a system fit.
const LONGEST: u64 = 1 << 16;

/// Tells `word` to all and gives back what all have told, by rank.
pub(super) fn tell_all<W: Serialize + DeserializeOwned>(
    control: &TcpTransport,
    word: &W,
) -> Result<Vec<W>> {
    let own = serde_json::to_vec(word).expect("words are plain data, written to memory");
    let lengths = all_gather(control, 0, &(own.len() as u64).to_le_bytes(), |_| 8)?;
    let length =
        |rank: Rank| lengths[rank.0].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if let Some(rank) = control.topology().ranks().find(|&rank| length(rank) > LONGEST) {
        return Err(senseless(
            control,
            rank,
            &format!("{} bytes, at most {LONGEST} make sense", length(rank)),
        ));
    }
    let all = all_gather(control, 1, &own, |rank| length(rank) as usize)?;
    let read = |(rank, bytes): (usize, Vec<u8>)| {
        serde_json::from_slice(&bytes)
            .map_err(|error| senseless(control, Rank(rank), &readable(&error.to_string())))
    };
    all.into_iter().enumerate().map(read).collect()
}

fn senseless(control: &TcpTransport, culprit: Rank, found: &str) -> CommError {
    control.health().suspect(CommError::Mismatch {
        culprit,
        seen_by: control.rank(),
        expected: "what it can and cannot do".into(),
        found: found.into(),
    })
}

fn all_gather(
    control: &TcpTransport,
    step: u32,
    own: &[u8],
    length: impl Fn(Rank) -> usize,
) -> Result<Vec<Vec<u8>>> {
    let fingerprint = fingerprint(Collective::AllGather, 0, Algorithm::Direct, 0);
    let id = StepId { sequence: 0, step, fingerprint, operation: "choosing paths" };
    let mut all: Vec<Vec<u8>> =
        control.topology().ranks().map(|rank| vec![0; length(rank)]).collect();
    let peers = || control.topology().ranks().filter(|&rank| rank != control.rank());
    let outgoing: Vec<_> = peers().map(|to| Outgoing { to, bytes: own }).collect();
    let others = all.iter_mut().enumerate().filter(|(rank, _)| *rank != control.rank().0);
    let mut incoming: Vec<_> =
        others.map(|(rank, bytes)| Incoming { from: Rank(rank), bytes }).collect();
    control.exchange(&id, &outgoing, &mut incoming)?;
    all[control.rank().0].copy_from_slice(own);
    Ok(all)
}
