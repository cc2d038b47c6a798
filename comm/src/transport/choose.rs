//! Which path serves which peer: chosen once, by all ranks together, after the rendezvous, and
//! never changed afterwards.
//!
//! | wanted | ranks of one node | ranks of different nodes |
//! |---|---|---|
//! | `auto` | shared memory where all of the node can, else TCP | verbs where every rank has it, else TCP |
//! | `shm` | shared memory, or an error | an error |
//! | `verbs` | shared memory where there are several nodes, verbs where there is one; or an error | verbs, or an error |
//! | `ucx` | UCX, or an error | UCX, or an error |
//! | `tcp` | TCP | TCP |
//!
//! A network joins the ranks that exchange with each other: all of them, or, where they are many,
//! those of a node and of a rail ([`ChooseOptions::exchanges`]).
//!
//! Every rank tells all others what it can and why it cannot do the rest; all draw the same
//! conclusion from the same words. What was asked for by name is never replaced by something
//! slower: the error names the first rank that lacks it.

mod table;
mod words;

pub use table::Row;

use super::Transport;
use super::paths::{Doorbell, Doorbells, Path, PathTransport, name_of};
use super::shm::{self, Attachment, Neighbourhood, Offer};
use super::tcp::TcpTransport;
use crate::collectives::group::{Group, Levels};
use crate::error::{CommError, Result};
use crate::options::CommOptions;
use crate::readable::readable;
use crate::topology::{Rank, Topology};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use words::tell_all;

/// What the user wants between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Wanted {
    #[default]
    Auto,
    /// Shared memory: all ranks on one node.
    Shm,
    Verbs,
    /// UCX also between the ranks of one node.
    Ucx,
    Tcp,
}

impl Wanted {
    const ALL: [Wanted; 5] = [Wanted::Auto, Wanted::Shm, Wanted::Verbs, Wanted::Ucx, Wanted::Tcp];

    /// `auto`, `shm`, `verbs`, `ucx`, `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Wanted::Auto => "auto",
            Wanted::Shm => "shm",
            Wanted::Verbs => "verbs",
            Wanted::Ucx => "ucx",
            Wanted::Tcp => "tcp",
        }
    }
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let known = Wanted::ALL.into_iter().find(|wanted| wanted.name() == word);
        known.ok_or_else(|| format!("`{word}`: expected auto, shm, verbs, ucx or tcp"))
    }
}

/// A network that is not TCP.
pub trait Network: Send + Sync {
    /// Whether this rank could use it, or why not. Asked once, of every rank by itself.
    ///
    /// # Errors
    /// Why not: a library that is missing, a port that is down.
    fn is_there(&self) -> Verdict;

    /// Paths to all of `peers`. Called on all ranks together, if every rank has said that it is
    /// there.
    fn connect(&self, control: &TcpTransport, peers: &[Rank])
    -> Result<Vec<(Rank, Box<dyn Path>)>>;

    /// What wakes a rank that waits for the paths that [`Network::connect`] has made; none: it
    /// naps.
    fn doorbell(&self) -> Option<Box<dyn Doorbell>> {
        None
    }
}

/// What the choice depends on; the same on all ranks, except for what their machines have.
#[derive(Default)]
pub struct ChooseOptions<'a> {
    /// What the user wants.
    pub wanted: Wanted,
    /// The network besides TCP, where the program has one: UCX where that is wanted, else verbs.
    pub network: Option<&'a dyn Network>,
    /// How the job's communicator works: in a large job the network then joins only ranks that
    /// exchange, and whatever else is sent goes over TCP. None: any rank may send to any other.
    pub exchanges: Option<&'a CommOptions>,
}

/// What was chosen.
pub struct Chosen {
    /// Carries the payload; control stays where it was.
    pub transport: Arc<dyn Transport>,
    /// For every rank, what serves it and why. The same on all ranks.
    pub rows: Vec<Row>,
}

impl Chosen {
    /// A line for each group of ranks that are served alike, for rank 0 to print.
    pub fn table(&self) -> String {
        table::render(&self.rows)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    wanted: Wanted,
    offer: Offer,
    network: std::result::Result<(), String>,
}

/// What a rank has told of itself, read and written again: for programs that try any bytes.
///
/// # Errors
/// Why they are no such word.
#[doc(hidden)]
pub fn word_again(bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let word: Word = serde_json::from_slice(bytes).map_err(|error| readable(&error.to_string()))?;
    Ok(serde_json::to_vec(&word).expect("words are plain data, written to memory"))
}

/// Can, or why not.
type Verdict = std::result::Result<(), String>;

/// Chooses the paths of a job that has just come together. All ranks call it, before anything else
/// travels over `control`.
///
/// # Errors
/// [`CommError::Setting`] what was wanted by name and is not there, with the rank that lacks it;
/// the job's first error.
pub fn choose(control: Arc<TcpTransport>, options: &ChooseOptions) -> Result<Chosen> {
    let topology = control.topology().clone();
    if options.wanted == Wanted::Tcp || topology.num_ranks() == 1 {
        let rows = table::all_by_tcp(&topology, options.wanted);
        return Ok(Chosen { transport: control, rows });
    }
    // Names and keys of memory are among what ranks tell each other from here on.
    control.set_sealed(true);
    let (offer, host) = shm::offer(&control);
    let network = match options.network {
        Some(network) => network.is_there(),
        None => Err(format!("this program has no {}", network_name(options.wanted))),
    };
    let words = tell_all(&control, 0, &Word { wanted: options.wanted, offer, network })?;
    let need = Need::of(options.wanted, &topology);
    let network = first_refusal(topology.ranks(), |rank| &words[rank.0].network);
    let offers: Vec<Offer> = words.into_iter().map(|word| word.offer).collect();
    let (near, nodes) = if need.shm {
        meet(&control, &offers, host)?
    } else {
        (None, vec![Ok(()); topology.num_nodes()])
    };
    let along_rails = options.exchanges.is_some_and(CommOptions::keeps_to_rails)
        && matches!(Group::levels(&topology, control.rank()), Levels::Two { .. });
    let decision = Decision { topology: &topology, need, nodes, network, along_rails };
    decision.check_wanted().inspect_err(|error| control.abort(error.clone()))?;
    let rows = table::rows(&decision);
    let name = decision.name();
    if name == "tcp" {
        control.set_sealed(false);
        return Ok(Chosen { transport: control, rows });
    }
    let (mut paths, mut doorbells) = (Vec::new(), Doorbells::default());
    if let Some(near) = near {
        (paths, doorbells.node) = (near.paths, near.doorbell);
    }
    if let (true, Some(network)) = (decision.uses_network(), options.network) {
        paths.extend(network.connect(&control, &decision.network_peers(control.rank()))?);
        doorbells.network = network.doorbell().unwrap_or(doorbells.network);
    }
    control.set_sealed(false);
    let transport =
        PathTransport::new(control, paths, doorbells)?.with_common(name, decision.in_place_bytes());
    Ok(Chosen { transport: Arc::new(transport), rows })
}

#[derive(Debug, Clone, Copy)]
struct Need {
    wanted: Wanted,
    shm: bool,
    /// The network also joins ranks of one node.
    network_inside: bool,
}

impl Need {
    fn of(wanted: Wanted, topology: &Topology) -> Self {
        let network_inside = match wanted {
            Wanted::Ucx => true,
            Wanted::Verbs => num_nodes(topology) == 1,
            Wanted::Auto | Wanted::Shm | Wanted::Tcp => false,
        };
        Self { wanted, shm: !network_inside, network_inside }
    }
}

/// What the network of [`ChooseOptions`] is called.
fn network_name(wanted: Wanted) -> &'static str {
    if wanted == Wanted::Ucx { "ucx" } else { "verbs" }
}

/// Nodes that have ranks.
fn num_nodes(topology: &Topology) -> usize {
    (0..topology.num_nodes()).filter(|&node| topology.node_size(node) > 0).count()
}

fn first_refusal<'w>(
    ranks: impl IntoIterator<Item = Rank>,
    word: impl Fn(Rank) -> &'w Verdict,
) -> Verdict {
    let refusal = ranks.into_iter().find_map(|rank| Some((rank, word(rank).as_ref().err()?)));
    refusal.map_or(Ok(()), |(rank, reason)| Err(format!("{rank}: {}", readable(reason))))
}

/// The ranks of each node try to come to one memory. What this rank has of it, if all of its node
/// have it, and each node's verdict.
fn meet(
    control: &TcpTransport,
    offers: &[Offer],
    host: Option<shm::Host>,
) -> Result<(Option<Neighbourhood>, Vec<Verdict>)> {
    let topology = control.topology();
    let is_only_rank = topology.node_size(topology.node_of(control.rank())) == 1;
    let table = shm::Table::new(control, offers);
    // A rank that cannot reach its host says so before the host waits for it.
    let attachment = (!is_only_rank).then(|| table.approach(host));
    let approached: Verdict = match &attachment {
        Some(Attachment::Away(reason)) => Err(reason.clone()),
        _ => Ok(()),
    };
    let approached = by_node(topology, &tell_all(control, 1, &approached)?);
    let own = topology.node_of(control.rank());
    let met =
        attachment.filter(|_| approached[own].is_ok()).map(|attachment| table.meet(attachment));
    let took: Verdict = match &met {
        Some(Err(reason)) => Err(reason.clone()),
        _ => Ok(()),
    };
    let took = by_node(topology, &tell_all(control, 2, &took)?);
    let verdicts: Vec<Verdict> =
        approached.into_iter().zip(took).map(|(approached, took)| approached.and(took)).collect();
    let near = met.and_then(std::result::Result::ok).filter(|_| verdicts[own].is_ok());
    Ok((near, verdicts))
}

fn by_node(topology: &Topology, words: &[Verdict]) -> Vec<Verdict> {
    let verdict =
        |node| first_refusal(topology.ranks_of(node).iter().copied(), |rank| &words[rank.0]);
    (0..topology.num_nodes()).map(verdict).collect()
}

struct Decision<'a> {
    topology: &'a Topology,
    need: Need,
    /// Whether each node's ranks share memory.
    nodes: Vec<Verdict>,
    /// Whether every rank has the network.
    network: Verdict,
    /// No rank exchanges with all others.
    along_rails: bool,
}

impl Decision<'_> {
    fn uses_network(&self) -> bool {
        self.network.is_ok() && (num_nodes(self.topology) > 1 || self.need.network_inside)
    }

    /// What carries the payload of the whole job: ranks of a node that has no neighbour may see
    /// less of it, and must say the same.
    fn name(&self) -> &'static str {
        let shares = |node: usize| self.topology.node_size(node) > 1 && self.need.shm;
        let nodes = || self.nodes.iter().enumerate().filter(|(node, _)| shares(*node));
        let shm = nodes().any(|(_, verdict)| verdict.is_ok());
        let across = num_nodes(self.topology) > 1 && !self.uses_network();
        let tcp = across || nodes().any(|(_, verdict)| verdict.is_err());
        let all =
            [(shm, "shm"), (self.uses_network(), network_name(self.need.wanted)), (tcp, "tcp")];
        name_of(all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name))
    }

    fn in_place_bytes(&self) -> usize {
        let sizes =
            self.nodes.iter().enumerate().filter(|(_, verdict)| verdict.is_ok() && self.need.shm);
        let largest = sizes.map(|(node, _)| self.topology.node_size(node)).max();
        largest.filter(|&ranks| ranks > 1).map_or(usize::MAX, shm::in_place_bytes)
    }

    fn network_peers(&self, rank: Rank) -> Vec<Rank> {
        let is_other = |peer: &Rank| self.topology.node_of(*peer) != self.topology.node_of(rank);
        let inside = |peer: &Rank| self.need.network_inside && *peer != rank;
        let peers = match self.along_rails {
            true => Group::levels(self.topology, rank).peers(),
            false => self.topology.ranks().collect(),
        };
        peers.into_iter().filter(|peer| is_other(peer) || inside(peer)).collect()
    }

    fn check_wanted(&self) -> Result<()> {
        let wanted = self.need.wanted;
        let refuse = |reason: String| {
            Err(CommError::Setting { setting: format!("transport {}", wanted.name()), reason })
        };
        let shm = first_node(&self.nodes);
        match wanted {
            Wanted::Shm if num_nodes(self.topology) > 1 => {
                let other = self
                    .topology
                    .ranks()
                    .find(|&rank| self.topology.node_of(rank) != self.topology.node_of(Rank(0)));
                refuse(format!(
                    "shared memory joins the ranks of one node, and {} is on another than rank 0: \
                     leave it to \"auto\"",
                    other.unwrap_or(Rank(0))
                ))
            }
            Wanted::Verbs | Wanted::Ucx if self.network.is_err() => {
                refuse(self.network.clone().err().unwrap_or_default())
            }
            Wanted::Shm | Wanted::Verbs if shm.is_err() => refuse(shm.err().unwrap_or_default()),
            _ => Ok(()),
        }
    }
}

fn first_node(nodes: &[Verdict]) -> Verdict {
    nodes.iter().find(|node| node.is_err()).cloned().unwrap_or(Ok(()))
}
