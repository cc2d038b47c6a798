//! Whether a column alone tells the label, as one does that is written after the click.

use crate::Scores;
use std::collections::HashMap;

/// From this AUC on.
const TELLS: f64 = 0.98;
/// With fewer samples of a class, chance may tell them apart.
const LEAST: usize = 20;
/// How many samples of no value weigh as much as one value's.
const PRIOR: f64 = 1.0;

/// The AUC of a column, where it tells the `labels` nearly perfectly: of its numbers, or of the
/// click rate that each of its values has in one half of the rows, in the other half. Values that
/// are unique tell nothing so.
pub(super) fn tells<'a>(
    fields: impl Iterator<Item = &'a [u8]> + Clone,
    labels: &[bool],
    number: impl Fn(&[u8]) -> Option<f64>,
) -> Option<f64> {
    let clicks = labels.iter().filter(|label| **label).count();
    if clicks.min(labels.len() - clicks) < LEAST {
        return None;
    }
    let rows = || fields.clone().zip(labels.iter().copied());
    let numbers: Option<Vec<f64>> = fields.clone().map(&number).collect();
    let of_numbers = numbers.and_then(|numbers| {
        let auc = auc(numbers.into_iter().zip(labels.iter().copied()))?;
        Some(auc.max(1.0 - auc))
    });
    let base = clicks as f64 / labels.len() as f64;
    let of_half = |half: usize| {
        let mut seen: HashMap<&[u8], (f64, f64)> = HashMap::new();
        for (_, (field, label)) in rows().enumerate().filter(|(row, _)| row % 2 == half) {
            let (samples, clicks) = seen.entry(field).or_default();
            (*samples, *clicks) = (*samples + 1.0, *clicks + f64::from(u8::from(label)));
        }
        let rate = |field: &[u8]| {
            let (samples, clicks) = seen.get(field).copied().unwrap_or_default();
            (clicks + PRIOR * base) / (samples + PRIOR)
        };
        let others = rows().enumerate().filter(|(row, _)| row % 2 != half);
        auc(others.map(|(_, (field, label))| (rate(field), label)))
    };
    let of_rates = of_half(0).zip(of_half(1)).map(|(one, other)| one.min(other));
    of_numbers.into_iter().chain(of_rates).filter(|auc| *auc >= TELLS).reduce(f64::max)
}

fn auc(scored: impl Iterator<Item = (f64, bool)>) -> Option<f64> {
    let mut scores = Scores::default();
    scored.for_each(|(score, label)| scores.push(score as f32, f32::from(u8::from(label))));
    scores.tally().auc()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_device::rng::CounterRng;

    fn found(field: impl Fn(u64, bool) -> String) -> Option<f64> {
        let random = CounterRng::new(9, 2);
        let labels: Vec<bool> = (0..2000).map(|row| random.uniform(row) < 0.1).collect();
        let fields: Vec<String> =
            (0..).zip(&labels).map(|(row, label)| field(row, *label)).collect();
        let parse = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
        tells(fields.iter().map(|field| field.as_bytes()), &labels, parse)
    }

    #[test]
    fn what_is_written_after_the_click_tells_it_and_unique_values_do_not() {
        assert_eq!(found(|_, label| if label { "bought" } else { "left" }.to_owned()), Some(1.0));
        // A sum that only those have who bought; others are empty.
        assert!(found(|row, label| if label { row.to_string() } else { String::new() }).is_some());
        let number = found(|row, label| (row % 100 + 99 * u64::from(!label)).to_string());
        assert!(number.is_some_and(|auc| (0.98..1.0).contains(&auc)), "{number:?}");
        assert_eq!(found(|row, _| format!("id{row}")), None);
        assert_eq!(found(|row, label| format!("id{row}{label}")), None);
        assert_eq!(found(|row, label| (row % 7 + u64::from(label)).to_string()), None);
    }
}
