//! Whole training steps of more ranks than there are machines: real connections on loopback, real
//! control threads, a tiny model. Every rank is a thread; ranks are divided among a few processes,
//! because one process may not have as many descriptors.
//!
//! It prints how long the ranks took to come together and to train, what the ranks of a process had
//! open and in memory together, and what one sent, next to what [`Demand`] says; it fails where
//! these differ, memory by more than a tenth (three tenths with fewer than 1,024 ranks), or where
//! the weights are not those of one rank alone.
//!
//! `cargo run --release -p headlong --example many_ranks -- --ranks 1024 --per-node 32`

use headlong::config::{AllToAll, Config, IdsChoice, ScheduleChoice};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_comm::demand::{Demand, StepExchanges};
use headlong_comm::launcher_env::{Launch, SecretSource};
use headlong_comm::rendezvous::{Deadlines, JoinOptions, join, reserve_port};
use headlong_comm::testing::sim::Random;
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, Communicator, Rank, Topology};
use headlong_embedding::Registry;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_reader::{Batch, Jagged};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROWS: [u64; 3] = [500, 4_000, 1_000];
const DENSE: usize = 3;
const DIM: usize = 8;
/// Samples of a rank.
const SAMPLES: usize = 2;
/// Of a rank's thread.
const STACK: usize = 2 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What to run.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: usize,
    per_node: usize,
    processes: usize,
    steps: u64,
}

impl Shape {
    fn topology(self) -> Topology {
        Topology::with_ranks_per_node(self.ranks, self.per_node)
    }
}

/// What a process tells of its ranks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Report {
    first: usize,
    /// Of the rank with the most.
    most_connections: usize,
    /// Of all ranks together.
    descriptors: usize,
    /// Of the first rank in a step.
    messages: usize,
    /// Resident bytes that joining has taken, and those at the end.
    joined_bytes: u64,
    last_bytes: u64,
    together_s: f64,
    steps_s: f64,
    digest: String,
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<()> {
    // Small by default: as such it runs with the other examples in CI.
    let mut shape = Shape { ranks: 128, per_node: 8, processes: 2, steps: 3 };
    let mut part = None;
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
        let number: usize = value.parse().map_err(|error| format!("{name} {value}: {error}"))?;
        match name.as_str() {
            "--ranks" => shape.ranks = number,
            "--per-node" => shape.per_node = number,
            "--processes" => shape.processes = number,
            "--steps" => shape.steps = number as u64,
            "--part" => part = Some((number, 0)),
            "--port" => part = part.map(|(part, _)| (part, number as u16)),
            _ => {
                return Err(format!(
                    "{name}: expected --ranks, --per-node, --processes or --steps"
                )
                .into());
            }
        }
    }
    if shape.processes == 0 || !shape.ranks.is_multiple_of(shape.processes) || shape.steps < 2 {
        return Err("expected --processes to divide --ranks, and --steps of at least 2".into());
    }
    match part {
        Some((part, port)) => serve(shape, part, port),
        None => lead(shape),
    }
}

/// Starts the processes and holds what they tell against what it should be.
fn lead(shape: Shape) -> Result<()> {
    let (_reserved, port) = reserve_port(Ipv4Addr::LOCALHOST.into())?;
    let program = std::env::current_exe()?;
    let start = |part: usize| -> Result<(Child, BufReader<ChildStdout>)> {
        let numbers = [
            ("--ranks", shape.ranks),
            ("--per-node", shape.per_node),
            ("--processes", shape.processes),
            ("--steps", shape.steps as usize),
            ("--part", part),
            ("--port", port.into()),
        ];
        let words =
            numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]);
        let mut child = Command::new(&program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok((child, output))
    };
    let children: Vec<_> = (0..shape.processes).map(start).collect::<Result<_>>()?;
    let mut reports = Vec::new();
    for (mut child, mut output) in children {
        let mut line = String::new();
        output.read_line(&mut line)?;
        if !child.wait()?.success() {
            return Err("a process has failed".into());
        }
        reports.push(serde_json::from_str::<Report>(&line)?);
    }
    judge(shape, &reports)
}

fn judge(shape: Shape, reports: &[Report]) -> Result<()> {
    let most = |each: fn(&Report) -> f64| reports.iter().map(each).fold(0.0, f64::max);
    let topology = shape.topology();
    let demand = |rank| Demand::of(&topology, rank, AllToAll::Auto);
    println!(
        "{} ranks on {} nodes: together in {:.1} s, {} steps in {:.1} s",
        shape.ranks,
        topology.num_nodes(),
        most(|report| report.together_s),
        shape.steps,
        most(|report| report.steps_s)
    );
    println!("{:>26} {:>12} {:>12}", "", "measured", "by formula");
    let mut wrong = Vec::new();
    let mut compare = |what: &str, measured: f64, expected: f64, apart: f64| {
        println!("{what:>26} {measured:>12.0} {expected:>12.0}");
        if (measured - expected).abs() > expected * apart {
            wrong.push(what.to_owned());
        }
    };
    // What a process takes by itself weighs more where it has few ranks.
    let apart = if shape.ranks < 1024 { 0.3 } else { 0.1 };
    // Counts; ids, vectors and gradients; dense gradients with those of replicated rows.
    let step = StepExchanges { of_one_length: 1, of_any_length: 3, sums: 1 };
    for report in reports {
        let ranks = (report.first..shape.ranks).take(shape.ranks / shape.processes).map(Rank);
        let all: Vec<Demand> = ranks.map(demand).collect();
        let connections = all.iter().map(|demand| demand.data_connections).max().unwrap_or(0);
        let descriptors: usize = all.iter().map(|demand| demand.descriptors()).sum();
        let bytes: usize = all.iter().map(|demand| demand.bytes).sum();
        println!("ranks {} to {}", report.first, report.first + all.len() - 1);
        compare("connections of a rank", report.most_connections as f64, connections as f64, 0.0);
        compare("descriptors", report.descriptors as f64, descriptors as f64, 0.0);
        compare("messages of a step", report.messages as f64, all[0].messages(step) as f64, 0.0);
        compare("KiB of ranks", report.joined_bytes as f64 / 1024.0, bytes as f64 / 1024.0, apart);
        println!("{:>26} {:>12.0}", "KiB at the end", report.last_bytes as f64 / 1024.0);
    }
    let alone = alone(shape)?;
    if let Some(other) = reports.iter().find(|report| report.digest != alone) {
        return Err(format!(
            "the weights of rank {} are {}, those of one rank alone {alone}",
            other.first, other.digest
        )
        .into());
    }
    println!("weights {alone}, as one rank alone");
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("not as by formula: {}", wrong.join(", ")).into()),
    }
}

/// Runs the ranks of one process, each in a thread.
fn serve(shape: Shape, part: usize, port: u16) -> Result<()> {
    let ranks = shape.ranks / shape.processes;
    let first = part * ranks;
    let batches: Vec<Batch> = (0..=shape.steps).map(|number| batch(shape, number)).collect();
    let process = Process {
        shape,
        port,
        first,
        batches,
        begun: Instant::now(),
        open: open_files()?,
        resident: resident_bytes()?,
    };
    let report = Mutex::new(Report { first, ..Report::default() });
    std::thread::scope(|scope| -> Result<()> {
        let (process, report) = (&process, &report);
        let start = |rank| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, move || process.rank(rank, report))
        };
        let threads: Vec<_> = (first..first + ranks).map(start).collect::<std::io::Result<_>>()?;
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let report = report.into_inner().expect("no panic");
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// What all ranks of a process share.
struct Process {
    shape: Shape,
    port: u16,
    first: usize,
    batches: Vec<Batch>,
    begun: Instant,
    /// Before ranks join.
    open: usize,
    resident: u64,
}

impl Process {
    fn rank(&self, rank: usize, report: &Mutex<Report>) -> Result<()> {
        let counted = Arc::new(Counted::new(join(&options(self.shape, rank, self.port))?));
        let config = config(self.shape, self.shape.ranks);
        let communicator =
            Communicator::new(Arc::clone(&counted) as Arc<dyn Transport>, comm_options(&config));
        let is_first = rank == self.first;
        let report = || report.lock().expect("no panic");
        communicator.barrier()?;
        if is_first {
            report().together_s = self.begun.elapsed().as_secs_f64();
        }
        // Every rank has a message for every peer, so all connections are there.
        communicator.all_to_all(&vec![0_u8; self.shape.ranks], &mut vec![0; self.shape.ranks])?;
        communicator.barrier()?;
        if is_first {
            let mut report = report();
            report.joined_bytes = resident_bytes()?.saturating_sub(self.resident);
            report.descriptors = open_files()?.saturating_sub(self.open);
        }
        communicator.barrier()?;
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::new(partition(&config))),
            communicators: Some(vec![communicator]),
            ..RankGroupOptions::new(1, &registry)
        };
        let group = RankGroup::build(&config, &ROWS, options)?;
        group.prime(&self.batches[0])?;
        let (begun, before) = (Instant::now(), counted.messages());
        let last = self.batches.len() - 1;
        let digest = train(&group, &self.batches, |number| {
            let mut report = report();
            // The last step has no next batch, whose ids go before.
            if is_first && number + 1 == last {
                report.messages = (counted.messages() - before) / number;
            }
            if is_first && number == last {
                report.steps_s = begun.elapsed().as_secs_f64();
                report.last_bytes = resident_bytes().unwrap_or(0);
            }
        })?;
        group.close()?;
        let mut report = report();
        report.most_connections = report.most_connections.max(counted.peers());
        if is_first {
            report.digest = digest;
        } else if !report.digest.is_empty() && report.digest != digest {
            return Err(format!("rank {rank} has other weights than rank {}", self.first).into());
        }
        Ok(())
    }
}

/// Trains on all batches, the first of which is primed; `trained` hears the number of each.
fn train(group: &RankGroup, batches: &[Batch], trained: impl Fn(usize)) -> Result<String> {
    for (number, next) in batches.iter().enumerate().skip(1) {
        let rates = StepRates { number: number as u64, dense: 0.05, sparse: 0.1 };
        group.step(rates, Some(next).filter(|_| number + 1 < batches.len()))?;
        trained(number);
    }
    Ok(weights_digest(group)?)
}

/// The digest of one rank alone that trains on the same.
fn alone(shape: Shape) -> Result<String> {
    let registry = Registry::default();
    let config = config(shape, 1);
    let group = RankGroup::build(&config, &ROWS, RankGroupOptions::new(1, &registry))?;
    let batches: Vec<Batch> = (0..=shape.steps).map(|number| batch(shape, number)).collect();
    group.prime(&batches[0])?;
    train(&group, &batches, |_| {})
}

/// A transport that counts what leaves it, and to whom.
struct Counted {
    inner: Arc<TcpTransport>,
    messages: AtomicUsize,
    peers: Mutex<BTreeSet<usize>>,
}

impl Counted {
    fn new(inner: Arc<TcpTransport>) -> Self {
        Self { inner, messages: AtomicUsize::new(0), peers: Mutex::default() }
    }

    fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    fn peers(&self) -> usize {
        self.peers.lock().expect("no panic").len()
    }
}

impl Transport for Counted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn topology(&self) -> &Topology {
        self.inner.topology()
    }

    fn exchange(
        &self,
        id: &StepId,
        outgoing: &[Outgoing],
        incoming: &mut [Incoming],
    ) -> std::result::Result<(), CommError> {
        self.messages.fetch_add(outgoing.len(), Ordering::Relaxed);
        self.peers.lock().expect("no panic").extend(outgoing.iter().map(|message| message.to.0));
        self.inner.exchange(id, outgoing, incoming)
    }

    fn abort(&self, error: CommError) {
        self.inner.abort(error);
    }

    fn check(&self) -> std::result::Result<(), CommError> {
        self.inner.check()
    }

    fn close(&self) -> std::result::Result<(), CommError> {
        self.inner.close()
    }
}

fn options(shape: Shape, rank: usize, port: u16) -> JoinOptions {
    let launch = Launch {
        secret: SecretSource::Value(b"a secret of this example".into()),
        ..Launch::on_loopback(rank, shape.ranks, port)
    };
    // A processor that hundreds of ranks share lets none of them say in time that it lives.
    let deadlines = Deadlines {
        heartbeat: Duration::from_secs(12),
        silence: Duration::from_secs(60),
        handshake: Duration::from_secs(60),
        ..Deadlines::default()
    };
    JoinOptions { ranks_per_node: shape.per_node, deadlines, ..JoinOptions::new(launch, [0; 32]) }
}

fn config(shape: Shape, ranks: usize) -> Config {
    let mut config = Config::default();
    config.model.dim = DIM;
    config.model.bottom = vec![DIM];
    config.model.top = vec![16, 1];
    config.data.num_dense = DENSE;
    config.data.num_sparse = ROWS.len();
    config.train.batch_size = shape.ranks * SAMPLES;
    config.train.sum_blocks = Some(shape.ranks);
    config.eval.batch_size = shape.ranks * SAMPLES;
    config.run.ranks = ranks;
    config.run.schedule = ScheduleChoice::Serial;
    config.comm.exchange = AllToAll::Auto;
    config.comm.ids = IdsChoice::Exchange;
    config.optimizer.set_both("sgd").expect("a known optimiser");
    config.optimizer.resolve().expect("its settings are the defaults");
    config.validate().expect("it can be trained");
    config
}

/// One table replicated, one with one owner, one divided and its first rows replicated.
fn partition(config: &Config) -> Partition {
    let specs = table_specs(config, &ROWS);
    let divided = TablePlacement::RowWise { frequent: (0..20).collect(), placed: Vec::new() };
    let last = Owner(config.run.ranks - 1);
    let placements = vec![TablePlacement::DataParallel, divided, TablePlacement::TableWise(last)];
    Partition::new(&specs, config.run.ranks, placements).expect("the placements are valid")
}

/// Batch number `number`, the same on every rank.
fn batch(shape: Shape, number: u64) -> Batch {
    let (mut random, samples) = (Random::new(number), shape.ranks * SAMPLES);
    let ids = |rows: u64, random: &mut Random| Jagged {
        values: (0..samples).map(|_| random.below(rows)).collect(),
        offsets: (0..=samples as u32).collect(),
    };
    let sparse = ROWS.iter().map(|&rows| ids(rows, &mut random)).collect();
    Batch {
        num_samples: samples,
        labels: (0..samples).map(|_| random.below(2) as f32).collect(),
        dense: (0..samples * DENSE).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect(),
        sparse,
        ..Batch::default()
    }
}

fn open_files() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.ok_or("no VmRSS in /proc/self/status")? * 1024)
}
