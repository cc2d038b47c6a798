//! Snapshots of ranks on several machines, each with memory of its own: a machine is lost with all
//! that it had, and the run continues, on those that are left or with a new one.

#![cfg(test)]

use crate::elastic::{newest, training_of};
use crate::run_support::{Ended, Place, digest, names, wait_until};
use headlong_comm::rendezvous::reserve_port;
use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const STEPS: u64 = 200;

/// A run on machines that come and go.
struct Cluster {
    place: Place,
    ranks_per_machine: usize,
    /// Machines that there have been.
    count: usize,
}

impl Cluster {
    fn new(ranks_per_machine: usize) -> Self {
        Self { place: Place::new("rows.txt"), ranks_per_machine, count: 0 }
    }

    /// The memory of a machine that has just been started.
    fn machine(&mut self) -> PathBuf {
        self.count += 1;
        self.place.path(&format!("machine-{}", self.count))
    }

    /// Starts the ranks of these machines.
    fn start(&self, machines: &[PathBuf]) -> (OwnedFd, Vec<Child>) {
        let ranks_of = |machine| std::iter::repeat_n(machine, self.ranks_per_machine);
        self.start_in(&machines.iter().cloned().flat_map(ranks_of).collect::<Vec<_>>())
    }

    /// Starts a rank for each of these folders of snapshots.
    fn start_in(&self, folders: &[PathBuf]) -> (OwnedFd, Vec<Child>) {
        let (socket, port) = reserve_port(Ipv4Addr::LOCALHOST.into()).unwrap();
        let (ranks, per_machine) = (folders.len(), self.ranks_per_machine);
        let start = |rank: usize| {
            let run = training_of(&self.place, "log.json", STEPS);
            let run = run.with(&["--resume", "--snapshot-every", "5"]);
            let run = run.path("--snapshot-dir", &folders[rank]);
            // Of no effect without a folder for checkpoints.
            let run = run.with(&["--set", "checkpoint.save_every=5"]);
            let run = run.with(&["--set", &format!("comm.ranks_per_node={per_machine}")]);
            let mut command = run.command();
            command.env("HEADLONG_RANK", rank.to_string());
            command.env("HEADLONG_WORLD_SIZE", ranks.to_string());
            command.env("HEADLONG_MASTER_ADDR", "127.0.0.1");
            command.env("HEADLONG_MASTER_PORT", port.to_string());
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts")
        };
        (socket, (0..ranks).map(start).collect())
    }

    /// Trains until there are two more snapshots, and kills the ranks of a machine; gives what rank
    /// 0 has said.
    fn interrupt(&self, machines: &[PathBuf], killed: usize) -> String {
        let (_socket, mut ranks) = self.start(machines);
        // One of these is there from the beginning, where one is.
        let newest = || machines.iter().filter_map(|memory| newest(memory)).max().unwrap_or(0);
        let before = newest();
        wait_until("two snapshots", || {
            ranks[0].try_wait().unwrap().is_some() || newest() >= before + 10
        });
        let own = killed * self.ranks_per_machine;
        for rank in &mut ranks[own..own + self.ranks_per_machine] {
            rank.kill().unwrap();
        }
        said_by_rank_0(ranks)
    }

    /// The same, and what the machine had is gone.
    fn lose(&self, machines: &mut Vec<PathBuf>, lost: usize) -> String {
        let said = self.interrupt(machines, lost);
        let memory = machines.remove(lost);
        fs::remove_dir_all(memory).unwrap_or_else(|error| panic!("{error}: {said}"));
        said
    }

    /// Trains to the end, which must be that of a run that no one disturbed.
    fn finish(&self, machines: &[PathBuf]) -> String {
        let (_socket, ranks) = self.start(machines);
        let said = said_by_rank_0(ranks);
        training_of(&self.place, "alone.json", STEPS).succeeds();
        let [run, alone] = ["log.json", "alone.json"].map(|log| digest(&self.place.path(log)));
        assert_eq!(run, alone, "other weights than one process: {said}");
        said
    }
}

fn said_by_rank_0(ranks: Vec<Child>) -> String {
    let ended = ranks.into_iter().map(|rank| Ended::of(rank.wait_with_output().unwrap()));
    ended.collect::<Vec<_>>().swap_remove(0).stderr
}

/// The machines that have each file of the newest snapshot.
fn holders(machines: &[PathBuf]) -> BTreeMap<String, Vec<usize>> {
    let mut holders: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, machine) in machines.iter().enumerate() {
        let step = newest(machine).expect("a snapshot");
        for name in names(&machine.join(format!("step-{step:09}"))) {
            holders.entry(name).or_default().push(number);
        }
    }
    holders
}

#[test]
fn a_lost_machine_is_replaced() {
    let mut cluster = Cluster::new(1);
    let mut machines: Vec<PathBuf> = (0..4).map(|_| cluster.machine()).collect();
    for lost in [1, 0, 3] {
        let said = cluster.lose(&mut machines, lost);
        assert_eq!(said.contains("from a snapshot"), lost != 1, "{said}");
        let fresh = cluster.machine();
        machines.insert(lost, fresh);
    }
    let said = cluster.finish(&machines);
    assert!(said.contains("from a snapshot"), "{said}");
    for (name, machines) in holders(&machines) {
        let count = if name.ends_with(".safetensors") { 2 } else { 4 };
        assert_eq!(machines.len(), count, "{name} is on {machines:?}");
    }
}

#[test]
fn a_lost_machine_is_done_without_until_there_is_another() {
    let mut cluster = Cluster::new(2);
    let mut machines: Vec<PathBuf> = (0..2).map(|_| cluster.machine()).collect();
    cluster.lose(&mut machines, 0);
    let said = cluster.interrupt(&machines, 0);
    assert!(said.contains("from a snapshot"), "{said}");
    machines.insert(0, cluster.machine());
    let said = cluster.finish(&machines);
    assert!(said.contains("from a snapshot"), "{said}");
}

#[test]
fn two_machines_that_are_lost_together_cost_the_snapshot() {
    let mut cluster = Cluster::new(1);
    let mut machines: Vec<PathBuf> = (0..4).map(|_| cluster.machine()).collect();
    cluster.lose(&mut machines, 1);
    let away = machines.remove(1);
    machines.extend([cluster.machine(), cluster.machine()]);
    let said = cluster.lose(&mut machines, 3);
    assert!(!said.contains("from a snapshot"), "{said}");
    assert!(said.contains("the machines of this job lack a part of it"), "{said}");
    // The second one comes too late: there are newer ones.
    machines.push(away);
    let said = cluster.finish(&machines);
    assert!(said.contains("from a snapshot"), "{said}");
}

#[test]
fn a_damaged_copy_is_done_without() {
    let mut cluster = Cluster::new(1);
    let machines: Vec<PathBuf> = (0..2).map(|_| cluster.machine()).collect();
    cluster.interrupt(&machines, 1);
    let damage = |machine: &Path, name: &str| {
        let step = newest(machine).expect("a snapshot");
        let file = machine.join(format!("step-{step:09}")).join(name);
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).unwrap();
    };
    damage(&machines[0], "dense.safetensors");
    damage(&machines[1], "config.toml");
    // The one before may still be there.
    let said = cluster.interrupt(&machines, 1);
    assert!(said.contains("is corrupted"), "{said}");
    // Another one on each machine, of which one has another length.
    damage(&machines[0], "dense.safetensors");
    let step = newest(&machines[1]).expect("a snapshot");
    let folder = machines[1].join(format!("step-{step:09}"));
    let tables = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let table = tables.filter(|path| path.to_string_lossy().contains("tables")).min().unwrap();
    let file = fs::File::options().append(true).open(&table).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();
    let said = cluster.finish(&machines);
    assert!(said.contains("is corrupted") && said.contains("from a snapshot"), "{said}");
}

/// One process has no one to ask, and no use for a part.
#[test]
fn one_process_starts_over_next_to_a_part() {
    let mut cluster = Cluster::new(1);
    let mut machines: Vec<PathBuf> = (0..4).map(|_| cluster.machine()).collect();
    cluster.interrupt(&machines, 1);
    machines.truncate(1);
    let said = cluster.finish(&machines);
    assert!(!said.contains("from a snapshot"), "{said}");
    assert!(said.contains("the machines of this job lack a part of it"), "{said}");
}

#[test]
fn ranks_of_one_machine_need_one_folder() {
    let mut cluster = Cluster::new(2);
    let [one, other] = [cluster.machine(), cluster.machine()];
    fs::create_dir(&other).unwrap();
    let (_socket, ranks) = cluster.start_in(&[one, other]);
    let said = said_by_rank_0(ranks);
    assert!(
        said.contains("rank 1 has another ") && said.contains("need the same folder"),
        "{said}"
    );
}

/// What another run has left on one machine costs the job nothing of its own.
#[test]
fn another_runs_snapshot_on_one_machine_is_refused_before_anything_is_changed() {
    let mut cluster = Cluster::new(1);
    let mut machines: Vec<PathBuf> = (0..2).map(|_| cluster.machine()).collect();
    cluster.interrupt(&machines, 0);
    let foreign = cluster.machine();
    let other = Place::new("rows.txt");
    let run = training_of(&other, "foreign.json", STEPS);
    run.with(&["--snapshot-every", "5"]).path("--snapshot-dir", &foreign).succeeds();
    let kept = newest(&machines[1]);
    let (_socket, ranks) = cluster.start(&[foreign, machines[1].clone()]);
    let said = said_by_rank_0(ranks);
    assert!(said.contains("is a snapshot of another run (run.output_dir = "), "{said}");
    assert_eq!(newest(&machines[1]), kept);
    machines[0] = cluster.machine();
    let said = cluster.finish(&machines);
    assert!(said.contains("from a snapshot"), "{said}");
}
