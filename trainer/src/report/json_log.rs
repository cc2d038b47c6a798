//! The JSON log: one object a line.

use super::events::At;
use super::output::say;
use crate::error::{Error, Result};
use headlong_device::files::GrowingFile;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Where the JSON log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    Stdout,
    /// A file, appended to on `--resume`, replaced otherwise.
    File(PathBuf),
}

impl From<OsString> for LogTarget {
    fn from(text: OsString) -> Self {
        if text == "-" { Self::Stdout } else { Self::File(text.into()) }
    }
}

/// Writes events as JSON lines, each flushed at once.
pub struct JsonLog {
    out: Box<dyn Write + Send>,
    path: PathBuf,
    started: Instant,
    at: Option<At>,
}

impl std::fmt::Debug for JsonLog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("JsonLog").field("path", &self.path).finish_non_exhaustive()
    }
}

impl JsonLog {
    /// Opens the log. A resumed run appends to a file, any other replaces it.
    pub fn open(target: &LogTarget, append: bool, started: Instant) -> Result<Self> {
        match target {
            LogTarget::Stdout => {
                Ok(Self::new(Box::new(std::io::stdout()), "standard output".into(), started))
            }
            LogTarget::File(path) => {
                let file = GrowingFile::open(path, append).map_err(Error::io("write", path))?;
                Ok(Self::new(Box::new(file), path.clone(), started))
            }
        }
    }

    /// A log into `out`; `path` names it in errors.
    pub fn new(out: Box<dyn Write + Send>, path: PathBuf, started: Instant) -> Self {
        Self { out, path, started, at: None }
    }

    /// From now on every event says where the run stands.
    pub fn set_position(&mut self, at: At) {
        self.at = Some(at);
    }

    /// Writes one event. Numbers that are not finite become `null`. Where a file takes no more once
    /// training has begun, it gets nothing from then on, and a warning says so.
    pub fn write<T: Serialize>(&mut self, event: &str, fields: &T) -> Result<()> {
        let Ok(Value::Object(fields)) = serde_json::to_value(fields) else {
            unreachable!("an event is an object of plain values");
        };
        let time_s = (self.started.elapsed().as_secs_f64() * 1e6).round() / 1e6;
        // What every line has comes first, for people who read along.
        let mut text = format!("{{\"event\":\"{event}\",\"time_s\":{time_s}");
        if let Some(at) = self.at {
            text.push_str(&format!(",\"step\":{},\"samples\":{}", at.step, at.samples));
        }
        for (key, value) in &fields {
            text.push_str(&format!(",{}:{value}", Value::from(key.as_str())));
        }
        text.push_str("}\n");
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        match written {
            // What has been trained is worth more than the log of it.
            Err(error) if self.at.is_some_and(|at| at.step > 0) => {
                let path = self.path.display();
                say(format_args!(
                    "warning: cannot write {path}: {error}: the log ends here, and training \
                     continues"
                ));
                self.out = Box::new(std::io::sink());
                Ok(())
            }
            written => written.map_err(Error::io("write", &self.path)),
        }
    }
}
