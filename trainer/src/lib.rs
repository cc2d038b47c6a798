//! Training of deep-learning recommendation models (DLRM) on click logs, from the command line and
//! as a library.
//!
//! # Start here
//!
//! | you want to | look at |
//! |---|---|
//! | train, evaluate, predict without writing a program | the program `headlong`: `headlong --help`, `README.md` |
//! | train from a program of your own | [`run::session::Session`] and the example below |
//! | have embedding tables of your own | [`table`] and [`main_with`]; `docs/custom-tables.md` goes through all of it |
//! | change a setting | [`Config`]: every key of a configuration file is a field |
//! | know what a setting costs | [`plan::Plan`]: memory, bytes and time of a step, before anything is allocated |
//! | use what was trained | [`state::checkpoint`], [`commands::export`]; `docs/formats.md` |
//!
//! A program that trains, evaluates and saves:
//!
//! ```
//! use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
//! use headlong::run::session::{Session, Start};
//! use headlong::{Registry, config::preset::preset, report::Reporter, commands::train::Prepared};
//!
//! # let folder = tempfile::tempdir().map_err(headlong::Error::io("create", "a folder"))?;
//! let mut config = preset("tiny")?; // synthetic data; `data.train` names files of your own
//! config.set_all(&["synthetic.train_rows=2_000", "synthetic.valid_rows=500"])?;
//! # config.run.output_dir = folder.path().to_owned();
//! config.checkpoint.dir = Some(config.run.output_dir.join("checkpoints"));
//! config.validate()?;
//! let (threads, registry) = (2, Registry::default());
//! let prepared = Prepared::new(&config, None, threads, &Reporter::quiet(None))?;
//! let options = RankGroupOptions::new(threads, &registry);
//! let group = RankGroup::build(&config, &prepared.table_rows, options)?;
//! let data = prepared.session_data(&config, threads)?;
//! let mut session = Session::open(&config, group, data, &Start::Fresh)?;
//! while let Some(step) = session.step()? {
//!     assert!(step.loss.is_finite());
//! }
//! let metrics = session.evaluate()?;
//! assert!(metrics.is_some_and(|metrics| metrics.auc > Some(0.5)));
//! session.save(None)?;
//! # Ok::<(), headlong::Error>(())
//! ```
//!
//! `trainer/examples/` has longer ones, each run by
//! `cargo run --release -p headlong --example NAME`:
//!
//! * `01_train_tiny`: the program above, with evaluations on the way;
//! * `02_four_ranks`: four ranks as threads, statistics, and the placement of rows;
//! * `03_custom_table`: a table of one's own through the library, and resuming;
//! * `04_read_your_data`: files of one's own, read batch by batch;
//! * `05_own_program`: the whole command line with a table of one's own.
//!
//! # The way of a run
//!
//! [`config`] (what the user asked for) → [`plan`] (what it means on this machine) → [`iteration`]
//! (the model in memory, and one step) ← [`run`] (batches, evaluations, checkpoints), with
//! [`commands`] around it. `ARCHITECTURE.md` says which crate does what.
//!
//! # Stability
//!
//! Before version 1.0 any release may change this library. Many modules are public because the
//! program, its benches and its tests use them. A program of one's own needs [`Config`],
//! [`run::session`] with what the example above passes to it, [`table`], [`main_with`] and
//! [`Error`]; `CHANGELOG.md` lists changes of these.

pub mod commands;
pub mod config;
pub mod data;
pub mod error;
pub mod iteration;
pub mod metrics;
pub mod plan;
pub mod report;
pub mod run;
pub mod state;
pub mod system;
pub mod table;
pub mod units;

pub use commands::cli::main_with;
pub use config::Config;
pub use error::{Error, Result};
pub use headlong_embedding::Registry;
