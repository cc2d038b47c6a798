//! A path between two threads of one process: the shortest one there can be. For tests of what
//! lies above paths.

use headlong_comm::transport::paths::{Head, Path, PathError, Progress};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of one call at most, so that messages take several.
const PIECE: usize = 4096;
/// A message of at most this many bytes is shown where it lies.
const SHOWN: u64 = 1024;

/// One message under way.
#[derive(Debug)]
struct Parcel {
    head: Head,
    bytes: Vec<u8>,
}

type Lane = Arc<Mutex<VecDeque<Parcel>>>;

/// One end.
#[derive(Debug)]
pub struct MemoryPath {
    sent: Lane,
    received: Lane,
    /// What is being shown, in memory that is aligned for every element.
    shown: Option<(Vec<u64>, usize)>,
}

/// Both ends of a new path.
pub fn pair() -> (MemoryPath, MemoryPath) {
    let (there, back) = (Lane::default(), Lane::default());
    let end = |sent: &Lane, received: &Lane| MemoryPath {
        sent: sent.clone(),
        received: received.clone(),
        shown: None,
    };
    (end(&there, &back), end(&back, &there))
}

fn lock(lane: &Lane) -> MutexGuard<'_, VecDeque<Parcel>> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

fn compare(found: &Head, expected: &Head) -> Result<(), PathError> {
    if found == expected { Ok(()) } else { Err(PathError::Mismatch(*found)) }
}

impl Path for MemoryPath {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        let mut lane = lock(&self.sent);
        if *at == 0 {
            lane.push_back(Parcel { head: *head, bytes: Vec::new() });
        }
        let end = bytes.len().min(*at + PIECE);
        // A receiver that has found out a wrong head has taken the parcel away.
        if let Some(parcel) = lane.back_mut() {
            parcel.bytes.extend_from_slice(&bytes[*at..end]);
        }
        *at = end;
        Ok(if end == bytes.len() { Progress::Done } else { Progress::Moved })
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        let mut lane = lock(&self.received);
        let Some(parcel) = lane.front() else { return Ok(Progress::Idle) };
        compare(&parcel.head, head)?;
        if parcel.bytes.len() < bytes.len() {
            return Ok(Progress::Idle);
        }
        bytes.copy_from_slice(&parcel.bytes);
        *at = bytes.len();
        lane.pop_front();
        Ok(Progress::Done)
    }

    fn shows(&self) -> u64 {
        SHOWN
    }

    fn peek(&mut self, head: &Head) -> Result<Option<&[u8]>, PathError> {
        if self.shown.is_none() {
            let mut bytes = vec![0; head.length as usize];
            if self.receive(head, &mut bytes, &mut 0)? != Progress::Done {
                return Ok(None);
            }
            let words = bytes.chunks(8).map(|word| {
                let mut padded = [0; 8];
                padded[..word.len()].copy_from_slice(word);
                u64::from_ne_bytes(padded)
            });
            self.shown = Some((words.collect(), bytes.len()));
        }
        Ok(self
            .shown
            .as_ref()
            .map(|(words, length)| &zerocopy::IntoBytes::as_bytes(&words[..])[..*length]))
    }

    fn release(&mut self) {
        self.shown = None;
    }
}
