//! A job that calls the transport itself: everybody with everybody, around the ring, and up and
//! down a tree.

use std::sync::Arc;

use headlong_comm::testing::sim::Random;
use headlong_comm::transport::{Incoming, Outgoing, StepId, Transport};
use headlong_comm::{CommError, Rank};

use super::{Case, Failure, Job};

/// Eight operations, three kinds.
pub const JOB: Job = Job { name: "messages", exchanges: 30, body };

const OPERATIONS: u64 = 8;

fn body(case: &Case, end: Arc<dyn Transport>) -> Result<(), Failure> {
    let (me, ranks) = (end.rank().0, end.topology().num_ranks());
    for sequence in 0..OPERATIONS {
        let own = case.own_failure.filter(|own| own.rank == me && own.operation == sequence);
        if own.is_some() {
            let error = CommError::Aborted { culprit: Rank(me), reason: "its disk is full".into() };
            end.abort(error.clone());
            end.check()?;
            return Err(Failure::Wrong("an abort has left no trace".into()));
        }
        let shape = Random::new(case.seed ^ sequence).below(3);
        let steps = steps(shape, me, ranks);
        for (step, (to, from)) in steps.into_iter().enumerate() {
            exchange(&*end, case.seed, (sequence, step as u32), &to, &from)?;
        }
    }
    end.close()?;
    Ok(())
}

/// To whom and from whom, step by step.
fn steps(shape: u64, me: usize, ranks: usize) -> Vec<(Vec<usize>, Vec<usize>)> {
    let others = || (0..ranks).filter(|&other| other != me).collect::<Vec<_>>();
    match shape {
        0 => vec![(others(), others())],
        1 => vec![(vec![(me + 1) % ranks], vec![(me + ranks - 1) % ranks]); ranks - 1],
        _ => {
            let spans: Vec<usize> =
                (0..4).map(|level| 1 << level).filter(|&span| span < ranks).collect();
            let up = |&span: &usize| match (me % (2 * span), me + span) {
                (0, partner) if partner < ranks => (vec![], vec![partner]),
                (place, _) if place == span => (vec![me - span], vec![]),
                _ => (vec![], vec![]),
            };
            let upwards: Vec<_> = spans.iter().map(up).collect();
            let down = upwards.iter().rev().map(|(to, from)| (from.clone(), to.clone()));
            upwards.iter().cloned().chain(down).collect()
        }
    }
}

/// What a rank sends another in a step: length and bytes follow from all of these.
fn message(seed: u64, (sequence, step): (u64, u32), from: usize, to: usize) -> Vec<u8> {
    // The same length in every step, so that a message in a wrong step fits there.
    let len = Random::new(seed ^ (from * 31 + to) as u64).below(40).saturating_sub(4) as usize;
    let mut random =
        Random::new(seed ^ sequence << 40 ^ u64::from(step) << 20 ^ (from * 64 + to) as u64);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn exchange(
    end: &dyn Transport,
    seed: u64,
    step: (u64, u32),
    to: &[usize],
    from: &[usize],
) -> Result<(), Failure> {
    let me = end.rank().0;
    let id = StepId { sequence: step.0, step: step.1, fingerprint: 6, operation: "messages" };
    let sent: Vec<Vec<u8>> = to.iter().map(|&to| message(seed, step, me, to)).collect();
    let outgoing: Vec<Outgoing> =
        to.iter().zip(&sent).map(|(&to, bytes)| Outgoing { to: Rank(to), bytes }).collect();
    let expected: Vec<Vec<u8>> = from.iter().map(|&from| message(seed, step, from, me)).collect();
    let mut received = expected.iter().map(|bytes| vec![0; bytes.len()]).collect::<Vec<_>>();
    let mut incoming: Vec<Incoming> = from
        .iter()
        .zip(&mut received)
        .map(|(&from, bytes)| Incoming { from: Rank(from), bytes })
        .collect();
    end.exchange(&id, &outgoing, &mut incoming)?;
    if received != expected {
        return Err(Failure::Wrong(format!(
            "step {step:?}: {received:?} came instead of {expected:?}"
        )));
    }
    Ok(())
}
