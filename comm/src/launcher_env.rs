//! What the launcher says: rank, number of ranks, where rank 0 is.
//!
//! [`parse`] is a pure function over a map of variables, so that every launcher can be tested as
//! data; [`read`] is the only place of the project that looks at the process's environment for it.
//! Nothing read here changes a result: it decides who a process is, never what it computes.
//!
//! The first complete set wins: our own (`headlong launch`, or by hand), torchrun's names, Open
//! MPI, MPICH and its family (PMI), PMIx, Slurm. A set that is half there, or says two things, is
//! an error that names the variables, and so is a variable that is set but empty or no text; a set
//! that lost to an earlier one is mentioned in [`Launch::remarks`].

mod slurm;
#[cfg(test)]
mod tests;
mod variables;

use crate::error::{CommError, Result};
use crate::topology::Rank;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use variables::{LauncherVariables, Variables, refuse};

/// The variables of a process. Values are bytes: a secret need not be text.
pub type Environment = BTreeMap<String, OsString>;

/// Port of the rendezvous where nothing else says one and no job id tells jobs apart.
pub const DEFAULT_PORT: u16 = 29577;

/// Who has started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `headlong launch`, or `HEADLONG_RANK` and `HEADLONG_WORLD_SIZE` set by hand.
    Headlong,
    /// torchrun, or anything that uses its names (Kubeflow's PyTorchJob).
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH, Hydra, Intel MPI, Cray PALS.
    Pmi,
    /// A launcher that speaks PMIx only.
    Pmix,
    /// `srun`.
    Slurm,
}

impl Launcher {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Headlong => "headlong launch",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI (MPICH, Intel MPI)",
            Launcher::Pmix => "PMIx",
            Launcher::Slurm => "Slurm",
        }
    }
}

/// Where the job's secret is.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// Nowhere: the rendezvous keeps other jobs and unauthenticated peers apart by the job's id
    /// alone.
    None,
    /// The bytes of the variable itself.
    Value(Vec<u8>),
    /// A file that only its owner may read.
    File(PathBuf),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::None => out.write_str("None"),
            SecretSource::Value(_) => out.write_str("Value(not shown)"),
            SecretSource::File(path) => write!(out, "File({path:?})"),
        }
    }
}

/// Something that a careful user wants to know about a process's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// A sentence without its full stop.
    pub text: String,
    /// The process may have another place than was meant. Else it is a mere fact: a value that was
    /// derived.
    pub is_suspect: bool,
}

impl Remark {
    fn fact(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_suspect: false }
    }

    fn suspect(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_suspect: true }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// What the environment says about a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// No launcher has started it as one of several ranks.
    Single {
        /// What a careful user wants to know about that.
        remarks: Vec<Remark>,
    },
    /// One rank of a job.
    Rank(Launch),
}

impl Place {
    /// The place in a job, where there is one.
    pub fn launch(self) -> Option<Launch> {
        match self {
            Place::Single { .. } => None,
            Place::Rank(launch) => Some(launch),
        }
    }
}

/// A process's place in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Launch {
    pub launcher: Launcher,
    pub rank: Rank,
    pub world_size: usize,
    /// Which of the ranks of its machine this is, where the launcher says so.
    pub local_rank: Option<usize>,
    /// How many ranks this machine has, where the launcher says so.
    pub local_size: Option<usize>,
    /// Host name or address at which rank 0 can be reached.
    pub master_host: String,
    pub master_port: u16,
    /// Name of the job; the same on all of its ranks.
    pub job: String,
    pub secret: SecretSource,
    /// What a careful user wants to know: sets that were ignored, values that were derived.
    pub remarks: Vec<Remark>,
}

impl Launch {
    /// A rank of a job whose ranks reach each other on loopback, without a secret.
    pub fn on_loopback(rank: usize, world_size: usize, master_port: u16) -> Self {
        Self {
            launcher: Launcher::Headlong,
            rank: Rank(rank),
            world_size,
            local_rank: None,
            local_size: None,
            master_host: "127.0.0.1".to_owned(),
            master_port,
            job: "loopback".to_owned(),
            secret: SecretSource::None,
            remarks: Vec::new(),
        }
    }
}

/// The environment of this process. A name that is no text is none that anybody asks for.
pub fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .collect()
}

/// Reads the environment of this process.
///
/// # Errors
/// Those of [`parse`].
pub fn read() -> Result<Place> {
    parse(&environment())
}

/// The process of the `headlong launch` that has started this one, if one has.
///
/// # Errors
/// A variable that is set and no process's number.
pub fn launcher_process() -> Result<Option<i32>> {
    let environment = environment();
    let number = Variables::new(&environment).number("HEADLONG_LAUNCHER_PID")?;
    let number = number.map(|number| i32::try_from(number).ok().filter(|number| *number > 0));
    match number {
        Some(None) => {
            Err(refuse("HEADLONG_LAUNCHER_PID", "is not the number of a process: unset it"))
        }
        number => Ok(number.flatten()),
    }
}

/// Finds the launcher's set in `environment`.
///
/// # Errors
/// [`CommError::Setting`]: a set that is half there, contradicts itself or does not say where
/// rank 0 is; a variable that is set but cannot be used.
pub fn parse(environment: &Environment) -> Result<Place> {
    let variables = Variables::new(environment);
    let mut found: Option<Found> = None;
    let mut remarks = Vec::new();
    let sets =
        variables::SETS.iter().map(|(launcher, names)| read_set(&variables, *launcher, names));
    for set in sets.chain([read_slurm(&variables)]) {
        match (set?, &mut found) {
            (Some(set), None) => found = Some(set),
            (Some(set), Some(winner)) => remarks.push(winner.over(&set)),
            (None, _) => {}
        }
    }
    match found {
        Some(set) => finish(&variables, set, remarks).map(Place::Rank),
        None => {
            variables.refuse_orphans()?;
            let remarks =
                forgotten_srun(&variables)?.into_iter().chain(forgotten_ranks(&variables));
            Ok(Place::Single { remarks: remarks.collect() })
        }
    }
}

/// A job of Slurm's with several tasks, and nothing that has started them.
fn forgotten_srun(variables: &Variables) -> Result<Option<Remark>> {
    let tasks = variables.number("SLURM_NTASKS")?.filter(|tasks| *tasks > 1);
    Ok(tasks.map(|tasks| {
        Remark::suspect(format!(
            "this is a Slurm job of {tasks} tasks, but srun has not started this process: it runs \
             as a single process; write `srun headlong ...`"
        ))
    }))
}

/// A number of ranks without a rank: torchrun's is also set by hand, for other programs.
fn forgotten_ranks(variables: &Variables) -> impl Iterator<Item = Remark> {
    let sets = variables::SETS.iter().filter(|(launcher, _)| *launcher != Launcher::Headlong);
    let names = sets.map(|(_, names)| (names.world_size, names.rank));
    names.chain([("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")]).filter_map(|(size_name, rank)| {
        let size = variables.number(size_name).ok().flatten().filter(|size| *size > 1)?;
        Some(Remark::suspect(format!(
            "{size_name} is {size}, but {rank} is not set: it runs as a single process"
        )))
    })
}

struct Found {
    launcher: Launcher,
    rank: usize,
    world_size: usize,
    local: Option<(usize, usize)>,
    names: (&'static str, &'static str),
    /// Slurm's list of nodes begins with that of rank 0.
    has_slurm_nodes: bool,
}

impl Found {
    /// What there is to say of a set that has lost to this one. Launchers that agree stand on each
    /// other, as where srun starts what speaks PMI: then the one knows what the other does not say.
    fn over(&mut self, other: &Found) -> Remark {
        let (name, winner) = (other.launcher.name(), self.launcher.name());
        if (other.rank, other.world_size) != (self.rank, self.world_size) {
            let said = format!("they say rank {} of {}", other.rank, other.world_size);
            return Remark::suspect(format!(
                "variables of {name} are present ({said}); those of {winner} win"
            ));
        }
        self.local = self.local.or(other.local);
        self.has_slurm_nodes |= other.has_slurm_nodes;
        Remark::fact(format!("variables of {name} are present; those of {winner} win"))
    }
}

/// Reads one launcher's set; `None` where its rank is not given.
fn read_set(
    variables: &Variables,
    launcher: Launcher,
    names: &'static LauncherVariables,
) -> Result<Option<Found>> {
    let size_name = names.world_size;
    let Some(rank) = variables.number(names.rank)? else {
        // A world size without a rank says nothing: torchrun's name is also set by hand for other
        // launchers. Our own local rank without a rank is a mistake.
        let own = names.local.iter().filter(|_| launcher == Launcher::Headlong);
        for (name, _) in own {
            if variables.text(name)?.is_some() {
                return Err(half_set(name, names.rank));
            }
        }
        return Ok(None);
    };
    let size = match variables.number(size_name)? {
        Some(size) => size,
        None if launcher == Launcher::Pmix => return Ok(None),
        None => return Err(half_set(names.rank, size_name)),
    };
    check_below(names.rank, rank, size_name, size)?;
    let mut local = None;
    for (local_rank, local_size) in names.local {
        if let Some((_, count)) = variables.pair(local_rank, local_size)? {
            check_local_size(local_size, count, size_name, size)?;
            local = local.or(variables.pair(local_rank, local_size)?);
        }
    }
    let names = (names.rank, size_name);
    Ok(Some(Found { launcher, rank, world_size: size, local, names, has_slurm_nodes: false }))
}

fn half_set(present: &str, missing: &str) -> CommError {
    let reason =
        format!("is not set, but {present} is: set both, or unset both to run as a single process");
    refuse(missing, reason)
}

fn check_local_size(name: &str, local_size: usize, size_name: &str, size: usize) -> Result<()> {
    if local_size <= size {
        return Ok(());
    }
    let reason = format!(
        "is {local_size}, more than {size_name} = {size}: a machine cannot have more ranks than \
         the job"
    );
    Err(refuse(name, reason))
}

fn check_below(rank_name: &str, rank: usize, size_name: &str, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    let reason = format!("is {rank}, but {size_name} is {size}: ranks are counted from 0");
    Err(refuse(rank_name, reason))
}

/// Slurm's set. Only inside a step: a batch script without `srun` sees the job's variables, but is
/// a single process.
fn read_slurm(variables: &Variables) -> Result<Option<Found>> {
    let names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    let Some(rank) = variables.number(names.0)? else { return Ok(None) };
    let (Some(size), Some(_)) = (variables.number(names.1)?, variables.text("SLURM_STEP_ID")?)
    else {
        return Ok(None);
    };
    check_below(names.0, rank, names.1, size)?;
    let local_size = slurm::tasks_on_node(variables)?;
    let local = variables.number("SLURM_LOCALID")?.zip(local_size);
    if let Some((local_rank, local_size)) = local {
        check_below("SLURM_LOCALID", local_rank, "SLURM_STEP_TASKS_PER_NODE", local_size)?;
        check_local_size("SLURM_STEP_TASKS_PER_NODE", local_size, names.1, size)?;
    }
    let launcher = Launcher::Slurm;
    Ok(Some(Found { launcher, rank, world_size: size, local, names, has_slurm_nodes: true }))
}

fn finish(variables: &Variables, set: Found, mut remarks: Vec<Remark>) -> Result<Launch> {
    let job = variables::job_name(variables, set.launcher)?;
    let master_host = master_host(variables, &set)?;
    let master_port = master_port(variables, &set, &job, &mut remarks)?;
    let secret =
        match (variables.bytes("HEADLONG_SECRET")?, variables.bytes("HEADLONG_SECRET_FILE")?) {
            (Some(_), Some(_)) => {
                let reason = "is set, and HEADLONG_SECRET too: which one is it? Unset the other";
                return Err(refuse("HEADLONG_SECRET_FILE", reason));
            }
            (Some(value), None) => SecretSource::Value(value.to_owned().into_vec()),
            (None, Some(path)) => SecretSource::File(path.into()),
            (None, None) => SecretSource::None,
        };
    Ok(Launch {
        launcher: set.launcher,
        rank: Rank(set.rank),
        world_size: set.world_size,
        local_rank: set.local.map(|(rank, _)| rank),
        local_size: set.local.map(|(_, size)| size),
        master_host,
        master_port,
        job: job.unwrap_or_else(|| "job".into()),
        secret,
        remarks,
    })
}

/// Where rank 0 is: on this machine where all ranks are, so that no other machine can reach it;
/// said; or the first node of a Slurm step. Our own name wins over all of that.
fn master_host(variables: &Variables, set: &Found) -> Result<String> {
    if let Some(host) = variables.host("HEADLONG_MASTER_ADDR")? {
        return Ok(host);
    }
    if set.world_size == 1 || set.local.is_some_and(|(_, local_size)| local_size == set.world_size)
    {
        return Ok("127.0.0.1".into());
    }
    if let Some(host) = variables.host("MASTER_ADDR")? {
        return Ok(host);
    }
    if set.has_slurm_nodes {
        return slurm::first_host(variables);
    }
    let name =
        if set.launcher == Launcher::Torchrun { "MASTER_ADDR" } else { "HEADLONG_MASTER_ADDR" };
    let (rank, size) = set.names;
    let reason = format!(
        "is not set, and {} ({rank}, {size}) does not say on which machine rank 0 runs: set it to \
         that machine's name or address on all ranks",
        set.launcher.name()
    );
    Err(refuse(name, reason))
}

/// The variable that says where rank 0 is, or would: of this process's environment.
pub(crate) fn master_variable() -> &'static str {
    let is_set = |name| std::env::var_os(name).is_some_and(|host| !host.is_empty());
    match is_set("MASTER_ADDR") && !is_set("HEADLONG_MASTER_ADDR") {
        true => "MASTER_ADDR",
        false => "HEADLONG_MASTER_ADDR",
    }
}

/// The port: said, or derived from the job's id so that two jobs do not meet.
fn master_port(
    variables: &Variables,
    set: &Found,
    job: &Option<String>,
    remarks: &mut Vec<Remark>,
) -> Result<u16> {
    if let Some(port) = variables.port("HEADLONG_MASTER_PORT")? {
        return Ok(port);
    }
    let torch_port = variables.port("MASTER_PORT")?;
    let agent = variables.text("TORCHELASTIC_USE_AGENT_STORE")?;
    let agent_listens = set.launcher == Launcher::Torchrun
        && agent.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = match (torch_port, job) {
        (Some(port), _) if !agent_listens => return Ok(port),
        (Some(port), job) => derived_port(&format!("{port} {}", job.as_deref().unwrap_or(""))),
        (None, Some(job)) => derived_port(job),
        (None, None) => DEFAULT_PORT,
    };
    let why = match torch_port {
        Some(taken) => format!("torchrun's own store listens at {taken}"),
        None => "no port is set".into(),
    };
    let text =
        format!("{why}: the rendezvous is at port {port}; HEADLONG_MASTER_PORT sets another");
    remarks.push(Remark::fact(text));
    Ok(port)
}

/// A port between 20000 and 29999 by FNV-1a: the same on all ranks, different for most jobs.
fn derived_port(text: &str) -> u16 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    20_000 + (hash % 10_000) as u16
}
