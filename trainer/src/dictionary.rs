//! The dictionary of a run: found, built, or taken from a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::report::Reporter;
use headlong_reader::IdMapper;
use std::path::PathBuf;
use std::sync::Arc;

/// A dictionary and its bytes, which every checkpoint keeps.
pub struct RunDictionary {
    bytes: Arc<Vec<u8>>,
}

impl RunDictionary {
    /// TODO
    pub fn of_checkpoint(_checkpoint: &Checkpoint) -> Result<Self> {
        Err(Error::unsupported("dictionary", "not yet"))
    }
    /// TODO
    pub fn find_or_build(_c: &Config, _f: &[PathBuf], _t: usize, _r: &Reporter) -> Result<Self> {
        Err(Error::unsupported("dictionary", "not yet"))
    }
    /// TODO
    pub fn rows_read(&self) -> Option<u64> {
        None
    }
    /// TODO
    pub fn table_rows(&self, _c: &Config) -> Vec<u64> {
        vec![]
    }
    /// TODO
    pub fn mapper(&self, _rows: &[u64]) -> Result<IdMapper> {
        Err(Error::unsupported("dictionary", "not yet"))
    }
    /// TODO
    pub fn checksum(&self) -> String {
        String::new()
    }
    /// TODO
    pub fn bytes(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }
}
