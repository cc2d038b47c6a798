//! What a user hears while a process waits for its job: at once that a name is not known, soon that
//! no rank answers.

use super::deadlines::Notice;
use crate::system::Instant;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Until the first word about a host that does not answer, and between two of them.
const WORDS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

pub struct Waiting<'a> {
    notice: Option<&'a Notice>,
    begin: Instant,
    next: Instant,
    has_said_name: bool,
}

impl<'a> Waiting<'a> {
    pub fn begin(notice: Option<&'a Notice>) -> Self {
        let begin = Instant::now();
        Self { notice, begin, next: begin + WORDS.0, has_said_name: false }
    }

    pub fn failed(&mut self, what: &str, reason: &str, is_name: bool) {
        let Some(notice) = self.notice else { return };
        let now = Instant::now();
        let is_news = is_name && !self.has_said_name;
        self.has_said_name |= is_name;
        if is_news || now >= self.next {
            self.next = now + WORDS.1;
            let seconds = now.duration_since(self.begin).as_secs();
            notice(&format!("{what}: {reason}; tried again ({seconds} s so far)"));
        }
    }
}

/// Whether nothing leads to a loopback address: then this machine, or this container, has no
/// loopback interface that is up, and waiting does not help.
pub fn is_loopback_down(address: SocketAddr) -> bool {
    let any: IpAddr = match address.ip() {
        ip if !ip.is_loopback() => return false,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Note: this sends nothing; the system only looks for a way.
    let route = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address));
    route.is_err_and(|error| error.kind() == std::io::ErrorKind::NetworkUnreachable)
}

pub const LOOPBACK_DOWN: &str =
    "this machine has no loopback interface that is up: as root, `ip link set lo up`";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn an_unknown_name_is_said_once_and_at_once() {
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&said);
        let notice: Notice =
            Arc::new(move |text: &str| heard.lock().unwrap().push(text.to_owned()));
        let mut waiting = Waiting::begin(Some(&notice));
        waiting.failed("rank 0 at x:1", "refused", false);
        assert!(said.lock().unwrap().is_empty(), "not yet");
        waiting.failed("rank 0 at x:1", "the name is not known", true);
        waiting.failed("rank 0 at x:1", "the name is not known", true);
        waiting.next = Instant::now();
        waiting.failed("rank 0 at x:1", "refused", false);
        let words = |reason| format!("rank 0 at x:1: {reason}; tried again (0 s so far)");
        assert_eq!(*said.lock().unwrap(), [words("the name is not known"), words("refused")]);
    }

    #[test]
    fn a_loopback_that_is_up_is_found() {
        assert!(!is_loopback_down(([127, 0, 0, 1], 1).into()));
        assert!(!is_loopback_down(([192, 0, 2, 1], 1).into()), "no loopback address at all");
    }
}
