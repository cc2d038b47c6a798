//! Our layer against the crate `ibverbs`, which is linked with the library: each is the other's
//! peer.

use crate::cable::End;
use headlong_verbs::nic::{Action, CompletionKind, Endpoint, Provider as _, Receive, Remote};
use headlong_verbs::sys::{Verbs, compare_with_crate};
use std::time::{Duration, Instant};

/// Bytes of a message: several packets.
const BYTES: usize = 5000;
const ROUNDS: u8 = 100;

/// Compares declarations; sends to and fro between `device` (ours) and `peer` (theirs), then writes
/// and reads at theirs one-sidedly.
pub fn run(device: &str, peer: &str) -> Result<(), String> {
    let (structs, constants) = compare_with_crate()?;
    println!("{structs} structs and {constants} constants are as the crate has them");
    let list = ibverbs::devices().map_err(text)?;
    let found = list
        .iter()
        .find(|found| found.name().is_some_and(|name| name.to_bytes() == peer.as_bytes()));
    let context =
        found.ok_or_else(|| format!("the crate finds no {peer}"))?.open().map_err(text)?;
    let is_ipv4 =
        |gid: &ibverbs::Gid| gid.subnet_prefix() == 0 && gid.interface_id() >> 32 == 0xffff;
    let gid = context
        .gid_table()
        .iter()
        .find(|entry| is_ipv4(&entry.gid))
        .ok_or("the crate finds no IPv4 address")?;
    let queue = context.create_cq(16, 0).map_err(text)?;
    let domain = context.alloc_pd().map_err(text)?;

    let mut ours =
        End::new(Verbs::open().map_err(text)?.open(device).map_err(text)?, None).map_err(text)?;
    let own = ours.endpoint();
    let mut builder = domain.create_qp(&queue, &queue, ibverbs::ibv_qp_type::IBV_QPT_RC);
    builder.set_gid_index(gid.gid_index).allow_remote_rw().set_timeout(19).set_rnr_retry(7);
    let prepared = builder
        .set_rq_psn(own.first_packet)
        .set_path_mtu(ibverbs_sys::IBV_MTU_1024)
        .build()
        .map_err(text)?;
    let theirs = prepared.endpoint();
    let bytes = gid
        .gid
        .subnet_prefix()
        .to_be_bytes()
        .into_iter()
        .chain(gid.gid.interface_id().to_be_bytes());
    let mut peer =
        Endpoint { lid: theirs.lid, gid: [0; 16], queue_pair: theirs.num, first_packet: 0 };
    peer.gid.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    ours.connect_to(&peer, 19, 7).map_err(text)?;
    let our_gid = ibverbs_sys::ibv_gid { raw: own.gid };
    let endpoint =
        ibverbs::QueuePairEndpoint { num: own.queue_pair, lid: own.lid, gid: Some(our_gid.into()) };
    let pair = prepared.handshake(endpoint).map_err(text)?;

    let memory = domain.allocate::<u8>(BYTES).map_err(text)?;
    let mut theirs = Theirs { queue: &queue, pair, memory };
    to_and_fro(&mut ours, &mut theirs)?;
    one_sided(&mut ours, &theirs)
}

/// The crate's end.
///
/// Note: fields end in this order.
struct Theirs<'a, 'of> {
    pair: ibverbs::QueuePair<'of>,
    queue: &'a ibverbs::CompletionQueue<'of>,
    memory: ibverbs::MemoryRegion<u8>,
}

impl Theirs<'_, '_> {
    /// Sends all of its memory.
    fn send(&mut self) -> Result<(), String> {
        // SAFETY: the memory lives, and is not touched before the completion.
        unsafe { self.pair.post_send(&mut self.memory, .., 2) }.map_err(text)?;
        self.completed("a send of theirs")
    }

    /// Receives into all of its memory; to be completed.
    fn receive(&mut self) -> Result<(), String> {
        self.memory.fill(0);
        // SAFETY: as above.
        unsafe { self.pair.post_receive(&mut self.memory, .., 3) }.map_err(text)
    }

    fn completed(&self, what: &str) -> Result<(), String> {
        let begin = Instant::now();
        let mut found = [ibverbs::ibv_wc::default(); 4];
        while begin.elapsed() < Duration::from_secs(60) {
            if let Some(completion) = self.queue.poll(&mut found).map_err(text)?.first() {
                return completion
                    .error()
                    .map_or(Ok(()), |error| Err(format!("{what}: {error:?}")));
            }
        }
        Err(format!("{what}: the crate has no completion"))
    }
}

/// Each sends what the other has to have.
fn to_and_fro(ours: &mut End, theirs: &mut Theirs<'_, '_>) -> Result<(), String> {
    for round in 0..ROUNDS {
        let byte = |at: usize| (at as u8).wrapping_mul(7).wrapping_add(round);
        let receive = Receive { id: 1, segment: Some(ours.segment(100, BYTES)) };
        ours.pair.post_receives(&[receive]).map_err(text)?;
        theirs.memory.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
        theirs.send()?;
        let came = ours.success()?;
        let is_right =
            ours.bytes()[100..100 + BYTES].iter().enumerate().all(|(at, found)| *found == byte(at));
        if (came.kind, came.bytes as usize, is_right) != (CompletionKind::Received, BYTES, true) {
            return Err(format!("round {round}: what came from theirs is wrong: {came:?}"));
        }
        theirs.receive()?;
        ours.post(Action::Send, vec![ours.segment(100, BYTES)], false).map_err(text)?;
        ours.success()?;
        theirs.completed("a receive of theirs")?;
        if theirs.memory.iter().enumerate().any(|(at, found)| *found != byte(at)) {
            return Err(format!("round {round}: what came from ours is wrong"));
        }
    }
    println!(
        "TEST ok   linked: {ROUNDS} messages of {BYTES} bytes to and fro between ours and the \
         crate ibverbs"
    );
    Ok(())
}

/// Ours writes and reads what the crate has registered; the crate cannot.
fn one_sided(ours: &mut End, theirs: &Theirs<'_, '_>) -> Result<(), String> {
    let memory = &theirs.memory;
    let at = Remote { address: memory.as_ptr() as u64, key: memory.rkey().key };
    ours.fill(|at| at as u8 ^ 0x3c);
    ours.post(Action::Write(at), vec![ours.segment(0, BYTES)], false).map_err(text)?;
    ours.success()?;
    ours.post(Action::Read(at), vec![ours.segment(BYTES, BYTES)], false).map_err(text)?;
    ours.success()?;
    let bytes = ours.bytes();
    let is_right = memory[..] == bytes[..BYTES] && bytes[BYTES..2 * BYTES] == bytes[..BYTES];
    if !is_right {
        return Err("a write and a read at theirs".to_owned());
    }
    println!("TEST ok   linked: ours writes and reads memory that the crate has registered");
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
