//! Points in time, and their parts as ids: the hour, the weekday, the day and the month.

use std::fmt;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use serde::{Deserialize, Serialize};

/// What a point in time looks like, for messages.
pub(crate) const EXPECTED: &str = "a time such as 2024-03-07 13:05:22, or whole seconds since 1970";
/// Integers of 9 to 11 digits are seconds since 1970; three digits more are thousandths of them,
/// six millionths, nine billionths. Smaller ones would be counts.
const SECONDS: std::ops::Range<i64> = 100_000_000..100_000_000_000;
/// Integers of 8 digits are dates, such as 20240307.
const DATES: std::ops::Range<i64> = 10_000_000..100_000_000;
/// Of 14 digits, dates with a time of day, such as 20240307130522. As thousandths of seconds they
/// would be of the 26th century.
const DATES_AND_TIMES: std::ops::Range<i64> = 19_000_000_000_000..21_000_000_000_000;

/// A part of a point in time that has a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimePart {
    /// 0 to 23, as written.
    Hour,
    /// Monday is the first.
    Weekday,
    /// Of the month, from 1.
    Day,
    /// January is 1.
    Month,
}

impl TimePart {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Weekday => "weekday",
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

/// What the integers of a column of times count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Days since 1970.
    Days,
    /// So many a second, since 1970.
    PerSecond(i64),
}

impl Clock {
    /// The point in time of a count.
    pub fn moment(self, count: i64) -> Option<Moment> {
        match self {
            Self::Days => Moment::of_days(count),
            Self::PerSecond(unit) => Moment::of_seconds(count.div_euclid(unit)),
        }
    }
}

/// A column of points in time, each part of which has a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeColumn {
    /// Its name.
    pub name: String,
    /// Its parts, in the order of their tables.
    pub parts: Vec<TimePart>,
}

impl TimeColumn {
    /// What the tables are called: `when.hour`.
    pub fn table_names(&self) -> impl Iterator<Item = String> {
        self.parts.iter().map(|part| format!("{}.{}", self.name, part.name()))
    }
}

/// A point in time as the clocks showed it where it was written: an offset from UTC is passed over.
/// One that is counted from 1970 is of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    date: NaiveDate,
    /// None where there is a date alone.
    time: Option<NaiveTime>,
}

impl Moment {
    /// Reads `2024-03-07`, `2024/03/07 13:05`, `2024-03-07T13:05:22.5+01:00`, or what
    /// [`Moment::of_integer`] reads, with or without fractions.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        match &text[digits..] {
            [] => integer(text).and_then(Self::of_integer),
            [b'.', fraction @ ..] if digits >= 8 && fraction.iter().all(u8::is_ascii_digit) => {
                integer(&text[..digits]).and_then(Self::of_integer)
            }
            _ => Self::of_date_and_time(text),
        }
    }

    /// Seconds since 1970, their thousandths, millionths or billionths, or a date of 8 digits, with
    /// six more for the time of day.
    pub fn of_integer(number: i64) -> Option<Self> {
        let two = |above: i64| u32::try_from(number / above % 100).ok();
        let date = |above: i64| {
            let year = i32::try_from(number / above / 10_000).ok()?;
            Self::of_date(year, two(above * 100)?, two(above)?)
        };
        match number {
            _ if DATES.contains(&number) => date(1),
            _ if DATES_AND_TIMES.contains(&number) => {
                let time = NaiveTime::from_hms_opt(two(10_000)?, two(100)?, two(1)?)?;
                Some(Self { time: Some(time), ..date(1_000_000)? })
            }
            _ => {
                let of_a_second = [1, 1_000, 1_000_000, 1_000_000_000];
                let mut seconds = of_a_second.into_iter().map(|parts| number / parts);
                Self::of_seconds(seconds.find(|seconds| SECONDS.contains(seconds))?)
            }
        }
    }

    /// Seconds since 1970, before or after.
    pub fn of_seconds(seconds: i64) -> Option<Self> {
        let found: NaiveDateTime = DateTime::from_timestamp(seconds, 0)?.naive_utc();
        Some(Self { date: found.date(), time: Some(found.time()) })
    }

    /// Days since 1970, before or after.
    pub fn of_days(days: i64) -> Option<Self> {
        Some(Self { time: None, ..Self::of_seconds(days.checked_mul(86_400)?)? })
    }

    fn of_date(year: i32, month: u32, day: u32) -> Option<Self> {
        Some(Self { date: NaiveDate::from_ymd_opt(year, month, day)?, time: None })
    }

    fn of_date_and_time(text: &[u8]) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let [separator, other] = [date[4], date[7]];
        if separator != other || !b"-/.".contains(&separator) {
            return None;
        }
        let number = |range: std::ops::Range<usize>| small(&date[range]);
        let year = i32::try_from(number(0..4)?).ok()?;
        let found = Self::of_date(year, number(5..7)?, number(8..10)?)?;
        match rest {
            [] => Some(found),
            [b' ' | b'T' | b't', time @ ..] => {
                Some(Self { time: Some(time_of_day(time)?), ..found })
            }
            _ => None,
        }
    }

    /// The id of a part; none is 0, and the hour of a date alone, too.
    pub fn id(moment: Option<Self>, part: TimePart) -> u64 {
        let id = moment.and_then(|moment| match part {
            TimePart::Hour => moment.time.map(|time| time.hour() + 1),
            TimePart::Weekday => Some(moment.date.weekday().number_from_monday()),
            TimePart::Day => Some(moment.date.day()),
            TimePart::Month => Some(moment.date.month()),
        });
        u64::from(id.unwrap_or(0))
    }

    /// Whether it has a time of day.
    pub fn has_time(self) -> bool {
        self.time.is_some()
    }

    /// Seconds since the clocks showed midnight on 1 January 1970.
    pub fn seconds(self) -> i64 {
        self.date.and_time(self.time.unwrap_or_default()).and_utc().timestamp()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time {
            Some(time) => write!(to, "{} {}", self.date, time.format("%H:%M:%S")),
            None => self.date.fmt(to),
        }
    }
}

/// `13:05`, `13:05:22`, `13:05:22.123`, and an offset from UTC, which is checked and passed over.
fn time_of_day(text: &[u8]) -> Option<NaiveTime> {
    let end = text.iter().position(|byte| b"Zz+- UG".contains(byte)).unwrap_or(text.len());
    let (time, zone) = text.split_at(end);
    let zone = zone.trim_ascii_start();
    let is_zone = match zone {
        [] | [b'Z' | b'z'] | b"UTC" | b"GMT" => true,
        [b'+' | b'-', offset @ ..] => match offset {
            [h, m, b':', minutes @ ..] => is_digits(&[*h, *m], 2) && is_digits(minutes, 2),
            _ => is_digits(offset, 2) || is_digits(offset, 4),
        },
        _ => false,
    };
    let [h, m, b':', minutes @ ..] = time else { return None };
    let (minute, seconds) = minutes.split_at_checked(2)?;
    let second = match seconds {
        [] => 0,
        [b':', rest @ ..] => {
            let (second, fraction) = rest.split_at_checked(2)?;
            let is_fraction = match fraction {
                [] => true,
                [b'.' | b',', digits @ ..] => {
                    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
                }
                _ => false,
            };
            // Note: 60 is a leap second.
            small(second).filter(|second| is_fraction && *second <= 60)?.min(59)
        }
        _ => return None,
    };
    NaiveTime::from_hms_opt(small(&[*h, *m])?, small(minute)?, second).filter(|_| is_zone)
}

fn is_digits(text: &[u8], length: usize) -> bool {
    text.len() == length && small(text).is_some()
}

/// A few digits as a number.
fn small(text: &[u8]) -> Option<u32> {
    integer(text).and_then(|number| u32::try_from(number).ok())
}

/// Digits as a number.
fn integer(text: &[u8]) -> Option<i64> {
    let is_digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(text: &str) -> Option<[u64; 4]> {
        let moment = Some(Moment::of_text(text.as_bytes())?);
        let parts = [TimePart::Hour, TimePart::Weekday, TimePart::Day, TimePart::Month];
        Some(parts.map(|part| Moment::id(moment, part)))
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, expected) in [
            ("2024-03-07", [0, 4, 7, 3]),
            ("20240307", [0, 4, 7, 3]),
            ("20240307.0", [0, 4, 7, 3]),
            ("2024/03/07 13:05", [14, 4, 7, 3]),
            ("2024-02-29T00:00:60.5Z", [1, 4, 29, 2]),
            ("2024-03-07 13:05:22,123456", [14, 4, 7, 3]),
            ("2024-03-07T23:59:59.999+14:00", [24, 4, 7, 3]),
            ("2024-03-07t13:05:22-0330", [14, 4, 7, 3]),
            ("2024-03-07 13:05:22 UTC", [14, 4, 7, 3]),
            ("1709816722", [14, 4, 7, 3]),
            ("1709816722.75", [14, 4, 7, 3]),
            ("1709816722999", [14, 4, 7, 3]),
            ("1709816722999999", [14, 4, 7, 3]),
            ("1709816722999999999", [14, 4, 7, 3]),
            ("20240307130522", [14, 4, 7, 3]),
        ] {
            assert_eq!(ids(text), Some(expected), "{text}");
        }
        let none = [TimePart::Hour, TimePart::Month].map(|part| Moment::id(None, part));
        assert_eq!(none, [0, 0]);
        assert_eq!(Moment::of_days(-1).map(|day| day.to_string()).as_deref(), Some("1969-12-31"));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "x",
            "5",
            "12345",
            "2023-02-29",
            "20240230",
            "07.03.2024",
            "2024-03/07",
            "2024-3-7",
            "2024-03-07x",
            "2024-03-07 ",
            "2024-03-07 13",
            "2024-03-07 24:00",
            "2024-03-07 13:60",
            "2024-03-07 13:05:61",
            "2024-03-07 13:05:22.",
            "2024-03-07 1:05",
            "2024-03-07 13:05+1",
            "2024-03-07 13:05+01:0",
            "2024-03-07 13:05 CET",
            "-1709816722",
            "20240307250522",
            "17098167221234567890",
            "1709816722x",
            "1.7e9",
            "2024-03-07 +3:05",
            "13:05:22",
        ] {
            assert_eq!(ids(text), None, "{text}");
        }
    }

    proptest! {
        /// The calendar as chrono prints it.
        #[test]
        fn what_chrono_prints_is_read(
            seconds in 100_000_000_i64..9_000_000_000,
            pattern in prop::sample::select(vec![
                "%Y-%m-%d %H:%M:%S", "%Y/%m/%dT%H:%M:%S%.3fZ", "%Y-%m-%dT%H:%M:%S%.6f+05:30", "%s",
                "%s999", "%s000001", "%s999999999",
            ]),
        ) {
            let of_chrono = DateTime::from_timestamp(seconds, 0).unwrap();
            let moment = Moment::of_text(of_chrono.format(pattern).to_string().as_bytes()).unwrap();
            prop_assert_eq!(moment.seconds(), seconds);
            let number = |pattern| of_chrono.format(pattern).to_string().parse::<u64>().unwrap();
            let id = |part| Moment::id(Some(moment), part);
            prop_assert_eq!(id(TimePart::Hour), number("%H") + 1);
            prop_assert_eq!(id(TimePart::Weekday), number("%u"));
            prop_assert_eq!((id(TimePart::Day), id(TimePart::Month)), (number("%d"), number("%m")));
        }

        #[test]
        fn no_text_is_a_fault(text in "[0-9T:. +Z/-]{0,24}|\\PC{0,24}") {
            if let Some(moment) = Moment::of_text(text.as_bytes()) {
                prop_assert!((1..=7).contains(&Moment::id(Some(moment), TimePart::Weekday)));
            }
        }
    }
}
