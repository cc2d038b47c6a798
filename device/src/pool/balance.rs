//! Whether workers are worth waiting for.
//!
//! A worker whose core a neighbour takes in the middle of a tile is waited for, since no one else
//! may finish the tile. Where jobs are short, such waits can cost more than workers save. So what
//! they save and what they cost is added up, and where they cost more, the caller works alone for a
//! while: no slower than a pool of one thread, up to what it takes to find out.

use std::time::{Duration, Instant};

/// What is remembered of savings, and what may be lost before workers are left alone: longer than
/// a scheduler's usual turn.
const MOST: f64 = 4e-3;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(1600);

/// A job as its caller saw it.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Tasks in all, and how many the caller did itself.
    pub tasks: (usize, usize),
    /// How long the caller worked, and how long the job took until the last worker had left.
    pub times: (Duration, Duration),
}

impl Done {
    /// Seconds by which workers made it shorter.
    fn saved(&self) -> f64 {
        let (tasks, own) = self.tasks;
        let (worked, took) = self.times;
        if own == 0 {
            return 0.0;
        }
        worked.as_secs_f64() * tasks as f64 / own as f64 - took.as_secs_f64()
    }
}

#[derive(Debug, Default)]
pub struct Balance {
    /// Seconds, from `-MOST` to `MOST`.
    saved: f64,
    alone_until: Option<Instant>,
    /// Of the next pause, where the last one was not long enough.
    pause: Option<Duration>,
}

impl Balance {
    /// Whether the caller had better work alone.
    pub fn rests_workers(&mut self) -> bool {
        let Some(until) = self.alone_until else { return false };
        if Instant::now() < until {
            return true;
        }
        self.alone_until = None;
        false
    }

    pub fn note(&mut self, done: &Done, now: Instant) {
        self.saved = (self.saved + done.saved()).min(MOST);
        if self.saved == MOST {
            self.pause = None;
        }
        if self.saved < -MOST {
            let pause = self.pause.unwrap_or(SHORTEST_PAUSE);
            (self.saved, self.alone_until) = (0.0, Some(now + pause));
            self.pause = Some((2 * pause).min(LONGEST_PAUSE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of ten tasks, in a millisecond, after which the caller waits.
    fn job(waits: u64) -> Done {
        let worked = Duration::from_micros(1000);
        Done { tasks: (10, 5), times: (worked, worked + Duration::from_micros(waits)) }
    }

    #[test]
    fn workers_that_save_time_are_kept_through_a_wait() {
        let (mut balance, now) = (Balance::default(), Instant::now());
        (0..100).for_each(|_| balance.note(&job(10), now));
        balance.note(&job(8000), now);
        assert!(!balance.rests_workers(), "a wait of 8 ms once");
        (0..100).for_each(|_| balance.note(&job(990), now));
        assert!(!balance.rests_workers());
    }

    #[test]
    fn workers_that_cost_more_than_they_save_are_left_alone_for_ever_longer() {
        let (mut balance, now) = (Balance::default(), Instant::now());
        let pause = |balance: &mut Balance| {
            let jobs = (0..100).take_while(|_| {
                balance.note(&job(3000), now);
                balance.alone_until.is_none()
            });
            assert!(jobs.count() < 6, "a few jobs tell");
            (balance.alone_until.take().unwrap() - now).as_millis()
        };
        let pauses: Vec<_> = (0..6).map(|_| pause(&mut balance)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 1600]);
        (0..100).for_each(|_| balance.note(&job(0), now));
        assert_eq!(pause(&mut balance), 100, "a good time ends it");
    }

    #[test]
    fn a_pause_ends() {
        let (mut balance, now) = (Balance::default(), Instant::now());
        (0..9).for_each(|_| balance.note(&job(3000), now));
        assert!(balance.rests_workers());
        balance.alone_until = Some(now);
        assert!(!balance.rests_workers());
    }
}
