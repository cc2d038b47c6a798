//! One attempt of a job: its processes, their disks, and the judge of how it has ended.

use super::machines::{Machines, assembled};
use super::model::{Shared, Together};
use super::{Disk, STEPS};
use crate::checkpoint_support::faulty::{Fault as DiskFault, FaultyFiles};
use crate::checkpoint_support::{Toy, options, snapshot};
use headlong::state::checkpoint::{
    CheckpointDirectory, CheckpointError, DEFAULT_SHARD_BYTES, DirectoryOptions, FileWriter, Files,
    Mirrored, Select, Snapshot, gather_mirrored, newest, newest_part, save_mirrored,
    take_part_in_save,
};
use headlong_comm_simulated::launcher_env::{Launch, SecretSource};
use headlong_comm_simulated::rendezvous::{Deadlines, JoinOptions, join};
use headlong_comm_simulated::system::{Body, Finish, Options, Report, machine, now, run, sleep};
use headlong_comm_simulated::testing::sim::Random;
use headlong_comm_simulated::{CommError, CommOptions, Communicator, Rank};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const DEADLINES: Deadlines = Deadlines {
    rendezvous: Duration::from_secs(12),
    operation: Duration::from_secs(6),
    heartbeat: Duration::from_millis(200),
    silence: Duration::from_secs(2),
    handshake: Duration::from_secs(4),
    notice: Duration::from_secs(30),
};

/// A folder for checkpoints that costs no disk.
pub fn folder_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .unwrap()
}

/// What befalls a job from its start to its end.
#[derive(Debug)]
pub struct Attempt {
    pub options: Options,
    pub disks: Vec<Disk>,
    /// Where each machine has a folder of its own: which.
    pub machines: Option<Machines>,
}

/// How an attempt has ended.
#[derive(Debug)]
pub struct Ended {
    pub report: Report,
    finishes: Vec<Finish<Result<(), Failure>>>,
    saved: u64,
}

/// Why a process has not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Of another process, or of the network.
    Comm(String),
    /// Of its own disk, or of somebody's while it saves.
    Save(String),
    /// It is gone with its disk.
    Crashed,
    /// What no process may see.
    Wrong(String),
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        Self::Comm(error.to_string())
    }
}

impl Attempt {
    /// Plays it in `folder`, which holds a checkpoint of step `kept`, or none of 0.
    pub fn run(&self, folder: &Path, kept: u64) -> Ended {
        let saved = Arc::new(AtomicU64::new(kept));
        let disks: Vec<SlowFiles> = self.disks.iter().map(SlowFiles::new).collect();
        let mut bodies = Vec::new();
        for (rank, disk) in disks.iter().enumerate() {
            let (disk, saved) = (disk.clone(), Arc::clone(&saved));
            let (mut folder, num_ranks) = (folder.to_owned(), self.disks.len());
            let machines = self.machines.clone();
            if let Some(machines) = &machines {
                folder = machines.folder(&folder, machines.of(rank));
            }
            let process = Process { rank, num_ranks, folder, machines, disk, saved };
            let work = Box::new(move || process.live());
            bodies.push(Body { rank: Some(rank), name: "main", work: work as Box<_> });
        }
        let (finishes, report) = run(self.options.clone(), bodies);
        for (disk, files) in self.disks.iter().zip(&disks) {
            if matches!(disk.fault, Some((DiskFault::Crash, _))) {
                files.inner.lose(disk.loss);
            }
        }
        Ended { report, finishes, saved: saved.load(Ordering::Relaxed) }
    }

    /// How much has happened.
    pub fn happenings(&self, ended: &Ended) -> usize {
        let disks = self.disks.iter().filter(|disk| disk.fault.is_some()).count();
        ended.report.faults.len() + disks
    }
}

impl Ended {
    /// The last step of which process 0 knows that it is saved.
    pub fn saved(&self) -> u64 {
        self.saved
    }

    pub fn has_failed(&self) -> bool {
        self.finishes.iter().any(|finish| *finish != Finish::Done(Ok(())))
    }

    /// The step of the checkpoint that is kept: at least this one.
    ///
    /// # Errors
    /// What is wrong with how the attempt has ended.
    pub fn judge(
        &self,
        folder: &Path,
        machines: Option<&Machines>,
        (least, is_calm): (u64, bool),
    ) -> Result<u64, String> {
        if let Some(finding) = &self.report.finding {
            return Err(finding.clone());
        }
        for (rank, finish) in self.finishes.iter().enumerate() {
            match finish {
                Finish::Panicked(words) => return Err(format!("rank {rank} panicked: {words}")),
                Finish::Done(Err(Failure::Wrong(what))) => {
                    return Err(format!("rank {rank}: {what}"));
                }
                Finish::Done(Ok(())) => {}
                _ if is_calm => return Err(format!("rank {rank} ended with {finish:?}")),
                _ => {}
            }
        }
        let whole = machines.map(|machines| assembled(folder, machines)).transpose();
        let whole = whole.map_err(|error| format!("what the machines have: {error}"))?;
        let found = newest(whole.as_ref().map_or(folder, TempDir::path));
        let found = match found.map_err(|error| format!("the newest one: {error}"))? {
            Some(checkpoint) => {
                checkpoint.verify().map_err(|error| format!("the newest one: {error}"))?;
                let mut toy = Toy::blank();
                checkpoint.load(&mut toy, Select::All).map_err(|error| error.to_string())?;
                let step = checkpoint.manifest().state.step;
                if toy.bits() != Toy::new(step as u32).bits() {
                    return Err(format!("the checkpoint of step {step} holds another model"));
                }
                step
            }
            None => 0,
        };
        match found {
            _ if found < least => Err(format!("step {least} was saved, {found} is there")),
            _ if found > self.saved + 1 => Err(format!("step {found} came out of nothing")),
            _ if is_calm && found != STEPS => Err(format!("it ends at step {found}")),
            _ => Ok(found),
        }
    }
}

/// A process of the job.
struct Process {
    rank: usize,
    num_ranks: usize,
    folder: PathBuf,
    machines: Option<Machines>,
    disk: SlowFiles,
    saved: Arc<AtomicU64>,
}

impl Process {
    fn live(&self) -> Result<(), Failure> {
        let launch = Launch {
            master_host: machine(0).to_string(),
            secret: SecretSource::Value(b"a secret of the history".into()),
            ..Launch::on_loopback(self.rank, self.num_ranks, 29_577)
        };
        let options = JoinOptions {
            deadlines: DEADLINES,
            ranks_per_node: self.machines.as_ref().map_or(1, |machines| machines.ranks_of_one),
            ..JoinOptions::new(launch, [7; 32])
        };
        let communicator = Communicator::new(join(&options)?, CommOptions::default());
        let result = self.train(&communicator);
        match &result {
            // What has crashed says nothing any more.
            Err(Failure::Crashed) | Ok(()) => {}
            Err(failure) => {
                let (culprit, reason) = (Rank(self.rank), format!("{failure:?}"));
                communicator.abort(CommError::Aborted { culprit, reason });
            }
        }
        result
    }

    fn train(&self, communicator: &Communicator) -> Result<(), Failure> {
        let files = Arc::new(self.disk.clone());
        let has_parts = self.machines.is_some();
        let options = DirectoryOptions { files, has_parts, ..options(DEFAULT_SHARD_BYTES, 1) };
        let mut directory = None;
        let ranks_of_one = self.machines.as_ref().map_or(self.num_ranks, |it| it.ranks_of_one);
        if self.rank.is_multiple_of(ranks_of_one) {
            let opened = CheckpointDirectory::open(&self.folder, options);
            directory = Some(opened.map_err(|error| self.failed(error))?);
        }
        communicator.barrier()?;
        if has_parts {
            let gathered = gather_mirrored(directory.as_ref(), &Together(communicator));
            gathered.map_err(|error| self.failed(error))?;
            directory.iter().for_each(|directory| drop(directory.finish()));
            communicator.barrier()?;
        }
        let mut step = self.resume(communicator)?;
        while step < STEPS {
            step += 1;
            sleep(Duration::from_millis(3 + self.rank as u64));
            let busy = communicator.busy("saves a checkpoint");
            let model = Shared::behind(step, communicator);
            let snapshot = snapshot(&model.toy, step);
            let snapshot = Snapshot { source: &model, ..snapshot };
            let saved = match &directory {
                directory if has_parts => {
                    let (files, folder) = (&self.disk, self.folder.as_path());
                    let own = Mirrored { files, folder, directory: directory.as_ref() };
                    let snapshot = (self.rank == 0).then_some(&snapshot);
                    save_mirrored(&own, &model, step, snapshot).map(drop)
                }
                Some(directory) => directory.save(&snapshot).map(drop),
                None => take_part_in_save(&self.disk, &self.folder, &model, step),
            };
            saved.map_err(|error| self.failed(error))?;
            if self.rank == 0 {
                self.saved.store(step, Ordering::Relaxed);
            }
            // Its thread is no part of the history.
            directory.iter().for_each(|directory| drop(directory.finish()));
            drop(busy);
            communicator.barrier()?;
        }
        Ok(communicator.close()?)
    }

    /// Loads what is there; the step that it was saved behind.
    fn resume(&self, communicator: &Communicator) -> Result<u64, Failure> {
        let found = match self.machines {
            Some(_) => newest_part(&self.folder),
            None => newest(&self.folder),
        };
        let found = found.map_err(|error| Failure::Wrong(error.to_string()))?;
        let step = found.as_ref().map_or(0, |found| found.manifest().state.step);
        let mut steps = vec![0; self.num_ranks];
        communicator.all_gather(&[step], &mut steps)?;
        if steps.iter().any(|other| *other != step) {
            return Err(Failure::Wrong(format!("processes find different steps: {steps:?}")));
        }
        let Some(found) = found else { return Ok(0) };
        let expected = Shared::behind(step, communicator);
        let mut model = Shared { toy: Toy::blank(), communicator };
        found.load(&mut model, Select::All).map_err(|error| self.failed(error))?;
        // What lies with others comes as zeros, except of tables that each process reads whole.
        let whole = Toy::new(step as u32);
        for (tensor, values) in &expected.toy.values {
            let loaded = &model.toy.values[tensor];
            if loaded != values && *loaded != whole.values[tensor] {
                return Err(Failure::Wrong(format!("step {step}: {tensor:?} has other rows")));
            }
        }
        Ok(step)
    }

    fn failed(&self, error: CheckpointError) -> Failure {
        match self.disk.has_crashed() {
            true => Failure::Crashed,
            false => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                Failure::Save(format!("{error}: {}", cause.unwrap_or_default()))
            }
        }
    }
}

/// A disk that takes its time.
#[derive(Clone)]
struct SlowFiles {
    inner: FaultyFiles,
    crash_at: Option<usize>,
    slowness: u64,
    random: Arc<Mutex<Random>>,
}

impl SlowFiles {
    fn new(disk: &Disk) -> Self {
        let (fault, at) = disk.fault.unwrap_or((DiskFault::Once, usize::MAX));
        Self {
            inner: FaultyFiles::new(fault, at),
            crash_at: (fault == DiskFault::Crash).then_some(at),
            slowness: disk.slowness,
            random: Arc::new(Mutex::new(Random::new(disk.slowness ^ at as u64))),
        }
    }

    fn has_crashed(&self) -> bool {
        self.crash_at.is_some_and(|at| self.inner.operations() > at)
    }

    fn takes_time(&self) {
        let time = self.random.lock().unwrap().below(self.slowness);
        // The thread that removes what is superfluous is no part of the history: it has no time.
        if now() > 0 {
            sleep(Duration::from_nanos(time));
        }
    }
}

impl Files for SlowFiles {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.takes_time();
        self.inner.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        self.takes_time();
        let inner = self.inner.create_file(path)?;
        Ok(Box::new(SlowWriter { disk: self.clone(), inner }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.takes_time();
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.takes_time();
        self.inner.sync_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.takes_time();
        self.inner.remove_dir_all(path)
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        self.inner.free_bytes(path)
    }
}

struct SlowWriter {
    disk: SlowFiles,
    inner: Box<dyn FileWriter>,
}

impl Write for SlowWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.takes_time();
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileWriter for SlowWriter {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.takes_time();
        self.inner.sync()
    }
}
