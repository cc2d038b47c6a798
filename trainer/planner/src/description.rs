//! A cluster as a user describes it: nodes, devices, links, disks. TOML, unknown keys refused; some
//! are built in.

use crate::error::{Error, Result};
use crate::workload::Precision;
use headlong_embedding::hybrid::cost::{Costs, LatencyTable, LinkCosts};
use headlong_embedding::hybrid::traffic::{AllReduce, Cluster};
use serde::{Deserialize, Serialize};

/// Built-in descriptions: name and text. Comments in the text say where each number comes from.
pub const PRESETS: [(&str, &str); 7] = [
    ("laptop", include_str!("../../../configs/clusters/laptop.toml")),
    ("h200x1", include_str!("../../../configs/clusters/h200x1.toml")),
    ("dgx-a100", include_str!("../../../configs/clusters/dgx-a100.toml")),
    ("dgx-h100", include_str!("../../../configs/clusters/dgx-h100.toml")),
    ("dgx-h200", include_str!("../../../configs/clusters/dgx-h200.toml")),
    ("gb200-nvl72", include_str!("../../../configs/clusters/gb200-nvl72.toml")),
    ("gb300-nvl72", include_str!("../../../configs/clusters/gb300-nvl72.toml")),
];

/// Bytes of a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// Nodes, their devices and what joins them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDescription {
    /// What it is called in answers.
    pub name: String,
    pub nodes: usize,
    /// Devices of a node; a rank trains on each.
    pub devices_per_node: usize,
    pub device: DeviceDescription,
    /// Links between devices of a node.
    pub inside: LinkDescription,
    /// Links between nodes, of one device.
    pub between: LinkDescription,
    /// A node besides its devices.
    pub host: HostDescription,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Processors of a node: ranks share all its cores, and its memory is theirs.
    Cpu,
    /// A device with memory of its own.
    Gpu,
}

/// One device; of a `cpu` node all its cores together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDescription {
    pub kind: DeviceKind,
    pub memory_gib: f64,
    /// Peak of matrix products by element type, TFLOP/s.
    pub matrix_tflops: MatrixPeaks,
    /// Part of the peak that large products reach, 0 to 1.
    pub matrix_share: f64,
    /// Width of a layer at which a product reaches half of that; 0: width does not matter.
    #[serde(default)]
    pub half_width: f64,
    /// Peak of the memory, GB/s.
    pub memory_gb_per_s: f64,
    /// Part of it that gathers and passes over activations reach, 0 to 1.
    pub memory_share: f64,
    /// What an operation costs besides its work, microseconds.
    pub kernel_us: f64,
    /// What the host takes to enqueue an operation that is in no graph, microseconds.
    pub launch_us: f64,
    /// What a row costs to find besides its bytes, microseconds.
    pub row_us: f64,
    /// What a lookup costs to sort and merge besides its bytes, microseconds.
    pub route_us: f64,
    /// Between host and device, GB/s.
    pub host_gb_per_s: f64,
}

/// Peaks of matrix products, TFLOP/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixPeaks {
    pub f32: f64,
    pub tf32: f64,
    /// In f16, summed in f32.
    pub f16: f64,
    /// In bf16, summed in f32.
    pub bf16: f64,
}

/// One kind of link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDescription {
    /// What a device sends in an all-to-all, GB/s.
    pub gb_per_s: f64,
    /// An all-to-all of nothing, microseconds.
    pub latency_us: f64,
    /// What a device sends in an all-reduce (twice the buffer, less its own part), GB/s.
    pub all_reduce_gb_per_s: f64,
    /// An all-reduce of nothing, microseconds.
    pub all_reduce_latency_us: f64,
    /// What one more message costs a device, microseconds.
    pub message_us: f64,
    /// Measured all-to-alls in place of the line above: (bytes that a rank sends, microseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_to_all: Option<LatencyTable>,
    /// Measured all-reduces: (bytes that a rank sends, microseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<LatencyTable>,
}

/// A node besides its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDescription {
    pub memory_gib: f64,
    /// What it reads of training data from its disks, GB/s.
    pub disk_gb_per_s: f64,
}

impl LinkDescription {
    fn costs(&self) -> LinkCosts {
        let line = |latency_us, gb_per_s: f64| LatencyTable::line(latency_us, gb_per_s * 1e3);
        LinkCosts {
            all_to_all: self
                .all_to_all
                .clone()
                .unwrap_or_else(|| line(self.latency_us, self.gb_per_s)),
            all_reduce: self
                .all_reduce
                .clone()
                .unwrap_or_else(|| line(self.all_reduce_latency_us, self.all_reduce_gb_per_s)),
            message_us: self.message_us,
        }
    }

    /// The same link with `factor` times the bandwidth.
    pub fn scaled(&self, factor: f64) -> Self {
        let scaled = |table: &LatencyTable| {
            // Of each time, what a message of the first size takes is latency and stays.
            let latency = table.points()[0].1;
            let points = table.points().iter();
            LatencyTable::new(
                points.map(|&(bytes, us)| (bytes, latency + (us - latency) / factor)).collect(),
            )
        };
        Self {
            gb_per_s: self.gb_per_s * factor,
            all_reduce_gb_per_s: self.all_reduce_gb_per_s * factor,
            all_to_all: self.all_to_all.as_ref().and_then(|table| scaled(table).ok()),
            all_reduce: self.all_reduce.as_ref().and_then(|table| scaled(table).ok()),
            ..self.clone()
        }
    }
}

/// Nodes, and devices in all, that a plan goes through.
const MOST_NODES: usize = 100_000;
const MOST_DEVICES: usize = 1_000_000;

impl ClusterDescription {
    pub fn built_in(name: &str) -> Option<Self> {
        let (_, text) = PRESETS.iter().find(|(preset, _)| *preset == name)?;
        Some(Self::parse(text, name).expect("built-in descriptions are right"))
    }

    /// The description `text`; `place` is what errors call it.
    ///
    /// # Errors
    /// [`Error::Description`], which names `place`, line and key.
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        let found: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].lines().count().max(1));
            let line = line.map_or(String::new(), |line| format!(", line {line}"));
            Error::Description(format!("{place}{line}: {}", error.message()))
        })?;
        found.check(place)?;
        Ok(found)
    }

    /// Refuses sizes that a plan cannot go through, or that are nothing.
    ///
    /// # Errors
    /// [`Error::Description`] naming `place` and the key.
    pub fn check_size(&self, place: &str) -> Result<()> {
        for (key, found, most) in [
            ("nodes", self.nodes, MOST_NODES),
            ("devices_per_node", self.devices_per_node, MOST_DEVICES),
            (
                "nodes times devices_per_node",
                self.nodes.saturating_mul(self.devices_per_node),
                MOST_DEVICES,
            ),
        ] {
            if !(1..=most).contains(&found) {
                return Err(Error::Description(format!(
                    "{place}: `{key}`: expected 1 to {most}, found {found}"
                )));
            }
        }
        Ok(())
    }

    fn check(&self, place: &str) -> Result<()> {
        self.check_size(place)?;
        let device = &self.device;
        let peaks = device.matrix_tflops;
        let positive = [
            ("device.memory_gib", device.memory_gib),
            ("device.matrix_tflops.f32", peaks.f32),
            ("device.matrix_tflops.tf32", peaks.tf32),
            ("device.matrix_tflops.f16", peaks.f16),
            ("device.matrix_tflops.bf16", peaks.bf16),
            ("device.matrix_share", device.matrix_share),
            ("device.memory_gb_per_s", device.memory_gb_per_s),
            ("device.memory_share", device.memory_share),
            ("device.host_gb_per_s", device.host_gb_per_s),
            ("inside.gb_per_s", self.inside.gb_per_s),
            ("inside.all_reduce_gb_per_s", self.inside.all_reduce_gb_per_s),
            ("between.gb_per_s", self.between.gb_per_s),
            ("between.all_reduce_gb_per_s", self.between.all_reduce_gb_per_s),
            ("host.memory_gib", self.host.memory_gib),
            ("host.disk_gb_per_s", self.host.disk_gb_per_s),
        ];
        let not_negative = [
            ("device.half_width", device.half_width),
            ("device.kernel_us", device.kernel_us),
            ("device.launch_us", device.launch_us),
            ("device.row_us", device.row_us),
            ("device.route_us", device.route_us),
            ("inside.latency_us", self.inside.latency_us),
            ("inside.all_reduce_latency_us", self.inside.all_reduce_latency_us),
            ("inside.message_us", self.inside.message_us),
            ("between.latency_us", self.between.latency_us),
            ("between.all_reduce_latency_us", self.between.all_reduce_latency_us),
            ("between.message_us", self.between.message_us),
        ];
        let refuse = |key: &str, expected: &str, found: f64| {
            Err(Error::Description(format!("{place}: `{key}`: expected {expected}, found {found}")))
        };
        if let Some((key, found)) =
            positive.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0))
        {
            return refuse(key, "a number above 0", found);
        }
        match not_negative.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((key, found)) => refuse(key, "a number not below 0", found),
            None => Ok(()),
        }
    }

    /// Ranks: one a device.
    pub fn num_devices(&self) -> usize {
        self.nodes * self.devices_per_node
    }

    /// Nodes and ranks, as traffic is counted.
    pub fn shape(&self) -> Cluster {
        Cluster::even(self.nodes, self.devices_per_node)
    }

    /// Bytes of memory that a rank can take for its model.
    pub fn memory_bytes(&self) -> u64 {
        let of_device = (self.device.memory_gib * GIB) as u64;
        match self.device.kind {
            DeviceKind::Gpu => of_device,
            DeviceKind::Cpu => of_device / self.devices_per_node as u64,
        }
    }

    /// FLOP in a microsecond that large products of one rank reach.
    pub fn flop_per_us(&self, precision: Precision) -> f64 {
        let peaks = self.device.matrix_tflops;
        let peak = match precision {
            Precision::F32 => peaks.f32,
            Precision::Tf32 => peaks.tf32,
            Precision::F16 => peaks.f16,
            Precision::Bf16 => peaks.bf16,
        };
        peak * 1e6 * self.device.matrix_share / self.ranks_of_a_device()
    }

    /// Bytes in a microsecond between one rank and its memory.
    pub fn memory_bytes_per_us(&self) -> f64 {
        self.device.memory_gb_per_s * 1e3 * self.device.memory_share / self.ranks_of_a_device()
    }

    /// Ranks that share what computes.
    fn ranks_of_a_device(&self) -> f64 {
        if self.device.kind == DeviceKind::Cpu { self.devices_per_node as f64 } else { 1.0 }
    }

    pub fn costs(&self) -> Costs {
        Costs {
            intra: self.inside.costs(),
            inter: self.between.costs(),
            memory_bytes_per_us: self.memory_bytes_per_us(),
            row_us: self.device.row_us,
            route_us: self.device.route_us,
            direct_bytes: 0.0,
            all_reduce: AllReduce::Hierarchical,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_what_its_name_says() {
        for (name, _) in PRESETS {
            let found = ClusterDescription::built_in(name).unwrap();
            assert_eq!(found.name, name);
            let again = toml::to_string(&found).unwrap();
            assert_eq!(ClusterDescription::parse(&again, "again").unwrap(), found);
        }
    }

    #[test]
    fn mistakes_are_named_with_place_and_key() {
        let text = PRESETS[2].1;
        for (from, to, word) in [
            ("memory_gib = 80.0", "memory_gb = 80.0", "memory_gb"),
            ("nodes = 1\n", "nodes = 0\n", "`nodes`: expected 1 to 100000, found 0"),
            ("nodes = 1\n", "nodes = 1000000000000\n", "found 1000000000000"),
            ("matrix_share = ", "matrix_share = -", "device.matrix_share"),
            ("latency_us = 8.0", "latency_us = nan", "inside.latency_us"),
        ] {
            let error =
                ClusterDescription::parse(&text.replacen(from, to, 1), "here.toml").unwrap_err();
            let message = error.to_string();
            assert!(message.contains("here.toml") && message.contains(word), "{message}");
        }
    }

    #[test]
    fn ranks_of_a_processor_share_it() {
        let mut laptop = ClusterDescription::built_in("laptop").unwrap();
        let (alone, memory) = (laptop.flop_per_us(Precision::F32), laptop.memory_bytes());
        laptop.devices_per_node = 4;
        assert_eq!(laptop.flop_per_us(Precision::F32), alone / 4.0);
        assert_eq!(laptop.memory_bytes(), memory / 4);
        let a100 = ClusterDescription::built_in("dgx-a100").unwrap();
        assert_eq!(a100.memory_bytes(), 80 << 30);
    }

    #[test]
    fn a_faster_link_keeps_its_latency() {
        let mut link = ClusterDescription::built_in("dgx-a100").unwrap().inside;
        let slow = link.costs().all_to_all.us(1e9);
        assert!((link.scaled(2.0).costs().all_to_all.us(1e9) / slow - 0.5).abs() < 0.01);
        link.all_to_all = Some(LatencyTable::new(vec![(1e3, 10.0), (1e6, 110.0)]).unwrap());
        let scaled = link.scaled(2.0).all_to_all.unwrap();
        assert_eq!(scaled.points(), [(1e3, 10.0), (1e6, 60.0)]);
    }
}
