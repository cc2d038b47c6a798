//! Where a device that is no NIC sits on the machine's bus: NICs near it are better.

use super::settings::VerbsSettings;
use std::ffi::OsString;
use std::path::Path;

impl VerbsSettings {
    /// With the place of the device whose bus address is `bus_id` (`0000:1b:00.0`), by the
    /// machine's sysfs: the nearest NIC is chosen for it. What the settings say already stays;
    /// what sysfs does not say, too.
    #[must_use]
    pub fn near_device(self, bus_id: &str) -> Self {
        self.near_device_of(Path::new("/sys"), bus_id)
    }

    /// As [`VerbsSettings::near_device`], with sysfs at `sysfs`.
    fn near_device_of(mut self, sysfs: &Path, bus_id: &str) -> Self {
        let link = sysfs.join("bus/pci/devices").join(bus_id);
        let numa_node =
            || std::fs::read_to_string(link.join("numa_node")).ok()?.trim().parse().ok();
        // Where the firmware says nothing, the kernel writes -1.
        self.numa_node = self.numa_node.or_else(numa_node);
        self.near = self.near.or_else(|| link.canonicalize().ok());
        self
    }
}

/// Whether two devices, by their directories below `/sys/devices`, have a bridge in common: what
/// one sends to the other need not cross a processor.
pub(super) fn share_a_bridge(one: &Path, other: &Path) -> bool {
    let below_processor = |path: &Path| -> Vec<OsString> {
        let names = path.components().map(|name| name.as_os_str().to_owned());
        names.skip_while(|name| !name.to_string_lossy().starts_with("pci")).collect()
    };
    let (one, other) = (below_processor(one), below_processor(other));
    let shared = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    // The processor's own, and one more.
    shared >= 2
}

#[cfg(test)]
mod tests {
    use super::super::choose::choose;
    use super::super::fake::roce_device;
    use super::super::nic::Device;
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A sysfs of files: two processors; below the first a switch with GPU 1b and NIC 0 and a root
    /// port with NIC 1, below the second GPU 9b and NIC 2.
    struct Machine {
        root: tempfile::TempDir,
        nics: Vec<Device>,
    }

    const NEAR: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a folder");
            let mut machine = Self { root, nics: Vec::new() };
            machine.device(&format!("{NEAR}/0000:17:00.0/0000:1b:00.0"), "0");
            machine.device("pci0000:97/0000:97:01.0/0000:9b:00.0", "1");
            machine.device("pci0000:20/0000:20:01.0/0000:22:00.0", "-1");
            let places = [
                (format!("{NEAR}/0000:17:01.0/0000:1c:00.0"), 0),
                ("pci0000:15/0000:15:05.0/0000:1f:00.0".to_owned(), 0),
                ("pci0000:97/0000:97:05.0/0000:9f:00.0".to_owned(), 1),
            ];
            for (number, (place, node)) in places.into_iter().enumerate() {
                let path = Some(machine.device(&place, &node.to_string()));
                let nic = roce_device(0, number);
                machine.nics.push(Device { path, numa_node: Some(node), ..nic });
            }
            machine
        }

        /// A device's directory and the link to it.
        fn device(&self, place: &str, numa_node: &str) -> PathBuf {
            let folder = self.root.path().join("devices").join(place);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("numa_node"), format!("{numa_node}\n")).expect("a file");
            let links = self.root.path().join("bus/pci/devices");
            std::fs::create_dir_all(&links).expect("a folder");
            symlink(&folder, links.join(folder.file_name().expect("a name"))).expect("a link");
            folder.canonicalize().expect("a folder")
        }

        fn chosen(&self, settings: VerbsSettings, bus_id: &str, local_index: usize) -> String {
            let settings = settings.near_device_of(self.root.path(), bus_id);
            choose(&self.nics, &settings, local_index).expect("one can be used").device
        }
    }

    #[test]
    fn a_device_has_the_nic_below_its_switch_and_else_that_of_its_processor() {
        let machine = Machine::new();
        for local_index in 0..3 {
            assert_eq!(
                machine.chosen(VerbsSettings::default(), "0000:1b:00.0", local_index),
                "fake0"
            );
            assert_eq!(
                machine.chosen(VerbsSettings::default(), "0000:9b:00.0", local_index),
                "fake2"
            );
        }
    }

    #[test]
    fn devices_below_one_switch_share_a_bridge_and_those_of_one_processor_need_not() {
        let machine = Machine::new();
        let near = VerbsSettings::default().near_device_of(machine.root.path(), "0000:1b:00.0");
        let gpu = near.near.expect("it is there");
        let shares = machine.nics.iter().map(|nic| nic.path.as_ref().expect("a place"));
        let shares: Vec<bool> = shares.map(|nic| share_a_bridge(&gpu, nic)).collect();
        assert_eq!(shares, [true, false, false]);
    }

    #[test]
    fn what_sysfs_does_not_say_chooses_nothing_and_settings_go_first() {
        let machine = Machine::new();
        let absent = VerbsSettings::default().near_device_of(machine.root.path(), "0000:ff:00.0");
        assert_eq!(absent, VerbsSettings::default());
        assert_eq!(machine.chosen(VerbsSettings::default(), "0000:ff:00.0", 1), "fake1", "in turn");
        let unknown_node =
            VerbsSettings::default().near_device_of(machine.root.path(), "0000:22:00.0");
        assert_eq!((unknown_node.numa_node, unknown_node.near.is_some()), (None, true));
        let near = machine.nics[2].path.clone();
        let elsewhere = VerbsSettings { near, numa_node: Some(1), ..VerbsSettings::default() };
        assert_eq!(machine.chosen(elsewhere, "0000:1b:00.0", 0), "fake2");
        let named = VerbsSettings { devices: vec!["fake1".into()], ..VerbsSettings::default() };
        assert_eq!(machine.chosen(named, "0000:1b:00.0", 0), "fake1");
    }
}
