//! Who is let in where a job has no secret: processes of the same user, as far as the system can
//! tell who that is.
//!
//! Both ends of a connection inside one machine are in the kernel's table of connections, with the
//! user who has opened them (`/proc/net/tcp`). From another machine comes nothing of the kind:
//! there a job has a secret, or its user says that it needs none.

use super::proof::Secret;
use crate::error::{CommError, Result};
use crate::launcher_env::{Launch, Remark};
use crate::system::TcpStream;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// What a process has to show at a listener.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The job's secret.
    pub secret: Secret,
    /// What is asked for where that is none.
    pub trust: Trust,
}

impl Keys {
    /// Reads the secret of a job, and decides what is asked for where there is none.
    ///
    /// # Errors
    /// [`CommError::Setting`]: a secret that cannot be used; none, where other machines can reach
    /// rank 0 and `insecure` does not say that this is meant.
    pub fn of(launch: &Launch, insecure: bool) -> Result<Self> {
        let secret = Secret::load(&launch.secret, &launch.job)?;
        let trust = Trust::of(launch, &secret, insecure)?;
        Ok(Self { secret, trust })
    }
}

/// What a process has to show to become a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// That it knows the job's secret.
    Secret,
    /// That its user is this process's, on this machine.
    SameUser,
    /// Nothing.
    Anybody,
}

impl Trust {
    /// What this job's ranks ask of each other.
    ///
    /// # Errors
    /// [`CommError::Setting`] where there is no secret, other machines can reach rank 0, and no one
    /// has said that this is meant.
    pub fn of(launch: &Launch, secret: &Secret, insecure: bool) -> Result<Self> {
        if secret.is_real() || launch.world_size == 1 {
            return Ok(Trust::Secret);
        }
        let why = match is_loopback(&launch.master_host, launch.master_port) {
            true if owners_are_known() => return Ok(Trust::SameUser),
            true => "the system does not say whose processes connect (/proc/net/tcp)".to_owned(),
            false => {
                format!("rank 0 is at {}, where other machines can reach it", launch.master_host)
            }
        };
        if insecure {
            return Ok(Trust::Anybody);
        }
        let reason = format!(
            "is not set, and {why}: anybody could join the job. `headlong launch` makes one for \
             ranks of one machine; for several, write a secret into a file (umask 077; head -c 32 \
             /dev/urandom | base64 > FILE) and set HEADLONG_SECRET_FILE=FILE on all ranks; in a \
             network that you trust, --insecure (comm.insecure = true) does without"
        );
        Err(CommError::Setting { setting: "HEADLONG_SECRET".into(), reason })
    }

    /// What a careful user wants to know.
    pub fn remark(self, launch: &Launch) -> Option<Remark> {
        let Launch { master_host, master_port, .. } = launch;
        match self {
            Trust::Secret => None,
            Trust::SameUser => Some(Remark {
                text: "no secret is set: any process of this user on this machine can join the job"
                    .into(),
                is_suspect: false,
            }),
            Trust::Anybody => Some(Remark {
                text: format!(
                    "no secret is set, as asked for (--insecure): anyone who can reach \
                     {master_host}:{master_port} can join the job, read its rows and change its \
                     weights"
                ),
                is_suspect: true,
            }),
        }
    }

    /// Looks at the process at the other end of a connection.
    ///
    /// # Errors
    /// Whose it is, where it is not this user's.
    pub fn check(self, stream: &TcpStream) -> Result<(), String> {
        if self != Trust::SameUser {
            return Ok(());
        }
        let own = rustix::process::geteuid().as_raw();
        match owner_of_peer(stream) {
            Some(owner) if owner == own => Ok(()),
            Some(owner) => Err(format!("it is a process of user {owner}, expected user {own}")),
            None => Err("the system does not say whose process it is".into()),
        }
    }
}

/// Whether only this machine can reach that address. What cannot be resolved is taken for another
/// machine's.
fn is_loopback(host: &str, port: u16) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let addresses =
        (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback())
}

fn owners_are_known() -> bool {
    std::fs::read("/proc/self/net/tcp").is_ok()
}

fn owner_of_peer(stream: &TcpStream) -> Option<u32> {
    let (here, there) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let table = if there.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    owner_in(&std::fs::read_to_string(table).ok()?, there, here)
}

fn owner_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (in_table(local), in_table(remote));
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Number, both addresses, state, queues, timer, retransmits, user.
    let mut found =
        rows.filter(|row| row.get(1) == Some(&&*local) && row.get(2) == Some(&&*remote));
    found.find_map(|row| row.get(7)?.parse().ok())
}

/// An address as the kernel's table has it: words of 32 bits in hexadecimal, as the processor
/// stores them, and the port.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words =
        octets.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher_env::{Launcher, SecretSource};
    use crate::topology::Rank;
    use std::net::TcpListener;

    fn launch(host: &str) -> Launch {
        Launch {
            launcher: Launcher::Torchrun,
            rank: Rank(0),
            world_size: 2,
            local_rank: None,
            local_size: None,
            master_host: host.into(),
            master_port: 29577,
            job: "job".into(),
            secret: SecretSource::None,
            remarks: Vec::new(),
        }
    }

    #[test]
    fn beyond_this_machine_a_job_needs_a_secret_or_a_word() {
        let load = |source| Secret::load(&source, "job").unwrap();
        let (none, some) =
            (load(SecretSource::None), load(SecretSource::Value(b"sixteen or more bytes".into())));
        for host in ["10.0.0.7", "node-a.invalid", "::", "0.0.0.0"] {
            let text = Trust::of(&launch(host), &none, false).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("HEADLONG_SECRET: is not set, and rank 0 is at {host}")),
                "{text}"
            );
            for way_out in ["`headlong launch`", "HEADLONG_SECRET_FILE", "--insecure"] {
                assert!(text.contains(way_out), "{text}");
            }
            assert_eq!(Trust::of(&launch(host), &some, false), Ok(Trust::Secret));
            let trust = Trust::of(&launch(host), &none, true).unwrap();
            let remark = trust.remark(&launch(host)).unwrap();
            assert!(
                trust == Trust::Anybody && remark.is_suspect && remark.text.contains("--insecure")
            );
        }
        for host in ["127.0.0.1", "127.3.2.1", "::1", "localhost"] {
            assert_eq!(Trust::of(&launch(host), &none, false), Ok(Trust::SameUser), "{host}");
            assert!(!Trust::SameUser.remark(&launch(host)).unwrap().is_suspect);
        }
    }

    #[test]
    fn the_system_says_whose_process_is_at_the_other_end() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let host = listener.accept().unwrap().0;
            assert_eq!(
                (owner_of_peer(&peer), owner_of_peer(&host)),
                (Some(own), Some(own)),
                "{address}"
            );
            assert_eq!(Trust::SameUser.check(&host), Ok(()));
        }
        assert!(owners_are_known());
    }

    #[test]
    fn another_users_connection_is_found_in_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                     uid  timeout inode\n\
                     0: 0100007F:7389 0100007F:C1B2 01 00000000:00000000 00:00000000 00000000  \
                     1000        0 1 1 0\n\
                     1: 0100007F:C1B2 0100007F:7389 01 00000000:00000000 00:00000000 00000000 \
                     65534        0 2 1 0\n";
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (host, peer) = (address(0x7389), address(0xc1b2));
        if cfg!(target_endian = "little") {
            assert_eq!(owner_in(table, peer, host), Some(65534));
            assert_eq!(owner_in(table, host, peer), Some(1000));
        }
        assert_eq!(owner_in(table, address(1), host), None);
    }
}
