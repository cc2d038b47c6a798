//! Ranks as processes joined over TCP: started here, or by a launcher whose variables say who this process is.

use super::arguments::CollectiveArguments;
use super::measure::Operation;
use super::{Answer, failed, on_one_rank};
use crate::error::{Error, Result};
use crate::output;
use headlong_comm::launcher_env::{self, Launch};
use headlong_comm::rendezvous::{self, JoinOptions};
use headlong_comm::{CommError, Communicator, Rank};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Time for all processes to find each other.
const RENDEZVOUS: Duration = Duration::from_secs(30);

/// Measures in a job of processes: the one that a launcher has started this process for, or one of its own. None: another
/// process has the answer.
///
/// # Errors
/// The job's first error; a process that cannot be started.
pub fn measure_job(operations: &[Operation], arguments: &CollectiveArguments) -> Result<Option<Answer>> {
    match launcher_env::read().map_err(failed)? {
        Some(launch) => as_rank(operations, arguments, launch),
        None if arguments.worker => {
            Err(Error::Usage("--worker is for processes that `headlong bench` has started".to_owned()))
        }
        None => over_processes(arguments.ranks).map(Some),
    }
}

/// Measures as one rank of a job. Rank 0 has the answer, or prints it for the process that has started the job.
fn as_rank(
    operations: &[Operation],
    arguments: &CollectiveArguments,
    launch: Launch,
) -> Result<Option<Answer>> {
    let communicator = join(arguments, launch).map_err(failed)?;
    let answer = on_one_rank(&communicator, operations, arguments).map_err(failed)?;
    match (communicator.rank(), arguments.worker) {
        (Rank(0), false) => Ok(Some(answer)),
        (Rank(0), true) => output::print(&serde_json::json!(answer).to_string()).map(|()| None),
        _ => Ok(None),
    }
}

fn join(arguments: &CollectiveArguments, launch: Launch) -> std::result::Result<Communicator, CommError> {
    let mut fingerprint = [0; 32];
    let sizes = (arguments.sizes(), arguments.iterations, arguments.warmup, arguments.check);
    fingerprint[..8]
        .copy_from_slice(&xxh3_64(format!("{sizes:?} {:?}", arguments.options()).as_bytes()).to_le_bytes());
    let mut options = JoinOptions::new(launch, fingerprint);
    options.ranks_per_node = arguments.ranks_per_node;
    options.deadlines.operation = arguments.options().deadline;
    options.deadlines.rendezvous = RENDEZVOUS;
    Ok(Communicator::new(rendezvous::join(&options)?, arguments.options()))
}

/// Starts a process for each rank, with this command's own arguments, and takes the answer of rank 0.
fn over_processes(ranks: usize) -> Result<Answer> {
    let wrong = |reason: String| Error::Communication {
        context: "headlong bench --backend tcp".to_owned(),
        source: reason.into(),
    };
    let job = Job::new().map_err(failed)?;
    let mut children = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        children
            .push(job.start(rank, ranks).map_err(|error| wrong(format!("starting rank {rank}: {error}")))?);
    }
    let first = children.remove(0).wait_with_output();
    // The first to fail tells why on standard error; the others hear of it and end by themselves.
    let mut successes = vec![first.as_ref().is_ok_and(|output| output.status.success())];
    for mut child in children {
        successes.push(child.wait().is_ok_and(|status| status.success()));
    }
    if let Some(rank) = successes.iter().position(|&success| !success) {
        return Err(wrong(format!("the process of rank {rank} has failed")));
    }
    let output = first.map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&output.stdout).map_err(|error| wrong(format!("the answer of rank 0: {error}")))
}

/// What the processes of a job must know of each other.
struct Job {
    port: u16,
    secret: String,
}

impl Job {
    fn new() -> std::result::Result<Self, CommError> {
        let free_port = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
        let port = free_port().map_err(|error| CommError::System {
            what: "looking for a free port".to_owned(),
            reason: error.to_string(),
        })?;
        let secret = rendezvous::proof::nonce()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { port: port.port(), secret })
    }

    /// Starts this program again with the same arguments, as one rank.
    fn start(&self, rank: usize, ranks: usize) -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .arg("--worker")
            .env("HEADLONG_RANK", rank.to_string())
            .env("HEADLONG_WORLD_SIZE", ranks.to_string())
            .env("HEADLONG_LOCAL_RANK", rank.to_string())
            .env("HEADLONG_LOCAL_SIZE", ranks.to_string())
            .env("HEADLONG_MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
            .env("HEADLONG_MASTER_PORT", self.port.to_string())
            .env("HEADLONG_JOB", format!("bench-{}", self.port))
            .env("HEADLONG_SECRET", &self.secret)
            .stdin(Stdio::null())
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .spawn()
    }
}
