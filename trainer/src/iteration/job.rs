//! The job that this process belongs to: alone, or one of several processes that a launcher has
//! started.
//!
//! Several processes have one rank each. Where some of them only evaluate (`run.eval_processes`),
//! all come together once and then part: those that train and those that evaluate are jobs of their
//! own, joined by a [`Bridge`]. They read the same configuration and the same data; rank 0
//! leads: it writes what is written once, and makes first what the others then find (synthetic
//! data, a dictionary).

mod bridge;

pub use bridge::Bridge;

use crate::config::{Bf16Sums, Config, DeviceChoice, Instructions, TransportChoice};
use crate::error::{Error, Result, chain};
use crate::iteration::ranks::{local_topology, tuned_comm_options};
use crate::report::output::say;
use crate::system::machine::Machine;
pub use headlong_comm::Busy;
use headlong_comm::launcher_env::{Launch, Place};
use headlong_comm::rendezvous::whole::{Part, Whole};
use headlong_comm::rendezvous::{self, JoinOptions};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::{ChooseOptions, Chosen, Network, Wanted, choose};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{CommError, CommOptions, Communicator, Rank, Topology, launcher_env};
use headlong_ucx::UcxNetwork;
use headlong_verbs::{VerbsNetwork, VerbsRails};
use std::sync::Arc;

/// This process's place among the processes of a run.
pub struct Job {
    /// The configuration, with as many ranks as the launcher has started.
    pub config: Config,
    communicator: Option<Communicator>,
    evaluators: Option<Evaluators>,
    /// Known also when the communicator has been handed out.
    leads: bool,
}

/// The processes that evaluate, as one process of the job knows them.
struct Evaluators {
    /// Whether this process is one of them.
    is_own: bool,
    /// Of the two processes that it joins.
    bridge: Option<Bridge>,
    /// Processes of this machine that train, and that evaluate.
    here: [usize; 2],
    /// The latter, as the launcher counts them.
    ranks: Vec<Rank>,
}

/// `config` with as many ranks as the launcher has started processes.
pub fn as_launched(config: &Config, launch: &Launch) -> Result<Config> {
    let mut config = config.clone();
    let processes = || format!("{} processes of {}", launch.world_size, launch.launcher.name());
    let evaluating = config.run.eval_processes.unwrap_or(0);
    let training = launch.world_size.saturating_sub(evaluating);
    if training == 0 {
        let reason = "at least one process is left to train";
        let setting = format!("run.eval_processes = {evaluating}");
        return Err(Error::contradiction(setting, processes(), reason));
    }
    if config.run.ranks != 1 && config.run.ranks != training {
        let reason = match evaluating {
            0 => "each process is one rank: leave --ranks away".to_owned(),
            _ => format!("{evaluating} of them evaluate, {training} train: leave --ranks away"),
        };
        let setting = format!("run.ranks = {}", config.run.ranks);
        return Err(Error::contradiction(setting, processes(), reason));
    }
    config.run.ranks = training;
    config.validate()?;
    if config.run.transport == TransportChoice::Local && launch.world_size > 1 {
        return Err(Error::contradiction(
            "run.transport = \"local\"",
            processes(),
            "processes reach each other by \"auto\", \"shm\", \"verbs\", \"ucx\" or \"tcp\"",
        ));
    }
    Ok(config)
}

impl Job {
    fn new(
        config: Config,
        communicator: Option<Communicator>,
        evaluators: Option<Evaluators>,
    ) -> Self {
        let is_first = communicator.as_ref().is_none_or(|ranks| ranks.rank() == Rank(0));
        let evaluates = evaluators.as_ref().is_some_and(|evaluators| evaluators.is_own);
        Self { config, communicator, evaluators, leads: is_first && !evaluates }
    }

    /// Joins the job that a launcher's environment describes; alone where there is none.
    pub fn join(config: &Config) -> Result<Self> {
        let place = launcher_env::read()
            .map_err(Error::communication("the launcher's environment cannot be used"))?;
        let launch = match place {
            Place::Rank(launch) => launch,
            Place::Single { remarks } => {
                remarks.iter().for_each(|remark| say(format_args!("note: {remark}")));
                let transport = config.run.transport;
                if config.run.ranks == 1 && transport.joins_processes() {
                    say(format_args!(
                        "note: run.transport = \"{}\" joins processes, and this one is alone: no \
                         launcher has started it as one of several",
                        transport.name()
                    ));
                }
                return Self::single_process(config);
            }
        };
        let config = as_launched(config, &launch)?;
        let comm_options = tuned_comm_options(&config)?;
        let options = JoinOptions {
            ranks_per_node: config.comm.ranks_per_node,
            deadlines: config.comm.deadlines(),
            insecure: config.comm.insecure,
            encrypt_data: config.comm.encrypt_data,
            notice: Some(Arc::new(|text: &str| say(text))),
            ..JoinOptions::new(launch, fingerprint(&config, &comm_options))
        };
        let apart = |error| Error::communication("the ranks did not come together")(error);
        match config.run.eval_processes {
            None => {
                let control = rendezvous::join(&options).map_err(apart)?;
                note_remarks(&control);
                let (config, communicator) = carried(control, config, comm_options, true)?;
                Self::new(config, Some(communicator), None).agreed()
            }
            Some(count) => {
                let whole = Whole::join(&options).map_err(apart)?;
                note_remarks(whole.control());
                Self::divided(&whole, config, comm_options, count)?.agreed().and_then(|job| {
                    whole.close().map_err(apart)?;
                    Ok(job)
                })
            }
        }
    }

    /// The job of this process where the last `count` ones evaluate.
    fn divided(
        whole: &Whole<'_>,
        config: Config,
        comm_options: CommOptions,
        count: usize,
    ) -> Result<Self> {
        let apart = |error| Error::communication("the ranks did not come together")(error);
        let topology = whole.topology();
        let all: Vec<Rank> = topology.ranks().collect();
        let (training, evaluating) = all.split_at(all.len() - count);
        let (rank, node) = (whole.control().rank(), topology.node_of(whole.control().rank()));
        let here = [training, evaluating]
            .map(|ranks| ranks.iter().filter(|&&other| topology.node_of(other) == node).count());
        let ends = [training[0], evaluating[0]];
        let part = |name, ranks: &[Rank], ranks_per_node| {
            whole.part(&Part { name, ranks, ranks_per_node }).map_err(apart)
        };
        let trains = part("training", training, config.comm.ranks_per_node)?;
        let evaluates = part("evaluation", evaluating, 0)?;
        let joins = part("bridge", &ends, 0)?;
        let bridge: Option<Result<Bridge>> = joins.map(|control| {
            let nics = VerbsNetwork::of_machine(&control, config.comm.verbs.clone());
            let transport = chosen(control, &config, &comm_options, &nics)?.transport;
            Ok(Bridge::new(transport, config.comm.deadline(), ends))
        });
        let is_own = rank >= evaluating[0];
        let control = trains.or(evaluates).expect("each process is of one part");
        let (config, communicator) = carried(control, config, comm_options, !is_own)?;
        let evaluators =
            Evaluators { is_own, bridge: bridge.transpose()?, here, ranks: evaluating.to_vec() };
        Ok(Self::new(config, Some(communicator), Some(evaluators)))
    }

    /// Machines differ; what their ranks decide must not.
    fn agreed(mut self) -> Result<Self> {
        self.config.hybrid.max_replicated_bytes = self.as_rank_0(replicated_limit(&self.config))?;
        if self.evaluators.is_none() {
            const ORDERS: [Bf16Sums; 3] = [Bf16Sums::Auto, Bf16Sums::Pairs, Bf16Sums::Tiles];
            let own = ORDERS.iter().position(|&order| order == self.config.train.bf16_sums);
            let first = self.as_rank_0(own.unwrap_or(0) as u64)? as usize;
            self.config.train.bf16_sums = ORDERS[first.min(ORDERS.len() - 1)];
        }
        Ok(self)
    }

    pub fn single_process(config: &Config) -> Result<Self> {
        let transport = config.run.transport;
        if transport.joins_processes() && config.run.ranks > 1 {
            let reason = format!(
                "\"{}\" joins processes: start them with `headlong launch -n N -- train ...` or \
                 another launcher",
                transport.name()
            );
            return Err(Error::config("run.transport", reason));
        }
        if let Some(count) = config.run.eval_processes {
            let reason = format!(
                "{count} of several processes evaluate: start them with `headlong launch -n N -- \
                 train ...` or another launcher; --eval-ranks evaluates in this one"
            );
            return Err(Error::config("run.eval_processes", reason));
        }
        Ok(Self::new(config.clone(), None, None))
    }

    /// Whether this process only evaluates.
    pub fn evaluates(&self) -> bool {
        self.evaluators.as_ref().is_some_and(|evaluators| evaluators.is_own)
    }

    /// The processes that evaluate, as the launcher counts them.
    pub fn ranks_that_evaluate(&self) -> &[Rank] {
        self.evaluators.as_ref().map_or(&[], |evaluators| &evaluators.ranks)
    }

    /// Processes of this machine that evaluate.
    pub fn evaluating_here(&self) -> usize {
        self.evaluators.as_ref().map_or(0, |evaluators| evaluators.here[1])
    }

    /// Processes of this machine that train, where some evaluate.
    pub fn training_here(&self) -> usize {
        self.evaluators.as_ref().map_or(0, |evaluators| evaluators.here[0])
    }

    /// The way between training and evaluation, where it begins or ends here.
    pub fn bridge(&self) -> Option<&Bridge> {
        self.evaluators.as_ref()?.bridge.as_ref()
    }

    /// Hands it out; once.
    pub fn take_bridge(&mut self) -> Option<Bridge> {
        self.evaluators.as_mut()?.bridge.take()
    }

    /// Whether this process leads: it has rank 0.
    pub fn leads(&self) -> bool {
        self.leads
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
        let made = work().inspect_err(|error| tell(communicator, error))?;
        if self.leads() {
            barrier()?;
        }
        Ok(made)
    }

    /// Tells the other processes why this one cannot go on.
    pub(crate) fn tell(&self, error: &Error) {
        if let Some(communicator) = &self.communicator {
            tell(communicator, error);
        }
    }

    /// The way to the other processes that train, until a session takes it.
    pub(crate) fn link(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
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
        let told = communicator.broadcast(Rank(0), &mut value);
        told.map_err(Error::communication("rank 0 could not tell the others"))?;
        Ok(value[0])
    }

    /// This process does something long before the first step, while the answer lives: the others
    /// wait for it.
    pub fn busy(&self, what: &'static str) -> Option<Busy> {
        self.communicator.as_ref().map(|communicator| communicator.busy(what))
    }

    /// Tells the other processes, where nothing has taken the rank of this one, that it ends as
    /// `outcome` says: a goodbye, for which it waits for theirs, or the reason.
    pub fn end(mut self, outcome: Result<()>) -> Result<()> {
        let Some(communicator) = self.take_communicator() else { return outcome };
        outcome.inspect_err(|error| tell(&communicator, error))?;
        communicator.close().map_err(Error::communication("the ranks did not end together"))
    }

    /// Hands out the rank of this process, where there are others; once.
    pub fn take_communicator(&mut self) -> Option<Communicator> {
        self.communicator.take()
    }
}

/// Tells the other ranks why this one cannot go on.
fn tell(communicator: &Communicator, error: &Error) {
    let reason = chain(error);
    communicator.abort(CommError::Aborted { culprit: communicator.rank(), reason });
}

/// What carries between ranks that have come together: with `nics`, unless UCX is wanted.
fn chosen(
    control: Arc<TcpTransport>,
    config: &Config,
    exchanges: &CommOptions,
    nics: &VerbsNetwork,
) -> Result<Chosen> {
    let wanted = wanted(config.run.transport);
    let ucx = (wanted == Wanted::Ucx).then(|| UcxNetwork::of_machine(&control));
    let network = ucx.as_ref().map_or(nics as &dyn Network, |ucx| ucx);
    let options = ChooseOptions { wanted, network: Some(network), exchanges: Some(exchanges) };
    choose(control, &options).map_err(Error::communication("the ranks have no common way"))
}

/// The rank that has come together with others by `control`, and the configuration that says what
/// carries. `is_said`: rank 0 prints it.
fn carried(
    control: Arc<TcpTransport>,
    mut config: Config,
    options: CommOptions,
    is_said: bool,
) -> Result<(Config, Communicator)> {
    let nics = VerbsNetwork::of_machine(&control, config.comm.verbs.clone());
    let chosen = chosen(control, &config, &options, &nics)?;
    if is_said && chosen.transport.rank().0 == 0 && chosen.rows.len() > 1 {
        chosen.table().lines().for_each(say);
        nics.remarks().iter().for_each(say);
    }
    let wanted = wanted(config.run.transport);
    // Where ranks have devices, what is chosen here joins their hosts only.
    if config.run.device != DeviceChoice::Cuda {
        config.run.transport = carried_by(chosen.transport.name());
    }
    let mut communicator = Communicator::new(chosen.transport, options);
    if let (Wanted::Verbs, Some(provider)) = (wanted, nics.provider()) {
        let rails = VerbsRails::new(
            provider,
            config.comm.verbs.clone(),
            crate::system::machine::cores_of_rank(),
        );
        communicator = communicator.with_rails(Arc::new(rails));
    }
    Ok((config, communicator))
}

/// What the ranks of processes agree on, by the name that the user has given. NCCL joins devices;
/// their hosts still talk.
fn wanted(transport: TransportChoice) -> Wanted {
    match transport {
        TransportChoice::Shm => Wanted::Shm,
        TransportChoice::Verbs => Wanted::Verbs,
        TransportChoice::Ucx => Wanted::Ucx,
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
        "ucx" => TransportChoice::Ucx,
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
    if config.run.eval_processes.is_none() {
        // Chosen by the processor of each; then that of rank 0 counts.
        config.train.bf16_sums = Bf16Sums::Auto;
    }
    for folder in [&mut config.checkpoint.dir, &mut config.checkpoint.snapshot_dir] {
        *folder = folder.take().map(|_| std::path::PathBuf::new());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> [Job; 2] {
        let config = Config::default();
        let topology = Topology::one_node(2);
        let ranks = Communicator::local(&topology, CommOptions::default());
        let mut jobs = ranks.into_iter().map(|rank| Job::new(config.clone(), Some(rank), None));
        std::array::from_fn(|_| jobs.next().unwrap())
    }

    #[test]
    fn one_job_leads_also_when_its_rank_has_been_handed_out() {
        let mut jobs = jobs();
        let ranks = jobs.each_mut().map(Job::take_communicator);
        assert_eq!(jobs.each_ref().map(Job::leads), [true, false]);
        ranks.into_iter().flatten().for_each(|rank| rank.close().unwrap());
    }

    /// A run that shows its plan has no session that says goodbye.
    #[test]
    fn a_job_that_has_done_its_work_ends_no_other_rank() {
        let [first, second] = jobs();
        first.end(Ok(())).unwrap();
        second.end(Ok(())).unwrap();
    }

    #[test]
    fn a_job_that_cannot_go_on_says_why() {
        let [first, second] = jobs();
        let told = first.end(Err(Error::Usage("there is no such table".into()))).unwrap_err();
        assert_eq!(told.to_string(), "there is no such table");
        let heard = chain(&second.end(Ok(())).unwrap_err());
        assert!(heard.contains("rank 0 has failed: there is no such table"), "{heard}");
    }
}
