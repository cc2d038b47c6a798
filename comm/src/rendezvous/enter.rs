//! The other ranks' side: find rank 0, prove oneself, wait for the table.

use super::dial::Dial;
use super::handshake::{Claims, Purpose};
use super::{JoinOptions, Joined, Keys, as_link, data_listener};
use crate::error::{CommError, Result};
use crate::launcher_env::Launch;
use crate::system::{Instant, TcpListener, TcpStream, poll_read};
use crate::topology::Rank;
use crate::transport::tcp::control_frame::{Control, FrameReader};
use crate::transport::tcp::health::Link;
use std::time::Duration;

/// How long a rank that waits for the table waits before it looks whether the job is still wanted.
const LOOK: Duration = Duration::from_millis(50);

pub fn enter(options: &JoinOptions, keys: &Keys) -> Result<Joined> {
    let launch = &options.launch;
    let deadline = Instant::now() + options.deadlines.rendezvous;
    let mut listener: Option<TcpListener> = None;
    let mut claims = |stream: &TcpStream| -> Result<Claims> {
        // The data port is opened at the address that leads to rank 0: the right one of several
        // networks.
        let here = stream
            .local_addr()
            .map_err(|error| CommError::system("asking for an own address", error))?
            .ip();
        let data = match listener.take() {
            Some(known) if known.local_addr().is_ok_and(|address| address.ip() == here) => known,
            _ => data_listener(here)?,
        };
        let address = data
            .local_addr()
            .map_err(|error| CommError::system("asking for an own address", error))?;
        listener = Some(data);
        Ok(Claims { data_port: address.port(), ..options.claims() })
    };
    let dial = Dial {
        host: &launch.master_host,
        port: launch.master_port,
        name: "rank 0",
        purpose: Purpose::Rendezvous,
        rank: launch.rank.0,
        keys,
        deadline,
        patience: options.deadlines.handshake,
        notice: options.notice.as_ref().filter(|_| speaks(launch)),
    };
    let welcome = dial.connect(&mut claims, &|| options.check_wanted())?;
    let (link, mut reader) = as_link(Rank(0), welcome.stream, welcome.channel, launch.world_size)?;
    // Rank 0 names who is missing when its deadline passes; this one is only for a rank 0 that does
    // not.
    let patience = options.deadlines.rendezvous + options.deadlines.silence;
    let table = wait_for_table(options, &link, &mut reader, patience)?;
    let Control::Table { epoch, peers, node_of } = table else {
        unreachable!("only a table ends the wait")
    };
    let data_listener = listener.take().expect("a rank that was admitted has claimed a data port");
    let (links, readers, rank_0) = (vec![link], vec![reader], welcome.address.ip());
    Ok(Joined { epoch, peers, node_of, links, readers, rank_0, data_listener, listener: None })
}

/// Whether this rank says that it waits for rank 0: one on each machine is enough.
fn speaks(launch: &Launch) -> bool {
    launch.rank == Rank(1) || launch.local_rank.is_none_or(|local| local == 0)
}

/// Waits until rank 0 sends the table, says why there is no job, or falls silent.
fn wait_for_table(
    options: &JoinOptions,
    link: &Link,
    reader: &mut FrameReader,
    longest: Duration,
) -> Result<Control> {
    let begin = Instant::now();
    let (mut heard, mut looked) = (begin, begin);
    let rank = options.launch.rank;
    let late = |waited: Duration| CommError::Timeout {
        culprit: Rank(0),
        seen_by: rank,
        operation: "the rendezvous".into(),
        sequence: 0,
        waited_ms: waited.as_millis() as u64,
    };
    loop {
        options.check_wanted()?;
        poll_read(&link.stream, LOOK);
        let last = std::mem::replace(&mut looked, Instant::now());
        if looked.saturating_duration_since(last) > LOOK + options.deadlines.heartbeat {
            // This process itself was stopped or starved: no silence counts.
            heard = looked;
        }
        reader.receive(&link.stream);
        while let Some(frame) = reader.next_frame() {
            heard = looked;
            match frame {
                Control::Table { .. } => return Ok(frame),
                Control::Abort { error } => return Err(error),
                _ => {}
            }
        }
        if let Some(reason) = reader.end() {
            let reason = format!("{reason} while the job came together");
            return Err(CommError::PeerLost { culprit: Rank(0), seen_by: rank, reason });
        }
        let silent = looked.saturating_duration_since(heard);
        if silent >= options.deadlines.silence || begin.elapsed() >= longest {
            return Err(late(silent));
        }
    }
}
