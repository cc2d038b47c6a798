//! Every broken machine that `docs/network.md` shows, made of files, and what is said of it. The
//! page's section is these texts.

use super::system::System;
use super::{Finding, Status, environment, gpu, host, interfaces, memory, rdma, to_text, topology};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A machine of files.
struct Tree {
    folder: TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn write(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(self, path: &str, to: &str) -> Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(self.folder.path().join(to), path).unwrap();
        self
    }

    fn system(&self) -> System {
        System::at(self.folder.path())
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    /// A NIC with one port that works.
    fn nic(self, link: &str) -> Self {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        self.write(&format!("{port}/state"), "4: ACTIVE\n")
            .write(&format!("{port}/phys_state"), "5: LinkUp\n")
            .write(&format!("{port}/link_layer"), link)
            .write(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .write(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n")
            .write(&format!("{port}/gid_attrs/types/0"), "RoCE v2\n")
            .write(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n")
            .write(&format!("{port}/gids/2"), "0000:0000:0000:0000:0000:ffff:0a00:0005\n")
            .write(&format!("{port}/gid_attrs/types/2"), "RoCE v2\n")
            .write("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n")
            .write("dev/infiniband/uverbs0", "")
            .write("usr/lib/libibverbs.so.1", "")
            .write(
                "proc/self/limits",
                "Max locked memory         unlimited            unlimited            bytes\n",
            )
    }

    fn port(self, file: &str, text: &str) -> Self {
        self.write(&format!("sys/class/infiniband/mlx5_0/ports/1/{file}"), text)
    }

    /// A GPU and the NIC on the bus, behind these bridges.
    fn bus(self, gpu: &str, nic: &str) -> Self {
        let gpu = format!("sys/devices/{gpu}/0000:1b:00.0");
        let nic = format!("sys/devices/{nic}/0000:1c:00.0");
        self.write(&format!("{gpu}/vendor"), "0x10de\n")
            .write(&format!("{gpu}/class"), "0x030200\n")
            .write(&format!("{gpu}/numa_node"), "0\n")
            .write(&format!("{nic}/vendor"), "0x15b3\n")
            .write(&format!("{nic}/class"), "0x020700\n")
            .write(&format!("{nic}/numa_node"), "1\n")
            .link("sys/bus/pci/devices/0000:1b:00.0", &gpu)
            .link("sys/bus/pci/devices/0000:1c:00.0", &nic)
            .link("sys/class/infiniband/mlx5_0/device", &nic)
    }
}

const SWITCH: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";
const OTHER: &str = "pci0000:85/0000:85:01.0/0000:86:00.0";
const GOOD_GPU: &str = "0, 700.00, 700.00, 1980, 1980, 0x0000000000000001, Enabled, 0";

/// The configuration space of a bridge whose Access Control Services ask for what `control` says.
fn bridge(control: u8) -> Vec<u8> {
    let mut space = vec![0_u8; 4096];
    space[0x100..0x104].copy_from_slice(&[0x01, 0, 0x02, 0x14]);
    space[0x140..0x144].copy_from_slice(&[0x0d, 0, 0x01, 0x00]);
    space[0x146] = control;
    space
}

/// One broken machine: its heading, and what is said of it.
struct Case {
    heading: &'static str,
    finding: Finding,
}

/// The one finding that is not OK.
fn only_bad(heading: &'static str, findings: Vec<Finding>) -> Case {
    let mut bad: Vec<Finding> =
        findings.into_iter().filter(|one| one.status != Status::Ok).collect();
    assert_eq!(bad.len(), 1, "{heading}: {bad:?}");
    Case { heading, finding: bad.remove(0) }
}

fn rdma_cases() -> Vec<Case> {
    let infiniband = || Tree::new().nic("InfiniBand\n");
    let roce = || Tree::new().nic("Ethernet\n");
    let say = |heading, tree: Tree| only_bad(heading, rdma::findings(&tree.system()));
    let without = |tree: Tree, path: &str| {
        fs::remove_file(tree.root().join(path)).unwrap();
        tree
    };
    let small = "Max locked memory         8388608              8388608              bytes\n";
    vec![
        say("The library is missing", without(infiniband(), "usr/lib/libibverbs.so.1")),
        say(
            "A container without the device files",
            without(infiniband(), "dev/infiniband/uverbs0"),
        ),
        say(
            "A port without a cable",
            infiniband().port("state", "1: DOWN\n").port("phys_state", "3: Disabled\n"),
        ),
        say("No subnet manager", infiniband().port("state", "2: INIT\n")),
        say("RoCE without a routable address", roce().port("gid_attrs/types/2", "IB/RoCE v1\n")),
        say("Little memory may be locked", infiniband().write("proc/self/limits", small)),
        say(
            "No way into the GPU's memory",
            infiniband().bus(SWITCH, SWITCH).write("proc/sys/kernel/osrelease", "6.8.0\n"),
        ),
    ]
}

fn inside_cases() -> Vec<Case> {
    let nic = || Tree::new().nic("InfiniBand\n");
    let acs = nic()
        .bus(SWITCH, SWITCH)
        .write("sys/bus/pci/devices/0000:15:01.0/class", "0x060400\n")
        .write("sys/bus/pci/devices/0000:15:01.0/config", bridge(0x1d));
    let smi = |heading, line: &str| {
        let mut system = Tree::new().system();
        system.smi = Some(line.to_owned());
        only_bad(heading, gpu::findings(&system))
    };
    let mounts = "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n";
    let tree = Tree::new().write("proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid 0 0\n");
    let mut no_memfd = tree.system();
    no_memfd.memfd = Err("Operation not permitted".into());
    vec![
        only_bad(
            "A GPU far from every NIC",
            topology::findings(&nic().bus(SWITCH, OTHER).system()),
        ),
        only_bad(
            "Bridges that send everything through the processor",
            topology::findings(&acs.system()),
        ),
        smi(
            "A GPU that is too hot",
            "3, 700.00, 700.00, 1005, 1980, 0x0000000000000040, Enabled, 0",
        ),
        smi(
            "A GPU with a lowered power limit",
            "3, 450.00, 700.00, 1980, 1980, 0x0000000000000004, Enabled, 0",
        ),
        smi(
            "A GPU without persistence",
            "3, 700.00, 700.00, 1980, 1980, 0x0000000000000001, Disabled, [N/A]",
        ),
        smi(
            "A GPU whose memory is broken",
            "3, 700.00, 700.00, 1980, 1980, 0x0000000000000001, Enabled, 2",
        ),
        only_bad(
            "A container with little shared memory",
            memory::findings(&Tree::new().write("proc/mounts", mounts).system()),
        ),
        only_bad("A container without memfd", memory::findings(&no_memfd)),
    ]
}

/// The routes of a machine with `eth0` (10.0.0.0/24) and a bridge of Docker's; none by default.
const ROUTES: &str = "\
    Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
    eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
    docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";

fn with_rank_0(address: &str) -> (Tree, System) {
    let tree =
        Tree::new().write("proc/net/route", ROUTES).write("sys/class/net/eth0/operstate", "up\n");
    let tree = tree.write("sys/class/net/eth0/mtu", "9000\n");
    let mut system = tree.system();
    system.environment.insert("MASTER_ADDR".into(), address.into());
    (tree, system)
}

fn network_cases() -> Vec<Case> {
    let named = Tree::new()
        .write("proc/sys/kernel/hostname", "node-a\n")
        .write("etc/hosts", "127.0.0.1 localhost\n127.0.1.1\tnode-a.example node-a # Debian\n")
        .write("sys/class/net/eth0/operstate", "up\n");
    let cut_off = Tree::new()
        .write("sys/class/net/eth0/operstate", "down\n")
        .write("sys/class/net/lo/mtu", "65536\n");
    let say = |heading, system: &System| only_bad(heading, interfaces::findings(system));
    vec![
        say("No network", &cut_off.system()),
        say("No route to rank 0", &with_rank_0("192.168.7.1").1),
        say("Rank 0 behind a virtual bridge", &with_rank_0("172.17.0.2").1),
        say("The machine's name is its loop", &named.system()),
    ]
}

fn host_cases() -> Vec<Case> {
    let machine = || {
        Tree::new()
            .write("sys/devices/system/cpu/online", "0-15\n")
            .write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7,9\n")
    };
    let clock = machine()
        .write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    let one = machine().write("proc/self/status", "Cpus_allowed_list:\t3\n");
    let quota = machine().write("sys/fs/cgroup/cpu.max", "250000 100000\n");
    let say = |heading, tree: Tree| only_bad(heading, host::findings(&tree.system()));
    let with = |name: &str, value: &str| {
        let mut system = Tree::new().system();
        system.environment.insert(name.into(), value.into());
        environment::findings(&system)
    };
    vec![
        say("A slow clock", clock),
        say("One processor", one),
        say("Less processor time than processors", quota),
        only_bad("A variable of ours with a typing error", with("HEADLONG_MASTER_ADR", "node-a")),
        only_bad("NCCL kept from its network", with("NCCL_IB_DISABLE", "1")),
        only_bad("A launcher's variable left over", with("RANK", "3")),
    ]
}

#[test]
fn ucx_is_named_with_its_version_or_with_what_lacks_and_is_no_fault() {
    let mut system = Tree::new().system();
    let found = |system: &System| {
        let findings = rdma::findings(system);
        let finding = findings.into_iter().find(|one| one.name == "UCX").expect("a line of UCX");
        assert_eq!(finding.status, Status::Ok);
        finding.found
    };
    let none = "none, but only run.transport = \"ucx\" needs it: libucp.so.0 was not found";
    assert_eq!(found(&system), none);
    system.ucx = Ok("1.13.1".into());
    assert_eq!(found(&system), "1.13.1, for run.transport = \"ucx\"");
}

#[test]
fn a_machine_without_faults_hears_none() {
    let tree = Tree::new().nic("Ethernet\n").bus(SWITCH, SWITCH);
    let tree = tree
        .write("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n")
        .write("proc/mounts", "tmpfs /dev/shm tmpfs rw 0 0\n");
    let tree = tree
        .write("sys/class/net/eth0/operstate", "up\n")
        .write("sys/fs/cgroup/cpu.max", "max 100000\n");
    let tree = tree.write("sys/bus/pci/devices/0000:15:01.0/class", "0x060400\n");
    let tree = tree.write("sys/bus/pci/devices/0000:15:01.0/config", bridge(0x11));
    let mut system = tree.system();
    system.smi = Some(GOOD_GPU.into());
    let parts = [
        rdma::findings,
        topology::findings,
        gpu::findings,
        memory::findings,
        interfaces::findings,
        host::findings,
    ];
    let findings: Vec<Finding> =
        parts.iter().flat_map(|part| part(&system)).chain(environment::findings(&system)).collect();
    let bad: Vec<&Finding> = findings.iter().filter(|one| one.status != Status::Ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
    let text = to_text(&findings);
    assert!(text.contains("GPU to NIC     0000:1b:00.0: mlx5_0 PIX"), "{text}");
    assert!(text.contains("GID 2, 0000:0000:0000:0000:0000:ffff:0a00:0005"), "{text}");
}

#[test]
fn the_page_says_what_the_doctor_says() {
    const BEGIN: &str =
        "<!-- What follows is written by the tests of trainer/src/commands/doctor/tests.rs. -->\n";
    let cases = [rdma_cases(), inside_cases(), network_cases(), host_cases()];
    let mut section = BEGIN.to_owned();
    for case in cases.iter().flatten() {
        let text = to_text(std::slice::from_ref(&case.finding));
        assert!(!case.finding.consequence.is_empty() && !case.finding.fix.is_empty(), "{text}");
        section.push_str(&format!("\n**{}**\n\n```text\n{text}```\n", case.heading));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/network.md");
    let page = fs::read_to_string(path).unwrap();
    let (before, after) = page.split_once(BEGIN).expect("the page has its mark");
    if format!("{BEGIN}{after}") != section {
        let written = std::env::temp_dir().join("headlong-network.md");
        fs::write(&written, format!("{before}{section}")).unwrap();
        panic!("docs/network.md is behind: copy {} over it", written.display());
    }
}

/// All of the program's source is looked at: a variable that something reads is one that the doctor
/// knows.
#[test]
fn every_variable_of_ours_is_known() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut folders: Vec<_> = ["comm", "device", "embedding", "mlp", "reader", "trainer"]
        .map(|crate_| root.join(crate_).join("src"))
        .into();
    let mut found = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&entry).unwrap();
                let words = text.split('"').filter(|word| word.starts_with("HEADLONG_"));
                let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                found.extend(words.filter(|word| word.chars().all(is_name)).map(str::to_owned));
            }
        }
    }
    // A misspelt name from a test, and the common prefix.
    found.retain(|name| name != "HEADLONG_MASTER_ADR" && name != "HEADLONG_");
    let known: Vec<&str> = environment::OURS.to_vec();
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), known);
}
