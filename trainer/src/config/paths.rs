//! How paths are written: TOML and JSON hold UTF-8, names of files any bytes. What is not UTF-8 is
//! shown with a sign in its place; `headlong config show`, whose text is read back, refuses it.

use super::Config;
use crate::error::{Error, Result};
use serde::{Serialize as _, Serializer};
use std::path::{Path, PathBuf};

pub(crate) fn one<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

pub(super) fn optional<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

impl Config {
    /// Every path that is named, with its key.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let optional = [
            ("data.dictionary", &self.data.dictionary),
            ("hybrid.latency_table", &self.hybrid.latency_table),
            ("comm.tuning", &self.comm.tuning),
            ("checkpoint.dir", &self.checkpoint.dir),
            ("checkpoint.snapshot_dir", &self.checkpoint.snapshot_dir),
            ("run.kernels", &self.run.kernels),
            ("run.algorithms", &self.run.algorithms),
        ];
        let files = [("data.train", &self.data.train), ("data.valid", &self.data.valid)];
        let files = files
            .into_iter()
            .flat_map(|(key, files)| files.iter().map(move |file| (key, file)))
            // Rows in memory have a name, which is no path.
            .filter(|(_, file)| file.frame().is_none())
            .map(|(key, file)| (key, file.system_path()));
        let optional = optional.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)));
        files.chain(optional).chain([("run.output_dir", &*self.run.output_dir)])
    }

    /// Refuses paths that TOML cannot hold.
    ///
    /// # Errors
    /// [`Error::Config`] naming key and path.
    pub fn check_paths_are_text(&self) -> Result<()> {
        match self.paths().find(|(_, path)| path.to_str().is_none()) {
            Some((key, path)) => {
                let message =
                    format!("{} is not UTF-8, and a TOML file holds nothing else", path.display());
                Err(Error::config(key, message))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn paths_of_any_bytes_are_shown() {
        let odd = || PathBuf::from(std::ffi::OsString::from_vec(b"bad\xff.txt".to_vec()));
        let mut config = Config::default();
        config.data.train = vec![odd().into()];
        config.checkpoint.dir = Some(odd());
        config.run.output_dir = odd();
        config.validate().unwrap();
        assert_eq!(config.to_table()["run"]["output_dir"].as_str(), Some("bad\u{fffd}.txt"));
        assert_eq!(serde_json::to_value(&config).unwrap()["data"]["train"][0], "bad\u{fffd}.txt");
        let message = config.check_paths_are_text().unwrap_err().to_string();
        assert!(message.contains("data.train") && message.contains("UTF-8"), "{message}");
        assert_eq!(
            Config::default().with_every_key_set().paths().count(),
            8,
            "without files of data"
        );
    }
}
