//! Refuses values that cannot work, before anything is read or allocated.

use super::{
    AllToAll, CacheData, Config, DeduplicateChoice, DeviceChoice, EvalEvery, Feature, Ids,
    IdsChoice, Interaction, Loss, Precision, ROWS_FROM_DICTIONARY, ScheduleChoice, Sharded,
    TableRows, TransportChoice, seconds,
};
use crate::config::preset;
use crate::error::{Error, Result};
use crate::system::{elastic, machine};
use headlong_mlp::loss::MAX_SUM_BLOCKS;
use headlong_mlp::optim::divided::Norms;
use headlong_reader::convert::is_folder_or_stem;
use std::path::{Path, PathBuf};

/// Passes over the data.
const MOST_EPOCHS: f64 = 1e9;
/// Layers of the bottom network, and of the top.
const MOST_LAYERS: usize = 1000;

impl Config {
    /// Checks every value and every combination; opens no file.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Contradiction`] or [`Error::Unsupported`], each naming the key.
    pub fn validate(&self) -> Result<()> {
        self.validate_numbers()?;
        self.validate_columns()?;
        self.validate_data()?;
        self.validate_model()?;
        self.validate_tables()?;
        self.validate_entries()?;
        self.validate_pooling()?;
        self.validate_train()?;
        self.validate_rest()?;
        self.validate_ranks()?;
        self.validate_sharded()?;
        self.validate_step()?;
        self.mlperf.validate()?;
        self.validate_multi_hot()?;
        refuse_unsupported(self)
    }

    fn validate_model(&self) -> Result<()> {
        let model = &self.model;
        for (key, widths) in [("model.bottom", &model.bottom), ("model.top", &model.top)] {
            if !(1..=MOST_LAYERS).contains(&widths.len()) {
                let found = widths.len();
                return Err(Error::config(
                    key,
                    format!("expected 1 to {MOST_LAYERS} widths, found {found}"),
                ));
            }
        }
        let (last, before) = model.bottom.split_last().expect("there is one width at least");
        let dim = model.dim;
        if model.interaction == Interaction::Dot && *last != dim {
            let fitting: Vec<_> = before.iter().chain([&dim]).map(usize::to_string).collect();
            return Err(Error::config(
                "model.bottom",
                format!(
                    "the last width must equal model.dim = {dim} for the dot interaction, found \
                     {last}: set model.bottom=[{}], too, or model.dim={last}",
                    fitting.join(",")
                ),
            ));
        }
        if let (Loss::MseOfSigmoid, Some(weight)) = (model.loss, &self.data.columns.weight) {
            return Err(Error::contradiction(
                "model.loss = \"mse\"",
                format!("data.columns.weight = {}", quoted(weight)),
                "only the loss \"bce\" is weighted",
            ));
        }
        match model.top.last() {
            Some(1) => Ok(()),
            last => {
                let found = last.map_or("none".to_owned(), ToString::to_string);
                Err(Error::config("model.top", format!("the last width must be 1, found {found}")))
            }
        }
    }

    fn validate_tables(&self) -> Result<()> {
        let from_dictionary =
            matches!(&self.tables.rows, TableRows::Named(name) if name == ROWS_FROM_DICTIONARY);
        if from_dictionary && self.data.ids != Ids::Dictionary {
            return Err(Error::contradiction(
                "tables.rows = \"dictionary\"",
                format!("data.ids = {}", quoted(&self.data.ids)),
                "only ids = \"dictionary\" has a dictionary to take the numbers of rows from",
            ));
        }
        if let (Some(path), true) = (&self.data.dictionary, self.data.ids != Ids::Dictionary) {
            return Err(Error::contradiction(
                format!("data.dictionary = {}", path.display()),
                format!("data.ids = {}", quoted(&self.data.ids)),
                "these ids are looked up in no dictionary: set data.ids = \"dictionary\" (and \
                 tables.rows = \"dictionary\", which takes the numbers of rows from it), or leave \
                 data.dictionary out",
            ));
        }
        if self.tables.max_rows == Some(1) && self.shares_a_row() {
            let message = "expected at least 2: one row is shared by rare ids";
            return Err(Error::config("tables.max_rows", message));
        }
        if self.given_rows()?.is_none() {
            return Ok(());
        }
        let most = self.id_policy().most_rows();
        for (column, rows) in self.table_rows(None)?.into_iter().enumerate() {
            let least = if !self.shares_a_row() || self.is_raw(column) { 1 } else { 2 };
            if !(least..=most).contains(&rows) {
                let (table, ids) = (self.column_name(column), quoted(&self.data.ids));
                let message = match rows < least {
                    true => format!("table {table} needs at least {least} rows, found {rows}"),
                    false => format!(
                        "table {table}: ids = {ids} fills {most} rows at most, found {rows}"
                    ),
                };
                return Err(Error::config("tables.rows", message));
            }
        }
        Ok(())
    }

    /// Whether rare ids share a row of their table.
    fn shares_a_row(&self) -> bool {
        matches!(self.data.ids, Ids::Admitted | Ids::Dictionary)
    }

    /// Rows of each table before `tables.max_rows`; `None` where the dictionary decides.
    ///
    /// # Errors
    /// [`Error::Config`]: an unknown name, or a list of another length than `data.num_sparse`.
    pub fn given_rows(&self) -> Result<Option<Vec<u64>>> {
        let num_sparse = self.data.num_sparse;
        let rows = match &self.tables.rows {
            TableRows::Each(rows) => vec![*rows; num_sparse],
            TableRows::List(rows) => rows.clone(),
            TableRows::Named(name) if name == ROWS_FROM_DICTIONARY => return Ok(None),
            TableRows::Named(name) => preset::cardinalities(name)?.to_vec(),
        };
        if rows.len() != num_sparse {
            return Err(Error::config(
                "tables.rows",
                format!("expected {num_sparse} numbers (data.num_sparse), found {}", rows.len()),
            ));
        }
        self.check_entry_names()?;
        Ok(Some(self.with_entry_rows(rows)))
    }

    /// Rows of each table: those of the dictionary where it decides, else the given ones, both
    /// under `tables.max_rows`.
    ///
    /// # Errors
    /// As [`Config::given_rows`]; [`Error::Config`] where the dictionary should decide and none is
    /// given.
    pub fn table_rows(&self, dictionary_rows: Option<&[u64]>) -> Result<Vec<u64>> {
        let rows = match (self.given_rows()?, dictionary_rows) {
            (Some(rows), _) => rows,
            (None, Some(rows)) => rows.to_vec(),
            (None, None) => {
                return Err(Error::config(
                    "tables.rows",
                    "the dictionary decides, and it is not built yet",
                ));
            }
        };
        let cap = self.tables.max_rows.unwrap_or(u64::MAX);
        // What an entry says of one table stands above what is said of all.
        Ok(self.with_entry_rows(rows.into_iter().map(|rows| rows.min(cap)).collect()))
    }

    fn validate_train(&self) -> Result<()> {
        let train = &self.train;
        positive("train.epochs", train.epochs)?;
        if train.epochs > MOST_EPOCHS {
            let message = format!("expected {MOST_EPOCHS} at most, found {:e}", train.epochs);
            return Err(Error::config("train.epochs", message));
        }
        positive("train.learning_rate", train.learning_rate)?;
        for (key, value) in [
            ("train.sparse_learning_rate", train.sparse_learning_rate),
            ("train.clip_norm", train.clip_norm),
        ] {
            value.map_or(Ok(()), |value| positive(key, value))?;
        }
        positive("train.decay_power", train.decay_power)?;
        positive("train.final_learning_rate", train.final_learning_rate)?;
        if train.decay_steps > 0 && train.decay_start_step < train.warmup_steps {
            return Err(Error::contradiction(
                format!("train.decay_start_step = {}", train.decay_start_step),
                format!("train.warmup_steps = {}", train.warmup_steps),
                "the decay starts after the warm-up",
            ));
        }
        if !headlong_mlp::loss_scale::is_scale(train.loss_scale) {
            let found = train.loss_scale;
            let reason = format!("expected a power of two from 1 to 16777216, found {found}");
            return Err(Error::config("train.loss_scale", reason));
        }
        Ok(())
    }

    /// Positions of a batch's ids have 32 bits, and a step has so many sums of losses at most.
    fn validate_step(&self) -> Result<()> {
        let (batch_size, accumulate) = (self.train.batch_size as u64, self.train.accumulate as u64);
        let ids =
            (0..self.data.num_sparse).map(|column| self.max_ids_per_sample(column) as u64).max();
        let ids = ids.unwrap_or(1);
        for (key, samples, of) in [
            ("train.batch_size", batch_size * accumulate, "a step"),
            ("eval.batch_size", self.eval.batch_size as u64, "a batch"),
        ] {
            if samples * ids > u64::from(u32::MAX) {
                let message = format!(
                    "{of} of {samples} samples, with {ids} ids each of one table, has more than \
                     2^32 ids"
                );
                return Err(Error::config(key, message));
            }
        }
        let (sums, most) = (accumulate * self.sum_blocks() as u64, MAX_SUM_BLOCKS as u64);
        if sums > most {
            return Err(Error::contradiction(
                format!("train.accumulate = {accumulate}"),
                format!("train.sum_blocks = {}", self.sum_blocks()),
                format!(
                    "a step has one sum of losses for each micro-batch and block: {sums}, and \
                     {most} at most"
                ),
            ));
        }
        Ok(())
    }

    /// A batch is cut into blocks, and a rank holds a subtree of them: then the sums of all ranks
    /// have the shape of one rank's.
    fn validate_ranks(&self) -> Result<()> {
        let (ranks, blocks) = (self.run.ranks, self.sum_blocks());
        let batch_size = self.train.batch_size;
        if ranks > batch_size {
            let message = format!("expected 1 to train.batch_size = {batch_size}, found {ranks}");
            return Err(Error::config("run.ranks", message));
        }
        if blocks > batch_size {
            let message = format!("expected 1 to train.batch_size = {batch_size}, found {blocks}");
            return Err(Error::config("train.sum_blocks", message));
        }
        if ranks > 1 && !(blocks.is_multiple_of(ranks) && (blocks / ranks).is_power_of_two()) {
            return Err(Error::contradiction(
                format!("train.sum_blocks = {blocks}"),
                format!("run.ranks = {ranks}"),
                "with several ranks, sum_blocks is the number of ranks times a power of two",
            ));
        }
        if self.comm.deduplicate == DeduplicateChoice::Off && ranks > 1 && blocks != ranks {
            return Err(Error::contradiction(
                "comm.deduplicate = \"off\"",
                format!("train.sum_blocks = {blocks}"),
                "without deduplication owners sum one block of each rank: leave sum_blocks unset",
            ));
        }
        if self.comm.ranks_per_node > ranks {
            return Err(Error::config(
                "comm.ranks_per_node",
                format!("expected 0 to run.ranks = {ranks}, found {}", self.comm.ranks_per_node),
            ));
        }
        seconds("comm.deadline_s", self.comm.deadline_s)?;
        seconds("comm.rendezvous_s", self.comm.rendezvous_s)?;
        seconds("comm.silence_s", self.comm.silence_s)?;
        self.validate_carrier()?;
        let verbs = self.comm.verbs.check();
        verbs.map_err(|(key, reason)| Error::config(key, reason))?;
        let drift = self.hybrid.repartition_drift;
        if !(0.0..1.0).contains(&drift) {
            return Err(Error::config(
                "hybrid.repartition_drift",
                format!("expected 0 to below 1, found {drift}"),
            ));
        }
        Ok(())
    }

    /// What is asked of a way that carries nothing, or cannot do it.
    fn validate_carrier(&self) -> Result<()> {
        let (device, transport) = (self.run.device, self.run.transport);
        let is_plain = matches!(transport, TransportChoice::Ucx | TransportChoice::Verbs);
        if is_plain && self.comm.encrypt_data {
            return Err(Error::contradiction(
                format!("run.transport = \"{}\"", transport.name()),
                "comm.encrypt_data = true",
                "what ranks exchange is encrypted over TCP alone",
            ));
        }
        // What "auto" comes to is not known yet.
        let has_rails = device != DeviceChoice::Cpu && transport == TransportChoice::Verbs;
        if self.comm.verbs.gpudirect != Feature::Require || has_rails {
            return Ok(());
        }
        Err(Error::contradiction(
            "comm.verbs.gpudirect = \"require\"",
            format!(
                "run.device = {} and run.transport = \"{}\"",
                quoted(&device),
                transport.name()
            ),
            "NICs reach the memory of GPUs with run.device = \"cuda\" and run.transport = \
             \"verbs\" only",
        ))
    }

    /// What a rank cannot do with a part of the dense weights.
    fn validate_sharded(&self) -> Result<()> {
        let (train, dense) = (&self.train, &self.optimizer.dense);
        match (dense.sharded, train.clip_norm) {
            (Some(Sharded::Always), Some(norm))
                if Norms::needed(&dense.optimizer(), true).is_none() =>
            {
                Err(Error::contradiction(
                    "optimizer.dense.sharded = true",
                    format!("train.clip_norm = {norm}"),
                    format!(
                        "the norms of {} and of all gradients are summed in chunks that do not \
                         begin at the same places, so that no rank could have whole ones of both",
                        dense.name
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Ranks of their own evaluate during training: what makes training wait for them is a mistake.
    fn validate_eval_ranks(&self) -> Result<()> {
        let Some(evaluating) = self.run.evaluating() else { return Ok(()) };
        let contradicts = |setting: &str, reason: &str| {
            Err(Error::contradiction(evaluating.setting(), setting, reason))
        };
        if let (Some(count), Some(_)) = (self.run.eval_ranks, self.run.eval_processes) {
            let reason = "ranks that evaluate are either threads or processes";
            return contradicts(&format!("run.eval_ranks = {count}"), reason);
        }
        if !self.eval.asynchronous {
            return contradicts(
                "eval.asynchronous = false",
                "training does not wait for ranks of their own",
            );
        }
        if self.saves_best() {
            let reason = "when the metrics are known, training has gone on: set \
                          checkpoint.keep_best = false, without eval.patience";
            return contradicts("checkpoint.keep_best = true", reason);
        }
        Ok(())
    }

    /// Refuses to train without data: a forgotten flag must not end in a run on made-up rows.
    ///
    /// # Errors
    /// [`Error::Config`] where no training file is named and `synthetic.enabled` is false, or a
    /// named file is absent or a directory.
    pub fn require_data(&self) -> Result<()> {
        if self.data.train.is_empty() && !self.synthetic.enabled {
            return Err(Error::config(
                "data.train",
                "no training file is named: give --data FILE, or --preset tiny for synthetic data",
            ));
        }
        self.check_files()
    }

    /// Refuses what is named to be read and is absent, and directories where files are expected.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key and the file.
    pub fn check_files(&self) -> Result<()> {
        for (key, path) in self.paths() {
            match key {
                // Of some formats a path names a folder, or what the names of files begin with.
                "data.train" | "data.valid" if is_folder_or_stem(path) => {}
                "data.train" | "data.valid" | "hybrid.latency_table" | "comm.tuning" => {
                    require_file(key, path)?;
                }
                "data.dictionary" | "run.kernels" => require_present(key, path)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Blocks into which a batch is cut for sums: `train.sum_blocks`, or one per rank.
    pub fn sum_blocks(&self) -> usize {
        self.train.sum_blocks.unwrap_or(self.run.ranks)
    }

    /// Threads of this process over all its ranks: `run.threads`, else what cores it has, without
    /// that of the thread which serves a NIC for a device.
    pub fn threads(&self) -> usize {
        let has_rails =
            self.run.device == DeviceChoice::Cuda && self.run.transport == TransportChoice::Verbs;
        self.run.threads.unwrap_or_else(|| {
            let cores = machine::cores_of_rank();
            cores - usize::from(has_rails && headlong_verbs::keeps_a_core(cores))
        })
    }

    /// The folder of the snapshots of a run that takes some: `checkpoint.snapshot_dir`, or that of
    /// `headlong launch --elastic`.
    pub fn snapshot_dir(&self) -> Option<PathBuf> {
        self.checkpoint.snapshot_dir.clone().or_else(elastic::snapshot_dir)
    }

    /// Whether the checkpoint at `path` is a snapshot of such a run.
    pub fn is_snapshot(&self, path: &Path) -> bool {
        self.snapshot_dir().is_some_and(|folder| path.parent() == Some(&folder))
    }

    /// Whether the weights of the best evaluation are saved when it is made.
    pub fn saves_best(&self) -> bool {
        let checkpoint = &self.checkpoint;
        let is_asked_for = checkpoint.save_every > 0 || self.eval.patience.is_some();
        checkpoint.dir.is_some() && checkpoint.keep_best && is_asked_for
    }

    fn validate_patience(&self) -> Result<()> {
        let Some(patience) = self.eval.patience else { return Ok(()) };
        let contradicts = |setting: &str, reason: &str| {
            Err(Error::contradiction(format!("eval.patience = {patience}"), setting, reason))
        };
        if self.eval.every.is_never() {
            return contradicts("eval.every = 0", "it counts evaluations; set --eval-every");
        }
        if self.data.valid.is_empty() && !self.data.train.is_empty() {
            let reason = "evaluations are made on a validation set; name one with --valid";
            return contradicts("data.valid = []", reason);
        }
        if self.checkpoint.dir.is_some() && !self.checkpoint.keep_best {
            let reason = "the weights of the best evaluation would be lost";
            return contradicts("checkpoint.keep_best = false", reason);
        }
        Ok(())
    }

    fn validate_rest(&self) -> Result<()> {
        if let EvalEvery::EpochFraction(fraction) = self.eval.every
            && !(fraction.is_finite() && fraction >= 0.0)
        {
            return Err(Error::config(
                "eval.every",
                format!("expected a fraction of an epoch, found {fraction}"),
            ));
        }
        if let Some(target) = self.eval.target_auc {
            if !(0.0..=1.0).contains(&target) {
                return Err(Error::config(
                    "eval.target_auc",
                    format!("expected 0 to 1, found {target}"),
                ));
            }
            if self.data.valid.is_empty() && !self.data.train.is_empty() {
                return Err(Error::contradiction(
                    format!("eval.target_auc = {target}"),
                    "data.valid = []",
                    "the area under the curve is that of a validation set; name one with --valid",
                ));
            }
        }
        self.validate_patience()?;
        if self.synthetic.enabled && !(self.data.train.is_empty() && self.data.valid.is_empty()) {
            return Err(Error::contradiction(
                "synthetic.enabled = true",
                "data.train, data.valid",
                "data is either named or made up; set synthetic.enabled = false or name no file",
            ));
        }
        let scale = self.synthetic.scale;
        if !(scale > 0.0 && scale <= 1.0) {
            return Err(Error::config(
                "synthetic.scale",
                format!("expected above 0, up to 1, found {scale}"),
            ));
        }
        let hash = headlong_reader::hashing::HashFunction::default().name();
        if self.data.hash != hash {
            return Err(Error::config(
                "data.hash",
                format!("expected \"{hash}\", found \"{}\"", self.data.hash),
            ));
        }
        self.validate_eval_ranks()
    }
}

/// Refuses, by name, what this build cannot do yet. Later work deletes lines here and nowhere else.
///
/// # Errors
/// [`Error::Unsupported`] naming the setting and its value.
pub fn refuse_unsupported(config: &Config) -> Result<()> {
    let run = &config.run;
    let refuse = |refused: bool, setting: String, reason: &str| {
        if refused {
            Err(Error::unsupported(setting, format!("this build has {reason}")))
        } else {
            Ok(())
        }
    };
    if run.device == DeviceChoice::Cuda {
        refuse_on_devices(config)?;
    }
    let precision = config.train.precision;
    refuse(
        precision == Precision::Tf32 && run.device != DeviceChoice::Cuda,
        format!("train.precision = {}", quoted(&precision)),
        "\"f32\", \"bf16\" and \"f16\" on a processor; TF32 is a format of tensor cores, with \
         run.device = \"cuda\"",
    )?;
    refuse(
        run.schedule == ScheduleChoice::Captured && run.device != DeviceChoice::Cuda,
        format!("run.schedule = {}", quoted(&run.schedule)),
        "\"serial\" and \"overlapped\" on a processor; graphs are captured with run.device = \
         \"cuda\"",
    )?;
    refuse(
        run.transport == TransportChoice::Nccl && run.device != DeviceChoice::Cuda,
        format!("run.transport = {}", quoted(&run.transport)),
        "NCCL between CUDA devices alone (run.device = \"cuda\"); \"auto\", \"shm\", \"verbs\", \
         \"ucx\" and \"tcp\" between processes",
    )?;
    refuse(
        config.data.cache == CacheData::Device && run.device != DeviceChoice::Cuda,
        format!("data.cache = {}", quoted(&config.data.cache)),
        "\"off\", \"host\" and \"auto\" on a processor; batches stay on devices with run.device = \
         \"cuda\"",
    )
}

/// What ranks on devices cannot do: docs/hybrid.md says why.
fn refuse_on_devices(config: &Config) -> Result<()> {
    let comm = &config.comm;
    if comm.ids == IdsChoice::Known {
        return Err(Error::unsupported(
            format!("comm.ids = {}", quoted(&comm.ids)),
            "with run.device = \"cuda\" this build has \"exchange\": each device would sort the \
             ids of all ranks",
        ));
    }
    if comm.deduplicate == DeduplicateChoice::Node && comm.exchange == AllToAll::Flat {
        return Err(Error::contradiction(
            format!("comm.deduplicate = {}", quoted(&comm.deduplicate)),
            format!("comm.exchange = {}", quoted(&comm.exchange)),
            "devices merge the rows of a node where they exchange inside it first: leave \
             comm.exchange unset",
        ));
    }
    Ok(())
}

/// The TOML form of a setting, quotes included.
pub(crate) fn quoted<T: serde::Serialize>(value: &T) -> String {
    toml::Value::try_from(value).map_or_else(|_| "?".to_owned(), |value| value.to_string())
}

fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(Error::config(key, format!("expected a number above 0, found {value}")))
    }
}

/// Refuses a file that is absent or a directory, naming `key`.
///
/// # Errors
/// [`Error::Config`].
pub fn require_file(key: &str, path: &Path) -> Result<()> {
    match require_present(key, path) {
        Ok(()) if path.is_dir() => {
            Err(Error::config(key, format!("{} is a directory, not a file", path.display())))
        }
        present => present,
    }
}

/// Refuses a file or folder that is absent, naming `key`.
///
/// # Errors
/// [`Error::Config`].
pub fn require_present(key: &str, path: &Path) -> Result<()> {
    let read = |error| Error::config(key, format!("cannot read {}: {error}", path.display()));
    std::fs::metadata(path).map(drop).map_err(read)
}
