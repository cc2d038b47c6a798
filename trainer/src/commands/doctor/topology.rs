//! How far GPUs and RDMA NICs are from each other inside the machine, from sysfs.

use super::Finding;
use super::system::System;
use std::path::{Path, PathBuf};

const PCI: &str = "sys/bus/pci/devices";

/// How two devices reach each other, nearest first; the words are those of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

impl Distance {
    fn name(self) -> &'static str {
        match self {
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::Phb => "PHB",
            Distance::Node => "NODE",
            Distance::Sys => "SYS",
        }
    }
}

/// A device, by its name, and where it lies in the tree of bridges.
struct Device {
    name: String,
    path: PathBuf,
    numa: Option<i64>,
}

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let (gpus, nics) = (gpu_devices(system), nics(system));
    let mut findings: Vec<Finding> =
        gpus.iter().filter(|_| !nics.is_empty()).map(|gpu| distances(gpu, &nics)).collect();
    if !gpus.is_empty() {
        findings.push(access_control(system));
    }
    findings
}

pub(super) fn gpus(system: &System) -> Vec<String> {
    let is_gpu = |address: &String| {
        let read = |name: &str| system.text(format!("{PCI}/{address}/{name}")).unwrap_or_default();
        read("vendor") == "0x10de" && read("class").starts_with("0x03")
    };
    system.names(PCI).into_iter().filter(is_gpu).collect()
}

fn device(system: &System, name: &str, folder: &str) -> Option<Device> {
    let numa = system.number(format!("{folder}/numa_node")).filter(|node| *node >= 0);
    Some(Device { name: name.to_owned(), path: system.real(folder)?, numa })
}

fn gpu_devices(system: &System) -> Vec<Device> {
    gpus(system)
        .iter()
        .filter_map(|address| device(system, address, &format!("{PCI}/{address}")))
        .collect()
}

/// RDMA NICs that are devices of the bus: software ones are not.
fn nics(system: &System) -> Vec<Device> {
    let names = system.names("sys/class/infiniband");
    let nic = |name: &String| device(system, name, &format!("sys/class/infiniband/{name}/device"));
    names.iter().filter_map(nic).collect()
}

fn distance(a: &Device, b: &Device) -> Distance {
    let components = |path: &Path| -> Vec<String> {
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let (a_path, b_path) = (components(&a.path), components(&b.path));
    let common = a_path.iter().zip(&b_path).take_while(|(a, b)| a == b).count();
    let shared = &a_path[..common];
    // A bridge is `0000:3a:00.0`; the root of a processor's PCIe is `pci0000:3a`.
    let bridges = shared.iter().filter(|part| part.matches(':').count() == 2).count();
    let below = (a_path.len() - common).max(b_path.len() - common);
    let same_root = shared.iter().any(|part| part.starts_with("pci"));
    match (same_root, bridges) {
        // A bridge in common that is no root port belongs to a switch.
        (true, 2..) if below <= 2 => Distance::Pix,
        (true, 1..) => Distance::Pxb,
        (true, 0) => Distance::Phb,
        (false, _) if a.numa.is_some() && a.numa == b.numa => Distance::Node,
        (false, _) => Distance::Sys,
    }
}

fn distances(gpu: &Device, nics: &[Device]) -> Finding {
    let mut all: Vec<(Distance, &str)> =
        nics.iter().map(|nic| (distance(gpu, nic), nic.name.as_str())).collect();
    all.sort();
    let list: Vec<String> =
        all.iter().map(|(distance, nic)| format!("{nic} {}", distance.name())).collect();
    let found = format!("{}: {}", gpu.name, list.join(", "));
    match all[0].0 {
        Distance::Pix | Distance::Pxb | Distance::Phb => Finding::ok("GPU to NIC", found),
        Distance::Node | Distance::Sys => Finding::warn(
            "GPU to NIC",
            found,
            "what this GPU sends crosses the processors before it reaches a NIC: lower bandwidth, \
             higher latency",
            "if a nearer NIC exists, show it to the container; else place NICs and GPUs on one \
             PCIe switch",
        ),
    }
}

/// Bridges that send what one device writes to another through the processor.
fn access_control(system: &System) -> Finding {
    let bridges: Vec<String> = system
        .names(PCI)
        .into_iter()
        .filter(|address| {
            let class = system.text(format!("{PCI}/{address}/class"));
            class.is_some_and(|class| class.starts_with("0x0604"))
        })
        .collect();
    let spaces =
        bridges.iter().map(|address| (address, system.bytes(format!("{PCI}/{address}/config"))));
    let readable: Vec<(&String, Vec<u8>)> = spaces
        .filter_map(|(address, space)| Some((address, space.filter(|space| space.len() > 256)?)))
        .collect();
    let redirecting: Vec<&str> = readable
        .iter()
        .filter(|(_, space)| redirects(space))
        .map(|(address, _)| address.as_str())
        .collect();
    match (readable.is_empty(), redirecting.first()) {
        (true, _) => Finding::ok("ACS", "not readable (as root it is)"),
        (false, None) => Finding::ok("ACS", format!("{} bridges, none redirects", readable.len())),
        (false, Some(first)) => Finding::warn(
            "ACS",
            format!("{} of {} bridges redirect, {first} first", redirecting.len(), readable.len()),
            "GPUs and NICs reach each other through the processor: slower, and in virtual \
             machines it may hang",
            "turn ACS off in the firmware, or for each bridge as root: setpci -s BRIDGE \
             ECAP_ACS+0x6.w=0000",
        ),
    }
}

/// Whether the extended capability 0x000d (Access Control Services) asks for redirection of
/// requests or completions.
fn redirects(space: &[u8]) -> bool {
    const REDIRECT: u16 = 0x0004 | 0x0008;
    let word = |at: usize| space.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let mut at = 0x100;
    // There is room for so many capabilities; a list that goes in circles ends.
    for _ in 0..480 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { return false };
        if id == 0x000d {
            return word(at + 6).is_some_and(|control| control & REDIRECT != 0);
        }
        at = usize::from(next >> 4);
        if at < 0x100 {
            return false;
        }
    }
    false
}
