//! A part from each to each, flat or hierarchical, as the plans say.

use crate::communicator::{Call, Communicator};
use crate::element::{Element, Lane};
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::options::{AllToAll, Compress};
use crate::plan::{Message, Place, Plan, flat, hierarchical};
use crate::scratch::{Carver, Scratch};
use crate::transport::{Incoming, Outgoing};
use half::{bf16, f16};
use headlong_device::copy::copy;
use zerocopy::IntoBytes;

impl Communicator {
    /// Equal parts: part r of `send` goes to rank r, part r of `recv` comes from rank r.
    ///
    /// # Panics
    /// When `send` and `recv` are not equally long, or not a multiple of the number of ranks.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let ranks = self.num_ranks();
        assert_eq!(send.len(), recv.len(), "all_to_all: as much comes as leaves");
        assert!(
            send.len().is_multiple_of(ranks),
            "all_to_all: {} elements for {ranks} ranks",
            send.len()
        );
        let part = send.len() / ranks;
        let mut call = self.call(Collective::AllToAll, T::CODE, self.way(), 0);
        let mut counts = std::mem::take(&mut call.memory().equal);
        counts.clear();
        counts.resize(ranks, part);
        let known = Known { send: &counts, recv: &counts, equal: Some(part) };
        let (send, recv) = (send.as_bytes(), recv.as_mut_bytes());
        call.all_to_all(self.way(), known, send, recv, size_of::<T>())?;
        call.memory().equal = counts;
        Ok(())
    }

    /// Parts of any size: `send` holds what goes to each rank, `send_counts[r]` elements to rank r,
    /// one part after the other; `recv` is filled likewise with `recv_counts[r]` elements from rank
    /// r. Counts may be 0.
    ///
    /// Flat or hierarchical as [`CommOptions::all_to_all`](crate::CommOptions) says, with the same
    /// result. Where [`CommOptions::compress`](crate::CommOptions) says so, f32 travels as bf16 or
    /// f16.
    ///
    /// # Errors
    /// The job's first error; two ranks that disagree about the size of a part are one.
    ///
    /// # Panics
    /// When the counts do not add up to the lengths, there is not one for each rank, or this rank's
    /// two counts for itself differ.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        if let Some((send, recv)) = T::as_f32(send).zip(T::as_f32_mut(recv)) {
            match self.options().compress {
                Compress::None => {}
                Compress::Bf16 => {
                    return self.all_to_all_v_narrow::<bf16>(send, send_counts, recv, recv_counts);
                }
                Compress::F16 => {
                    return self.all_to_all_v_narrow::<f16>(send, send_counts, recv, recv_counts);
                }
            }
        }
        let mut call = self.call(Collective::AllToAllV, T::CODE, self.way(), 0);
        let known = self.known((send.len(), send_counts), (recv.len(), recv_counts));
        call.all_to_all(self.way(), known, send.as_bytes(), recv.as_mut_bytes(), size_of::<T>())
    }

    /// As [`Self::all_to_all_v`], of numbers that need the range of f32: what would travel as f16
    /// there travels as bf16.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`].
    ///
    /// # Panics
    /// As [`Self::all_to_all_v`].
    pub fn all_to_all_v_in_full_range(
        &self,
        send: &[f32],
        send_counts: &[usize],
        recv: &mut [f32],
        recv_counts: &[usize],
    ) -> Result<()> {
        match self.options().compress {
            Compress::F16 => self.all_to_all_v_narrow::<bf16>(send, send_counts, recv, recv_counts),
            Compress::None | Compress::Bf16 => {
                self.all_to_all_v(send, send_counts, recv, recv_counts)
            }
        }
    }

    fn all_to_all_v_narrow<T: Lane<Sum = f32>>(
        &self,
        send: &[f32],
        send_counts: &[usize],
        recv: &mut [f32],
        recv_counts: &[usize],
    ) -> Result<()> {
        let mut call = self.call(Collective::AllToAllV, T::CODE, self.way(), 0);
        let known = self.known((send.len(), send_counts), (recv.len(), recv_counts));
        let mut narrow_send = std::mem::take(&mut call.memory().narrow_send);
        let mut narrow_recv = std::mem::take(&mut call.memory().narrow_recv);
        let from: &mut [T] = narrow_send.elements(send.len());
        let into: &mut [T] = narrow_recv.elements(recv.len());
        T::store(send, from);
        call.all_to_all(self.way(), known, from.as_bytes(), into.as_mut_bytes(), size_of::<T>())?;
        T::load(into, recv);
        call.memory().narrow_send = narrow_send;
        call.memory().narrow_recv = narrow_recv;
        Ok(())
    }

    fn way(&self) -> Algorithm {
        match self.options().all_to_all {
            AllToAll::Flat => Algorithm::Direct,
            AllToAll::Hierarchical => Algorithm::Hierarchical,
            AllToAll::Auto if hierarchical::is_useful(self.topology()) => Algorithm::Hierarchical,
            AllToAll::Auto => Algorithm::Direct,
        }
    }

    fn known<'a>(&self, send: (usize, &'a [usize]), recv: (usize, &'a [usize])) -> Known<'a> {
        let (ranks, me) = (self.num_ranks(), self.rank());
        for (what, (len, counts)) in [("sent to", send), ("received from", recv)] {
            assert_eq!(counts.len(), ranks, "all_to_all_v: one count for each rank");
            assert_eq!(
                counts.iter().sum::<usize>(),
                len,
                "all_to_all_v: counts of elements {what} all ranks"
            );
        }
        assert_eq!(
            send.1[me.0], recv.1[me.0],
            "all_to_all_v: what a rank sends to itself it receives"
        );
        Known { send: send.1, recv: recv.1, equal: None }
    }
}

#[derive(Clone, Copy)]
struct Known<'a> {
    send: &'a [usize],
    recv: &'a [usize],
    /// All parts of all ranks have this size.
    equal: Option<usize>,
}

impl Call<'_> {
    /// Plans and carries out; `size` bytes make an element.
    fn all_to_all(
        &mut self,
        way: Algorithm,
        known: Known<'_>,
        send: &[u8],
        recv: &mut [u8],
        size: usize,
    ) -> Result<()> {
        let mut plan = std::mem::take(self.plan());
        match way {
            Algorithm::Hierarchical => self.plan_hierarchical(known, &mut plan)?,
            _ => flat::plan(self.me(), known.send, known.recv, &mut plan),
        }
        self.carry_out(&plan, send, recv, size)?;
        *self.plan() = plan;
        Ok(())
    }

    /// A carrier must know how much each rank of its node has for the ranks it carries for: these
    /// counts go first.
    fn plan_hierarchical(&mut self, known: Known<'_>, plan: &mut Plan) -> Result<()> {
        let (topology, me) = (self.topology(), self.me());
        let peers = topology.ranks_of(topology.node_of(me));
        let num_carried = hierarchical::carried_by(topology, me).count();
        let mut words = std::mem::take(&mut self.memory().carried);
        words.clear();
        words.resize(peers.len() * num_carried, known.equal.unwrap_or(0) as u64);
        if known.equal.is_none() {
            self.exchange_counts(known.send, &mut words)?;
        }
        let mut carried = std::mem::take(&mut self.memory().carried_counts);
        carried.clear();
        carried.extend(words.iter().map(|&count| count as usize));
        let counts = hierarchical::Counts { send: known.send, recv: known.recv, carried: &carried };
        hierarchical::plan(topology, me, counts, plan);
        let memory = self.memory();
        (memory.carried, memory.carried_counts) = (words, carried);
        Ok(())
    }

    fn exchange_counts(&mut self, send: &[usize], carried: &mut [u64]) -> Result<()> {
        let (topology, me) = (self.topology(), self.me());
        let peers = topology.ranks_of(topology.node_of(me));
        let for_carrier =
            |peer| hierarchical::carried_by(topology, peer).map(|to| send[to.0] as u64);
        let mut told = std::mem::take(&mut self.memory().told);
        told.clear();
        told.extend(peers.iter().flat_map(|&peer| for_carrier(peer)));
        let (mut outgoing, mut incoming) = (self.lists().outgoing(), self.lists().incoming());
        let mut rest = told.as_slice();
        let mut rows = carried.chunks_exact_mut((carried.len() / peers.len()).max(1));
        for &peer in peers {
            let (row, tail) = rest.split_at(for_carrier(peer).count());
            let into = rows.next().unwrap_or_default();
            rest = tail;
            match peer == me {
                true => into.copy_from_slice(row),
                false => {
                    outgoing.push(Outgoing { to: peer, bytes: row.as_bytes() });
                    incoming.push(Incoming { from: peer, bytes: into.as_mut_bytes() });
                }
            }
        }
        self.exchange(outgoing, incoming)?;
        self.memory().told = told;
        Ok(())
    }

    fn carry_out(&mut self, plan: &Plan, send: &[u8], recv: &mut [u8], size: usize) -> Result<()> {
        let (from, into, len) = plan.own;
        copy(&send[from * size..][..len * size], &mut recv[into * size..][..len * size]);
        let mut staged = std::mem::take(&mut self.memory().staged);
        let mut packed = std::mem::take(&mut self.memory().packed);
        let mut landed = std::mem::take(&mut self.memory().landed);
        for step in 0..plan.num_steps() {
            // Only the last step writes what the caller receives, and only steps before it stage.
            let staged = staged.bytes(plan.staged * size);
            let is_last = step + 1 == plan.num_steps();
            match is_last {
                true => {
                    self.step(plan, step, size, (send, staged), recv, (&mut packed, &mut landed))?
                }
                false => {
                    self.step(plan, step, size, (send, &[]), staged, (&mut packed, &mut landed))?
                }
            }
        }
        let memory = self.memory();
        (memory.staged, memory.packed, memory.landed) = (staged, packed, landed);
        Ok(())
    }

    fn step(
        &mut self,
        plan: &Plan,
        step: usize,
        size: usize,
        (send, staged): (&[u8], &[u8]),
        into: &mut [u8],
        (packed, landed): (&mut Scratch, &mut Scratch),
    ) -> Result<()> {
        let source = |place: Place| if place == Place::Send { send } else { staged };
        let packed = pack(plan, plan.outgoing(step), size, source, packed);
        let (mut outgoing, mut incoming) = (self.lists().outgoing(), self.lists().incoming());
        let mut rest = packed;
        for message in plan.outgoing(step) {
            let bytes = match plan.pieces(message) {
                [] => &[],
                [one] => &source(one.place)[one.at * size..][..one.len * size],
                _ => rest.split_off(..message.len * size).unwrap_or_default(),
            };
            outgoing.push(Outgoing { to: message.peer, bytes });
        }
        let scattered = |message: &&Message| plan.pieces(message).len() > 1;
        let num_landed: usize =
            plan.incoming(step).iter().filter(scattered).map(|message| message.len).sum();
        let mut direct = Carver::new(into);
        let mut landing = Carver::new(landed.bytes(num_landed * size));
        let mut at = 0;
        for message in plan.incoming(step) {
            let bytes = match plan.pieces(message) {
                [] => &mut [],
                [one] => direct.take(one.at * size, one.len * size),
                _ => landing.take(at, message.len * size),
            };
            at += if plan.pieces(message).len() > 1 { message.len * size } else { 0 };
            incoming.push(Incoming { from: message.peer, bytes });
        }
        self.exchange(outgoing, incoming)?;
        scatter(plan, plan.incoming(step), size, landed.bytes(num_landed * size), into);
        Ok(())
    }
}

fn pack<'a, 'b>(
    plan: &Plan,
    messages: &[Message],
    size: usize,
    source: impl Fn(Place) -> &'b [u8],
    packed: &'a mut Scratch,
) -> &'a [u8] {
    let several =
        || messages.iter().map(|message| plan.pieces(message)).filter(|pieces| pieces.len() > 1);
    let len: usize = several().flatten().map(|piece| piece.len).sum();
    let packed = packed.bytes(len * size);
    let mut at = 0;
    for piece in several().flatten() {
        let bytes = &source(piece.place)[piece.at * size..][..piece.len * size];
        copy(bytes, &mut packed[at..][..bytes.len()]);
        at += bytes.len();
    }
    packed
}

fn scatter(plan: &Plan, messages: &[Message], size: usize, landed: &[u8], into: &mut [u8]) {
    let several =
        messages.iter().map(|message| plan.pieces(message)).filter(|pieces| pieces.len() > 1);
    let mut at = 0;
    for piece in several.flatten() {
        let len = piece.len * size;
        copy(&landed[at..][..len], &mut into[piece.at * size..][..len]);
        at += len;
    }
}
