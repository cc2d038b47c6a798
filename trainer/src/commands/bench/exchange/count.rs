//! Which rows the ranks ask each other for: the plan's places, counted over batches of the data.

use super::subject::{ByPair, Messages};
use super::{is_hierarchical, too_few_ranks};
use crate::config::{Config, DeduplicateChoice};
use crate::data::open_training;
use crate::error::{Error, Result};
use crate::iteration::share::{Share, copy_share};
use crate::plan;
use crate::plan::placement::Placement;
use crate::run::prepare::Prepared;
use headlong_embedding::hybrid::traffic::IdSource;
use headlong_embedding::hybrid::{Partition, Place};
use headlong_reader::order::Slice;
use headlong_reader::{Batch, Position, Reader as _};
use std::collections::HashSet;

#[derive(Debug, Clone)]
pub struct Counted {
    pub messages: Messages,
    /// Rows of each table that travel between ranks in a step, mean over batches.
    pub rows_of_table: Vec<f64>,
}

/// Counts over the first batches of the training data.
pub fn count(
    config: &Config,
    prepared: &Prepared,
    placement: &Placement,
    batches: usize,
    threads: usize,
) -> Result<Counted> {
    let split = placement.split.as_ref().ok_or_else(too_few_ranks)?;
    let ids = prepared.id_mapper(config)?;
    let mut reader =
        open_training(config, &prepared.train, ids, (&Position::default(), Slice::WHOLE), threads)?;
    let (ranks, tables) = (config.run.ranks, split.tables.len());
    let dims: Vec<usize> = split.tables.iter().map(|table| table.dim).collect();
    let merges = config.comm.deduplicate != DeduplicateChoice::Off;
    let (mut rows, mut elements, mut rows_of_table) = (Vec::new(), Vec::new(), vec![0.0; tables]);
    let mut batch = Batch::default();
    while rows.len() < batches {
        let has_batch = reader.next(&mut batch);
        if !has_batch.map_err(Error::failed("the training data cannot be read"))?
            || batch.position.epoch > 0
        {
            break;
        }
        let mut asked = Asked::new(ranks, &dims, merges);
        for rank in 0..ranks {
            let share = Share::new(rank, ranks, config.sum_blocks(), config.train.batch_size);
            let mut own = Batch::default();
            copy_share(&batch, share.in_step(batch.num_samples), &mut own);
            asked.add(&placement.partition, rank, &own);
        }
        rows.push(asked.rows);
        elements.push(asked.elements);
        rows_of_table.iter_mut().zip(asked.of_table).for_each(|(sum, count)| *sum += count as f64);
    }
    if rows.is_empty() {
        return Err(Error::Usage("the training data holds not one whole batch".to_owned()));
    }
    rows_of_table.iter_mut().for_each(|sum| *sum /= rows.len() as f64);
    // Of each frequent row also how often it was touched.
    let frequent: u64 =
        split.tables.iter().map(|table| table.frequent_rows * (table.dim as u64 + 1)).sum();
    let messages = Messages {
        ranks,
        rows,
        elements,
        reduced: (plan::dense_parameters(config) + frequent).get() as usize,
        ids_travel: split.variant.ids == IdSource::Exchange,
        hierarchical: is_hierarchical(split),
    };
    Ok(Counted { messages, rows_of_table })
}

/// What the ranks ask for in one batch.
struct Asked<'a> {
    dims: &'a [usize],
    /// A rank asks once for equal rows.
    merges: bool,
    rows: ByPair,
    elements: ByPair,
    /// Rows that travel, by table.
    of_table: Vec<usize>,
}

impl<'a> Asked<'a> {
    fn new(ranks: usize, dims: &'a [usize], merges: bool) -> Self {
        let zeros = || vec![vec![0; ranks]; ranks];
        Self { dims, merges, rows: zeros(), elements: zeros(), of_table: vec![0; dims.len()] }
    }

    fn add(&mut self, partition: &Partition, asker: usize, share: &Batch) {
        let mut seen = HashSet::new();
        for (table, bags) in share.sparse.iter().enumerate() {
            seen.clear();
            for &row in &bags.values {
                if self.merges && !seen.insert(row) {
                    continue;
                }
                let Place::Infrequent { owner, .. } = partition.classify(table, row) else {
                    continue;
                };
                self.rows[owner.0][asker] += 1;
                self.elements[owner.0][asker] += self.dims[table];
                self.of_table[table] += usize::from(owner.0 != asker);
            }
        }
    }
}
