//! What ranks tell their launcher about whose fault it was: those that have lost another rank know
//! which, their exit code does not.
//!
//! The launcher holds a pipe; a rank that ends in an error opens it under the launcher's number in
//! `/proc` and writes one line, as much as is written at once. Where there is no `/proc`, the
//! launcher judges by exit codes, as it does where no rank knows more.

use crate::error::{Error, comm_error};
use headlong_comm::readable::readable;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
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

pub struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Pipe {
    /// A pipe that no child inherits.
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        Ok(Self { reader, writer })
    }

    pub fn variable(&self) -> (&'static str, String) {
        (PIPE, self.writer.as_raw_fd().to_string())
    }

    /// What all ranks have told, the first first. They have ended: no one else holds the pipe.
    pub fn read(self) -> Vec<Named> {
        drop(self.writer);
        let lines = BufReader::new(self.reader.take(MOST_BYTES)).lines();
        lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect()
    }
}

/// Tells the launcher `launcher` whom this rank has lost, if that is what its error says. What
/// cannot be told is no further error.
pub fn tell(launcher: i32, pipe: &str, error: &Error) {
    let Some(named) = named(error) else { return };
    let Ok(number) = pipe.parse::<u32>() else { return };
    // Without waiting: a launcher that reads nothing must not hold up a rank.
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let Ok(mut pipe) = options.open(format!("/proc/{launcher}/fd/{number}")) else { return };
    let is_pipe = pipe.metadata().is_ok_and(|facts| facts.file_type().is_fifo());
    if let (true, Ok(mut line)) = (is_pipe, serde_json::to_vec(&named)) {
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
        let pipe = Pipe::new().unwrap();
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
        assert_eq!(pipe.read(), [named.clone(), named]);
    }
}
