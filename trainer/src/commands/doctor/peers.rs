//! What differs between the ranks of a job, and what the other ranks have found.
//!
//! Every rank looks at its own machine; the ranks then show each other what they have found, and
//! rank 0 prints it.

use super::system::System;
use super::{Finding, Status, interfaces};
use crate::error::{Error, Result};
use crate::report::output::say;
use headlong_comm::launcher_env::Launch;
use headlong_comm::readable::readable;
use headlong_comm::rendezvous::{self, Deadlines, JoinOptions};
use headlong_comm::{CommOptions, Communicator};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes in which a rank shows what it has found; what does not fit is left out.
const ROOM: usize = 32 << 10;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Statement {
    pub host: String,
    /// Facts that should be equal on all ranks, or on those of a machine.
    pub facts: BTreeMap<String, String>,
    /// Findings that are not OK: status, name, found, consequence, fix.
    pub findings: Vec<(Status, String, String, String, String)>,
}

/// Facts that all ranks should share: name, consequence where they do not, fix.
const EQUAL: [(&str, &str, &str); 6] = [
    (
        "program",
        "ranks that compute differently give weights that no one can reproduce",
        "install the same build of headlong everywhere",
    ),
    (
        "MTU to rank 0",
        "packets of the larger size are dropped in silence: small messages pass, large ones hang \
         until the deadline",
        "give the interfaces of all machines, and the switch, the same MTU (ip link set DEV mtu N)",
    ),
    (
        "NCCL",
        "the run ends when GPUs are joined: NCCL wants one version",
        "install one version everywhere",
    ),
    (
        "CUDA driver",
        "kernels may be compiled differently, and one rank be slower",
        "install one driver everywhere",
    ),
    (
        "processor",
        "every step waits for the slowest rank",
        "take equal machines, if the time matters",
    ),
    (
        "vectors",
        "dense layers run at another speed: every step waits for the slowest rank",
        "take equal machines",
    ),
];

/// Facts that ranks of one machine should share.
const EQUAL_ON_A_HOST: [(&str, &str, &str); 1] = [(
    "IPC namespace",
    "ranks of one machine cannot share NCCL's memory, and exchange over the network",
    "run them in one container, or with --ipc=host",
)];

pub(super) fn statement(system: &System, findings: &[Finding]) -> Statement {
    let host = system.text("proc/sys/kernel/hostname").unwrap_or_default();
    let found = |name: &str| {
        findings.iter().find(|finding| finding.name == name).map(|one| one.found.clone())
    };
    let interface = interfaces::interface_to_rank_0(system).and_then(|(_, interface)| interface);
    let mtu = interface.filter(|name| name != "lo").and_then(|name| interfaces::mtu(system, &name));
    let namespace = std::fs::read_link(system.root().join("proc/self/ns/ipc"));
    let model = found("processor").and_then(|text| Some(text.rsplit_once(", ")?.0.to_owned()));
    let facts = [
        ("program", program(system)),
        ("MTU to rank 0", mtu.map(|mtu| mtu.to_string())),
        (
            "NCCL",
            system.nccl.as_ref().ok().and_then(|text| text.split(',').next().map(str::to_owned)),
        ),
        ("CUDA driver", found("CUDA").filter(|text| text.starts_with("CUDA "))),
        ("processor", model),
        ("vectors", found("vectors")),
        ("IPC namespace", namespace.ok().map(|link| link.display().to_string())),
    ];
    let facts = facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
    let bad = findings.iter().filter(|finding| finding.status != Status::Ok);
    let show = |one: &Finding| {
        let Finding { name, status, found, consequence, fix } = one.clone();
        (status, name.to_owned(), found, consequence, fix)
    };
    Statement { host, facts: facts.collect(), findings: bad.map(show).collect() }
}

/// Version and checksum of the running program.
fn program(system: &System) -> Option<String> {
    let hash = xxhash_rust::xxh3::xxh3_64(&system.bytes("proc/self/exe")?);
    Some(format!("{} {hash:016x}", env!("CARGO_PKG_VERSION")))
}

/// Comes together with the other ranks, and learns what they say; by rank.
pub(super) fn gather(
    launch: Launch,
    own: &Statement,
    insecure: bool,
) -> Result<(usize, Vec<Statement>)> {
    let deadlines = Deadlines {
        rendezvous: Duration::from_secs(60),
        operation: Duration::from_secs(30),
        ..Deadlines::default()
    };
    let options = JoinOptions {
        deadlines,
        insecure,
        notice: Some(Arc::new(|text: &str| say(text))),
        ..JoinOptions::new(launch, [0; 32])
    };
    let transport = rendezvous::join(&options)
        .map_err(Error::communication("the ranks did not come together"))?;
    let communicator = Communicator::new(transport, CommOptions::default());
    let mut all = vec![0; ROOM * communicator.num_ranks()];
    let compared = communicator.all_gather(&encode(own), &mut all);
    compared.map_err(Error::communication("the ranks could not compare"))?;
    let rank = communicator.rank().0;
    // What was said is here, however they part.
    let _ = communicator.close();
    Ok((rank, all.chunks_exact(ROOM).map(decode).collect()))
}

/// The finding of a rank that has not met the others.
pub(super) fn apart(error: &Error) -> Finding {
    Finding::fail(
        "ranks",
        error.to_string(),
        "no job can begin, and nothing is known of the other ranks",
        "see what else has failed here; run the same command on all ranks at once",
    )
}

fn encode(statement: &Statement) -> Vec<u8> {
    let mut statement = statement.clone();
    loop {
        let mut text = serde_json::to_vec(&statement).unwrap_or_default();
        if text.len() <= ROOM || statement.findings.pop().is_none() {
            text.resize(ROOM, b' ');
            return text;
        }
    }
}

/// What another rank says, fit for this one's terminal.
fn decode(bytes: &[u8]) -> Statement {
    let Statement { host, facts, findings } = serde_json::from_slice(bytes).unwrap_or_default();
    let finding =
        |(status, name, found, consequence, fix): (Status, String, String, String, String)| {
            (status, readable(&name), readable(&found), readable(&consequence), readable(&fix))
        };
    let facts = facts.iter().map(|(name, fact)| (readable(name), readable(fact)));
    Statement {
        host: readable(&host),
        facts: facts.collect(),
        findings: findings.into_iter().map(finding).collect(),
    }
}

/// What all statements together say: what differs, and what other machines than that of rank `own`
/// have found.
pub(super) fn compare(own: usize, all: &[Statement]) -> Vec<Finding> {
    let hosts: BTreeMap<&str, Vec<usize>> =
        all.iter().enumerate().fold(BTreeMap::new(), |mut map, (rank, one)| {
            map.entry(one.host.as_str()).or_insert_with(Vec::new).push(rank);
            map
        });
    let everybody: Vec<usize> = (0..all.len()).collect();
    let names = hosts.iter().map(|(host, ranks)| format!("{host}: {}", list(ranks)));
    let mut findings = vec![Finding::ok("ranks", names.collect::<Vec<_>>().join("; "))];
    for (fact, consequence, fix) in EQUAL {
        findings.push(equal(all, &everybody, fact, [consequence, fix]));
    }
    for (fact, consequence, fix) in EQUAL_ON_A_HOST {
        let per_host = hosts.values().filter(|ranks| ranks.len() > 1);
        findings.extend(per_host.map(|ranks| equal(all, ranks, fact, [consequence, fix])));
    }
    let mut seen: Vec<(&str, &str, &str)> = Vec::new();
    for (rank, one) in
        all.iter().enumerate().filter(|(rank, one)| *rank != own && one.host != all[own].host)
    {
        for (status, name, found, consequence, fix) in &one.findings {
            // Ranks of one machine find the same.
            if !seen.contains(&(&one.host, name, found)) {
                seen.push((&one.host, name, found));
                let found = format!("rank {rank} on {}: {name}: {found}", one.host);
                findings.push(Finding {
                    status: *status,
                    ..Finding::warn("elsewhere", found, consequence, fix)
                });
            }
        }
    }
    findings
}

fn equal(
    all: &[Statement],
    ranks: &[usize],
    fact: &'static str,
    [consequence, fix]: [&str; 2],
) -> Finding {
    let mut values: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &rank in ranks {
        let value = all[rank].facts.get(fact).map_or("none", String::as_str);
        values.entry(value).or_default().push(rank);
    }
    let text: Vec<String> =
        values.iter().map(|(value, ranks)| format!("{value} ({})", list(ranks))).collect();
    // Which of the names it is: names of findings live as long as the program.
    match values.len() {
        0 | 1 => Finding::ok("equal", format!("{fact}: {}", text.join(", "))),
        _ => Finding::warn("unequal", format!("{fact}: {}", text.join(", ")), consequence, fix),
    }
}

/// `ranks 0-3, 6`.
fn list(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let show = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let text = runs.iter().map(show).collect::<Vec<_>>().join(", ");
    format!("{} {text}", if ranks.len() == 1 { "rank" } else { "ranks" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(host: &str, mtu: &str) -> Statement {
        let facts = [("MTU to rank 0", mtu), ("program", "0.1.0 ab"), ("IPC namespace", host)];
        let facts = facts.map(|(name, fact)| (name.to_owned(), fact.to_owned()));
        Statement { host: host.into(), facts: facts.into(), findings: Vec::new() }
    }

    #[test]
    fn what_differs_is_named_with_its_ranks() {
        let all = ["9000", "9000", "1500", "9000"].map(|mtu| rank("a", mtu));
        let findings = compare(0, &all);
        let unequal: Vec<&Finding> =
            findings.iter().filter(|one| one.status != Status::Ok).collect();
        assert_eq!(unequal.len(), 1, "{unequal:?}");
        assert_eq!(unequal[0].found, "MTU to rank 0: 1500 (rank 2), 9000 (ranks 0-1, 3)");
    }

    #[test]
    fn other_machines_findings_are_told_once_with_their_machine() {
        let bad = (
            Status::Fail,
            "locked memory".to_owned(),
            "8 MiB".to_owned(),
            "so".to_owned(),
            "do".to_owned(),
        );
        let mut all = vec![rank("a", "1"), rank("b", "1"), rank("b", "1")];
        for one in &mut all {
            one.findings.push(bad.clone());
        }
        let findings = compare(0, &all);
        let told: Vec<&str> = findings
            .iter()
            .filter(|one| one.status == Status::Fail)
            .map(|one| one.found.as_str())
            .collect();
        assert_eq!(told, ["rank 1 on b: locked memory: 8 MiB"]);
        assert!(
            findings.iter().all(|one| one.name != "unequal"),
            "namespaces of two machines may differ"
        );
    }

    #[test]
    fn what_does_not_fit_the_room_is_left_out() {
        let mut long = rank("a", "1");
        let text = "x".repeat(10_000);
        long.findings = vec![(Status::Warn, text.clone(), text, String::new(), String::new()); 3];
        let back = decode(&encode(&long));
        assert_eq!((back.host.as_str(), back.findings.len()), ("a", 1));
        assert!(back.findings[0].1.ends_with("... (10000 characters)"), "{:?}", back.findings);
        let odd = Statement { host: "a\u{1b}[2J".into(), ..Statement::default() };
        assert_eq!(decode(&encode(&odd)).host, "a\\u{1b}[2J");
    }
}
