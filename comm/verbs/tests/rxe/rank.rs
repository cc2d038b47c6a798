//! One rank of a job: exchanges of random sizes over verbs and shared memory, every byte and every
//! bit compared.

use crate::job::RANKS;
use headlong_comm::rendezvous::{Deadlines, JoinOptions, join};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::{ChooseOptions, Wanted, choose};
use headlong_comm::{CommError, CommOptions, Communicator, Topology, launcher_env};
use headlong_verbs::sys::Verbs;
use headlong_verbs::{Signal, VerbsNetwork, VerbsSettings};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Payload of a slot: small, so that sizes below, at and above it are quick.
const SLOT_BYTES: usize = 16 << 10;

/// What goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mischief {
    /// Nothing.
    None,
    /// A rank sends a byte more than the peer expects that it reaches itself.
    WrongSize { rank: usize, step: u32 },
}

/// What a rank does.
#[derive(Debug, Clone, Copy)]
pub struct RankSettings {
    pub steps: u32,
    pub signal: Signal,
    pub mischief: Mischief,
}

impl RankSettings {
    /// Steps that go well.
    pub fn good(steps: u32, signal: Signal) -> Self {
        Self { steps, signal, mischief: Mischief::None }
    }

    /// As words for the command line, without the device.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.steps.to_string()];
        if self.signal == Signal::Atomic {
            words.push("--atomic".to_owned());
        }
        if let Mischief::WrongSize { rank, step } = self.mischief {
            words.extend(["--wrong-size".to_owned(), rank.to_string(), step.to_string()]);
        }
        words
    }

    /// From the words of the command line, with the device after them.
    pub fn parse<'a>(words: &[&'a str]) -> Option<(Self, &'a str)> {
        let (steps, mut rest) = words.split_first()?;
        let mut settings = Self::good(steps.parse().ok()?, Signal::Immediate);
        loop {
            rest = match rest {
                [device] => return Some((settings, *device)),
                ["--atomic", rest @ ..] => {
                    settings.signal = Signal::Atomic;
                    rest
                }
                ["--wrong-size", rank, step, rest @ ..] => {
                    settings.mischief =
                        Mischief::WrongSize { rank: rank.parse().ok()?, step: step.parse().ok()? };
                    rest
                }
                _ => return None,
            }
        }
    }
}

/// Runs this process's rank: 0 when all was right, 3 when communication failed.
pub fn run(settings: &RankSettings, device: &str) -> ExitCode {
    match connected(device, settings.signal)
        .and_then(|communicator| exchange(settings, &communicator))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

/// Joins the job and chooses its ways: verbs between the two nodes, shared memory inside them.
fn connected(device: &str, signal: Signal) -> Result<Communicator, CommError> {
    let no_launcher =
        || CommError::Setting { setting: "HEADLONG_RANK".into(), reason: "is not set".into() };
    let launch = launcher_env::read()?.launch().ok_or_else(no_launcher)?;
    let mut options = JoinOptions::new(launch, [0; 32]);
    options.ranks_per_node = RANKS / 2;
    // An emulated machine is slow, and its processes wait long for a processor.
    let [operation, silence] = [60, 15].map(Duration::from_secs);
    options.deadlines = Deadlines { operation, silence, ..Deadlines::default() };
    let control = join(&options)?;
    let settings = VerbsSettings {
        devices: vec![device.to_owned()],
        timeout: 19,
        slot_bytes: SLOT_BYTES,
        signal,
        patience: Duration::from_secs(60),
        ..VerbsSettings::default()
    };
    let unavailable =
        |error| CommError::Setting { setting: "libibverbs".into(), reason: format!("{error}") };
    let verbs = Verbs::open().map_err(unavailable)?;
    let network =
        VerbsNetwork::new(settings, verbs, control.topology().local_index(control.rank()));
    let chosen = choose(
        control,
        &ChooseOptions { wanted: Wanted::Verbs, network: Some(&network), exchanges: None },
    )?;
    if chosen.transport.rank().0 == 0 {
        chosen
            .table()
            .lines()
            .chain(network.remarks().iter().map(String::as_str))
            .for_each(|line| println!("{line}"));
    }
    assert_eq!(chosen.transport.name(), "shm+verbs", "what carries the payload");
    Ok(Communicator::new(chosen.transport, CommOptions::default()))
}

fn exchange(settings: &RankSettings, communicator: &Communicator) -> Result<(), CommError> {
    let me = communicator.rank().0;
    let local = (me == 0).then(|| local_sums(settings.steps));
    let begin = Instant::now();
    let mut buffers = Buffers::default();
    let (mut moved, mut summed) = (0, 0);
    for step in 0..settings.steps {
        if step < 10 {
            println!("step {step}");
        }
        moved += buffers.all_to_all(communicator, settings.mischief, step)?;
        let sums = sums(communicator, step)?;
        summed += sums.len() * 4;
        let mine = digest(&sums);
        let mut all = [0_u64; RANKS];
        communicator.all_gather(&[mine], &mut all)?;
        assert!(
            all.iter().all(|other| *other == mine),
            "rank {me}: sums of step {step} differ: {all:x?}"
        );
        if let Some(local) = &local {
            let expected = local
                .recv_timeout(Duration::from_secs(60))
                .expect("the local job sums up as often");
            assert_eq!(mine, expected, "sums of step {step} differ from those of local");
        }
        if me == 0 && (step + 1).is_multiple_of((settings.steps / 5).max(1)) {
            let seconds = begin.elapsed().as_secs_f64();
            println!(
                "{} steps, {moved} bytes from rank 0, {summed} bytes summed, {seconds:.1} s",
                step + 1
            );
        }
    }
    communicator.close()
}

/// Memory for one step, used again.
#[derive(Default)]
struct Buffers {
    send: Vec<u8>,
    received: Vec<u8>,
}

impl Buffers {
    /// One all-to-all-v of random sizes; how many bytes this rank has sent.
    fn all_to_all(
        &mut self,
        communicator: &Communicator,
        mischief: Mischief,
        step: u32,
    ) -> Result<usize, CommError> {
        let me = communicator.rank().0;
        let mut send_counts: Vec<usize> = (0..RANKS).map(|to| size(step, me, to)).collect();
        let receive_counts: Vec<usize> = (0..RANKS).map(|from| size(step, from, me)).collect();
        if mischief == (Mischief::WrongSize { rank: me, step }) {
            send_counts[(me + RANKS / 2) % RANKS] += 1;
        }
        self.send.clear();
        for (to, &count) in send_counts.iter().enumerate() {
            self.send.extend((0..count).map(|at| routed(step, me, to, at)));
        }
        self.received.clear();
        self.received.resize(receive_counts.iter().sum(), 0xa5);
        communicator.all_to_all_v(&self.send, &send_counts, &mut self.received, &receive_counts)?;
        let mut next = self.received.iter();
        for (from, &count) in receive_counts.iter().enumerate() {
            let is_right = (0..count).all(|at| next.next() == Some(&routed(step, from, me, at)));
            assert!(is_right, "rank {me}: wrong bytes from rank {from} in step {step}, of {count}");
        }
        Ok(self.send.len())
    }
}

/// Bytes from a rank to another in a step: none, few, odd, exactly a slot, a byte more or less,
/// several slots.
fn size(step: u32, from: usize, to: usize) -> usize {
    let mut random = Random::new(1, u64::from(step), (from * RANKS + to) as u64);
    match random.below(12) {
        0..3 => 0,
        3..6 => random.below(40),
        6..9 => random.below(3000) | 1,
        9 => SLOT_BYTES + random.below(3) - 1,
        10 => SLOT_BYTES / 2 + random.below(3) - 1,
        _ => random.below(3 * SLOT_BYTES),
    }
}

/// A byte on its way.
fn routed(step: u32, from: usize, to: usize, at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).wrapping_add(step * 31 + from as u32 * 7 + to as u32)
        as u8
}

/// One all-reduce of random numbers, of a random length.
fn sums(communicator: &Communicator, step: u32) -> Result<Vec<f32>, CommError> {
    let mut data = addends(step, communicator.rank().0);
    communicator.all_reduce(&mut data)?;
    Ok(data)
}

/// What a rank adds in a step: numbers of all sizes, so that another order gives other bits.
fn addends(step: u32, rank: usize) -> Vec<f32> {
    let length = match Random::new(2, u64::from(step), 0).below(8) {
        0 => 0,
        1 => 1,
        2..6 => Random::new(3, u64::from(step), 0).below(600),
        6 => SLOT_BYTES / 4,
        _ => Random::new(4, u64::from(step), 0).below(9000),
    };
    let mut random = Random::new(5, u64::from(step), rank as u64);
    let number = |bits: u64| (bits as u32 as f32 - 2e9) * 2_f32.powi((bits >> 32) as i32 % 20);
    (0..length).map(|_| number(random.next())).collect()
}

/// The same sums among threads of this process: a digest for each step.
fn local_sums(steps: u32) -> Receiver<u64> {
    let (sender, receiver) = sync_channel(64);
    let topology = Topology::with_ranks_per_node(RANKS, RANKS / 2);
    for communicator in Communicator::local(&topology, CommOptions::default()) {
        let sender = (communicator.rank().0 == 0).then(|| sender.clone());
        let work = move || {
            for step in 0..steps {
                let Ok(sums) = sums(&communicator, step) else { return };
                if sender.as_ref().is_some_and(|sender| sender.send(digest(&sums)).is_err()) {
                    return;
                }
            }
            // One that is dropped without goodbye is lost to those that are still in the last step.
            let _ = communicator.close();
        };
        thread::Builder::new().name("local".into()).spawn(work).expect("a thread can be had");
    }
    receiver
}

/// FNV-1a over the bits.
fn digest(numbers: &[f32]) -> u64 {
    let fold = |hash: u64, number: &f32| {
        (hash ^ u64::from(number.to_bits())).wrapping_mul(0x0100_0000_01b3)
    };
    numbers.iter().fold(0xcbf2_9ce4_8422_2325 ^ numbers.len() as u64, fold)
}

/// SplitMix64 of a purpose, a step and a place: the same on every rank.
struct Random(u64);

impl Random {
    fn new(purpose: u64, step: u64, place: u64) -> Self {
        let mut random =
            Self(purpose ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.rotate_left(40));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
