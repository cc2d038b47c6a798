//! Refuses values that cannot work, before anything is read or allocated.

use super::{
    CacheData, Config, DeduplicateChoice, DeviceChoice, EvalEvery, Ids, IdsChoice, Interaction, Precision,
    ROWS_FROM_DICTIONARY, ScheduleChoice, TableRows, TransportChoice, seconds,
};
use crate::error::{Error, Result};
use crate::preset;
use headlong_reader::convert::is_folder_or_stem;

impl Config {
    /// Checks every value and every combination; opens no file.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Contradiction`] or [`Error::Unsupported`], each naming the key.
    pub fn validate(&self) -> Result<()> {
        self.validate_data()?;
        self.validate_model()?;
        self.validate_tables()?;
        self.validate_entries()?;
        self.validate_train()?;
        self.validate_rest()?;
        self.validate_ranks()?;
        self.mlperf.validate()?;
        self.validate_multi_hot()?;
        refuse_unsupported(self)
    }

    fn validate_model(&self) -> Result<()> {
        let model = &self.model;
        at_least_one("model.dim", model.dim)?;
        check_widths("model.bottom", &model.bottom)?;
        check_widths("model.top", &model.top)?;
        let last = model.bottom[model.bottom.len() - 1];
        if model.interaction == Interaction::Dot && last != model.dim {
            return Err(Error::config(
                "model.bottom",
                format!(
                    "the last width must equal model.dim = {} for the dot interaction, found {last}",
                    model.dim
                ),
            ));
        }
        at_least_one("model.cross_layers", model.cross_layers)?;
        at_least_one("model.cross_rank", model.cross_rank)?;
        match model.top.last() {
            Some(1) => Ok(()),
            last => Err(Error::config("model.top", format!("the last width must be 1, found {last:?}"))),
        }
    }

    fn validate_tables(&self) -> Result<()> {
        let num_sparse = self.data.num_sparse;
        at_least_one("data.num_sparse", num_sparse)?;
        let from_dictionary =
            matches!(&self.tables.rows, TableRows::Named(name) if name == ROWS_FROM_DICTIONARY);
        if from_dictionary && self.data.ids != Ids::Dictionary {
            return Err(Error::contradiction(
                "tables.rows = \"dictionary\"",
                format!("data.ids = {}", quoted(&self.data.ids)),
                "only ids = \"dictionary\" has a dictionary to take the numbers of rows from",
            ));
        }
        match self.tables.max_rows {
            Some(0) => return Err(Error::config("tables.max_rows", "expected at least 1, found 0")),
            Some(1) if self.shares_a_row() => {
                return Err(Error::config(
                    "tables.max_rows",
                    "expected at least 2: one row is shared by rare ids",
                ));
            }
            _ => {}
        }
        let rows = self.given_rows()?;
        for (column, rows) in rows.iter().flatten().enumerate() {
            let least = if !self.shares_a_row() || self.is_raw(column) { 1 } else { 2 };
            if *rows < least {
                return Err(Error::config(
                    "tables.rows",
                    format!("table C{} needs at least {least} rows, found {rows}", column + 1),
                ));
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

    /// Rows of each table: those of the dictionary where it decides, else the given ones, both under
    /// `tables.max_rows`.
    ///
    /// # Errors
    /// As [`Config::given_rows`]; [`Error::Config`] where the dictionary should decide and none is given.
    pub fn table_rows(&self, dictionary_rows: Option<&[u64]>) -> Result<Vec<u64>> {
        let rows = match (self.given_rows()?, dictionary_rows) {
            (Some(rows), _) => rows,
            (None, Some(rows)) => rows.to_vec(),
            (None, None) => {
                return Err(Error::config("tables.rows", "the dictionary decides, and it is not built yet"));
            }
        };
        let cap = self.tables.max_rows.unwrap_or(u64::MAX);
        // What an entry says of one table stands above what is said of all.
        Ok(self.with_entry_rows(rows.into_iter().map(|rows| rows.min(cap)).collect()))
    }

    fn validate_train(&self) -> Result<()> {
        let train = &self.train;
        at_least_one("train.batch_size", train.batch_size)?;
        at_least_one("train.accumulate", train.accumulate)?;
        positive("train.epochs", train.epochs)?;
        positive("train.learning_rate", train.learning_rate)?;
        if train.steps == Some(0) {
            return Err(Error::config("train.steps", "expected at least 1, found 0"));
        }
        for (key, value) in
            [("train.sparse_learning_rate", train.sparse_learning_rate), ("train.clip_norm", train.clip_norm)]
        {
            value.map_or(Ok(()), |value| positive(key, value))?;
        }
        if train.decay_steps > 0 {
            positive("train.decay_power", train.decay_power)?;
            positive("train.final_learning_rate", train.final_learning_rate)?;
            if train.decay_start_step < train.warmup_steps {
                return Err(Error::contradiction(
                    format!("train.decay_start_step = {}", train.decay_start_step),
                    format!("train.warmup_steps = {}", train.warmup_steps),
                    "the decay starts after the warm-up",
                ));
            }
        }
        let blocks = self.sum_blocks();
        if blocks == 0 || blocks > train.batch_size {
            return Err(Error::config(
                "train.sum_blocks",
                format!("expected 1 to train.batch_size = {}, found {blocks}", train.batch_size),
            ));
        }
        at_least_one("train.loss_scale_interval", train.loss_scale_interval as usize)?;
        if !crate::build::is_scale(train.loss_scale) {
            let found = train.loss_scale;
            let reason = format!("expected a power of two from 1 to 16777216, found {found}");
            return Err(Error::config("train.loss_scale", reason));
        }
        at_least_one("train.log_every", usize::try_from(train.log_every).unwrap_or(usize::MAX))
    }

    /// A batch is cut into blocks, and a rank holds a subtree of them: then the sums of all ranks have the shape of one rank's.
    fn validate_ranks(&self) -> Result<()> {
        let (ranks, blocks) = (self.run.ranks, self.sum_blocks());
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
        let verbs = crate::job::verbs_settings(&self.comm.verbs).check();
        verbs.map_err(|(key, reason)| Error::config(key, reason))?;
        let factor = self.comm.slot_factor;
        if !(factor.is_finite() && factor >= 1.0) {
            return Err(Error::config(
                "comm.slot_factor",
                format!("expected a number of at least 1, found {factor}"),
            ));
        }
        let drift = self.hybrid.repartition_drift;
        if !(0.0..1.0).contains(&drift) {
            return Err(Error::config(
                "hybrid.repartition_drift",
                format!("expected 0 to below 1, found {drift}"),
            ));
        }
        Ok(())
    }

    /// Ranks of their own evaluate beside training: what makes training wait for them is a mistake.
    fn validate_eval_ranks(&self) -> Result<()> {
        let Some(count) = self.run.eval_ranks else { return Ok(()) };
        at_least_one("run.eval_ranks", count)?;
        let contradicts = |setting: &str, reason: &str| {
            Err(Error::contradiction(format!("run.eval_ranks = {count}"), setting, reason))
        };
        let checkpoint = &self.checkpoint;
        if !self.eval.asynchronous {
            return contradicts("eval.asynchronous = false", "training does not wait for ranks of their own");
        }
        if checkpoint.dir.is_some() && checkpoint.save_every > 0 && checkpoint.keep_best {
            let reason = "when the metrics are known, training has gone on: set checkpoint.keep_best = false";
            return contradicts("checkpoint.keep_best = true", reason);
        }
        Ok(())
    }

    /// Refuses to train without data: a forgotten flag must not end in a run on made-up rows.
    ///
    /// # Errors
    /// [`Error::Config`] where no training file is named and `synthetic.enabled` is false, or a named file is absent
    /// or a directory.
    pub fn require_data(&self) -> Result<()> {
        if self.data.train.is_empty() && !self.synthetic.enabled {
            return Err(Error::config(
                "data.train",
                "no training file is named: give --data FILE, or --preset tiny for synthetic data",
            ));
        }
        self.check_files()
    }

    /// Refuses named files that are absent or directories.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key and the file.
    pub fn check_files(&self) -> Result<()> {
        for (key, files) in [("data.train", &self.data.train), ("data.valid", &self.data.valid)] {
            // Of some formats a path names a folder, or what the names of files begin with.
            for file in files.iter().filter(|file| !is_folder_or_stem(file)) {
                require_file(key, file)?;
            }
        }
        Ok(())
    }

    /// Blocks into which a batch is cut for sums: `train.sum_blocks`, or one per rank.
    pub fn sum_blocks(&self) -> usize {
        self.train.sum_blocks.unwrap_or(self.run.ranks)
    }

    fn validate_rest(&self) -> Result<()> {
        at_least_one("eval.batch_size", self.eval.batch_size)?;
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
                return Err(Error::config("eval.target_auc", format!("expected 0 to 1, found {target}")));
            }
            if self.data.valid.is_empty() && !self.data.train.is_empty() {
                return Err(Error::contradiction(
                    format!("eval.target_auc = {target}"),
                    "data.valid = []",
                    "the area under the curve is that of a validation set; name one with --valid",
                ));
            }
        }
        if self.synthetic.enabled && !(self.data.train.is_empty() && self.data.valid.is_empty()) {
            return Err(Error::contradiction(
                "synthetic.enabled = true",
                "data.train, data.valid",
                "data is either named or made up; set synthetic.enabled = false or name no file",
            ));
        }
        at_least_one(
            "synthetic.train_rows",
            usize::try_from(self.synthetic.train_rows).unwrap_or(usize::MAX),
        )?;
        at_least_one(
            "synthetic.valid_rows",
            usize::try_from(self.synthetic.valid_rows).unwrap_or(usize::MAX),
        )?;
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
        at_least_one("data.min_count", self.data.min_count as usize)?;
        at_least_one("data.prefetch_batches", self.data.prefetch_batches)?;
        at_least_one("checkpoint.keep", self.checkpoint.keep)?;
        at_least_one("run.ranks", self.run.ranks)?;
        self.validate_eval_ranks()?;
        at_least_one("run.threads", self.run.threads.unwrap_or(1))
    }
}

/// Refuses, by name, what this build cannot do yet. Later work deletes lines here and nowhere else.
///
/// # Errors
/// [`Error::Unsupported`] naming the setting and its value.
pub fn refuse_unsupported(config: &Config) -> Result<()> {
    let run = &config.run;
    let refuse = |refused: bool, setting: String, reason: &str| {
        if refused { Err(Error::unsupported(setting, format!("this build has {reason}"))) } else { Ok(()) }
    };
    if run.device == DeviceChoice::Cuda {
        refuse_on_devices(config)?;
    }
    let precision = config.train.precision;
    refuse(
        precision == Precision::Tf32 && run.device != DeviceChoice::Cuda,
        format!("train.precision = {}", quoted(&precision)),
        "\"f32\", \"bf16\" and \"f16\" on a processor; TF32 is a format of tensor cores, with run.device = \"cuda\"",
    )?;
    refuse(
        run.schedule == ScheduleChoice::Captured && run.device != DeviceChoice::Cuda,
        format!("run.schedule = {}", quoted(&run.schedule)),
        "\"serial\" and \"overlapped\" on a processor; graphs are captured with run.device = \"cuda\"",
    )?;
    refuse(
        run.transport == TransportChoice::Nccl && run.device != DeviceChoice::Cuda,
        format!("run.transport = {}", quoted(&run.transport)),
        "NCCL between CUDA devices alone (run.device = \"cuda\"); \"auto\", \"shm\", \"verbs\" and \"tcp\" between processes",
    )?;
    refuse(
        config.data.cache == CacheData::Device,
        format!("data.cache = {}", quoted(&config.data.cache)),
        "\"off\", \"host\" and \"auto\": ids become rows on the host, so that data on the device would come back for every step",
    )
}

/// What ranks on devices cannot do: docs/hybrid.md says why.
fn refuse_on_devices(config: &Config) -> Result<()> {
    let comm = &config.comm;
    let refused = [
        (
            comm.deduplicate == DeduplicateChoice::Node,
            format!("comm.deduplicate = {}", quoted(&comm.deduplicate)),
            "\"rank\" and \"off\": what a node merges has to be counted by a host",
        ),
        (
            comm.ids == IdsChoice::Known,
            format!("comm.ids = {}", quoted(&comm.ids)),
            "\"exchange\": each device would sort the ids of all ranks",
        ),
    ];
    match refused.into_iter().find(|(refused, ..)| *refused) {
        Some((_, setting, instead)) => {
            Err(Error::unsupported(setting, format!("with run.device = \"cuda\" this build has {instead}")))
        }
        None => Ok(()),
    }
}

/// The TOML form of a setting, quotes included.
fn quoted<T: serde::Serialize>(value: &T) -> String {
    toml::Value::try_from(value).map_or_else(|_| "?".to_owned(), |value| value.to_string())
}

fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 { Err(Error::config(key, "expected at least 1, found 0")) } else { Ok(()) }
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
pub fn require_file(key: &str, path: &std::path::Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::config(key, format!("{} is a directory, not a file", path.display())))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Error::config(key, format!("cannot read {}: {error}", path.display()))),
    }
}

fn check_widths(key: &str, widths: &[usize]) -> Result<()> {
    if widths.is_empty() || widths.contains(&0) {
        return Err(Error::config(key, format!("expected a list of widths of at least 1, found {widths:?}")));
    }
    Ok(())
}
