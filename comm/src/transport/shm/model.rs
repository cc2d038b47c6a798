//! Two ranks and their rings under loom: the files of this folder and of `paths/waiting.rs` again,
//! in small memory.

use crate::transport::StepId;
use crate::transport::paths::{DoorbellKind, Doorbells, Head, Path as _, PathError, Progress};
use headlong_models::sync::{Ordering, thread};
use headlong_models::{Model, Models, Spare};
use std::thread::yield_now;
use std::time::Duration;

#[allow(clippy::duplicate_mod, reason = "the same file over another `segment`")]
#[path = "doorbell.rs"]
mod doorbell;
#[allow(clippy::duplicate_mod, reason = "the same file over another `segment`")]
#[path = "path.rs"]
mod path;
#[allow(clippy::duplicate_mod, reason = "the same file over another `segment`")]
#[path = "ring.rs"]
mod ring;
mod segment;
#[allow(clippy::duplicate_mod, reason = "the same file over another `segment`")]
#[path = "../paths/waiting.rs"]
mod waiting;

use doorbell::ShmDoorbell;
use path::ShmPath;
use segment::Shared;
use waiting::{Awaited, Next, Waiting};

/// A ring has two lines, and so has a chunk.
mod layout {
    pub const LINE: usize = 64;
    pub const CHUNK: usize = 2 * LINE;

    pub struct Layout;

    impl Layout {
        pub fn in_place_bytes(&self) -> usize {
            LINE
        }
    }
}

/// A clock by which every patience has ended.
#[derive(Debug, Clone, Copy)]
struct Instant;

fn num_cores() -> usize {
    1
}

impl Instant {
    fn now() -> Self {
        Self
    }

    fn duration_since(&self, _earlier: Self) -> Duration {
        Duration::from_secs(1)
    }
}

/// One rank, in its own thread.
struct End {
    path: ShmPath,
    doorbells: Doorbells,
    waiting: Waiting,
    sent: u64,
    received: u64,
}

impl End {
    fn new(memory: &Shared, local: usize) -> Self {
        Self {
            path: ShmPath::new(memory, local, 1 - local).expect("the memory is here"),
            doorbells: Doorbells {
                node: Box::new(ShmDoorbell::new(memory.clone(), local)),
                ..Doorbells::default()
            },
            waiting: Waiting::new(usize::MAX),
            sent: 0,
            received: 0,
        }
    }

    /// As the progress loop drives its paths.
    fn drive(&mut self, mut look: impl FnMut(&mut ShmPath) -> Result<Progress, PathError>) {
        let Self { path, doorbells, waiting, .. } = self;
        let mut awaited = Awaited::default();
        awaited.add(path.rings());
        loop {
            match look(path).expect("no path breaks") {
                Progress::Done => break,
                Progress::Moved => waiting.moved(doorbells),
                Progress::Idle if waiting.idle(doorbells, awaited) == Next::Look => {}
                Progress::Idle => waiting.sleep(doorbells, awaited, Duration::MAX),
            }
        }
        waiting.moved(doorbells);
    }

    fn send(&mut self, length: usize) {
        let (head, bytes) = message(&mut self.sent, length);
        let mut at = 0;
        self.drive(|path| path.send(&head, &bytes, &mut at));
    }

    fn receive(&mut self, length: usize) {
        let (head, expected) = message(&mut self.received, length);
        let (mut at, mut bytes) = (0, vec![0; length]);
        self.drive(|path| path.receive(&head, &mut bytes, &mut at));
        assert_eq!(bytes, expected);
    }

    fn read(&mut self, length: usize) {
        let (head, expected) = message(&mut self.received, length);
        self.drive(|path| {
            Ok(match path.peek(&head)? {
                Some(bytes) => {
                    assert_eq!(bytes, expected);
                    Progress::Done
                }
                None => Progress::Idle,
            })
        });
        self.path.release();
    }

    /// Both at once, as an exchange does.
    fn exchange(&mut self, length: usize) {
        let (head, outgoing) = message(&mut self.sent, length);
        let (_, expected) = message(&mut self.received, length);
        let (mut sent, mut came, mut incoming) = (0, 0, vec![0; length]);
        let mut left = [true; 2];
        self.drive(|path| {
            let mut moved = false;
            if left[0] {
                let went = path.receive(&head, &mut incoming, &mut came)?;
                (left[0], moved) = (went != Progress::Done, went != Progress::Idle);
            }
            if left[1] {
                let went = path.send(&head, &outgoing, &mut sent)?;
                left[1] = went != Progress::Done;
                moved |= went != Progress::Idle;
            }
            Ok(match (left, moved) {
                ([false, false], _) => Progress::Done,
                (_, true) => Progress::Moved,
                (_, false) => Progress::Idle,
            })
        });
        assert_eq!(incoming, expected);
    }
}

/// The next of a direction, and its bytes.
fn message(number: &mut u64, length: usize) -> (Head, Vec<u8>) {
    let id = StepId { sequence: *number, step: 0, fingerprint: 0, operation: "model" };
    *number += 1;
    let bytes = (0..length).map(|at| at as u8 + 100 * *number as u8).collect();
    (Head::new(0, &id, length), bytes)
}

fn two(first: fn(&mut End), second: fn(&mut End)) {
    let memory = Shared::default();
    let mut there = End::new(&memory, 1);
    let other = thread::spawn(move || second(&mut there));
    first(&mut End::new(&memory, 0));
    other.join().expect("the other rank ends");
}

/// Two mistakes that were in the code, found by this test and put back to see it fail:
///
/// - `seen` read after `listens` is written, as it was before this test: a deadlock,
///   because a late ring for what was seen takes back that the rank listens;
/// - `hungry.swap` without `Acquire`, as it was: a deadlock of the fourth.
#[test]
fn rings_and_doorbells() {
    let model = |name, preemptions, run| Model { name, preemptions: Some(preemptions), run };
    Models {
        test: "transport::shm::model::rings_and_doorbells",
        models: &[
            model("short messages, more than the ring holds", 2, || {
                two(
                    |end| (0..3).for_each(|_| end.send(0)),
                    |end| (0..3).for_each(|_| end.receive(0)),
                )
            }),
            model("a message longer than the ring, in chunks", 2, || {
                two(|end| end.send(150), |end| end.receive(150))
            }),
            model("messages that are read where they lie", 2, || {
                two(
                    |end| (0..2).for_each(|_| end.send(40)),
                    |end| (0..2).for_each(|_| end.read(40)),
                )
            }),
            model("room that comes in two parts", 2, || {
                two(
                    |end| [0, 0, 64].iter().for_each(|&length| end.send(length)),
                    |end| [0, 0, 64].iter().for_each(|&length| end.receive(length)),
                )
            }),
            model("an exchange of messages longer than the ring", 1, || {
                two(|end| end.exchange(100), |end| end.exchange(100))
            }),
        ],
        spare: &[
            Spare {
                file: "doorbell.rs",
                line: "rings.load(Ordering::Acquire)",
                to: Ordering::Relaxed,
                reason: "keeps it before the store, which loom never brings forward",
            },
            Spare {
                file: "doorbell.rs",
                line: "rings.fetch_add(1, Ordering::Release)",
                to: Ordering::Relaxed,
                reason: "the other half of it",
            },
        ],
    }
    .check();
}
