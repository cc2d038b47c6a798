//! Parquet: columns by name ([`NamedColumns`](super::named::NamedColumns)), integers, numbers,
//! words and lists.
//!
//! Files that we write carry their [`DataSchema`](crate::samples::DataSchema) as JSON under
//! `headlong.schema` and need nothing said of them. Samples come from front to back: a page holds
//! thousands of them, and is decoded whole.

mod carried;
mod clock;
mod column;
mod contained;
mod delta;
mod excerpt;
mod pages;
mod read;
mod thrift;
mod write;

pub(in crate::formats) use carried::{CarriedParquet, names_of};
pub(in crate::formats) use column::Column;
pub(crate) use excerpt::read_some;
pub use read::{ParquetSource, is_parquet};
pub use write::ParquetSink;

const SCHEMA_KEY: &str = "headlong.schema";

#[cfg(test)]
mod tests;
