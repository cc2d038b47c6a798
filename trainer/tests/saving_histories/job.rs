//! One attempt of a job: its processes, their disks, and the judge of how it has ended.

use super::model::Shared;
use super::{Disk, STEPS};
use crate::checkpoint_support::faulty::{Fault as DiskFault, FaultyFiles};
use crate::checkpoint_support::{Toy, options, snapshot};
use headlong::state::checkpoint::{
    CheckpointDirectory, CheckpointError, DEFAULT_SHARD_BYTES, DirectoryOptions, FileWriter, Files,
    Select, newest, take_part_in_save,
};
use headlong_comm_simulated::launcher_env::{Launch, Launcher, SecretSource};
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
}

/// How an attempt has ended.
#[derive(Debug)]
pub struct Ended {
    pub report: Report,
    finishes: Vec<Finish<Result<(), Failure>>>,
    /// The last step of which process 0 knows that it is saved.
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
            let (folder, num_ranks) = (folder.to_owned(), self.disks.len());
            let work = Box::new(move || Process { rank, num_ranks, folder, disk, saved }.live());
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
    pub fn has_failed(&self) -> bool {
        self.finishes.iter().any(|finish| *finish != Finish::Done(Ok(())))
    }

    /// The step of the checkpoint that is kept.
    ///
    /// # Errors
    /// What is wrong with how the attempt has ended.
    pub fn judge(&self, folder: &Path, kept: u64, is_calm: bool) -> Result<u64, String> {
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
        let found = newest(folder).map_err(|error| format!("the newest one: {error}"))?;
        let found = match found {
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
            _ if found < self.saved.max(kept) => {
                Err(format!("step {} was saved, {found} is there", self.saved.max(kept)))
            }
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
    disk: SlowFiles,
    saved: Arc<AtomicU64>,
}

impl Process {
    fn live(&self) -> Result<(), Failure> {
        let launch = Launch {
            launcher: Launcher::Headlong,
            rank: Rank(self.rank),
            world_size: self.num_ranks,
            local_rank: None,
            local_size: None,
            master_host: machine(0).to_string(),
            master_port: 29_577,
            job: "simulated".into(),
            secret: SecretSource::Value(b"a secret of the history".into()),
            remarks: Vec::new(),
        };
        let options = JoinOptions {
            deadlines: DEADLINES,
            ranks_per_node: 1,
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
        let options = DirectoryOptions { files, ..options(DEFAULT_SHARD_BYTES, 1) };
        let mut directory = None;
        if self.rank == 0 {
            let opened = CheckpointDirectory::open(&self.folder, options);
            directory = Some(opened.map_err(|error| self.failed(error))?);
        }
        communicator.barrier()?;
        let mut step = self.resume(communicator)?;
        while step < STEPS {
            step += 1;
            sleep(Duration::from_millis(3 + self.rank as u64));
            let busy = communicator.busy("saves a checkpoint");
            let model = Shared::behind(step, communicator);
            match &directory {
                Some(directory) => {
                    let snapshot = snapshot(&model.toy, step);
                    let snapshot =
                        headlong::state::checkpoint::Snapshot { source: &model, ..snapshot };
                    directory.save(&snapshot).map_err(|error| self.failed(error))?;
                    self.saved.store(step, Ordering::Relaxed);
                    // Its thread is no part of the history.
                    directory.finish();
                }
                None => take_part_in_save(&self.disk, &self.folder, &model, step)
                    .map_err(|error| self.failed(error))?,
            }
            drop(busy);
            communicator.barrier()?;
        }
        Ok(communicator.close()?)
    }

    /// Loads what is there; the step that it was saved behind.
    fn resume(&self, communicator: &Communicator) -> Result<u64, Failure> {
        let found = newest(&self.folder).map_err(|error| Failure::Wrong(error.to_string()))?;
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
