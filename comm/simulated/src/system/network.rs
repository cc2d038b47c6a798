//! Connections: two queues of bytes, which travel with a delay, come in parts, and end.

use super::plan::{Model, NEVER, Time};
use crate::testing::sim::Random;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The machine of a rank.
pub fn machine(rank: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1).into()
}

/// The machine of all who are no rank.
pub const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));

/// Where sockets are that have names.
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What a thread can poll.
#[derive(Debug, Clone)]
pub enum Handle {
    Stream(usize),
    Listener(usize),
    WakeUp(Arc<AtomicBool>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    rank: Option<usize>,
    peer: usize,
    local: SocketAddr,
    remote: SocketAddr,
    on_its_way: VecDeque<(Time, Item)>,
    here: VecDeque<u8>,
    ended: bool,
    /// Whether the peer's reset is here, and has been told.
    reset: Option<bool>,
    shut: (bool, bool),
    closed: bool,
    pub blocking: bool,
    pub patience: (Option<Time>, Option<Time>),
}

#[derive(Debug)]
struct Listener {
    rank: Option<usize>,
    address: SocketAddr,
    /// Connections, and when each is there.
    queue: VecDeque<(Time, usize)>,
    closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct CutLink {
    from: Option<usize>,
    to: Option<usize>,
    until: Time,
}

/// All connections of a history.
#[derive(Debug)]
pub struct Network {
    model: Model,
    ends: Vec<End>,
    listeners: Vec<Listener>,
    next_port: u16,
    cuts: Vec<CutLink>,
    dark: Vec<usize>,
    /// Names of sockets inside a machine; a name's place is its port.
    names: Vec<String>,
    /// On their way to an end of a connection.
    files: Vec<(usize, OwnedFd)>,
}

impl Network {
    pub fn new(model: Model) -> Self {
        let (ends, listeners, cuts, dark) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (names, files) = (Vec::new(), Vec::new());
        Self { model, ends, listeners, next_port: 30_000, cuts, dark, names, files }
    }

    fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// How long something takes from one rank to another that leaves now.
    pub fn delay(
        &self,
        (from, to): (Option<usize>, Option<usize>),
        now: Time,
        random: &mut Random,
    ) -> Time {
        let (least, most) = self.model.delay;
        let spike = if random.chance(self.model.spike_percent) { 10 } else { 1 };
        let delay = random.between(least, most) * spike;
        if [from, to].into_iter().flatten().any(|rank| self.dark.contains(&rank)) {
            return NEVER;
        }
        let cuts = self.cuts.iter().filter(|cut| cut.from == from && cut.to == to);
        let until = cuts.map(|cut| cut.until).max().unwrap_or(0);
        match until {
            NEVER => NEVER,
            until => until.saturating_sub(now) + delay,
        }
    }

    pub fn bind(&mut self, rank: Option<usize>, address: SocketAddr) -> Result<usize, Errno> {
        if rank.map_or(ELSEWHERE, machine) != address.ip() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let port = if address.port() == 0 { self.port() } else { address.port() };
        let address = SocketAddr::from((address.ip(), port));
        if self.listeners.iter().any(|one| !one.closed && one.address == address) {
            return Err(Errno::ADDRINUSE);
        }
        self.listeners.push(Listener { rank, address, queue: VecDeque::new(), closed: false });
        Ok(self.listeners.len() - 1)
    }

    /// A listener at a name.
    pub fn bind_name(&mut self, rank: Option<usize>, name: &str) -> usize {
        self.names.push(name.to_owned());
        let address = SocketAddr::from((INSIDE, self.names.len() as u16));
        self.listeners.push(Listener { rank, address, queue: VecDeque::new(), closed: false });
        self.listeners.len() - 1
    }

    pub fn address_of(&self, name: &str) -> Option<SocketAddr> {
        let place = self.names.iter().position(|one| one == name)?;
        Some(SocketAddr::from((INSIDE, place as u16 + 1)))
    }

    pub fn put_file(&mut self, end: usize, file: OwnedFd) {
        self.files.push((self.ends[end].peer, file));
    }

    pub fn take_file(&mut self, end: usize) -> Option<OwnedFd> {
        let place = self.files.iter().position(|(to, _)| *to == end)?;
        Some(self.files.swap_remove(place).1)
    }

    /// Where someone listens that others can reach.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter(|one| !one.closed && one.address.ip() != INSIDE)
            .map(|one| one.address)
            .collect()
    }

    pub fn listener_address(&self, listener: usize) -> SocketAddr {
        self.listeners[listener].address
    }

    pub fn listener_rank(&self, address: SocketAddr) -> Option<usize> {
        self.listeners.iter().find(|one| one.address == address).and_then(|one| one.rank)
    }

    /// A connection from `rank` to who listens at `address`, if someone does.
    pub fn connect(
        &mut self,
        rank: Option<usize>,
        address: SocketAddr,
        now: Time,
    ) -> Result<usize, Errno> {
        let port = self.port();
        let listener = self.listeners.iter_mut();
        let mut found = listener.filter(|one| !one.closed && one.address == address);
        let listener = found.next().ok_or(Errno::CONNREFUSED)?;
        let (near, far) = (self.ends.len(), self.ends.len() + 1);
        listener.queue.push_back((now, far));
        let local = SocketAddr::from((rank.map_or(ELSEWHERE, machine), port));
        let end = |rank, peer, local, remote| End {
            rank,
            peer,
            local,
            remote,
            on_its_way: VecDeque::new(),
            here: VecDeque::new(),
            ended: false,
            reset: None,
            shut: (false, false),
            closed: false,
            blocking: true,
            patience: (None, None),
        };
        let listens = listener.rank;
        self.ends.push(end(rank, far, local, address));
        self.ends.push(end(listens, near, address, local));
        Ok(near)
    }

    pub fn accept(&mut self, listener: usize, now: Time) -> Result<(usize, SocketAddr), Errno> {
        let queue = &mut self.listeners[listener].queue;
        match queue.front() {
            Some((there, _)) if *there <= now => {}
            _ => return Err(Errno::AGAIN),
        }
        let (_, end) = queue.pop_front().expect("it has just been looked at");
        Ok((end, self.ends[end].remote))
    }

    pub fn close_listener(&mut self, listener: usize, now: Time, random: &mut Random) {
        let listener = &mut self.listeners[listener];
        listener.closed = true;
        for (_, end) in std::mem::take(&mut listener.queue) {
            self.close(end, now, random);
        }
    }

    /// What has come so far is here.
    fn deliver(&mut self, end: usize, now: Time) {
        let end = &mut self.ends[end];
        while end.on_its_way.front().is_some_and(|(due, _)| *due <= now) {
            match end.on_its_way.pop_front().expect("it has just been looked at").1 {
                Item::Bytes(bytes) => end.here.extend(bytes),
                Item::End => end.ended = true,
                Item::Reset => end.reset = Some(end.reset.unwrap_or(false)),
            }
        }
    }

    fn put(&mut self, from: usize, item: Item, now: Time, random: &mut Random) {
        let to = self.ends[from].peer;
        let is_inside = [from, to].iter().any(|&end| self.ends[end].local.ip() == INSIDE);
        let delay = match is_inside {
            true => random.between(1000, 50_000),
            false => self.delay((self.ends[from].rank, self.ends[to].rank), now, random),
        };
        let last = self.ends[to].on_its_way.back().map_or(0, |(due, _)| *due);
        let due = now.saturating_add(delay).max(last);
        self.ends[to].on_its_way.push_back((due, item));
    }

    fn free(&self, end: usize) -> usize {
        let peer = &self.ends[self.ends[end].peer];
        let bytes = |(_, item): &(Time, Item)| match item {
            Item::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        let taken = peer.here.len() + peer.on_its_way.iter().map(bytes).sum::<usize>();
        self.model.room.saturating_sub(taken)
    }

    pub fn send(
        &mut self,
        end: usize,
        bytes: &[u8],
        now: Time,
        random: &mut Random,
    ) -> Result<usize, Errno> {
        self.deliver(end, now);
        let own = &mut self.ends[end];
        if let Some(told) = &mut own.reset {
            let first = !std::mem::replace(told, true);
            return Err(if first { Errno::CONNRESET } else { Errno::PIPE });
        }
        if own.shut.1 {
            return Err(Errno::PIPE);
        }
        let free = self.free(end);
        let mut length = bytes.len().min(free);
        if length == 0 {
            return if bytes.is_empty() { Ok(0) } else { Err(Errno::AGAIN) };
        }
        // A system takes short messages whole while there is room.
        if length > 2048 && random.chance(self.model.part_percent) {
            length = random.between(2048, length as u64) as usize;
        }
        if self.ends[self.ends[end].peer].closed {
            // It has closed: the answer is a reset.
            let peer = self.ends[end].peer;
            self.put(peer, Item::Reset, now, random);
        } else {
            self.put(end, Item::Bytes(bytes[..length].to_vec()), now, random);
        }
        Ok(length)
    }

    pub fn receive(
        &mut self,
        end: usize,
        room: usize,
        now: Time,
        random: &mut Random,
    ) -> Result<Vec<u8>, Errno> {
        self.deliver(end, now);
        let percent = self.model.part_percent;
        let own = &mut self.ends[end];
        let mut length = own.here.len().min(room);
        if length > 0 {
            if random.chance(percent) {
                length = random.between(1, length as u64) as usize;
            }
            return Ok(own.here.drain(..length).collect());
        }
        match own.reset {
            Some(false) => {
                own.reset = Some(true);
                Err(Errno::CONNRESET)
            }
            Some(true) => Ok(Vec::new()),
            None if own.ended || own.shut.0 || room == 0 => Ok(Vec::new()),
            None => Err(Errno::AGAIN),
        }
    }

    pub fn peek(&mut self, end: usize, now: Time) -> Result<usize, Errno> {
        self.deliver(end, now);
        let own = &self.ends[end];
        match own.here.is_empty() {
            false => Ok(1),
            true if own.ended || own.shut.0 || own.reset.is_some() => Ok(0),
            true => Err(Errno::AGAIN),
        }
    }

    pub fn shut(
        &mut self,
        end: usize,
        (read, write): (bool, bool),
        now: Time,
        random: &mut Random,
    ) {
        let had = self.ends[end].shut;
        self.ends[end].shut = (had.0 || read, had.1 || write);
        if write && !had.1 && self.ends[end].reset.is_none() {
            self.put(end, Item::End, now, random);
        }
    }

    /// Closed with something unread, a connection is reset, and what it sent last may be lost.
    pub fn close(&mut self, end: usize, now: Time, random: &mut Random) {
        if self.ends[end].closed {
            return;
        }
        self.deliver(end, now);
        self.ends[end].closed = true;
        let peer = self.ends[end].peer;
        let unread = !self.ends[end].here.is_empty();
        if unread {
            self.lose_last(peer, random);
            self.put(end, Item::Reset, now, random);
        } else if !self.ends[end].shut.1 {
            self.put(end, Item::End, now, random);
        }
        let is_bytes = |(_, item): &(Time, Item)| matches!(item, Item::Bytes(_));
        if !unread && self.ends[end].on_its_way.iter().any(is_bytes) {
            self.put(end, Item::Reset, now, random);
        }
    }

    fn lose_last(&mut self, end: usize, random: &mut Random) {
        while !self.ends[end].on_its_way.is_empty() && random.chance(50) {
            self.ends[end].on_its_way.pop_back();
        }
    }

    /// A process ends: its kernel closes what it had open, or its machine is gone.
    pub fn die(&mut self, rank: usize, silent: bool, now: Time, random: &mut Random) {
        if silent {
            self.dark.push(rank);
        }
        let mine = |ranks: Option<usize>| ranks == Some(rank);
        for listener in (0..self.listeners.len())
            .filter(|&at| mine(self.listeners[at].rank))
            .collect::<Vec<_>>()
        {
            self.close_listener(listener, now, random);
        }
        for end in (0..self.ends.len()).filter(|&at| mine(self.ends[at].rank)).collect::<Vec<_>>() {
            self.close(end, now, random);
        }
    }

    /// One of the open connections between two ranks, drawn, ends at both sides.
    pub fn reset(&mut self, ranks: [usize; 2], now: Time, random: &mut Random) {
        let [one, other] = ranks.map(Some);
        let ends: Vec<usize> = (0..self.ends.len())
            .filter(|&at| {
                let (end, peer) = (&self.ends[at], &self.ends[self.ends[at].peer]);
                let is_inside = [end, peer].iter().any(|one| one.local.ip() == INSIDE);
                end.rank == one && peer.rank == other && !(end.closed || peer.closed || is_inside)
            })
            .collect();
        if ends.is_empty() {
            return;
        }
        let end = ends[random.below(ends.len() as u64) as usize];
        for end in [end, self.ends[end].peer] {
            self.lose_last(end, random);
            self.ends[end].on_its_way.push_back((now, Item::Reset));
        }
    }

    pub fn cut(&mut self, from: usize, to: usize, until: Time) {
        self.cuts.push(CutLink { from: Some(from), to: Some(to), until });
    }

    pub fn addresses(&self, end: usize) -> (SocketAddr, SocketAddr) {
        (self.ends[end].local, self.ends[end].remote)
    }

    pub fn set_blocking(&mut self, end: usize, blocking: bool) {
        self.ends[end].blocking = blocking;
    }

    /// How long a call waits on this connection to read, and to write: not at all, or so long.
    pub fn patience(&self, end: usize) -> (Time, Time) {
        let End { blocking, patience, .. } = &self.ends[end];
        match blocking {
            true => (patience.0.unwrap_or(NEVER), patience.1.unwrap_or(NEVER)),
            false => (0, 0),
        }
    }

    pub fn set_patience(
        &mut self,
        end: usize,
        read: Option<Option<Time>>,
        write: Option<Option<Time>>,
    ) {
        let patience = &mut self.ends[end].patience;
        patience.0 = read.unwrap_or(patience.0);
        patience.1 = write.unwrap_or(patience.1);
    }

    /// What of `wanted` a handle is ready for; errors are told unasked.
    pub fn stirs(&self, handle: &Handle, wanted: PollFlags, now: Time) -> PollFlags {
        let mut flags = PollFlags::empty();
        match handle {
            Handle::WakeUp(rung) => flags.set(PollFlags::IN, rung.load(Ordering::Relaxed)),
            Handle::Listener(listener) => {
                let front = self.listeners[*listener].queue.front();
                flags.set(PollFlags::IN, front.is_some_and(|(there, _)| *there <= now));
            }
            Handle::Stream(end) => {
                let own = &self.ends[*end];
                let come = || own.on_its_way.iter().take_while(|(due, _)| *due <= now);
                let reset = own.reset.is_some() || come().any(|(_, item)| *item == Item::Reset);
                let ended = own.ended || own.shut.0 || come().any(|(_, item)| *item == Item::End);
                let readable = !own.here.is_empty() || come().next().is_some() || reset || ended;
                flags.set(PollFlags::IN, readable);
                flags.set(PollFlags::OUT, reset || own.shut.1 || self.free(*end) > 0);
                flags.set(PollFlags::ERR, reset);
                flags.set(PollFlags::HUP, reset || (ended && own.shut.1));
            }
        }
        flags & (wanted | PollFlags::ERR | PollFlags::HUP)
    }

    /// When something more will have come.
    pub fn next_change(&self, handle: &Handle) -> Time {
        match handle {
            Handle::WakeUp(_) => NEVER,
            Handle::Listener(listener) => {
                self.listeners[*listener].queue.front().map_or(NEVER, |(there, _)| *there)
            }
            Handle::Stream(end) => {
                self.ends[*end].on_its_way.front().map_or(NEVER, |(due, _)| *due)
            }
        }
    }
}
