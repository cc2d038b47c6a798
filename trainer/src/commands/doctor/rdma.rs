//! UCX, and NICs with RDMA: the library, ports, addresses, memory that may be locked, and the way
//! into a GPU's memory.

use super::system::{System, find_library};
use super::{Finding, topology};

const NICS: &str = "sys/class/infiniband";

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let nics = system.names(NICS);
    let mut findings = vec![library(system, &nics), ucx(system)];
    if nics.is_empty() {
        return findings;
    }
    findings.extend(device_files(system));
    findings.extend(nics.iter().flat_map(|nic| ports(system, nic)));
    findings.push(locked_memory(system));
    findings.extend(gpu_direct(system));
    findings
}

/// Never a fault: only what is asked for by name uses it.
fn ucx(system: &System) -> Finding {
    let use_of_it = "run.transport = \"ucx\"";
    match &system.ucx {
        Ok(version) => Finding::ok("UCX", format!("{version}, for {use_of_it}")),
        Err(reason) => Finding::ok("UCX", format!("none, but only {use_of_it} needs it: {reason}")),
    }
}

fn library(system: &System, nics: &[String]) -> Finding {
    match (find_library(system.root(), "libibverbs.so.1"), nics) {
        (_, []) => {
            Finding::ok("verbs", "no RDMA device: between machines, TCP carries what travels")
        }
        (Some(path), nics) => {
            let real = path.canonicalize().unwrap_or(path);
            Finding::ok(
                "verbs",
                format!("{} RDMA devices ({}), {}", nics.len(), nics.join(", "), real.display()),
            )
        }
        (None, nics) => Finding::warn(
            "verbs",
            format!("{} RDMA devices ({}), but no libibverbs.so.1", nics.len(), nics.join(", ")),
            "between machines, TCP carries what travels, and the NICs stand idle",
            "install rdma-core (Debian: libibverbs1 and ibverbs-providers), in the container, too",
        ),
    }
}

fn device_files(system: &System) -> Option<Finding> {
    let known = system.names("sys/class/infiniband_verbs");
    let missing = known
        .iter()
        .find(|name| name.starts_with("uverbs") && !system.has(format!("dev/infiniband/{name}")))?;
    Some(Finding::fail(
        "verbs files",
        format!("the kernel knows {missing}, but /dev/infiniband/{missing} is not here"),
        "the RDMA devices cannot be opened from this container",
        "start it with --device=/dev/infiniband (Kubernetes: the RDMA device plugin)",
    ))
}

fn ports(system: &System, nic: &str) -> Vec<Finding> {
    let numbers = system.names(format!("{NICS}/{nic}/ports"));
    numbers.iter().flat_map(|port| port_findings(system, nic, port)).collect()
}

fn port_findings(system: &System, nic: &str, port: &str) -> Vec<Finding> {
    let folder = format!("{NICS}/{nic}/ports/{port}");
    let read =
        |name: &str| system.text(format!("{folder}/{name}")).unwrap_or_else(|| "not known".into());
    let word =
        |text: String| text.split_once(": ").map_or(text.clone(), |(_, word)| word.to_owned());
    let (state, physical) = (word(read("state")), word(read("phys_state")));
    let (link, rate) = (read("link_layer"), read("rate"));
    let found = format!("{nic}/{port}: {state} ({physical}), {link}, {rate}");
    let mut findings = vec![match (state.as_str(), link.as_str()) {
        ("ACTIVE", _) => Finding::ok("RDMA port", found),
        ("INIT", "InfiniBand") => Finding::warn(
            "RDMA port",
            found,
            "the cable is fine, but no one has given the port an address: it is not used",
            "start a subnet manager (opensm) on one machine or on the switch",
        ),
        _ => Finding::warn(
            "RDMA port",
            found,
            "this port is not used; a job that counts on it loses its share of the bandwidth",
            "look at cable and switch port (ibstat, rdma link); ip link set DEV up for Ethernet",
        ),
    }];
    if state == "ACTIVE" && link == "Ethernet" {
        findings.push(roce_address(system, nic, port, &folder));
    }
    findings
}

/// The GID that a RoCE connection takes: version 2, and routable.
fn roce_address(system: &System, nic: &str, port: &str, folder: &str) -> Finding {
    let kinds = system.names(format!("{folder}/gid_attrs/types"));
    let gids: Vec<(String, String, String)> = kinds
        .into_iter()
        .filter_map(|index| {
            let kind = system.text(format!("{folder}/gid_attrs/types/{index}"))?;
            let gid = system.text(format!("{folder}/gids/{index}"))?;
            (!gid.split(':').all(|part| part == "0000")).then_some((index, kind, gid))
        })
        .collect();
    let usable = gids.iter().find(|(_, kind, gid)| kind == "RoCE v2" && !gid.starts_with("fe80"));
    let all: Vec<String> =
        gids.iter().map(|(index, kind, gid)| format!("{index} {kind} {gid}")).collect();
    match usable {
        Some((index, _, gid)) => Finding::ok(
            "RoCE address",
            format!("{nic}/{port}: GID {index}, {gid}, of {}", all.len()),
        ),
        None => Finding::warn(
            "RoCE address",
            format!("{nic}/{port}: no routable GID of RoCE v2 among: {}", all.join("; ")),
            "connections between machines cannot be made, or do not cross a router",
            "give the port's interface an IP address (ip addr add), and let the driver use RoCE v2",
        ),
    }
}

fn locked_memory(system: &System) -> Finding {
    const ENOUGH: u64 = 4 << 30;
    let limits = system.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit =
        line.and_then(|line| line.split_whitespace().next()).unwrap_or("not known").to_owned();
    match limit.parse::<u64>() {
        Ok(bytes) if bytes < ENOUGH => Finding::fail(
            "locked memory",
            format!("at most {}", crate::report::bytes(bytes)),
            "memory cannot be registered with the RDMA device: connections fail as they are made",
            "ulimit -l unlimited; containers: --ulimit memlock=-1; Slurm: \
             PropagateResourceLimitsExcept=MEMLOCK",
        ),
        Ok(bytes) => {
            Finding::ok("locked memory", format!("at most {}", crate::report::bytes(bytes)))
        }
        Err(_) => Finding::ok("locked memory", limit),
    }
}

/// Whether the NIC can read and write a GPU's memory.
fn gpu_direct(system: &System) -> Option<Finding> {
    if topology::gpus(system).is_empty() {
        return None;
    }
    let modules = system.text("proc/modules").unwrap_or_default();
    let loaded = |name: &str| modules.lines().any(|line| line.split(' ').next() == Some(name));
    let peermem = loaded("nvidia_peermem") || loaded("nv_peer_mem");
    let release = system.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let is_open = system
        .text("proc/driver/nvidia/version")
        .is_some_and(|text| text.contains("Open Kernel Module"));
    let dmabuf = is_open && kernel(&release) >= (5, 12);
    let copies = if loaded("gdrdrv") { ", gdrdrv" } else { "" };
    Some(match (dmabuf, peermem) {
        (true, true) => Finding::ok("GPUDirect", format!("dmabuf and nvidia_peermem{copies}")),
        (true, false) => Finding::ok("GPUDirect", format!("dmabuf{copies}")),
        (false, true) => Finding::ok("GPUDirect", format!("nvidia_peermem{copies}")),
        (false, false) => Finding::warn(
            "GPUDirect",
            format!("kernel {release}, no open NVIDIA kernel module (dmabuf), no nvidia_peermem"),
            "what leaves a GPU is copied to the host's memory first: lower bandwidth, higher \
             latency",
            "install the driver's open kernel modules (kernel 5.12 or newer), or: modprobe \
             nvidia_peermem",
        ),
    })
}

fn kernel(release: &str) -> (u32, u32) {
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
