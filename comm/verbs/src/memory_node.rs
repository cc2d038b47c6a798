//! The memory node that this process is bound to.

use std::path::Path;

/// The memory node of all processors that this thread may run on; none: they are of several, or the
/// machine does not say. `headlong launch`, mpirun and srun bind ranks so.
pub fn memory_node() -> Option<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let processors: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .collect();
    node_of(Path::new("/sys/devices/system/node"), &processors)
}

/// The one node below `nodes` that has all of `processors`, where there are several nodes.
fn node_of(nodes: &Path, processors: &[usize]) -> Option<u32> {
    let all: Vec<(u32, Vec<usize>)> = std::fs::read_dir(nodes)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, list(&std::fs::read_to_string(entry.path().join("cpulist")).ok()?)))
        })
        .collect();
    let has_all = |node: &Vec<usize>| processors.iter().all(|processor| node.contains(processor));
    let found = all.iter().find(|(_, node)| has_all(node));
    found.filter(|_| all.len() > 1 && !processors.is_empty()).map(|(number, _)| *number)
}

/// The kernel's way to write sets of processors: `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_on_one_node_of_several_knows_it() {
        let root = tempfile::tempdir().expect("a folder");
        let node = |number: u32, processors: &str| {
            let folder = root.path().join(format!("node{number}"));
            std::fs::create_dir(&folder).expect("a folder");
            std::fs::write(folder.join("cpulist"), processors).expect("a file");
        };
        node(0, "0-3,8\n");
        assert_eq!(node_of(root.path(), &[1, 8]), None, "one node says nothing");
        node(1, "4-7,9\n");
        assert_eq!(node_of(root.path(), &[1, 8]), Some(0));
        assert_eq!(node_of(root.path(), &[4, 9]), Some(1));
        assert_eq!(node_of(root.path(), &[3, 4]), None, "on both");
        assert_eq!(node_of(&root.path().join("nothing"), &[0]), None);
    }
}
