//! What each column is: a number, a category, a list of them, or of no use.

use super::{ColumnChoice, Kind, NumberChoice};
use crate::config::DenseTransform;
use crate::metrics::columns::summary::{ColumnSummary, Numbers};
use headlong_reader::columns::Bins;
use headlong_reader::times::TimePart;

/// A whole number of so few different values is a category: hours, days, grades.
const FEW: u64 = 32;
/// Standard errors above which a difference of click rates is not chance.
const CLEAR: f64 = 4.0;
/// Names that count up or are sums of others are spread evenly, within this distance.
const EVEN: f64 = 0.1;
/// From this skew on a number has a heavy tail.
const HEAVY: f64 = 2.0;
/// Seconds since 1970, from 2000 to 2040.
const UNIX_SECONDS: (f64, f64) = (946_684_800.0, 2_208_988_800.0);
const DAY: i64 = 86_400;

/// What a column is, other than the label. `is_whole`: whether every row was looked at.
pub(super) fn choose(column: &ColumnSummary, is_whole: bool) -> ColumnChoice {
    let rows = column.present + column.missing;
    let (kind, mut reason) = kind_of(column, is_whole);
    if kind != Kind::Ignored && column.forms.wholes > 0 && column.forms.integers > 0 {
        let mixed = column.forms.fractions == 0;
        if mixed && kind == Kind::Dense {
            reason += "; some are written with a point, as 1996.0, which is the same number";
        } else if mixed {
            reason += "; Note: some are written with a point: \"1996\" and \"1996.0\" are two ids";
        }
    }
    let number = column.numbers.as_ref().filter(|_| kind == Kind::Dense);
    let number = number.map(|numbers| {
        let chosen = number_choice(column, numbers);
        let binned = match &chosen.bins {
            Bins::Ln2 => "bins of ln(x)^2".to_owned(),
            Bins::Edges(edges) if !numbers.values.is_empty() => {
                format!("a bin for each of {} values", edges.len() + 1)
            }
            Bins::Edges(edges) => format!("{} bins of as many rows each", edges.len() + 1),
        };
        let shape = match chosen.transform {
            DenseTransform::LnPlus1 => "heavy tail: ln(x + 1)",
            _ => "no heavy tail: as it is",
        };
        reason += &format!("; {shape}, standardised; {binned}");
        chosen
    });
    ColumnChoice {
        name: column.name.clone(),
        kind,
        reason,
        longest: if kind == Kind::List { column.longest() } else { 1 },
        num_values: column.list.map_or(column.distinct, |list| list.distinct),
        missing_share: column.missing as f64 / rows.max(1) as f64,
        number,
        list_separator: column.list.and_then(|list| list.separator).filter(|_| kind == Kind::List),
        parts: if kind == Kind::Time { parts(column) } else { Vec::new() },
    }
}

/// What a column of Criteo's text is: 13 counts, 26 ids.
pub(super) fn of_criteo(column: &ColumnSummary) -> ColumnChoice {
    let is_count = column.name.starts_with('I');
    let numbers = column.numbers.as_ref().filter(|_| is_count);
    let number = numbers.map(|numbers| NumberChoice {
        transform: DenseTransform::LnPlus1,
        mean: numbers.ln_mean,
        scale: if numbers.ln_deviation > 0.0 { numbers.ln_deviation } else { 1.0 },
        bins: Bins::Ln2,
    });
    let rows = column.present + column.missing;
    let what = if is_count { "a count of Criteo's text" } else { "an id of Criteo's text" };
    ColumnChoice {
        name: column.name.clone(),
        kind: if is_count { Kind::Dense } else { Kind::Categorical },
        reason: what.to_owned(),
        num_values: column.distinct,
        longest: 1,
        missing_share: column.missing as f64 / rows.max(1) as f64,
        number,
        list_separator: None,
        parts: Vec::new(),
    }
}

/// Leaves one separator of lists, that of most columns: there is one key for all of them. Other
/// lists are taken whole.
pub(super) fn agree_on_a_separator(columns: &mut [ColumnChoice]) {
    let separators: Vec<u8> = columns.iter().filter_map(|column| column.list_separator).collect();
    let count = |one: u8| separators.iter().filter(|other| **other == one).count();
    let Some(&chosen) = separators.iter().rev().max_by_key(|one| count(**one)) else { return };
    for column in columns {
        if column.list_separator.is_some_and(|separator| separator != chosen) {
            column.reason += &format!(
                "; other lists have \"{}\" there, so each field is taken as one value",
                char::from(chosen)
            );
            (column.kind, column.list_separator, column.longest) = (Kind::Categorical, None, 1);
        }
    }
}

fn kind_of(column: &ColumnSummary, is_whole: bool) -> (Kind, String) {
    let ignored = |reason: String| (Kind::Ignored, reason);
    if let Some(refused) = column.refused {
        return ignored(format!("{refused} are not read"));
    }
    if column.present == 0 {
        return ignored("empty in every row".to_owned());
    }
    if column.is_list {
        let longest = column.longest();
        return (Kind::List, format!("lists by its type, up to {longest} values"));
    }
    if column.distinct == 1 && column.missing == 0 {
        return ignored(format!("constant: `{}` in every row", column.examples.join("")));
    }
    if column.forms.times * 10 > column.present * 9 {
        return of_times(column, "dates");
    }
    match &column.numbers {
        Some(numbers) if is_unix_time(column, numbers) => {
            of_times(column, "seconds since 1970, or parts of them")
        }
        Some(numbers) if is_date_number(column, numbers, 1.0) => {
            of_times(column, "dates of 8 digits")
        }
        Some(numbers) if is_date_number(column, numbers, 1e6) => {
            of_times(column, "dates and times of 14 digits")
        }
        Some(numbers) if column.is_whole() => of_whole_numbers(column, numbers),
        Some(_) => (Kind::Dense, "numbers with fractions".to_owned()),
        None => of_words(column, is_whole),
    }
}

/// Points in time, `what` they are written as: what comes again of them is used.
fn of_times(column: &ColumnSummary, what: &str) -> (Kind, String) {
    let such = format!("{what}, such as `{}`: ", column.examples[0]);
    let names: Vec<&str> = parts(column).into_iter().map(TimePart::name).collect();
    let reason = match (&names[..], column.times) {
        ([], None) => format!(
            "new ones will come; `{}` is none: were each written as 2026-11-26, with or without a \
             time of day, or left empty, their parts would be used",
            column.no_time
        ),
        ([], Some(_)) => "new ones will come, and no hour or weekday has a click rate that \
                          comes again and no column of its own; [[column]] parts would take them"
            .to_owned(),
        (names, _) => format!("their {}; the times themselves never come again", names.join(", ")),
    };
    let kind = if names.is_empty() { Kind::Ignored } else { Kind::Time };
    (kind, such + &reason)
}

/// What comes again of the times of a column, with its click rate: the hour after a day, the
/// weekday after a week. Else parts are noise, or a second copy of a column: on the table `drift`
/// of `benches/quality`, which has columns of both, they took 0.007 of AUC.
fn parts(column: &ColumnSummary) -> Vec<TimePart> {
    let Some(times) = column.times else { return Vec::new() };
    let (hours, weekdays) = times.distinct;
    let (of_hours, of_weekdays) = times.repeats;
    let hour = of_hours && hours > 1 && times.span >= DAY;
    let weekday = of_weekdays && weekdays > 1 && times.span >= 7 * DAY;
    let found = [(hour, TimePart::Hour), (weekday, TimePart::Weekday)];
    found.into_iter().filter(|(comes_again, _)| *comes_again).map(|(_, part)| part).collect()
}

fn of_words(column: &ColumnSummary, is_whole: bool) -> (Kind, String) {
    let words = column.forms.words;
    if let Some(found) = of_commas(column) {
        return found;
    }
    if let Some(list) = column.list {
        let separator = list.separator.map_or(' ', char::from);
        let mean = list.mean;
        return (
            Kind::List,
            format!(
                "values with \"{separator}\" between them, up to {} ({mean:.1} on average)",
                list.longest
            ),
        );
    }
    if words * 2 < column.present {
        let reason = format!(
            "numbers, but {words} fields are none: leave those empty to have it as a number"
        );
        return (Kind::Categorical, reason);
    }
    let is_unique = column.distinct == column.present && column.present >= 50;
    let is_nearly = is_whole && column.distinct * 20 > column.present * 19 && column.present >= 50;
    if is_unique || is_nearly {
        let what = if is_unique { "unique in every row" } else { "almost unique in every row" };
        return (Kind::Ignored, format!("{what}: nothing can be learned of a value seen once"));
    }
    (Kind::Categorical, "words".to_owned())
}

/// Numbers that are written with commas, which are no numbers to the reader.
fn of_commas(column: &ColumnSummary) -> Option<(Kind, String)> {
    let forms = &column.forms;
    let is_every = |count: u64| count == forms.words && 2 * count >= column.present;
    let (what, advice) = if is_every(forms.grouped) {
        ("commas between thousands", "1234 in place of 1,234")
    } else if is_every(forms.decimal_commas) {
        ("decimal commas", "1.5 in place of 1,5")
    } else {
        return None;
    };
    let is_unique = column.distinct == column.present && column.present >= 50;
    let (kind, used) = match is_unique {
        true => (Kind::Ignored, "left out, being unique"),
        false => (Kind::Categorical, "taken as words"),
    };
    let shown = &column.examples[0];
    let reason = format!(
        "numbers with {what}, such as `{shown}`, {used}: to have them as numbers, write {advice}"
    );
    Some((kind, reason))
}

fn of_whole_numbers(column: &ColumnSummary, numbers: &Numbers) -> (Kind, String) {
    let order = column.order.unwrap_or_default();
    let categorical = |reason: &str| (Kind::Categorical, format!("whole numbers, {reason}"));
    let dense = |reason: &str| (Kind::Dense, format!("whole numbers, {reason}"));
    if column.distinct == column.present && column.present >= 50 {
        if numbers.is_counter {
            return (Kind::Ignored, "unique and rising: it counts the rows".to_owned());
        }
        if order.along < CLEAR {
            return (Kind::Ignored, "unique in every row: an id of the row".to_owned());
        }
    }
    if column.distinct <= FEW {
        return categorical("few different ones");
    }
    if order.apart > CLEAR {
        return categorical("and neighbours differ in their click rate: they are names");
    }
    if is_called_id(&column.name) {
        return categorical("called an id");
    }
    if numbers.minimum < 0.0 {
        return dense("some negative");
    }
    if order.along > CLEAR {
        return dense("and the click rate changes along with them");
    }
    let range = numbers.maximum - numbers.minimum + 1.0;
    let filled = column.distinct as f64 / range;
    if numbers.unevenness < EVEN && column.distinct > 200 {
        return categorical("spread evenly over their range and in no order: they look like ids");
    }
    if numbers.maximum >= 1e7 && filled < 0.01 && numbers.skew < HEAVY {
        return categorical("large, with gaps and in no order: they look like ids");
    }
    dense("a count or an amount")
}

fn is_unix_time(column: &ColumnSummary, numbers: &Numbers) -> bool {
    let name = column.name.to_lowercase();
    let is_called = ["time", "date", "stamp", "epoch", "created", "updated"]
        .iter()
        .any(|word| name.contains(word))
        || name == "ts"
        || name.ends_with("_ts")
        || name.ends_with("_at");
    let within = |factor: f64| {
        numbers.minimum >= UNIX_SECONDS.0 * factor && numbers.maximum <= UNIX_SECONDS.1 * factor
    };
    [1.0, 1e3, 1e6, 1e9].into_iter().any(within)
        && (is_called || numbers.is_counter && column.distinct > FEW)
}

/// Whether every number is a date such as 20261126; or, in millions, one with a time of day.
fn is_date_number(column: &ColumnSummary, numbers: &Numbers, of: f64) -> bool {
    let is_of_our_time =
        numbers.minimum >= 19_000_101.0 * of && numbers.maximum < 20_991_232.0 * of;
    column.is_whole() && is_of_our_time && column.times.is_some()
}

fn is_called_id(name: &str) -> bool {
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split(|letter: char| !letter.is_alphanumeric()).collect();
    let is_id = |word: &&str| {
        matches!(*word, "id" | "ids" | "code" | "zip" | "zipcode" | "hash" | "key" | "uid" | "sku")
    };
    words.iter().any(is_id) || name.ends_with("Id") || name.ends_with("ID")
}

fn number_choice(column: &ColumnSummary, numbers: &Numbers) -> NumberChoice {
    let is_heavy = numbers.minimum >= 0.0 && numbers.skew > HEAVY;
    let (mean, scale) = match is_heavy {
        true => (numbers.ln_mean, numbers.ln_deviation),
        false => (numbers.mean, numbers.deviation),
    };
    // What is too large for such sums is refused where it is read, by its line.
    let (mean, scale) = if (mean + scale).is_finite() { (mean, scale) } else { (0.0, 1.0) };
    let edges = match &numbers.values[..] {
        [_, others @ ..] => others,
        [] => &numbers.quantiles,
    };
    let is_count = is_heavy && column.is_whole() && numbers.maximum >= 100.0;
    NumberChoice {
        transform: if is_heavy { DenseTransform::LnPlus1 } else { DenseTransform::Identity },
        mean,
        scale: if scale > 0.0 { scale } else { 1.0 },
        bins: if is_count { Bins::Ln2 } else { Bins::Edges(edges.to_vec()) },
    }
}
