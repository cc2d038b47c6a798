//! The peer's side: connect to a listener and prove oneself, again and again until a deadline.

use super::channel::Channel;
use super::deadlines::Notice;
use super::handshake::{self, Asking, Claims, HELLO_BYTES, Purpose, VERDICT_BYTES};
use super::listener::is_out_of_descriptors;
use super::trust::Keys;
use super::waiting::{LOOPBACK_DOWN, Waiting, is_loopback_down};
use crate::error::{CommError, Result};
use crate::system::{Instant, TcpStream, sleep};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

/// A listener that closes without a word after this many complete proofs does not know our secret.
const PROOFS_BEFORE_GIVING_UP: u32 = 5;
/// For an answer that has come when the time for it is over.
const LAST_LOOK: Duration = Duration::from_millis(1);
/// First and longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Whom to dial and until when.
#[expect(missing_docs, reason = "the names say it")]
pub struct Dial<'a> {
    pub host: &'a str,
    pub port: u16,
    /// What the listener is called in messages: `rank 0`.
    pub name: &'a str,
    pub purpose: Purpose,
    pub rank: usize,
    /// What to prove, and what to ask for.
    pub keys: &'a Keys,
    pub deadline: Instant,
    /// Longest wait for one answer.
    pub patience: Duration,
    /// Hears when it takes long.
    pub notice: Option<&'a Notice>,
}

enum Failure {
    /// The host's name cannot be resolved.
    Name(String),
    /// Not there yet, or lost: try again.
    Again(String),
    /// Closed after our proof, without a word.
    Unproven,
    /// It will not get better.
    Final(CommError),
}

/// A connection on which both sides have proven themselves.
pub struct Welcome {
    /// The connection, blocking.
    pub stream: TcpStream,
    /// Where it was found.
    pub address: SocketAddr,
    /// Its keys.
    pub channel: Channel,
}

impl Dial<'_> {
    /// Visits until admitted. `claims` says what this rank is, given the connection; it is asked
    /// again for each attempt. `check` ends the attempts early.
    ///
    /// # Errors
    /// [`CommError::Refused`] with the host's reason; [`CommError::Rendezvous`] when the deadline
    /// passes.
    pub fn connect(
        &self,
        claims: &mut dyn FnMut(&TcpStream) -> Result<Claims>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Welcome> {
        let mut pause = PAUSES.0;
        let mut unproven = 0;
        let mut waiting = Waiting::begin(self.notice);
        loop {
            check()?;
            let (last, is_name) = match self.try_all(claims) {
                Ok(welcome) => return Ok(welcome),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Unproven) => {
                    unproven += 1;
                    ("it closed the connection after this rank's proof".to_string(), false)
                }
                Err(Failure::Name(reason)) => (reason, true),
                Err(Failure::Again(reason)) => (reason, false),
            };
            waiting.failed(&self.place(), &last, is_name);
            if unproven == PROOFS_BEFORE_GIVING_UP {
                return Err(self.wrong_secret());
            }
            if Instant::now() + pause >= self.deadline {
                return Err(self.unreachable(&last));
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn place(&self) -> String {
        format!("{} at {}:{}", self.name, self.host, self.port)
    }

    fn wrong_secret(&self) -> CommError {
        let reason = format!(
            "{} does not accept this rank's proof: the secrets differ, or another job listens \
             there",
            self.place()
        );
        CommError::Refused { rank: self.rank.to_string(), reason }
    }

    fn of_another(&self, reason: &str) -> CommError {
        let reason = format!(
            "{} is not of this job: {reason}; HEADLONG_MASTER_PORT chooses another port, and a job \
             of several users needs a secret",
            self.place()
        );
        CommError::Rendezvous { reason }
    }

    fn unreachable(&self, last: &str) -> CommError {
        CommError::Rendezvous { reason: format!("{} cannot be reached: {last}", self.place()) }
    }

    fn try_all(
        &self,
        claims: &mut dyn FnMut(&TcpStream) -> Result<Claims>,
    ) -> Result<Welcome, Failure> {
        let unknown = |error: io::Error| Failure::Name(format!("the name is not known ({error})"));
        let addresses: Vec<SocketAddr> =
            (self.host, self.port).to_socket_addrs().map_err(unknown)?.collect();
        let mut last = Failure::Name("the name has no address".into());
        for address in addresses {
            match self.try_one(address, claims) {
                Err(Failure::Again(reason)) => last = Failure::Again(reason),
                done => return done,
            }
        }
        Err(last)
    }

    fn try_one(
        &self,
        address: SocketAddr,
        claims: &mut dyn FnMut(&TcpStream) -> Result<Claims>,
    ) -> Result<Welcome, Failure> {
        let again = |error: io::Error| match is_out_of_descriptors(&error) {
            true => Failure::Final(CommError::Setting {
                setting: "ulimit -n".into(),
                reason: format!("is too low: no descriptor is left to connect to {}", self.place()),
            }),
            false => Failure::Again(error.to_string()),
        };
        let left =
            self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let patience = self.patience.min(left);
        let mut stream =
            TcpStream::connect_timeout(&address, patience).map_err(
                |error| match is_loopback_down(address) {
                    true => Failure::Final(self.unreachable(LOOPBACK_DOWN)),
                    false => again(error),
                },
            )?;
        if stream.local_addr().ok() == Some(address) {
            // The system may connect a local port to itself where nothing listens.
            return Err(Failure::Again("nothing listens there".into()));
        }
        stream.set_nodelay(true).map_err(again)?;
        stream.set_write_timeout(Some(patience)).map_err(again)?;
        let until = Instant::now() + patience;
        let mut hello = [0; HELLO_BYTES];
        read_until(&mut stream, &mut hello, until).map_err(silence)?;
        if !handshake::is_hello(&hello, self.purpose) {
            let reason = match handshake::is_of_another_version(&hello) {
                true => "it speaks another version of this protocol: do all ranks run one build?",
                false => "something else listens there: it does not speak this protocol",
            };
            return Err(Failure::Again(reason.into()));
        }
        self.keys
            .trust
            .check(&stream)
            .map_err(|reason| Failure::Final(self.of_another(&reason)))?;
        let claims = claims(&stream).map_err(Failure::Final)?;
        let (asking, frame) =
            Asking::claim(&self.keys.secret, &hello, &claims).map_err(Failure::Final)?;
        stream.write_all(&frame).map_err(again)?;
        let channel = self.hear_verdict(&mut stream, asking, until)?;
        stream.set_read_timeout(None).map_err(again)?;
        Ok(Welcome { stream, address, channel })
    }

    fn hear_verdict(
        &self,
        stream: &mut TcpStream,
        asking: Asking,
        until: Instant,
    ) -> Result<Channel, Failure> {
        let closed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => silence(error),
            _ => Failure::Unproven,
        };
        let mut head = [0; VERDICT_BYTES];
        read_until(stream, &mut head, until).map_err(closed)?;
        if head == handshake::FULL {
            return Err(Failure::Again("too many connections wait there".into()));
        }
        let length = handshake::verdict_length(&head)
            .ok_or_else(|| Failure::Again("something else listens there".into()))?;
        let mut message = vec![0; length];
        read_until(stream, &mut message, until).map_err(closed)?;
        match asking.read_verdict(&head, &message) {
            Ok(channel) => Ok(channel),
            Err(Some(reason)) => {
                Err(Failure::Final(CommError::Refused { rank: self.rank.to_string(), reason }))
            }
            Err(None) => Err(Failure::Final(self.wrong_secret())),
        }
    }
}

fn silence(error: io::Error) -> Failure {
    Failure::Again(match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "it listens, but says nothing".into()
        }
        io::ErrorKind::UnexpectedEof => {
            "it closes the connection without a word: something else may listen there".into()
        }
        _ => error.to_string(),
    })
}

/// Fills `room` before `until`: a host that sends a byte now and then does not stretch the time.
/// What has come by then is taken, too: a process that was stopped finds an answer that is there.
pub fn read_until(stream: &mut TcpStream, room: &mut [u8], until: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < room.len() {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(LAST_LOOK)))?;
        match stream.read(&mut room[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => filled += received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::proof::Secret;
    use super::super::trust::Trust;
    use super::*;
    use std::net::TcpListener;

    fn visit_one_that_says(answer: &'static [u8], tries: u32) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = std::thread::spawn(move || {
            for _ in 0..tries {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&handshake::hello(Purpose::Data, &[1; 32])).unwrap();
                stream.read_exact(&mut [0; handshake::CLAIM_BYTES]).unwrap();
                stream.write_all(answer).unwrap();
            }
        });
        let dial = Dial {
            host: "127.0.0.1",
            port,
            name: "rank 0",
            purpose: Purpose::Data,
            rank: 1,
            keys: &Keys { secret: Secret::of_key([2; 32]), trust: Trust::Secret },
            deadline: Instant::now() + Duration::from_secs(20),
            patience: Duration::from_secs(5),
            notice: None,
        };
        let visits = std::cell::Cell::new(0);
        let check = || match visits.replace(visits.get() + 1) {
            seen if seen == tries => Err(CommError::Rendezvous { reason: "enough".into() }),
            _ => Ok(()),
        };
        let error = dial.connect(&mut |_| Ok(Claims::default()), &check).err().expect("no job");
        host.join().unwrap();
        error.to_string()
    }

    /// A rank that was stopped while an answer came is not one that got none.
    #[test]
    fn an_answer_that_is_there_is_read_when_its_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut host = listener.accept().unwrap().0;
        host.write_all(b"here").unwrap();
        here.peek(&mut [0; 4]).unwrap();
        let mut room = [0; 4];
        let over = Instant::now();
        read_until(&mut here, &mut room, over).unwrap();
        assert_eq!(&room, b"here");
        let error = read_until(&mut here, &mut room, over).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }

    /// A host whose table is full says so: that is no wrong secret, however often it is heard.
    #[test]
    fn one_that_has_no_place_is_visited_again() {
        let tries = PROOFS_BEFORE_GIVING_UP + 2;
        assert!(visit_one_that_says(&handshake::FULL, tries).ends_with("enough"));
        let text = visit_one_that_says(b"", PROOFS_BEFORE_GIVING_UP);
        assert!(text.contains("does not accept this rank's proof"), "{text}");
    }
}
