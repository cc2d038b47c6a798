//! What was measured on this cluster: which way is the fastest for an operation of so many bytes.
//!
//! `headlong bench tune` writes the file, `comm.tuning` names it. It is JSON, and holds nothing but
//! measurements:
//!
//! ```
//! let text = r#"{
//!   "format": 1,
//!   "measurements": [
//!     { "operation": "all_reduce", "backend": "shm", "algorithm": "direct",
//!       "nodes": 1, "ranks": 4, "points": [[1024, 4.0], [1048576, 900.0]] },
//!     { "operation": "all_reduce", "backend": "shm", "algorithm": "two_steps",
//!       "nodes": 1, "ranks": 4, "points": [[1024, 8.0], [1048576, 400.0]] }
//!   ]
//! }"#;
//! let tuning = headlong_comm::tuning::Tuning::read(text)?;
//! let fastest = tuning.fastest("all_reduce", 2048, 1, 4).expect("it was measured");
//! assert_eq!((fastest.backend.as_str(), fastest.algorithm.as_str()), ("shm", "direct"));
//! # Ok::<_, headlong_comm::CommError>(())
//! ```
//!
//! | key | is |
//! |---|---|
//! | `operation` | as [`Collective::name`](crate::Collective::name) says |
//! | `backend` | `local`, `shm`, `tcp`, `verbs`, `ucx`, `nccl`, `peer`, or two joined by `+` (inside the node and between nodes) |
//! | `device` | the name of the CUDA device, between devices: what was measured on another one does not count |
//! | `algorithm` | `direct`, `two_steps`, `hierarchical`; of all-to-alls `flat`, `hierarchical`; else `direct` |
//! | `nodes`, `ranks` | of the job that was measured, all ranks together |
//! | `points` | pairs of bytes (the operation's size as `headlong bench` counts it) and microseconds (p50), by rising bytes |
//!
//! Between two points, times follow a straight line over logarithms; beyond the ends, the nearest
//! point decides. What was not measured at this number of nodes is not guessed. Of the measured
//! numbers of ranks the nearest counts, the smaller of two equally near.

use crate::error::{CommError, Result};
use serde::{Deserialize, Serialize};

/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;

/// A file of measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// [`FORMAT`].
    pub format: u32,
    /// What was measured, and how, for a reader.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// One for each operation, backend, algorithm and shape of job.
    pub measurements: Vec<Measurement>,
}

/// One operation, done one way, over many sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Measurement {
    pub operation: String,
    pub backend: String,
    /// The device whose memory was exchanged; none: the host's memory, or any device's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub algorithm: String,
    pub nodes: usize,
    pub ranks: usize,
    /// Bytes and microseconds, by rising bytes.
    pub points: Vec<(u64, f64)>,
}

impl Tuning {
    /// Without measurements.
    pub fn new(about: impl Into<String>) -> Self {
        Self { format: FORMAT, about: about.into(), measurements: Vec::new() }
    }

    /// Reads what [`Tuning::write`] has written.
    ///
    /// # Errors
    /// [`CommError::Setting`] for text that is not such a file, with the place.
    pub fn read(text: &str) -> Result<Self> {
        let wrong = |reason: String| CommError::Setting { setting: "comm.tuning".into(), reason };
        let tuning: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if tuning.format != FORMAT {
            return Err(wrong(format!(
                "format {}, expected {FORMAT}: measure again",
                tuning.format
            )));
        }
        for (number, measurement) in tuning.measurements.iter().enumerate() {
            measurement.check().map_err(|what| wrong(format!("measurement {number}: {what}")))?;
        }
        Ok(tuning)
    }

    /// As JSON.
    pub fn write(&self) -> String {
        serde_json::to_string_pretty(self).expect("measurements are plain data, written to memory")
    }

    /// The measurements that speak of this operation in a job of this shape.
    fn about(
        &self,
        operation: &str,
        nodes: usize,
        ranks: usize,
    ) -> impl Iterator<Item = &Measurement> {
        let fitting = |measurement: &&Measurement| {
            measurement.operation == operation && measurement.nodes == nodes
        };
        let all = self.measurements.iter();
        let nearest = all.clone().filter(fitting).map(|known| known.ranks);
        let nearest = nearest.min_by_key(|&known| (known.abs_diff(ranks), known));
        let operation = operation.to_owned();
        all.filter(move |known| {
            known.operation == operation && known.nodes == nodes && Some(known.ranks) == nearest
        })
    }

    /// The fastest way for an operation of `bytes`. None: it was not measured for so many nodes.
    pub fn fastest(
        &self,
        operation: &str,
        bytes: u64,
        nodes: usize,
        ranks: usize,
    ) -> Option<&Measurement> {
        let known = self.about(operation, nodes, ranks);
        known.min_by(|one, other| one.micros(bytes).total_cmp(&other.micros(bytes)))
    }

    /// The fastest algorithms of one backend: each from so many bytes on, up to the next. Empty:
    /// nothing was measured.
    pub fn algorithms(
        &self,
        operation: &str,
        backend: &str,
        nodes: usize,
        ranks: usize,
    ) -> Vec<(u64, String)> {
        let known: Vec<&Measurement> =
            self.about(operation, nodes, ranks).filter(|known| known.backend == backend).collect();
        let mut sizes: Vec<u64> =
            known.iter().flat_map(|known| known.points.iter().map(|(bytes, _)| *bytes)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut steps: Vec<(u64, String)> = Vec::new();
        for bytes in sizes {
            let fastest =
                known.iter().min_by(|one, other| one.micros(bytes).total_cmp(&other.micros(bytes)));
            let Some(fastest) = fastest else { continue };
            if steps.last().is_none_or(|(_, last)| *last != fastest.algorithm) {
                steps.push((if steps.is_empty() { 0 } else { bytes }, fastest.algorithm.clone()));
            }
        }
        steps
    }
}

impl Measurement {
    fn check(&self) -> std::result::Result<(), String> {
        let is_rising = self.points.windows(2).all(|two| two[0].0 < two[1].0);
        match () {
            () if self.points.is_empty() => Err("no points".to_owned()),
            () if !is_rising => Err("points are not by rising bytes".to_owned()),
            () if self.points.iter().any(|(_, micros)| !(micros.is_finite() && *micros > 0.0)) => {
                Err("a time that is not above 0".to_owned())
            }
            () if self.nodes == 0 || self.ranks < self.nodes => {
                Err(format!("{} ranks on {} nodes", self.ranks, self.nodes))
            }
            () => Ok(()),
        }
    }

    /// Microseconds for `bytes`.
    pub fn micros(&self, bytes: u64) -> f64 {
        let above = self.points.partition_point(|(known, _)| *known < bytes);
        let (Some(before), Some(after)) = (above.checked_sub(1), self.points.get(above)) else {
            let nearest = if above == 0 { self.points.first() } else { self.points.last() };
            return nearest.map_or(f64::INFINITY, |(_, micros)| *micros);
        };
        let before = self.points[before];
        let logarithm = |bytes: u64| (bytes.max(1) as f64).ln();
        let share =
            (logarithm(bytes) - logarithm(before.0)) / (logarithm(after.0) - logarithm(before.0));
        (before.1.ln() + share * (after.1.ln() - before.1.ln())).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(
        backend: &str,
        algorithm: &str,
        shape: (usize, usize),
        points: &[(u64, f64)],
    ) -> Measurement {
        Measurement {
            operation: "all_reduce".into(),
            backend: backend.into(),
            device: None,
            algorithm: algorithm.into(),
            nodes: shape.0,
            ranks: shape.1,
            points: points.to_vec(),
        }
    }

    fn tuning() -> Tuning {
        let measurements = vec![
            measurement("shm", "direct", (1, 4), &[(1 << 10, 4.0), (1 << 20, 900.0)]),
            measurement(
                "shm",
                "two_steps",
                (1, 4),
                &[(1 << 10, 8.0), (1 << 15, 16.0), (1 << 20, 400.0)],
            ),
            measurement("tcp", "direct", (1, 4), &[(1 << 10, 60.0), (1 << 20, 300.0)]),
            measurement("tcp", "hierarchical", (2, 4), &[(1, 60.0)]),
        ];
        Tuning { measurements, ..Tuning::new("a test") }
    }

    #[test]
    fn the_fastest_way_by_size_and_by_backend() {
        let tuning = tuning();
        let fastest = |bytes, nodes, ranks| {
            let known = tuning.fastest("all_reduce", bytes, nodes, ranks);
            known.map(|known| (known.backend.as_str(), known.algorithm.as_str()))
        };
        assert_eq!(fastest(10, 1, 4), Some(("shm", "direct")));
        assert_eq!(fastest(1 << 15, 1, 4), Some(("shm", "two_steps")));
        assert_eq!(fastest(1 << 30, 1, 9), Some(("tcp", "direct")), "the nearest number of ranks");
        assert_eq!(fastest(1 << 30, 2, 4), Some(("tcp", "hierarchical")));
        assert_eq!(fastest(1 << 30, 3, 4), None, "no guess for other numbers of nodes");
        let steps = tuning.algorithms("all_reduce", "shm", 1, 2);
        assert_eq!(steps, [(0, "direct".to_owned()), (1 << 15, "two_steps".to_owned())]);
        assert_eq!(tuning.algorithms("all_to_all", "shm", 1, 2), []);
    }

    #[test]
    fn times_between_points_lie_on_a_line_over_logarithms() {
        let known = measurement("shm", "direct", (1, 2), &[(100, 1.0), (10_000, 100.0)]);
        assert!((known.micros(1000) - 10.0).abs() < 1e-9);
        assert_eq!((known.micros(1), known.micros(100), known.micros(1 << 40)), (1.0, 1.0, 100.0));
    }

    #[test]
    fn what_is_written_is_read_and_what_makes_no_sense_is_refused_with_its_place() {
        assert_eq!(Tuning::read(&tuning().write()), Ok(tuning()));
        let refused = |change: &dyn Fn(&mut Tuning)| {
            let mut tuning = tuning();
            change(&mut tuning);
            Tuning::read(&tuning.write()).expect_err("it makes no sense").to_string()
        };
        assert!(refused(&|tuning| tuning.format = 2).contains("format 2, expected 1"));
        assert!(
            refused(&|tuning| tuning.measurements[1].points.clear())
                .contains("measurement 1: no points")
        );
        assert!(
            refused(&|tuning| tuning.measurements[1].points.swap(0, 1)).contains("rising bytes")
        );
        assert!(
            refused(&|tuning| tuning.measurements[0].points[0].1 = 0.0).contains("not above 0")
        );
        assert!(refused(&|tuning| tuning.measurements[0].nodes = 5).contains("4 ranks on 5 nodes"));
        assert!(Tuning::read("{").is_err_and(|error| error.to_string().contains("line 1")));
    }
}
