//! Descriptors: a connection takes one, and systems allow a process 1,024 unless it asks for more.

use crate::error::{CommError, Result};
use crate::topology::Rank;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process has open besides connections: files, memory, events.
const OTHERS: u64 = 64;

/// Connections of the control channel that end at a rank: everybody's at rank 0, one elsewhere.
pub fn control_connections(rank: Rank, num_ranks: usize) -> usize {
    match rank {
        Rank(0) => num_ranks.saturating_sub(1),
        _ => 1,
    }
}

/// Asks the system for as many descriptors as it allows this process, and looks whether the control
/// channel can do with them. A rank that has too few for its data connections says so as it makes
/// them.
///
/// # Errors
/// [`CommError::Setting`]: they are too few.
pub fn reserve(rank: Rank, num_ranks: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    enough(rank, num_ranks, current)
}

fn enough(rank: Rank, num_ranks: usize, limit: Option<u64>) -> Result<()> {
    let needed = control_connections(rank, num_ranks) as u64 + OTHERS;
    match limit {
        Some(limit) if limit < needed => Err(CommError::Setting {
            setting: "ulimit -n".into(),
            reason: format!(
                "the system allows this process {limit} descriptors, and {rank} of {num_ranks} \
                 needs at least {needed}: raise the hard limit (limits.conf, LimitNOFILE of the \
                 service, --ulimit nofile of the container)"
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_of_a_large_job_says_when_it_has_too_few() {
        assert_eq!(enough(Rank(0), 16_384, None), Ok(()));
        assert_eq!(enough(Rank(0), 16_384, Some(20_000)), Ok(()));
        assert_eq!(enough(Rank(1), 16_384, Some(1024)), Ok(()));
        let text = enough(Rank(0), 1024, Some(1024)).unwrap_err().to_string();
        assert!(text.contains("1024 descriptors") && text.contains("at least 1087"), "{text}");
    }
}
