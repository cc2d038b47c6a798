//! From nothing to one path for each peer.
//!
//! 1. Addresses of workers are exchanged over the control transport, which seals them.
//! 2. Endpoints are made; all say that they are.
//! 3. A first message goes through each path, both ways: what a firewall or a setting of UCX keeps
//!    apart is found now, and named.
//!
//! A rank that fails at a step says so in the next exchange, and ends the job for all.

use crate::doorbell::UcxDoorbell;
use crate::hub::{Hub, close_all};
use crate::introduction::{Introduction, introduce};
use crate::path::UcxPath;
use crate::sys::{Endpoint, Worker};
use headlong_comm::error::Result;
use headlong_comm::topology::Rank;
use headlong_comm::transport::Transport;
use headlong_comm::transport::paths::{Head, Path, PathError, Progress};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for the first messages.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks, once they have been in vain for a while.
const NAP: Duration = Duration::from_micros(50);

/// Paths, and what wakes a rank that waits for them.
pub(crate) type Connected = (Vec<(Rank, Box<dyn Path>)>, UcxDoorbell);

/// A path to each of `peers`. All ranks call it, and each is among the peers of those that are
/// among its.
pub(crate) fn connect(
    control: &dyn Transport,
    mut worker: Worker,
    peers: &[Rank],
) -> Result<Connected> {
    let events = worker.events();
    let address = worker.address().map_err(|unwell| worker.words(unwell));
    let address = events.as_ref().map_err(Clone::clone).and(address);
    let told = introduce(control, 0, peers, &Introduction::new(address))?;
    let hub = join(control.rank(), worker, peers, &told);
    agree(control, 1, peers, hub.as_ref().err())?;
    let hub = Arc::new(Mutex::new(hub.expect("no rank has failed")));
    let path = |link| Box::new(UcxPath::new(&hub, link)) as Box<dyn Path>;
    let mut paths: Vec<(Rank, Box<dyn Path>)> =
        peers.iter().enumerate().map(|(link, &peer)| (peer, path(link))).collect();
    let probed = probe(control, &mut paths);
    agree(control, 2, peers, probed.as_ref().err())?;
    let doorbell = UcxDoorbell::new(&hub, events.expect("no rank has failed"));
    Ok((paths, doorbell))
}

/// All say that a step has succeeded, or why not; then it is an error on all.
fn agree(
    control: &dyn Transport,
    round: u64,
    peers: &[Rank],
    failure: Option<&String>,
) -> Result<()> {
    let verdict = failure.map_or(Ok(Vec::new()), |reason| Err(reason.clone()));
    introduce(control, round, peers, &Introduction::new(verdict)).map(drop)
}

fn join(
    me: Rank,
    mut worker: Worker,
    peers: &[Rank],
    told: &[Introduction],
) -> std::result::Result<Hub, String> {
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(peers.len());
    for (peer, Introduction { address, .. }) in peers.iter().zip(told) {
        match worker.endpoint(address) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(unwell) => {
                close_all(&mut worker, endpoints);
                return Err(format!(
                    "{peer} cannot be reached: {}; UCX_TLS and UCX_NET_DEVICES limit what it uses, \
                     and UCX_LOG_LEVEL=error prints why",
                    worker.words(unwell)
                ));
            }
        }
    }
    let mut hub = Hub::new(worker);
    for (&peer, endpoint) in peers.iter().zip(endpoints) {
        hub.add(endpoint, (me, peer)).map_err(|error| error.to_string())?;
    }
    Ok(hub)
}

/// Sends a message of no bytes over every path, and takes one.
fn probe(
    control: &dyn Transport,
    paths: &mut [(Rank, Box<dyn Path>)],
) -> std::result::Result<(), String> {
    let begin = Instant::now();
    let head = Head { epoch: 0, sequence: u64::MAX, step: 0, fingerprint: 0, length: 0 };
    let mut open: Vec<[(bool, usize); 2]> = paths.iter().map(|_| [(false, 0); 2]).collect();
    loop {
        let mut missing = None;
        for ((peer, path), [(sent, sent_at), (received, received_at)]) in
            paths.iter_mut().zip(&mut open)
        {
            let mut look = || {
                *sent = *sent || path.send(&head, &[], sent_at)? == Progress::Done;
                *received =
                    *received || path.receive(&head, &mut [], received_at)? == Progress::Done;
                Ok(*sent && *received)
            };
            if !look().map_err(|error: PathError| format!("{peer}: {error}"))? {
                missing = Some(*peer);
            }
        }
        let Some(peer) = missing else { return Ok(()) };
        control.check().map_err(|error| error.to_string())?;
        if begin.elapsed() > PATIENCE {
            return Err(format!(
                "no message has come from {peer} within {} s: a firewall, or networks that do not \
                 reach each other; UCX_NET_DEVICES names those that UCX uses",
                PATIENCE.as_secs()
            ));
        }
        std::thread::sleep(NAP);
    }
}
