//! `[mlperf]`: who a log of MLPerf's form is from.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// What the first lines of `--mllog FILE` say. Changes no result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MlperfConfig {
    /// Who trains.
    pub org: String,
    /// On what.
    pub platform: String,
    /// `"closed"`: everything but what the rules leave open is as published; `"open"` otherwise.
    pub division: String,
    /// `"onprem"`, `"cloud"`, `"preview"` or `"research"`.
    pub status: String,
}

impl Default for MlperfConfig {
    fn default() -> Self {
        let text = |text: &str| text.to_owned();
        Self {
            org: text("unnamed"),
            platform: text("unnamed"),
            division: text("open"),
            status: text("research"),
        }
    }
}

impl MlperfConfig {
    /// Checks what MLPerf has a list of.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key.
    pub(super) fn validate(&self) -> Result<()> {
        let one_of = |key: &str, value: &str, names: &[&str]| match names.contains(&value) {
            true => Ok(()),
            false => Err(Error::config(
                key,
                format!("expected one of {}, found \"{value}\"", names.join(", ")),
            )),
        };
        one_of("mlperf.division", &self.division, &["closed", "open"])?;
        one_of("mlperf.status", &self.status, &["onprem", "cloud", "preview", "research"])
    }
}
