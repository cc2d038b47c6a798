//! Whether data of a binary format, Parquet or delimited text can be read to its end, and what is
//! in it.

use std::fmt;

use serde::Serialize;

use super::{Anomaly, of_negative, of_one_label, what_is_strange};
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::error::Result;
use crate::formats::{Source, no_samples};
use crate::hashing::MISSING_ID;
use crate::samples::{DenseKind, DenseValues, Samples};

/// What some data holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SamplesReport {
    /// Samples.
    pub samples: u64,
    /// Samples that are labelled 1; none where there are no labels.
    pub clicks: Option<u64>,
    /// Each dense column.
    pub dense: Vec<DenseRange>,
    /// Each categorical column.
    pub sparse: Vec<IdRange>,
    /// What is strange about whole columns; not an error.
    pub anomalies: Vec<Anomaly>,
}

/// The numbers of a dense column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseRange {
    /// The column.
    pub name: String,
    /// The least number, where there is one.
    pub least: Option<f64>,
    /// The largest.
    pub largest: Option<f64>,
    /// Samples without a number.
    pub missing: u64,
    /// Numbers below 0.
    pub negative: u64,
}

/// The ids of a categorical column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdRange {
    /// The column.
    pub name: String,
    /// Ids, missing ones not among them.
    pub ids: u64,
    /// The least id, where there is one.
    pub least: Option<u64>,
    /// The largest.
    pub largest: Option<u64>,
    /// Missing ids.
    pub missing: u64,
}

/// Reads all of `source`; checksums are compared on the way.
///
/// # Errors
/// What is wrong with the data, by file and record.
pub fn verify_samples(source: &dyn Source, progress: &mut dyn FnMut(u64)) -> Result<SamplesReport> {
    let schema = source.schema();
    let dense = |name: &String| DenseRange {
        name: name.clone(),
        least: None,
        largest: None,
        missing: 0,
        negative: 0,
    };
    let sparse = schema.sparse.iter().map(|column| IdRange {
        name: column.name.clone(),
        ids: 0,
        least: None,
        largest: None,
        missing: 0,
    });
    let mut report = SamplesReport {
        samples: 0,
        clicks: schema.labelled.then_some(0),
        dense: schema.dense.iter().map(dense).collect(),
        sparse: sparse.collect(),
        anomalies: Vec::new(),
    };
    let mut stream = source.read_all(&DiskOptions::default())?;
    let mut samples = Samples::default();
    while stream.next(&mut samples)? {
        report.add(&samples);
        progress(report.samples);
    }
    if report.samples == 0 {
        return Err(no_samples(&source.about().names, &source.skip_report()));
    }
    report.anomalies = report.find_anomalies(schema.dense_kind);
    Ok(report)
}

impl SamplesReport {
    fn add(&mut self, samples: &Samples) {
        self.samples += samples.num_samples as u64;
        if let Some(clicks) = &mut self.clicks {
            *clicks += samples.num_clicks();
        }
        let width = self.dense.len().max(1);
        match &samples.dense {
            DenseValues::Integers(values) => {
                for (index, &value) in values.iter().enumerate() {
                    let number = (value != MISSING_DENSE).then_some(f64::from(value));
                    self.dense[index % width].add(number);
                }
            }
            DenseValues::Numbers(values) => {
                for (index, &value) in values.iter().enumerate() {
                    self.dense[index % width].add(Some(f64::from(value)));
                }
                for (column, missing) in self.dense.iter_mut().zip(&samples.dense_missing) {
                    column.missing += missing;
                }
            }
        }
        for (range, bags) in self.sparse.iter_mut().zip(&samples.sparse) {
            bags.ids.iter().for_each(|&id| range.add(id));
        }
    }

    /// Columns that teach a model nothing, or not what they seem to.
    fn find_anomalies(&self, kind: DenseKind) -> Vec<Anomaly> {
        let mut found = Vec::new();
        let mut add =
            |column: &str, message| found.push(Anomaly { column: column.to_owned(), message });
        if let Some(clicks) = self.clicks.filter(|clicks| *clicks == 0 || *clicks == self.samples) {
            add("label", of_one_label(clicks > 0, self.samples));
        }
        for DenseRange { name, least, largest, missing, negative } in &self.dense {
            let of_values = what_is_strange(*missing, least == largest, self.samples);
            of_values.into_iter().for_each(|message| add(name, message));
            if let (DenseKind::Integers, Some(least), true) = (kind, least, *negative > 0) {
                add(name, of_negative(*negative, *least));
            }
        }
        for IdRange { name, ids, least, largest, missing } in &self.sparse {
            let missing = if *ids == 0 { self.samples } else { *missing };
            let of_values = what_is_strange(missing, least == largest, self.samples);
            of_values.into_iter().for_each(|message| add(name, message));
        }
        found
    }

    /// Share of samples labelled 1.
    pub fn click_rate(&self) -> Option<f64> {
        self.clicks.map(|clicks| clicks as f64 / self.samples.max(1) as f64)
    }
}

impl DenseRange {
    fn add(&mut self, number: Option<f64>) {
        let Some(number) = number else {
            self.missing += 1;
            return;
        };
        self.negative += u64::from(number < 0.0);
        self.least = Some(self.least.map_or(number, |least| least.min(number)));
        self.largest = Some(self.largest.map_or(number, |largest| largest.max(number)));
    }
}

impl IdRange {
    fn add(&mut self, id: u64) {
        if id == MISSING_ID {
            self.missing += 1;
            return;
        }
        self.ids += 1;
        self.least = Some(self.least.map_or(id, |least| least.min(id)));
        self.largest = Some(self.largest.map_or(id, |largest| largest.max(id)));
    }
}

impl fmt::Display for SamplesReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.click_rate() {
            Some(rate) => writeln!(formatter, "{} samples, click rate {rate:.6}", self.samples)?,
            None => writeln!(formatter, "{} samples without labels", self.samples)?,
        }
        for DenseRange { name, least, largest, missing, .. } in &self.dense {
            let range =
                least.zip(*largest).map_or("no number".to_owned(), |(a, b)| format!("{a} to {b}"));
            writeln!(formatter, "{name:<12} {range}, {missing} missing")?;
        }
        for IdRange { name, ids, least, largest, missing } in &self.sparse {
            let range =
                least.zip(*largest).map_or("no id".to_owned(), |(a, b)| format!("ids {a} to {b}"));
            let mean = *ids as f64 / self.samples.max(1) as f64;
            writeln!(formatter, "{name:<12} {range}, {mean:.2} a sample, {missing} missing")?;
        }
        for Anomaly { column, message } in &self.anomalies {
            writeln!(formatter, "note: column {column}: {message}")?;
        }
        Ok(())
    }
}
