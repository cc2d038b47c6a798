//! What the fields of columns look like, and what each column says of the label.

mod leak;
pub mod summary;
pub mod times;

use headlong_reader::excerpt::{Excerpt, RawColumn};
use headlong_reader::times::TimePart;
use summary::{ColumnSummary, number, truth};

/// What the fields of each column look like.
pub fn summaries(part: &Excerpt) -> Vec<ColumnSummary> {
    let summary = |column: &RawColumn| {
        let fields = column.fields.iter();
        let summary = match column.is_list {
            true => ColumnSummary::of_lists(&column.name, fields),
            false => ColumnSummary::of(&column.name, fields),
        };
        ColumnSummary { refused: column.refused, ..summary }
    };
    part.columns.iter().map(summary).collect()
}

/// Looks what each column of `part` says of the one at `label`. How the label depends on the order
/// of numbers is looked at where they may be names: in Criteo's text none are.
pub fn look_at_label(
    summaries: &mut [ColumnSummary],
    part: &Excerpt,
    label: usize,
    is_criteo: bool,
) {
    let labels: Vec<bool> =
        part.columns[label].fields.iter().map(|field| truth(field).unwrap_or(false)).collect();
    for (summary, column) in summaries.iter_mut().zip(&part.columns) {
        if summary.is_whole() && !is_criteo {
            summary.look_at_order(column.fields.iter(), labels.iter().copied());
        }
        if let Some(times) = &mut summary.times {
            let is_had = |of: TimePart| {
                let others = part.columns.iter().filter(|other| other.name != column.name);
                let mut others = others.filter(|other| other.fields.len() == labels.len());
                others.any(|other| times::is_part(column.fields.iter(), other.fields.iter(), of))
            };
            times.look_at_labels(column.fields.iter(), &labels, is_had);
        }
        if column.refused.is_none() && column.fields.len() == labels.len() {
            summary.leak = leak::tells(column.fields.iter(), &labels, number);
        }
    }
}
