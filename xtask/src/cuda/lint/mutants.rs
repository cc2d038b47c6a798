//! The lint, linted: a small kernel is compiled as it should be and with four mistakes, each of
//! which must be found, and nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::expected::{self, Rule};
use super::{Facts, Image, Row, image, judge};
use crate::cuda::nvrtc;
use crate::process::At as _;

const SOURCE: &str = include_str!("tests/copy_rows.cu");
/// NVRTC by Python's `ctypes`: pip, which fetches NVRTC, has a Python.
const COMPILE: &str = include_str!("tests/compile.py");
const ARCHITECTURE: &str = "sm_90a";

/// What each value of `MUTANT` breaks.
const MUTANTS: [Option<Rule>; 5] = [
    None,
    Some(Rule::LoadsInFlight),
    Some(Rule::Spills),
    Some(Rule::LocalMemory),
    Some(Rule::WideStores),
];

/// A line for each mutant that is not found, or is taken for something else.
pub fn faults(target: &Path, disassembler: &Path) -> Result<Vec<String>> {
    let folder = target.join("kernels/mutants");
    fs::create_dir_all(&folder).at(&folder)?;
    let (source, script) = (folder.join("copy_rows.cu"), folder.join("compile.py"));
    fs::write(&source, SOURCE).at(&source)?;
    fs::write(&script, COMPILE).at(&script)?;
    let mut image = Image::default();
    let mut rows = Vec::new();
    for mutant in 0..MUTANTS.len() {
        let output = folder.join(format!("{mutant}.cubin"));
        let log = compile(target, &script, &source, &output, mutant)?;
        let codes = image::codes(&fs::read(&output).at(&output)?)?;
        let code = codes.into_iter().next().context("the mutant has no kernel")?;
        rows.push((row(mutant, &log)?, code.threads, image.add(code.bytes).start));
    }
    let facts = image.disassemble(disassembler, ARCHITECTURE, &folder.join("all.bin"))?;
    let seen = rows.into_iter().map(|(row, threads, at)| {
        let facts = Facts { threads, ..facts[&at].clone() };
        (row, facts)
    });
    let wrong = seen.zip(MUTANTS).filter_map(|((row, facts), broken)| {
        let found = judge::rules_broken_by_a_mutant(&row, &facts);
        // What is spilled lies in local memory.
        let is_right = match broken {
            None => found.is_empty(),
            Some(Rule::LocalMemory) => found == [Rule::LocalMemory],
            Some(rule) => found.contains(&rule),
        };
        let constants = row.constants;
        (!is_right).then(|| format!("{constants}: expected {broken:?}, the lint finds {found:?}"))
    });
    Ok(wrong.collect())
}

/// Compiles a mutant with the options of `device/src/cuda/compile.rs`; the compiler's log.
fn compile(
    target: &Path,
    script: &Path,
    source: &Path,
    output: &Path,
    mutant: usize,
) -> Result<String> {
    let mut command = Command::new("python3");
    command.arg(script).arg(nvrtc::WHEEL.path(target)).arg(source).arg(output);
    command.arg(format!("--gpu-architecture={ARCHITECTURE}")).arg(format!("-DMUTANT={mutant}"));
    command.args(["--std=c++20", "--ptxas-options=-v", "--extra-device-vectorization"]);
    // Where NVRTC finds its own second library.
    command.env("LD_LIBRARY_PATH", nvrtc::WHEEL.path(target).with_file_name(""));
    let ended = command.output().context("starting python3")?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "mutant {mutant} does not compile: {said}");
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

fn row(mutant: usize, log: &str) -> Result<Row> {
    let number = |what: &str| {
        let (before, _) = log.split_once(what)?;
        before.rsplit([' ', '\t']).next()?.parse::<u32>().ok()
    };
    Ok(Row {
        architecture: ARCHITECTURE.to_owned(),
        kernel: expected::MUTANT.to_owned(),
        constants: format!("MUTANT={mutant}"),
        registers: number(" registers").context("a log without registers")?,
        spill_bytes: number(" bytes spill stores").context("a log without spills")?,
        shared_bytes: 0,
        file: String::new(),
    })
}
