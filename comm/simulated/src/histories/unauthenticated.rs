//! Processes that connect to the ports of a job and do not belong to it.

use crate::rendezvous::handshake::{HELLO_BYTES, MAGIC};
use crate::system::{TcpStream, listening, sleep};
use crate::testing::sim::Random;
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// A few visits.
pub fn work(seed: u64) {
    let mut random = Random::new(seed ^ 0x5747);
    for _ in 0..random.between(1, 6) {
        sleep(Duration::from_micros(random.below(400_000)));
        let places = listening();
        if places.is_empty() {
            continue;
        }
        let place = places[random.below(places.len() as u64) as usize];
        let Ok(stream) = TcpStream::connect_timeout(&place, Duration::from_secs(1)) else {
            continue;
        };
        // Each of these may be cut off by the other side.
        let _ = visit(&mut random, stream);
    }
}

fn visit(random: &mut Random, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    match random.below(5) {
        0 => stream.write_all(&[0xff; 400]),
        1 => {
            for byte in MAGIC {
                stream.write_all(&[byte])?;
                sleep(Duration::from_millis(random.below(100)));
            }
            Ok(())
        }
        2 => {
            stream.read_exact(&mut [0; HELLO_BYTES])?;
            stream.write_all(&[&MAGIC[..], &[7; 304]].concat())?;
            stream.read_exact(&mut [0; 1])
        }
        3 => {
            sleep(Duration::from_millis(random.below(3000)));
            Ok(())
        }
        _ => Ok(()),
    }
}
