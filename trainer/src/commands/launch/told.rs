//! What ranks tell their launcher: those that have lost another rank know which, their exit code
//! does not; those that only evaluate end no training.
//!
//! The launcher holds a pipe; a rank that ends in an error opens it under the launcher's number in
//! `/proc` and writes one line, as much as is written at once. Where there is no `/proc`, the
//! launcher judges by exit codes, as it does where no rank knows more.

use crate::error::{Error, comm_error};
use headlong_comm::readable::readable;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

/// The variable that names the pipe: the number of the launcher's descriptor.
pub const PIPE: &str = "HEADLONG_LAUNCHER_PIPE";

/// Lines that are read; more ranks than that say nothing new.
const MOST_BYTES: u64 = 64 << 10;

/// A rank that was lost, as another has seen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub culprit: usize,
    pub error: String,
}

/// A line of the pipe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Told {
    Lost(Named),
    /// This rank only evaluates, and training has begun.
    Evaluates {
        evaluates: usize,
    },
}

pub struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
    heard: Vec<u8>,
}

impl Pipe {
    /// A pipe that no child inherits.
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok(Self { reader, writer, heard: Vec::new() })
    }

    pub fn variable(&self) -> (&'static str, String) {
        (PIPE, self.writer.as_raw_fd().to_string())
    }

    /// What all ranks have told so far, the first first.
    fn told(&mut self) -> Vec<Told> {
        let most = MOST_BYTES - self.heard.len() as u64;
        // There is nothing to read where nothing was told.
        let _ = (&self.reader).take(most).read_to_end(&mut self.heard);
        let lines = self.heard.split(|&byte| byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// Whom ranks have lost, the first first.
    pub fn lost(&mut self) -> Vec<Named> {
        let lost = |told| match told {
            Told::Lost(named) => Some(named),
            Told::Evaluates { .. } => None,
        };
        self.told().into_iter().filter_map(lost).collect()
    }

    /// Ranks whose end is not that of training.
    pub fn evaluating(&mut self) -> Vec<usize> {
        let evaluating = |told| match told {
            Told::Evaluates { evaluates } => Some(evaluates),
            Told::Lost(_) => None,
        };
        self.told().into_iter().filter_map(evaluating).collect()
    }
}

/// Tells the launcher `launcher` whom this rank has lost, if that is what its error says. What
/// cannot be told is no further error.
pub fn tell(launcher: i32, pipe: &str, error: &Error) {
    if let Some(named) = named(error) {
        write(launcher, pipe, &Told::Lost(named));
    }
}

/// Tells the launcher `launcher` that this rank, `rank`, only evaluates.
pub fn tell_role(launcher: i32, pipe: &str, rank: usize) {
    write(launcher, pipe, &Told::Evaluates { evaluates: rank });
}

fn write(launcher: i32, pipe: &str, told: &Told) {
    let Ok(number) = pipe.parse::<u32>() else { return };
    // Without waiting: a launcher that reads nothing must not hold up a rank.
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let Ok(mut pipe) = options.open(format!("/proc/{launcher}/fd/{number}")) else { return };
    let is_pipe = pipe.metadata().is_ok_and(|facts| facts.file_type().is_fifo());
    if let (true, Ok(mut line)) = (is_pipe, serde_json::to_vec(told)) {
        line.push(b'\n');
        let _ = pipe.write_all(&line);
    }
}

fn named(error: &Error) -> Option<Named> {
    let lost = comm_error(error)?;
    Some(Named { culprit: lost.culprit()?.0, error: readable(&lost.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_comm::{CommError, Rank};

    #[test]
    fn what_a_rank_tells_its_launcher_reads() {
        let mut pipe = Pipe::new().unwrap();
        assert_eq!((pipe.lost(), pipe.evaluating()), (Vec::new(), Vec::new()));
        let number = pipe.variable().1;
        let launcher = std::process::id() as i32;
        let lost =
            CommError::PeerLost { culprit: Rank(2), seen_by: Rank(0), reason: "x\ny".into() };
        tell(launcher, &number, &Error::communication("saving")(lost.clone()));
        tell(launcher, &number, &Error::failed("the checkpoint was not saved")(lost));
        tell(launcher, &number, &Error::Usage("no one is lost".into()));
        tell(launcher, "no number", &Error::Usage("no one is lost".into()));
        let error = "rank 2 is gone: x\\ny (seen from rank 0)".to_owned();
        let named = Named { culprit: 2, error };
        tell_role(launcher, &number, 3);
        assert_eq!(pipe.evaluating(), [3]);
        assert_eq!(pipe.lost(), [named.clone(), named]);
    }
}
