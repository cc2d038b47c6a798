//! Weight gradients during the data gradients, on the side stream.

use headlong_device::cuda::Event;
use headlong_device::{Result, Stream};
use std::sync::{Arc, OnceLock};

/// The events of one stack: one for each layer, and one for the end. Made by the first backward
/// pass with a side stream.
#[derive(Debug, Clone, Default)]
pub struct SideStream {
    events: Arc<OnceLock<Vec<Event>>>,
}

/// One backward pass with a side stream.
#[derive(Debug)]
pub struct Running<'a> {
    stream: &'a Stream,
    side_stream: Stream,
    events: &'a [Event],
}

impl SideStream {
    /// A pass over `layers` layers, where the stream has a side stream.
    pub fn begin<'a>(&'a self, stream: &'a Stream, layers: usize) -> Option<Running<'a>> {
        let side_stream = stream.side_stream()?;
        let cuda = stream.as_cuda()?;
        let make = || (0..=layers).map(|_| Event::new(cuda.device())).collect::<Result<Vec<_>>>();
        let events = match self.events.get() {
            Some(events) => events,
            None => match make() {
                Ok(events) => self.events.get_or_init(|| events),
                Err(error) => {
                    cuda.fail(error);
                    return None;
                }
            },
        };
        Some(Running { stream, side_stream, events })
    }
}

impl Running<'_> {
    /// The side stream, after it waits for all that the stream has been given so far: the gradient
    /// of layer `index`.
    pub fn fork(&self, index: usize) -> &Stream {
        self.stream.cuda_body().record(&self.events[index]);
        self.side_stream.cuda_body().wait(&self.events[index]);
        &self.side_stream
    }

    /// Lets the stream wait for the side stream, and keeps the side stream's failure as its own.
    pub fn join(self) {
        let (stream, side) = (self.stream.cuda_body(), self.side_stream.cuda_body());
        if let Some(end) = self.events.last() {
            side.record(end);
            stream.wait(end);
        }
        if let Err(error) = side.check() {
            stream.fail(error);
        }
    }
}
