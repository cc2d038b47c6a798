//! Deduplication inside a node: one rank of it asks each owner on behalf of all.
//!
//! A job of `M` nodes of `L` ranks (a power of two, the same everywhere; rank `m·L + l` is rank `l`
//! of node `m`). What the ranks of a node request of owner `m·L + l` goes to rank `l` of their own
//! node, its proxy, along the rail that the owner stands on. The proxy merges the requests, so that
//! one vector per node and row crosses the network, however many ranks of the node need it:
//!
//! ```text
//!   node 0                               node 1
//!   rank 0 ─ requests ─┐
//!   rank 1 ─ requests ─┴► proxy (rank 1) ── merged ──► owner (rank 3)      along rail 1
//!                     ◄┬─ expand ─────── ◄─ vectors ──
//!   gradients ─────────┴► reduce ───────── sums ─────► update
//! ```
//!
//! Gradients are summed over the node's ranks in the tree, which is the subtree of the sum over all
//! ranks that the node stands for; so weights are the same, bit for bit, as when each rank asks for
//! itself.
//!
//! One step: [`NodeProxy::counts_inside`], [`NodeProxy::ids_inside`], [`NodeProxy::merge`],
//! [`NodeProxy::counts_across`], [`NodeProxy::ids_across`], then [`HybridSet::receive_requests`]
//! and [`HybridSet::owner_lookup`]; vectors across, [`NodeProxy::expand`], vectors inside,
//! [`HybridSet::pool`]; and back: [`HybridSet::reduce_rows`], gradients inside,
//! [`NodeProxy::reduce`], gradients across, [`HybridSet::update_owned`]. Every exchange is an
//! all-to-all of the whole job in which most counts are zero.

use super::lists::Lists;
use super::merge::{Merge, MergeShape};
use super::options::Deduplicate;
use super::partition::{Owner, Partition};
use super::route::{HybridRoute, RankExchange};
use super::set::HybridSet;
use super::shape::RouteShape;
use super::simd::{ExpandTile, expand_tile, sum_merged_rows};
use crate::error::{EmbeddingError, Result};
use crate::update::cpu::{TILE_ENTRIES, rows_of_tile};
use crate::update::simd::SegmentSum;
use headlong_device::Stream;
use headlong_device::pool::SharedMut;

/// This rank as a proxy: for the ranks of its node, towards the owners of its rail. Made by
/// [`HybridSet::new_node_proxy`]; goes with one route. Buffers are taken once and reused.
#[derive(Debug)]
pub struct NodeProxy {
    ranks: usize,
    num_nodes: usize,
    num_tables: usize,
    /// Of each peer, for each owner of the rail and each table.
    peers: Lists,
    /// To each owner of the rail.
    merged: Lists,
    /// Owners × tables.
    merges: Vec<Merge>,
    /// Per list of a peer, the table's name.
    names: Vec<String>,
    counts: RankCounts,
    /// Whether sums are rounded to bf16.
    narrow: bool,
}

/// Counts per rank of the job: of what this rank requests, and of what it serves.
#[derive(Debug)]
struct RankCounts {
    node: usize,
    ranks: usize,
    index: usize,
    own: Vec<usize>,
    served: Vec<usize>,
}

impl RankCounts {
    /// Sets the counts towards the ranks of the node; all others are zero.
    fn inside(&mut self, counts: impl Fn(usize) -> (usize, usize)) -> (&[usize], &[usize]) {
        self.clear();
        for peer in 0..self.ranks {
            let rank = self.node * self.ranks + peer;
            (self.own[rank], self.served[rank]) = counts(peer);
        }
        (&self.own, &self.served)
    }

    /// Sets the counts towards the ranks of the rail; all others are zero.
    fn across(&mut self, counts: impl Fn(usize) -> (usize, usize)) -> (&[usize], &[usize]) {
        self.clear();
        for node in 0..self.own.len() / self.ranks {
            let rank = node * self.ranks + self.index;
            (self.own[rank], self.served[rank]) = counts(node);
        }
        (&self.own, &self.served)
    }

    fn clear(&mut self) {
        self.own.fill(0);
        self.served.fill(0);
    }
}

impl HybridSet {
    /// The proxy of this rank.
    ///
    /// # Panics
    /// When the set was not built with [`Deduplicate::Node`], or there is one rank.
    pub fn new_node_proxy(&self) -> NodeProxy {
        let Deduplicate::Node { ranks } = self.deduplicate else {
            panic!("proxies serve sets that deduplicate by node, got {:?}", self.deduplicate)
        };
        assert!(!self.is_single_rank(), "a single rank has no proxy");
        let (shape, num_tables) = (self.shape(), self.specs.len());
        let num_owners = self.partition.num_owners();
        let (node, index, num_nodes) =
            (self.owner.0 / ranks, self.owner.0 % ranks, num_owners / ranks);
        let merges = merge_shapes(&shape, &self.partition, self.owner, ranks);
        let of_peer: Vec<_> = merges.iter().map(|merge| merge.max_received).collect();
        let to_owner: Vec<_> = shape.max_ids.iter().map(|ids| ids * ranks).collect();
        let max_received = of_peer.iter().sum::<usize>() * ranks;
        let spec_of = |list: usize| &self.specs[list % num_tables];
        NodeProxy {
            ranks,
            num_nodes,
            num_tables,
            narrow: self.narrow.is_some(),
            peers: Lists::new(ranks, of_peer, max_received),
            merged: Lists::new(num_nodes, to_owner, max_received),
            names: (0..merges.len()).map(|list| spec_of(list).name.clone()).collect(),
            merges: (0..)
                .zip(merges)
                .map(|(list, shape)| Merge::new(spec_of(list), shape))
                .collect(),
            counts: RankCounts {
                node,
                ranks,
                index,
                own: vec![0; num_owners],
                served: vec![0; num_owners],
            },
        }
    }
}

impl NodeProxy {
    /// First exchange: how many rows each rank of the node requests of each owner of each rail.
    pub fn counts_inside<'a>(&'a mut self, route: &'a HybridRoute) -> RankExchange<'a, u32> {
        let each = self.num_nodes * self.num_tables;
        let (send_counts, receive_counts) = self.counts.inside(|_| (each, each));
        RankExchange {
            send: route.request_counts(),
            send_counts,
            receive: &mut self.peers.counts,
            receive_counts,
        }
    }

    /// Second exchange: the rows.
    ///
    /// # Errors
    /// [`EmbeddingError::Capacity`] where a peer asks for more than was planned.
    pub fn ids_inside<'a>(&'a mut self, route: &'a HybridRoute) -> Result<RankExchange<'a, u64>> {
        // What was merged before belongs to another layout.
        self.clear();
        let merges = &self.merges;
        self.peers.lay_out(&self.names)?;
        self.peers.lay_out_vectors(|list, rows| rows * merges[list % merges.len()].dim());
        let sent = rail_sums(&route.requests.totals, self.num_nodes);
        let num_rows = self.peers.num_rows();
        let Lists { totals, rows, .. } = &mut self.peers;
        let (send_counts, receive_counts) = self.counts.inside(|peer| (sent(peer), totals[peer]));
        Ok(RankExchange {
            send: &route.requests.rows[..route.requests.num_rows()],
            send_counts,
            receive: &mut rows[..num_rows],
            receive_counts,
        })
    }

    /// Merges what the peers request into one list per owner of the rail.
    ///
    /// # Errors
    /// [`EmbeddingError::RowNotOwned`] for rows that the owner does not keep.
    pub fn merge(&mut self, stream: &Stream) -> Result<()> {
        let peers = &self.peers;
        stream.pool().chunks_mut(&mut self.merges, 1, |list, merge| {
            merge[0].fill(|peer| (peers.list(peer, list), peers.first_element(peer, list)));
        });
        let refused =
            self.merges.iter().enumerate().find_map(|(list, merge)| Some((list, merge.refused()?)));
        if let Some((list, (source_index, row))) = refused {
            let (table, rows) = (self.names[list].clone(), self.merges[list].local_rows());
            self.clear();
            return Err(EmbeddingError::RowNotOwned { table, source_index, row, rows });
        }
        for (count, merge) in self.merged.counts.iter_mut().zip(&self.merges) {
            *count = merge.rows().len() as u32;
        }
        let merges = &self.merges;
        self.merged.lay_out(&self.names[..self.num_tables])?;
        let num_tables = self.num_tables;
        self.merged.lay_out_vectors(|list, rows| rows * merges[list % num_tables].dim());
        for (list, merge) in self.merges.iter().enumerate() {
            let first = self.merged.first_row[list];
            self.merged.rows[first..first + merge.rows().len()].copy_from_slice(merge.rows());
        }
        Ok(())
    }

    /// Forgets what was merged.
    fn clear(&mut self) {
        self.merges.iter_mut().for_each(Merge::clear);
        self.merged.clear();
    }

    /// Third exchange: how many rows of each table the proxies request of owners; what this rank
    /// receives arrives in the route.
    pub fn counts_across<'a>(&'a mut self, route: &'a mut HybridRoute) -> RankExchange<'a, u32> {
        let each = self.num_tables;
        let (send_counts, receive_counts) = self.counts.across(|_| (each, each));
        RankExchange {
            send: &self.merged.counts,
            send_counts,
            receive: route.recv_counts_mut(),
            receive_counts,
        }
    }

    /// Fourth exchange: the merged rows. [`HybridSet::receive_requests`] follows.
    pub fn ids_across<'a>(
        &'a mut self,
        route: &'a mut HybridRoute,
    ) -> Result<RankExchange<'a, u64>> {
        let exchange = route.id_exchange()?;
        let merged = &self.merged;
        let (send_counts, receive_counts) =
            self.counts.across(|node| (merged.totals[node], exchange.receive_counts[node]));
        Ok(RankExchange {
            send: &merged.rows[..merged.num_rows()],
            send_counts,
            receive: exchange.receive,
            receive_counts,
        })
    }

    /// The exchange of vectors and gradients inside the node, in f32 elements per rank of the job:
    /// those of this rank's own requests (vectors arrive, gradients leave), and those that it
    /// expands and reduces for its peers (vectors leave, gradients arrive).
    pub fn vectors_inside(&mut self, route: &HybridRoute) -> (&[usize], &[usize]) {
        let requested = rail_sums(&route.requests.elements, self.num_nodes);
        let peers = &self.peers;
        self.counts.inside(|peer| (requested(peer), peers.elements[peer]))
    }

    /// The exchange of vectors and gradients along the rail, in f32 elements per rank of the job:
    /// those that this proxy requested of owners (vectors arrive, gradients leave), and those that
    /// this rank sends as an owner (vectors leave, gradients arrive).
    pub fn vectors_across(&mut self, route: &HybridRoute) -> (&[usize], &[usize]) {
        let merged = &self.merged;
        self.counts.across(|node| (merged.elements[node], route.received.elements[node]))
    }

    /// Hands each peer the vectors that it requested, from what owners sent: `recv_rows` is packed
    /// by owner, `out` by peer.
    ///
    /// # Panics
    /// When a length is not what [`Self::vectors_across`] and [`Self::vectors_inside`] say.
    pub fn expand(&self, stream: &Stream, recv_rows: &[f32], out: &mut [f32]) {
        assert_eq!(
            recv_rows.len(),
            self.merged.num_elements(),
            "one vector came for each row merged"
        );
        assert_eq!(
            out.len(),
            self.peers.num_elements(),
            "one vector goes to each peer for each row it requested"
        );
        let out = SharedMut::new(out);
        self.tiles(stream, &|merge, first, tile| {
            let rows = rows_of_tile(merge.starts(), tile);
            expand_tile(&ExpandTile {
                parts: merge.view(),
                rows,
                vectors: &recv_rows[first..],
                dim: merge.dim(),
                out,
            });
        });
    }

    /// Sums the peers' gradients of each merged row in the tree over the node's ranks: `from_peers`
    /// is packed by peer, `out` by owner.
    pub fn reduce(&self, stream: &Stream, from_peers: &[f32], out: &mut [f32]) {
        assert_eq!(
            from_peers.len(),
            self.peers.num_elements(),
            "one gradient came for each row requested"
        );
        assert_eq!(
            out.len(),
            self.merged.num_elements(),
            "one sum goes to the owner of each row merged"
        );
        let out = SharedMut::new(out);
        self.tiles(stream, &|merge, first, tile| {
            let sum = SegmentSum::of_sources(merge.view(), from_peers, self.narrow);
            let rows = rows_of_tile(merge.starts(), tile);
            sum_merged_rows(&sum, out, first, merge.dim(), rows);
        });
    }

    /// Calls `body` with every merge, the first element of its vectors among all merged, and the
    /// number of each of its tiles.
    fn tiles(&self, stream: &Stream, body: &(dyn Fn(&Merge, usize, usize) + Sync)) {
        let most_parts = self.merges.iter().map(Merge::num_parts).max().unwrap_or(0);
        let tiles = most_parts.div_ceil(TILE_ENTRIES);
        stream.pool().run(self.merges.len() * tiles, &|task| {
            let (list, tile) = (task / tiles, task % tiles);
            body(&self.merges[list], self.merged.first_element[list], tile);
        });
    }

    /// Most f32 elements that this proxy asks owners for, in the worst case: the length of the
    /// caller's buffers along the rail.
    pub fn max_elements_across(&self) -> usize {
        self.max_elements_inside()
    }

    /// Most f32 elements that this proxy expands and reduces for its peers: the length of the
    /// caller's buffers inside the node.
    pub fn max_elements_inside(&self) -> usize {
        let lists = self.peers.capacities.iter().zip(&self.merges);
        lists.map(|(rows, merge)| rows * merge.dim()).sum::<usize>() * self.ranks
    }
}

/// The merges of a proxy: for each owner of its rail, for each table.
fn merge_shapes(
    shape: &RouteShape,
    partition: &Partition,
    owner: Owner,
    ranks: usize,
) -> Vec<MergeShape> {
    let num_tables = shape.max_ids.len();
    let lists = 0..shape.num_owners / ranks * num_tables;
    let merge = |list: usize| {
        let (node, table) = (list / num_tables, list % num_tables);
        let local_rows = partition.local_rows(table, Owner(node * ranks + owner.0 % ranks));
        let max_received = shape.at_most(table, shape.max_ids[table], local_rows);
        MergeShape { num_sources: ranks, max_ids: max_received, max_received, local_rows }
    };
    lists.map(merge).collect()
}

/// Sums over the owners of a rail: requests of a set that deduplicates by node are packed by rail.
fn rail_sums(counts: &[usize], num_nodes: usize) -> impl Fn(usize) -> usize + '_ {
    move |rail| counts[rail * num_nodes..][..num_nodes].iter().sum()
}
