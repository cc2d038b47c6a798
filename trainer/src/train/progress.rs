//! Rates and shares between two lines of progress.

use crate::report::{Eval, Scaling, Step};
use crate::session::{Enqueued, Session};
use headlong_reader::Reader as _;
use std::time::{Duration, Instant};

/// Adds up what happens between two `step` events.
pub struct Meter {
    begun: Instant,
    samples_before: u64,
    since: Instant,
    loss_sum: f64,
    loss_samples: u64,
    samples: u64,
    learning_rate: f64,
    wait_before: Duration,
    evaluated_before: Duration,
    last_eval: Option<Eval>,
    scaling: Option<Scaling>,
}

impl Meter {
    /// A meter that starts now.
    pub fn new(session: &Session) -> Self {
        Self {
            begun: Instant::now(),
            samples_before: session.samples(),
            since: Instant::now(),
            loss_sum: 0.0,
            loss_samples: 0,
            samples: 0,
            learning_rate: 0.0,
            wait_before: session.data_wait(),
            evaluated_before: session.evaluation_time(),
            last_eval: None,
            scaling: None,
        }
    }

    /// Counts a step, and the losses that have come meanwhile.
    pub fn add(&mut self, step: &Enqueued, session: &Session) {
        self.samples += step.num_samples;
        self.learning_rate = step.learning_rate;
        self.add_losses(session);
    }

    fn add_losses(&mut self, session: &Session) {
        session.take_losses(&mut |step| {
            self.loss_sum += step.loss * step.num_samples as f64;
            self.loss_samples += step.num_samples as u64;
            self.scaling = step.scaling.map(|state| Scaling {
                loss_scale: f64::from(state.scale),
                skipped_steps: state.num_skipped,
            });
        });
    }

    /// Keeps an evaluation.
    pub fn evaluated(&mut self, eval: Eval) {
        self.last_eval = Some(eval);
    }

    /// The last evaluation.
    pub fn last_eval(&self) -> Option<Eval> {
        self.last_eval
    }

    /// The steps since the last report, which it starts anew.
    pub fn report(&mut self, session: &Session) -> Step {
        let seconds = self.since.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let (waited, evaluated) = (session.data_wait(), session.evaluation_time());
        self.add_losses(session);
        let step = Step {
            loss: self.loss_sum / self.loss_samples.max(1) as f64,
            learning_rate: self.learning_rate,
            samples_per_s: self.samples as f64 / seconds,
            data_wait_share: share(waited.saturating_sub(self.wait_before), seconds),
            eval_share: share(evaluated.saturating_sub(self.evaluated_before), seconds),
            scaling: self.scaling,
        };
        (self.since, self.wait_before, self.evaluated_before) = (Instant::now(), waited, evaluated);
        (self.loss_sum, self.loss_samples, self.samples) = (0.0, 0, 0);
        step
    }

    /// Samples a second since the meter was made, evaluations and checkpoints included.
    pub fn samples_per_s(&self, session: &Session) -> f64 {
        let seconds = self.begun.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        (session.samples() - self.samples_before) as f64 / seconds
    }

    /// Share of the time since the meter was made in which training stood still for evaluations.
    pub fn eval_share(&self, session: &Session) -> f64 {
        share(session.evaluation_time(), self.begun.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
    }

    /// Which part of the run is done: by steps where their number is known, else by bytes of the files.
    pub fn fraction(&self, session: &Session, ends_at_step: Option<u64>, epochs: f64) -> Option<f64> {
        if let Some(end) = ends_at_step {
            return Some(session.steps() as f64 / end.max(1) as f64);
        }
        let progress = session.reader().progress();
        let of_epoch = progress.stored_bytes_read as f64 / progress.stored_bytes.max(1) as f64;
        Some((session.position().epoch as f64 + of_epoch) / epochs)
    }
}

fn share(part: Duration, seconds: f64) -> f64 {
    (part.as_secs_f64() / seconds).min(1.0)
}
