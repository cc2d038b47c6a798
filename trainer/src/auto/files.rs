//! From training files to choices: a bounded part of them is read.

use super::{Asked, Choices, Look, bad_rows, choose, label};
use crate::error::{Error, Result};
use crate::metrics::columns;
use headlong_reader::Schema;
use headlong_reader::convert::detect;
use headlong_reader::criteo::has_label;
use headlong_reader::excerpt::{Excerpt, Limits, excerpt};
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;

/// What was chosen for files, and what they are.
#[derive(Debug, Clone)]
pub struct OfFiles {
    /// What was chosen.
    pub choices: Choices,
    /// Their format.
    pub format: Format,
    /// Rows that were looked at, and all, as far as is known.
    pub rows: (u64, u64),
}

/// Looks at a part of `files`, and chooses. Their format is found where it is not named.
///
/// # Errors
/// Those of reading, and of [`choose`].
pub fn choose_for(
    files: &[DataFile],
    format: Option<Format>,
    asked: &Asked<'_>,
) -> Result<OfFiles> {
    let failed = || Error::failed("the columns of the data cannot be told");
    let format = match (format, files.first()) {
        (Some(format), _) => format,
        (None, Some(first)) => told(first).map_err(failed())?,
        (None, None) => {
            return Err(Error::config("--auto", "expected training files: --data FILE"));
        }
    };
    let mut part = excerpt(format, files, Limits::default(), asked.text).map_err(failed())?;
    if asked.text.skips_bad_rows {
        bad_rows::leave_out(&mut part, asked.label);
    }
    let look = look_at(&part, format == Format::Criteo, asked)?;
    let choices = choose(&look, asked)?;
    Ok(OfFiles { choices, format, rows: (part.rows, part.rows_of_all) })
}

/// The format of a file. Text without the shape of Criteo's has a header, whatever its name.
fn told(file: &DataFile) -> headlong_reader::Result<Format> {
    match detect(file)? {
        Format::Criteo if has_label(file, &Schema::criteo_unlabelled()).is_err() => Ok(Format::Csv),
        format => Ok(format),
    }
}

fn look_at(part: &Excerpt, is_criteo: bool, asked: &Asked<'_>) -> Result<Look> {
    let columns = columns::summaries(part);
    let mut look = Look { columns, rows: part.rows_of_all, is_whole: part.is_whole(), is_criteo };
    let (of_label, _) = label(&look, asked)?;
    columns::look_at_label(&mut look.columns, part, of_label, is_criteo);
    Ok(look)
}
