//! Flow control in every order: all states that two sides and the wires between them can reach, for
//! a few strips.

use super::super::flow::Flow;
use super::super::settings::Signal;
use std::collections::{HashSet, VecDeque};

/// What is on a wire, in order, as a NIC carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Signalled {
    /// A strip, and what its sender had taken when it was posted.
    Strip { taken: u32 },
    /// A count of its own.
    Count { taken: u32 },
}

/// One side, and what it has sent that has not come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    flow: Flow,
    left: u32,
    wire: VecDeque<Signalled>,
    /// What has come to the peer, and has not completed here: a strip or a count.
    completions: VecDeque<bool>,
}

type State = [Side; 2];

fn initial(slots: usize, signal: Signal, strips: [u32; 2]) -> State {
    strips.map(|left| Side {
        flow: Flow::new(slots, signal),
        left,
        wire: VecDeque::new(),
        completions: VecDeque::new(),
    })
}

/// As `Link::announce`.
fn announce(side: &mut Side) {
    if side.flow.is_count_due() {
        side.flow.note_count();
        side.wire.push_back(Signalled::Count { taken: side.flow.announced as u32 });
    }
}

/// Every state that one action of side `me` leads to.
fn next(state: &State, me: usize, signal: Signal) -> Vec<State> {
    let mut all = Vec::new();
    let mut reach = |change: &dyn Fn(&mut Side, &mut Side)| {
        let mut state = state.clone();
        let [one, other] = &mut state;
        let (mine, peer) = if me == 0 { (one, other) } else { (other, one) };
        change(mine, peer);
        all.push(state);
    };
    let (mine, peer) = (&state[me], &state[1 - me]);
    if mine.left > 0 && mine.flow.is_back() && mine.flow.is_complete() {
        assert!(
            mine.flow.sent - peer.flow.taken < mine.flow.slots,
            "a slot is filled before it was taken: {state:?}"
        );
        reach(&|mine, _| {
            mine.wire.push_back(Signalled::Strip { taken: mine.flow.taken as u32 });
            mine.flow.note_sent();
            mine.left -= 1;
        });
    }
    if let Some(&first) = mine.wire.front() {
        reach(&|mine, peer| {
            mine.wire.pop_front();
            mine.completions.push_back(matches!(first, Signalled::Strip { .. }));
            match first {
                Signalled::Count { taken } => peer.flow.note_given_back(taken, u32::MAX),
                Signalled::Strip { taken } => {
                    peer.flow.arrived += 1;
                    if signal == Signal::Immediate {
                        peer.flow.note_given_back(taken, u32::MAX);
                    }
                }
            }
        });
    }
    if let Some(&is_strip) = mine.completions.front() {
        reach(&|mine, _| {
            mine.completions.pop_front();
            match is_strip {
                true => mine.flow.complete += 1,
                false => {
                    mine.flow.counts -= 1;
                    announce(mine);
                }
            }
        });
    }
    if mine.flow.arrived > mine.flow.taken {
        reach(&|mine, _| {
            mine.flow.taken += 1;
            announce(mine);
        });
    }
    all
}

/// What always holds: queues are as deep as they were made.
fn check(state: &State) {
    for (side, peer) in [(&state[0], &state[1]), (&state[1], &state[0])] {
        let flow = &side.flow;
        assert!(flow.counts <= flow.slots && flow.sent - flow.complete <= flow.slots, "{state:?}");
        assert!(side.wire.len() as u64 <= 2 * flow.slots, "more signals than receives: {state:?}");
        assert!(flow.given_back <= peer.flow.taken, "a count says what is not true: {state:?}");
    }
}

/// Goes through all states; how many there are, and one that leads nowhere although strips are
/// left.
fn search(start: State, signal: Signal) -> (usize, Option<State>) {
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    let mut stuck = None;
    while let Some(state) = open.pop() {
        check(&state);
        let following: Vec<State> = (0..2).flat_map(|me| next(&state, me, signal)).collect();
        let is_over = state.iter().all(|side| side.left == 0)
            && state[0].flow.sent == state[1].flow.taken
            && state[1].flow.sent == state[0].flow.taken;
        if following.is_empty() && !is_over {
            stuck = Some(state);
            continue;
        }
        open.extend(following.into_iter().filter(|state| seen.insert(state.clone())));
    }
    (seen.len(), stuck)
}

#[test]
fn no_order_fills_a_slot_too_early_or_ends_in_a_wait() {
    for signal in [Signal::Immediate, Signal::Atomic] {
        for (slots, strips) in
            [(2, [5, 0]), (2, [4, 1]), (2, [3, 3]), (3, [7, 0]), (3, [5, 1]), (3, [4, 2])]
        {
            let (states, stuck) = search(initial(slots, signal, strips), signal);
            assert_eq!(stuck, None, "{slots} slots, {strips:?} strips, {signal:?}");
            assert!(
                states > 100,
                "{states} states are not all of {slots} slots and {strips:?} strips"
            );
        }
    }
}

#[test]
fn the_search_finds_a_rule_that_gives_back_too_late() {
    for signal in [Signal::Immediate, Signal::Atomic] {
        let mut start = initial(2, signal, [5, 0]);
        start.iter_mut().for_each(|side| side.flow.at_once = 3);
        assert!(search(start, signal).1.is_some(), "two slots are out, and no side says so");
    }
}

/// Counters that a peer's NIC has written are looked at before they are used: no peer that keeps
/// to the rules reaches these.
#[test]
fn flags_that_cannot_be_are_found_out() {
    let mut flow = Flow::new(3, Signal::Atomic);
    (flow.sent, flow.taken, flow.arrived) = (4, 2, 2);
    for (arrived, given_back) in [(6, 0), (2, 5), (u64::MAX, 0), (2, u64::MAX)] {
        assert!(flow.note_flags(arrived, given_back).is_err(), "{arrived} {given_back}");
    }
    assert_eq!((flow.arrived, flow.given_back), (2, 0), "nothing of it is believed");
    assert_eq!(flow.note_flags(5, 4), Ok(()));
    assert!(flow.is_back());
}
