//! Memory that processes of one machine share.

use super::Finding;
use super::system::System;
use crate::report::bytes;

/// NCCL takes some 10 MB for each pair of ranks, and Docker gives 64 MiB.
const ENOUGH: u64 = 1 << 30;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![shm(system), memfd(system), namespaces(system)]
}

fn shm(system: &System) -> Finding {
    let mounts = system.text("proc/mounts").unwrap_or_default();
    let mount = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/dev/shm"));
    let fix = "docker run --shm-size=1g (or --ipc=host); Kubernetes: an emptyDir of medium Memory \
               at /dev/shm";
    let Some(mount) = mount else {
        return Finding::warn(
            "/dev/shm",
            "is not mounted",
            "NCCL cannot share memory between the ranks of a machine, and fails or takes the \
             network",
            fix,
        );
    };
    let options = mount.split(' ').nth(3).unwrap_or_default();
    let size = options.split(',').find_map(|option| option.strip_prefix("size="));
    match size.map(parse_size) {
        Some(Some(size)) if size < ENOUGH => Finding::warn(
            "/dev/shm",
            bytes(size),
            "NCCL's memory between ranks may not fit: a bus error, or `no space left on device`",
            fix,
        ),
        Some(Some(size)) => Finding::ok("/dev/shm", bytes(size)),
        _ => Finding::ok("/dev/shm", "half of the memory (the system's default)"),
    }
}

/// `65536k` as bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()? * unit)
}

fn memfd(system: &System) -> Finding {
    match &system.memfd {
        Ok(()) => Finding::ok("memfd", "memory can be shared without a file"),
        Err(reason) => Finding::warn(
            "memfd",
            format!("memory without a file is refused: {reason}"),
            "ranks of this machine cannot share memory (--transport shm) and exchange over TCP",
            "let the container's seccomp profile allow memfd_create",
        ),
    }
}

fn namespaces(system: &System) -> Finding {
    let id = |kind: &str| {
        let link = std::fs::read_link(system.root().join(format!("proc/self/ns/{kind}")));
        link.map_or("not known".to_owned(), |link| link.display().to_string())
    };
    Finding::ok("namespaces", ["ipc", "pid", "net"].map(id).join(" "))
}
