//! What peers and launchers say: frames while a job comes together, words on control connections,
//! heads of messages, endpoints of NICs and of UCX, variables. All in memory.

use super::{Files, Outcome, Subject, as_it_is, damage_text, one, texts};
use crate::entries::{control_stream, rendezvous_frame};
use crate::mutate;
use crate::random::Random;
use headlong_comm::launcher_env::{self, Environment, Place};
use headlong_comm::transport::choose::word_again;
use headlong_comm::transport::head::Head;
use headlong_ucx::introduction_again;
use headlong_verbs::{header_again, info_again};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

macro_rules! seeds {
    ($($file:literal),+) => {
        Ok(vec![$(vec![(
            "frame".to_owned(),
            include_bytes!(concat!("../../../fuzz/seeds/", $file)).to_vec(),
        )]),+])
    };
}

/// The handshake, whose proofs are computed for every input, and control frames.
pub const FRAMES: Subject = Subject {
    name: "frames",
    bound_mib: 16,
    good: |_| {
        seeds!(
            "rendezvous_frame/claim",
            "rendezvous_frame/control",
            "rendezvous_frame/hello",
            "rendezvous_frame/verdict"
        )
    },
    damage: damage_frame,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        rendezvous_frame(&files[0].1);
        Ok(())
    },
};

/// A stream of control frames alone; its first byte says in which pieces it comes.
pub const CONTROL: Subject = Subject {
    name: "control",
    bound_mib: 16,
    good: |_| seeds!("rendezvous_frame/control"),
    damage: damage_frame,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| match files[0].1.split_first() {
        Some((&piece, bytes)) if control_stream(bytes, usize::from(piece)) > 0 => Ok(()),
        _ => Err("no frame is whole".to_owned()),
    },
};

/// Heads of messages, strip headers and endpoints of verbs, introductions of UCX, and what ranks
/// say of themselves; the first byte says which.
pub const HEADS: Subject = Subject {
    name: "heads",
    bound_mib: 16,
    good: |_| seeds!("heads/head", "heads/strip", "heads/info", "heads/word", "heads/introduction"),
    damage: damage_frame,
    seal: as_it_is,
    on_disk: false,
    read: read_head,
};

pub const LAUNCHER: Subject = Subject {
    name: "launcher",
    bound_mib: 16,
    good: |_| seeds!("launcher/headlong", "launcher/slurm", "launcher/torchrun"),
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: read_environment,
};

/// Damage to bytes or to text, the first byte mostly left as it is.
fn damage_frame(good: &[Files], random: &mut Random) -> Files {
    let mut files = one(good, random);
    let bytes = &mut files[0].1;
    let first = bytes[0];
    match random.below(3) {
        0 => mutate::text(bytes, &texts(good), random),
        _ => mutate::bytes(bytes, random),
    }
    if let Some(byte) = bytes.first_mut().filter(|_| !random.once_in(8)) {
        *byte = first;
    }
    files
}

fn read_head(_: &Path, files: &Files) -> Outcome {
    let Some((&choice, bytes)) = files[0].1.split_first() else {
        return Err("nothing".to_owned());
    };
    let again: fn(&[u8]) -> Result<Vec<u8>, String> = match choice & 7 {
        0 => {
            let magic = *b"hlg1";
            let head = bytes.first_chunk().and_then(|bytes| Head::from_bytes(bytes, magic));
            let head = head.ok_or("no head")?;
            assert_eq!(head.to_bytes(magic), bytes[..32]);
            assert!(!head.to_string().is_empty());
            return Ok(());
        }
        1 => |bytes| header_again(bytes).ok_or_else(|| "no strip header".to_owned()),
        2 => info_again,
        4 => introduction_again,
        _ => word_again,
    };
    let bytes = again(bytes)?;
    assert_eq!(again(&bytes).as_ref(), Ok(&bytes), "what was read is written and read again");
    Ok(())
}

/// A line for each variable, `NAME=VALUE`.
fn read_environment(_: &Path, files: &Files) -> Outcome {
    let lines = files[0].1.split(|&byte| byte == b'\n');
    let variable = |line: &[u8]| {
        let place = line.iter().position(|&byte| byte == b'=')?;
        let name = String::from_utf8(line[..place].to_vec()).ok()?;
        Some((name, OsString::from_vec(line[place + 1..].to_vec())))
    };
    let environment: Environment = lines.filter_map(variable).collect();
    match launcher_env::parse(&environment) {
        Ok(Place::Rank(launch)) => {
            assert!(launch.rank.0 < launch.world_size && launch.master_port > 0);
            let (rank, size) = (launch.local_rank, launch.local_size);
            assert!(rank.zip(size).is_none_or(|(rank, size)| rank < size));
            assert!(size.is_none_or(|size| size <= launch.world_size));
            assert!(!launch.master_host.is_empty());
            Ok(())
        }
        Ok(Place::Single { .. }) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            assert!(
                environment.keys().any(|name| text.contains(name)) || text.contains("HEADLONG_"),
                "it names no variable: {text}"
            );
            Err(text)
        }
    }
}
