//! Weight gradients beside the data gradients, on the stream's companion.

use headlong_device::cuda::Event;
use headlong_device::{Result, Stream};
use std::sync::{Arc, OnceLock};

/// The events of one stack: one for each layer, and one for the end. Made by the first backward
/// pass with a companion.
#[derive(Debug, Clone, Default)]
pub struct Aside {
    events: Arc<OnceLock<Vec<Event>>>,
}

/// One backward pass with a companion.
#[derive(Debug)]
pub struct Running<'a> {
    stream: &'a Stream,
    companion: Stream,
    events: &'a [Event],
}

impl Aside {
    /// A pass over `layers` layers, where the stream has a companion.
    pub fn begin<'a>(&'a self, stream: &'a Stream, layers: usize) -> Option<Running<'a>> {
        let companion = stream.companion()?;
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
        Some(Running { stream, companion, events })
    }
}

impl Running<'_> {
    /// The companion, once it waits for all that the stream has been given so far: the gradient of
    /// layer `index`.
    pub fn fork(&self, index: usize) -> &Stream {
        self.stream.cuda_body().record(&self.events[index]);
        self.companion.cuda_body().wait(&self.events[index]);
        &self.companion
    }

    /// Lets the stream wait for the companion, and keeps the companion's failure as its own.
    pub fn join(self) {
        let (stream, companion) = (self.stream.cuda_body(), self.companion.cuda_body());
        if let Some(end) = self.events.last() {
            companion.record(end);
            stream.wait(end);
        }
        if let Err(error) = companion.check() {
            stream.fail(error);
        }
    }
}
