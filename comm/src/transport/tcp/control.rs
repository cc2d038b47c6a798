//! The control channel: a star around rank 0, served by one thread per rank.
//!
//! At each heartbeat a rank tells rank 0, and rank 0 tells everybody, that it lives, where it is
//! and for whom it waits. A closed connection without a goodbye is a dead process; silence is a
//! stopped process or a dead machine. Rank 0 decides what the job's first error is and tells
//! everybody; if rank 0 itself is gone, everybody sees that on the own connection.

use super::control_frame::{Control, FrameReader};
use super::health::Health;
use super::mesh::DataPort;
use crate::catch::catch;
use crate::error::CommError;
use crate::rendezvous::deadlines::{Deadlines, Notice};
use crate::rendezvous::listener::{Listener, Proven};
use crate::system::{Instant, PollFd, PollFlags, poll};
use crate::topology::Rank;
use std::net::Shutdown;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const LAST_WORDS: Duration = Duration::from_millis(400);
/// How long a report of a lost connection waits for this rank's own discovery of who died.
const GRACE: Duration = Duration::from_millis(150);

struct Line {
    reader: FrameReader,
    /// Something may have come, or may leave.
    stirs: bool,
    heard: Instant,
    heartbeats: u64,
    ended: bool,
}

/// Ports that the control thread serves while the job runs.
#[derive(Default)]
pub struct Ports {
    /// Rank 0 keeps its listener: a rank that comes late learns why it is refused.
    pub late: Option<Listener>,
    /// Where peers make their data connections.
    pub data: Option<DataPort>,
}

pub struct ControlThread {
    health: Arc<Health>,
    deadlines: Deadlines,
    lines: Vec<Line>,
    ports: Ports,
    /// When each is judged, in time lived.
    suspicions: Vec<(Duration, CommError)>,
    /// For how long this thread has waited as it meant to: what may explain a suspicion does not
    /// arrive while this process is stopped.
    lived: Duration,
    next_heartbeat: Instant,
    /// When busy ranks were looked at last, those that were told, and how often their longest was
    /// said.
    last_look: Instant,
    told_busy: Vec<usize>,
    noticed: u64,
    notice: Option<Notice>,
}

impl ControlThread {
    /// A thread for the links of `health`. `readers` hold what has come already.
    pub fn new(
        health: Arc<Health>,
        deadlines: Deadlines,
        readers: Vec<FrameReader>,
        ports: Ports,
        notice: Option<Notice>,
    ) -> Self {
        let now = Instant::now();
        let line = |reader| Line { reader, stirs: true, heard: now, heartbeats: 0, ended: false };
        let lines = readers.into_iter().map(line).collect();
        Self {
            health,
            deadlines,
            lines,
            ports,
            suspicions: Vec::new(),
            lived: Duration::ZERO,
            next_heartbeat: now,
            last_look: now,
            told_busy: Vec::new(),
            noticed: 0,
            notice,
        }
    }

    /// Serves until told to stop; then sends the last words and ends, in bounded time. A panic in
    /// here is this rank's failure: the others hear of it, as of any other.
    pub fn run(self) {
        let health = Arc::clone(&self.health);
        if let Err(reason) = catch("comm-control", || self.serve()) {
            health.fail(CommError::Aborted { culprit: health.rank(), reason });
        }
    }

    fn serve(mut self) {
        let (mut now, mut pause) = (self.last_look, Duration::ZERO);
        while !self.health.is_stopping() {
            self.wait(pause);
            let last = std::mem::replace(&mut now, Instant::now());
            self.pass(now, now.saturating_duration_since(last), pause);
            self.turn(now);
            pause = self.pause();
        }
        self.leave();
    }

    /// Time has passed, of which this thread meant to wait for `pause`.
    pub(super) fn pass(&mut self, now: Instant, passed: Duration, pause: Duration) {
        let longest = pause + self.deadlines.heartbeat;
        if passed > longest {
            // This process itself was stopped or starved: no silence counts.
            self.lines.iter_mut().for_each(|line| line.heard = now);
        }
        self.health.note_listened(passed.min(longest));
        self.lived += passed.min(pause);
    }

    /// Does what is due, and hears what [`ControlThread::wait`] has found. Silence ends `now`,
    /// before this rank listens: if it is stopped in here, the others have not been silent.
    pub(super) fn turn(&mut self, now: Instant) {
        self.beat(now);
        self.listen();
        self.excuse();
        self.judge_suspicions();
        self.judge_silence(now);
        self.answer_ports();
    }

    fn pause(&self) -> Duration {
        let until_heartbeat = self.next_heartbeat.saturating_duration_since(Instant::now());
        let until = |(due, _): &(Duration, CommError)| due.saturating_sub(self.lived);
        let until_due = self.suspicions.iter().map(until).fold(until_heartbeat, Ord::min);
        // A peer's deadline has to be looked at too.
        until_due.clamp(Duration::from_millis(1), Duration::from_millis(250))
    }

    /// Waits until something stirs, at most `longest`.
    pub(super) fn wait(&mut self, longest: Duration) {
        let health = Arc::clone(&self.health);
        let mut descriptors = vec![PollFd::new(health.wake_up(), PollFlags::IN)];
        let is_open = |(_, line): &(_, &mut Line)| !line.ended;
        let links = health.links();
        for (link, _) in links.iter().zip(&mut self.lines).filter(is_open) {
            let outbox = link.outbox.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted =
                if outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            descriptors.push(PollFd::new(&link.stream, wanted));
        }
        let Ports { late, data } = &self.ports;
        for listener in late.iter().chain(data.iter().map(|port| &port.listener)) {
            listener.descriptors(&mut descriptors);
        }
        let is_told = poll(&mut descriptors, longest);
        let stirring =
            descriptors[1..].iter().map(|descriptor| !is_told || !descriptor.revents().is_empty());
        let open = self.lines.iter_mut().filter(|line| !line.ended);
        open.zip(stirring).for_each(|(line, stirs)| line.stirs |= stirs);
        health.wake_up().clear();
    }

    fn beat(&mut self, now: Instant) {
        let busy: Vec<usize> = self.health.told_busy().iter().map(|busy| busy.rank).collect();
        // A busy rank is announced at once: a deadline may be shorter than the time between
        // two signs of life.
        let is_news = busy.iter().any(|rank| !self.told_busy.contains(rank));
        if now >= self.next_heartbeat || is_news {
            self.told_busy = busy;
            self.next_heartbeat = now + self.deadlines.heartbeat;
            if !self.health.is_over() {
                self.health.tell(&self.health.heartbeat());
            }
        }
    }

    /// Time passes in which other ranks are busy; rank 0 says so now and then.
    fn excuse(&mut self) {
        let passed = self.last_look.elapsed();
        self.last_look += passed;
        let (own, busy) = (self.health.rank().0, self.health.busy_ranks());
        if busy.iter().any(|busy| busy.rank != own) {
            self.health.busy.excuse(passed);
        }
        let Some(notice) = self.notice.as_ref().filter(|_| own == 0) else { return };
        let every = self.deadlines.notice.as_millis().max(1) as u64;
        let most = busy.iter().map(|busy| busy.ms / every).max().unwrap_or(0);
        if most > self.noticed && self.health.is_anybody_waiting() {
            let long = busy.iter().filter(|busy| busy.ms >= every);
            let each = long.map(|busy| {
                format!("rank {}, which {} ({} s)", busy.rank, busy.what, busy.ms / 1000)
            });
            notice(&format!("waiting for {}", each.collect::<Vec<_>>().join("; ")));
        }
        self.noticed = most;
    }

    fn listen(&mut self) {
        for place in 0..self.lines.len() {
            let health = Arc::clone(&self.health);
            let link = &health.links()[place];
            let line = &mut self.lines[place];
            if line.ended || !std::mem::take(&mut line.stirs) {
                continue;
            }
            link.outbox.lock().unwrap_or_else(PoisonError::into_inner).flush(&link.stream);
            line.reader.receive(&link.stream);
            while let Some(frame) = self.lines[place].reader.next_frame() {
                self.lines[place].heard = Instant::now();
                self.obey(place, link.peer, frame);
            }
            let end = self.lines[place].reader.end().map(str::to_string);
            if let Some(reason) = end {
                self.lines[place].ended = true;
                if !health.is_over() && !health.has_said_goodbye(link.peer) {
                    health.fail(health.lost(link.peer, reason));
                }
            }
        }
    }

    fn obey(&mut self, place: usize, peer: Rank, frame: Control) {
        match frame {
            Control::Heartbeat { progress, waiting_for, busy } => {
                self.lines[place].heartbeats += 1;
                self.health.note_heartbeat(peer, progress, waiting_for, busy);
            }
            Control::Report { error, suspicion: true } => {
                let pause = if matches!(error, CommError::PeerLost { .. }) {
                    GRACE
                } else {
                    Duration::ZERO
                };
                self.suspicions.push((self.lived + pause, error));
            }
            Control::Report { error, .. } | Control::Abort { error } => {
                self.health.fail(error);
            }
            Control::Goodbye => self.health.note_goodbye(peer),
            Control::Farewell => self.health.note_farewell(),
            // Words of the rendezvous that is over.
            Control::Wait | Control::Table { .. } => {}
        }
    }

    fn judge_suspicions(&mut self) {
        let due: Vec<CommError> = self
            .suspicions
            .extract_if(.., |(due, _)| *due <= self.lived)
            .map(|(_, error)| error)
            .collect();
        for error in due {
            let error = self.health.resolve(error);
            self.health.fail(error);
        }
    }

    fn judge_silence(&mut self, now: Instant) {
        if self.health.is_over() || self.health.has_failed() {
            return;
        }
        for (line, link) in self.lines.iter().zip(self.health.links()) {
            let silent = now.saturating_duration_since(line.heard);
            if silent >= self.deadlines.silence
                && !line.ended
                && !self.health.has_said_goodbye(link.peer)
            {
                self.health.fail(self.health.late(
                    link.peer,
                    "heartbeat",
                    line.heartbeats + 1,
                    silent,
                ));
                return;
            }
        }
    }

    fn answer_ports(&mut self) {
        if let Some(port) = &mut self.ports.data {
            port.turn();
        }
        let Some(proven) = self.ports.late.as_mut().and_then(|late| late.turn().ok()) else {
            return;
        };
        for peer in proven {
            let reason = late_answer(&peer);
            peer.refuse(&reason);
        }
    }

    /// The last words must arrive: closing a connection on which something unread lies would take
    /// them back. Time in which this process is stopped does not count.
    fn leave(mut self) {
        const PAUSE: Duration = Duration::from_millis(20);
        let (mut left, mut now) = (LAST_WORDS, Instant::now());
        self.ports = Ports::default();
        let mut shut = vec![false; self.lines.len()];
        while !left.is_zero() && self.lines.iter().any(|line| !line.ended) {
            for ((link, line), shut) in
                self.health.links().iter().zip(&mut self.lines).zip(&mut shut)
            {
                let mut outbox = link.outbox.lock().unwrap_or_else(PoisonError::into_inner);
                outbox.flush(&link.stream);
                if outbox.is_empty() && !*shut {
                    *shut = true;
                    let _ = link.stream.shutdown(Shutdown::Write);
                }
                line.reader.receive(&link.stream);
                while line.reader.next_frame().is_some() {}
                line.ended |= line.reader.end().is_some();
            }
            if self.lines.iter().any(|line| !line.ended) {
                self.wait(PAUSE);
            }
            let last = std::mem::replace(&mut now, Instant::now());
            left = left.saturating_sub(now.saturating_duration_since(last).min(PAUSE));
        }
    }
}

fn late_answer(peer: &Proven) -> String {
    let claims = &peer.claims;
    format!(
        "the job is running, all its ranks have come: a second rank {} (job `{}`) has no place in \
         it",
        claims.rank, claims.job
    )
}
