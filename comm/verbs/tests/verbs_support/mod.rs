//! What the tests of ranks joined by verbs have in common: threads of this process, NICs of its
//! own fabric.
#![allow(dead_code, reason = "each test uses a part")]

use crate::tcp_support::{join_all, options, reserve_port};
use headlong_comm::transport::Transport;
use headlong_comm::transport::paths::{Doorbells, PathTransport};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, Rank};
use headlong_verbs::fake::Fabric;
use headlong_verbs::{Connected, VerbsSettings, connect};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Who reaches whom by verbs; the others by TCP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Ranks of other nodes.
    OtherNodes,
    /// Everybody.
    All,
}

/// Slots so small that tests fill them.
pub fn settings() -> VerbsSettings {
    VerbsSettings {
        slot_bytes: 4096,
        retries: 2,
        patience: Duration::from_secs(10),
        ..VerbsSettings::default()
    }
}

/// All control transports of a job of `nodes` nodes of `per_node` ranks.
pub fn controls(nodes: usize, per_node: usize, deadline: Duration) -> Vec<Arc<TcpTransport>> {
    let (port, ranks) = (reserve_port(), nodes * per_node);
    let all = (0..ranks).map(|rank| {
        let mut options = options(rank, ranks, port.port);
        options.ranks_per_node = per_node;
        options.deadlines.operation = deadline;
        if ranks > 8 {
            // Many threads on few cores hear of each other late.
            let patient = Duration::from_secs(60);
            options.deadlines.silence = patient;
            options.deadlines.handshake = patient;
            options.deadlines.rendezvous = patient;
        }
        options
    });
    join_all(all.collect()).into_iter().map(|joined| joined.expect("all ranks join")).collect()
}

/// Each rank's answer to connecting with `settings(rank)`.
pub fn try_job(
    fabric: &Arc<Fabric>,
    (nodes, per_node): (usize, usize),
    reach: Reach,
    settings: &(dyn Fn(usize) -> VerbsSettings + Sync),
) -> Vec<Result<Arc<PathTransport>, CommError>> {
    let connect_one = |control: Arc<TcpTransport>| {
        let (me, topology) = (control.rank(), control.topology().clone());
        let is_peer = |peer: &Rank| match reach {
            Reach::All => *peer != me,
            Reach::OtherNodes => !topology.same_node(*peer, me),
        };
        let peers: Vec<Rank> = topology.ranks().filter(is_peer).collect();
        let provider = fabric.provider(topology.node_of(me));
        let Connected { paths, doorbell } =
            connect(&*control, &settings(me.0), &*provider, &peers, &mut Vec::new())?;
        let mut doorbells = Doorbells::default();
        doorbells.network = doorbell.unwrap_or(doorbells.network);
        Ok(Arc::new(PathTransport::new(control, paths, doorbells)?))
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = controls(nodes, per_node, Duration::from_secs(20))
            .into_iter()
            .map(|control| scope.spawn(|| connect_one(control)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// A whole job over verbs.
pub fn job(
    fabric: &Arc<Fabric>,
    size: (usize, usize),
    reach: Reach,
    settings: &VerbsSettings,
) -> Vec<Arc<PathTransport>> {
    let ranks = try_job(fabric, size, reach, &|_| settings.clone()).into_iter();
    ranks.map(|rank| rank.unwrap_or_else(|error| panic!("connecting: {error}"))).collect()
}

/// Runs `work` for every rank on a thread of its own.
pub fn on_all<R: Send>(
    ranks: &[Arc<PathTransport>],
    work: impl Fn(&PathTransport) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let runs: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| work(rank))).collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).collect()
    })
}
