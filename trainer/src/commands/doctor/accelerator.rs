//! What `headlong doctor` says of CUDA: the driver, its devices, and the libraries next to it.

use super::Finding;
use super::system::System;
use crate::report::bytes;
use headlong_device::cuda::{Found, Library, Probe, ProbedDevice, SEARCH_VARIABLE};
use std::path::Path;

/// The findings on CUDA, of the system under `root` and what was found when libraries were opened.
pub(super) fn findings(system: &System, probe: &Probe) -> Vec<Finding> {
    let mut findings = vec![driver(system.root(), probe)];
    findings.extend(probe.devices.iter().map(device));
    findings.extend([nvrtc(probe), cublaslt(probe), nccl(system, probe)]);
    findings
}

fn library(probe: &Probe, library: Library) -> Option<&Found> {
    probe.libraries.iter().find(|found| found.name == library.name())
}

fn file(probe: &Probe, which: Library) -> Option<String> {
    let path = library(probe, which)?.path.as_ref().ok()?;
    Some(path.display().to_string())
}

fn driver(root: &Path, probe: &Probe) -> Finding {
    let has_device_file = root.join("dev/nvidia0").exists();
    let Some(file) = file(probe, Library::Driver) else {
        if !has_device_file {
            return Finding::ok(
                "CUDA",
                "no driver, no NVIDIA device; training runs on the processor",
            );
        }
        return Finding::warn(
            "CUDA",
            "an NVIDIA device, but no libcuda.so.1",
            "the device cannot be used",
            "install the NVIDIA driver, or start the container with the NVIDIA runtime",
        );
    };
    let version = probe
        .driver_version
        .map_or(String::new(), |(major, minor)| format!("CUDA {major}.{minor}, "));
    match &probe.problem {
        None => Finding::ok("CUDA", format!("{version}{file}, {} devices", probe.devices.len())),
        Some(problem) => Finding::warn(
            "CUDA",
            format!("{version}{file}: {problem}"),
            "training runs on the processor",
            "see that nvidia-smi lists the device, and that the driver is as new as CUDA 13.0 asks \
             for",
        ),
    }
}

fn device(device: &ProbedDevice) -> Finding {
    let ProbedDevice { ordinal, name, memory_bytes, arch, multiprocessors, .. } = device;
    let memory = bytes(*memory_bytes as u64);
    let found =
        format!("cuda:{ordinal}: {name}, {memory}, {arch}, {multiprocessors} multiprocessors");
    if !device.is_software {
        return Finding::ok("GPU", found);
    }
    Finding::warn(
        "device",
        format!("{found}: a software device, not a GPU: for tests"),
        "--device cuda runs its kernels on the processor, far slower than --device cpu",
        &format!("unset {SEARCH_VARIABLE} to be without it"),
    )
}

/// A library that devices need: what it is for where there is none, or what is missing without it.
fn needed(
    (name, which): (&'static str, Library),
    probe: &Probe,
    purpose: &str,
    [found, consequence, fix]: [&str; 3],
) -> Finding {
    match (file(probe, which), probe.devices.is_empty()) {
        (Some(file), _) => Finding::ok(name, file),
        (None, true) => Finding::ok(name, format!("absent; needed {purpose}")),
        (None, false) => Finding::warn(name, found, consequence, fix),
    }
}

fn nvrtc(probe: &Probe) -> Finding {
    let missing = [
        "no libnvrtc.so.13",
        "kernels cannot be compiled here",
        "pip install nvidia-cuda-nvrtc, or give --kernels a folder made elsewhere by `headlong \
         kernels build`",
    ];
    needed(("NVRTC", Library::Nvrtc), probe, "to compile kernels for GPUs", missing)
}

fn cublaslt(probe: &Probe) -> Finding {
    let missing = [
        "no libcublasLt.so.13",
        "dense layers cannot run on the device",
        "install the CUDA toolkit, or pip install nvidia-cublas",
    ];
    needed(("cuBLASLt", Library::CublasLt), probe, "by dense layers on GPUs", missing)
}

fn nccl(system: &System, probe: &Probe) -> Finding {
    match (&system.nccl, probe.devices.len()) {
        (Ok(found), _) => Finding::ok("NCCL", found),
        (Err(reason), 1..) if file(probe, Library::Nccl).is_some() => Finding::warn(
            "NCCL",
            reason,
            "devices of several machines cannot be joined",
            "pip install --upgrade nvidia-nccl-cu13",
        ),
        (Err(_), 0 | 1) => Finding::ok("NCCL", "absent; needed between several GPUs"),
        (Err(_), _) => Finding::warn(
            "NCCL",
            "no libnccl.so.2",
            "devices exchange through the host's memory, which is slower",
            "pip install nvidia-nccl-cu13",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn probe(libraries: &[Library], devices: Vec<ProbedDevice>) -> Probe {
        let find = |library: Library| Found {
            name: library.name(),
            path: match libraries.contains(&library) {
                true => Ok(format!("/opt/{}", library.name()).into()),
                false => Err("not found".to_owned()),
            },
        };
        Probe {
            libraries: Library::ALL.map(find).to_vec(),
            driver_version: Some((13, 0)),
            problem: devices.is_empty().then(|| "the driver knows no device".to_owned()),
            devices,
        }
    }

    fn a_device(name: &str, is_software: bool) -> ProbedDevice {
        ProbedDevice {
            ordinal: 0,
            name: name.to_owned(),
            memory_bytes: 139 << 30,
            capability: (9, 0),
            arch: "sm_90a".to_owned(),
            multiprocessors: 132,
            is_software,
        }
    }

    #[test]
    fn a_device_without_its_driver_is_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let nothing = probe(&[], vec![]);
        assert_eq!(driver(root.path(), &nothing).status, Status::Ok);
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidia0"), "").unwrap();
        assert_eq!(driver(root.path(), &nothing).status, Status::Warn);
        let without_device = driver(root.path(), &probe(&[Library::Driver], vec![]));
        assert!(
            without_device.status == Status::Warn && without_device.found.contains("/opt/libcuda")
        );
        let whole = probe(&[Library::Driver], vec![a_device("NVIDIA H200", false)]);
        let finding = driver(root.path(), &whole);
        assert!(finding.status == Status::Ok && finding.found.contains("/opt/libcuda, 1 devices"));
    }

    #[test]
    fn the_software_device_is_not_called_a_gpu() {
        let finding = device(&a_device("Headlong software device", true));
        assert_eq!((finding.name, finding.status), ("device", Status::Warn));
        assert!(
            finding.found.contains("a software device, not a GPU: for tests"),
            "{}",
            finding.found
        );
        let finding = device(&a_device("NVIDIA H200", false));
        assert_eq!((finding.name, finding.status), ("GPU", Status::Ok));
        assert!(
            finding.found.contains("139.00 GiB") && finding.found.contains("sm_90a"),
            "{}",
            finding.found
        );
    }

    #[test]
    fn libraries_are_missed_only_where_a_device_needs_them() {
        let root = tempfile::tempdir().unwrap();
        let system = &System::at(root.path());
        let all = findings(system, &probe(&[], vec![]));
        assert!(all[1..].iter().all(|finding| finding.status == Status::Ok));
        let one =
            findings(system, &probe(&[Library::Driver], vec![a_device("NVIDIA H200", false)]));
        let warned: Vec<&str> = one
            .iter()
            .filter(|finding| finding.status == Status::Warn)
            .map(|finding| finding.name)
            .collect();
        assert_eq!(warned, ["NVRTC", "cuBLASLt"]);
        assert!(one.iter().all(|finding| finding.status == Status::Ok || !finding.fix.is_empty()));
    }
}
