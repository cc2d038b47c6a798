//! All ranks of a job in one object, one method per stage of the hybrid embedding.
//!
//! Slow and obvious: places are looked up one row at a time, every list is built by going
//! through all samples, every sum is written out with its blocks, ranks without a part
//! included as zeros.

use super::{OracleTable, tree_sum};
use crate::hybrid::{Owner, Partition, Place};
use crate::table::{Pooling, TableSpec};
use crate::update::sum_block_len;
use headlong_device::optimizer::{Optimizer, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A batch of one table.
#[derive(Debug, Clone)]
pub struct OracleBags {
    /// The row indices of each sample.
    pub bags: Vec<Vec<u64>>,
    /// As many weights, if the bags are weighted.
    pub weights: Option<Vec<Vec<f32>>>,
}

impl OracleBags {
    /// What row number `entry` of bag `sample` is multiplied with in the gradient.
    fn factor(&self, spec: &TableSpec, sample: usize, entry: usize) -> f32 {
        match (&self.weights, spec.pooling) {
            (Some(weights), _) => weights[sample][entry],
            (None, Pooling::Mean) => 1.0 / self.bags[sample].len() as f32,
            (None, Pooling::Sum) => 1.0,
        }
    }
}

/// One row that a rank requests of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Who holds it.
    pub owner: Owner,
    /// Index of the table.
    pub table: usize,
    /// Where the row lies there.
    pub local_row: u64,
    /// The row.
    pub row: u64,
}

/// All ranks: each with the rows it owns and its replica of the frequent ones, by row index.
#[derive(Debug, Clone)]
pub struct OracleRanks {
    specs: Vec<TableSpec>,
    optimizer: Optimizer,
    partition: Partition,
    num_blocks: usize,
    deduplicate: bool,
    owned: Vec<Vec<OracleTable>>,
    replicas: Vec<Vec<OracleTable>>,
}

impl OracleRanks {
    /// All ranks of a job that cuts its batches into `num_blocks` sum blocks; without
    /// `deduplicate`, one vector travels per id.
    pub fn new(
        specs: &[TableSpec],
        optimizer: Optimizer,
        seed: u64,
        partition: Partition,
        num_blocks: usize,
        deduplicate: bool,
    ) -> Self {
        let tables: Vec<_> = (0..)
            .zip(specs)
            .map(|(index, spec)| OracleTable::new(spec, optimizer, seed, index))
            .collect();
        let ranks = partition.num_owners();
        Self {
            specs: specs.to_vec(),
            optimizer,
            partition,
            num_blocks,
            deduplicate,
            owned: vec![tables.clone(); ranks],
            replicas: vec![tables; ranks],
        }
    }

    fn num_ranks(&self) -> usize {
        self.owned.len()
    }

    /// The samples of `rank`'s slice of a batch.
    pub fn slice(&self, rank: usize, num_samples: usize) -> Range<usize> {
        let len =
            sum_block_len(num_samples, self.num_blocks) * (self.num_blocks / self.num_ranks());
        (rank * len).min(num_samples)..((rank + 1) * len).min(num_samples)
    }

    /// Route: what `rank` requests of owners, by owner, table and local row.
    pub fn requests(&self, rank: usize, batch: &[OracleBags]) -> Vec<Request> {
        let mut requests = Vec::new();
        for (table, bags) in batch.iter().enumerate() {
            for sample in self.slice(rank, bags.bags.len()) {
                for &row in &bags.bags[sample] {
                    if let Place::Infrequent { owner, local_row } =
                        self.partition.classify(table, row)
                    {
                        requests.push(Request { owner, table, local_row, row });
                    }
                }
            }
        }
        requests.sort();
        if self.deduplicate {
            requests.dedup();
        }
        requests
    }

    /// What `owner` receives: rank by rank, each rank's requests in its order.
    pub fn received_requests(&self, owner: Owner, batch: &[OracleBags]) -> Vec<(usize, Request)> {
        let of_rank =
            |rank| self.requests(rank, batch).into_iter().map(move |request| (rank, request));
        (0..self.num_ranks())
            .flat_map(of_rank)
            .filter(|(_, request)| request.owner == owner)
            .collect()
    }

    /// Owner lookup: the vectors of those rows.
    pub fn owner_lookup(&mut self, owner: Owner, batch: &[OracleBags]) -> Vec<f32> {
        let received = self.received_requests(owner, batch);
        let rows = received.into_iter().map(|(_, request)| {
            let table = &mut self.owned[owner.0][request.table];
            table.row(request.row).weights.clone()
        });
        rows.collect::<Vec<_>>().concat()
    }

    /// What `rank` receives: its requests' vectors in their order.
    pub fn recv_rows(&mut self, rank: usize, batch: &[OracleBags]) -> Vec<f32> {
        let rows = self.requests(rank, batch).into_iter().map(|request| {
            let table = &mut self.owned[request.owner.0][request.table];
            table.row(request.row).weights.clone()
        });
        rows.collect::<Vec<_>>().concat()
    }

    /// Pooling: the vectors of `rank`'s slice, sample by sample, the tables side by side.
    pub fn pool(&mut self, rank: usize, batch: &[OracleBags]) -> Vec<f32> {
        let num_samples = batch.first().map_or(0, |bags| bags.bags.len());
        let mut vectors = Vec::new();
        for sample in self.slice(rank, num_samples) {
            for (table, bags) in batch.iter().enumerate() {
                vectors.extend(self.pooled(rank, table, bags, sample));
            }
        }
        vectors
    }

    fn pooled(&mut self, rank: usize, table: usize, bags: &OracleBags, sample: usize) -> Vec<f32> {
        let bag = &bags.bags[sample];
        let mut sum: Option<Vec<f32>> = None;
        for (entry, &row) in bag.iter().enumerate() {
            let mut vector = match self.partition.classify(table, row) {
                Place::Frequent(_) => self.replicas[rank][table].row(row).weights.clone(),
                Place::Infrequent { owner, .. } => {
                    self.owned[owner.0][table].row(row).weights.clone()
                }
            };
            if let Some(weights) = &bags.weights {
                vector.iter_mut().for_each(|x| *x *= weights[sample][entry]);
            }
            sum = Some(match sum {
                None => vector,
                Some(sum) => sum.iter().zip(&vector).map(|(a, b)| a + b).collect(),
            });
        }
        let mean = self.specs[table].pooling == Pooling::Mean;
        let factor = if mean { 1.0 / bag.len() as f32 } else { 1.0 };
        match sum {
            None => vec![0.0; self.specs[table].dim],
            Some(sum) => sum.into_iter().map(|x| x * factor).collect(),
        }
    }

    /// The gradient of one row over `rank`'s slice: per block in the order of samples, then its
    /// blocks in the tree.
    fn row_gradient(
        &self,
        rank: usize,
        table: usize,
        row: u64,
        bags: &OracleBags,
        d_vectors: &[Vec<f32>],
    ) -> Vec<f32> {
        let block_len = sum_block_len(bags.bags.len(), self.num_blocks);
        let first_column = self.specs[..table].iter().map(|spec| spec.dim).sum::<usize>();
        let dim = self.specs[table].dim;
        let own_blocks = self.num_blocks / self.num_ranks();
        let mut blocks = vec![vec![0.0; dim]; own_blocks];
        for sample in self.slice(rank, bags.bags.len()) {
            let block = &mut blocks[sample / block_len - rank * own_blocks];
            for (entry, _) in bags.bags[sample].iter().enumerate().filter(|(_, id)| **id == row) {
                let factor = bags.factor(&self.specs[table], sample, entry);
                let gradient = &d_vectors[sample][first_column..first_column + dim];
                block.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g * factor);
            }
        }
        tree_sum(blocks)
    }

    /// Reduce: `rank`'s gradients of the rows it requested, in their order. Without deduplication:
    /// one per id.
    pub fn to_owners(&self, rank: usize, batch: &[OracleBags], d_vectors: &[Vec<f32>]) -> Vec<f32> {
        let mut sent = Vec::new();
        let mut seen = BTreeMap::new();
        for request in self.requests(rank, batch) {
            let Request { table, row, .. } = request;
            if self.deduplicate {
                sent.extend(self.row_gradient(rank, table, row, &batch[table], d_vectors));
                continue;
            }
            // The n-th request of a row is its n-th occurrence.
            let nth = seen.entry((table, row)).or_insert(0);
            sent.extend(self.occurrence(rank, table, row, *nth, &batch[table], d_vectors));
            *nth += 1;
        }
        sent
    }

    fn occurrence(
        &self,
        rank: usize,
        table: usize,
        row: u64,
        nth: usize,
        bags: &OracleBags,
        d_vectors: &[Vec<f32>],
    ) -> Vec<f32> {
        let first_column = self.specs[..table].iter().map(|spec| spec.dim).sum::<usize>();
        let samples = self.slice(rank, bags.bags.len());
        let ids = samples.flat_map(|sample| {
            bags.bags[sample].iter().enumerate().map(move |(entry, &id)| (sample, entry, id))
        });
        let (sample, entry, _) =
            ids.filter(|(_, _, id)| *id == row).nth(nth).expect("the row was requested so often");
        let factor = bags.factor(&self.specs[table], sample, entry);
        let gradient = &d_vectors[sample][first_column..][..self.specs[table].dim];
        gradient.iter().map(|g| 0.0 + g * factor).collect()
    }

    /// Reduce: `rank`'s block of frequent gradients: which rows occurred, padding to a multiple of
    /// 16, then table by table.
    pub fn frequent_block(
        &self,
        rank: usize,
        batch: &[OracleBags],
        d_vectors: &[Vec<f32>],
    ) -> Vec<f32> {
        let (mut touched, mut gradients) = (Vec::new(), Vec::new());
        for (table, bags) in batch.iter().enumerate() {
            let slice = self.slice(rank, bags.bags.len());
            let occur: BTreeSet<u64> = slice.flat_map(|sample| bags.bags[sample].clone()).collect();
            for slot in 0..self.partition.num_frequent(table) {
                let row = self.partition.row_of_frequent(table, slot);
                touched.push(if occur.contains(&row) { 1.0 } else { 0.0 });
                gradients.extend(self.row_gradient(rank, table, row, bags, d_vectors));
            }
        }
        touched.resize(touched.len().next_multiple_of(16), 0.0);
        [touched, gradients].concat()
    }

    /// The ordered all-reduce: the tree over ranks, element by element.
    pub fn all_reduce(&self, batch: &[OracleBags], d_vectors: &[Vec<f32>]) -> Vec<f32> {
        tree_sum(
            (0..self.num_ranks()).map(|rank| self.frequent_block(rank, batch, d_vectors)).collect(),
        )
    }

    /// What `owner` receives: the gradients of the rows that it sent, in that order.
    pub fn from_ranks(
        &self,
        owner: Owner,
        batch: &[OracleBags],
        d_vectors: &[Vec<f32>],
    ) -> Vec<f32> {
        let mut arrived = Vec::new();
        for rank in 0..self.num_ranks() {
            let sent = self.to_owners(rank, batch, d_vectors);
            let mut sent = &sent[..];
            for request in self.requests(rank, batch) {
                let (gradient, rest) = sent.split_at(self.specs[request.table].dim);
                if request.owner == owner {
                    arrived.extend_from_slice(gradient);
                }
                sent = rest;
            }
        }
        arrived
    }

    /// Update of `owner`'s rows: what came from each rank is added up in order, then ranks in the
    /// tree; one step per row.
    pub fn update_owned(
        &mut self,
        owner: Owner,
        batch: &[OracleBags],
        d_vectors: &[Vec<f32>],
        step: &Step,
    ) {
        let arrived = self.from_ranks(owner, batch, d_vectors);
        let mut arrived = &arrived[..];
        let mut sums: BTreeMap<(usize, u64), Vec<Vec<f32>>> = BTreeMap::new();
        for (rank, request) in self.received_requests(owner, batch) {
            let dim = self.specs[request.table].dim;
            let (gradient, rest) = arrived.split_at(dim);
            let parts = sums
                .entry((request.table, request.row))
                .or_insert_with(|| vec![vec![0.0; dim]; self.owned.len()]);
            parts[rank].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            arrived = rest;
        }
        for ((table, row), parts) in sums {
            self.owned[owner.0][table].step(row, &tree_sum(parts), &self.optimizer, step);
        }
    }

    /// Update of `rank`'s replica from the block that all ranks have added up.
    pub fn update_frequent(&mut self, rank: usize, block: &[f32], step: &Step) {
        let rows: Vec<u64> =
            (0..self.specs.len()).map(|table| self.partition.num_frequent(table)).collect();
        let touched = rows.iter().sum::<u64>() as usize;
        let (touched, mut gradients) = block.split_at(touched.next_multiple_of(16));
        let mut touched = touched.iter();
        for (table, &rows) in rows.iter().enumerate() {
            for slot in 0..rows {
                let (gradient, rest) = gradients.split_at(self.specs[table].dim);
                if touched.next().is_some_and(|&count| count > 0.0) {
                    let row = self.partition.row_of_frequent(table, slot);
                    self.replicas[rank][table].step(row, gradient, &self.optimizer, step);
                }
                gradients = rest;
            }
        }
    }

    /// Row `row` of table `table` as `rank` holds it, if it does: weights, then the optimiser's
    /// states.
    pub fn row(&mut self, rank: usize, table: usize, row: u64) -> Option<Vec<Vec<f32>>> {
        let table_of = match self.partition.classify(table, row) {
            Place::Frequent(_) => &mut self.replicas[rank][table],
            Place::Infrequent { owner, .. } if owner.0 == rank => &mut self.owned[rank][table],
            Place::Infrequent { .. } => return None,
        };
        let row = table_of.row(row).clone();
        Some(std::iter::once(row.weights).chain(row.states).collect())
    }
}
