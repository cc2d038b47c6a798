//! Versions of NCCL, and which brought what.

use std::ffi::c_int;
use std::fmt;

/// A version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// The oldest version that is taken: 2.19 brought registered memory (`ncclMemAlloc`,
/// `ncclCommRegister`).
pub const OLDEST: Version = Version { major: 2, minor: 19, patch: 0 };

/// The first version whose settings say whether a communicator uses CollNet.
pub(crate) const COLLNET_SINCE: Version = Version { major: 2, minor: 27, patch: 0 };
/// The first version whose settings say whether a communicator uses NVLS.
pub(crate) const NVLS_SINCE: Version = Version { major: 2, minor: 31, patch: 0 };

impl Version {
    /// From NCCL's number: 22809 is 2.28.9. Before 2.9 it counted otherwise; such numbers come out
    /// as very old versions.
    pub(crate) fn from_number(number: c_int) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        Self { major: number / 10_000, minor: number / 100 % 100, patch: number % 100 }
    }

    pub(crate) fn number(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(Version::from_number(22809), Version { major: 2, minor: 28, patch: 9 });
        assert_eq!(Version::from_number(21903).to_string(), "2.19.3");
        assert!(Version::from_number(2708) < OLDEST && Version::from_number(-1) < OLDEST);
        assert!(Version::from_number(21900) >= OLDEST);
    }
}
