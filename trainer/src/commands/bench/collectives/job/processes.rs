//! Ranks as processes: started here, or by a launcher whose variables say who this process is.

use super::{Job, Outcome, failed};
use crate::commands::bench::collectives::arguments::CollectiveArguments;
use crate::commands::bench::collectives::backend::Backend;
use crate::error::{Error, Result};
use crate::iteration::job::note_remarks;
use crate::report::output::say;
use crate::system::command_line;
use crate::{commands::launch, report::output};
use headlong_comm::launcher_env::{self, Launch};
use headlong_comm::rendezvous::{self, JoinOptions};
use headlong_comm::transport::choose::{ChooseOptions, Network, Wanted, choose};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, Communicator, Rank};
use headlong_ucx::UcxNetwork;
use headlong_verbs::VerbsNetwork;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Time for all processes to find each other.
const RENDEZVOUS: Duration = Duration::from_secs(30);

/// Whether this process is one of several that a launcher has started.
pub fn is_one_of_several() -> bool {
    launcher_env::read().is_ok_and(|place| place.launch().is_some())
}

/// Ranks of this machine: all of a job that this command starts; of a launcher's as many as the
/// launcher says, or this one.
pub fn ranks_here(arguments: &CollectiveArguments) -> usize {
    let launch = launcher_env::read().ok().and_then(|place| place.launch());
    launch.map_or(arguments.ranks, |launch| launch.local_size.unwrap_or(1))
}

/// Measures in a job of processes: the one that a launcher has started this process for, or one of
/// its own.
pub fn run(job: &Job<'_>, wanted: Wanted) -> Result<Outcome> {
    match launcher_env::read().map_err(failed)?.launch() {
        Some(launch) => as_rank(job, wanted, launch),
        None if job.arguments.worker.is_some() => Err(Error::Usage(
            "--worker is for processes that `headlong bench` has started".to_owned(),
        )),
        None => over_processes(job),
    }
}

/// Measures as one rank of a job. Rank 0 has the answer, or prints it for the process that has
/// started the job.
fn as_rank(job: &Job<'_>, wanted: Wanted, launch: Launch) -> Result<Outcome> {
    let rank = launch.rank;
    let arguments = CollectiveArguments { ranks: launch.world_size, ..job.arguments.clone() };
    arguments.check()?;
    let control =
        rendezvous::join(&join_options(job.backend, &arguments, launch)?).map_err(failed)?;
    note_remarks(&control);
    let answer = match choose_way(control, job.backend, wanted, &arguments)? {
        Ok(communicator) => {
            let job = Job { arguments: &arguments, ..job.clone() };
            Outcome::Measured(job.on_one_rank(&communicator).map_err(failed)?)
        }
        // What was asked for by name and is not there: every rank hears which rank lacks it.
        Err(CommError::Setting { reason, .. }) if wanted != Wanted::Tcp => Outcome::Skipped(reason),
        Err(error) => return Err(failed(error)),
    };
    match (rank, arguments.worker) {
        (Rank(0), None) => Ok(answer),
        (Rank(0), Some(_)) => {
            output::print(&serde_json::json!(answer).to_string()).map(|()| Outcome::Elsewhere)
        }
        _ => Ok(Outcome::Elsewhere),
    }
}

fn join_options(
    backend: Backend,
    arguments: &CollectiveArguments,
    launch: Launch,
) -> Result<JoinOptions> {
    let nics = arguments.nics()?;
    let mut fingerprint = [0; 32];
    let sizes = (backend, arguments.sizes(), arguments.dtypes(), arguments.root, arguments.place);
    let effort = (arguments.effort(), arguments.options(backend));
    fingerprint[..8].copy_from_slice(
        &xxh3_64(format!("{sizes:?} {effort:?} {nics:?}").as_bytes()).to_le_bytes(),
    );
    let mut options = JoinOptions::new(launch, fingerprint);
    options.ranks_per_node = arguments.ranks_per_node;
    options.deadlines.operation = arguments.options(backend).deadline;
    options.deadlines.rendezvous = RENDEZVOUS;
    options.insecure = arguments.insecure;
    options.encrypt_data = arguments.encrypt_data;
    options.notice = Some(Arc::new(|text: &str| say(text)));
    Ok(options)
}

fn choose_way(
    control: Arc<TcpTransport>,
    backend: Backend,
    wanted: Wanted,
    arguments: &CollectiveArguments,
) -> Result<std::result::Result<Communicator, CommError>> {
    let nics = (wanted == Wanted::Verbs).then(|| arguments.nics()).transpose()?;
    let nics = nics.map(|nics| VerbsNetwork::of_machine(&control, nics));
    let ucx = (wanted == Wanted::Ucx).then(|| UcxNetwork::of_machine(&control));
    let nics = nics.as_ref().map(|nics| nics as &dyn Network);
    let network = nics.or(ucx.as_ref().map(|ucx| ucx as &dyn Network));
    let chosen = choose(control, &ChooseOptions { wanted, network, exchanges: None });
    Ok(chosen.map(|chosen| Communicator::new(chosen.transport, arguments.options(backend))))
}

/// Starts a process for each rank, with this command's own arguments, and takes the answer of
/// rank 0.
fn over_processes(job: &Job<'_>) -> Result<Outcome> {
    let (backend, ranks) = (job.backend, job.arguments.ranks);
    let wrong = |reason: String| Error::Communication {
        context: format!("headlong bench --backend {}", backend.name()),
        source: reason.into(),
    };
    let (_port, environment) = launch::environment(ranks)?;
    let mut children = Children(Vec::with_capacity(ranks));
    for rank in 0..ranks {
        let child = start(job, rank, &environment);
        children.0.push(child.map_err(|error| wrong(format!("starting rank {rank}: {error}")))?);
    }
    let first = children.0.remove(0).wait_with_output();
    let output = first.map_err(|error| wrong(error.to_string()))?;
    // The first to fail tells why on standard error; the others hear of it and end by themselves.
    let mut ends = vec![output.status];
    for mut child in std::mem::take(&mut children.0) {
        ends.push(child.wait().map_err(|error| wrong(error.to_string()))?);
    }
    // One that was killed has told nothing, and the others have lost it.
    let killed = ends.iter().position(|end| end.signal().is_some());
    if let Some(rank) = killed.or_else(|| ends.iter().position(|end| !end.success())) {
        return Err(wrong(format!("the process of rank {rank} has failed ({})", ends[rank])));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| wrong(format!("the answer of rank 0: {error}")))
}

/// Processes that end when no one waits for them any more.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

/// Starts this program again with the same arguments, as one rank.
fn start(
    job: &Job<'_>,
    rank: usize,
    environment: &[(&'static str, String)],
) -> std::io::Result<Child> {
    command_line::again()?
        .args(command_line::arguments().into_iter().skip(1))
        .args(["--worker", job.backend.name()])
        .args(&job.worker_arguments)
        .env_remove("HEADLONG_SECRET_FILE")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("HEADLONG_RANK", rank.to_string())
        .env("HEADLONG_LOCAL_RANK", rank.to_string())
        .stdin(Stdio::null())
        .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
        .spawn()
}
