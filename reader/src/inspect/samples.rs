//! What is in data of any format but Criteo's text, whose lines are looked at as they stand.

use std::sync::Mutex;

use headlong_device::pool::Pool;

use super::distinct::DistinctCounter;
use super::report::{DenseSummary, FileSummary, InspectReport, Numbers, SparseSummary};
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::error::Result;
use crate::formats::{Format, Source};
use crate::hashing::MISSING_ID;
use crate::io::DataFile;
use crate::lock;
use crate::samples::{DenseValues, IdBags, Samples};

/// Reads all of `source`, which are `files` of `format`, once and describes it. Distinct values are
/// counted exactly up to `exact_distinct` of a column, beyond that estimated; threads change
/// nothing but speed.
pub fn inspect_samples(
    source: &dyn Source,
    files: &[DataFile],
    format: Format,
    exact_distinct: usize,
    pool: &Pool,
    progress: &mut dyn FnMut(u64),
) -> Result<InspectReport> {
    let summaries: Result<_> =
        files.iter().map(|file| FileSummary::of_format(file, format)).collect();
    let (files, schema) = (summaries?, source.schema());
    let values = DistinctCounter::new(exact_distinct);
    let column = |_| {
        Mutex::new(Column {
            counted: 0,
            missing: 0,
            negative: 0,
            values: values.clone(),
            sum: 0.0,
            range: None,
        })
    };
    let (width, sparse) = (schema.dense.len(), schema.sparse.len());
    let columns: Vec<Mutex<Column>> = (0..width + sparse).map(column).collect();
    let (mut rows, mut clicks) = (0, 0);
    let mut stream = source.read_all(&DiskOptions::default())?;
    let mut samples = Samples::default();
    while stream.next(&mut samples)? {
        pool.run(columns.len(), &|index| {
            let mut column = lock(&columns[index]);
            match index.checked_sub(width) {
                None => column.add_numbers(&samples, index, width),
                Some(sparse) => column.add_ids(&samples.sparse[sparse]),
            }
        });
        rows += samples.num_samples as u64;
        clicks += samples.num_clicks();
        progress(rows);
    }
    let clicks = schema.labelled.then_some(clicks);
    let dense = schema.dense.iter().zip(&columns);
    let sparse = schema.sparse.iter().zip(&columns[width..]);
    Ok(InspectReport {
        files,
        rows,
        bad_rows: 0,
        first_bad_rows: Vec::new(),
        clicks,
        click_rate: clicks.filter(|_| rows > 0).map(|clicks| clicks as f64 / rows as f64),
        dense: dense.map(|(name, column)| lock(column).dense(name, rows)).collect(),
        sparse: sparse.map(|(column, found)| lock(found).sparse(&column.name, rows)).collect(),
    })
}

struct Column {
    /// The numbers that sum and range are of, or the ids.
    counted: u64,
    missing: u64,
    negative: u64,
    values: DistinctCounter,
    sum: f64,
    range: Option<(f64, f64)>,
}

impl Column {
    fn add_numbers(&mut self, samples: &Samples, column: usize, width: usize) {
        match &samples.dense {
            DenseValues::Integers(values) => {
                for &value in values.iter().skip(column).step_by(width) {
                    match value {
                        MISSING_DENSE => self.missing += 1,
                        value => self.add(f64::from(value)),
                    }
                }
            }
            DenseValues::Numbers(values) => {
                values
                    .iter()
                    .skip(column)
                    .step_by(width)
                    .for_each(|&value| self.add(f64::from(value)));
                // What was missing has come as a number, and is among the values.
                self.missing += samples.dense_missing[column];
            }
        }
    }

    fn add(&mut self, number: f64) {
        self.negative += u64::from(number < 0.0);
        self.counted += 1;
        self.sum += number;
        let (least, largest) = self.range.unwrap_or((number, number));
        self.range = Some((least.min(number), largest.max(number)));
        self.values.see(number.to_bits());
    }

    fn add_ids(&mut self, bags: &IdBags) {
        for &id in &bags.ids {
            match id {
                MISSING_ID => self.missing += 1,
                id => {
                    self.counted += 1;
                    self.values.see(id);
                }
            }
        }
    }

    fn dense(&self, name: &str, rows: u64) -> DenseSummary {
        let (counts, all) = (self.values.counts(), self.values.distinct().1);
        let mut counts: Vec<(f64, u64)> =
            counts.filter(|_| all).map(|(bits, count)| (f64::from_bits(bits), count)).collect();
        counts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let numbers = Numbers {
            rows,
            counted: self.counted,
            missing: self.missing,
            negative: self.negative,
            range: self.range,
            sum: self.sum,
        };
        DenseSummary::new(name.to_owned(), &numbers, &counts, self.values.distinct())
    }

    fn sparse(&self, name: &str, rows: u64) -> SparseSummary {
        // Shares are of the values of lists, where there are more than rows.
        let all = (self.counted + self.missing).max(rows);
        let shown = |id: u64| id.to_string();
        let summary = SparseSummary::new(name.to_owned(), self.missing, &self.values, all, shown);
        SparseSummary { ids_per_sample: self.counted as f64 / rows.max(1) as f64, ..summary }
    }
}
