//! One verb, back and forth between two ranks: what perftest's latency tools measure, for
//! `headlong bench p2p`.
//!
//! Of writes and sends half of the round trip counts: rank 0 sends, rank 1 answers with the same.
//! Reads and atomics need no thread at the other side: the whole operation counts, up to its
//! completion. Rank 1 sees a plain write by looking at its last eight bytes, all else by a
//! completion.

use super::arena::Arena;
use super::connect::{available, queue_pair_settings};
use super::endpoint_info::{WAY_WORDS, Way};
use super::nic::{
    Access, Action, Completion, CompletionKind, CompletionQueue, Nic, NicError, Prepared, Provider,
    QueuePair, QueuePairOptions, Receive, Remote, Request, Status,
};
use super::settings::VerbsSettings;
use headlong_comm::Communicator;
use headlong_comm::error::{CommError, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What goes back and forth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Verb {
    /// RDMA write; the other side looks at its memory.
    Write,
    /// RDMA write that the other side's completion queue reports.
    WriteImmediate,
    Read,
    Atomic,
    Send,
}

impl Verb {
    /// Whether the other side answers: half of the round trip counts then.
    pub fn is_answered(self) -> bool {
        matches!(self, Verb::Write | Verb::WriteImmediate | Verb::Send)
    }

    /// Bytes that are really sent for so many: writes that are seen in memory are of whole words,
    /// atomics of one.
    pub fn bytes(self, wanted: usize) -> usize {
        match self {
            Verb::Atomic => WORD,
            Verb::Write => wanted.max(1).next_multiple_of(WORD),
            _ => wanted.max(1),
        }
    }
}

const WORD: usize = 8;

const RECEIVES: usize = 8;

/// Up to this many bytes travel in the work request itself.
const INLINE: usize = 64;

/// Calls of one verb.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PingPong<'a> {
    pub verb: Verb,
    /// Bytes, each of which is measured.
    pub sizes: &'a [usize],
    /// Calls of each size before the clock runs, and while it does.
    pub warm_up: usize,
    pub calls: usize,
}

impl PingPong<'_> {
    /// Nanoseconds of each call of each size, on rank 0; on rank 1 nothing. Both ranks call it.
    ///
    /// # Errors
    /// The job's first error: a NIC that refuses, a peer that is gone or does not answer before
    /// the deadline.
    ///
    /// # Panics
    /// When there are not two ranks.
    pub fn run(
        &self,
        communicator: &Communicator,
        settings: &VerbsSettings,
        provider: &dyn Provider,
    ) -> Result<Vec<Vec<u64>>> {
        assert_eq!(communicator.num_ranks(), 2, "one verb travels between two ranks");
        let samples = self.measure(communicator, settings, provider);
        samples.inspect_err(|error| communicator.abort(error.clone()))
    }

    fn measure(
        &self,
        communicator: &Communicator,
        settings: &VerbsSettings,
        provider: &dyn Provider,
    ) -> Result<Vec<Vec<u64>>> {
        let longest = self.sizes.iter().map(|&size| self.verb.bytes(size)).max().unwrap_or(WORD);
        let mut end = End::open(communicator, settings, provider, longest)?;
        if self.verb == Verb::Atomic && !end.nic.limits().atomics {
            return Err(refused("atomics", format!("{} has none", end.nic.name())));
        }
        let sizes = self.sizes.iter().map(|&size| self.verb.bytes(size));
        let samples = sizes.map(|bytes| end.back_and_forth(self, bytes)).collect::<Result<_>>()?;
        // No rank takes the memory away while the other side may still use it.
        communicator.barrier()?;
        Ok(samples)
    }
}

fn refused(what: &str, reason: String) -> CommError {
    CommError::System { what: format!("verbs: {what}"), reason }
}

fn of_nic(error: NicError) -> CommError {
    refused("the NIC", error.to_string())
}

fn options(queue: &Arc<dyn CompletionQueue>) -> QueuePairOptions<'_> {
    QueuePairOptions {
        sends: queue,
        receives: queue,
        shared: None,
        max_sends: 4,
        max_receives: RECEIVES as u32,
        max_segments: 1,
        max_inline: INLINE as u32,
    }
}

/// One side.
///
/// Note: the order of the fields is that in which they end: connections before memory.
struct End<'c> {
    pair: Box<dyn QueuePair>,
    queue: Arc<dyn CompletionQueue>,
    out: Arena,
    into: Arena,
    nic: Arc<dyn Nic>,
    communicator: &'c Communicator,
    far: Remote,
    completions: Vec<Completion>,
    /// Own requests that are done, and what has come.
    done: (u64, u64),
    /// Of what has come, so much was answered. Note: the next may come while this side still waits
    /// for its own request.
    answered: u64,
    /// Values that plain writes carry: each once.
    turn: u64,
}

impl<'c> End<'c> {
    fn open(
        communicator: &'c Communicator,
        settings: &VerbsSettings,
        provider: &dyn Provider,
        bytes: usize,
    ) -> Result<Self> {
        let me = communicator.rank();
        let index = communicator.topology().local_index(me);
        let choice =
            available(provider, settings, index).map_err(|reason| refused("no NIC", reason))?;
        let nic = provider.open(&choice.device).map_err(of_nic)?;
        let limits = nic.limits();
        let access = Access {
            local_write: true,
            remote_write: true,
            remote_read: true,
            remote_atomic: limits.atomics,
            relaxed_ordering: false,
        };
        let own = Access { local_write: true, ..Access::default() };
        let out = Arena::new(&*nic, bytes, own).map_err(of_nic)?;
        let into = Arena::new(&*nic, bytes, access).map_err(of_nic)?;
        let queue = nic.completion_queue(64).map_err(of_nic)?;
        let mut pair = nic.queue_pair(&options(&queue)).map_err(of_nic)?;
        let mut with = queue_pair_settings(settings, &choice, choice.port.mtu);
        (with.access, with.reads) = (access, 1);
        pair.init(&with).map_err(of_nic)?;
        let way = Way {
            endpoint: choice.endpoint(pair.number(), 1),
            memory: into.region().remote(0),
            mtu: choice.port.mtu,
        };
        let mut all = vec![0; 2 * WAY_WORDS];
        let sealed = communicator.sealed();
        communicator.all_gather(&way.to_words(), &mut all)?;
        drop(sealed);
        let peer = Way::from_words(&all[(1 - me.0) * WAY_WORDS..]);
        let peer = communicator.agree("pingpong over NICs", peer)?;
        with.mtu = with.mtu.min(peer.mtu);
        pair.ready_to_receive(&with, &peer.endpoint).map_err(of_nic)?;
        pair.ready_to_send(&with, 1).map_err(of_nic)?;
        communicator.barrier()?;
        let completions = Vec::with_capacity(64);
        Ok(Self {
            pair,
            queue,
            out,
            into,
            nic,
            communicator,
            far: peer.memory,
            completions,
            done: (0, 0),
            answered: 0,
            turn: 0,
        })
    }

    fn back_and_forth(&mut self, what: &PingPong<'_>, bytes: usize) -> Result<Vec<u64>> {
        let request = Request {
            id: 1,
            action: match what.verb {
                Verb::Write => Action::Write(self.far),
                Verb::WriteImmediate => Action::WriteImmediate(self.far, 7),
                Verb::Read => Action::Read(self.far),
                Verb::Atomic => Action::FetchAdd(self.far, 1),
                Verb::Send => Action::Send,
            },
            segments: vec![self.out.region().segment(0, bytes)],
            inline: what.verb.is_answered() && bytes <= INLINE,
            signalled: true,
        };
        // SAFETY: inline bytes are taken from `self.out`, which lives as long as the queue pair and
        // is written between posts alone.
        let chain = unsafe { self.pair.prepare(&[request]) }.map_err(of_nic)?;
        let takes_receives = matches!(what.verb, Verb::WriteImmediate | Verb::Send);
        if takes_receives {
            (0..RECEIVES).try_for_each(|_| self.post_receive(what.verb, bytes))?;
        }
        let is_first = self.communicator.rank().0 == 0;
        let mut samples = Vec::with_capacity(what.calls);
        self.communicator.barrier()?;
        for call in 0..what.warm_up + what.calls {
            let took = match (is_first, what.verb.is_answered()) {
                (true, true) => self.ping(what.verb, chain, bytes)? / 2,
                (true, false) => self.one_sided(chain)?,
                (false, true) => self.pong(what.verb, chain, bytes)?,
                (false, false) => break,
            };
            if is_first && call >= what.warm_up {
                samples.push(took);
            }
        }
        self.communicator.barrier()?;
        if takes_receives {
            self.use_up_receives(what.verb, chain, bytes)?;
        }
        Ok(samples)
    }

    /// The receives that are left are of this size: both sides use them up before the next.
    fn use_up_receives(&mut self, verb: Verb, chain: Prepared, bytes: usize) -> Result<()> {
        let own = self.done.0;
        self.answered += RECEIVES as u64;
        for _ in 0..RECEIVES {
            self.post(verb, chain, bytes)?;
            let done = self.done.0 + 1;
            self.until(|end| end.done.0 >= done)?;
        }
        self.until(|end| end.done.0 >= own + RECEIVES as u64 && end.done.1 >= end.answered)?;
        self.communicator.barrier()
    }

    fn post_receive(&mut self, verb: Verb, bytes: usize) -> Result<()> {
        let segment = (verb == Verb::Send).then(|| self.into.region().segment(0, bytes));
        self.pair.post_receives(&[Receive { id: 2, segment }]).map_err(of_nic)
    }

    fn post(&mut self, verb: Verb, chain: Prepared, bytes: usize) -> Result<()> {
        if verb == Verb::Write {
            self.out.write(bytes - WORD, &self.turn.to_ne_bytes());
        }
        self.pair.post(chain, &[]).map_err(of_nic)
    }

    /// Rank 0: there and back.
    fn ping(&mut self, verb: Verb, chain: Prepared, bytes: usize) -> Result<u64> {
        self.turn += 1;
        let done = self.done.0 + 1;
        let begin = Instant::now();
        self.post(verb, chain, bytes)?;
        self.arrival(verb, bytes)?;
        let took = begin.elapsed().as_nanos() as u64;
        self.until(|end| end.done.0 >= done)?;
        if verb != Verb::Write {
            self.post_receive(verb, bytes)?;
        }
        Ok(took)
    }

    /// Rank 1: back, as soon as it has come.
    fn pong(&mut self, verb: Verb, chain: Prepared, bytes: usize) -> Result<u64> {
        self.turn += 1;
        let done = self.done.0 + 1;
        self.arrival(verb, bytes)?;
        if verb != Verb::Write {
            // Before the answer: what it calls for must find room.
            self.post_receive(verb, bytes)?;
        }
        self.post(verb, chain, bytes)?;
        self.until(|end| end.done.0 >= done)?;
        Ok(0)
    }

    fn one_sided(&mut self, chain: Prepared) -> Result<u64> {
        let done = self.done.0 + 1;
        let begin = Instant::now();
        self.pair.post(chain, &[]).map_err(of_nic)?;
        self.until(|end| end.done.0 >= done)?;
        Ok(begin.elapsed().as_nanos() as u64)
    }

    fn arrival(&mut self, verb: Verb, bytes: usize) -> Result<()> {
        self.answered += 1;
        match verb {
            Verb::Write => self.until(|end| end.into.counter(bytes - WORD) == end.turn),
            _ => self.until(|end| end.done.1 >= end.answered),
        }
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = self.communicator.options().deadline;
        let begin = Instant::now();
        for looks in 1_u64.. {
            self.look()?;
            if is_so(self) {
                return Ok(());
            }
            if looks.is_multiple_of(1024) {
                self.communicator.check()?;
                std::thread::yield_now();
            }
            if looks.is_multiple_of(1024) && begin.elapsed() > deadline {
                break;
            }
        }
        let waited = begin.elapsed().max(Duration::from_millis(1));
        Err(refused("no answer", format!("nothing has come within {} ms", waited.as_millis())))
    }

    fn look(&mut self) -> Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        self.queue.poll(&mut completions, 16).map_err(of_nic)?;
        for completion in &completions {
            match (completion.status, completion.kind) {
                (Status::Success, CompletionKind::Received | CompletionKind::Immediate(_)) => {
                    self.done.1 += 1
                }
                (Status::Success, _) => self.done.0 += 1,
                (status, _) => return Err(refused("a request has failed", status.to_string())),
            }
        }
        self.completions = completions;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fabric, NetworkModel};
    use super::*;
    use headlong_comm::testing::run_ranks;
    use headlong_comm::topology::Topology;

    #[test]
    fn every_verb_goes_back_and_forth_between_nics_of_a_fabric() {
        for verb in [Verb::Write, Verb::WriteImmediate, Verb::Read, Verb::Atomic, Verb::Send] {
            let fabric = Fabric::rails(3, NetworkModel::CALM, 2, 1);
            let what = PingPong { verb, sizes: &[1, 64, 5000], warm_up: 2, calls: 20 };
            let answers = run_ranks(&Topology::from_node_sizes(&[1, 1]), |communicator| {
                let provider = fabric.provider(communicator.rank().0);
                what.run(communicator, &VerbsSettings::default(), &*provider)
            });
            let samples = answers[0].as_ref().unwrap_or_else(|error| panic!("{verb:?}: {error}"));
            assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [20; 3], "{verb:?}");
            assert!(samples.iter().flatten().all(|&ns| ns > 0), "{verb:?}");
            assert_eq!(fabric.violations(), Vec::<String>::new(), "{verb:?}");
        }
    }

    #[test]
    fn a_nic_that_breaks_ends_it_for_both() {
        let fabric = Fabric::rails(3, NetworkModel::CALM, 2, 1);
        let what = PingPong { verb: Verb::Send, sizes: &[64], warm_up: 0, calls: 1_000_000 };
        let answers = run_ranks(&Topology::from_node_sizes(&[1, 1]), |communicator| {
            let provider = fabric.provider(communicator.rank().0);
            if communicator.rank().0 == 1 {
                fabric.fail_next_send(
                    1,
                    &provider.devices().expect("devices")[0].name,
                    Status::RetriesExceeded,
                );
            }
            what.run(communicator, &VerbsSettings::default(), &*provider).map(drop)
        });
        for answer in answers {
            let error = answer.expect_err("the NIC has failed").to_string();
            assert!(error.contains("verbs: "), "{error}");
        }
    }
}
