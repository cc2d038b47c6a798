//! One message to one rank, one from another.

use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::topology::Rank;
use crate::transport::{Incoming, Outgoing};
use zerocopy::IntoBytes;

impl Communicator {
    /// Sends `send` to rank `to` while `recv` is filled by rank `from`. All ranks call it, each
    /// receiving what it is sent; none: this rank sends or receives nothing. To and from oneself it
    /// is a copy.
    ///
    /// # Panics
    /// When a rank sends to itself and receives from another, or the other way round.
    pub fn send_receive<T: Element>(
        &self,
        send: Option<(Rank, &[T])>,
        recv: Option<(Rank, &mut [T])>,
    ) -> Result<()> {
        let me = self.rank();
        let mut call = self.call(Collective::SendReceive, T::CODE, Algorithm::Direct, 0);
        match (send, recv) {
            (Some((to, send)), Some((from, recv))) if to == me && from == me => {
                recv.copy_from_slice(send);
                Ok(())
            }
            (send, recv) => {
                let (mut outgoing, mut incoming) =
                    (call.lists().outgoing(), call.lists().incoming());
                let send = send.map(|(to, data)| Outgoing { to, bytes: data.as_bytes() });
                let recv = recv.map(|(from, data)| Incoming { from, bytes: data.as_mut_bytes() });
                let with_itself = send.as_ref().is_some_and(|message| message.to == me)
                    || recv.as_ref().is_some_and(|message| message.from == me);
                assert!(!with_itself, "a rank that sends to itself also receives from itself");
                outgoing.extend(send);
                incoming.extend(recv);
                call.exchange(outgoing, incoming)
            }
        }
    }
}
