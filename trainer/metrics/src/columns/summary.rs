//! What the fields of one column look like: all that is needed to say what the column is.

use super::times::Times;
use headlong_reader::excerpt::UNIT_SEPARATOR;
use headlong_reader::times::Moment;
use std::collections::HashMap;

/// What was seen of a column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnSummary {
    /// Its name.
    pub name: String,
    /// What it holds, where that cannot be read.
    pub refused: Option<&'static str>,
    /// Whether it has lists by its type, not by a separator in its text.
    pub is_list: bool,
    /// Fields with something in them.
    pub present: u64,
    /// Empty fields.
    pub missing: u64,
    /// How many fields have which form.
    pub forms: Forms,
    /// Different fields.
    pub distinct: u64,
    /// Of these, the ones seen once.
    pub once: u64,
    /// Of those that are finite, where every field is a number.
    pub numbers: Option<Numbers>,
    /// Where fields are lists.
    pub list: Option<ListValues>,
    /// Where every field can be read as a point in time.
    pub times: Option<Times>,
    /// A field that cannot, where most are points in time.
    pub no_time: String,
    /// A few different fields, in the order they came.
    pub examples: Vec<String>,
    /// How the label depends on it, where that was looked at.
    pub order: Option<Order>,
    /// The AUC of it alone, where it tells the label nearly perfectly.
    pub leak: Option<f64>,
}

/// How many fields have which form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forms {
    /// `1996`, `-3`.
    pub integers: u64,
    /// `1996.0`.
    pub wholes: u64,
    /// `2.5`, `1e-3`.
    pub fractions: u64,
    /// `2026-11-26`, with or without a time of day.
    pub times: u64,
    /// What a label may be: 0 or 1, or a truth value.
    pub truths: u64,
    /// Infinite ones, which no model can learn from.
    pub infinite: u64,
    /// Anything else.
    pub words: u64,
    /// Of these, numbers with a decimal comma, `1,5`.
    pub decimal_commas: u64,
    /// Of these, numbers with commas between thousands, `1,234` or `1,234.5`.
    pub grouped: u64,
}

/// The numbers of a column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    /// The least one.
    pub minimum: f64,
    /// The largest one.
    pub maximum: f64,
    /// Their mean, and how far they are from it.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Third standardised moment: above 2 there is a heavy tail.
    pub skew: f64,
    /// Mean of `ln(x + 1)`, where none is negative.
    pub ln_mean: f64,
    /// Standard deviation of the same.
    pub ln_deviation: f64,
    /// Borders between 32 parts of as many rows each, rising.
    pub quantiles: Vec<f64>,
    /// All different numbers, rising, where there are few.
    pub values: Vec<f64>,
    /// How far the different numbers are from being spread evenly: the largest distance of their
    /// distribution from the uniform one between the least and the largest.
    pub unevenness: f64,
    /// Whether each is above the one before, or each below.
    pub is_counter: bool,
}

/// The values of a column of lists.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ListValues {
    /// What is between them in text.
    pub separator: Option<u8>,
    /// Most of one field.
    pub longest: u64,
    /// Values of a field on average.
    pub mean: f64,
    /// Different values.
    pub distinct: u64,
    /// Of these, the ones seen once.
    pub once: u64,
}

/// How the label depends on the numbers of a column, each in standard errors: what chance alone
/// would give is near 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Order {
    /// How clearly click rates rise, fall or bend from one end of the range to the other.
    pub along: f64,
    /// How much they differ between one value and the next.
    pub apart: f64,
}

/// Different numbers that are kept at most.
const MOST_VALUES: usize = 64;
const PARTS: usize = 32;
const MOST_EXAMPLES: usize = 3;

#[derive(PartialEq, Clone, Copy)]
enum Form {
    Integer,
    Whole,
    Fraction,
    Time,
    Infinite,
    Word,
}

impl ColumnSummary {
    /// Looks at the fields of a column, without blanks around them.
    pub fn of<'a>(name: &str, fields: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut summary = Self { name: name.to_owned(), ..Self::default() };
        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        let mut numbers = Vec::new();
        for field in fields.clone() {
            if field.is_empty() {
                summary.missing += 1;
                continue;
            }
            summary.present += 1;
            *counts.entry(field).or_default() += 1;
            if counts.len() > summary.examples.len() && summary.examples.len() < MOST_EXAMPLES {
                let shown = shown(field);
                if !summary.examples.contains(&shown) {
                    summary.examples.push(shown);
                }
            }
            numbers.extend(summary.forms.add(field));
        }
        summary.distinct = counts.len() as u64;
        summary.once = counts.values().filter(|count| **count == 1).count() as u64;
        // Where numbers are read, infinite ones are refused by their row.
        let all_numbers = numbers.len() as u64 + summary.forms.infinite;
        if all_numbers == summary.present && !numbers.is_empty() {
            summary.numbers = Some(Numbers::of(numbers));
        }
        if summary.forms.words > 0 {
            summary.list = list_of(fields, &counts);
        }
        summary.times = Times::of(counts.keys().copied());
        if summary.times.is_none() && summary.forms.times > 0 {
            let no_time = counts.keys().copied().filter(|field| Moment::of_text(field).is_none());
            summary.no_time = no_time.min().map(shown).unwrap_or_default();
        }
        summary
    }

    /// The same of a column that has lists by its type, with [`UNIT_SEPARATOR`] between values.
    pub fn of_lists<'a>(name: &str, fields: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut summary = Self { name: name.to_owned(), is_list: true, ..Self::default() };
        let mut counts = HashMap::new();
        let (mut longest, mut all) = (0, 0);
        for field in fields {
            let filled = !field.is_empty();
            (summary.present, summary.missing) =
                (summary.present + u64::from(filled), summary.missing + u64::from(!filled));
            let values = field.split(|byte| *byte == UNIT_SEPARATOR).filter(|_| filled);
            let found = values.map(|value| *counts.entry(value).or_insert(0) += 1).count() as u64;
            (longest, all) = (found.max(longest), all + found);
        }
        summary.list = Some(ListValues {
            separator: None,
            longest,
            mean: all as f64 / summary.present.max(1) as f64,
            distinct: counts.len() as u64,
            once: counts.values().filter(|count| **count == 1).count() as u64,
        });
        summary.distinct = counts.len() as u64;
        summary
    }

    /// Looks how `labels` (none where one is missing) depend on the numbers.
    pub fn look_at_order<'a>(
        &mut self,
        fields: impl Iterator<Item = &'a [u8]>,
        labels: impl Iterator<Item = bool>,
    ) {
        let pairs = fields.zip(labels).filter_map(|(field, label)| Some((number(field)?, label)));
        self.order = Some(Order::of(pairs.collect()));
    }

    /// Whether every field is a whole number, however it is written.
    pub fn is_whole(&self) -> bool {
        self.present > 0 && self.forms.integers + self.forms.wholes == self.present
    }

    /// Different values that there are in `times` as many rows: the number of different values
    /// grows with a power of the rows, which the values seen once tell.
    pub fn distinct_in(&self, times: f64) -> u64 {
        let (distinct, once) =
            self.list.map_or((self.distinct, self.once), |list| (list.distinct, list.once));
        let power = once as f64 / distinct.max(1) as f64;
        (distinct as f64 * times.max(1.0).powf(power)) as u64
    }

    /// Most values of one row.
    pub fn longest(&self) -> u64 {
        self.list.map_or(1, |list| list.longest.max(1))
    }
}

impl Forms {
    /// Counts a field; the number it is, if it is one.
    fn add(&mut self, field: &[u8]) -> Option<f64> {
        self.truths += u64::from(truth(field).is_some());
        let (form, number) = form(field);
        if form == Form::Word {
            self.decimal_commas += u64::from(is_decimal_comma(field));
            self.grouped += u64::from(is_grouped(field));
        }
        *match form {
            Form::Integer => &mut self.integers,
            Form::Whole => &mut self.wholes,
            Form::Fraction => &mut self.fractions,
            Form::Time => &mut self.times,
            Form::Infinite => &mut self.infinite,
            Form::Word => &mut self.words,
        } += 1;
        number
    }
}

/// A field as a label.
pub fn truth(field: &[u8]) -> Option<bool> {
    headlong_reader::formats::named::label(field).ok().map(|label| label > 0.5)
}

/// A field as a number.
pub fn number(field: &[u8]) -> Option<f64> {
    form(field).1
}

/// The beginning of a field, for messages.
fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(field).chars().take(24).collect()
}

fn form(field: &[u8]) -> (Form, Option<f64>) {
    let digits = unsigned(field);
    let is_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    // `007` is a word: as a number it would be another.
    let is_padded = digits.len() > 1 && digits[0] == b'0' && digits[1].is_ascii_digit();
    let may_be =
        digits.first().is_some_and(|first| first.is_ascii_digit() || *first == b'.') && !is_padded;
    let parsed = || std::str::from_utf8(field).ok()?.parse().ok();
    match may_be.then(parsed).flatten().filter(|number: &f64| number.is_finite()) {
        Some(number) if is_digits => (Form::Integer, Some(number)),
        Some(number) if number.fract() == 0.0 => (Form::Whole, Some(number)),
        Some(number) => (Form::Fraction, Some(number)),
        None if is_time(field) => (Form::Time, None),
        None if matches!(digits, b"inf" | b"Infinity") => (Form::Infinite, None),
        None => (Form::Word, None),
    }
}

/// `1,5`, `-12,75`
fn is_decimal_comma(field: &[u8]) -> bool {
    let mut parts = unsigned(field).split(|byte| *byte == b',');
    let is_digits = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    is_digits(parts.next()) && is_digits(parts.next()) && parts.next().is_none()
}

/// `1,234`, `-1,234,567.89`
fn is_grouped(field: &[u8]) -> bool {
    let whole = unsigned(field).split(|byte| *byte == b'.').next().unwrap_or_default();
    let fraction = &unsigned(field)[whole.len()..];
    let mut groups = whole.split(|byte| *byte == b',');
    let is_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let is_first = groups.next().is_some_and(|first| matches!(first.len(), 1..=3));
    let are_threes = whole.contains(&b',') && groups.all(|group| group.len() == 3);
    let is_fraction = fraction.iter().skip(1).all(u8::is_ascii_digit);
    is_first && are_threes && is_fraction && whole.split(|byte| *byte == b',').all(is_digits)
}

fn unsigned(field: &[u8]) -> &[u8] {
    field.strip_prefix(b"-").unwrap_or(field)
}

/// Whether a field begins with a date: `2026-11-26`, `2026/11/26`, `26.11.2026`.
fn is_time(field: &[u8]) -> bool {
    let Some(date) = field.get(..10) else { return false };
    let is = |pattern: &[u8; 10]| {
        date.iter().zip(pattern).all(|(byte, wanted)| match wanted {
            b'9' => byte.is_ascii_digit(),
            _ => matches!(byte, b'-' | b'/' | b'.'),
        })
    };
    let ends = field.get(10).is_none_or(|next| matches!(next, b' ' | b'T'));
    ends && (is(b"9999-99-99") || is(b"99-99-9999"))
}

impl Numbers {
    fn of(mut numbers: Vec<f64>) -> Self {
        let is_counter = numbers.len() > 1
            && (numbers.windows(2).all(|pair| pair[0] < pair[1])
                || numbers.windows(2).all(|pair| pair[0] > pair[1]));
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let moment =
            |power: i32| numbers.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / count;
        let deviation = moment(2).sqrt();
        let skew = if deviation > 0.0 { moment(3) / deviation.powi(3) } else { 0.0 };
        numbers.sort_unstable_by(f64::total_cmp);
        let (minimum, maximum) = (numbers[0], numbers[numbers.len() - 1]);
        let ln = |x: &f64| (x.max(0.0) + 1.0).ln();
        let ln_mean = numbers.iter().map(ln).sum::<f64>() / count;
        let ln_moment = numbers.iter().map(|x| (ln(x) - ln_mean).powi(2)).sum::<f64>() / count;
        let mut quantiles: Vec<f64> =
            (1..PARTS).map(|part| numbers[part * numbers.len() / PARTS]).collect();
        quantiles.dedup();
        quantiles.retain(|border| *border > minimum);
        numbers.dedup();
        let unevenness = unevenness(&numbers);
        if numbers.len() > MOST_VALUES {
            numbers.clear();
        }
        Self {
            minimum,
            maximum,
            mean,
            deviation,
            skew,
            ln_mean,
            ln_deviation: ln_moment.sqrt(),
            quantiles,
            values: numbers,
            unevenness,
            is_counter,
        }
    }
}

fn unevenness(rising: &[f64]) -> f64 {
    let (first, range) = (rising[0], rising[rising.len() - 1] - rising[0]);
    let distance = |(at, number): (usize, &f64)| {
        let share = at as f64 / (rising.len() - 1).max(1) as f64;
        (share - (number - first) / range).abs()
    };
    if range > 0.0 { rising.iter().enumerate().map(distance).fold(0.0, f64::max) } else { 0.0 }
}

/// The values of lists, where fields have some separator and share what is between.
fn list_of<'a>(
    fields: impl Iterator<Item = &'a [u8]> + Clone,
    whole: &HashMap<&[u8], u64>,
) -> Option<ListValues> {
    b"|;, ".iter().find_map(|&separator| {
        let is_strong = matches!(separator, b'|' | b';');
        let filled = || fields.clone().filter(|field| !field.is_empty());
        let divided = filled().filter(|field| field.contains(&separator)).count();
        if divided * 5 < filled().count() && !(is_strong && divided * 20 >= filled().count()) {
            return None;
        }
        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        let (mut longest, mut shortest, mut all) = (0, u64::MAX, 0);
        for field in filled() {
            let values = field.split(|byte| *byte == separator).map(<[u8]>::trim_ascii);
            let found = values.map(|value| *counts.entry(value).or_default() += 1).count() as u64;
            (longest, shortest) = (longest.max(found), shortest.min(found));
            all += found;
        }
        // Names of several words and addresses share few of them, or have equally many.
        let shares = match is_strong {
            true => counts.len() < whole.len(),
            false => counts.len() * 2 < whole.len() && longest > shortest,
        };
        shares.then(|| ListValues {
            separator: Some(separator),
            longest,
            mean: all as f64 / filled().count().max(1) as f64,
            distinct: counts.len() as u64,
            once: counts.values().filter(|count| **count == 1).count() as u64,
        })
    })
}

/// Samples and clicks of one value.
type Seen = (f64, f64);

impl Order {
    fn of(mut pairs: Vec<(f64, bool)>) -> Self {
        pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut values: Vec<(f64, Seen)> = Vec::new();
        for (value, label) in pairs {
            if values.last().is_none_or(|last| last.0 != value) {
                values.push((value, (0.0, 0.0)));
            }
            if let Some((_, seen)) = values.last_mut() {
                (seen.0, seen.1) = (seen.0 + 1.0, seen.1 + f64::from(u8::from(label)));
            }
        }
        let seen: Vec<Seen> = values.into_iter().map(|(_, seen)| seen).collect();
        Self { along: along(&seen), apart: apart(&seen) }
    }
}

/// How clearly click rates follow the range, in a line or a bow: sums over values, in units of
/// their own spread, so that one frequent value is no trend.
fn along(values: &[Seen]) -> f64 {
    let all = values.iter().fold((0.0, 0.0), |sum: Seen, v| (sum.0 + v.0, sum.1 + v.1));
    let rate = all.1 / all.0;
    let (mut before, mut line, mut bow) = (0.0, (0.0, 0.0), (0.0, 0.0));
    for &(samples, clicks) in values {
        let place = 2.0 * (before + samples / 2.0) / all.0 - 1.0;
        let above = clicks - samples * rate;
        for (sum, shape) in [(&mut line, place), (&mut bow, 1.5 * place * place - 0.5)] {
            *sum = (sum.0 + shape * above, sum.1 + (shape * above).powi(2));
        }
        before += samples;
    }
    let errors = |(sum, squares): (f64, f64)| match squares > 0.0 {
        true => sum.abs() / squares.sqrt(),
        false => 0.0,
    };
    errors(line).max(errors(bow))
}

/// Click rates of pairs of neighbours: chi-squared of each pair with its margins given, whose mean
/// and variance are those of the hypergeometric distribution.
fn apart(values: &[Seen]) -> f64 {
    let (mut sum, mut variance) = (0.0, 0.0);
    for pair in values.chunks_exact(2) {
        let (n, k) = pair[0];
        let (all, clicks) = (n + pair[1].0, k + pair[1].1);
        let (others, rest) = (all - n, all - clicks);
        if all < 6.0 || clicks == 0.0 || rest == 0.0 {
            continue;
        }
        let product = clicks * rest * n * others;
        let spread = product / (all * all * (all - 1.0));
        let excess = ((all - 1.0)
            * all
            * all
            * (all * (all + 1.0) - 6.0 * clicks * rest - 6.0 * n * others)
            + 6.0 * product * (5.0 * all - 6.0))
            / (product * (all - 2.0) * (all - 3.0));
        sum += (k - n * clicks / all).powi(2) / spread - 1.0;
        variance += (2.0 + excess).max(0.0);
    }
    if variance > 0.0 { sum / variance.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_device::rng::CounterRng;

    fn summary(fields: &[&str]) -> ColumnSummary {
        ColumnSummary::of("c", fields.iter().map(|field| field.as_bytes()))
    }

    #[test]
    fn each_form_is_told() {
        let forms = summary(&[
            "12",
            "-3",
            "4.0",
            "2.5",
            "1e-3",
            "007",
            "2026-11-26",
            "26/11/2026 10:00",
            "red",
            "",
            "1",
            "true",
            "nan",
            "inf",
            "20261126",
        ])
        .forms;
        let expected = Forms {
            integers: 4,
            wholes: 1,
            fractions: 2,
            times: 2,
            truths: 2,
            infinite: 1,
            words: 4,
            ..Forms::default()
        };
        assert_eq!(forms, expected);
        let commas = summary(&["1,5", "-12,345", "1,234,567.8", "1,2,3", "1,23,4", "a,b", ",5"]);
        assert_eq!((commas.forms.decimal_commas, commas.forms.grouped), (2, 2));
    }

    #[test]
    fn lists_share_their_values_and_names_do_not() {
        let list = |fields: &[&str]| summary(fields).list;
        let genres = list(&["drama|war", "war", "comedy|drama|war", "comedy", ""]).unwrap();
        assert_eq!((genres.separator, genres.longest, genres.distinct), (Some(b'|'), 3, 3));
        assert_eq!(list(&["New York", "Los Angeles", "Oslo", "Paris"]), None);
        assert_eq!(list(&["a b", "b c", "a c", "c", "b", "a b c", "c a"]).unwrap().distinct, 3);
        assert_eq!(list(&["red", "green"]), None);
    }

    #[test]
    fn names_differ_from_their_neighbours_and_amounts_do_not() {
        let random = CounterRng::new(3, 1);
        let order = |rate: &dyn Fn(u64) -> f32| {
            let rows = 0..20_000_u64;
            let pairs = rows.map(|row| {
                let value = (random.uniform(2 * row) * 400.0) as u64;
                (value as f64, random.uniform(2 * row + 1) < rate(value))
            });
            Order::of(pairs.collect())
        };
        let amount = order(&|value| 0.1 + value as f32 / 800.0);
        assert!(amount.along > 8.0 && amount.apart.abs() < 4.0, "{amount:?}");
        let name = order(&|value| if (value * 7919) % 5 < 2 { 0.5 } else { 0.2 });
        assert!(name.apart > 10.0, "{name:?}");
        let nothing = order(&|_| 0.3);
        assert!(nothing.along.abs() < 4.0 && nothing.apart.abs() < 4.0, "{nothing:?}");
    }
}
