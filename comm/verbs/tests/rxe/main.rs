//! The checks of `cargo xtask rxe`: what runs in its guest, over real NICs' interface.
//!
//! ```text
//! rxe list
//!     every device that libibverbs has
//! rxe raw DEVICE PEER
//!     all that a NIC does, from one device to another of this machine
//! rxe job STEPS DEVICE PEER
//!     jobs of four ranks on two "nodes", each with its device
//! rxe rails DEVICE PEER | --fake
//!     rails between four devices of the software device, on two "nodes", each with its NIC
//! rxe part STEPS NODE HOST DEVICE
//!     the two ranks of node 0 or 1 of such a job on two machines
//! ```
//!
//! With the feature `verbs-linked`, `rxe linked DEVICE PEER` has the crate `ibverbs` as its
//! peer.
//!
//! Every check prints a line that begins with `TEST ok` or `TEST FAIL`. Exit code 0 when none
//! failed, 2 for wrong usage.

mod cable;
mod job;
#[cfg(feature = "verbs-linked")]
mod linked;
mod rails;
mod rank;
mod raw;

use headlong_verbs::nic::Provider as _;
use headlong_verbs::sys::Verbs;
use rank::RankSettings;
use std::process::ExitCode;

const USAGE: &str = "rxe list | raw DEVICE PEER | job STEPS DEVICE PEER | rails DEVICE PEER | \
                     rails --fake | part STEPS NODE HOST DEVICE";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words.as_slice() {
        ["list"] => list(),
        ["raw", device, peer] => raw::run(device, peer),
        ["job", steps, device, peer] => match steps.parse() {
            Ok(steps) => job::run(steps, [device, peer]),
            Err(_) => Err(format!("STEPS is a number, not {steps}")),
        },
        ["rails", "--fake"] => rails::run(&rails::Nics::Fake),
        ["rails", device, peer] => rails::run(&rails::Nics::Devices([device, peer])),
        ["part", steps, node, host, device] => match (steps.parse(), node.parse()) {
            (Ok(steps), Ok(node @ 0..=1)) => job::run_part(steps, node, host, device),
            _ => Err(format!("STEPS is a number and NODE 0 or 1, not {steps} and {node}")),
        },
        #[cfg(feature = "verbs-linked")]
        ["linked", device, peer] => linked::run(device, peer),
        // What `job` starts.
        ["rank", rest @ ..] => match RankSettings::parse(rest) {
            Some((settings, device)) => return rank::run(&settings, device),
            None => Err(format!("rank: {rest:?}")),
        },
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("TEST FAIL {reason}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<(), String> {
    let verbs = Verbs::open().map_err(|error| error.to_string())?;
    println!("{} from {}", verbs.name(), verbs.path().display());
    for device in verbs.devices().map_err(|error| error.to_string())? {
        println!("{device:#?}");
    }
    Ok(())
}
