//! What a report says of rows: metrics, calibration and lift of the validation data, and how much
//! worse the model becomes when the values of one column are shuffled among the rows.

use crate::Registry;
use crate::commands::inference::Applied;
use crate::commands::slices::{Tenth, tenths};
use crate::config::{Config, DeviceChoice};
use crate::error::{Error, Result};
use crate::metrics::{EvalMetrics, Scores};
use crate::report::progress::Progress;
use crate::run::session::config_of;
use crate::state::checkpoint::Checkpoint;
use headlong_device::rng::CounterRng;
use headlong_reader::io::DataFile;
use headlong_reader::{Batch, Jagged, Offsets, Reader, ReaderState};

/// The shuffles are the same in every report.
const SEED: u64 = 0x5eed;

/// What is looked at.
pub struct Sample<'a> {
    pub checkpoints: Vec<Checkpoint>,
    /// The run's validation files.
    pub files: &'a [DataFile],
    /// Rows at most, from the front of the files.
    pub most_rows: u64,
    pub threads: Option<usize>,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    pub metrics: EvalMetrics,
    /// From the lowest predictions to the highest.
    pub tenths: Vec<Tenth>,
    /// By the loss of AUC, the most important first.
    pub importance: Vec<Importance>,
    /// Whether these are all rows of the validation data.
    pub is_all: bool,
    /// The checkpoint's step, of a single model.
    pub step: u64,
    pub models: usize,
    /// What is to be said of the rows before all else.
    pub remark: Option<String>,
}

/// What a shuffled column costs.
#[derive(Debug)]
pub struct Importance {
    pub column: Column,
    /// AUC before minus AUC after.
    pub auc_loss: Option<f64>,
    /// Log loss after minus log loss before.
    pub logloss_rise: Option<f64>,
}

/// A column of the data, and where its values are in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// `dense`, `categorical` or `time`.
    pub kind: &'static str,
    dense: Option<usize>,
    /// Tables: of its ids, or of the bins of its numbers, or of parts of its times.
    tables: Vec<usize>,
}

/// Looks at `sample`.
///
/// # Errors
/// Data or checkpoint that cannot be read, or that do not belong together.
pub fn look(sample: Sample<'_>, registry: &Registry) -> Result<Found> {
    let Sample { checkpoints, files, most_rows, threads } = sample;
    let config = config_of(&checkpoints[0])?;
    let (step, models) = (checkpoints[0].manifest().state.step, checkpoints.len());
    let on = (DeviceChoice::Cpu, threads);
    let applied = Applied::to_validate(checkpoints, &config, files, on, registry)?;
    let (rows, is_all) = Rows::of_front(&mut *applied.front(files)?, most_rows)?;
    let mut scores = scores_of(&applied, &rows, None)?;
    let metrics = EvalMetrics::of(&scores.tally());
    let tenths = tenths(&mut scores);
    let order = rows.shuffled();
    let (columns, mut progress) = (columns(applied.config()), Progress::new());
    let (count, mut importance) = (columns.len() as u64, Vec::new());
    for (done, column) in columns.into_iter().enumerate() {
        progress.show_samples(done as u64 * rows.num_rows, Some(count * rows.num_rows));
        let after = EvalMetrics::of(&scores_of(&applied, &rows, Some((&order, &column)))?.tally());
        let difference = |(one, other): (f64, f64)| one - other;
        importance.push(Importance {
            column,
            auc_loss: metrics.auc.zip(after.auc).map(difference),
            logloss_rise: after.logloss.zip(metrics.logloss).map(difference),
        });
    }
    let key = |found: &Importance| found.auc_loss.or(found.logloss_rise).unwrap_or(0.0);
    importance.sort_by(|one, other| key(other).total_cmp(&key(one)));
    Ok(Found { metrics, tenths, importance, is_all, step, models, remark: None })
}

fn scores_of(
    applied: &Applied,
    rows: &Rows,
    shuffled: Option<(&[Place], &Column)>,
) -> Result<Scores> {
    let mut scores = Scores::default();
    let mut replay = Replay { rows, shuffled, next: 0, first_row: 0, state: rows.state };
    applied.predict(&mut replay, &mut |logits, labels| {
        scores.extend(logits, labels);
        Ok(())
    })?;
    Ok(scores)
}

/// The columns that a model sees.
fn columns(config: &Config) -> Vec<Column> {
    let mut columns = Vec::new();
    let num_binned = config.num_binned();
    let times = config.times();
    let num_parts: usize = times.iter().map(|time| time.parts.len()).sum();
    let first_bin = config.data.num_sparse - num_binned;
    let binned = config.column.iter().filter(|entry| entry.bins.is_some());
    let bins: Vec<(&str, usize)> =
        binned.zip(first_bin..).map(|(entry, table)| (&*entry.name, table)).collect();
    for (index, name) in config.dense_names().into_iter().enumerate() {
        let tables = bins.iter().filter(|(of, _)| *of == name).map(|&(_, table)| table).collect();
        columns.push(Column { name, kind: "dense", dense: Some(index), tables });
    }
    let categorical = &config.data.columns.categorical;
    for table in 0..first_bin - num_parts {
        let name = categorical.get(table).cloned().unwrap_or(format!("C{}", table + 1));
        columns.push(Column { name, kind: "categorical", dense: None, tables: vec![table] });
    }
    let mut table = first_bin - num_parts;
    for time in times {
        let tables: Vec<usize> = (table..table + time.parts.len()).collect();
        table += time.parts.len();
        columns.push(Column { name: time.name, kind: "time", dense: None, tables });
    }
    columns
}

/// A row: its batch, and where it is in that.
type Place = (u32, u32);

/// Rows in memory.
struct Rows {
    batches: Vec<Batch>,
    num_rows: u64,
    state: ReaderState,
}

impl Rows {
    /// The first `most` rows of `reader`, and whether these are all.
    fn of_front(reader: &mut dyn Reader, most: u64) -> Result<(Self, bool)> {
        let (mut batches, mut num_rows, mut batch) = (Vec::new(), 0, Batch::default());
        let mut is_all = true;
        while reader.next(&mut batch).map_err(Error::failed("the validation data"))? {
            let room = most - num_rows;
            if batch.num_samples as u64 > room {
                is_all = false;
                batch = cut(&batch, room as usize);
            }
            if batch.num_samples > 0 {
                num_rows += batch.num_samples as u64;
                batches.push(batch.clone());
            }
            if !is_all {
                break;
            }
        }
        Ok((Self { batches, num_rows, state: *reader.state() }, is_all))
    }

    /// The rows in an order of chance.
    fn shuffled(&self) -> Vec<Place> {
        let in_batch = |(index, batch): (usize, &Batch)| {
            (0..batch.num_samples as u32).map(move |row| (index as u32, row))
        };
        let mut places: Vec<Place> = self.batches.iter().enumerate().flat_map(in_batch).collect();
        let random = CounterRng::new(SEED, 0);
        for last in (1..places.len()).rev() {
            let bits = u64::from(random.bits(last as u64)[0]);
            places.swap(last, ((bits * (last as u64 + 1)) >> 32) as usize);
        }
        places
    }

    fn num_dense(&self) -> usize {
        self.batches.first().map_or(0, |batch| batch.dense.len() / batch.num_samples.max(1))
    }
}

/// The first rows of a batch.
fn cut(batch: &Batch, rows: usize) -> Batch {
    let num_dense = batch.dense.len() / batch.num_samples.max(1);
    let mut front = batch.clone();
    front.num_samples = rows;
    front.labels.truncate(rows);
    front.dense.truncate(rows * num_dense);
    for bags in &mut front.sparse {
        bags.offsets = bags.offsets[..=rows].to_vec().into();
        bags.values.truncate(bags.offsets[rows] as usize);
    }
    front
}

/// Gives rows once more, one column of which may be shuffled.
struct Replay<'a> {
    rows: &'a Rows,
    shuffled: Option<(&'a [Place], &'a Column)>,
    next: usize,
    first_row: usize,
    state: ReaderState,
}

impl Reader for Replay<'_> {
    fn next(&mut self, batch: &mut Batch) -> headlong_reader::Result<bool> {
        let Some(original) = self.rows.batches.get(self.next) else { return Ok(false) };
        batch.clone_from(original);
        let from = self.first_row;
        self.next += 1;
        self.first_row += original.num_samples;
        if let Some((order, column)) = self.shuffled {
            shuffle(self.rows, &order[from..self.first_row], column, batch);
        }
        Ok(true)
    }

    fn state(&self) -> &ReaderState {
        &self.state
    }
}

/// Gives each row of `batch` the value that `column` has in another row.
fn shuffle(rows: &Rows, order: &[Place], column: &Column, batch: &mut Batch) {
    if let Some(at) = column.dense {
        let num_dense = rows.num_dense();
        for (row, &(of, from)) in order.iter().enumerate() {
            let original = &rows.batches[of as usize].dense;
            batch.dense[row * num_dense + at] = original[from as usize * num_dense + at];
        }
    }
    for &table in &column.tables {
        let mut bags = Jagged { values: Vec::new(), offsets: Offsets::from(vec![0]) };
        for &(of, from) in order {
            let original = &rows.batches[of as usize].sparse[table];
            let from = from as usize;
            let bag = original.offsets[from] as usize..original.offsets[from + 1] as usize;
            bags.values.extend_from_slice(&original.values[bag]);
            bags.offsets.push(bags.values.len() as u32);
        }
        batch.sparse[table] = bags;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: std::ops::Range<u32>) -> Batch {
        let bags = |ids: &dyn Fn(u32) -> u32| {
            let mut bags = Jagged { values: Vec::new(), offsets: Offsets::from(vec![0]) };
            for row in rows.clone() {
                bags.values.extend((0..ids(row)).map(|id| u64::from(row * 100 + id)));
                bags.offsets.push(bags.values.len() as u32);
            }
            bags
        };
        Batch {
            num_samples: rows.len(),
            labels: rows.clone().map(|row| row as f32).collect(),
            dense: rows.clone().flat_map(|row| [row as f32, -(row as f32)]).collect(),
            sparse: vec![bags(&|row| row % 3), bags(&|_| 1)],
            ..Batch::default()
        }
    }

    fn rows() -> Rows {
        let state = ReaderState {
            schema: headlong_reader::Schema { labelled: true, num_dense: 2, num_sparse: 2 },
            position: headlong_reader::Position::default(),
            progress: headlong_reader::Progress::default(),
            wait_time: std::time::Duration::ZERO,
        };
        Rows { batches: vec![batch(0..5), batch(5..12), batch(12..13)], num_rows: 13, state }
    }

    fn replayed(rows: &Rows, shuffled: Option<(&[Place], &Column)>) -> Vec<Batch> {
        let mut replay = Replay { rows, shuffled, next: 0, first_row: 0, state: rows.state };
        let (mut all, mut batch) = (Vec::new(), Batch::default());
        while replay.next(&mut batch).unwrap() {
            all.push(batch.clone());
        }
        all
    }

    #[test]
    fn a_shuffled_column_has_the_same_values_in_other_rows_and_no_other_changes() {
        let rows = rows();
        let order = rows.shuffled();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted != order && sorted.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(replayed(&rows, None), rows.batches);
        let column = |dense, tables: &[usize]| Column {
            name: String::new(),
            kind: "",
            dense,
            tables: tables.to_vec(),
        };
        let found = replayed(&rows, Some((&order, &column(Some(1), &[0]))));
        let mut row = 0;
        for (now, then) in found.iter().zip(&rows.batches) {
            assert_eq!((&now.labels, &now.sparse[1]), (&then.labels, &then.sparse[1]));
            for at in 0..now.num_samples {
                let (of, from) = order[row];
                let source = rows.batches[of as usize].labels[from as usize];
                assert_eq!(now.dense[2 * at..2 * at + 2], [then.labels[at], -source]);
                let bag =
                    now.sparse[0].offsets[at] as usize..now.sparse[0].offsets[at + 1] as usize;
                let expected: Vec<u64> =
                    (0..source as u64 % 3).map(|id| source as u64 * 100 + id).collect();
                assert_eq!(now.sparse[0].values[bag], expected);
                row += 1;
            }
        }
    }

    #[test]
    fn the_front_ends_within_a_batch() {
        let all = rows();
        for most in [1, 5, 8, 12, 13, 14] {
            let mut replay =
                Replay { rows: &all, shuffled: None, next: 0, first_row: 0, state: all.state };
            let (front, is_all) = Rows::of_front(&mut replay, most).unwrap();
            assert_eq!((front.num_rows, is_all), (most.min(13), most >= 13), "{most}");
            let labels = front.batches.iter().flat_map(|batch| &batch.labels);
            assert!(labels.copied().eq((0..front.num_rows).map(|row| row as f32)));
            let last = front.batches.last().unwrap();
            assert_eq!(last.dense.len(), 2 * last.num_samples);
            let bags = &last.sparse[0];
            assert_eq!(bags.offsets.len(), last.num_samples + 1);
            assert_eq!(bags.offsets.last().copied(), Some(bags.values.len() as u32));
        }
    }

    #[test]
    fn columns_have_the_tables_of_their_bins_and_parts() {
        let text = "[data.columns]\nlabel = \"y\"\ndense = [\"a\", \"b\"]\n\
                    categorical = [\"c\", \"d\"]\n\
                    [[column]]\nname = \"b\"\nbins = \"ln2\"\n\
                    [[column]]\nname = \"t\"\nparts = [\"hour\", \"weekday\"]\n";
        let config = Config::from_toml(text, "a.toml").unwrap();
        let found: Vec<_> = columns(&config)
            .into_iter()
            .map(|column| (column.name, column.kind, column.dense, column.tables))
            .collect();
        let of = |name: &str, kind, dense, tables: &[usize]| {
            (name.to_owned(), kind, dense, tables.to_vec())
        };
        let expected = [
            of("a", "dense", Some(0), &[]),
            of("b", "dense", Some(1), &[4]),
            of("c", "categorical", None, &[0]),
            of("d", "categorical", None, &[1]),
            of("t", "time", None, &[2, 3]),
        ];
        assert_eq!(found, expected);
    }
}
