//! Some rows of a file, as text.

use super::clock::clock_of;
use super::column::Column;
use super::contained::contained;
use super::read::{Opened, bad, is_nested, refused_type};
use crate::error::Result;
use crate::excerpt::{Excerpt, Limits};
use crate::io::DataFile;
use ::parquet::column::reader::ColumnReader;

/// Of a long file, rows of so many row groups are read.
const MOST_GROUPS: usize = 8;
const ROWS_AT_A_TIME: u64 = 4096;

/// Adds rows of a file to `excerpt`.
pub(crate) fn read_some(path: &DataFile, limits: Limits, excerpt: &mut Excerpt) -> Result<()> {
    let opened = Opened::open(path.system_path())?;
    let leaves = opened.leaves();
    let mut names = opened.names();
    names.dedup();
    let places = excerpt.places(&names, path)?;
    let header = opened.names();
    let mut read = Vec::new();
    for (leaf, name) in header.iter().enumerate() {
        let place = names.iter().position(|other| other == name).map_or(0, |at| places[at]);
        let column = &mut excerpt.columns[place];
        let descriptor = &leaves[leaf];
        let is_part = header.iter().filter(|other| *other == name).count() > 1;
        let refused = match refused_type(descriptor) {
            _ if is_part || is_nested(descriptor) => Some("a structure of columns"),
            _ if descriptor.max_rep_level() > 1 => Some("lists of lists"),
            // As text they can be told, and read as times.
            Some(_) if clock_of(descriptor).is_some() => None,
            Some((what, _)) => Some(what),
            None => None,
        };
        column.refused = column.refused.or(refused);
        column.is_list = descriptor.max_rep_level() > 0;
        if refused.is_none() {
            read.push((leaf, place));
        }
    }
    let rows_of = |group: usize| {
        let rows = opened.metadata.row_group(group).num_rows();
        u64::try_from(rows).unwrap_or(0)
    };
    let num_groups = opened.metadata.num_row_groups();
    let all: u64 = (0..num_groups).map(rows_of).sum();
    let parts = if all <= limits.rows { num_groups } else { MOST_GROUPS.min(num_groups) };
    let limits = if all <= limits.rows { limits } else { limits.divided(parts) };
    for part in 0..parts {
        let group = part * num_groups / parts;
        let rows = rows_of(group).min(limits.rows);
        let failed = |error| bad(path.path(), format!("row group {group}: {error}"));
        let open = |&(leaf, place): &(usize, usize)| {
            opened.column(group, leaf).map(|reader| (leaf, place, reader))
        };
        let mut readers = read.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        excerpt.rows +=
            read_group(&opened, &mut readers, rows, limits.bytes, excerpt).map_err(failed)?;
    }
    excerpt.rows_of_all += all;
    Ok(())
}

/// Adds up to `rows` rows of a group, and not many more bytes than `bytes`: how many.
fn read_group(
    opened: &Opened,
    readers: &mut [(usize, usize, ColumnReader)],
    rows: u64,
    bytes: usize,
    excerpt: &mut Excerpt,
) -> Result<u64, ::parquet::errors::ParquetError> {
    let (mut done, mut taken) = (0, 0);
    while done < rows && taken < bytes {
        let count = (rows - done).min(ROWS_AT_A_TIME) as usize;
        for (leaf, place, reader) in &mut *readers {
            let descriptor = &opened.leaves()[*leaf];
            let column = contained(|| Column::read(reader, descriptor, count))?;
            column.texts(count, &mut |text| {
                taken += text.len();
                excerpt.columns[*place].fields.push(text);
            });
        }
        done += count as u64;
    }
    Ok(done)
}
