//! Devices, ports and their addresses.

use std::path::PathBuf;

/// A device as it is found, before it is opened for use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Device {
    /// `mlx5_0`, `rxe0`.
    pub name: String,
    pub numa_node: Option<u32>,
    /// Where it sits on the bus: its directory below `/sys/devices`, links resolved. None: a device
    /// of software.
    pub path: Option<PathBuf>,
    pub ports: Vec<Port>,
}

/// One port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries.
    pub state: PortState,
    /// What it is connected to.
    pub link: LinkLayer,
    /// Bytes of the largest packet in use: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Its local identifier, on InfiniBand; else 0.
    pub lid: u16,
    /// On InfiniBand, whether that is not enough and packets carry a global identifier: behind a
    /// router, or where the port is a virtual one.
    pub needs_gid: bool,
    /// Its partition keys, by index.
    pub partition_keys: Vec<u16>,
    /// Its global identifiers; those that are all zero are left out.
    pub gids: Vec<Gid>,
}

/// Whether a port carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No cable, or switched off.
    Down,
    /// The subnet manager has not finished with it.
    Initialising,
    /// It carries.
    Active,
    /// Anything else, by the system's number.
    Other(u32),
}

/// What a port is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// One global identifier of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// The identifier, most significant byte first; an IPv4 address as `::ffff:a.b.c.d`.
    pub bytes: [u8; 16],
    /// How packets with it look.
    pub kind: GidKind,
}

/// How packets with a global identifier look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own.
    InfiniBand,
    /// Ethernet frames without IP: they cross no router.
    RoceV1,
    /// UDP.
    RoceV2,
}

impl Gid {
    /// As an address, for people: `10.1.2.3`, `fe80::1`.
    pub fn address(&self) -> std::net::IpAddr {
        let address = std::net::Ipv6Addr::from(self.bytes);
        address.to_ipv4_mapped().map_or(address.into(), Into::into)
    }

    /// Whether it is good on one link only (`fe80::/10`, `169.254.0.0/16`).
    pub fn is_link_local(&self) -> bool {
        match self.address() {
            std::net::IpAddr::V4(address) => address.is_link_local(),
            std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_link_are_known() {
        let gid = |text: &str| {
            let address: std::net::IpAddr = text.parse().expect("an address");
            let bytes = match address {
                std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                std::net::IpAddr::V6(address) => address.octets(),
            };
            Gid { index: 0, bytes, kind: GidKind::RoceV2 }
        };
        assert!(["fe80::1", "169.254.3.4"].into_iter().all(|text| gid(text).is_link_local()));
        assert!(
            ["2001:db8::1", "10.0.0.1", "fec0::1"]
                .into_iter()
                .all(|text| !gid(text).is_link_local())
        );
        assert_eq!(gid("10.0.0.1").address().to_string(), "10.0.0.1");
    }
}
