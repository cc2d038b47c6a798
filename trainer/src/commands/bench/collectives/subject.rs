//! What the loop of measurements calls: buffers of one operation, one type and one size.

use super::known::Known;
use super::operation::{Case, Operation, Place};
use headlong_comm::{Communicator, Result};
use headlong_device::copy::copy;

pub trait Subject {
    /// Writes known numbers into everything that is sent.
    fn fill(&mut self, place: Place) -> Result<()>;

    /// Writes zeros into what a call in place adds up again and again, so that the numbers stay
    /// numbers.
    fn prepare(&mut self, place: Place) -> Result<()>;

    /// Calls the operation and waits until its result is there.
    fn call(&mut self, place: Place) -> Result<()>;

    /// Counts this rank's wrong elements after [`Subject::fill`] and one call.
    fn wrong(&mut self, place: Place) -> Result<u64>;
}

pub struct HostBuffers<'c, T> {
    communicator: &'c Communicator,
    case: Case,
    send: Vec<T>,
    recv: Vec<T>,
    /// Of calls in place.
    data: Vec<T>,
    send_counts: Vec<usize>,
    recv_counts: Vec<usize>,
}

impl<'c, T: Known> HostBuffers<'c, T> {
    /// Buffers for a case. Every page is written once: memory that no one has written costs nothing
    /// to read.
    pub fn new(communicator: &'c Communicator, case: Case) -> Self {
        let zeros = |len| vec![T::default(); len];
        let counts = |of: &dyn Fn(usize) -> usize| (0..case.ranks).map(of).collect();
        let mut made = Self {
            communicator,
            case,
            send: zeros(case.send_len()),
            recv: zeros(case.recv_len()),
            data: zeros(case.size_len()),
            send_counts: counts(&|to| case.uneven(case.me, to)),
            recv_counts: counts(&|from| case.uneven(from, case.me)),
        };
        case.fill(&mut made.send);
        case.fill(&mut made.recv);
        case.fill(&mut made.data);
        made
    }

    /// This rank's part of the buffer of a call in place.
    fn own_part(&self) -> std::ops::Range<usize> {
        let part = self.data.len() / self.case.ranks;
        self.case.me * part..(self.case.me + 1) * part
    }

    fn call_out_of_place(&mut self) -> Result<()> {
        let Self { communicator, case, send, recv, send_counts, recv_counts, .. } = self;
        match case.operation {
            Operation::AllReduce => {
                copy(send, recv);
                communicator.all_reduce(recv)
            }
            Operation::ReduceScatter => communicator.reduce_scatter(send, recv),
            Operation::AllGather => communicator.all_gather(send, recv),
            Operation::Broadcast => {
                if case.me == case.root.0 {
                    copy(send, recv);
                }
                communicator.broadcast(case.root, recv)
            }
            Operation::AllToAll => communicator.all_to_all(send, recv),
            Operation::AllToAllV => communicator.all_to_all_v(send, send_counts, recv, recv_counts),
            Operation::SendReceive => {
                let (next, previous) = case.neighbours();
                communicator.send_receive(Some((next, &send[..])), Some((previous, &mut recv[..])))
            }
            Operation::Barrier => communicator.barrier(),
        }
    }

    /// Where the library's own form is out of place, the copy that an application would have to
    /// make is part of the call.
    fn call_in_place(&mut self) -> Result<()> {
        let own = self.own_part();
        let Self { communicator, case, send, recv, data, send_counts, recv_counts } = self;
        match case.operation {
            Operation::AllReduce => communicator.all_reduce(data),
            Operation::Broadcast => communicator.broadcast(case.root, data),
            Operation::ReduceScatter => {
                communicator.reduce_scatter(data, recv)?;
                copy(recv, &mut data[own]);
                Ok(())
            }
            Operation::AllGather => {
                copy(&data[own], send);
                communicator.all_gather(send, data)
            }
            Operation::AllToAll => {
                copy(data, send);
                communicator.all_to_all(send, data)
            }
            Operation::AllToAllV => {
                copy(data, send);
                communicator.all_to_all_v(send, send_counts, data, recv_counts)
            }
            Operation::SendReceive => {
                copy(data, send);
                let (next, previous) = case.neighbours();
                communicator.send_receive(Some((next, &send[..])), Some((previous, &mut data[..])))
            }
            Operation::Barrier => communicator.barrier(),
        }
    }
}

impl<T: Known> Subject for HostBuffers<'_, T> {
    fn fill(&mut self, place: Place) -> Result<()> {
        let own = self.own_part();
        match (place, self.case.operation) {
            (Place::Out, _) => self.case.fill(&mut self.send),
            (Place::In, Operation::AllGather) => self.case.fill(&mut self.data[own]),
            (Place::In, _) => self.case.fill(&mut self.data),
        }
        // What was right in the last call must not pass for a result of the next.
        self.recv.fill(T::of(99));
        Ok(())
    }

    fn prepare(&mut self, place: Place) -> Result<()> {
        if place == Place::In {
            self.data.fill(T::default());
        }
        Ok(())
    }

    fn call(&mut self, place: Place) -> Result<()> {
        match place {
            Place::Out => self.call_out_of_place(),
            Place::In => self.call_in_place(),
        }
    }

    fn wrong(&mut self, place: Place) -> Result<u64> {
        let own = self.own_part();
        Ok(match (place, self.case.operation) {
            (Place::Out, _) => self.case.wrong(&self.recv),
            (Place::In, Operation::ReduceScatter) => self.case.wrong(&self.data[own]),
            (Place::In, _) => self.case.wrong(&self.data),
        })
    }
}
