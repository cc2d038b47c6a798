//! Which device, port and address a rank uses, and why.

use super::nic::{Device, Endpoint, Gid, GidKind, LinkLayer, Port, PortState};
use super::settings::VerbsSettings;
use std::path::{Path, PathBuf};

/// What a rank uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Choice {
    pub device: String,
    /// Its directory below `/sys/devices`, where that is known.
    pub path: Option<PathBuf>,
    /// Its place among the devices of the machine: ranks of one local index should have the same.
    pub rail: usize,
    pub port: Port,
    /// The address that its packets carry; none: InfiniBand inside a subnet.
    pub gid: Option<Gid>,
    /// Place of the partition key in the port's table.
    pub partition_index: u16,
    pub reason: String,
}

impl Choice {
    /// Where a queue pair of this rank is to be found.
    pub(crate) fn endpoint(&self, queue_pair: u32, first_packet: u32) -> Endpoint {
        let gid = self.gid.as_ref().map_or([0; 16], |gid| gid.bytes);
        Endpoint { lid: self.port.lid, gid, queue_pair, first_packet }
    }

    /// Device, port and address in a few words.
    pub fn describe(&self) -> String {
        let address = match &self.gid {
            Some(gid) => format!("{}", gid.address()),
            None => format!("LID {}", self.port.lid),
        };
        format!("{} port {} ({address})", self.device, self.port.number)
    }
}

/// Chooses for the rank with `local_index` on its node.
///
/// # Errors
/// Why none can be used, device by device.
pub fn choose(
    devices: &[Device],
    settings: &VerbsSettings,
    local_index: usize,
) -> Result<Choice, String> {
    if let Some(name) = named(settings, local_index) {
        let rail = devices.iter().position(|device| device.name == name);
        let there =
            || devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
        let rail = rail.ok_or_else(|| {
            format!("comm.verbs.devices names {name:?}, which is not there; found: {}", there())
        })?;
        return usable(&devices[rail], rail, settings, "named in comm.verbs.devices");
    }
    let tried: Vec<_> = devices
        .iter()
        .enumerate()
        .map(|(rail, device)| usable(device, rail, settings, ""))
        .collect();
    let distance = |choice: &Choice| distance(&devices[choice.rail], settings);
    let good: Vec<&Choice> = tried.iter().flatten().collect();
    let Some(nearest) = good.iter().map(|choice| distance(choice)).min() else {
        let reasons: Vec<String> = tried.into_iter().filter_map(Result::err).collect();
        return Err(match reasons.is_empty() {
            true => "no RDMA device".into(),
            false => reasons.join("; "),
        });
    };
    let near: Vec<&&Choice> = good.iter().filter(|choice| distance(choice) == nearest).collect();
    let mut choice = Choice::clone(near[local_index % near.len()]);
    choice.reason = match near.len() {
        1 if good.len() == 1 => "the only one".into(),
        1 => "the nearest".into(),
        many => format!("number {} of {many} that are equally near", local_index % many + 1),
    };
    Ok(choice)
}

fn named(settings: &VerbsSettings, local_index: usize) -> Option<&str> {
    let names = &settings.devices;
    (!names.is_empty()).then(|| names[local_index % names.len()].as_str())
}

/// Steps on the bus between the rank's memory and a device; another memory node is further than any
/// bus.
fn distance(device: &Device, settings: &VerbsSettings) -> usize {
    const OTHER_NODE: usize = 1000;
    let steps = match (&settings.near, &device.path) {
        (Some(near), Some(path)) => steps(near, path),
        _ => 0,
    };
    match (settings.numa_node, device.numa_node) {
        (Some(mine), Some(its)) if mine != its => OTHER_NODE + steps,
        _ => steps,
    }
}

/// Directories that two paths do not share.
fn steps(one: &Path, other: &Path) -> usize {
    let shared = one.iter().zip(other.iter()).take_while(|(one, other)| one == other).count();
    one.iter().count() + other.iter().count() - 2 * shared
}

fn usable(
    device: &Device,
    rail: usize,
    settings: &VerbsSettings,
    reason: &str,
) -> Result<Choice, String> {
    let mut reasons = Vec::new();
    for port in &device.ports {
        let found = address(port, settings).and_then(|gid| Ok((gid, partition(port, settings)?)));
        match found {
            Ok((gid, partition_index)) => {
                return Ok(Choice {
                    device: device.name.clone(),
                    path: device.path.clone(),
                    rail,
                    port: port.clone(),
                    gid,
                    partition_index,
                    reason: reason.into(),
                });
            }
            Err(why) => reasons.push(format!("{} port {}: {why}", device.name, port.number)),
        }
    }
    match reasons.is_empty() {
        true => Err(format!("{}: it has no port", device.name)),
        false => Err(reasons.join("; ")),
    }
}

fn address(port: &Port, settings: &VerbsSettings) -> Result<Option<Gid>, String> {
    if port.state != PortState::Active {
        return Err(match port.state {
            PortState::Down => "it is down: no cable, or its network interface is not up".into(),
            PortState::Initialising => "it waits for a subnet manager".into(),
            other => format!("it is not active ({other:?})"),
        });
    }
    if let Some(index) = settings.gid_index {
        let gid = port.gids.iter().find(|gid| gid.index == index);
        return match gid {
            Some(gid) => Ok(Some(gid.clone())),
            None => Err(format!("comm.verbs.gid_index: there is no address number {index}")),
        };
    }
    if port.link == LinkLayer::InfiniBand {
        return match port.gids.first() {
            _ if !port.needs_gid => Ok(None),
            Some(gid) => Ok(Some(gid.clone())),
            None => Err("it needs a global identifier, and has none".into()),
        };
    }
    let routable = port.gids.iter().filter(|gid| !gid.is_link_local());
    let best = routable
        .min_by_key(|gid| (gid.kind != GidKind::RoceV2, gid.address().is_ipv6(), gid.index));
    match best {
        Some(gid) => Ok(Some(gid.clone())),
        None => {
            Err("all its addresses are good on one link only: give its network interface an IP \
                 address, or set comm.verbs.gid_index"
                .into())
        }
    }
}

/// The highest bit of a key says full or limited member, not which partition.
const MEMBERSHIP: u16 = 0x8000;

fn partition(port: &Port, settings: &VerbsSettings) -> Result<u16, String> {
    let wanted = settings.partition_key & !MEMBERSHIP;
    let found = port.partition_keys.iter().position(|key| key & !MEMBERSHIP == wanted);
    let found = found.ok_or_else(|| {
        format!("comm.verbs.partition_key: {:#06x} is not in its table", settings.partition_key)
    });
    Ok(found? as u16)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{infiniband_device, roce_device};
    use super::*;

    fn chosen(
        devices: &[Device],
        settings: &VerbsSettings,
        local_index: usize,
    ) -> (String, Option<u32>) {
        let choice = choose(devices, settings, local_index).expect("one can be used");
        assert!(!choice.reason.is_empty());
        (choice.device, choice.gid.map(|gid| gid.index))
    }

    #[test]
    fn the_nearest_device_with_an_address_that_crosses_routers() {
        let devices = [roce_device(0, 0), roce_device(0, 1), roce_device(0, 2)];
        let settings = VerbsSettings::default();
        assert_eq!(
            chosen(&devices, &settings, 4),
            ("fake1".into(), Some(3)),
            "in turn where nothing is nearer"
        );
        let near = Some("/sys/devices/pci0002:00/0002:00:01.0/0002:02:00.0".into());
        assert_eq!(chosen(&devices, &VerbsSettings { near, ..settings.clone() }, 0).0, "fake2");
        let numa_node = Some(1);
        assert_eq!(
            chosen(&devices, &VerbsSettings { numa_node, ..settings.clone() }, 0).0,
            "fake1"
        );
        let named = VerbsSettings { devices: vec!["fake2".into(), "fake0".into()], ..settings };
        assert_eq!(chosen(&devices, &named, 3).0, "fake0", "by local index");
        assert_eq!(
            chosen(&[infiniband_device(0, 0)], &VerbsSettings::default(), 0).1,
            None,
            "LIDs are enough"
        );
        let mut routed = infiniband_device(0, 0);
        routed.ports[0].needs_gid = true;
        assert_eq!(chosen(&[routed], &VerbsSettings::default(), 0).1, Some(0));
    }

    #[test]
    fn why_none_can_be_used() {
        let why = |change: &dyn Fn(&mut Port), settings: VerbsSettings| {
            let mut device = roce_device(0, 0);
            change(&mut device.ports[0]);
            choose(&[device], &settings, 0).expect_err("it cannot be used")
        };
        let settings = VerbsSettings::default;
        assert!(
            why(&|port| port.state = PortState::Down, settings())
                .contains("fake0 port 1: it is down")
        );
        assert!(why(&|port| port.gids.truncate(2), settings()).contains("good on one link only"));
        let other = VerbsSettings { gid_index: Some(9), ..settings() };
        assert!(why(&|_| {}, other).contains("no address number 9"));
        let other = VerbsSettings { partition_key: 0x8001, ..settings() };
        assert!(why(&|_| {}, other).contains("0x8001"));
        let other = VerbsSettings { devices: vec!["mlx5_9".into()], ..settings() };
        assert!(why(&|_| {}, other).contains("found: fake0"));
        assert_eq!(choose(&[], &settings(), 0), Err("no RDMA device".into()));
        // RoCE v1 is better than nothing, and a limited member is a member.
        let mut device = roce_device(0, 0);
        device.ports[0].gids.truncate(3);
        device.ports[0].partition_keys = vec![0x7fff];
        assert_eq!(chosen(&[device], &settings(), 0).1, Some(2));
    }
}
