//! What a model's network takes: columns as numbers and rows of tables, for networks that are
//! computed elsewhere.

use super::{How, config_for, id_mapper};
use crate::config::Config;
use crate::data::{self, EvaluationData};
use crate::error::{Error, Result};
use crate::run::dictionary::RunDictionary;
use crate::system::machine;
use headlong_reader::io::DataFile;
use headlong_reader::{Batch, IdMapper, Jagged};
use std::slice;

/// Reads columns as the data of a model was read.
pub struct ModelInputs {
    config: Config,
    table_rows: Vec<u64>,
    dictionary: Option<RunDictionary>,
    admitted: Option<Vec<u8>>,
}

/// The rows of some files.
#[derive(Debug, Default)]
pub struct Inputs {
    /// How many there are.
    pub num_samples: usize,
    /// Numbers as the bottom network takes them, row-major.
    pub dense: Vec<f32>,
    /// Of each table, the rows of all samples one after another. Of tables of raw ids, the ids.
    pub rows: Vec<Vec<u64>>,
    /// Of each table, how many rows each sample has; nothing where each has one.
    pub counts: Vec<Option<Vec<u64>>>,
}

impl ModelInputs {
    /// By files of a checkpoint: its configuration, and its dictionary and the state of admitted
    /// ids where it has them. Tables have `table_rows` rows.
    ///
    /// # Errors
    /// What is damaged or does not fit the other.
    pub fn new(
        config: &str,
        table_rows: Vec<u64>,
        dictionary: Option<&[u8]>,
        admitted: Option<Vec<u8>>,
    ) -> Result<Self> {
        let config = Config::from_toml(config, "the model's configuration")?;
        let dictionary = dictionary.map(|bytes| RunDictionary::from_bytes(bytes, &config));
        Ok(Self { dictionary: dictionary.transpose()?, config, table_rows, admitted })
    }

    /// All rows of `files`, labelled or not.
    ///
    /// # Errors
    /// As those of `headlong predict`.
    pub fn read(&self, files: &[DataFile]) -> Result<Inputs> {
        let how = How::of_program();
        let mut config = config_for(self.config.clone(), files, &how)?;
        data::ignore_labels(&mut config);
        let mut ids = id_mapper(&config, &self.table_rows, self.dictionary.as_ref())?;
        if let Some(admitted) = &self.admitted {
            let restored = ids.restore_state(admitted);
            restored.map_err(Error::failed("the model's ids cannot be used"))?;
        }
        let mut inputs = Inputs::new(self.table_rows.len());
        for file in files {
            inputs.add(&config, file, &ids)?;
        }
        Ok(inputs)
    }
}

impl Inputs {
    fn new(num_tables: usize) -> Self {
        let (rows, counts) = (vec![Vec::new(); num_tables], vec![None; num_tables]);
        Self { rows, counts, ..Self::default() }
    }

    fn add(&mut self, config: &Config, file: &DataFile, ids: &IdMapper) -> Result<()> {
        let labelled = data::has_labels_to_skip(config, file)?;
        let files = slice::from_ref(file);
        let opened = EvaluationData::open_once(config, files, labelled, machine::cores())?;
        let mut reader = opened.reader(ids)?;
        let mut batch = Batch::default();
        while reader.next(&mut batch).map_err(Error::failed("the data cannot be read"))? {
            self.dense.extend_from_slice(&batch.dense);
            for (table, bags) in batch.sparse.iter().enumerate() {
                self.add_bags(table, bags, batch.num_samples);
            }
            self.num_samples += batch.num_samples;
        }
        Ok(())
    }

    fn add_bags(&mut self, table: usize, bags: &Jagged, num_samples: usize) {
        let offsets = &bags.offsets[..=num_samples];
        let used = offsets[0] as usize..offsets[num_samples] as usize;
        self.rows[table].extend_from_slice(&bags.values[used]);
        let is_single = offsets.windows(2).all(|pair| pair[1] - pair[0] == 1);
        if is_single && self.counts[table].is_none() {
            return;
        }
        let counts = self.counts[table].get_or_insert_with(|| vec![1; self.num_samples]);
        counts.extend(offsets.windows(2).map(|pair| u64::from(pair[1] - pair[0])));
    }
}
