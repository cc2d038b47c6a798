//! `cargo xtask gpu-bundle`: everything to be run on a machine with a GPU, in one folder that
//! travels.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::softcuda::{self, Sanitizer};
use super::test_programs::{self, TestProgram};
use super::{Had, kernels, nvrtc};
use crate::ci::sanitized_tests;
use crate::process::{self, At as _};

/// The most that the bundle may weigh: what can be carried to a lent machine is 64 MiB, with the
/// working tree.
const MOST_BYTES: u64 = 45 << 20;
/// The architecture of the machine it is for: H100 and H200.
const ARCHITECTURE: &str = "sm_90a";
const PACKAGES: &[&str] = &[
    "headlong-device",
    "headlong-embedding",
    "headlong-mlp",
    "headlong-comm",
    "headlong-verbs",
    "nccl-rs",
    "headlong",
];
/// Tests that start programs of the folder they were built in: they cannot travel.
const STAYS_HERE: &[&str] = &["device_cuda_processes"];
/// What runs the same shapes in PyTorch, where the machine has it: from `benches/peers`.
const PEERS: &[&str] = &["common.py", "gpu_peer.py", "gpu_compare.py"];
const RUN: &str = include_str!("bundle_run.sh");
/// What the last line of a rehearsal begins with in which nothing failed.
pub const PASSED: &str = "gpu-bundle: nothing failed";

/// Gathers the bundle in `target/gpu-bundle` and prints what it weighs.
pub fn run(root: &Path, target: &Path) -> Result<bool> {
    let Had::Here(compiler) = nvrtc::folder(root, target)? else {
        bail!("the bundle holds compiled kernels, and the nvrtc wheel cannot be fetched");
    };
    let folder = target.join("gpu-bundle");
    process::fresh_folder(&folder)?;
    for part in ["tests", "kernels", "peers"] {
        fs::create_dir_all(folder.join(part)).at(&folder)?;
    }
    let program = folder.join("headlong");
    copy_stripped(&process::built(root, target, "headlong")?, &program)?;
    let packed = Command::new("xz").arg("-6").arg(&program).status();
    ensure!(packed.context("`xz` is not installed")?.success(), "`xz` refuses the program");
    gather_tests(root, &folder)?;
    ensure!(
        kernels::build((root, target), &compiler, ARCHITECTURE, &folder.join("kernels"), &[])?,
        "some kernel does not compile"
    );
    for script in PEERS {
        let from = root.join("benches/peers").join(script);
        fs::copy(&from, folder.join("peers").join(script)).at(&from)?;
    }
    let script = folder.join("run.sh");
    fs::write(&script, RUN).at(&script)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let bytes = weigh(&folder)?;
    let mib = bytes as f64 / f64::from(1 << 20);
    println!("gpu-bundle: {mib:.1} MiB in {}; run it by run.sh", folder.display());
    if bytes > MOST_BYTES {
        println!("gpu-bundle: more than {} MiB", MOST_BYTES >> 20);
    }
    Ok(bytes <= MOST_BYTES)
}

/// Gathers the bundle and runs it on the software device, within its seconds as on a GPU: all of
/// it, `peers` where there is PyTorch.
pub fn rehearse(root: &Path, target: &Path) -> Result<bool> {
    let device = match softcuda::build(root, target, Sanitizer::None)? {
        Had::Here(device) => device,
        Had::Not(reason) => bail!("there is no software device, because {reason}"),
    };
    if !run(root, target)? {
        return Ok(false);
    }
    let out = target.join("gpu-bundle-rehearsal");
    process::fresh_folder(&out)?;
    let mut command = Command::new("sh");
    command.arg(target.join("gpu-bundle/run.sh")).arg(&out).args(["right", "time", "replays"]);
    if process::answers("python3", &["-c", "import torch"]) {
        command.arg("peers");
    }
    command.env("REHEARSE", device);
    process::show(command)
}

/// The test programs, in one archive: they hold the same libraries, so that all of them weigh
/// little more than one. And which of them run under compute-sanitizer.
fn gather_tests(root: &Path, folder: &Path) -> Result<()> {
    let tests = folder.join("tests");
    let programs = programs_with_cuda(test_programs::build(root, PACKAGES)?)?;
    for test in &programs {
        copy_stripped(&test.path, &tests.join(file_name(test)))?;
    }
    let archive = folder.join("tests.tar.xz");
    let mut tar = Command::new("tar");
    tar.arg("-cJf").arg(&archive).arg("-C").arg(&tests).arg(".").env("XZ_OPT", "-6e");
    let packed = tar.status().context("`tar` is not installed")?;
    ensure!(packed.success(), "`tar` or `xz` refuses {}", archive.display());
    fs::remove_dir_all(&tests).at(&tests)?;
    let lines = sanitized_tests().map(|(name, filters)| {
        let of_name = |program: &&TestProgram| program.name == name;
        let program = programs.iter().find(of_name);
        let program = program.with_context(|| format!("the test program {name} is absent"))?;
        Ok(format!("{} {}\n", file_name(program), filters.join(" ")))
    });
    let list = folder.join("sanitizers.txt");
    fs::write(&list, lines.collect::<Result<String>>()?).at(&list)
}

/// The programs that have at least one test of CUDA: its path names `cuda`, or it is the
/// conformance file.
fn programs_with_cuda(programs: Vec<TestProgram>) -> Result<Vec<TestProgram>> {
    let mut chosen = Vec::new();
    for program in programs {
        let listed = Command::new(&program.path)
            .args(["--list", "--format", "terse"])
            .current_dir(&program.folder)
            .output()
            .with_context(|| program.path.display().to_string())?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let has_tests = listed.lines().any(|line| line.ends_with(": test"));
        let is_cuda = program.name == "conformance"
            || program.name.contains("cuda")
            || listed.lines().any(|line| line.contains("cuda"));
        if has_tests && is_cuda && !STAYS_HERE.contains(&program.name.as_str()) {
            chosen.push(program);
        }
    }
    Ok(chosen)
}

/// `device-conformance`, `mlp-unit`: the folder of the package, and the file of tests.
fn file_name(test: &TestProgram) -> String {
    let is_unit =
        test.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("headlong"))
            && test.name.starts_with("headlong");
    format!("{}-{}", test.package, if is_unit { "unit" } else { &test.name })
}

/// Copies a program without its symbols.
fn copy_stripped(from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(to).arg(from);
    let stripped = strip.status().context("`strip`, of the package binutils, is not installed")?;
    ensure!(stripped.success(), "`strip` refuses {}", from.display());
    Ok(())
}

/// Bytes of all files below `folder`.
fn weigh(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).at(folder)?.flatten() {
        let data = entry.metadata()?;
        bytes += if data.is_dir() { weigh(&entry.path())? } else { data.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_which_crate_and_which_tests() {
        let program = |package: &str, name: &str, file: &str| TestProgram {
            package: package.into(),
            name: name.into(),
            path: file.into(),
            folder: "/".into(),
        };
        assert_eq!(file_name(&program("mlp", "headlong_mlp", "headlong_mlp-1234")), "mlp-unit");
        assert_eq!(
            file_name(&program("device", "conformance", "conformance-1234")),
            "device-conformance"
        );
    }

    /// What is copied is there, and python can read it.
    #[test]
    fn the_peers_scripts_are_programs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers");
        for script in PEERS {
            let text = fs::read_to_string(folder.join(script)).unwrap();
            let parsed = Command::new("python3")
                .args(["-c", "import ast, sys; ast.parse(sys.argv[1])", &text])
                .status();
            match parsed {
                Ok(parsed) => assert!(parsed.success(), "{script}"),
                Err(error) => println!("skipped, because python3 does not start: {error}"),
            }
        }
        assert!(RUN.contains("peers/gpu_compare.py"));
    }

    /// A program that answers with the next of these numbers of samples a second each time it is
    /// started.
    fn answers(path: &Path, interpreter: &str, next: &str, rates: &[f64]) {
        let rates: Vec<String> = rates.iter().map(f64::to_string).collect();
        let count = path.with_extension("count");
        let text =
            next.replace("COUNT", &count.display().to_string()).replace("RATES", &rates.join(" "));
        fs::write(path, format!("#!/usr/bin/env {interpreter}\n{text}")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    const SHELL: &str = "n=$(cat COUNT 2>/dev/null || echo 0); echo $((n + 1)) >COUNT\n\
        set -- RATES; shift $n; echo \"{\\\"samples_per_s\\\": $1}\"";
    /// Both of theirs are this program: told apart by `--tables`.
    const PYTHON: &str = "import sys; r = 'RATES'.split(); i = 0 if 'bags' in sys.argv else 1; \
        print('{\"samples_per_s\": %s}' % r[i] if float(r[i]) else 'no number')";

    fn has_python() -> bool {
        let has = Command::new("python3")
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        if !has {
            println!("skipped, because python3 does not start");
        }
        has
    }

    /// Medians of three rounds over the faster of theirs, with every command; a program that fails
    /// is a failure and no ratio.
    #[test]
    fn the_ratio_is_of_medians_and_over_the_faster_peer() {
        if !has_python() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("headlong"), folder.path().join("peer.py"));
        let compare = |their_rates: &[f64]| {
            answers(&ours, "sh", SHELL, &[9000.0, 300.0, 2500.0]);
            answers(&theirs, "python3", PYTHON, their_rates);
            let _ = fs::remove_file(ours.with_extension("count"));
            let script =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/gpu_compare.py");
            let mut command = Command::new("python3");
            command.arg(script).arg("--headlong").arg(&ours).arg("--peer").arg(&theirs);
            let ended = command
                .args(["--batch-size", "512", "--rounds", "3", "--row-cap", "7"])
                .output()
                .unwrap();
            (ended.status.code(), String::from_utf8(ended.stdout).unwrap())
        };
        let (code, text) = compare(&[1000.0, 800.0]);
        assert_eq!(code, Some(0), "{text}");
        let line = "C1, batch 512: ratio 2.50 of the faster of PyTorch's (headlong 2,500 \
                    samples/s, torch, EmbeddingBag 1,000)";
        assert!(text.lines().any(|found| found == line), "{text}");
        let ran = format!(
            "$ {} bench iteration --shape C1 --batch-size 512 --row-cap 7 ",
            ours.display()
        );
        assert_eq!(text.lines().filter(|found| found.starts_with(&ran)).count(), 1, "{text}");
        assert_eq!(text.lines().filter(|found| found.starts_with('$')).count(), 3, "{text}");
        let (code, text) = compare(&[0.0, 800.0]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("ratio 3.12"), "{text}");
        let (code, text) = compare(&[0.0, 0.0]);
        assert_eq!(code, Some(1), "{text}");
        assert!(!text.contains(": ratio"), "{text}");
    }

    /// The stage itself, as the script runs it, with programs that only answer.
    #[test]
    fn the_stage_of_peers_prints_the_ratio() {
        if !has_python() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (bundle, out) = (folder.path(), folder.path().join("out"));
        fs::create_dir(bundle.join("peers")).unwrap();
        fs::write(bundle.join("run.sh"), RUN).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/gpu_compare.py");
        fs::copy(script, bundle.join("peers/gpu_compare.py")).unwrap();
        answers(&bundle.join("headlong"), "sh", SHELL, &[500.0, 500.0, 500.0]);
        let stage = |their_rates: &[f64]| {
            answers(&bundle.join("peers/gpu_peer.py"), "python3", PYTHON, their_rates);
            let mut command = Command::new("sh");
            command.arg(bundle.join("run.sh")).arg(&out).arg("peers").env("REHEARSE", "/nowhere");
            let ended = command.env("PYTHON", "python3").output().unwrap();
            (ended.status.success(), String::from_utf8(ended.stdout).unwrap())
        };
        let (passed, text) = stage(&[100.0, 200.0]);
        assert!(passed && text.contains("C1, batch 64: ratio 2.50 a smoke test"), "{text}");
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(out.join("gpu-bundle.tar.gz")).arg("-C").arg(&out);
        assert!(unpack.status().unwrap().success());
        let log = fs::read_to_string(out.join("gpu-bundle/peers.log")).unwrap();
        assert!(
            log.contains("bench iteration --shape C1") && log.contains("--device cuda"),
            "{log}"
        );
        let (passed, text) = stage(&[0.0, 0.0]);
        assert!(!passed && text.contains("failed: peers"), "{text}");
    }

    /// What the script says and how it ends, in a bundle without anything else.
    fn script(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        fs::write(folder.join("run.sh"), RUN).unwrap();
        let mut command = Command::new("sh");
        command.arg("run.sh").args(arguments).current_dir(folder);
        let ended = command.env_remove("LIBS").env("REHEARSE", "/nowhere").output().unwrap();
        let text = [ended.stdout, ended.stderr].concat();
        (ended.status.code(), String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_misspelt_call_of_the_script_runs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let misspelt: [&[&str]; 5] =
            [&[], &["--help"], &["right"], &["out", "rihgt"], &["out", "doctor", "right time"]];
        for arguments in misspelt {
            let (code, text) = script(folder.path(), arguments);
            assert!(code == Some(2) && text.contains("usage: run.sh OUT"), "{arguments:?}: {text}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_script_runs_nothing_where_nothing_can_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        for out in ["run.sh", "/proc/nope"] {
            let (code, text) = script(folder.path(), &[out, "doctor"]);
            assert!(code == Some(1) && text.contains("nothing was run"), "{out}: {text}");
        }
    }

    /// A program that fails says why in the summary; its stage is named once.
    #[test]
    fn what_fails_is_named_once_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        answers(&folder.path().join("headlong"), "sh", "echo 'error: no device' >&2; exit 1", &[]);
        let (code, text) = script(folder.path(), &["out", "equality"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("headlong train: error: no device"), "{text}");
        assert!(text.contains("nothing to compare, because 0 runs"), "{text}");
        assert!(text.ends_with("gpu-bundle: failed: equality\n"), "{text}");
        assert!(folder.path().join("out/gpu-bundle.tar.gz").exists());
    }

    /// A signal ends what runs, and what there is by then is packed.
    #[test]
    fn a_signal_ends_the_script_at_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("run.sh"), RUN).unwrap();
        answers(&folder.path().join("headlong"), "sh", "echo begun; sleep 15; echo ended", &[]);
        let mut command = Command::new("timeout");
        command.args(["2", "sh", "run.sh", "out", "doctor"]).current_dir(folder.path());
        let begun = std::time::Instant::now();
        let ended = command.env("REHEARSE", "/nowhere").output().unwrap();
        let text = String::from_utf8(ended.stdout).unwrap();
        assert!(text.contains("doctor: stopped by a signal"), "{text}");
        assert!(begun.elapsed().as_secs() < 12, "{text}");
        assert!(folder.path().join("out/gpu-bundle.tar.gz").exists());
    }

    #[test]
    fn the_script_is_one_that_the_shell_can_read() {
        let checked = Command::new("sh").args(["-n", "-c", RUN]).status().unwrap();
        assert!(checked.success());
    }
}
