//! Numbers of things that a plan counts: bytes, elements, operations.

use crate::error::{Error, Result};
use serde::Serialize;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A number that never wraps around. What 64 bits have no room for stays at the largest number,
/// which fits nowhere ([`Count::fits`]): a plan of it is refused, whatever else it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Count(u64);

impl Count {
    pub const ZERO: Self = Self(0);

    /// The number; 2⁶⁴ − 1 for what is too large.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether so many lie in `room`.
    pub const fn fits(self, room: u64) -> bool {
        self.0 < u64::MAX && self.0 <= room
    }

    /// Refuses bytes that do not fit; `help` says what to do.
    pub fn must_fit(self, available_bytes: u64, help: impl FnOnce() -> String) -> Result<()> {
        match self.fits(available_bytes) {
            true => Ok(()),
            false => Err(Error::DoesNotFit { needed_bytes: self.0, available_bytes, help: help() }),
        }
    }

    /// A part of it, rounded up: what one of `parts` holds that share it. Of a number that is too
    /// large, every part is.
    pub fn share(self, parts: usize) -> Self {
        if self.0 == u64::MAX { self } else { Self(self.0.div_ceil((parts as u64).max(1))) }
    }

    /// `some` of `all` parts of it; nothing where there are none. Of a number that is too large,
    /// every part is.
    pub fn part(self, some: u64, all: u64) -> Self {
        if self.0 == u64::MAX {
            return self;
        }
        let part = u128::from(self.0) * u128::from(some) / u128::from(all.max(1));
        Self(u64::try_from(part).unwrap_or(u64::MAX))
    }

    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl From<u64> for Count {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<usize> for Count {
    fn from(number: usize) -> Self {
        Self(number as u64)
    }
}

macro_rules! saturating {
    ($($operator:ident, $function:ident, $saturating:ident;)*) => {$(
        /// Never above the largest number, never below nothing.
        impl<T: Into<Count>> $operator<T> for Count {
            type Output = Self;

            fn $function(self, other: T) -> Self {
                Self(self.0.$saturating(other.into().0))
            }
        }
    )*};
}

saturating! {
    Add, add, saturating_add;
    Sub, sub, saturating_sub;
    Mul, mul, saturating_mul;
}

impl<T: Into<Count>> AddAssign<T> for Count {
    fn add_assign(&mut self, other: T) {
        *self = *self + other;
    }
}

/// Of a number that is too large, every part is.
impl Div<u64> for Count {
    type Output = Self;

    fn div(self, parts: u64) -> Self {
        if self.0 == u64::MAX { self } else { Self(self.0 / parts.max(1)) }
    }
}

impl<T: Into<Count>> Sum<T> for Count {
    fn sum<I: Iterator<Item = T>>(numbers: I) -> Self {
        numbers.fold(Self::ZERO, |sum, number| sum + number)
    }
}

impl PartialEq<u64> for Count {
    fn eq(&self, other: &u64) -> bool {
        self.0 == *other
    }
}

impl PartialOrd<u64> for Count {
    fn partial_cmp(&self, other: &u64) -> Option<std::cmp::Ordering> {
        self.0.partial_cmp(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_fits_nowhere() {
        let half = Count::from(1_u64 << 63);
        for large in [half + half, half * 2_u64, [half, half].into_iter().sum(), half * 4_u64 / 2] {
            assert_eq!(large, u64::MAX);
            assert!(!large.fits(u64::MAX));
            assert!(!large.share(2).fits(u64::MAX));
        }
        assert!(half.fits(1 << 63) && !half.fits((1 << 63) - 1));
    }

    #[test]
    fn small_numbers_are_numbers() {
        let count = Count::from(10_usize);
        assert_eq!(count + 3_u64, 13);
        assert_eq!(count - 13_u64, 0);
        assert_eq!(count * 3_usize, 30);
        assert_eq!((count / 3, count.share(3)), (Count::from(3_u64), Count::from(4_u64)));
        assert_eq!(serde_json::to_string(&count).unwrap(), "10");
    }
}
