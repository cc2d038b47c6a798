//! The points in time of a column, and whether the click rate follows what comes again of them.

use headlong_reader::times::{Moment, TimePart};

/// Standard errors above which two halves do not agree by chance.
const CLEAR: f64 = 3.0;
/// The correlation of click rates above which halves are alike.
const ALIKE: f64 = 0.5;
/// No part has more ids: days are 31, and a missing one.
const MOST_IDS: usize = 32;

/// The points in time of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Seconds from the first to the last.
    pub span: i64,
    /// Whether any has a time of day.
    pub has_time: bool,
    /// Different hours and weekdays.
    pub distinct: (usize, usize),
    /// Whether the click rate of hours, and of weekdays, in the first half of the time is like that
    /// in the second, and no other column has them.
    pub repeats: (bool, bool),
}

impl Times {
    /// None where a field is no time.
    pub(super) fn of<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut seconds = (i64::MAX, i64::MIN);
        let (mut hours, mut weekdays, mut has_time) = ([false; 25], [false; 8], false);
        for field in fields {
            let moment = Moment::of_text(field)?;
            seconds = (seconds.0.min(moment.seconds()), seconds.1.max(moment.seconds()));
            let id = |part| Moment::id(Some(moment), part) as usize;
            hours[id(TimePart::Hour)] = true;
            weekdays[id(TimePart::Weekday)] = true;
            has_time |= moment.has_time();
        }
        let count = |seen: &[bool]| seen.iter().filter(|seen| **seen).count();
        (seconds.0 <= seconds.1).then(|| Self {
            span: seconds.1 - seconds.0,
            has_time,
            distinct: (count(&hours), count(&weekdays)),
            repeats: (false, false),
        })
    }

    /// Looks whether the click rate of each hour and weekday comes again, where there `is_had` no
    /// column of them.
    pub(super) fn look_at_labels<'a>(
        &mut self,
        fields: impl Iterator<Item = &'a [u8]>,
        labels: &[bool],
        is_had: impl Fn(TimePart) -> bool,
    ) {
        let moments = fields.zip(labels).filter_map(|(field, label)| {
            Some((Moment::of_text(field)?, f64::from(u8::from(*label))))
        });
        let mut moments: Vec<(Moment, f64)> = moments.collect();
        moments.sort_by_key(|(moment, _)| moment.seconds());
        let halves = moments.split_at(moments.len() / 2);
        let repeats =
            |part| repeats([halves.0, halves.1].map(|half| above(half, part))) && !is_had(part);
        self.repeats = (repeats(TimePart::Hour), repeats(TimePart::Weekday));
    }
}

/// Whether a column has a part of these times under names of its own.
pub(super) fn is_part<'a>(
    times: impl Iterator<Item = &'a [u8]>,
    fields: impl Iterator<Item = &'a [u8]>,
    part: TimePart,
) -> bool {
    let mut names: [Option<&[u8]>; MOST_IDS] = [None; MOST_IDS];
    let mut pairs = times.zip(fields);
    let agrees = pairs.all(|(time, field)| {
        let id = Moment::id(Moment::of_text(time), part) as usize;
        *names[id].get_or_insert(field) == field
    });
    let mut found: Vec<&[u8]> = names.into_iter().flatten().collect();
    let all = found.len();
    found.sort_unstable();
    found.dedup();
    agrees && found.len() == all
}

/// Of a value: clicks, and their variance.
type Above = (f64, f64);

/// Clicks of each value of a part above those of the mean rate, and their variance by chance.
fn above(half: &[(Moment, f64)], part: TimePart) -> Vec<Above> {
    let rate = half.iter().map(|(_, label)| label).sum::<f64>() / half.len().max(1) as f64;
    let mut seen = vec![(0.0, 0.0); MOST_IDS];
    for (moment, label) in half {
        let value = &mut seen[Moment::id(Some(*moment), part) as usize];
        *value = (value.0 + label - rate, value.1 + rate * (1.0 - rate));
    }
    seen
}

/// Whether two halves agree, more than chance makes them, and more than days do that have rates of
/// their own.
fn repeats([one, other]: [Vec<Above>; 2]) -> bool {
    let sum = |of: fn(&Above, &Above) -> f64| -> f64 {
        one.iter().zip(&other).map(|(a, b)| of(a, b)).sum()
    };
    let product = sum(|a, b| a.0 * b.0);
    let by_chance = sum(|a, b| a.1 * b.1).sqrt();
    let most = (sum(|a, _| a.0 * a.0) * sum(|_, b| b.0 * b.0)).sqrt();
    product > CLEAR * by_chance && product > ALIKE * most
}
