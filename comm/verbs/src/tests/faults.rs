//! Each rule of ordering is needed: without it, some seed finds wrong bytes, a stuck rank, or what
//! a NIC forbids.

use super::flow::run;
use super::settings;
use crate::fake::{Fault, NetworkModel};
use crate::header::HEADER_BYTES;
use crate::hub::Hub;
use crate::layout::Near;
use crate::path::VerbsPath;
use crate::settings::Signal;
use headlong_comm::transport::paths::{Head, Path, PathError, Progress};
use std::sync::{Arc, Mutex};

const SEEDS: std::ops::Range<u64> = 0..40;

/// Who breaks a rule.
#[derive(Debug, Clone, Copy)]
pub(super) enum Broken {
    Nic(Fault),
    Path(PathFault),
}

/// A rule of the slot protocol that a path breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathFault {
    /// A slot counts as filled when its header is there.
    PollTheHeader,
    /// A slot is filled again before its receiver has given it back.
    IgnoreCredits,
}

/// A path that breaks a rule.
pub(super) struct FaultyPath {
    hub: Arc<Mutex<Hub>>,
    link: usize,
    inner: VerbsPath,
    fault: PathFault,
}

impl FaultyPath {
    pub(super) fn new(hub: &Arc<Mutex<Hub>>, link: usize, fault: PathFault) -> Self {
        Self { hub: Arc::clone(hub), link, inner: VerbsPath::new(hub, link), fault }
    }
}

impl Path for FaultyPath {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn send(&mut self, head: &Head, bytes: &[u8], at: &mut usize) -> Result<Progress, PathError> {
        if self.fault != PathFault::IgnoreCredits {
            return self.inner.send(head, bytes, at);
        }
        let mut hub = self.hub.lock().expect("no panic");
        hub.look();
        let Hub { links, slots, flags, .. } = &mut *hub;
        let link = &mut links[self.link];
        link.check()?;
        link.flow.given_back = link.flow.sent;
        let end = bytes.len().min(*at + link.layout.capacity);
        if !link.fill(Near { slots, flags }, head, *at, &bytes[*at..end])? {
            return Ok(Progress::Idle);
        }
        *at = end;
        Ok(if end == bytes.len() { Progress::Done } else { Progress::Moved })
    }

    fn receive(
        &mut self,
        head: &Head,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Progress, PathError> {
        if self.fault != PathFault::PollTheHeader {
            return self.inner.receive(head, bytes, at);
        }
        let mut hub = self.hub.lock().expect("no panic");
        hub.look();
        let Hub { links, slots, flags, .. } = &mut *hub;
        let link = &mut links[self.link];
        link.check()?;
        let (near, taken) = (Near { slots, flags }, link.flow.taken);
        let header = link.header(near, taken).filter(|header| header.number == taken);
        let Some(header) = header else { return Ok(Progress::Idle) };
        let end = *at + header.bytes as usize;
        if header.head != *head || header.offset != *at as u64 || end > bytes.len() {
            return Err(PathError::Mismatch(header.head));
        }
        slots.read(link.layout.receive(taken) + HEADER_BYTES, &mut bytes[*at..end]);
        link.give_back()?;
        *at = end;
        Ok(if end == bytes.len() { Progress::Done } else { Progress::Moved })
    }

    fn flush(&mut self) -> Result<Progress, PathError> {
        self.inner.flush()
    }
}

#[test]
fn every_broken_rule_is_found_out() {
    let both = [Signal::Immediate, Signal::Atomic];
    let cases: [(Broken, &[Signal], &[&str]); 7] = [
        (Broken::Nic(Fault::SignalFirst), &both, &["other bytes", "something else"]),
        (Broken::Nic(Fault::SignalElsewhere), &both, &["other bytes", "something else"]),
        (Broken::Path(PathFault::PollTheHeader), &both, &["other bytes", "Mismatch"]),
        (Broken::Nic(Fault::RelaxedFlags), &[Signal::Atomic], &["other bytes", "something else"]),
        (Broken::Nic(Fault::ReuseBeforeCompletion), &both, &["written before its completion"]),
        (Broken::Path(PathFault::IgnoreCredits), &both, &["something else", "other bytes"]),
        (Broken::Nic(Fault::ForgetReceives), &[Signal::Immediate], &["stuck"]),
    ];
    for (broken, signals, texts) in cases {
        for &signal in signals {
            let settings = settings(signal);
            let find = |seed| {
                let found = run(seed, NetworkModel::ROUGH, &settings, Some(broken));
                found.err().map(|text| (seed, text))
            };
            let found = SEEDS.into_iter().find_map(find);
            let Some((seed, text)) = found else {
                panic!("{broken:?} by {signal:?}: no seed finds it")
            };
            let expected = texts.iter().any(|expected| text.contains(expected));
            assert!(expected, "{broken:?} by {signal:?}, seed {seed}: {text}");
        }
    }
}
