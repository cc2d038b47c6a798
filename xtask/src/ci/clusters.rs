//! The step `clusters`: the command lines of `docs/multi-node.md` under the launchers themselves,
//! on two machines that are namespaces, with a cable between them that delays packets and loses
//! some. The work is done by the scripts in `clusters/`; whatever they start ends with the process
//! namespace in which they run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::{Outcome, Workshop};
use crate::process;

/// A new namespace of each kind that the scripts change, gone with its first process.
const NAMESPACES: [&str; 8] =
    ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Most of it is waiting, but a busy machine may take several times as long as an idle one.
const LIMIT: Duration = Duration::from_secs(600);

/// A part of the scripts, and the programs without which it is skipped.
struct Part {
    name: &'static str,
    programs: &'static [&'static str],
    packages: &'static str,
}

const PARTS: [Part; 2] = [
    Part {
        name: "launchers",
        programs: &["mpirun", "torchrun"],
        packages: "openmpi-bin python3-torch",
    },
    Part {
        name: "slurm",
        programs: &["slurmctld", "slurmd", "srun", "sbatch", "munged"],
        packages: "slurmctld slurmd slurm-client munge",
    },
];

pub fn clusters(workshop: &Workshop) -> Result<Outcome> {
    if let Err(reason) = namespaces() {
        return Ok(Outcome::Skipped(format!(
            "two machines, for slurm, too, are namespaces: {reason}"
        )));
    }
    let (runs, lacks): (Vec<&Part>, Vec<&Part>) =
        PARTS.iter().partition(|part| part.programs.iter().all(|program| is_installed(program)));
    let mut outcome = match &runs[..] {
        [] => Outcome::Passed(String::new()),
        runs => run(workshop, runs)?,
    };
    for Part { name, programs, packages } in lacks {
        let programs = programs.join(", ");
        outcome = outcome.and(Outcome::Skipped(format!(
            "{name} over two namespaces: not all of {programs} are there: apt-get install \
             {packages}"
        )));
    }
    Ok(outcome)
}

fn run(workshop: &Workshop, parts: &[&Part]) -> Result<Outcome> {
    let program = process::built(&workshop.root, &workshop.target(), "headlong")?;
    let out = workshop.scratch().join("clusters");
    process::fresh_folder(&out)?;
    let script = workshop.root.join("xtask/src/ci/clusters/all.sh");
    let paths = [&script, &program, &out].map(|path| path.display().to_string());
    let mut arguments = NAMESPACES.to_vec();
    arguments.extend(paths.iter().map(String::as_str));
    arguments.extend(parts.iter().map(|part| part.name));
    let command = process::command("unshare", &arguments, &out);
    let finished = process::read_within(LIMIT, command, |_| true)?;
    let passed = finished.lines.iter().filter(|line| line.starts_with("ok ")).count();
    Ok(match finished.success {
        true => Outcome::Passed(format!("{passed} jobs of two machines")),
        false => Outcome::Failed(format!("logs are in {}", out.display())),
    })
}

/// Whether two machines can be made here, or else why not.
fn namespaces() -> Result<(), String> {
    let made = process::command("unshare", &[&NAMESPACES[..], &["true"]].concat(), Path::new("/"))
        .output()
        .map_err(|error| format!("`unshare`: {error}"))?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
    }
    if !is_installed("ip") {
        return Err("`ip` is absent: apt-get install iproute2".to_owned());
    }
    // Without it, no cable.
    let tun = "/dev/net/tun";
    fs::OpenOptions::new().read(true).write(true).open(tun).map_err(|e| format!("{tun}: {e}"))?;
    Ok(())
}

/// Daemons are not on everybody's path.
fn is_installed(program: &str) -> bool {
    let script = format!("PATH=$PATH:/usr/sbin:/sbin; command -v {program}");
    process::answers("sh", &["-c", &script])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require::Required;

    /// The scripts run what the page says: each block that they ask for is there.
    #[test]
    fn the_page_has_the_blocks_that_are_run() {
        let page = fs::read_to_string(crate::workspace_root().join("docs/multi-node.md")).unwrap();
        for line in [
            "torchrun --nnodes 2 --node_rank 0 ",
            "torchrun --nnodes 1:2 ",
            "# two machines",
            "mpirun -n 8 --host node-a:4,node-b:4 ",
            "# several machines",
            "srun --cpus-per-task=8 --kill-on-bad-exit=1 headlong train",
            "--checkpoint-dir $HOME/run --resume",
        ] {
            assert!(page.contains(line), "{line}");
        }
    }

    #[test]
    fn what_is_missing_can_be_required() {
        let required = |name| Required::parse(name).unwrap();
        let reason = "two machines, for slurm, too, are namespaces: it is forbidden";
        assert_eq!(required("slurm").forbids(reason), Some("slurm"));
        assert_eq!(required("namespaces").forbids(reason), Some("namespaces"));
        let reason = "launchers over two namespaces: not all of mpirun are there";
        assert_eq!(required("slurm").forbids(reason), None);
        assert_eq!(required("namespaces").forbids(reason), Some("namespaces"));
    }
}
