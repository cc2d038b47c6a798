//! The clock, and the seed's random bytes.

use super::plan::Time;
use super::world::{On, call, glance};
use crate::testing::sim::Random;
use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random as NoiseRandom};
use std::io;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A moment of a process's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// What the caller's clock shows.
    pub fn now() -> Self {
        let now = glance(|call| match (call.is_dead, call.rank) {
            (true, _) => call.dead_time(),
            (false, Some(rank)) => call.now + call.processes[rank].jumped,
            (false, None) => call.now,
        });
        Self(Duration::from_nanos(now.unwrap_or(0)))
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0 - time)
    }
}

/// Nanoseconds of a time that may be centuries.
pub fn nanoseconds(time: Duration) -> Time {
    Time::try_from(time.as_nanos()).unwrap_or(Time::MAX)
}

/// Waits.
pub fn sleep(time: Duration) {
    call("sleeps", |call| {
        let due = call.now.saturating_add(nanoseconds(time));
        call.wait(On::Nothing, due);
    });
}

/// Lets others run. A little time passes, so that what looks again does not look for ever.
pub fn yield_now() {
    call("yields", |call| {
        let due = call.now + call.random.between(5_000, 40_000);
        call.wait(On::Nothing, due);
    });
}

/// Bytes of the seed.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    glance(|call| bytes.iter_mut().for_each(|byte| *byte = call.random.below(256) as u8));
    Ok(())
}

/// What makes the keys of a connection, with random numbers of the seed.
pub fn noise<'a>(pattern: NoiseParams) -> Builder<'a> {
    let seed = glance(|call| call.random.next_u64()).unwrap_or(0);
    Builder::with_resolver(pattern, Box::new(Seeded(seed)))
}

struct Seeded(u64);

impl CryptoResolver for Seeded {
    fn resolve_rng(&self) -> Option<Box<dyn NoiseRandom>> {
        Some(Box::new(SeededRandom(Random::new(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct SeededRandom(Random);

impl NoiseRandom for SeededRandom {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        bytes.iter_mut().for_each(|byte| *byte = self.0.below(256) as u8);
        Ok(())
    }
}
