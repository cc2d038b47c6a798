//! Variables that decide who a process is, or what NCCL does: leftovers, contradictions, typing
//! errors.

use super::Finding;
use super::system::System;
use headlong_comm::launcher_env::{self, Launch, Place, Remark};
use headlong_comm::rendezvous::Keys;
use headlong_comm::rendezvous::trust::Trust;

pub(super) const OURS: [&str; 15] = [
    "HEADLONG_CUDA_LIBS",
    "HEADLONG_JOB",
    "HEADLONG_LAUNCHER_PID",
    "HEADLONG_LAUNCHER_PIPE",
    "HEADLONG_LOCAL_RANK",
    "HEADLONG_LOCAL_SIZE",
    "HEADLONG_MASTER_ADDR",
    "HEADLONG_MASTER_PORT",
    "HEADLONG_RANK",
    "HEADLONG_RESTART_COUNT",
    "HEADLONG_SECRET",
    "HEADLONG_SECRET_FILE",
    "HEADLONG_SNAPSHOT_DIR",
    "HEADLONG_VERBS_LIBS",
    "HEADLONG_WORLD_SIZE",
];

/// Letters that may be wrong in a name that was meant to be one of these.
const MOST_CHANGES: usize = 4;

/// Variables of NCCL that take something away: name, value that does (empty: any), what follows.
const NCCL: [(&str, &str, &str); 9] = [
    ("NCCL_IB_DISABLE", "1", "NCCL does not use the RDMA devices, and takes TCP"),
    (
        "NCCL_P2P_DISABLE",
        "1",
        "GPUs of a machine do not reach each other's memory, and go through the host",
    ),
    (
        "NCCL_SHM_DISABLE",
        "1",
        "GPUs of a machine that cannot reach each other go through the network",
    ),
    ("NCCL_NET", "Socket", "NCCL does not use the RDMA devices, and takes TCP"),
    (
        "NCCL_ALGO",
        "",
        "one algorithm is forced, also where NCCL knows a faster one; comm.nccl.* may have no \
         effect",
    ),
    ("NCCL_PROTO", "", "one protocol is forced, also where NCCL knows a faster one"),
    ("NCCL_SOCKET_IFNAME", "lo", "ranks of other machines cannot be reached"),
    (
        "NCCL_LAUNCH_MODE",
        "GROUP",
        "several communicators of a process may wait for each other for ever",
    ),
    ("NCCL_BLOCKING_WAIT", "", "is PyTorch's and means nothing here"),
];

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let mut findings = unknown(system);
    findings.extend(nccl(system));
    findings.push(launcher(system));
    findings
}

/// A variable with our name that no one reads.
fn unknown(system: &System) -> Vec<Finding> {
    let ours = |name: &&String| name.starts_with("HEADLONG_") && !OURS.contains(&name.as_str());
    let finding = |name: &String| {
        let changes = |known: &str| strsim::damerau_levenshtein(known, name);
        let near = OURS.into_iter().filter(|known| changes(known) <= MOST_CHANGES);
        let or = near.min_by_key(|known| changes(known));
        Finding::warn(
            "environment",
            format!("{name} is set, but nothing reads it"),
            "it has no effect; a setting may be missing where it was meant",
            &format!("unset {name}{}", or.map_or(String::new(), |or| format!(", or write {or}"))),
        )
    };
    system.environment.keys().filter(ours).map(finding).collect()
}

fn nccl(system: &System) -> Vec<Finding> {
    let is_set = |name: &str, value: &str| {
        system.variable(name).is_some_and(|set| value.is_empty() || set.eq_ignore_ascii_case(value))
    };
    let set = NCCL.iter().filter(|(name, value, _)| is_set(name, value));
    set.map(|(name, _, consequence)| {
        let value = system.variable(name).unwrap_or_default();
        Finding::warn(
            "environment",
            format!("{name}={value}"),
            consequence,
            &format!("unset {name}"),
        )
    })
    .collect()
}

fn launcher(system: &System) -> Finding {
    match launcher_env::parse(&system.environment) {
        Ok(Place::Single { remarks }) => {
            let fix = "start it with the launcher that was meant, as srun, or unset its variables";
            place("none: this process is the only one", &remarks, fix)
        }
        Ok(Place::Rank(launch)) => {
            let name = launch.launcher.name();
            let found = format!("{name}: rank {} of {}", launch.rank.0, launch.world_size);
            let fix =
                "start from a clean shell, or unset the variables of the launcher that is not used";
            place(&found, &launch.remarks, fix)
        }
        Err(error) => Finding::fail(
            "launcher",
            error.to_string(),
            "no command that trains starts in this shell",
            "correct the variable that is named, or unset the launcher's variables",
        ),
    }
}

/// What keeps others out of the job that this process is a rank of.
pub(super) fn secret(launch: &Launch, insecure: bool) -> Finding {
    match Keys::of(launch, insecure) {
        Err(error) => Finding::fail(
            "secret",
            error.to_string(),
            "no command that joins ranks starts",
            "see docs/multi-node.md, the secret",
        ),
        Ok(Keys { trust: Trust::Secret, .. }) => Finding::ok("secret", "what ranks need is there"),
        Ok(Keys { trust: Trust::SameUser, .. }) => {
            Finding::ok("secret", "none: processes of this user on this machine can be ranks")
        }
        Ok(Keys { trust: Trust::Anybody, .. }) => Finding::warn(
            "secret",
            "none",
            "anyone who can reach rank 0 can join the job, read its rows and change its weights",
            "see docs/multi-node.md, the secret",
        ),
    }
}

/// A process's place, with what there is to say of it; a warning where it may be another than was
/// meant.
fn place(found: &str, remarks: &[Remark], fix: &str) -> Finding {
    let texts = remarks.iter().map(|remark| remark.text.as_str());
    let found = [found].into_iter().chain(texts).collect::<Vec<_>>().join("; ");
    match remarks.iter().any(|remark| remark.is_suspect) {
        false => Finding::ok("launcher", found),
        true => Finding::warn(
            "launcher",
            found,
            "the process may take another place than was meant",
            fix,
        ),
    }
}
