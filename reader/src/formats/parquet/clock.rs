//! Points in time as columns of integers.

use ::parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use ::parquet::schema::types::ColumnDescriptor;

use crate::times::Moment;

/// What the integers of a column of times count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// Days since 1970.
    Days,
    /// So many a second, since 1970.
    PerSecond(i64),
}

impl Clock {
    /// That of a column of timestamps or dates.
    pub fn of(leaf: &ColumnDescriptor) -> Option<Self> {
        match (leaf.physical_type(), leaf.logical_type_ref(), leaf.converted_type()) {
            (Physical::INT64, Some(LogicalType::Timestamp(timestamp)), _) => {
                Some(Self::PerSecond(match timestamp.unit {
                    TimeUnit::MILLIS => 1000,
                    TimeUnit::MICROS => 1_000_000,
                    TimeUnit::NANOS => 1_000_000_000,
                }))
            }
            (Physical::INT64, _, ConvertedType::TIMESTAMP_MILLIS) => Some(Self::PerSecond(1000)),
            (Physical::INT64, _, ConvertedType::TIMESTAMP_MICROS) => {
                Some(Self::PerSecond(1_000_000))
            }
            (Physical::INT32, Some(LogicalType::Date), _)
            | (Physical::INT32, _, ConvertedType::DATE) => Some(Self::Days),
            _ => None,
        }
    }

    /// The point in time of a count.
    pub fn moment(self, count: i64) -> Option<Moment> {
        match self {
            Self::Days => Moment::of_days(count),
            Self::PerSecond(unit) => Moment::of_seconds(count.div_euclid(unit)),
        }
    }
}
