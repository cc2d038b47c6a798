//! Everybody to everybody, in one step.

use super::{Place, Plan, start_of, starts};
use crate::topology::Rank;

/// The plan of rank `me`, which sends and receives these numbers of elements to and from each rank.
pub fn plan(me: Rank, send_counts: &[usize], recv_counts: &[usize], plan: &mut Plan) {
    plan.clear();
    plan.own = (start_of(send_counts, me), start_of(recv_counts, me), send_counts[me.0]);
    plan.begin_step();
    all(me, send_counts, Place::Send, plan);
    plan.end_outgoing();
    all(me, recv_counts, Place::Recv, plan);
    plan.end_incoming();
}

fn all(me: Rank, counts: &[usize], place: Place, plan: &mut Plan) {
    for (peer, (at, &count)) in
        starts(counts).zip(counts).enumerate().filter(|&(peer, _)| peer != me.0)
    {
        plan.begin_message(Rank(peer));
        plan.piece(place, at, count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_element_arrives(
            counts in (1usize..7)
                .prop_flat_map(|n| prop::collection::vec(prop::collection::vec(0usize..4, n), n)),
        ) {
            let plans: Vec<Plan> = (0..counts.len())
                .map(|me| {
                    let recv: Vec<usize> = counts.iter().map(|row| row[me]).collect();
                    let mut built = Plan::default();
                    plan(Rank(me), &counts[me], &recv, &mut built);
                    built
                })
                .collect();
            let received = oracle::carry_out(&counts, &plans, |_, _, _, _| {});
            prop_assert_eq!(received, oracle::expected(&counts));
        }
    }
}
