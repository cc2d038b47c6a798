//! Devices and ports as they are found: what the library says, and where sysfs puts a device.

use super::super::nic::{Gid, GidKind, LinkLayer, NicResult, Port, PortState};
use super::domain::Opened;
use super::raw::{self, GidEntry, PortAttr};
use super::{checked, last_refused};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn query(device: &Opened, number: u8) -> NicResult<Port> {
    let what = |what: &str| format!("{} port {number}: {what}", device.name());
    // SAFETY: all zeros is a value of this struct of integers.
    let mut attr: PortAttr = unsafe { std::mem::zeroed() };
    let functions = &device.library().functions;
    // SAFETY: the device is open; an older library writes a shorter struct, the rest stays zero.
    let answer = unsafe { (functions.query_port)(device.raw(), number, &mut attr) };
    checked(|| what("ibv_query_port"), answer)?;
    Ok(Port {
        number,
        state: state_of(attr.state),
        // A link without a layer is that of a library from before there was RoCE.
        link: match u32::from(attr.link_layer) {
            raw::LINK_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        },
        mtu: mtu_bytes(attr.active_mtu),
        lid: attr.lid,
        needs_gid: u32::from(attr.flags) & raw::PORT_GRH_REQUIRED != 0,
        partition_keys: partition_keys(device, number, attr.pkey_tbl_len),
        gids: gids(device, number, attr.gid_tbl_len)?,
    })
}

fn state_of(state: i32) -> PortState {
    match state as u32 {
        raw::PORT_DOWN => PortState::Down,
        raw::PORT_INIT | raw::PORT_ARMED => PortState::Initialising,
        raw::PORT_ACTIVE => PortState::Active,
        other => PortState::Other(other),
    }
}

/// Bytes of the MTU that the interface counts from 1 (256) to 5 (4096).
pub(super) fn mtu_bytes(number: i32) -> u32 {
    128 << number.clamp(1, 5)
}

/// The interface's number of the largest MTU of at most `bytes`.
pub(super) fn mtu_number(bytes: u32) -> i32 {
    (1..=5).rev().find(|&number| mtu_bytes(number) <= bytes).unwrap_or(1)
}

fn partition_keys(device: &Opened, port: u8, length: u16) -> Vec<u16> {
    let read = |index| {
        let mut key = 0_u16;
        // SAFETY: the device is open, and the pointer to a number that lives.
        let answer =
            unsafe { (device.library().functions.query_pkey)(device.raw(), port, index, &mut key) };
        (answer == 0).then_some(u16::from_be(key))
    };
    (0..i32::from(length)).map_while(read).collect()
}

fn gids(device: &Opened, port: u8, length: i32) -> NicResult<Vec<Gid>> {
    let length = usize::try_from(length).unwrap_or(0);
    match device.library().functions.query_gid_table {
        Some(query) => {
            // The table is of all ports of the device, which have as many each.
            let mut entries =
                vec![GidEntry::default(); length * usize::from(device.num_ports()).max(1)];
            // SAFETY: as many entries of this size as are said.
            let found = unsafe {
                query(device.raw(), entries.as_mut_ptr(), entries.len(), 0, size_of::<GidEntry>())
            };
            match usize::try_from(found) {
                Ok(found) => entries.truncate(found),
                // It gives the number of an error, negated.
                Err(_) => {
                    let what = format!("{}: ibv_query_gid_table", device.name());
                    checked(|| what, -(found as i32))?;
                }
            }
            Ok(entries
                .iter()
                .filter(|entry| entry.port_num == u32::from(port))
                .map(gid_of)
                .collect())
        }
        None => gids_one_by_one(device, port, length),
    }
}

fn gid_of(entry: &GidEntry) -> Gid {
    let kind = match entry.gid_type {
        raw::GID_ROCE_V1 => GidKind::RoceV1,
        raw::GID_ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    };
    Gid { index: entry.gid_index, bytes: entry.gid.0, kind }
}

/// As a library from before rdma-core 31 has them: the identifiers one by one, their kinds from
/// sysfs.
fn gids_one_by_one(device: &Opened, port: u8, length: usize) -> NicResult<Vec<Gid>> {
    let mut found = Vec::new();
    for index in 0..length {
        let mut gid = raw::Gid::default();
        // SAFETY: the device is open, and the pointer to an identifier that lives.
        let answer = unsafe {
            (device.library().functions.query_gid)(device.raw(), port, index as i32, &mut gid)
        };
        if answer != 0 {
            return Err(last_refused(format!(
                "{} port {port}: ibv_query_gid {index}",
                device.name()
            )));
        }
        if gid.0 != [0; 16] {
            let file = device.folder().join(format!("ports/{port}/gid_attrs/types/{index}"));
            let kind = kind_of(fs::read_to_string(file).ok().as_deref());
            found.push(Gid { index: index as u32, bytes: gid.0, kind });
        }
    }
    Ok(found)
}

fn kind_of(word: Option<&str>) -> GidKind {
    match word.map(str::trim) {
        Some("RoCE v2") => GidKind::RoceV2,
        // The word for both; which it is decides the link, where it does not matter to what reads
        // it.
        Some("IB/RoCE v1") => GidKind::RoceV1,
        _ => GidKind::InfiniBand,
    }
}

pub(super) fn numa_node(folder: &Path) -> Option<u32> {
    // A machine with one node says -1.
    fs::read_to_string(folder.join("device/numa_node")).ok()?.trim().parse().ok()
}

/// Where the device sits on the bus; none for a device of software.
pub(super) fn bus_path(folder: &Path) -> Option<PathBuf> {
    fs::canonicalize(folder.join("device")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn mtus_are_counted_in_bytes() {
        assert_eq!((1..=5).map(mtu_bytes).collect::<Vec<_>>(), [256, 512, 1024, 2048, 4096]);
        assert_eq!([256, 1024, 1500, 4096, 9000, 100].map(mtu_number), [1, 3, 3, 5, 5, 1]);
    }

    #[test]
    fn states_and_kinds_have_names() {
        assert_eq!(state_of(4), PortState::Active);
        assert_eq!(
            [1, 2, 3, 5].map(state_of),
            [
                PortState::Down,
                PortState::Initialising,
                PortState::Initialising,
                PortState::Other(5)
            ]
        );
        assert_eq!(kind_of(Some("RoCE v2\n")), GidKind::RoceV2);
        assert_eq!(kind_of(Some("IB/RoCE v1\n")), GidKind::RoceV1);
        assert_eq!(kind_of(None), GidKind::InfiniBand);
    }

    #[test]
    fn a_device_is_found_on_the_bus_and_near_its_memory() {
        let sysfs = tempfile::tempdir().unwrap();
        let bus = sysfs.path().join("devices/pci0000:00/0000:00:02.0");
        let class = sysfs.path().join("class/infiniband/mlx5_0");
        fs::create_dir_all(&bus).unwrap();
        fs::create_dir_all(&class).unwrap();
        assert_eq!((numa_node(&class), bus_path(&class)), (None, None), "a device of software");
        symlink(&bus, class.join("device")).unwrap();
        fs::write(bus.join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(&class), None);
        fs::write(bus.join("numa_node"), "1\n").unwrap();
        assert_eq!(numa_node(&class), Some(1));
        assert_eq!(bus_path(&class), Some(fs::canonicalize(&bus).unwrap()));
    }
}
