//! `[mlperf]`: who a log of MLPerf's form is from.

use crate::error::{Error, Result};

settings! {
    /// What the first lines of `--mllog FILE` say. Changes no result.
    pub struct MlperfConfig ["mlperf"] {
        /// `--mllog`: who trains.
        pub org: String = "unnamed".to_owned(),
        /// `--mllog`: on what.
        pub platform: String = "unnamed".to_owned(),
        /// `--mllog`: "closed" or "open".
        ///
        /// Closed: everything is as published, except for what the rules leave open.
        pub division: String = "open".to_owned(),
        /// `--mllog`: "onprem", "cloud", "preview" or "research".
        pub status: String = "research".to_owned(),
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
