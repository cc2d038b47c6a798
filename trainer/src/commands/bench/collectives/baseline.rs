//! A run against an earlier one.

use super::operation::Place;
use super::table::{Report, Row};
use crate::error::{Error, Result};
use crate::system::input::read_text;
use serde::Deserialize;
use std::path::Path;

/// What an earlier run has written with `--json` or `--json-file`.
#[derive(Debug, Deserialize)]
pub struct Baseline {
    rows: Vec<Earlier>,
}

#[derive(Debug, Deserialize)]
struct Earlier {
    backend: String,
    op: String,
    dtype: String,
    procs: usize,
    bytes: usize,
    out_of_place: Option<Times>,
    in_place: Option<Times>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Times {
    p50_us: Option<f64>,
    time_us: f64,
}

pub fn read(file: &Path) -> Result<Baseline> {
    let text = read_text(file).map_err(Error::io("read", file))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::config(
            "--baseline",
            format!("{} is no document of `headlong bench … --json`: {error}", file.display()),
        )
    })
}

impl Earlier {
    fn is(&self, row: &Row) -> bool {
        let names = (self.backend.as_str(), self.op.as_str(), self.dtype.as_str());
        names == (row.backend.name(), row.operation.name(), row.dtype.name())
            && (self.procs, self.bytes) == (row.ranks, row.bytes)
    }

    fn at(&self, place: Place) -> Option<Times> {
        if place == Place::Out { self.out_of_place } else { self.in_place }
    }
}

impl Baseline {
    /// Compares medians of latency, or the column `time` where there are too few samples for a
    /// median.
    ///
    /// # Errors
    /// [`Error::SlowerThanBaseline`] names everything that is more than `most_percent` slower;
    /// wrong usage where the two runs have nothing in common.
    pub fn compare(&self, report: &Report, most_percent: f64) -> Result<()> {
        let (mut compared, mut slower) = (0, Vec::new());
        for (row, (place, figures)) in
            report.rows.iter().flat_map(|row| row.places.iter().map(move |at| (row, at)))
        {
            let earlier = self.rows.iter().find(|earlier| earlier.is(row));
            let Some(earlier) = earlier.and_then(|earlier| earlier.at(*place)) else { continue };
            let (name, before, now) = match (earlier.p50_us, figures.latency.percentile(50.0)) {
                (Some(before), Some(now)) => ("p50", before, now),
                _ => ("time", earlier.time_us, figures.time_us),
            };
            compared += 1;
            if now > before * (1.0 + most_percent / 100.0) {
                slower.push(format!(
                    "{} of {} bytes over {} ({}): {name} {now:.2} us, was {before:.2} ({:+.1} %)",
                    row.operation.name(),
                    row.bytes,
                    row.backend.name(),
                    place.name(),
                    (now / before - 1.0) * 100.0
                ));
            }
        }
        match (compared, slower.is_empty()) {
            (0, _) => Err(Error::Usage(
                "--baseline: it has no row of this operation, backend, type, size and number of \
                 ranks"
                    .to_owned(),
            )),
            (_, true) => Ok(()),
            (_, false) => Err(Error::SlowerThanBaseline(format!(
                "{} of {compared} medians by more than {most_percent} %: {}",
                slower.len(),
                slower.join("; ")
            ))),
        }
    }
}
