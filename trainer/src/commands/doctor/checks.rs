//! The single checks of `headlong doctor`.

use super::system::System;
use super::{
    Finding, accelerator, environment, gpu, host, interfaces, memory as shared, rdma, topology,
};
use crate::report::{bytes, count};
use crate::system::{machine, processor};
use headlong_device::simd::{Bf16Products, Isa, bf16_products, isa};
use std::path::Path;

/// Below this much memory not even the synthetic data set trains.
const LEAST_MEMORY_BYTES: u64 = 512 << 20;

/// Below this much memory the published Kaggle configuration does not fit.
const KAGGLE_MEMORY_BYTES: u64 = 3 << 30;

/// Below this much disk checkpoints of small models alone fit.
const SMALL_DISK_BYTES: u64 = 2 << 30;

/// Every check, of `system` and of the disk that holds `folder`.
pub(super) fn all(system: &System, folder: &Path) -> Vec<Finding> {
    let root = system.root();
    let mut findings = vec![
        processor(root),
        instructions(isa(), bf16_products()),
        memory(machine::memory_info(), machine::cgroup_available_bytes()),
        huge_pages(root),
        disk(folder),
        open_files(),
    ];
    findings.extend(host::findings(system));
    findings.extend(accelerator::findings(system, &headlong_device::cuda::probe()));
    findings.extend(gpu::findings(system));
    findings.extend(topology::findings(system));
    findings.extend(rdma::findings(system));
    findings.extend(interfaces::findings(system));
    findings.extend(shared::findings(system));
    findings.extend(environment::findings(system));
    findings
}

fn read(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path)).ok()
}

fn processor(root: &Path) -> Finding {
    let info = read(root, "proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let cores = machine::cores();
    let all = info.lines().filter(|line| line.starts_with("processor")).count();
    let share = if all > cores {
        format!(" of {all} (limited by affinity or control group)")
    } else {
        String::new()
    };
    Finding::ok("processor", format!("{model}, {cores} cores{share}"))
}

fn instructions(isa: Isa, products: Bf16Products) -> Finding {
    let name = processor::in_use(isa, products);
    match isa {
        Isa::Avx512 => Finding::ok("vectors", name),
        Isa::Avx2 => Finding::warn(
            "vectors",
            name,
            "dense layers run at about half the speed of AVX-512",
            "nothing in software; results are the same",
        ),
        Isa::Portable => Finding::warn(
            "vectors",
            name,
            "dense layers run several times slower than with AVX2",
            "use a processor with AVX2, or let the virtual machine pass its flags on; results are \
             the same",
        ),
    }
}

fn memory(memory: Option<machine::MemoryInfo>, limit: Option<u64>) -> Finding {
    let Some(memory) = memory else {
        return Finding::warn(
            "memory",
            "/proc/meminfo cannot be read",
            "a plan that does not fit is not refused",
            "mount /proc",
        );
    };
    let usable = limit.unwrap_or(u64::MAX).min(memory.available_bytes);
    let limit =
        limit.map_or(String::new(), |limit| format!(", the control group allows {}", bytes(limit)));
    let found = format!(
        "{} available of {}{limit}",
        bytes(memory.available_bytes),
        bytes(memory.total_bytes)
    );
    let fix =
        "free some memory, raise the control group's limit, or cap the tables with tables.max_rows";
    if usable < LEAST_MEMORY_BYTES {
        Finding::fail("memory", found, "not even the synthetic data set trains", fix)
    } else if usable < KAGGLE_MEMORY_BYTES {
        Finding::warn(
            "memory",
            found,
            "the preset criteo-kaggle (2.01 GiB of tables) does not fit",
            fix,
        )
    } else {
        Finding::ok("memory", found)
    }
}

fn huge_pages(root: &Path) -> Finding {
    let text = read(root, "sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some(word @ ("always" | "madvise")) => {
            Finding::ok("huge pages", format!("transparent: {word}"))
        }
        other => Finding::warn(
            "huge pages",
            format!("transparent: {}", other.unwrap_or("not known")),
            "lookups in large tables miss the address cache more often and are slower",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

fn disk(folder: &Path) -> Finding {
    let shown = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let fix = "go to a folder with room, or name one with --output-dir and --checkpoint-dir";
    match free_disk_bytes(folder) {
        Some(free) if free < SMALL_DISK_BYTES => Finding::warn(
            "disk",
            format!("{} free in {}", bytes(free), shown.display()),
            "checkpoints and synthetic data may not fit",
            fix,
        ),
        Some(free) => Finding::ok("disk", format!("{} free in {}", bytes(free), shown.display())),
        None => Finding::ok("disk", format!("free space of {} not known (no df)", shown.display())),
    }
}

/// Bytes that this user can still write to the file system of `folder`, as `df` says.
fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let output = std::process::Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    parse_df(&String::from_utf8(output.stdout).ok()?)
}

/// The fourth column of the second line: 1,024-byte blocks that are free (POSIX `df -Pk`).
fn parse_df(text: &str) -> Option<u64> {
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib * 1024)
}

fn open_files() -> Finding {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") | None => Finding::ok("open files", "no limit known"),
        Some(limit) => match limit.parse::<u64>() {
            Ok(limit) if limit < 256 => Finding::warn(
                "open files",
                format!("at most {limit}"),
                "a model of many tables may not be able to open its shards",
                "ulimit -n 1024",
            ),
            Ok(limit) => Finding::ok("open files", format!("at most {}", count(limit))),
            Err(_) => Finding::ok("open files", limit),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Status, to_text};
    use super::*;
    use crate::commands::doctor::system::find_library;
    use crate::system::machine::MemoryInfo;

    #[test]
    fn little_memory_fails_and_says_what_to_do() {
        let info = |available_bytes| Some(MemoryInfo { total_bytes: 1 << 40, available_bytes });
        assert_eq!(memory(info(1 << 36), None).status, Status::Ok);
        assert_eq!(memory(info(1 << 36), Some(1 << 30)).status, Status::Warn);
        let failure = memory(info(1 << 20), None);
        assert_eq!(failure.status, Status::Fail);
        let text = to_text(&[failure]);
        assert!(
            text.starts_with("FAIL  memory") && text.contains("so: ") && text.contains("fix: "),
            "{text}"
        );
    }

    #[test]
    fn libraries_are_found_by_the_loaders_lists() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find_library(root.path(), "libibverbs.so.1"), None);
        let folder = root.path().join("opt/driver");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libibverbs.so.1"), "").unwrap();
        std::fs::create_dir_all(root.path().join("etc/ld.so.conf.d")).unwrap();
        std::fs::write(
            root.path().join("etc/ld.so.conf.d/rdma.conf"),
            "# the driver\n/opt/driver\n",
        )
        .unwrap();
        let network = || rdma::findings(&System::at(root.path()))[0].found.clone();
        assert!(network().contains("no RDMA device"));
        std::fs::create_dir_all(root.path().join("sys/class/infiniband/mlx5_0")).unwrap();
        assert!(network().contains("opt/driver/libibverbs.so.1"));
    }

    #[test]
    fn huge_pages_are_read_from_the_brackets() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(huge_pages(root.path()).status, Status::Warn);
        let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
        std::fs::create_dir_all(&folder).unwrap();
        for (text, status) in
            [("always [madvise] never\n", Status::Ok), ("always madvise [never]\n", Status::Warn)]
        {
            std::fs::write(folder.join("enabled"), text).unwrap();
            assert_eq!(huge_pages(root.path()).status, status);
        }
    }

    #[test]
    fn df_is_read_by_column() {
        let text =
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 100 40 60 40% /\n";
        assert_eq!(parse_df(text), Some(60 * 1024));
        assert_eq!(parse_df("df: no such file\n"), None);
    }

    #[test]
    fn this_machine_answers() {
        let findings = all(&System::this(), Path::new("."));
        assert!(findings.iter().any(|finding| finding.name == "processor"));
        assert!(
            findings.iter().all(|finding| finding.status == Status::Ok || !finding.fix.is_empty())
        );
    }
}
