//! The lint of machine code: what NVIDIA's compiler made of every kernel, held against what each
//! must keep. It finds what no warning says: rows that are loaded one at a time, accesses that were
//! cut into pieces, arrays in local memory, blocks that do not fit.
//!
//! `expected` has the table; `docs/kernels.md` says what this shows and what it cannot.

mod expected;
mod flow;
mod image;
mod judge;
mod mutants;
mod occupancy;
mod sass;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::flow::InFlight;
use self::sass::{Counts, Instruction, Width};
use super::Had;
use super::wheels::Wheel;
use crate::process::At as _;

/// Reads code of all architectures that kernels are compiled for.
const NVDISASM: Wheel = Wheel {
    name: "nvdisasm",
    package: "nvidia-cuda-nvdisasm==13.5.37",
    file: "nvidia/cu13/bin/nvdisasm",
    members: &["nvidia/"],
};

/// One kernel of one instance for one architecture, as `headlong kernels build --json-file` lists
/// it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub architecture: String,
    /// `embedding/lookup:lookup`.
    pub kernel: String,
    /// `DIM=128 ROW_TYPE=0`.
    pub constants: String,
    pub registers: u32,
    pub spill_bytes: u32,
    pub shared_bytes: u32,
    /// Below the folder of kernels.
    pub file: String,
}

impl Row {
    fn entry(&self) -> &str {
        self.kernel.rsplit_once(':').map_or(self.kernel.as_str(), |(_, entry)| entry)
    }
}

/// What the machine code of a kernel shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub threads: Option<u32>,
    pub counts: Counts,
    /// Of loads of 16 bytes, and of 8 or more.
    pub in_flight: InFlight,
    pub half_in_flight: InFlight,
}

/// Lints what the documents list; prints what it saw, and each failing line.
pub fn check(root: &Path, target: &Path, kernels: &Path, documents: &[PathBuf]) -> Result<Had> {
    let disassembler = match disassembler(root, target)? {
        Had::Here(program) => program,
        not => return Ok(not),
    };
    let mut rows = Vec::new();
    for document in documents {
        rows.extend(read_rows(document)?);
    }
    rows.sort();
    rows.dedup();
    ensure!(!rows.is_empty(), "no kernel was compiled");
    let facts = look(&disassembler, kernels, &rows)?;
    let seen: Vec<(Row, Facts)> = rows.into_iter().zip(facts).collect();
    let (known, mut faults) = judge::judge(&seen);
    faults.extend(judge::grid_faults(root));
    faults.extend(mutants::faults(target, &disassembler)?);
    for line in judge::table(&seen).iter().chain(&known) {
        println!("{line}");
    }
    for fault in &faults {
        println!("lint: {fault}");
    }
    let (num_known, num_faults) = (known.len(), faults.len());
    println!("lint: {} kernels, {num_known} known faults, {num_faults} others", seen.len());
    ensure!(faults.is_empty(), "the machine code of some kernel is not what it must be");
    Ok(Had::Here(disassembler))
}

fn disassembler(root: &Path, target: &Path) -> Result<Had> {
    let had = NVDISASM.fetch(root, target)?;
    if let Had::Here(program) = &had {
        // Python unpacks without modes.
        let mut permissions = fs::metadata(program).at(program)?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(program, permissions).at(program)?;
    }
    Ok(had)
}

fn read_rows(document: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(document).at(document)?;
    let parsed: Value =
        serde_json::from_str(&text).with_context(|| document.display().to_string())?;
    let rows = parsed["kernels"].as_array().context("a document without kernels")?;
    rows.iter().map(read_row).collect()
}

fn read_row(row: &Value) -> Result<Row> {
    let word = |name: &str| {
        let word = row[name].as_str().with_context(|| format!("a kernel without `{name}`"))?;
        anyhow::Ok(word.to_owned())
    };
    let number = |name: &str| {
        let number = row[name].as_u64().with_context(|| format!("a kernel without `{name}`"))?;
        anyhow::Ok(u32::try_from(number)?)
    };
    Ok(Row {
        architecture: word("arch")?,
        kernel: word("kernel")?,
        constants: word("constants")?,
        registers: number("registers")?,
        spill_bytes: number("spill_bytes")?,
        shared_bytes: number("shared_bytes")?,
        file: word("file")?,
    })
}

/// The facts of each row, in their order; all architectures at once.
fn look(disassembler: &Path, kernels: &Path, rows: &[Row]) -> Result<Vec<Facts>> {
    let mut architectures: Vec<&str> = rows.iter().map(|row| row.architecture.as_str()).collect();
    architectures.dedup();
    let facts = thread::scope(|scope| {
        let of_one =
            |architecture| scope.spawn(move || look_at(disassembler, kernels, rows, architecture));
        let running: Vec<_> = architectures.iter().map(|name| of_one(*name)).collect();
        let done = running.into_iter().map(|thread| thread.join().expect("no reader panics"));
        done.collect::<Result<Vec<_>>>()
    })?;
    // Rows are sorted by architecture.
    Ok(facts.concat())
}

/// Of each kernel of a file: its threads, and where its code lies.
type Placed = BTreeMap<String, (Option<u32>, Range<u32>)>;

fn look_at(
    disassembler: &Path,
    kernels: &Path,
    rows: &[Row],
    architecture: &str,
) -> Result<Vec<Facts>> {
    let mut image = Image::default();
    let mut files: HashMap<&str, Placed> = HashMap::new();
    let rows: Vec<&Row> = rows.iter().filter(|row| row.architecture == architecture).collect();
    for row in &rows {
        if !files.contains_key(row.file.as_str()) {
            let codes = image::read(&kernels.join(&row.file))?;
            let placed =
                codes.into_iter().map(|code| (code.name, (code.threads, image.add(code.bytes))));
            files.insert(&row.file, placed.collect());
        }
    }
    let place = kernels.join(format!("{architecture}.bin"));
    let facts = image.disassemble(disassembler, architecture, &place)?;
    let mut found = Vec::new();
    for row in rows {
        let (threads, range) = files[row.file.as_str()]
            .get(row.entry())
            .with_context(|| format!("{} has no code of {}", row.file, row.kernel))?;
        found.push(Facts { threads: *threads, ..facts[&range.start].clone() });
    }
    Ok(found)
}

/// The code of many kernels in one, because a disassembler takes longer to start than to read a
/// kernel. Jumps are relative, so that code can lie anywhere.
#[derive(Default)]
struct Image {
    bytes: Vec<u8>,
    known: HashMap<Vec<u8>, Range<u32>>,
}

impl Image {
    /// Where the code lies: instances that have the same lie in the same place.
    fn add(&mut self, code: Vec<u8>) -> Range<u32> {
        if let Some(range) = self.known.get(&code) {
            return range.clone();
        }
        let first = self.bytes.len() as u32;
        self.bytes.extend(&code);
        let range = first..self.bytes.len() as u32;
        self.known.insert(code, range.clone());
        range
    }

    /// What each kernel's code shows, by its first address; `place` is for the file that is read.
    fn disassemble(
        &self,
        disassembler: &Path,
        architecture: &str,
        place: &Path,
    ) -> Result<HashMap<u32, Facts>> {
        fs::write(place, &self.bytes).at(place)?;
        let mut command = Command::new(disassembler);
        // `sm_90a` is `SM90a` here.
        command.args(["--no-dataflow", "--binary", &architecture.replace("sm_", "SM")]).arg(place);
        let output = command.output().with_context(|| disassembler.display().to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nvdisasm refuses {}: {said}", place.display());
        let text = String::from_utf8(output.stdout).context("nvdisasm's text")?;
        let code: Vec<Instruction<'_>> = text.lines().filter_map(Instruction::parse).collect();
        let mut facts = HashMap::new();
        for range in self.known.values() {
            let index = |address| code.partition_point(|instruction| instruction.at < address);
            let code = &code[index(range.start)..index(range.end)];
            ensure!(
                code.first().is_some_and(|instruction| instruction.at == range.start),
                "nvdisasm has left out the code at {:#x}",
                range.start
            );
            let found = Facts {
                threads: None,
                counts: Counts::of(code),
                in_flight: InFlight::of(code, Width::Sixteen),
                half_in_flight: InFlight::of(code, Width::Eight),
            };
            facts.insert(range.start, found);
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_code_lies_in_one_place() {
        let mut image = Image::default();
        assert_eq!(image.add(vec![1; 16]), 0..16);
        assert_eq!(image.add(vec![2; 32]), 16..48);
        assert_eq!(image.add(vec![1; 16]), 0..16);
        assert_eq!(image.bytes.len(), 48);
    }

    #[test]
    fn rows_are_read_and_what_is_missing_is_named() {
        let mut row = serde_json::json!({
            "arch": "sm_80", "kernel": "a/b:c", "constants": "X=1", "registers": 3,
            "spill_bytes": 0, "shared_bytes": 8, "file": "sm_80/a-b.cubin",
        });
        let read = read_row(&row).unwrap();
        assert_eq!((read.entry(), read.registers, read.shared_bytes), ("c", 3, 8));
        row["file"] = Value::Null;
        assert!(read_row(&row).unwrap_err().to_string().contains("`file`"));
    }
}
