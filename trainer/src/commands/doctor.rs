//! `headlong doctor`: what this machine has, what is missing, what follows from it and what to do
//! about it.
//!
//! Facts come from `/proc` and `/sys`; CUDA's libraries, NCCL and `nvidia-smi` are asked, but no
//! device is taken and nothing is changed. As one of several ranks it also says what differs
//! between them (`peers`).

mod accelerator;
mod checks;
mod environment;
mod gpu;
mod host;
mod interfaces;
mod memory;
mod peers;
mod rdma;
mod system;
#[cfg(test)]
mod tests;
mod topology;

use crate::error::{Error, Result};
use crate::report::output::{self, JsonOutput};
use clap::Args;
use headlong_comm::launcher_env::{self, Place};
use serde::{Deserialize, Serialize};
use std::path::Path;
use system::System;

/// Arguments of `headlong doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// As one of several ranks: as for `train`
    #[arg(long)]
    pub insecure: bool,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// How a finding is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    Ok,
    /// It works, but slower or less safely than it could.
    Warn,
    /// It will not work.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub status: Status,
    pub found: String,
    /// What follows from it; empty where nothing does.
    pub consequence: String,
    /// What to do about it; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            found: found.into(),
            consequence: String::new(),
            fix: String::new(),
        }
    }

    fn warn(name: &'static str, found: impl Into<String>, consequence: &str, fix: &str) -> Self {
        Self {
            status: Status::Warn,
            consequence: consequence.to_owned(),
            fix: fix.to_owned(),
            ..Self::ok(name, found)
        }
    }

    fn fail(name: &'static str, found: impl Into<String>, consequence: &str, fix: &str) -> Self {
        Self { status: Status::Fail, ..Self::warn(name, found, consequence, fix) }
    }
}

/// Prints every finding; as one of several ranks, rank 0 prints those of all. Ranks that do not
/// come together print their own.
pub fn run(arguments: &DoctorArguments) -> Result<()> {
    let system = System::this();
    let mut findings = checks::all(&system, Path::new("."));
    let mut is_rank_0 = true;
    // A launcher's variables that cannot be used are a finding already.
    if let Ok(Place::Rank(launch)) = launcher_env::parse(&system.environment) {
        is_rank_0 = launch.rank.0 == 0;
        let secret = environment::secret(&launch, arguments.insecure);
        let can_join = secret.status != Status::Fail;
        findings.push(secret);
        if can_join {
            let statement = peers::statement(&system, &findings);
            match peers::gather(launch, &statement, arguments.insecure) {
                Ok((rank, _)) if rank != 0 => return Ok(()),
                Ok((rank, all)) => findings.extend(peers::compare(rank, &all)),
                Err(error) => findings.push(peers::apart(&error)),
            }
        }
    }
    // The others may have the same file.
    let json = if is_rank_0 { arguments.json.clone() } else { JsonOutput::default() };
    report(&json, &findings)
}

fn report(json: &JsonOutput, findings: &[Finding]) -> Result<()> {
    let failures = findings.iter().filter(|finding| finding.status == Status::Fail).count();
    let document = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": failures == 0,
        "checks": findings,
    });
    output::answer(json, &to_text(findings), &document)?;
    match failures {
        0 => Ok(()),
        n => Err(Error::Failed {
            context: format!("{n} of {} checks failed", findings.len()),
            source: "see FAIL above".into(),
        }),
    }
}

fn to_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let status = match finding.status {
            Status::Ok => "OK  ",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        };
        text.push_str(&format!("{status}  {:<14} {}\n", finding.name, finding.found));
        for (label, line) in [("so", &finding.consequence), ("fix", &finding.fix)] {
            if !line.is_empty() {
                text.push_str(&format!("{:21}{label}: {line}\n", ""));
            }
        }
    }
    text
}
