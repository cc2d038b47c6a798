//! Networks of the machine: interfaces, the route to rank 0, the machine's own name.

use super::Finding;
use super::system::System;
use std::net::{IpAddr, Ipv4Addr};

const NET: &str = "sys/class/net";
/// Beginnings of the names of interfaces that lead to no other machine.
const VIRTUAL: [&str; 5] = ["docker", "virbr", "br-", "veth", "cni"];

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let mut findings = vec![interfaces(system)];
    findings.extend(route(system));
    findings.extend(own_name(system));
    findings
}

fn interfaces(system: &System) -> Finding {
    let is_up = |name: &String| {
        system.text(format!("{NET}/{name}/operstate")).is_some_and(|state| state != "down")
    };
    let names = system.names(NET).into_iter().filter(|name| name != "lo").filter(is_up);
    let describe = |name: String| {
        let mtu = mtu(system, &name).map_or(String::new(), |mtu| format!(" MTU {mtu}"));
        let speed = system.number(format!("{NET}/{name}/speed")).filter(|speed| *speed > 0);
        format!("{name}{mtu}{}", speed.map_or(String::new(), |speed| format!(" {speed} Mb/s")))
    };
    let all: Vec<String> = names.map(describe).collect();
    match all.is_empty() {
        false => Finding::ok("interfaces", all.join(", ")),
        true => Finding::warn(
            "interfaces",
            "none is up but the machine's own loop",
            "ranks of other machines cannot be reached; ranks of this machine can",
            "ip link; a container needs a network (--network=host is the fastest)",
        ),
    }
}

/// The longest packet of an interface, in bytes.
pub(super) fn mtu(system: &System, interface: &str) -> Option<i64> {
    system.number(format!("{NET}/{interface}/mtu"))
}

/// The interface by which rank 0 is reached, where the launcher gives its address as a number.
pub(super) fn interface_to_rank_0(system: &System) -> Option<(Ipv4Addr, Option<String>)> {
    let names = ["HEADLONG_MASTER_ADDR", "MASTER_ADDR"];
    let host = names.iter().find_map(|name| system.variable(name))?;
    match host.parse().ok()? {
        IpAddr::V4(address) => Some((address, route_to(system, address))),
        IpAddr::V6(_) => None,
    }
}

/// The interface of the narrowest route that holds `address` (`/proc/net/route`: hexadecimal, as
/// the processor stores it).
fn route_to(system: &System, address: Ipv4Addr) -> Option<String> {
    if address.is_loopback() {
        return Some("lo".to_owned());
    }
    let table = system.text("proc/net/route")?;
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hexadecimal = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let (destination, mask) = (hexadecimal(1)?, hexadecimal(7)?);
        let holds = u32::from_le_bytes(address.octets()) & mask == destination;
        holds.then(|| (mask.count_ones(), fields[0].to_owned()))
    });
    routes.max_by_key(|(bits, _)| *bits).map(|(_, name)| name)
}

fn route(system: &System) -> Option<Finding> {
    let (address, interface) = interface_to_rank_0(system)?;
    Some(match interface {
        None => Finding::fail(
            "route",
            format!("no interface leads to rank 0 at {address}"),
            "this process cannot join its job",
            "ip route get ADDRESS; set HEADLONG_MASTER_ADDR to an address in a network that all \
             machines share",
        ),
        Some(name) if VIRTUAL.iter().any(|begin| name.starts_with(begin)) => Finding::warn(
            "route",
            format!("rank 0 at {address} is reached by {name}, a network inside this machine"),
            "ranks of other machines do not reach that address, and wait until the deadline",
            "set HEADLONG_MASTER_ADDR to the address of a real interface of rank 0's machine",
        ),
        Some(name) => Finding::ok("route", format!("rank 0 at {address} is reached by {name}")),
    })
}

/// A machine that takes its own name for its loop tells the others an address at which they find
/// themselves.
fn own_name(system: &System) -> Option<Finding> {
    let name = system.text("proc/sys/kernel/hostname")?;
    let hosts = system.text("etc/hosts").unwrap_or_default();
    let loops = hosts.lines().find(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        address.is_some_and(|address| address.is_loopback()) && words.any(|word| word == name)
    });
    Some(match loops {
        None => Finding::ok("own name", name),
        Some(line) if name == "localhost" => Finding::ok("own name", line),
        Some(line) => Finding::warn(
            "own name",
            format!("/etc/hosts has `{}`", line.split_whitespace().collect::<Vec<_>>().join(" ")),
            "with this name as HEADLONG_MASTER_ADDR, rank 0 would open its port where no other \
             machine reaches it",
            "take the name off that line, or use the machine's address",
        ),
    })
}
