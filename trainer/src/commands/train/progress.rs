//! Rates and shares between two lines of progress.

use crate::report::{Eval, Scaling, Step};
use crate::run::session::{Enqueued, Session};
use std::time::{Duration, Instant};

/// What has happened since a moment: losses, samples, waiting.
struct Window {
    since: Instant,
    loss_sum: f64,
    loss_samples: u64,
    samples: u64,
    wait_before: Duration,
    evaluated_before: Duration,
}

impl Window {
    fn new(session: &Session) -> Self {
        Self {
            since: Instant::now(),
            loss_sum: 0.0,
            loss_samples: 0,
            samples: 0,
            wait_before: session.data_wait(),
            evaluated_before: session.evaluation_time(),
        }
    }
}

/// Adds up what happens between two `step` events, and between two looks at the bar.
pub struct Meter {
    begun: Instant,
    samples_before: u64,
    logged: Window,
    shown: Window,
    learning_rate: f64,
    last_eval: Option<Eval>,
    scaling: Option<Scaling>,
}

impl Meter {
    pub fn new(session: &Session) -> Self {
        Self {
            begun: Instant::now(),
            samples_before: session.samples(),
            logged: Window::new(session),
            shown: Window::new(session),
            learning_rate: 0.0,
            last_eval: None,
            scaling: None,
        }
    }

    /// Counts a step, and the losses that have come meanwhile.
    pub fn add(&mut self, step: &Enqueued, session: &Session) {
        self.learning_rate = step.learning_rate;
        for window in [&mut self.logged, &mut self.shown] {
            window.samples += step.num_samples;
        }
        self.add_losses(session);
    }

    fn add_losses(&mut self, session: &Session) {
        session.take_losses(&mut |step| {
            for window in [&mut self.logged, &mut self.shown] {
                window.loss_sum += step.loss * step.num_samples as f64;
                window.loss_samples += step.num_samples as u64;
            }
            self.scaling = step.scaling.map(|state| Scaling {
                loss_scale: f64::from(state.scale),
                skipped_steps: state.num_skipped,
            });
        });
    }

    pub fn evaluated(&mut self, eval: Eval) {
        self.last_eval = Some(eval);
    }

    pub fn last_eval(&self) -> Option<Eval> {
        self.last_eval
    }

    /// The steps since the last report.
    pub fn report(&mut self, session: &Session) -> Step {
        self.add_losses(session);
        let window = std::mem::replace(&mut self.logged, Window::new(session));
        self.rates(&window, session)
    }

    /// The steps since the last look; `None` where the loss of none of them is known.
    pub fn look(&mut self, session: &Session) -> Option<Step> {
        self.add_losses(session);
        if self.shown.loss_samples == 0 {
            return None;
        }
        let window = std::mem::replace(&mut self.shown, Window::new(session));
        Some(self.rates(&window, session))
    }

    fn rates(&self, window: &Window, session: &Session) -> Step {
        let seconds = window.since.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let (waited, evaluated) = (session.data_wait(), session.evaluation_time());
        Step {
            loss: window.loss_sum / window.loss_samples.max(1) as f64,
            learning_rate: self.learning_rate,
            samples_per_s: window.samples as f64 / seconds,
            data_wait_share: share(waited.saturating_sub(window.wait_before), seconds),
            eval_share: share(evaluated.saturating_sub(window.evaluated_before), seconds),
            scaling: self.scaling,
        }
    }

    /// Seconds since the meter was made.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Samples a second since the meter was made, evaluations and checkpoints included.
    pub fn samples_per_s(&self, session: &Session) -> f64 {
        let seconds = self.seconds().max(f64::MIN_POSITIVE);
        (session.samples() - self.samples_before) as f64 / seconds
    }

    /// Share of the time since the meter was made in which training stood still for evaluations.
    pub fn eval_share(&self, session: &Session) -> f64 {
        share(session.evaluation_time(), self.seconds().max(f64::MIN_POSITIVE))
    }

    /// Which part of the run is done: by steps where their number is known, else by bytes of the
    /// files.
    pub fn fraction(
        &self,
        session: &Session,
        ends_at_step: Option<u64>,
        epochs: f64,
    ) -> Option<f64> {
        if let Some(end) = ends_at_step {
            return Some(session.steps() as f64 / end.max(1) as f64);
        }
        Some((session.position().epoch as f64 + session.of_epoch()?) / epochs)
    }
}

fn share(part: Duration, seconds: f64) -> f64 {
    (part.as_secs_f64() / seconds).min(1.0)
}
