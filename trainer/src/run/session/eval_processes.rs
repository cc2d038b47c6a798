//! Processes of their own that evaluate: how those that train hand them weights, and hear of them.
//!
//! Training waits while the weights are handed over, a piece at a time, and where the metrics are
//! looked at before they are known. What fails on the other side never ends training: the ranks
//! that train evaluate from then on.
//!
//! ```text
//! training      step 32 ── weights, ids ── 33 ── 34 ── …  ── metrics of 32 ── weights, ids ── 65 ── …
//! evaluation                  └────── forward passes, scores sorted and counted ──┘    └─ …
//! ```

use crate::error::{Error, Result, exchange_failed};
use crate::iteration::job::Bridge;
use crate::iteration::model_state::Piece;
use crate::iteration::ranks::RankGroup;
use crate::metrics::{TALLY_WORDS, Tally};
use headlong_comm::{CommError, Rank};
use headlong_embedding::TableSpec;
use headlong_reader::IdMapper;

/// What the process that leads says first, in a [`Head`].
pub(super) mod word {
    /// The data has been prepared: evaluation can prepare its own.
    pub const PREPARED: u64 = 1;
    /// Weights follow.
    pub const EVALUATE: u64 = 2;
    /// Nothing more is to be evaluated.
    pub const END: u64 = 3;
}

/// One of [`word`], the step, bytes of the ids' state, number of tensors.
pub(super) type Head = [u64; 4];

/// The processes that evaluate, as a process that trains knows them.
pub struct EvalProcesses {
    /// Where this process leads.
    bridge: Option<Box<Bridge>>,
}

/// Something that came from the processes that evaluate, or how they were lost.
pub(super) type Heard<T> = std::result::Result<T, String>;

impl EvalProcesses {
    /// Tells those that evaluate to prepare, where this process leads.
    pub fn prepare(bridge: Option<Bridge>) -> Result<Self> {
        if let Some(bridge) = &bridge {
            say(bridge, word::PREPARED).map_err(not_ready)?;
        }
        Ok(Self { bridge: bridge.map(Box::new) })
    }

    /// Waits until they have built the model of `training`.
    ///
    /// # Errors
    /// Their failure; a model that is another one there.
    pub fn wait_until_ready(&self, training: &RankGroup) -> Result<()> {
        let Some(bridge) = &self.bridge else { return Ok(()) };
        let mut theirs = [0];
        bridge.from_evaluator(&mut theirs).map_err(not_ready)?;
        match theirs == [model_number(training)] {
            true => Ok(()),
            false => Err(Error::Usage(
                "the processes that evaluate have planned otherwise: do they read the same data?"
                    .to_owned(),
            )),
        }
    }

    /// Hands over the weights of `training`. All ranks of training call it between the same two
    /// steps, and hear whether all was taken.
    pub(super) fn begin(
        &self,
        training: &RankGroup,
        ids: &IdMapper,
        step: u64,
    ) -> Result<Heard<()>> {
        training.drain()?;
        // Those that are gone already are read nothing for.
        let known = self.bridge.as_ref().map_or(Ok(()), |bridge| bridge.check());
        if let Err(lost) = self.agreed(training, known, &mut [])? {
            return Ok(Err(lost));
        }
        let _busy = training.busy("hands its weights to those that evaluate");
        let (mut ids, mut sent) = (ids.state_bytes(), Ok(()));
        training.read_weights(&mut |piece| {
            // Reading continues where no one listens: for ranks of other processes it is an
            // exchange.
            if let (Some(bridge), Ok(())) = (&self.bridge, &sent) {
                sent = match piece {
                    Piece::Rows(rows) => announce(bridge, step, &mut ids, rows),
                    Piece::Values(values) => bridge.from_leader(values),
                };
            }
        })?;
        self.agreed(training, sent, &mut [])
    }

    /// Waits for the metrics. All ranks of training call it between the same two steps.
    pub(super) fn finish(&self, training: &RankGroup) -> Result<Heard<Tally>> {
        let mut words = [0; TALLY_WORDS];
        let heard = match &self.bridge {
            Some(bridge) => {
                let _busy = training.busy("waits for the processes that evaluate");
                bridge.from_evaluator(&mut words)
            }
            None => Ok(()),
        };
        let heard = self.agreed(training, heard, &mut words)?;
        Ok(heard.map(|()| Tally::from_words(&words)))
    }

    /// What the process that leads has come to, on all: `words` become its own.
    fn agreed(
        &self,
        training: &RankGroup,
        outcome: Result<(), CommError>,
        words: &mut [u64],
    ) -> Result<Heard<()>> {
        let lost = match outcome {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        let mut is_lost = [u64::from(lost.is_some())];
        if let Some(link) = training.link() {
            let told = link.broadcast(Rank(0), &mut is_lost);
            told.and_then(|()| link.broadcast(Rank(0), words))
                .map_err(exchange_failed("the metrics"))?;
        }
        Ok(match is_lost {
            [0] => Ok(()),
            _ => Err(lost.unwrap_or_default()),
        })
    }

    /// Sends them home. One that is lost now has done its work.
    pub(super) fn dismiss(self) {
        if let Some(bridge) = self.bridge {
            dismiss(&bridge);
        }
    }

    /// Tells them that training has failed.
    pub(super) fn abort(&self, error: &Error) {
        if let Some(bridge) = &self.bridge {
            bridge.abort(error);
        }
    }
}

/// Says that weights follow: tensors of `rows` rows.
fn announce(bridge: &Bridge, step: u64, ids: &mut [u8], rows: &mut [u64]) -> Result<(), CommError> {
    let mut head: Head = [word::EVALUATE, step, ids.len() as u64, rows.len() as u64];
    bridge.from_leader(&mut head)?;
    bridge.from_leader(ids)?;
    bridge.from_leader(rows)
}

fn say(bridge: &Bridge, word: u64) -> Result<(), CommError> {
    let mut head: Head = [word, 0, 0, 0];
    bridge.from_leader(&mut head)
}

/// Sends the processes that evaluate home.
pub(crate) fn dismiss(bridge: &Bridge) {
    let _ = say(bridge, word::END).and_then(|()| bridge.close());
}

fn not_ready(error: CommError) -> Error {
    Error::communication("the processes that evaluate did not get ready")(error)
}

/// Equal for models whose weights are of the same shapes.
pub(super) fn model_number(group: &RankGroup) -> u64 {
    let shape = |spec: &TableSpec| (spec.name.clone(), spec.kind.clone(), spec.rows, spec.dim);
    let tables: Vec<_> = group.first().model().tables.specs().iter().map(shape).collect();
    let (model, _) = group.fingerprints();
    xxhash_rust::xxh3::xxh3_64(format!("{model:?} {tables:?}").as_bytes())
}
