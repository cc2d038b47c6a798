//! Frames ([`Frame`]): columns by name in memory, put into samples as those of Parquet are. They
//! are read at random.

mod carried;
mod excerpt;
mod source;

pub(in crate::formats) use carried::CarriedFrame;
pub(crate) use excerpt::read_some;
pub use source::FrameSource;

use crate::frame::Frame;

/// The names of a frame's columns.
pub(in crate::formats) fn names_of(frame: &dyn Frame) -> Vec<String> {
    frame.columns().iter().map(|column| column.name.clone()).collect()
}

#[cfg(test)]
mod tests;
