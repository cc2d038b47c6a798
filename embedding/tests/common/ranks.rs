//! All ranks of a job in one process: their sets side by side, exchanges done by copying.

use super::{Jagged, bits, matrix};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{Arena, JaggedRef, Mat, Stream};
use headlong_embedding::hybrid::{
    Deduplicate, HybridOptions, HybridRoute, HybridSet, NodeProxy, Owner, Partition, PoolAt,
    RankExchange, SlotOptions,
};
use headlong_embedding::update::sum_block_len;
use headlong_embedding::{EmbeddingError, Ids, Registry, SetOptions, TableSpec};
use std::sync::Arc;

/// One table's bags of the whole batch, weighted or not.
#[derive(Debug, Clone)]
pub struct Bags {
    pub bags: Vec<Vec<u64>>,
    pub weights: Option<Vec<Vec<f32>>>,
}

impl Bags {
    pub fn plain(bags: Vec<Vec<u64>>) -> Self {
        Self { bags, weights: None }
    }

    /// The samples `first .. last`.
    pub fn slice(&self, first: usize, last: usize) -> Self {
        let bags = self.bags[first..last].to_vec();
        Self { bags, weights: self.weights.as_ref().map(|weights| weights[first..last].to_vec()) }
    }
}

/// A batch as the ops take it.
pub struct Batch {
    jagged: Vec<Jagged>,
    weights: Vec<Option<Vec<f32>>>,
}

impl Batch {
    pub fn new(tables: &[Bags]) -> Self {
        Self {
            jagged: tables.iter().map(|table| Jagged::new(&table.bags)).collect(),
            weights: tables
                .iter()
                .map(|table| table.weights.as_ref().map(|weights| weights.concat()))
                .collect(),
        }
    }

    pub fn with<R>(&self, body: impl FnOnce(&dyn Ids) -> R) -> R {
        let tables: Vec<JaggedRef> = self.jagged.iter().map(Jagged::view).collect();
        let weights: Vec<Option<&[f32]>> = self.weights.iter().map(Option::as_deref).collect();
        body(&WeightedIds { tables: &tables, weights: &weights })
    }
}

/// Bags with weights: what [`Ids::table`] and [`Ids::weights`] say, as a pair of lists.
#[derive(Debug, Clone, Copy)]
pub struct WeightedIds<'a> {
    /// The bags of each table.
    pub tables: &'a [JaggedRef<'a>],
    /// For each table its weights, one per value, or none.
    pub weights: &'a [Option<&'a [f32]>],
}

impl Ids for WeightedIds<'_> {
    fn num_tables(&self) -> usize {
        self.tables.len()
    }

    fn table(&self, index: usize) -> JaggedRef<'_> {
        self.tables[index]
    }

    fn weights(&self, index: usize) -> Option<&[f32]> {
        self.weights[index]
    }
}

/// How ids become known to owners, and how much is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variant {
    pub deduplicate: Deduplicate,
    pub known: bool,
    /// Elements of the frequent block that become final together.
    pub chunk: usize,
}

impl Default for Variant {
    fn default() -> Self {
        Self { deduplicate: Deduplicate::Rank, known: false, chunk: usize::MAX }
    }
}

pub struct Ranks {
    pub sets: Vec<HybridSet>,
    pub routes: Vec<HybridRoute>,
    pub proxies: Vec<NodeProxy>,
    pub stream: Stream,
    pub num_blocks: usize,
    pub variant: Variant,
}

/// What travelled in the last step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Traffic {
    pub requests: Vec<Vec<u64>>,
    pub received: Vec<Vec<u64>>,
    pub send_rows: Vec<Vec<f32>>,
    pub recv_rows: Vec<Vec<f32>>,
    pub gradients: Vec<Vec<f32>>,
    pub arrived: Vec<Vec<f32>>,
    pub blocks: Vec<Vec<f32>>,
    pub frequent: Vec<f32>,
}

pub struct Shape<'a> {
    pub specs: &'a [TableSpec],
    pub optimizer: Optimizer,
    pub pool_at: &'a [PoolAt],
    pub num_blocks: usize,
    pub max_samples: usize,
    pub max_ids: usize,
    pub threads: usize,
}

impl Ranks {
    pub fn new(registry: &Registry, shape: &Shape, partition: Partition, variant: Variant) -> Self {
        let stream = Stream::cpu(shape.threads);
        let partition = Arc::new(partition);
        let ranks = partition.num_owners();
        let max_ids = vec![shape.max_ids; shape.specs.len()];
        let set = |rank| {
            let options = HybridOptions {
                set: SetOptions {
                    optimizer: shape.optimizer,
                    seed: 11,
                    max_samples: shape.max_samples,
                    max_ids: &max_ids,
                    sum_blocks: shape.num_blocks / ranks,
                    frozen: false,
                    narrow: None,
                },
                partition: Arc::clone(&partition),
                owner: Owner(rank),
                deduplicate: variant.deduplicate,
                pool_at: shape.pool_at,
                slots: SlotOptions::default(),
            };
            HybridSet::new(registry, &stream, shape.specs, &options).unwrap()
        };
        let sets: Vec<_> = (0..ranks).map(set).collect();
        let routes = sets.iter().map(|set| set.new_route().unwrap()).collect();
        let by_node = matches!(variant.deduplicate, Deduplicate::Node { .. });
        let proxies = sets.iter().filter(|_| by_node).map(HybridSet::new_node_proxy).collect();
        Self { sets, routes, proxies, stream, num_blocks: shape.num_blocks, variant }
    }

    /// First sample of each rank's slice of a batch of `samples`, and the end.
    pub fn bounds(&self, samples: usize) -> Vec<usize> {
        let len = sum_block_len(samples, self.num_blocks) * (self.num_blocks / self.sets.len());
        (0..=self.sets.len()).map(|rank| (rank * len).min(samples)).collect()
    }

    /// Forward of one batch; the vectors of all samples.
    pub fn forward(&mut self, tables: &[Bags], traffic: &mut Traffic) -> Vec<f32> {
        let samples = tables[0].bags.len();
        let bounds = self.bounds(samples);
        let slices: Vec<Batch> = bounds
            .windows(2)
            .map(|bounds| {
                Batch::new(
                    &tables.iter().map(|t| t.slice(bounds[0], bounds[1])).collect::<Vec<_>>(),
                )
            })
            .collect();
        self.route(&slices, samples);
        let send_rows = self.owner_lookup();
        let received = self.bring_vectors(&send_rows);
        traffic.requests = self
            .routes
            .iter_mut()
            .map(|route| route.id_exchange().unwrap().send.to_vec())
            .collect();
        traffic.received = self
            .routes
            .iter_mut()
            .map(|route| route.id_exchange().unwrap().receive.to_vec())
            .collect();
        traffic.send_rows = send_rows;
        traffic.recv_rows = received.clone();
        let mut all = Vec::new();
        for (rank, set) in self.sets.iter().enumerate() {
            let rows = bounds[rank + 1] - bounds[rank];
            let (_arena, vectors) = matrix(rows, set.width(), &vec![f32::NAN; rows * set.width()]);
            slices[rank].with(|ids| {
                let (stream, route) = (&self.stream, &self.routes[rank]);
                let (_arena, received) = list(&received[rank]);
                set.lookup_replicated(stream, ids, route, &vectors).unwrap();
                set.pool(stream, ids, route, &received, &vectors).unwrap();
            });
            all.extend_from_slice(vectors.read::<f32>().data());
        }
        all
    }

    fn route(&mut self, slices: &[Batch], samples: usize) {
        let block_len = sum_block_len(samples, self.num_blocks);
        for ((set, route), slice) in self.sets.iter().zip(&mut self.routes).zip(slices) {
            slice.with(|ids| set.route(&self.stream, ids, block_len, route).unwrap());
        }
        if self.variant.known {
            with_all(slices, &mut |all| {
                for (set, route) in self.sets.iter().zip(&mut self.routes) {
                    set.receive_known_requests(&self.stream, route, all).unwrap();
                }
            });
            return;
        }
        if self.proxies.is_empty() {
            self.exchange_ids();
        } else {
            self.exchange_ids_by_node();
        }
        for (set, route) in self.sets.iter().zip(&mut self.routes) {
            set.receive_requests(&self.stream, route).unwrap();
        }
    }

    /// Inside the nodes, then along the rails; counts before ids.
    fn exchange_ids_by_node(&mut self) {
        let ranks = self.sets.len();
        let sent: Vec<_> =
            (0..ranks).map(|r| owned(&self.proxies[r].counts_inside(&self.routes[r]))).collect();
        for (rank, arrived) in all_to_all(&sent).iter().enumerate() {
            self.proxies[rank].counts_inside(&self.routes[rank]).receive.copy_from_slice(arrived);
        }
        let sent: Vec<_> = (0..ranks)
            .map(|r| owned(&self.proxies[r].ids_inside(&self.routes[r]).unwrap()))
            .collect();
        for (rank, arrived) in all_to_all(&sent).iter().enumerate() {
            self.proxies[rank]
                .ids_inside(&self.routes[rank])
                .unwrap()
                .receive
                .copy_from_slice(arrived);
            self.proxies[rank].merge(&self.stream).unwrap();
        }
        let sent: Vec<_> = (0..ranks)
            .map(|r| owned(&self.proxies[r].counts_across(&mut self.routes[r])))
            .collect();
        for (rank, arrived) in all_to_all(&sent).iter().enumerate() {
            self.proxies[rank]
                .counts_across(&mut self.routes[rank])
                .receive
                .copy_from_slice(arrived);
        }
        let sent: Vec<_> = (0..ranks)
            .map(|r| owned(&self.proxies[r].ids_across(&mut self.routes[r]).unwrap()))
            .collect();
        for (rank, arrived) in all_to_all(&sent).iter().enumerate() {
            self.proxies[rank]
                .ids_across(&mut self.routes[rank])
                .unwrap()
                .receive
                .copy_from_slice(arrived);
        }
    }

    /// Counts, then ids.
    fn exchange_ids(&mut self) {
        let num_tables = self.sets[0].specs().len();
        let counts: Vec<Vec<u32>> =
            self.routes.iter().map(|route| route.request_counts().to_vec()).collect();
        for (owner, route) in self.routes.iter_mut().enumerate() {
            let received = route.recv_counts_mut();
            for (source, counts) in counts.iter().enumerate() {
                received[source * num_tables..][..num_tables]
                    .copy_from_slice(&counts[owner * num_tables..][..num_tables]);
            }
        }
        let sent: Vec<(Vec<u64>, Vec<usize>)> = self
            .routes
            .iter_mut()
            .map(|route| {
                let exchange = route.id_exchange().unwrap();
                (exchange.send.to_vec(), exchange.send_counts.to_vec())
            })
            .collect();
        for (owner, route) in self.routes.iter_mut().enumerate() {
            let exchange = route.id_exchange().unwrap();
            let arrived: Vec<u64> = sent
                .iter()
                .flat_map(|(ids, counts)| {
                    let first: usize = counts[..owner].iter().sum();
                    ids[first..first + counts[owner]].to_vec()
                })
                .collect();
            exchange.receive.copy_from_slice(&arrived);
        }
    }

    fn owner_lookup(&self) -> Vec<Vec<f32>> {
        let answer = |(set, route): (&HybridSet, &HybridRoute)| {
            let len = route.vector_exchange().0.iter().sum();
            assert!(len <= set.max_send_elements());
            let (_arena, out) = list(&vec![f32::NAN; len]);
            set.owner_lookup(&self.stream, route, &out).unwrap();
            out.to_vec().unwrap()
        };
        self.sets.iter().zip(&self.routes).map(answer).collect()
    }

    /// The vectors of owners to those who request them.
    fn bring_vectors(&mut self, send_rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        if self.proxies.is_empty() {
            let counts = |route: &HybridRoute| route.vector_exchange().0.to_vec();
            return all_to_all(
                &send_rows.iter().cloned().zip(self.routes.iter().map(counts)).collect::<Vec<_>>(),
            );
        }
        let served =
            |(proxy, route): (&mut NodeProxy, &HybridRoute)| proxy.vectors_across(route).1.to_vec();
        let counts = self.proxies.iter_mut().zip(&self.routes).map(served);
        let arrived = all_to_all(&send_rows.iter().cloned().zip(counts).collect::<Vec<_>>());
        let mut expanded = Vec::new();
        for ((proxy, route), received) in self.proxies.iter_mut().zip(&self.routes).zip(&arrived) {
            assert_eq!(received.len(), proxy.vectors_across(route).0.iter().sum::<usize>());
            assert!(received.len() <= proxy.max_elements_across());
            let counts = proxy.vectors_inside(route).1.to_vec();
            let mut out = vec![f32::NAN; counts.iter().sum()];
            assert!(out.len() <= proxy.max_elements_inside());
            proxy.expand(&self.stream, received, &mut out);
            expanded.push((out, counts));
        }
        all_to_all(&expanded)
    }

    /// Ranks' gradients to the owners of the rows.
    fn bring_gradients(&mut self, gradients: &[Vec<f32>]) -> Vec<Vec<f32>> {
        if self.proxies.is_empty() {
            let counts = |route: &HybridRoute| route.vector_exchange().1.to_vec();
            return all_to_all(
                &gradients.iter().cloned().zip(self.routes.iter().map(counts)).collect::<Vec<_>>(),
            );
        }
        let own =
            |(proxy, route): (&mut NodeProxy, &HybridRoute)| proxy.vectors_inside(route).0.to_vec();
        let counts = self.proxies.iter_mut().zip(&self.routes).map(own);
        let arrived = all_to_all(&gradients.iter().cloned().zip(counts).collect::<Vec<_>>());
        let mut sums = Vec::new();
        for ((proxy, route), from_peers) in self.proxies.iter_mut().zip(&self.routes).zip(&arrived)
        {
            let counts = proxy.vectors_across(route).0.to_vec();
            let mut out = vec![f32::NAN; counts.iter().sum()];
            proxy.reduce(&self.stream, from_peers, &mut out);
            sums.push((out, counts));
        }
        all_to_all(&sums)
    }

    /// Backward and update of the batch that was routed last.
    pub fn backward(
        &mut self,
        samples: usize,
        d_vectors: &[f32],
        step: &Step,
        traffic: &mut Traffic,
    ) {
        let bounds = self.bounds(samples);
        let mut blocks = Vec::new();
        traffic.gradients.clear();
        for (rank, set) in self.sets.iter().enumerate() {
            let (first, last) = (bounds[rank] * set.width(), bounds[rank + 1] * set.width());
            let (_arena, d_vectors): (_, Mat) =
                matrix(bounds[rank + 1] - bounds[rank], set.width(), &d_vectors[first..last]);
            let len: usize = self.routes[rank].vector_exchange().1.iter().sum();
            assert!(len <= set.max_recv_elements());
            let (_to_owners, to_owners) = list(&vec![f32::NAN; len]);
            let (_frequent, frequent) = list(&vec![f32::NAN; set.frequent_len()]);
            set.reduce_rows(&self.stream, &self.routes[rank], &d_vectors, &to_owners, &frequent);
            traffic.gradients.push(to_owners.to_vec().unwrap());
            blocks.push(frequent.to_vec().unwrap());
        }
        let arrived = self.bring_gradients(&traffic.gradients);
        traffic.arrived = arrived.clone();
        traffic.blocks = blocks.clone();
        traffic.frequent = headlong_embedding::oracle::tree_sum(blocks);
        for (rank, set) in self.sets.iter().enumerate() {
            let route = &self.routes[rank];
            let (_arena, arrived) = list(&arrived[rank]);
            set.update_owned(&self.stream, route, &arrived, &arrived, step).unwrap();
            let mut first = 0;
            while first < set.frequent_len() {
                let last = set.frequent_len().min(first.saturating_add(self.variant.chunk));
                let (stream, block) = (&self.stream, &traffic.frequent);
                set.update_replicated_range(stream, block, first..last, step).unwrap();
                first = last;
            }
        }
    }

    /// Rows of one tensor of the whole model, put together from all ranks; replicas are equal. None
    /// of a table that hides them.
    pub fn tensor(&self, table: usize, tensor: usize) -> Option<Vec<f32>> {
        let partition = self.sets[0].partition();
        let holder = (0..self.sets.len())
            .find(|&rank| partition.local_rows(table, Owner(rank)) > 0)
            .unwrap_or(0);
        let spec = self.sets[holder].tensors(table).get(tensor)?;
        let mut whole = vec![f32::NAN; spec.rows as usize * spec.cols];
        for set in &self.sets {
            let mut part = vec![f32::NAN; whole.len()];
            if let Err(EmbeddingError::UnknownTensor { .. }) =
                set.export_rows(table, tensor, 0, &mut part)
            {
                return None;
            }
            for (whole, part) in whole.iter_mut().zip(&part) {
                if !part.is_nan() {
                    assert!(whole.is_nan() || whole.to_bits() == part.to_bits(), "replicas differ");
                    *whole = *part;
                }
            }
        }
        assert!(whole.iter().all(|x| !x.is_nan()), "every row lies somewhere");
        Some(whole)
    }

    pub fn all_bits(&self) -> Vec<Vec<u32>> {
        let set = &self.sets[0];
        let tensors =
            (0..set.specs().len()).flat_map(|t| (0..set.tensors(t).len()).map(move |i| (t, i)));
        tensors
            .filter_map(|(table, tensor)| self.tensor(table, tensor))
            .map(|rows| bits(&rows))
            .collect()
    }
}

/// Values one after the other, as stages take them.
pub fn list(values: &[f32]) -> (Arena, Mat) {
    matrix(values.len(), 1, values)
}

/// Calls `body` with the ids of all slices at once.
fn with_all(slices: &[Batch], body: &mut dyn FnMut(&[&dyn Ids])) {
    let tables: Vec<Vec<JaggedRef>> =
        slices.iter().map(|slice| slice.jagged.iter().map(Jagged::view).collect()).collect();
    let weights: Vec<Vec<Option<&[f32]>>> =
        slices.iter().map(|slice| slice.weights.iter().map(Option::as_deref).collect()).collect();
    let ids: Vec<WeightedIds> = tables
        .iter()
        .zip(&weights)
        .map(|(tables, weights)| WeightedIds { tables, weights })
        .collect();
    body(&ids.iter().map(|ids| ids as &dyn Ids).collect::<Vec<_>>());
}

fn owned<T: Clone>(exchange: &RankExchange<T>) -> (Vec<T>, Vec<usize>) {
    assert_eq!(exchange.send.len(), exchange.send_counts.iter().sum::<usize>());
    assert_eq!(exchange.receive.len(), exchange.receive_counts.iter().sum::<usize>());
    (exchange.send.to_vec(), exchange.send_counts.to_vec())
}

/// What each rank receives: the parts that are its own, of each sender's buffer, in the order of
/// senders.
fn all_to_all<T: Clone>(sent: &[(Vec<T>, Vec<usize>)]) -> Vec<Vec<T>> {
    let part = |rank: usize, (buffer, counts): &(Vec<T>, Vec<usize>)| {
        let first: usize = counts[..rank].iter().sum();
        buffer[first..first + counts[rank]].to_vec()
    };
    (0..sent.len())
        .map(|rank| sent.iter().flat_map(|sender| part(rank, sender)).collect())
        .collect()
}
