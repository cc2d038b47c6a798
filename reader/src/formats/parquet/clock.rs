//! Points in time as columns of integers.

use ::parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use ::parquet::schema::types::ColumnDescriptor;

use crate::times::Clock;

/// What the integers of a column of timestamps or dates count.
pub(super) fn clock_of(leaf: &ColumnDescriptor) -> Option<Clock> {
    match (leaf.physical_type(), leaf.logical_type_ref(), leaf.converted_type()) {
        (Physical::INT64, Some(LogicalType::Timestamp(timestamp)), _) => {
            Some(Clock::PerSecond(match timestamp.unit {
                TimeUnit::MILLIS => 1000,
                TimeUnit::MICROS => 1_000_000,
                TimeUnit::NANOS => 1_000_000_000,
            }))
        }
        (Physical::INT64, _, ConvertedType::TIMESTAMP_MILLIS) => Some(Clock::PerSecond(1000)),
        (Physical::INT64, _, ConvertedType::TIMESTAMP_MICROS) => Some(Clock::PerSecond(1_000_000)),
        (Physical::INT32, Some(LogicalType::Date), _)
        | (Physical::INT32, _, ConvertedType::DATE) => Some(Clock::Days),
        _ => None,
    }
}
