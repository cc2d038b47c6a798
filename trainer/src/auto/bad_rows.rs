//! Rows that `data.on_bad_row = "skip"` will leave out: what a look at data must not judge by.

use super::label::is_called_label;
use crate::metrics::columns::summary::{number, truth};
use headlong_reader::excerpt::Excerpt;
use headlong_reader::times::Moment;

/// One field in so many may be bad, and the column is still what the others say.
const MOST: usize = 100;

/// Whether a field is what its column says.
type Read<'a> = dyn Fn(&[u8]) -> bool + 'a;

/// Leaves out the rows that have something else where nearly all others have a number, a label or
/// a time; or no label.
pub(super) fn leave_out(part: &mut Excerpt, label: Option<&str>) {
    let Ok(rows) = usize::try_from(part.rows) else { return };
    let mut keep = vec![true; rows];
    for column in &part.columns {
        if column.is_list || column.fields.len() != rows {
            continue;
        }
        let is_label = label.map_or_else(|| is_called_label(&column.name), |it| it == column.name);
        let reads: [&Read<'_>; 3] = [
            &|field| truth(field).is_some() || !is_label && field.is_empty(),
            &|field| number(field).is_some() || field.is_empty(),
            &|field| Moment::of_text(field).is_some() || field.is_empty(),
        ];
        let filled = column.fields.iter().filter(|field| !field.is_empty()).count();
        for read in reads {
            let bad = column.fields.iter().filter(|field| !read(field)).count();
            if bad * MOST <= filled {
                let fields = column.fields.iter().zip(&mut keep);
                fields.for_each(|(field, keep)| *keep &= read(field));
                break;
            }
        }
    }
    part.retain(&keep);
}
