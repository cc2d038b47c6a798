//! What travels on a control connection once both sides have proven themselves.
//!
//! A frame is a length and one JSON value. Frames follow each other as the content of sealed
//! records (`rendezvous/channel.rs`), each after its length in two bytes: what was not sealed by
//! the peer ends the connection before anything in it is looked at.

use crate::error::CommError;
use crate::readable::readable;
use crate::rendezvous::channel::{FORGED, MOST_BYTES, Opener, Sealer, TAG_BYTES};
use crate::system::{self, TcpStream};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest frame of a small job, and what may wait for one peer.
const LONGEST: usize = 1 << 20;

/// Longest frame: the table of a job takes less than 100 bytes for each rank.
fn longest_frame(num_ranks: usize) -> usize {
    LONGEST + 100 * num_ranks
}

/// Gives back memory that the table of a large job has taken: rank 0 has a connection to each rank.
fn give_back(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > 4096 {
        *buffer = Vec::new();
    }
}

/// One rank in the table of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Where rank 0 sees it; none for rank 0 itself, which everybody has found already.
    pub ip: Option<IpAddr>,
    /// Port of its data listener.
    pub port: u16,
}

/// A rank that does something long on its host: it lives, and others wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyRank {
    /// Which.
    pub rank: usize,
    /// What it does: `saves a checkpoint`.
    pub what: String,
    /// For how long already.
    pub ms: u64,
}

/// A word between a rank and rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Control {
    Wait,
    /// All are there: who is where.
    Table {
        epoch: u32,
        peers: Vec<PeerAddress>,
        node_of: Vec<usize>,
    },
    Heartbeat {
        /// The step that the sender is in, or was in last: `StepId::progress`.
        progress: u64,
        /// The peer it waits for, if it waits.
        waiting_for: Option<usize>,
        /// The sender, where it is busy; of rank 0, all ranks that are.
        busy: Vec<BusyRank>,
    },
    Report {
        error: CommError,
        /// It has seen only what another rank's failure looks like from there; rank 0 knows more.
        suspicion: bool,
    },
    Abort {
        error: CommError,
    },
    Goodbye,
    Farewell,
}

impl Control {
    /// A frame that a peer has sent, as a job of `num_ranks` can take it: no rank, node or number
    /// of rows that there is not, and texts that can be shown. What follows need not ask again.
    fn checked(self, num_ranks: usize) -> Result<Self, String> {
        match self {
            Control::Table { epoch, peers, node_of } => {
                let (rows, nodes) = (peers.len(), node_of.len());
                if (rows, nodes) != (num_ranks, num_ranks) {
                    return Err(format!(
                        "a table of {rows} ranks on {nodes} nodes, expected {num_ranks}"
                    ));
                }
                match node_of.iter().find(|node| **node >= num_ranks) {
                    Some(node) => {
                        Err(format!("a table with node {node}, and there are {num_ranks} ranks"))
                    }
                    None => Ok(Control::Table { epoch, peers, node_of }),
                }
            }
            Control::Heartbeat { waiting_for: Some(rank), .. } if rank >= num_ranks => {
                Err(format!("that it waits for rank {rank}, and there are {num_ranks} ranks"))
            }
            Control::Heartbeat { progress, waiting_for, busy } => {
                if let Some(BusyRank { rank, .. }) = busy.iter().find(|busy| busy.rank >= num_ranks)
                {
                    return Err(format!(
                        "that rank {rank} is busy, and there are {num_ranks} ranks"
                    ));
                }
                let read = |busy: BusyRank| BusyRank { what: readable(&busy.what), ..busy };
                Ok(Control::Heartbeat {
                    progress,
                    waiting_for,
                    busy: busy.into_iter().map(read).collect(),
                })
            }
            Control::Report { error, suspicion } => {
                Ok(Control::Report { error: error.told(num_ranks)?, suspicion })
            }
            Control::Abort { error } => Ok(Control::Abort { error: error.told(num_ranks)? }),
            other => Ok(other),
        }
    }

    /// Length and JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, self)
            .expect("control frames are plain data, written to memory");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }
}

/// Frames that have come in part, opened.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Frames speak of these.
    num_ranks: usize,
    ended: Option<String>,
}

impl Frames {
    /// Of a connection of a job of so many ranks.
    pub fn new(num_ranks: usize) -> Self {
        Self { bytes: Vec::new(), num_ranks, ended: None }
    }

    /// Takes what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub fn next_frame(&mut self) -> Option<Control> {
        let length = u32::from_le_bytes(*self.bytes.first_chunk::<4>()?) as usize;
        let longest = longest_frame(self.num_ranks);
        if length > longest {
            self.spoil(format!("a control frame of {length} bytes, at most {longest} are allowed"));
            return None;
        }
        let frame = self.bytes.get(4..4 + length)?;
        let read = serde_json::from_slice::<Control>(frame);
        let reason = match read.map(|control| control.checked(self.num_ranks)) {
            Ok(Ok(control)) => {
                self.bytes.drain(..4 + length);
                give_back(&mut self.bytes);
                return Some(control);
            }
            Ok(Err(reason)) => reason,
            Err(error) => readable(&error.to_string()),
        };
        self.spoil(format!("a control frame that makes no sense: {reason}"));
        None
    }

    /// Why nothing more will come, once all whole frames have been taken.
    pub fn end(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    fn spoil(&mut self, reason: String) {
        self.bytes.clear();
        self.ended = Some(format!("it sent {reason}"));
    }
}

/// What has come on one control connection.
#[derive(Debug)]
pub struct FrameReader {
    opener: Opener,
    /// The beginning of a record.
    sealed: Vec<u8>,
    frames: Frames,
}

impl FrameReader {
    /// For a connection of a job of so many ranks, with the keys of its peer.
    pub fn new(num_ranks: usize, opener: Opener) -> Self {
        Self { opener, sealed: Vec::new(), frames: Frames::new(num_ranks) }
    }

    /// Takes what has come, without waiting.
    pub fn receive(&mut self, stream: &TcpStream) {
        let mut room = [0; 4096];
        let longest = longest_frame(self.frames.num_ranks);
        while self.frames.ended.is_none() && self.frames.bytes.len() < longest + 4 {
            let frames = &mut self.frames;
            match system::receive(stream, &mut room) {
                Ok(0) => {
                    frames.ended = Some("its control connection closed without a goodbye".into())
                }
                Ok(received) => {
                    self.sealed.extend_from_slice(&room[..received]);
                    self.open();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => frames.ended = Some(format!("its control connection broke: {error}")),
            }
        }
    }

    /// Opens all records that are whole.
    fn open(&mut self) {
        let mut at = 0;
        while let Some(length) = self.sealed[at..].first_chunk() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some(record) = self.sealed[at + 2..].get(..length) else { break };
            let begin = self.frames.bytes.len();
            self.frames.bytes.resize(begin + length.saturating_sub(TAG_BYTES), 0);
            if !self.opener.open(record, &mut self.frames.bytes[begin..]) {
                // Whole frames before it were the peer's own, and are still taken.
                self.frames.bytes.truncate(begin);
                self.frames.ended = Some(format!("its control connection carries {FORGED}"));
                self.sealed.clear();
                return;
            }
            at += 2 + length;
        }
        self.sealed.drain(..at);
        give_back(&mut self.sealed);
    }

    /// The next whole frame.
    pub fn next_frame(&mut self) -> Option<Control> {
        self.frames.next_frame()
    }

    /// Why nothing more will come, once all whole frames have been taken.
    pub fn end(&self) -> Option<&str> {
        self.frames.end()
    }
}

/// What waits to be sent on one control connection.
#[derive(Debug)]
pub struct Outbox {
    sealer: Sealer,
    bytes: Vec<u8>,
}

impl Outbox {
    /// With the keys of this side.
    pub fn new(sealer: Sealer) -> Self {
        Self { sealer, bytes: Vec::new() }
    }

    /// Sends as much as the system takes now. A connection that is gone is the reader's discovery,
    /// not ours.
    pub fn flush(&mut self, stream: &TcpStream) {
        while !self.bytes.is_empty() {
            match system::send(stream, &self.bytes) {
                Ok(sent) => drop(self.bytes.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.bytes.clear(),
            }
        }
        give_back(&mut self.bytes);
    }

    /// Sends a frame's bytes after all earlier ones, or keeps them for the next [`Outbox::flush`].
    /// A peer that has stopped reading gets no more once a megabyte waits for it: it is about to
    /// be found dead.
    pub fn send(&mut self, stream: &TcpStream, frame: &[u8]) {
        if self.bytes.len() < LONGEST {
            for bytes in frame.chunks(MOST_BYTES) {
                let length = bytes.len() + TAG_BYTES;
                self.bytes.extend((length as u16).to_le_bytes());
                let begin = self.bytes.len();
                self.bytes.resize(begin + length, 0);
                self.sealer.seal(bytes, &mut self.bytes[begin..]);
            }
        }
        self.flush(stream);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Rank;
    use std::io::Write as _;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn wait_for(reader: &mut FrameReader, stream: &TcpStream) -> Option<Control> {
        for _ in 0..2000 {
            reader.receive(stream);
            let frame = reader.next_frame();
            if frame.is_some() || reader.end().is_some() {
                return frame;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("nothing came");
    }

    #[test]
    fn frames_come_whole_and_in_order_and_the_end_comes_last() {
        let (here, there) = pair();
        let error = CommError::Aborted { culprit: Rank(3), reason: "\u{1f4a5} bad row".into() };
        let frames = [
            Control::Heartbeat { progress: u64::MAX, waiting_for: Some(2), busy: Vec::new() },
            Control::Abort { error },
            Control::Farewell,
        ];
        let (mut outbox, mut reader) = ends();
        frames.iter().for_each(|frame| outbox.send(&here, &frame.to_bytes()));
        assert!(outbox.is_empty());
        drop(here);
        for frame in frames {
            assert_eq!(wait_for(&mut reader, &there), Some(frame));
        }
        assert_eq!(wait_for(&mut reader, &there), None);
        assert!(reader.end().is_some_and(|end| end.contains("closed without a goodbye")));
    }

    /// What one rank sends and the other hears.
    fn ends() -> (Outbox, FrameReader) {
        let (host, peer) = crate::rendezvous::channel::pair();
        (Outbox::new(host.split().0), FrameReader::new(4, peer.split().1))
    }

    #[test]
    fn a_frame_that_is_too_long_or_senseless_ends_the_connection() {
        for (bytes, words) in
            [(&[0xff; 8][..], "at most"), (&[2, 0, 0, 0, b'{', b'x'][..], "makes no sense")]
        {
            let mut frames = Frames::new(4);
            frames.push(bytes);
            assert_eq!(frames.next_frame(), None);
            assert!(frames.end().is_some_and(|end| end.contains(words)), "{:?}", frames.end());
        }
    }

    #[test]
    fn a_frame_longer_than_a_record_crosses() {
        let (here, there) = pair();
        let (mut outbox, mut reader) = ends();
        let peers = vec![PeerAddress { ip: Some([0xffff_u16; 8].into()), port: 40_000 }; 4000];
        let mut table = Control::Table { epoch: 1, peers, node_of: vec![3999; 4000] };
        reader.frames.num_ranks = 4000;
        outbox.send(&here, &table.to_bytes());
        for _ in 0..2000 {
            outbox.flush(&here);
            reader.receive(&there);
            if let Some(found) = reader.next_frame() {
                return assert!(std::mem::replace(&mut table, Control::Wait) == found);
            }
        }
        panic!("nothing came: {:?}", reader.end());
    }

    /// Anyone who can write to the connection, without its keys, is not obeyed.
    #[test]
    fn what_was_not_sealed_by_the_peer_is_not_looked_at() {
        let abort = Control::Abort {
            error: CommError::Aborted { culprit: Rank(1), reason: "made up".into() },
        };
        let record = |outbox: &mut Outbox, frame: &Control| {
            let (here, there) = pair();
            outbox.send(&here, &frame.to_bytes());
            drop(here);
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut &there, &mut bytes).unwrap();
            bytes
        };
        let plain = abort.to_bytes();
        let foreign = record(&mut ends().0, &abort);
        let long = [&[0xff, 0xff][..], &[7; 65_535]].concat();
        for (name, forged) in
            [("plain", plain), ("other keys", foreign), ("empty", vec![0, 0]), ("long", long)]
        {
            let (mut here, there) = pair();
            let (mut outbox, mut reader) = ends();
            outbox.send(&here, &Control::Wait.to_bytes());
            here.write_all(&forged).unwrap();
            assert_eq!(wait_for(&mut reader, &there), Some(Control::Wait), "{name}: before it");
            assert_eq!(wait_for(&mut reader, &there), None, "{name}");
            assert!(reader.end().is_some_and(|end| end.contains("does not open")), "{name}");
        }
        // A record once more, and one left out.
        for (name, order) in [("once more", &[0, 0][..]), ("left out", &[1])] {
            let (mut here, there) = pair();
            let (mut outbox, mut reader) = ends();
            let frames = [Control::Wait, abort.clone()];
            let records: Vec<_> = frames.iter().map(|frame| record(&mut outbox, frame)).collect();
            order.iter().for_each(|number| here.write_all(&records[*number]).unwrap());
            drop(here);
            let heard: Vec<_> = std::iter::from_fn(|| wait_for(&mut reader, &there)).collect();
            assert_eq!(heard.len(), order.len() - 1, "{name}");
            assert!(reader.end().is_some_and(|end| end.contains("does not open")), "{name}");
        }
    }
}
