//! What can go wrong in a run, and the exit code each kind ends the program with.

use crate::state::checkpoint::CheckpointError;
use crate::table::EmbeddingError;
use headlong_comm::{CommError, Rank};
use std::fmt;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a lower crate or of a library, kept as the cause.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong in a run. [`Error::exit_code`] says how the program ends.
///
/// Its `Debug` form is [`chain`]: a program whose `main` returns it prints one line with all
/// causes.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of a configuration file or of `--set` that does not exist.
    #[error("{place}: unknown key `{key}`{}", did_you_mean(nearest))]
    UnknownKey {
        /// `FILE:LINE`, or `--set`.
        place: String,
        /// The full dotted path as it was written.
        key: String,
        /// The nearest known key, where one is near.
        nearest: Option<String>,
    },
    /// The last word of several keys of a configuration.
    #[error("{place}: `{key}` could be {}: write one of them", candidates.join(" or "))]
    AmbiguousKey {
        /// `--set`.
        place: String,
        /// What was written.
        key: String,
        /// The keys that end in it, quoted.
        candidates: Vec<String>,
    },
    /// A configuration file that is not TOML, or whose value has the wrong type.
    #[error("{place}: {message}")]
    Toml {
        /// `FILE:LINE`, or `--set KEY`.
        place: String,
        /// What was found and what was expected.
        message: String,
    },
    /// A value that cannot work.
    #[error("`{key}`: {message}")]
    Config {
        /// The dotted key or the flag.
        key: String,
        /// What was found and what was expected.
        message: String,
    },
    /// Two settings that exclude each other.
    #[error("`{first}` and `{second}` contradict each other: {reason}")]
    Contradiction {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// Why both cannot be.
        reason: String,
    },
    /// Something that this build or this machine cannot do, asked for by name.
    #[error("{feature} is not available: {reason}")]
    Unsupported {
        /// What was asked for.
        feature: String,
        /// Why not, and what can be used instead.
        reason: String,
    },
    /// The plan needs more than the machine has.
    #[error(
        "the plan needs {} and {} are available; {help}",
        amount(*needed_bytes), amount(*available_bytes)
    )]
    DoesNotFit {
        /// Bytes the plan needs; `u64::MAX` for more than 64 bits hold.
        needed_bytes: u64,
        /// Bytes the machine has.
        available_bytes: u64,
        /// The key that would help, with a value.
        help: String,
    },
    /// Wrong usage that no other kind describes.
    #[error("{0}")]
    Usage(String),
    /// A file or folder that could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The loss or a layer's output stopped being a number.
    #[error(
        "the {what} is {value} in step {step}: lower the learning rate, or look at the data of \
         that step"
    )]
    NotFinite {
        /// Counted from 1.
        step: u64,
        /// `loss`, or the layer.
        what: String,
        /// NaN or an infinity.
        value: f64,
    },
    /// The device has refused work, or failed at it.
    #[error("stage `{stage}` of step {step} failed on the device")]
    Device {
        /// The stage during which it was noticed; work that was enqueued before may be the cause.
        stage: &'static str,
        /// Counted from 1; 0 outside of training.
        step: u64,
        /// What the device said.
        source: Cause,
    },
    /// A table that its kind refuses, or a kind that is not registered.
    #[error(transparent)]
    Table(#[from] EmbeddingError),
    /// A checkpoint that cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A failure of a lower crate.
    #[error("{context}")]
    Failed {
        /// What was being done.
        context: String,
        /// The crate's error.
        source: Cause,
    },
    /// Communication between ranks failed.
    #[error("communication failed: {context}")]
    Communication {
        /// What was being done.
        context: String,
        /// The transport's error.
        source: Cause,
    },
    /// A rank of `headlong launch` has failed.
    #[error("rank {rank} {how}")]
    Rank {
        /// Which.
        rank: usize,
        /// How its process ended.
        how: String,
        /// What the launcher ends with.
        exit_code: u8,
    },
    /// A signal ended the run, as was asked for: no failure.
    #[error("stopped by {}{outcome}", signal_name(*signal))]
    Interrupted {
        /// The signal's number: 1 for SIGHUP, 2 for SIGINT, 15 for SIGTERM.
        signal: i32,
        /// Where it was stopped, what was saved and how to go on: the rest of the sentence, where
        /// it is known.
        outcome: String,
        /// Another process says it.
        is_said: bool,
    },
    /// A bench was slower than its baseline.
    #[error("slower than the baseline: {0}")]
    SlowerThanBaseline(String),
    /// Nothing of what was asked for is there: a device, a library, a NIC.
    #[error("skipped: {0}")]
    Skipped(String),
    /// A command has taken longer than it was given.
    #[error("it was not done within {seconds} s")]
    TimedOut {
        /// What it was given.
        seconds: f64,
    },
}

fn amount(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more than 2^64 bytes".to_owned(),
        bytes => format!("{bytes} bytes ({})", crate::units::bytes(bytes)),
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self))
    }
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(
        || "; `headlong config show` lists the known ones".to_owned(),
        |key| format!(": did you mean `{key}`?"),
    )
}

/// `SIGTERM`.
pub(crate) fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGHUP => "SIGHUP".to_owned(),
        libc::SIGINT => "SIGINT".to_owned(),
        libc::SIGTERM => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    }
}

impl From<headlong_planner::error::Error> for Error {
    fn from(error: headlong_planner::error::Error) -> Self {
        match error {
            headlong_planner::error::Error::DoesNotFit { needed_bytes, available_bytes, help } => {
                Self::DoesNotFit { needed_bytes, available_bytes, help }
            }
            error => Self::config("--cluster", error.to_string()),
        }
    }
}

impl Error {
    /// A value of `key` that cannot work.
    pub fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { key: key.into(), message: message.into() }
    }

    /// Something asked for by name that this build cannot do.
    pub fn unsupported(feature: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { feature: feature.into(), reason: reason.into() }
    }

    /// `first` and `second` exclude each other.
    pub fn contradiction(
        first: impl Into<String>,
        second: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Contradiction { first: first.into(), second: second.into(), reason: reason.into() }
    }

    /// Wraps an error of a lower crate: `result.map_err(Error::failed("reading the training
    /// data"))`.
    pub fn failed<E: Into<Cause>>(context: impl Into<String>) -> impl FnOnce(E) -> Self {
        // Note: steps call this where nothing has failed, and allocate nothing.
        move |source| Self::Failed { context: context.into(), source: source.into() }
    }

    /// Wraps an error of communication; a setting that cannot be used is wrong usage, whichever
    /// rank has found it.
    pub fn communication(context: impl Into<String>) -> impl FnOnce(CommError) -> Self {
        let context = context.into();
        move |error| match error {
            CommError::Setting { setting, reason } => Self::config(setting, reason),
            source => Self::Communication { context, source: source.into() },
        }
    }

    /// The same error with the ranks of a part of a job, `ranks`, as the whole job counts them.
    #[must_use]
    pub(crate) fn in_whole(self, ranks: &[Rank]) -> Self {
        let renamed = |source: Cause| match source.downcast::<CommError>() {
            Ok(error) => error.in_whole(ranks).into(),
            Err(source) => match source.downcast::<Self>() {
                Ok(error) => error.in_whole(ranks).into(),
                Err(source) => source,
            },
        };
        match self {
            Self::Communication { context, source } => {
                Self::Communication { context, source: renamed(source) }
            }
            Self::Failed { context, source } => Self::Failed { context, source: renamed(source) },
            other => other,
        }
    }

    /// Wraps a file error: `result.map_err(Error::io("write", path))`.
    pub fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Exit code of the program: 1 failed while running, 2 wrong usage, configuration or plan, 3
    /// communication failed, 4 slower than the baseline, 77 skipped, 124 out of time, 128 + n after
    /// signal n.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownKey { .. }
            | Self::AmbiguousKey { .. }
            | Self::Toml { .. }
            | Self::Config { .. }
            | Self::Contradiction { .. }
            | Self::Unsupported { .. }
            | Self::DoesNotFit { .. }
            | Self::Usage(_)
            | Self::Table(EmbeddingError::Spec { .. } | EmbeddingError::UnknownKind { .. }) => 2,
            Self::Table(_) | Self::Checkpoint(_) => 1,
            Self::Failed { source, .. } if comm_error(&**source).is_some() => 3,
            Self::Io { .. }
            | Self::NotFinite { .. }
            | Self::Device { .. }
            | Self::Failed { .. } => 1,
            Self::Communication { .. } => 3,
            Self::Rank { exit_code, .. } => *exit_code,
            Self::SlowerThanBaseline(_) => 4,
            Self::Skipped(_) => 77,
            Self::TimedOut { .. } => 124,
            Self::Interrupted { signal, .. } => u8::try_from(128 + signal).unwrap_or(1),
        }
    }

    /// With the name that a file has for the column of the table that went wrong; `names` are those
    /// of all columns, empty where files have none.
    #[must_use]
    pub fn naming_columns(self, names: &[String]) -> Self {
        let causes =
            std::iter::successors(Some(&self as &dyn std::error::Error), |error| error.source());
        let mut tables = causes.filter_map(|cause| cause.downcast_ref::<EmbeddingError>()?.table());
        let column = tables.next().and_then(|table| {
            let number: usize = table.strip_prefix('C')?.parse().ok()?;
            Some(format!("column `{}` (table `{table}`)", names.get(number.checked_sub(1)?)?))
        });
        match column {
            Some(context) if self.exit_code() == 1 => {
                Self::Failed { context, source: Box::new(self) }
            }
            _ => self,
        }
    }
}

/// The failure of communication that lies under an error: saving a checkpoint exchanges rows, too.
pub(crate) fn comm_error<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e CommError> {
    let mut chain = std::iter::successors(Some(error), |error| error.source());
    chain.find_map(|error| error.downcast_ref())
}

/// One line with the whole chain of causes, most specific last.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Note: some libraries repeat their cause in their own message; it is printed once.
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

/// Names what was being exchanged.
pub(crate) fn exchange_failed(what: &str) -> impl FnOnce(CommError) -> Error {
    // Note: as [`Error::failed`].
    move |error| Error::communication(format!("{what} could not be exchanged"))(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_ends_with_the_most_specific_cause() {
        let error = Error::io("read", "day_0.gz")(std::io::Error::other("bad block"));
        assert_eq!(chain(&error), "cannot read day_0.gz: bad block");
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn a_column_with_a_name_is_named() {
        let full = |table: &str| {
            let (table, what) = (table.to_owned(), "ids");
            let source = EmbeddingError::Capacity { table, what, found: 9, capacity: 8 };
            Error::failed("the rows cannot be looked up")(source)
        };
        let names = ["user".to_owned(), "genres".to_owned()];
        let named = full("C2").naming_columns(&names);
        assert_eq!(named.exit_code(), 1);
        let text = chain(&named);
        assert!(
            text.starts_with("column `genres` (table `C2`): the rows cannot be looked up: "),
            "{text}"
        );
        for (error, names) in [(full("C2"), &[][..]), (full("C3"), &names), (full("mine"), &names)]
        {
            assert!(
                chain(&error.naming_columns(names)).starts_with("the rows cannot be looked up")
            );
        }
    }

    #[test]
    fn what_main_returns_prints_as_one_line_with_its_causes() {
        let spec = EmbeddingError::Spec { table: "C3".to_owned(), reason: "rank is 0".to_owned() };
        let error = Error::failed("the embedding tables cannot be built")(spec);
        assert_eq!(
            format!("{error:?}"),
            "the embedding tables cannot be built: table `C3`: rank is 0"
        );
        let boxed: Cause = error.into();
        assert_eq!(
            format!("Error: {boxed:?}"),
            "Error: the embedding tables cannot be built: table `C3`: rank is 0"
        );
        // What a table's author meets converts by `?`.
        let kind = EmbeddingError::UnknownKind {
            table: "C3".into(),
            kind: "x".into(),
            known: "dense".into(),
        };
        assert_eq!(Error::from(kind).exit_code(), 2);
    }

    #[test]
    fn signals_end_with_128_and_their_number() {
        let interrupted =
            |signal| Error::Interrupted { signal, outcome: " at step 7".into(), is_said: false };
        assert_eq!(interrupted(2).exit_code(), 130);
        assert_eq!(interrupted(15).exit_code(), 143);
        assert_eq!(interrupted(15).to_string(), "stopped by SIGTERM at step 7");
    }
}
