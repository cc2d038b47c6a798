//! The slot protocol over the fabric of this process, driven by seeds in one thread: a failure is a
//! number.

mod faults;
mod flow;
mod states;

use super::choose::choose;
use super::connect::Site;
use super::fake::{Fabric, NetworkModel};
use super::hub::Hub;
use super::path::VerbsPath;
use super::settings::{Signal, VerbsSettings};
use faults::{FaultyPath, PathFault};
use headlong_comm::topology::Rank;
use headlong_comm::transport::paths::Path;
use std::sync::{Arc, Mutex};

/// Small slots, so that few bytes go through all of them.
fn settings(signal: Signal) -> VerbsSettings {
    VerbsSettings { signal, slot_bytes: 256, retries: 1, ..VerbsSettings::default() }
}

/// One rank on each node of a fabric, everybody connected with everybody: paths by rank and peer;
/// none to itself.
fn connected(
    fabric: &Arc<Fabric>,
    ranks: usize,
    settings: &VerbsSettings,
    fault: Option<PathFault>,
) -> Vec<Vec<Option<Box<dyn Path>>>> {
    let peers = |me: usize| (0..ranks).filter(move |&peer| peer != me);
    let mut sites: Vec<Site> = (0..ranks)
        .map(|rank| {
            let provider = fabric.provider(rank);
            let choice =
                choose(&provider.devices().expect("devices"), settings, 0).expect("a device");
            Site::open(&*provider, choice, settings, ranks - 1).expect("a site")
        })
        .collect();
    // A rank's peers are numbered without itself.
    let number = |me: usize, peer: usize| if peer > me { peer - 1 } else { peer };
    let infos: Vec<Vec<_>> = (0..ranks)
        .map(|me| {
            peers(me).map(|peer| sites[peer].endpoint_info(settings, number(peer, me))).collect()
        })
        .collect();
    let hub = |(me, site): (usize, &mut Site)| -> Arc<Mutex<Hub>> {
        let ranks: Vec<Rank> = peers(me).map(Rank).collect();
        Arc::new(Mutex::new(site.join(settings, &ranks, &infos[me]).expect("connections")))
    };
    let hubs: Vec<_> = sites.iter_mut().enumerate().map(hub).collect();
    let path = |me: usize, peer: usize| -> Option<Box<dyn Path>> {
        let (hub, link) = (&hubs[me], number(me, peer));
        (me != peer).then(|| match fault {
            None => Box::new(VerbsPath::new(hub, link)) as Box<dyn Path>,
            Some(fault) => Box::new(FaultyPath::new(hub, link, fault)),
        })
    };
    (0..ranks).map(|me| (0..ranks).map(|peer| path(me, peer)).collect()).collect()
}

/// A fabric of `nodes` nodes with a NIC each.
fn fabric(seed: u64, model: NetworkModel, nodes: usize) -> Arc<Fabric> {
    Fabric::rails(seed, model, nodes, 1)
}
