//! Training of deep-learning recommendation models (DLRM) on click logs, from the command line and
//! as a library.
//!
//! ```
//! use headlong::{Config, Session};
//!
//! let mut config = Config::preset("tiny")?; // synthetic data; `data.train` names files of yours
//! config.set_all(&["synthetic.train_rows=2_000", "synthetic.valid_rows=500"])?;
//! # let folder = tempfile::tempdir().map_err(headlong::Error::io("create", "a folder"))?;
//! # config.run.output_dir = folder.path().to_owned();
//! config.checkpoint.dir = Some(config.run.output_dir.join("checkpoints"));
//! let mut session = Session::builder(&config).resume().open()?;
//! session.train()?;
//! println!("AUC {:?}", session.evaluate()?.and_then(|metrics| metrics.auc));
//! session.save()?;
//! # Ok::<(), headlong::Error>(())
//! ```
//!
//! An [`Error`] displays as one sentence; its `Debug` form, which `main` prints, adds the causes:
//! file, line, key, what was expected and what was found.
//!
//! | you want to | look at |
//! |---|---|
//! | train, evaluate, predict without writing a program | the program `headlong`: `headlong --help`, `README.md` |
//! | train from a program of your own | [`Session`], and [`SessionBuilder`] to resume |
//! | change a setting | [`Config`]: every key of a configuration file is a field |
//! | have embedding tables of your own | [`table`] and [`main_with`]; `docs/custom-tables.md` goes through all of it |
//! | use what was trained | `headlong eval`, `predict` and `checkpoint export`; `docs/formats.md` |
//!
//! `trainer/examples/` has longer programs, each run by
//! `cargo run --release -p headlong --example NAME`: `01_train_tiny` is the one above with
//! evaluations on the way, `03_custom_table` brings a table of its own and resumes,
//! `05_own_program` is the whole command line with it.
//!
//! # Stability
//!
//! Before version 1.0 any release may change this library; `CHANGELOG.md` lists changes of what
//! this page shows. Modules that it does not show are public for Headlong's own program, benches
//! and tests, and change without notice.

#[doc(hidden)]
pub mod auto;
#[doc(hidden)]
pub mod commands;
pub mod config;
#[doc(hidden)]
pub mod data;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod iteration;
#[doc(hidden)]
pub mod plan;
mod protobuf;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod run;
mod session;
#[doc(hidden)]
pub mod state;
#[doc(hidden)]
pub mod system;
pub mod table;
#[doc(hidden)]
pub mod units;

pub use commands::cli::main_with;
pub use config::Config;
pub use error::{Error, Result};
pub use headlong_embedding::Registry;
#[doc(hidden)]
pub use headlong_metrics as metrics;
#[doc(inline)]
pub use metrics::EvalMetrics as Metrics;
pub use run::session::StepOutcome;
pub use session::{Session, SessionBuilder};
