//! What the other ranks say goes to standard error, each line with its rank: standard output is
//! rank 0's alone.

use crate::report::Bar;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::thread::JoinHandle;

/// A line longer than this is cut in two.
const LONGEST_LINE: u64 = 64 << 10;

/// Starts a thread that hands on what comes from a rank's pipe, until it ends.
pub fn forward(rank: usize, pipe: impl Read + Send + 'static) -> Option<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(format!("output-{rank}"));
    thread.spawn(move || copy_lines(rank, pipe)).ok()
}

fn copy_lines(rank: usize, pipe: impl Read) {
    let mut reader = BufReader::new(pipe);
    let (mut line, begin) = (Vec::new(), format!("{}[rank {rank}] ", Bar::way_off()));
    loop {
        line.clear();
        line.extend_from_slice(begin.as_bytes());
        let before = line.len();
        match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(_) if line.len() > before => {}
            _ => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // No one listening is no failure of the rank.
        let _ = std::io::stderr().lock().write_all(&line);
    }
}
