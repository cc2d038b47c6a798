//! What a command line says of data that does not say it itself.

use crate::config::Config;
use crate::data;
use crate::error::{Error, Result};
use clap::Args;
use headlong_reader::convert::{self, Described};
use headlong_reader::formats::Format;
use headlong_reader::formats::named::{DenseReading, Others};
use headlong_reader::formats::records::DCNV2_HOTNESS;
use headlong_reader::io::DataFile;
use headlong_reader::samples::{DenseKind, Hotness, MOST_COLUMNS};
use headlong_reader::{BlockOptions, DenseTransform};
use std::path::PathBuf;

/// Format, columns and transform of data files.
#[derive(Debug, Args)]
pub struct DescribedArguments {
    /// The data's format; told from the first file where it is not given, which records without a
    /// header (mlperf, raw) need
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
    /// A configuration whose `[data.columns]` say what the columns of a file with a header (csv,
    /// parquet) are
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Turn integers into numbers by this: ln(x+1), ln(x+3), none. For npy, split and csv it says
    /// what was done already
    #[arg(long, value_name = "TRANSFORM")]
    pub dense_transform: Option<DenseTransform>,
    /// Records of `raw`: how many dense numbers
    #[arg(long, value_name = "N", default_value_t = 13)]
    pub num_dense: usize,
    /// Records of `raw`: ids a sample in each column (1,3,…); MLPerf's multi-hot data where it is
    /// not given. For `csv` 0: any number
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub hotness: Vec<u32>,
    /// `raw`, `csv`: dense numbers are integers, still to be transformed; `--to raw` keeps them so
    /// for another program
    #[arg(long)]
    pub integers: bool,
    /// Threads for text; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    pub threads: Option<usize>,
}

impl DescribedArguments {
    /// The format of `file`.
    ///
    /// # Errors
    /// A file that cannot be read, or whose format nothing tells.
    pub fn format_of(&self, file: &DataFile) -> Result<Format> {
        match (self.from, &self.config) {
            (Some(format), _) => Ok(format),
            (None, config) => {
                match convert::detect(file).map_err(Error::failed("the data cannot be read"))? {
                    // Text of which columns are named has a header.
                    Format::Criteo if config.is_some() => Ok(Format::Csv),
                    format => Ok(format),
                }
            }
        }
    }

    pub fn described(&self) -> Result<Described> {
        let columns = match &self.config {
            Some(file) => {
                let mut columns = data::named_columns(&Config::from_file(file)?);
                // What is converted or looked at are the numbers themselves.
                columns.dense_columns = None;
                columns.dense_reading = self.dense_reading(columns.dense_reading);
                Some(columns)
            }
            None => None,
        };
        if self.num_dense > MOST_COLUMNS {
            let found = self.num_dense;
            return Err(Error::Usage(format!(
                "--num-dense: expected at most {MOST_COLUMNS}, found {found}"
            )));
        }
        let transform = self.dense_transform.unwrap_or(DenseTransform::LnPlus1);
        let hotness = if self.hotness.is_empty() { &DCNV2_HOTNESS[..] } else { &self.hotness[..] };
        let kind =
            if self.integers { DenseKind::Integers } else { DenseKind::Transformed(transform) };
        let num_threads = self.threads.unwrap_or_else(crate::system::machine::cores);
        let as_written =
            |&count: &u32| if count == 0 { Hotness::Varying } else { Hotness::Fixed(count) };
        Ok(Described {
            transform,
            raw: (self.num_dense, kind, hotness.to_vec()),
            text: BlockOptions { num_threads, ..BlockOptions::default() },
            columns,
            dense_columns: None,
            others: Others::Refused,
            dense_reading: self.dense_reading(DenseReading::Transformed(transform)),
            hotness: self.hotness.iter().map(as_written).collect(),
        })
    }

    fn dense_reading(&self, otherwise: DenseReading) -> DenseReading {
        if self.integers { DenseReading::Integers } else { otherwise }
    }
}
