//! A time after which the whole step is over, whatever it is doing.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process;

#[derive(Clone, Copy)]
pub struct Limit {
    begin: Instant,
    all: Duration,
}

impl Limit {
    pub fn new(all: Duration) -> Self {
        Self { begin: Instant::now(), all }
    }

    pub fn left(&self) -> Duration {
        self.all.saturating_sub(self.begin.elapsed())
    }

    /// Seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Fails where the time is over.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.left().is_zero() {
            bail!("the step's limit of {:.0} s is over while {what}", self.all.as_secs_f64());
        }
        Ok(())
    }

    /// Runs a command with its output on ours, and ends it when the time is over; whether it
    /// succeeded.
    pub fn show(&self, what: &str, command: Command) -> Result<bool> {
        let success = process::show_within(self.left(), command)?;
        if !success {
            self.check(what)?;
        }
        Ok(success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_never_ends_is_ended_and_named() {
        let limit = Limit::new(Duration::from_millis(200));
        assert!(limit.show("counting", shell("exit 0")).unwrap());
        assert!(!limit.show("counting", shell("exit 3")).unwrap());
        let error =
            limit.show("waiting for nothing", shell("exec sleep 100")).unwrap_err().to_string();
        assert!(error.contains("while waiting for nothing"), "{error}");
        assert!(limit.seconds() < 50.0 && limit.left().is_zero());
    }
}
