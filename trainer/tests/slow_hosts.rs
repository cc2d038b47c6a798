//! What takes longer on one rank's host than another rank may take to come to an exchange: a slow
//! disk, slow data, a log that its reader does not read. The rank says that it is busy, and the
//! others wait.

#![cfg(test)]

use crate::run_support::{Place, rows, steps};
use headlong::config::preset::preset;
use headlong::config::{Config, HybridMode};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options};
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start};
use headlong::state::checkpoint::{FileWriter, Files, SystemFiles, newest};
use headlong_comm::Communicator;
use headlong_comm::launcher_env::Launch;
use headlong_comm::rendezvous::{JoinOptions, join};
use headlong_embedding::Registry;
use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// No rank may take longer to come to an exchange.
const DEADLINE_S: f64 = 1.5;
/// Everything slow takes this long.
const SLOW: Duration = Duration::from_millis(3500);

/// A disk that flushes the name of the first checkpoint slowly, and removes a checkpoint slowly.
#[derive(Default)]
struct SlowDisk {
    flushes: AtomicUsize,
}

impl Files for SlowDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        SystemFiles.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        SystemFiles.create_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.flushes.fetch_add(1, Ordering::Relaxed) == 0 {
            std::thread::sleep(SLOW);
        }
        SystemFiles.sync_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        std::thread::sleep(SLOW);
        SystemFiles.remove_dir_all(path)
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        SystemFiles.free_bytes(path)
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A rank of a job of two whose ranks reach each other as processes do.
fn joined(rank: usize, port: u16, config: &Config) -> Communicator {
    let launch = Launch::on_loopback(rank, 2, port);
    let mut options = JoinOptions::new(launch, [3; 32]);
    options.deadlines.operation = config.comm.deadline();
    Communicator::new(join(&options).unwrap(), comm_options(config))
}

/// What a rank of a job of two does: a few steps, with two saves, of which the second removes the
/// first.
fn train_and_save(
    rank: usize,
    port: u16,
    config: &Config,
    prepared: &Prepared,
    files: Arc<dyn Files>,
) {
    let registry = Registry::default();
    let communicators = Some(vec![joined(rank, port, config)]);
    let options = RankGroupOptions { communicators, ..RankGroupOptions::new(1, &registry) };
    let group = RankGroup::build(config, &prepared.table_rows, options).unwrap();
    let data = prepared.session_data(config, 1).unwrap();
    let mut session = Session::open(config, group, data, &Start::Fresh).unwrap();
    session.save_through(files).unwrap();
    while session.step().unwrap().is_some() {
        if session.steps() <= 2 {
            session.save(None).unwrap();
        }
    }
    session.group().close().unwrap();
}

/// A small model, on the rows of a place.
fn config(place: &Place) -> Config {
    let mut config = preset("criteo-hashed").unwrap();
    config.data.train = vec![place.train.clone().into()];
    config.synthetic.enabled = false;
    config.run.output_dir = place.path("output");
    config.checkpoint.dir = Some(place.path("checkpoints"));
    config.checkpoint.keep = 1;
    config.run.ranks = 2;
    config.run.hybrid = HybridMode::Off;
    config.comm.deadline_s = DEADLINE_S;
    let small = [
        "model.dim=8",
        "model.bottom=[16,8]",
        "model.top=[16,1]",
        "tables.rows=500",
        "train.batch_size=64",
    ];
    config.set_all(&small).unwrap();
    config.validate().unwrap();
    config
}

/// Both ranks, which end well. Rank 1 reads `slow` in place of the rows that both count before they
/// begin.
fn train_on(place: &Place, disk: Arc<dyn Files>, slow: Option<&Path>) {
    let (config, port) = (config(place), free_port());
    let prepare = || Prepared::new(&config, None, 1, &Reporter::quiet(None)).unwrap();
    let mut prepared = [prepare(), prepare()];
    prepared[1].train = slow.map_or(prepared[1].train.clone(), |slow| vec![slow.to_owned().into()]);
    std::thread::scope(|scope| {
        let (config, [first, second]) = (&config, &prepared);
        let threads = [
            scope.spawn(move || train_and_save(0, port, config, first, disk)),
            scope.spawn(move || train_and_save(1, port, config, second, Arc::new(SystemFiles))),
        ];
        threads.into_iter().for_each(|rank| rank.join().expect("every rank has gone on"));
    });
}

#[test]
fn a_slow_disk_ends_no_job() {
    let (place, begin) = (Place::new("rows.txt"), Instant::now());
    train_on(&place, Arc::<SlowDisk>::default(), None);
    assert!(begin.elapsed() > SLOW * 2, "the disk was slow twice");
    let folder = place.path("checkpoints");
    assert_eq!(steps(&folder), [2]);
    newest(&folder).unwrap().expect("it is there").verify().unwrap();
}

/// Rank 1 reads its rows from a pipe whose writer pauses: as a slow disk would.
#[test]
fn data_that_come_slowly_end_no_job() {
    let (place, begin) = (Place::new("rows.txt"), Instant::now());
    let pipe = place.path("pipe");
    make_pipe(&pipe);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let text = rows(1500, 7);
            let (first, second) = text.split_at(text.len() / 2);
            let mut pipe = std::fs::File::options().write(true).open(&pipe).unwrap();
            pipe.write_all(first.as_bytes()).unwrap();
            std::thread::sleep(SLOW);
            pipe.write_all(second.as_bytes()).unwrap();
        });
        train_on(&place, Arc::new(SystemFiles), Some(&pipe));
    });
    assert!(begin.elapsed() > SLOW, "the data came slowly");
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Rank 0 writes its log into a pipe, which is opened late and then not read for a while.
#[test]
fn a_log_that_is_read_slowly_ends_no_job() {
    let place = Place::new("rows.txt");
    let pipe = place.path("log.json");
    make_pipe(&pipe);
    let deadline = format!("comm.deadline_s={DEADLINE_S}");
    let train =
        place.train().with(&["--epochs", "20", "--set", "sum_blocks=2", "--set", &deadline]);
    let train = train.path("--log-json", &pipe);
    let child =
        train.launched(2).command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(SLOW);
    let mut log = std::fs::File::open(&pipe).unwrap();
    let mut text = vec![0; 4096];
    log.read_exact(&mut text).unwrap();
    std::thread::sleep(SLOW);
    log.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(text).unwrap();
    assert!(text.len() > 96 << 10, "more than a pipe holds: {}", text.len());
    assert!(text.lines().last().is_some_and(|line| line.contains("\"done\"")), "{text}");
}
