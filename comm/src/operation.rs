//! Names of operations and the number by which two ranks notice that they are not in the same one.

use std::borrow::Cow;

/// Declares [`Collective`]: every operation, with its name in errors and counters.
macro_rules! collectives {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// An operation of a [`Communicator`](crate::Communicator).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Collective {
            $($(#[$doc])* $name,)*
        }

        impl Collective {
            /// All of them, in the order of their codes.
            pub const ALL: [Collective; [$($text),*].len()] = [$(Collective::$name),*];

            /// Its name in errors and counters.
            pub const fn name(self) -> &'static str {
                [$($text),*][self as usize]
            }
        }
    };
}

collectives! {
    /// Everybody has come.
    Barrier = "barrier",
    /// One rank's data to all.
    Broadcast = "broadcast",
    /// Everybody's data to all.
    AllGather = "all_gather",
    /// The sum to all.
    AllReduce = "all_reduce",
    /// The sum, one part to each.
    ReduceScatter = "reduce_scatter",
    /// A part of equal size from each to each.
    AllToAll = "all_to_all",
    /// A part of any size from each to each.
    AllToAllV = "all_to_all_v",
    /// One message to one rank, one from another.
    SendReceive = "send_receive",
}

/// How an operation is done; ranks that choose differently are not in the same operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// One step: every rank talks to every other.
    Direct,
    /// Two steps: each rank does a part, then all share.
    TwoSteps,
    /// Inside the node, then once across.
    Hierarchical,
}

const ALGORITHMS: [&str; 3] = ["direct", "two steps", "hierarchical"];

pub(crate) const ELEMENTS: [&str; 9] =
    ["bytes", "f32", "f16", "bf16", "u32", "u64", "i32", "i64", "held bits"];

/// Operation (8 bits), element type (8), algorithm (4) and the root's lowest 12 bits in one number.
pub const fn fingerprint(
    collective: Collective,
    element: u8,
    algorithm: Algorithm,
    root: usize,
) -> u32 {
    collective as u32
        | (element as u32) << 8
        | (algorithm as u32) << 16
        | ((root & 0xfff) as u32) << 20
}

/// What a fingerprint says, for errors.
pub fn describe(fingerprint: u32) -> String {
    let name = |names: &[&'static str], code: u32| -> Cow<'static, str> {
        names
            .get(code as usize)
            .map_or_else(|| format!("unknown ({code})").into(), |&name| name.into())
    };
    let operation = name(&Collective::ALL.map(Collective::name), fingerprint & 0xff);
    let element = name(&ELEMENTS, fingerprint >> 8 & 0xff);
    let algorithm = name(&ALGORITHMS, fingerprint >> 16 & 0xf);
    let root = match (fingerprint & 0xff) == Collective::Broadcast as u32 {
        true => format!(" from rank {}", fingerprint >> 20),
        false => String::new(),
    };
    format!("{operation} of {element}{root} ({algorithm})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_places_in_the_lists() {
        for (code, collective) in Collective::ALL.into_iter().enumerate() {
            assert_eq!(collective as usize, code);
        }
        let found = describe(fingerprint(Collective::Broadcast, 2, Algorithm::TwoSteps, 3));
        assert_eq!(found, "broadcast of f16 from rank 3 (two steps)");
        assert_eq!(describe(0x0000_09ff), "unknown (255) of unknown (9) (direct)");
    }
}
