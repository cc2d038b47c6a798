//! Processes that save together: each writes its own files, rows travel to their writer alone, and
//! what a crash or an error of any of them leaves is the checkpoint before.

#![cfg(test)]

use crate::checkpoint_support::faulty::{Fault, FaultyFiles, Loss};
use crate::run_support::{Place, steps};
use headlong::config::preset::preset;
use headlong::config::{Config, HybridMode, Sharded, TableEntry};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options, local_topology};
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start, find_checkpoint};
use headlong::state::checkpoint::{Content, FileWriter, Files, SystemFiles, newest};
use headlong_comm::Communicator;
use headlong_embedding::hybrid::{Owner, Partition, Place as RowPlace, TablePlacement};
use headlong_embedding::{Keys, Registry};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Files that note who made which.
#[derive(Clone, Default)]
struct Made {
    process: usize,
    by: Arc<Mutex<HashMap<String, usize>>>,
}

impl Files for Made {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        SystemFiles.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        self.by.lock().unwrap().insert(name, self.process);
        SystemFiles.create_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        SystemFiles.sync_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove_dir_all(path)
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        SystemFiles.free_bytes(path)
    }
}

/// A small model on the rows of a place; the third table is one of raw ids.
fn config(place: &Place, ranks: usize) -> Config {
    let mut config = preset("criteo-hashed").unwrap();
    config.data.train = vec![place.train.clone().into()];
    config.synthetic.enabled = false;
    config.run.output_dir = place.path("output");
    config.checkpoint.dir = Some(place.path("checkpoints"));
    config.checkpoint.keep = 1;
    (config.run.ranks, config.run.hybrid) = (ranks, HybridMode::Off);
    config.comm.deadline_s = 20.0;
    let small = [
        "model.dim=8",
        "model.bottom=[16,8]",
        "model.top=[16,1]",
        "tables.rows=500",
        "train.batch_size=64",
        "train.steps=3",
    ];
    config.set_all(&small).unwrap();
    config.train.sum_blocks = Some(ranks);
    let hashed =
        TableEntry { name: "C3".into(), kind: Some("hashed".into()), ..TableEntry::default() };
    config.table = vec![hashed];
    config.optimizer.set_both("adam").unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

fn prepared(config: &Config) -> Prepared {
    Prepared::new(config, None, 1, &Reporter::quiet(None)).unwrap()
}

/// Every way of placing a table, one after the other.
fn partition(config: &Config, rows: &[u64]) -> Arc<Partition> {
    let specs = headlong::iteration::model::table_specs(config, rows);
    let ranks = config.run.ranks;
    let placement = |(index, spec): (usize, &headlong_embedding::TableSpec)| match index % 4 {
        _ if spec.keys == Keys::RawIds => TablePlacement::by_formula(),
        0 => TablePlacement::DataParallel,
        1 => TablePlacement::TableWise(Owner(index % ranks)),
        2 => TablePlacement::by_formula(),
        _ => TablePlacement::RowWise {
            frequent: vec![0, 3, 77],
            placed: vec![(1, Owner(ranks - 1)), (78, Owner(0))],
        },
    };
    let placements = specs.iter().enumerate().map(placement).collect();
    Arc::new(Partition::new(&specs, ranks, placements).unwrap())
}

/// As many processes as the configuration has ranks, here threads that reach each other as
/// processes do: each does its part of `work`.
fn processes<T: Send>(
    configs: &[Config],
    resumes: bool,
    work: impl Fn(usize, headlong::error::Result<Session>) -> T + Sync,
) -> Vec<T> {
    let communicators =
        Communicator::local(&local_topology(&configs[0]), comm_options(&configs[0]));
    std::thread::scope(|scope| {
        let ranks = communicators.into_iter().zip(configs).enumerate();
        let threads: Vec<_> = ranks
            .map(|(process, (communicator, config))| {
                let work = &work;
                scope.spawn(move || {
                    let prepared = prepared(config);
                    let (registry, rows) = (Registry::default(), &prepared.table_rows);
                    let options = RankGroupOptions {
                        communicators: Some(vec![communicator]),
                        partition: Some(partition(config, rows)),
                        ..RankGroupOptions::new(1, &registry)
                    };
                    let group = RankGroup::build(config, rows, options).unwrap();
                    let data = prepared.session_data(config, 1).unwrap();
                    let resumed = find_checkpoint(config, resumes, false).unwrap();
                    let start = Start::new(resumed.as_ref(), None);
                    work(process, Session::open(config, group, data, &start))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sent(session: &Session) -> u64 {
    let group = session.group();
    let counters = group.first().model().communicator.counters();
    counters.intra_node_bytes() + counters.inter_node_bytes()
}

/// Bytes of the rows in the newest checkpoint that do not lie with the process that wrote them.
fn moved(config: &Config, made: &HashMap<String, usize>) -> u64 {
    let checkpoint = newest(config.checkpoint.dir.as_ref().unwrap()).unwrap().unwrap();
    let manifest = checkpoint.manifest();
    let partition = partition(config, &prepared(config).table_rows);
    let mut bytes = 0;
    for file in &manifest.files {
        let Content::Rows { ranges } = &file.content else { continue };
        for range in ranges {
            let table = manifest.layout.tables.iter().position(|table| table.name == range.table);
            let (index, table) = (table.unwrap(), &manifest.layout.tables[table.unwrap()]);
            let width = table.dim + table.states.iter().map(|state| state.width).sum::<u64>();
            let moves = |row: &u64| match partition.classify(index, *row) {
                RowPlace::Frequent(_) => false,
                RowPlace::Infrequent { owner, .. } => owner.0 != made[&file.file],
            };
            let rows = (range.first_row..range.first_row + range.rows).filter(moves).count() as u64;
            bytes += rows * width * 4;
        }
    }
    bytes
}

/// Trains three steps on eight processes and saves.
fn save_on_eight(configs: &[Config]) -> (HashMap<String, usize>, Vec<u64>, String) {
    let made = Made::default();
    let done = processes(configs, false, |process, session| {
        let mut session = session.unwrap();
        session.save_through(Arc::new(Made { process, by: Arc::clone(&made.by) })).unwrap();
        session.step().unwrap();
        let before = sent(&session);
        let saved = session.save(None).unwrap();
        let sent = sent(&session) - before;
        let warnings = saved.map_or(Vec::new(), |report| report.warnings);
        let is_shared = configs.iter().all(|one| one.checkpoint.dir == configs[0].checkpoint.dir);
        assert_eq!(warnings.is_empty(), process > 0 || is_shared, "{warnings:?}");
        let digest = session.weights_digest().unwrap();
        session.group().close().unwrap();
        (sent, digest)
    });
    let digests: Vec<_> = done.iter().map(|(_, digest)| digest).collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    let made = made.by.lock().unwrap().clone();
    (made, done.iter().map(|(sent, _)| *sent).collect(), digests[0].clone())
}

#[test]
fn eight_processes_write_their_rows_and_move_no_others() {
    let place = Place::new("rows.txt");
    let mut config = config(&place, 8);
    config.table.clear();
    config.set_all(&["tables.rows=5000"]).unwrap();
    let (made, sent, digest) = save_on_eight(&vec![config.clone(); 8]);
    let folder = config.checkpoint.dir.as_ref().unwrap();
    let checkpoint = newest(folder).unwrap().unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(checkpoint.manifest().weights_digest, digest);
    let writers: std::collections::BTreeSet<_> = made.values().collect();
    assert_eq!(writers.len(), 8, "{made:?}");
    let (sent, moved) = (sent.iter().sum::<u64>(), moved(&config, &made));
    println!("{sent} bytes sent, {moved} moved");
    assert!(sent as f64 <= 1.05 * moved as f64 && sent >= moved, "{sent} of {moved}");
}

/// Raw ids and a divided optimiser besides; two processes go on from it.
#[test]
fn what_eight_processes_save_any_number_goes_on_from() {
    let place = Place::new("rows.txt");
    let mut config = config(&place, 8);
    config.optimizer.dense.sharded = Some(Sharded::Always);
    let (_, _, digest) = save_on_eight(&vec![config.clone(); 8]);
    let mut fewer = config.clone();
    fewer.run.ranks = 2;
    let resumed = processes(&vec![fewer; 2], true, |_, session| {
        let session = session.unwrap();
        let digest = session.weights_digest().unwrap();
        session.group().close().unwrap();
        (digest, session.steps())
    });
    assert_eq!(resumed, vec![(digest, 1); 2]);
}

#[test]
fn a_folder_that_is_not_shared_is_written_by_the_first_process_alone() {
    let place = Place::new("rows.txt");
    let config = config(&place, 8);
    let mut configs = vec![config.clone(); 8];
    configs[5].checkpoint.dir = Some(place.path("elsewhere"));
    let (made, _, digest) = save_on_eight(&configs);
    assert!(made.values().all(|&process| process == 0), "{made:?}");
    let checkpoint = newest(config.checkpoint.dir.as_ref().unwrap()).unwrap().unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(checkpoint.manifest().weights_digest, digest);
    assert!(!place.path("elsewhere").exists());
}

#[test]
fn a_process_that_finds_other_checkpoints_is_named() {
    let place = Place::new("rows.txt");
    let config = config(&place, 8);
    save_on_eight(&vec![config.clone(); 8]);
    let mut configs = vec![config; 8];
    configs[5].checkpoint.dir = Some(place.path("elsewhere"));
    for error in processes(&configs, true, |_, session| session.map(|_| ()).unwrap_err()) {
        let text = error.to_string();
        assert!(text.contains("rank 5 begins at step 0, rank 0 resumes at step 1"), "{text}");
    }
}

#[test]
fn a_damaged_file_is_found_by_the_process_that_reads_it() {
    let place = Place::new("rows.txt");
    let config = config(&place, 8);
    let (made, ..) = save_on_eight(&vec![config.clone(); 8]);
    let file = made.keys().find(|name| name.starts_with("tables-00002")).unwrap();
    let file = config.checkpoint.dir.as_ref().unwrap().join("step-000000001").join(file);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    for error in processes(&vec![config; 8], true, |_, session| session.map(|_| ()).unwrap_err()) {
        let text = format!("{error:?}");
        assert!(text.contains("tables-00002.safetensors is corrupted"), "{text}");
    }
}

/// Nothing of a run depends on a snapshot that cannot be taken, wherever it fails.
#[test]
fn ranks_go_on_where_the_disk_is_full_before_a_snapshot_is_whole() {
    let place = Place::new("rows.txt");
    let mut config = config(&place, 3);
    let folder = place.path("snapshots");
    config.checkpoint.snapshot_dir = Some(folder.clone());
    let configs = vec![config; 3];
    let mut not_taken = 0;
    for at in 0.. {
        let _ = std::fs::remove_dir_all(&folder);
        let files = FaultyFiles::new(Fault::DiskFull, at);
        let taken = processes(&configs, false, |_, session| {
            let mut session = session.unwrap();
            session.step().unwrap();
            session.take_snapshot().unwrap().unwrap();
            session.save_through(Arc::new(files.clone())).unwrap();
            session.step().unwrap();
            let taken = session.take_snapshot();
            match &taken {
                Ok(_) => {
                    session.step().unwrap();
                    session.group().close().unwrap();
                }
                Err(error) => session.abort(error),
            }
            taken.map_err(|error| format!("{error:?}")).unwrap().err()
        });
        let checkpoint = newest(&folder).unwrap().expect("one is always there");
        checkpoint.verify().unwrap();
        if files.operations() <= at {
            break;
        }
        // All or none, with one reason.
        assert!(taken.iter().all(|one| *one == taken[0]), "{taken:?}");
        let Some(reason) = &taken[0] else { continue };
        assert!(reason.contains("could not do its part") && reason.contains("pace"), "{reason}");
        not_taken += 1;
    }
    assert!(not_taken > 20, "{not_taken} snapshots were not taken");
}

/// Every operation on files of three processes fails once: by a crash of all of them, after which
/// more or less is lost, by an error or by a full disk. (One process alone meets each of them at
/// each operation, in `checkpoint_faults`.)
#[test]
fn a_fault_at_any_operation_of_any_process_leaves_the_checkpoint_before() {
    let place = Place::new("rows.txt");
    let config = config(&place, 3);
    let configs = vec![config.clone(); 3];
    let folder = config.checkpoint.dir.clone().unwrap();
    let faults = [
        (Fault::Crash, Some(Loss::Nothing)),
        (Fault::Crash, Some(Loss::Unflushed)),
        (Fault::Crash, Some(Loss::UnflushedButRenames)),
        (Fault::Once, None),
        (Fault::DiskFull, None),
    ];
    let mut failed = 0;
    for (first, (fault, loss)) in faults.into_iter().enumerate() {
        for at in (first..).step_by(faults.len()) {
            let _ = std::fs::remove_dir_all(&folder);
            let files = FaultyFiles::new(fault, at);
            let saves = processes(&configs, false, |_, session| {
                let mut session = session.unwrap();
                session.step().unwrap();
                session.save(None).unwrap();
                session.save_through(Arc::new(files.clone())).unwrap();
                session.step().unwrap();
                let saved = session.save(None);
                match &saved {
                    Ok(_) => session.group().close().unwrap(),
                    Err(error) => session.abort(error),
                }
                saved.map(|_| ()).map_err(|error| format!("{error:?}"))
            });
            let reached = files.operations() > at;
            loss.iter().for_each(|&loss| files.lose(loss));
            let checkpoint = newest(&folder).unwrap().expect("one is always there");
            checkpoint.verify().unwrap();
            let step = checkpoint.manifest().state.step;
            let context = format!("{fault:?} {loss:?} at {at}: step {step}, {saves:?}");
            let is_saved = saves.iter().all(Result::is_ok);
            assert!(step == 2 || !is_saved, "{context}");
            assert!(is_saved || reached, "{context}");
            failed += usize::from(!is_saved);
            if !reached {
                break;
            }
        }
    }
    assert!(failed > 50, "{failed} saves failed");
    assert_eq!(steps(&folder), [2]);
}
