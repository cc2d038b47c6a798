//! How a rank waits for its paths: it looks again for a moment, then offers its core to others,
//! then sleeps.

use super::{DoorbellKind, Doorbells, Instant, num_cores, yield_now};
use std::time::Duration;

/// A rank looks again for at most this long before it sleeps: waking up costs about as much. Each
/// time in vain halves it, down to the shortest; each time with success doubles it. Where ranks
/// share a core, looking again soon ends.
const SPIN: (Duration, Duration) = (Duration::from_micros(2), Duration::from_micros(100));
/// Of the looks before a sleep, so many keep the core; the others offer it to what waits for
/// one.
const BUSY_LOOKS: u32 = 2000;
/// Where peers ring, a sleep is this long: the control plane does not ring.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Where no peer rings, naps grow from the one to the other.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

#[derive(Debug)]
pub struct Waiting {
    spin: Duration,
    /// Ranks share cores: one that keeps its core keeps it from the one it waits for.
    crowded: bool,
    now: State,
}

#[derive(Debug, Clone, Copy)]
struct State {
    idle_since: Option<Instant>,
    looks: u32,
    nap: Duration,
    /// A doorbell rings for us: which, and what to wait for.
    seen: Option<(DoorbellKind, u32)>,
}

const AWAKE: State = State { idle_since: None, looks: 0, nap: NAPS.0, seen: None };

/// Which doorbells the awaited peers ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Awaited {
    node: bool,
    network: bool,
    /// One of them rings none.
    silent: bool,
}

impl Awaited {
    pub fn add(&mut self, doorbell: Option<DoorbellKind>) {
        match doorbell {
            Some(DoorbellKind::Node) => self.node = true,
            Some(DoorbellKind::Network) => self.network = true,
            None => self.silent = true,
        }
    }

    /// The doorbell to sleep at.
    fn doorbell(self) -> DoorbellKind {
        if self.network { DoorbellKind::Network } else { DoorbellKind::Node }
    }

    /// Whether all of them ring this one.
    fn all_ring(self, doorbell: DoorbellKind) -> bool {
        let Self { node, network, silent } = self;
        let others = if doorbell == DoorbellKind::Node { network } else { node };
        !silent && !others
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Look,
    /// The patience for looking has ended: sleep, after a look at the clock.
    Sleep,
}

impl Waiting {
    pub fn new(num_local: usize) -> Self {
        Self { spin: SPIN.1, crowded: num_local > num_cores(), now: AWAKE }
    }

    pub fn moved(&mut self, doorbells: &Doorbells) {
        if let Some((doorbell, _)) = self.now.seen {
            doorbells.at(doorbell).ignore();
        }
        if self.now.idle_since.is_some() {
            self.spin = (self.spin * 2).min(SPIN.1);
            self.now = AWAKE;
        }
    }

    pub fn idle(&mut self, doorbells: &Doorbells, awaited: Awaited) -> Next {
        if self.now.seen.is_some() {
            return Next::Sleep;
        }
        self.now.looks += 1;
        if !self.crowded && self.now.looks < BUSY_LOOKS {
            std::hint::spin_loop();
            // The clock costs more than a look.
            if !self.now.looks.is_multiple_of(16) {
                return Next::Look;
            }
        } else {
            yield_now();
        }
        let now = Instant::now();
        if now.duration_since(*self.now.idle_since.get_or_insert(now)) >= self.spin {
            // One look more, after the doorbell has been told to ring: what came before the telling
            // is seen by it.
            let doorbell = awaited.doorbell();
            self.now.seen = Some((doorbell, doorbells.at(doorbell).listen()));
        }
        Next::Look
    }

    pub fn sleep(&mut self, doorbells: &Doorbells, awaited: Awaited, longest: Duration) {
        let Some((doorbell, seen)) = self.now.seen.take() else { return };
        let pause = if awaited.all_ring(doorbell) { LONGEST_SLEEP } else { self.now.nap };
        doorbells.at(doorbell).wait(seen, pause.min(longest));
        self.spin = (self.spin / 2).max(SPIN.0);
        self.now = State { nap: (self.now.nap * 2).min(NAPS.1), ..AWAKE };
    }
}
