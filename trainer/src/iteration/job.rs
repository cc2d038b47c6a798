//! The job that this process belongs to: alone, or one of several processes that a launcher has
//! started.
//!
//! Several processes have one rank each. They read the same configuration and the same data; rank 0
//! leads: it writes what is written once, and makes first what the others then find (synthetic
//! data, a dictionary).

use crate::config::{Config, DeviceChoice, Instructions, TransportChoice};
use crate::error::{Error, Result, chain};
use crate::iteration::ranks::{local_topology, tuned_comm_options};
use crate::report::output::say;
use crate::system::machine::Machine;
pub use headlong_comm::Busy;
use headlong_comm::launcher_env::{Launch, Place};
use headlong_comm::rendezvous::{self, Deadlines, JoinOptions};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::{ChooseOptions, Wanted, choose};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, CommOptions, Communicator, Topology, launcher_env};
use headlong_verbs::{VerbsNetwork, VerbsRails};
use std::sync::Arc;

/// This process's place among the processes of a run.
pub struct Job {
    /// The configuration, with as many ranks as the launcher has started.
    pub config: Config,
    communicator: Option<Communicator>,
}

/// `config` with as many ranks as the launcher has started processes.
pub fn as_launched(config: &Config, launch: &Launch) -> Result<Config> {
    let mut config = config.clone();
    if config.run.ranks != 1 && config.run.ranks != launch.world_size {
        return Err(Error::contradiction(
            format!("run.ranks = {}", config.run.ranks),
            format!("{} processes of {}", launch.world_size, launch.launcher.name()),
            "each process is one rank: leave --ranks away",
        ));
    }
    config.run.ranks = launch.world_size;
    config.validate()?;
    if config.run.transport == TransportChoice::Local && launch.world_size > 1 {
        return Err(Error::contradiction(
            "run.transport = \"local\"",
            format!("{} processes of {}", launch.world_size, launch.launcher.name()),
            "processes reach each other by \"auto\", \"shm\", \"verbs\" or \"tcp\"",
        ));
    }
    Ok(config)
}

impl Job {
    /// Joins the job that a launcher's environment describes; alone where there is none.
    pub fn join(config: &Config) -> Result<Self> {
        let place = launcher_env::read()
            .map_err(Error::communication("the launcher's environment cannot be used"))?;
        let launch = match place {
            Place::Rank(launch) => launch,
            Place::Single { remarks } => {
                remarks.iter().for_each(|remark| say(format_args!("note: {remark}")));
                return Self::single_process(config);
            }
        };
        let mut config = as_launched(config, &launch)?;
        let comm_options = tuned_comm_options(&config)?;
        let options = JoinOptions {
            ranks_per_node: config.comm.ranks_per_node,
            deadlines: Deadlines { operation: config.comm.deadline(), ..Deadlines::default() },
            insecure: config.comm.insecure,
            notice: Some(Arc::new(|text: &str| say(text))),
            ..JoinOptions::new(launch, fingerprint(&config, &comm_options))
        };
        let control = rendezvous::join(&options)
            .map_err(Error::communication("the ranks did not come together"))?;
        note_remarks(&control);
        let nics = VerbsNetwork::of_machine(&control, config.comm.verbs.clone());
        let wanted = wanted(config.run.transport);
        let chosen = choose(control, &ChooseOptions { wanted, network: Some(&nics) })
            .map_err(Error::communication("the ranks have no common way"))?;
        if chosen.transport.rank().0 == 0 && chosen.rows.len() > 1 {
            chosen.table().lines().for_each(say);
            nics.remarks().iter().for_each(say);
        }
        config.run.transport = match (config.run.device, wanted) {
            // Between devices, NICs carry where they are asked for by name, else NCCL does.
            (DeviceChoice::Cuda, Wanted::Verbs) => TransportChoice::Verbs,
            (DeviceChoice::Cuda, _) => TransportChoice::Nccl,
            _ => carried_by(chosen.transport.name()),
        };
        let mut communicator = Communicator::new(chosen.transport, comm_options);
        if let (Wanted::Verbs, Some(provider)) = (wanted, nics.provider()) {
            communicator = communicator
                .with_rails(Arc::new(VerbsRails::new(provider, config.comm.verbs.clone())));
        }
        let mut job = Self { config, communicator: Some(communicator) };
        // Machines differ; what their ranks decide must not.
        job.config.hybrid.max_replicated_bytes = job.as_rank_0(replicated_limit(&job.config))?;
        Ok(job)
    }

    pub fn single_process(config: &Config) -> Result<Self> {
        let transport = config.run.transport;
        let joins_processes = matches!(
            transport,
            TransportChoice::Tcp | TransportChoice::Shm | TransportChoice::Verbs
        );
        if joins_processes && config.run.ranks > 1 {
            let reason = format!(
                "\"{}\" joins processes: start them with `headlong launch -n N -- train ...` or \
                 another launcher",
                transport.name()
            );
            return Err(Error::config("run.transport", reason));
        }
        Ok(Self { config: config.clone(), communicator: None })
    }

    /// Whether this process leads: it has rank 0.
    pub fn leads(&self) -> bool {
        self.communicator.as_ref().is_none_or(|communicator| communicator.rank().0 == 0)
    }

    /// Whether this process has all ranks.
    pub fn is_single_process(&self) -> bool {
        self.communicator.is_none()
    }

    /// All ranks and their nodes.
    pub fn topology(&self) -> Topology {
        let topology =
            self.communicator.as_ref().map(|communicator| communicator.topology().clone());
        topology.unwrap_or_else(|| local_topology(&self.config))
    }

    /// Ranks on this machine, where each is a process of its own.
    pub fn processes_here(&self) -> Option<usize> {
        let communicator = self.communicator.as_ref()?;
        let topology = communicator.topology();
        Some(topology.node_size(topology.node_of(communicator.rank())))
    }

    /// Runs `work` in the process that leads, and then in the others, which find what the first has
    /// made.
    pub fn leader_first<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(communicator) = &self.communicator else { return work() };
        let barrier = || {
            communicator
                .barrier()
                .map_err(Error::communication("the other ranks cannot be waited for"))
        };
        if !self.leads() {
            barrier()?;
        }
        let made = work().inspect_err(|error| {
            let reason = chain(error);
            communicator.abort(CommError::Aborted { culprit: communicator.rank(), reason });
        })?;
        if self.leads() {
            barrier()?;
        }
        Ok(made)
    }

    /// Makes sure that all processes have come to the same result.
    pub fn check_same(&self, what: &str, fingerprint: u64) -> Result<()> {
        let Some(communicator) = &self.communicator else { return Ok(()) };
        let mut all = vec![0; communicator.num_ranks()];
        communicator
            .all_gather(&[fingerprint], &mut all)
            .map_err(Error::communication("the ranks could not compare what they have planned"))?;
        match all.iter().position(|&other| other != all[0]) {
            Some(rank) => Err(Error::Usage(format!(
                "rank {rank} and rank 0 have planned otherwise: {what} differ; do they read the \
                 same data?"
            ))),
            None => Ok(()),
        }
    }

    pub fn as_rank_0(&self, value: u64) -> Result<u64> {
        let Some(communicator) = &self.communicator else { return Ok(value) };
        let mut value = [value];
        let told = communicator.broadcast(headlong_comm::Rank(0), &mut value);
        told.map_err(Error::communication("rank 0 could not tell the others"))?;
        Ok(value[0])
    }

    /// This process does something long before the first step, while the answer lives: the others
    /// wait for it.
    pub fn busy(&self, what: &'static str) -> Option<Busy> {
        self.communicator.as_ref().map(|communicator| communicator.busy(what))
    }

    /// Hands out the rank of this process, where there are others; once.
    pub fn take_communicator(&mut self) -> Option<Communicator> {
        self.communicator.take()
    }
}

/// What the ranks of processes agree on, by the name that the user has given. NCCL joins devices;
/// their hosts still talk.
fn wanted(transport: TransportChoice) -> Wanted {
    match transport {
        TransportChoice::Shm => Wanted::Shm,
        TransportChoice::Verbs => Wanted::Verbs,
        TransportChoice::Tcp => Wanted::Tcp,
        TransportChoice::Auto | TransportChoice::Local | TransportChoice::Nccl => Wanted::Auto,
    }
}

/// Bytes of one rank that replicated rows may take: as configured, or a part of what this machine
/// can give.
pub fn replicated_limit(config: &Config) -> u64 {
    match config.hybrid.max_replicated_bytes {
        0 => Machine::detect().usable_bytes() / 4 / config.run.ranks as u64,
        bytes => bytes,
    }
}

/// The transport that decides how long exchanges take: where several carry, the one between nodes.
fn carried_by(name: &str) -> TransportChoice {
    match name {
        "shm" => TransportChoice::Shm,
        name if name.contains("tcp") => TransportChoice::Tcp,
        name if name.contains("verbs") => TransportChoice::Verbs,
        _ => TransportChoice::Tcp,
    }
}

/// Equal for configurations that train the same model in the same way. Folders may differ from
/// process to process, and threads too; what a file of measurements says may not.
fn fingerprint(config: &Config, options: &CommOptions) -> [u8; 32] {
    let mut config = config.clone();
    config.comm.tuning = None;
    config.run.output_dir = std::path::PathBuf::new();
    config.run.threads = None;
    config.run.instructions = Instructions::Auto;
    config.checkpoint.dir = config.checkpoint.dir.map(|_| std::path::PathBuf::new());
    let measured = options.tuning.as_ref().map(|tuning| tuning.write()).unwrap_or_default();
    let text = config.to_commented_toml() + &measured;
    let mut bytes = [0; 32];
    for (seed, part) in (0..).zip(bytes.chunks_exact_mut(16)) {
        part.copy_from_slice(
            &xxhash_rust::xxh3::xxh3_128_with_seed(text.as_bytes(), seed).to_le_bytes(),
        );
    }
    bytes
}

/// Prints what a careful user wants to know of how the ranks came together: once, where rank 0 is.
pub(crate) fn note_remarks(control: &TcpTransport) {
    if control.rank().0 == 0 {
        control.remarks().iter().for_each(|remark| say(format_args!("note: {remark}")));
    }
}
