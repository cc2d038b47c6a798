//! Some rows of a frame, as text.

use super::names_of;
use crate::error::Result;
use crate::excerpt::{Excerpt, Limits};
use crate::formats::parquet::Column;
use crate::frame::{Frame, FrameKind};
use crate::io::DataFile;

/// Of a long frame, rows of so many places are looked at.
const PLACES: u64 = 8;
const ROWS_AT_A_TIME: u64 = 4096;

/// Adds rows of a frame to `excerpt`.
pub(crate) fn read_some(
    file: &DataFile,
    frame: &dyn Frame,
    limits: Limits,
    excerpt: &mut Excerpt,
) -> Result<()> {
    let places = excerpt.places(&names_of(frame), file)?;
    let columns = frame.columns().iter().zip(&places).enumerate();
    let mut read = Vec::new();
    for (index, (column, &place)) in columns {
        let found = &mut excerpt.columns[place];
        found.is_list = column.kind == FrameKind::Lists;
        match column.kind {
            FrameKind::Refused(what, _) => found.refused = found.refused.or(Some(what)),
            _ => read.push((index, place)),
        }
    }
    let all = frame.num_rows();
    let parts = if all <= limits.rows { 1 } else { PLACES };
    let limits = limits.divided(parts as usize);
    for part in 0..parts {
        let (mut next, mut taken) = (part * (all / parts), 0);
        let end = all.min(next + limits.rows);
        while next < end && taken < limits.bytes {
            let rows = next..end.min(next + ROWS_AT_A_TIME);
            for &(index, place) in &read {
                let column = Column::of_frame(frame.read(index, rows.clone()));
                column.texts((rows.end - rows.start) as usize, &mut |text| {
                    taken += text.len();
                    excerpt.columns[place].fields.push(text);
                });
            }
            excerpt.rows += rows.end - rows.start;
            next = rows.end;
        }
    }
    excerpt.rows_of_all += all;
    Ok(())
}
