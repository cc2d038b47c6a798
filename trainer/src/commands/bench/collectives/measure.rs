//! The loop: one subject, timed on every rank.
//!
//! Each call stands between two readings of the monotonic clock of its rank; nothing is dropped.
//! Calls come in batches, each after a barrier: after a batch rank 0 says how many more there are,
//! so that the number of samples follows from what calls really take.

use super::operation::Place;
use super::subject::Subject;
use headlong_comm::{Communicator, Rank, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// When data is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Check {
    /// After every timed call, outside of the clock: caches are colder then.
    Every,
    /// One more call after the timed ones.
    #[value(alias = "1")]
    Last,
    /// Never.
    #[value(alias = "0")]
    Off,
}

#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Calls before the clock starts.
    pub warm_up: usize,
    /// Samples; none: as many as fit into `seconds`.
    pub iterations: Option<usize>,
    /// Calls of a sample, which is their mean,
    pub aggregate: usize,
    /// each of so many captured ones.
    pub captured: usize,
    /// Time for one size and place.
    pub seconds: f64,
    /// Samples that are worth more time,
    pub needed: usize,
    pub most_seconds: f64,
    pub check: Check,
    /// A barrier after each sample, outside of the clock.
    pub barrier: bool,
    /// Before each sample a rank waits up to this long.
    pub skew_us: f64,
}

/// Fewest samples: a median has ten on each side.
pub const FEWEST: usize = 20;

/// Most samples, where no percentile asks for more.
pub const MOST: usize = 20_000;

impl Effort {
    /// How many more samples after `taken` of them in `elapsed` seconds.
    fn more(&self, taken: usize, elapsed: f64) -> usize {
        if self.iterations.is_some() {
            return 0;
        }
        let each = (elapsed / taken as f64).max(1e-9);
        let fit = |seconds: f64| ((seconds - elapsed) / each).max(0.0) as usize;
        let wanted = match fit(self.seconds) {
            0 => fit(self.most_seconds).min(self.needed.saturating_sub(taken)),
            fitting => fitting.min(MOST.max(self.needed).saturating_sub(taken)),
        };
        wanted.min(4 * taken)
    }
}

/// What one size and place gave, the same on every rank. Times are nanoseconds of a sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Of the rank where the sample took longest: its completion.
    pub slowest: Vec<u64>,
    /// Of the rank where it took shortest.
    pub fastest: Vec<u64>,
    /// Of rank 0.
    pub first_rank: Vec<u64>,
    /// Between the first and the last rank's begin. Empty where ranks do not share a clock.
    pub arrival: Vec<u64>,
    /// All samples of each rank together.
    pub totals: Vec<u64>,
    /// The whole loop on rank 0, with all that is not timed.
    pub wall: u64,
    /// Elements with another value than expected, of all ranks, where asked.
    pub wrong: Option<u64>,
}

impl Timing {
    pub fn append(&mut self, other: Timing) {
        self.slowest.extend(other.slowest);
        self.fastest.extend(other.fastest);
        self.first_rank.extend(other.first_rank);
        self.arrival.extend(other.arrival);
        if self.totals.is_empty() {
            self.totals = vec![0; other.totals.len()];
        }
        self.totals.iter_mut().zip(other.totals).for_each(|(sum, total)| *sum += total);
        self.wall += other.wall;
        self.wrong = self.wrong.zip(other.wrong).map(|(one, other)| one + other).or(other.wrong);
    }
}

/// Nanoseconds of the system's monotonic clock: one clock for all processes of a machine.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub struct Stopwatch<'c> {
    communicator: &'c Communicator,
    effort: Effort,
    /// All ranks read the same clock.
    shares_clock: bool,
}

impl<'c> Stopwatch<'c> {
    /// All ranks call it.
    pub fn new(communicator: &'c Communicator, effort: Effort) -> Result<Self> {
        let own = [clock_identity()];
        let mut all = vec![0; communicator.num_ranks()];
        communicator.all_gather(&own, &mut all)?;
        Ok(Self { communicator, effort, shares_clock: all.iter().all(|&clock| clock == own[0]) })
    }

    pub fn communicator(&self) -> &'c Communicator {
        self.communicator
    }

    /// Measures one subject; all ranks call it.
    pub fn measure(&self, subject: &mut dyn Subject, place: Place) -> Result<Timing> {
        let Self { communicator, effort, .. } = self;
        subject.prepare(place)?;
        for _ in 0..effort.warm_up {
            subject.call(place)?;
        }
        let mut ours = Samples { random: communicator.rank().0 as u64, ..Samples::default() };
        let mut batch = [effort.iterations.unwrap_or(FEWEST) as u64];
        let started = now();
        while batch[0] > 0 {
            ours.reserve(batch[0] as usize);
            communicator.barrier()?;
            for _ in 0..batch[0] {
                ours.take(communicator, subject, place, effort)?;
            }
            let elapsed = (now() - started) as f64 * 1e-9;
            batch = [effort.more(ours.begins.len(), elapsed) as u64];
            communicator.broadcast(Rank(0), &mut batch)?;
        }
        let wall = now() - started;
        if effort.check == Check::Last {
            subject.fill(place)?;
            subject.call(place)?;
            ours.wrong = subject.wrong(place)?;
        }
        self.share(&ours, wall)
    }

    /// What all ranks have, on all ranks.
    fn share(&self, ours: &Samples, wall: u64) -> Result<Timing> {
        let (ranks, len) = (self.communicator.num_ranks(), ours.begins.len());
        let calls = (self.effort.aggregate * self.effort.captured) as u64;
        let (mut begins, mut ends, mut wrong) =
            (vec![0; ranks * len], vec![0; ranks * len], [ours.wrong]);
        self.communicator.all_gather(&ours.begins, &mut begins)?;
        self.communicator.all_gather(&ours.ends, &mut ends)?;
        self.communicator.all_reduce(&mut wrong)?;
        let took = |rank: usize, i: usize| (ends[rank * len + i] - begins[rank * len + i]) / calls;
        let most = |of: &dyn Fn(usize) -> u64| (0..ranks).map(of).max().unwrap_or(0);
        let least = |of: &dyn Fn(usize) -> u64| (0..ranks).map(of).min().unwrap_or(0);
        let each = |of: &dyn Fn(usize) -> u64| (0..len).map(of).collect::<Vec<u64>>();
        let begin = |i: usize| move |rank: usize| rank * len + i;
        let arrival = |i: usize| {
            let at = begin(i);
            most(&|rank| begins[at(rank)]) - least(&|rank| begins[at(rank)])
        };
        Ok(Timing {
            slowest: each(&|i| most(&|rank| took(rank, i))),
            fastest: each(&|i| least(&|rank| took(rank, i))),
            first_rank: each(&|i| took(0, i)),
            arrival: if self.shares_clock { each(&arrival) } else { Vec::new() },
            totals: (0..ranks).map(|rank| (0..len).map(|i| took(rank, i)).sum()).collect(),
            wall,
            wrong: (self.effort.check != Check::Off).then_some(wrong[0]),
        })
    }
}

/// Equal for processes that read one clock: a boot of a machine, and its time namespace.
fn clock_identity() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    xxhash_rust::xxh3::xxh3_64(format!("{boot} {}", namespace.display()).as_bytes())
}

#[derive(Default)]
struct Samples {
    begins: Vec<u64>,
    ends: Vec<u64>,
    wrong: u64,
    random: u64,
}

impl Samples {
    /// Makes room before the clock runs.
    fn reserve(&mut self, samples: usize) {
        self.begins.reserve(samples);
        self.ends.reserve(samples);
    }

    fn take(
        &mut self,
        communicator: &Communicator,
        subject: &mut dyn Subject,
        place: Place,
        effort: &Effort,
    ) -> Result<()> {
        if effort.check == Check::Every {
            subject.fill(place)?;
        }
        if effort.skew_us > 0.0 {
            self.arrive_late(effort.skew_us);
        }
        self.begins.push(now());
        for _ in 0..effort.aggregate {
            subject.call(place)?;
        }
        self.ends.push(now());
        if effort.check == Check::Every {
            self.wrong += subject.wrong(place)?;
        }
        if effort.barrier {
            communicator.barrier()?;
        }
        Ok(())
    }

    /// Keeps the core busy, as a rank does that still computes.
    fn arrive_late(&mut self, most_us: f64) {
        let share = (splitmix(&mut self.random) >> 11) as f64 / (1_u64 << 53) as f64;
        let until = now() + (share * most_us * 1000.0) as u64;
        while now() < until {
            std::hint::spin_loop();
        }
    }
}

/// The next number of a sequence that every run repeats.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_comm::launcher_env::{Launch, SecretSource};
    use headlong_comm::rendezvous::{self, JoinOptions};
    use headlong_comm::transport::choose::{ChooseOptions, Wanted, choose};
    use headlong_comm::{CommOptions, Topology};

    const EFFORT: Effort = Effort {
        warm_up: 0,
        iterations: None,
        aggregate: 1,
        captured: 1,
        seconds: 1.0,
        needed: 0,
        most_seconds: 10.0,
        check: Check::Off,
        barrier: false,
        skew_us: 0.0,
    };

    #[test]
    fn as_many_samples_as_fit_or_as_a_percentile_needs() {
        assert_eq!(EFFORT.more(20, 0.001), 80, "no batch is more than four times what is known");
        assert_eq!(EFFORT.more(1000, 0.5), 1000, "half of the time is left");
        assert_eq!(EFFORT.more(1000, 1.5), 0);
        assert_eq!(EFFORT.more(MOST, 0.1), 0);
        let tail = Effort { needed: 10_000, ..EFFORT };
        assert_eq!(tail.more(5000, 1.5), 5000, "p99.9 needs ten thousand");
        assert_eq!(tail.more(9000, 9.0), 1000);
        assert_eq!(tail.more(5000, 10.1), 0, "but not for ever");
        assert_eq!(Effort { iterations: Some(7), ..EFFORT }.more(7, 0.0), 0);
    }

    /// A subject that times itself, too.
    struct Watched<'a> {
        subject: Box<dyn Subject + 'a>,
        own: Vec<u64>,
    }

    impl Subject for Watched<'_> {
        fn fill(&mut self, place: Place) -> Result<()> {
            self.subject.fill(place)
        }

        fn prepare(&mut self, place: Place) -> Result<()> {
            self.subject.prepare(place)
        }

        fn call(&mut self, place: Place) -> Result<()> {
            let begin = std::time::Instant::now();
            let called = self.subject.call(place);
            self.own.push(begin.elapsed().as_nanos() as u64);
            called
        }

        fn wrong(&mut self, place: Place) -> Result<u64> {
            self.subject.wrong(place)
        }
    }

    /// Two ranks of this process that reach each other as processes do; None: as threads.
    fn two_ranks(wanted: Option<Wanted>) -> Vec<Communicator> {
        let Some(wanted) = wanted else {
            return Communicator::local(&Topology::one_node(2), CommOptions::default());
        };
        let free = std::net::TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr());
        let master_port = free.expect("a free port").port();
        let join_one = |rank: usize| {
            let launch = Launch {
                secret: SecretSource::Value(b"the secret of the test".into()),
                ..Launch::on_loopback(rank, 2, master_port)
            };
            let control = rendezvous::join(&JoinOptions::new(launch, [1; 32])).expect("both come");
            let chosen = choose(control, &ChooseOptions { wanted, network: None, exchanges: None })
                .expect("a common way");
            assert_eq!(chosen.transport.name(), wanted.name());
            Communicator::new(chosen.transport, CommOptions::default())
        };
        std::thread::scope(|scope| {
            let joins = [0, 1].map(|rank| scope.spawn(move || join_one(rank)));
            joins.map(|join| join.join().expect("no panic")).into()
        })
    }

    /// What the bench measures of each rank's calls, against what a stopwatch inside of them has:
    /// the same calls, so that a busy machine is busy for both.
    #[test]
    fn figures_are_those_of_an_independent_stopwatch() {
        for wanted in [None, Some(Wanted::Shm), Some(Wanted::Tcp)] {
            figures_agree(wanted.map_or("local", Wanted::name), two_ranks(wanted));
        }
    }

    fn figures_agree(backend: &str, communicators: Vec<Communicator>) {
        let (ranks, calls) = (2, 400);
        let answers = headlong_comm::testing::run_communicators(communicators, |communicator| {
            let effort = Effort { iterations: Some(calls), aggregate: 2, warm_up: 3, ..EFFORT };
            let operation = crate::commands::bench::collectives::operation::Operation::AllReduce;
            let me = communicator.rank().0;
            let case = super::super::operation::Case {
                operation,
                count: 16 << 10,
                root: Rank(0),
                ranks,
                me,
            };
            let subject = super::super::dtype::Dtype::Float.host_buffers(communicator, case);
            let mut watched = Watched { subject, own: Vec::new() };
            let stopwatch = Stopwatch::new(communicator, effort).expect("ranks of one process");
            let timing = stopwatch.measure(&mut watched, Place::In).expect("a measurement");
            assert!(stopwatch.shares_clock && timing.arrival.len() == calls);
            (timing, watched.own.split_off(3))
        });
        let own: Vec<Vec<u64>> = answers.iter().map(|(_, own)| own.clone()).collect();
        let timing = &answers[0].0;
        let near = |what: &str, found: f64, expected: f64| {
            let is_near = (found / expected - 1.0).abs() < 0.2;
            assert!(is_near, "{backend}, {what}: {found} ns, the other stopwatch has {expected}");
        };
        for (rank, own) in own.iter().enumerate() {
            assert_eq!(own.len(), 2 * calls);
            near("in all", timing.totals[rank] as f64, own.iter().sum::<u64>() as f64 / 2.0);
        }
        let sample = |own: &[u64], i: usize| (own[2 * i] + own[2 * i + 1]) / 2;
        let median = |mut all: Vec<u64>| {
            all.sort_unstable();
            all[all.len() / 2] as f64
        };
        let of_rank_0 = (0..calls).map(|i| sample(&own[0], i)).collect();
        near("median of rank 0", median(timing.first_rank.clone()), median(of_rank_0));
        let slowest = |i: usize| sample(&own[0], i).max(sample(&own[1], i));
        let of_slowest = (0..calls).map(slowest).collect();
        near("median of the slowest", median(timing.slowest.clone()), median(of_slowest));
    }

    #[test]
    fn a_late_rank_shows_as_skew() {
        let answers = headlong_comm::testing::run_ranks(&Topology::one_node(2), |communicator| {
            let effort = Effort { iterations: Some(100), skew_us: 2000.0, ..EFFORT };
            let operation = crate::commands::bench::collectives::operation::Operation::Barrier;
            let me = communicator.rank().0;
            let case =
                super::super::operation::Case { operation, count: 0, root: Rank(0), ranks: 2, me };
            let mut subject = super::super::dtype::Dtype::Float.host_buffers(communicator, case);
            let stopwatch = Stopwatch::new(communicator, effort).expect("ranks of one process");
            stopwatch.measure(subject.as_mut(), Place::Out).expect("a measurement")
        });
        let timing = &answers[0];
        let mean = |of: &[u64]| of.iter().sum::<u64>() / of.len() as u64;
        // Two numbers from 0 to 2,000 are 667 apart on average.
        assert!(mean(&timing.arrival) > 400_000, "{} ns", mean(&timing.arrival));
        assert!(mean(&timing.slowest) > 400_000, "who comes first waits for the other");
    }
}
