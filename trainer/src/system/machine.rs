//! Facts about this machine: processor, memory, limits. They are read once and passed on; nothing
//! here changes a result.

use crate::error::{Error, Result};
use crate::system::places;
use headlong_device::DeviceError;
use headlong_device::cuda::CudaDevice;
use headlong_device::simd::{Bf16Products, Isa, Limit, bf16_products, isa};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a plan must know of the machine it is for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Cores for this process.
    pub cores: usize,
    /// Bytes that can be taken without swapping, of the whole machine.
    pub available_bytes: u64,
    /// Bytes this process's control group still allows, where it has a limit.
    pub cgroup_available_bytes: Option<u64>,
    /// f32 operations per second of one core.
    pub core_flops: f64,
    /// Bytes per second between the cores together and main memory.
    pub memory_bytes_per_s: f64,
    /// The CUDA device that a rank trains on, where it does.
    pub device: Option<DeviceFacts>,
}

/// What a plan must know of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub name: String,
    /// Bytes that are free.
    pub free_bytes: u64,
    pub count: usize,
}

/// Whether `ranks` ranks get devices of their own where others have taken `taken` of a machine's
/// `devices`.
pub fn has_devices_besides(devices: usize, taken: usize, ranks: usize) -> bool {
    taken + ranks <= devices
}

/// f32 GFLOP/s of one core in matrix products where nothing was measured: two 512-bit fused
/// multiply-adds at 3.3 GHz give 211; what a good kernel reaches of that.
const DEFAULT_CORE_GFLOPS: f64 = 180.0;

/// The same with AVX2, and without either.
const AVX2_CORE_GFLOPS: f64 = 80.0;
const PORTABLE_CORE_GFLOPS: f64 = 15.0;

/// GB/s of main memory where nothing was measured.
const DEFAULT_MEMORY_GB_PER_S: f64 = 20.0;

/// What arithmetic may use with `choice`; with "auto", what this thread may.
pub fn instruction_limit(choice: Instructions) -> Result<Limit> {
    let wanted = match choice {
        Instructions::Auto => return Ok(Limit::current()),
        Instructions::Portable => (Isa::Portable, Bf16Products::None),
        Instructions::Avx2 => (Isa::Avx2, Bf16Products::None),
        Instructions::Avx512 => (Isa::Avx512, Bf16Products::None),
        Instructions::Avx512Bf16 => (Isa::Avx512, Bf16Products::Pairs),
        Instructions::Amx => (Isa::Avx512, Bf16Products::Tiles),
    };
    let limit = Limit::new(wanted.0, wanted.1);
    let (here, bf16) = limit.run(|| (isa(), bf16_products()));
    if (here, bf16) == wanted {
        return Ok(limit);
    }
    let most = match (here, bf16) {
        (_, Bf16Products::Pairs) => "avx512_bf16",
        (isa, _) => isa.name(),
    };
    let reason = format!("this processor has {most} at most; \"auto\" takes what there is");
    Err(Error::unsupported(format!("run.instructions = {}", serde_json::json!(choice)), reason))
}

impl Machine {
    /// This machine. Rates are defaults for its instruction set, not measurements.
    pub fn detect() -> Self {
        let gflops = match isa() {
            Isa::Avx512 => DEFAULT_CORE_GFLOPS,
            Isa::Avx2 => AVX2_CORE_GFLOPS,
            Isa::Portable => PORTABLE_CORE_GFLOPS,
        };
        Self {
            cores: cores_of_rank(),
            available_bytes: memory_info().map_or(u64::MAX, |memory| memory.available_bytes),
            cgroup_available_bytes: cgroup_available_bytes(),
            core_flops: gflops * 1e9,
            memory_bytes_per_s: DEFAULT_MEMORY_GB_PER_S * 1e9,
            device: None,
        }
    }

    /// This machine, with the CUDA device where one is asked for: ranks of a node have equal ones.
    pub fn detect_with(device: DeviceChoice) -> Result<Self> {
        let machine = Self::detect();
        if device != DeviceChoice::Cuda {
            return Ok(machine);
        }
        let device = CudaDevice::open(0).map_err(unusable)?;
        let (free_bytes, _) = device.memory();
        let count = CudaDevice::count().map_err(unusable)? as usize;
        let device = Some(DeviceFacts {
            name: device.name().to_owned(),
            free_bytes: free_bytes as u64,
            count,
        });
        Ok(Self { device, ..machine })
    }

    /// Bytes a process can take: the smaller of what the machine has and what its control group
    /// allows.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_available_bytes.unwrap_or(u64::MAX).min(self.available_bytes)
    }
}

/// What a CUDA device that cannot be used is to the user: something asked for that is not there, or
/// a failure.
pub(crate) fn unusable(error: DeviceError) -> Error {
    match error {
        DeviceError::Unavailable { reason, .. } => {
            Error::unsupported("run.device = \"cuda\"", reason)
        }
        error => Error::failed("the CUDA device cannot be used")(error),
    }
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Cores for a rank that trains: those that this process may use, or its share of them, where ranks
/// of the machine have no processors of their own.
pub fn cores_of_rank() -> usize {
    (cores() / places::ranks_that_share()).max(1)
}

/// Main memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    pub total_bytes: u64,
    /// What can be taken without swapping.
    pub available_bytes: u64,
}

/// Main memory, from `/proc/meminfo`.
pub fn memory_info() -> Option<MemoryInfo> {
    parse_memory_info(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Largest resident memory of this process so far, in bytes; 0 where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    bytes_of(&status, "VmHWM").unwrap_or(0)
}

/// A line `name: 12 kB` of a file of `/proc`, in bytes.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn parse_memory_info(text: &str) -> Option<MemoryInfo> {
    let field = |name| bytes_of(text, name);
    Some(MemoryInfo { total_bytes: field("MemTotal")?, available_bytes: field("MemAvailable")? })
}

/// What the control groups of this process still allow: version 2, then version 1.
pub fn cgroup_available_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let root = Path::new("/sys/fs/cgroup");
    cgroup_v2(&groups, root).or_else(|| cgroup_v1(&groups, &root.join("memory")))
}

fn cgroup_v2(groups: &str, root: &Path) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    tightest(own, root, ["memory.max", "memory.current", "file"])
}

fn cgroup_v1(groups: &str, root: &Path) -> Option<u64> {
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    })?;
    tightest(own, root, ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"])
}

/// The tightest limit between a group and the root, less what is used. `names`: of the files that
/// say both, and of the files' part in `memory.stat`.
fn tightest(own: &str, root: &Path, names: [&str; 3]) -> Option<u64> {
    let [limit, used, files] = names;
    let mut folder = root.join(own);
    let mut tightest = None;
    loop {
        // Note: version 1 writes a number near 2⁶³ for "no limit".
        let limit = read_number(&folder.join(limit)).filter(|&limit| limit < 1 << 60);
        if let (Some(limit), Some(used)) = (limit, read_number(&folder.join(used))) {
            // Pages of files are given back when memory is short, so they do not count as used.
            let files = read_stat(&folder.join("memory.stat"), files).unwrap_or(0);
            let left = limit.saturating_sub(used.saturating_sub(files));
            tightest = Some(tightest.map_or(left, |other: u64| other.min(left)));
        }
        if folder == root || !folder.pop() {
            return tightest;
        }
    }
}

fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_stat(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Where the arithmetic happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// In training and its plan, CUDA devices whose self-test agrees with the processor, else the
    /// processor. Elsewhere the processor.
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// The processor's instructions that arithmetic may use; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Instructions {
    /// All that the processor has.
    Auto,
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512.
    Avx512,
    /// AVX-512 and its products of bf16.
    Avx512Bf16,
    /// Those and AMX's, of tiles of bf16; refused where the system gives a process no tiles.
    Amx,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_bytes() {
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n";
        let memory = parse_memory_info(text).unwrap();
        assert_eq!((memory.total_bytes, memory.available_bytes), (1_024_000, 614_400));
        assert_eq!(parse_memory_info("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, max: &str, current: &str| {
            std::fs::write(folder.join("memory.max"), max).unwrap();
            std::fs::write(folder.join("memory.current"), current).unwrap();
        };
        write(&inner, "max\n", "5\n");
        assert_eq!(cgroup_v2("0::/a/b\n", root.path()), None);
        write(&root.path().join("a"), "1000\n", "400\n");
        std::fs::write(root.path().join("a/memory.stat"), "anon 100\nfile 300\nfile_mapped 7\n")
            .unwrap();
        assert_eq!(cgroup_v2("0::/a/b\n", root.path()), Some(900));
        write(&inner, "100\n", "5\n");
        assert_eq!(cgroup_v2("0::/a/b\n", root.path()), Some(95));

        // Version 1; a container sees its own group as the root.
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "990\n");
        let groups = "12:pids:/x\n4:cpu,memory:/docker/1\n0::/\n";
        assert_eq!(cgroup_v1(groups, root.path()), None);
        write("memory.limit_in_bytes", "1000\n");
        write("memory.stat", "cache 7\ntotal_cache 900\n");
        assert_eq!(cgroup_v1(groups, root.path()), Some(910));
    }

    #[test]
    fn this_machine_has_memory_and_cores() {
        let machine = Machine::detect();
        assert!(machine.cores > 0 && machine.usable_bytes() > 0);
    }
}
