//! Files to batches: formats, preprocessing, asynchronous input, order, prefetch.
//!
//! What it is for: turning raw click logs (Criteo's tab-separated text; plain, gzip or zstd) into batches of
//! labels, dense features and row indices, in order, ahead of the training that consumes them, in bounded memory.
//!
//! What it will never do: know a table's weights, a rank (beyond "slice k of n"), or a model.
//!
//! Its words: a *line* of text becomes a *sample* (or is *bad*); samples form *batches*; a categorical field is
//! a raw **id**, which an id policy turns into a **row index** of its column's table.

pub mod batch;
pub mod criteo;
pub mod error;
pub mod io;
pub mod schema;

pub use batch::{Batch, Jagged, Position};
pub use error::{ReaderError, Result};
pub use schema::{Column, Schema};
