//! Some columns of a frame, as text, row by row.

use std::sync::Arc;

use super::names_of;
use crate::error::{ReaderError, Result};
use crate::excerpt::UNIT_SEPARATOR;
use crate::formats::carried::places;
use crate::formats::parquet::Column;
use crate::frame::{Frame, FrameKind};
use crate::io::DataFile;

/// Fields of columns, from the first row to the last. Those of a list have `|` between them.
pub(in crate::formats) struct CarriedFrame {
    frame: Arc<dyn Frame>,
    columns: Vec<usize>,
    next: u64,
}

impl CarriedFrame {
    /// Opens a frame for its columns `names`.
    pub fn open(file: &DataFile, frame: &Arc<dyn Frame>, names: &[String]) -> Result<Self> {
        let columns = places(names, &names_of(&**frame), file)?;
        for (&column, name) in columns.iter().zip(names) {
            if let FrameKind::Refused(what, _) = frame.columns()[column].kind {
                let message = format!("column `{name}`: {what} are not carried");
                return Err(ReaderError::Format { file: file.name(), message });
            }
        }
        Ok(Self { frame: Arc::clone(frame), columns, next: 0 })
    }

    /// As [`Carried::next`](crate::formats::carried::Carried::next).
    pub fn next(&mut self, row: &mut Vec<String>) -> bool {
        if self.next == self.frame.num_rows() {
            return false;
        }
        row.clear();
        for &column in &self.columns {
            let value = Column::of_frame(self.frame.read(column, self.next..self.next + 1));
            value.texts(1, &mut |text| {
                row.push(String::from_utf8_lossy(text).replace(UNIT_SEPARATOR as char, "|"));
            });
        }
        self.next += 1;
        true
    }
}
