//! `cargo xtask libraries`: the real NVRTC, cuBLASLt and NCCL, from their wheels, without a GPU:
//! whether they have the functions that the program calls, whether their headers have the numbers
//! and sizes that it declares, and what they answer where no device is needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use object::{Object as _, ObjectSymbol as _};

use super::wheels::Wheel;
use super::{Had, nvrtc};
use crate::process::{self, At as _};

const CUBLAS: Wheel = Wheel {
    name: "cublas",
    package: "nvidia-cublas==13.1.0.3",
    file: "nvidia/cu13/lib/libcublasLt.so.13",
    members: &["nvidia/cu13/lib/libcublasLt", "nvidia/cu13/include/cublas"],
};
const NCCL: Wheel = Wheel {
    name: "nccl",
    package: "nvidia-nccl-cu13==2.32.3",
    file: "nvidia/nccl/lib/libnccl.so.2",
    members: &["nvidia/nccl/lib/", "nvidia/nccl/include/nccl.h"],
};
/// What the headers of both include.
const RUNTIME: Wheel = Wheel {
    name: "cuda-headers",
    package: "nvidia-cuda-runtime==13.0.96",
    file: "nvidia/cu13/include/cuda_runtime.h",
    members: &["nvidia/cu13/include/"],
};
const CRT: Wheel = Wheel {
    name: "cuda-crt",
    package: "nvidia-cuda-crt==13.0.88",
    file: "nvidia/cu13/include/crt/host_config.h",
    members: &["nvidia/cu13/include/"],
};

/// Libraries that are checked together, and what their headers need.
pub struct Part {
    wheels: &'static [&'static Wheel],
    megabytes: u32,
    check: fn(&Path, &Path) -> Result<String>,
}

/// cuBLASLt, and NVRTC, which it is asked next to.
pub const BLAS_PART: Part =
    Part { wheels: &[&nvrtc::WHEEL, &CUBLAS, &RUNTIME, &CRT], megabytes: 480, check: check_blas };
pub const NCCL_PART: Part =
    Part { wheels: &[&NCCL, &RUNTIME, &CRT], megabytes: 350, check: check_nccl };

/// C++ headers of small floats, which need yet another wheel: nothing of them is used.
const EMPTY_HEADERS: [&str; 3] = ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"];
/// Ask the libraries, by Python's `ctypes`.
const BLAS_ANSWERS: &str = include_str!("libraries/blas.py");
const NCCL_ANSWERS: &str = include_str!("libraries/nccl.py");

const BLAS_SOURCES: [&str; 3] =
    ["device/src/cuda/blas.rs", "device/src/cuda/blas/library.rs", "device/src/cuda/blas/trial.rs"];
const NVRTC_SOURCE: &str = "device/src/cuda/compile.rs";
const NCCL_SOURCE: &str = "comm/nccl-rs/src/sys.rs";
const NCCL_KINDS: &str = "comm/nccl-rs/src/kinds.rs";

pub fn run(root: &Path, target: &Path) -> Result<bool> {
    for part in [BLAS_PART, NCCL_PART] {
        println!("libraries: {}", part.fetch_and_check(root, target)?);
    }
    Ok(true)
}

impl Part {
    /// Why it is skipped, where its wheels are not all there: they are more than each run should
    /// fetch.
    pub fn missing(&self, target: &Path) -> Option<String> {
        let absent = self.wheels.iter().find(|wheel| !wheel.path(target).is_file())?;
        Some(format!(
            "the real libraries are not in target ({} is absent): `cargo xtask libraries` fetches \
             {} MB of wheels",
            absent.package, self.megabytes
        ))
    }

    pub fn fetch_and_check(&self, root: &Path, target: &Path) -> Result<String> {
        for wheel in self.wheels {
            if let Had::Not(reason) = wheel.fetch(root, target)? {
                bail!("the libraries cannot be checked, because {reason}");
            }
        }
        self.check(root, target)
    }

    /// Everything, with the wheels in `target`; a remark, or an error that says what differs.
    pub fn check(&self, root: &Path, target: &Path) -> Result<String> {
        (self.check)(root, target)
    }
}

fn check_blas(root: &Path, target: &Path) -> Result<String> {
    let (blas, compiler) = (read_all(root, &BLAS_SOURCES)?, read_all(root, &[NVRTC_SOURCE])?);
    let functions = exported(&nvrtc::WHEEL, target, called(&compiler, "nvrtc"))?
        + exported(&CUBLAS, target, called(&blas, "cublasLt"))?;
    let values = values(&blas, &bindings(root)?)?;
    compile(target, "cublasLt.h", &values)?;
    let values: Vec<_> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    ask(BLAS_ANSWERS, &[nvrtc::WHEEL.path(target), CUBLAS.path(target)], &values)?;
    Ok(format!("{functions} functions, {} numbers", values.len()))
}

fn check_nccl(root: &Path, target: &Path) -> Result<String> {
    let (nccl, kinds) = (read_all(root, &[NCCL_SOURCE])?, read_all(root, &[NCCL_KINDS])?);
    let functions = exported(&NCCL, target, called(&nccl, "nccl"))?;
    let values = of_nccl(&nccl, &kinds)?;
    compile(target, "nccl.h", &values)?;
    ask(NCCL_ANSWERS, &[NCCL.path(target)], &[])?;
    Ok(format!("{functions} functions, {} numbers and sizes", values.len()))
}

/// How many functions are called of a library, which must have all of them.
fn exported(wheel: &Wheel, target: &Path, names: BTreeSet<&str>) -> Result<usize> {
    ensure!(names.len() > 5, "hardly any function of {} is called: {names:?}", wheel.name);
    let count = names.len();
    let absent = absent_from(&wheel.path(target), names)?;
    ensure!(absent.is_empty(), "{} has no {}", wheel.package, absent.join(", "));
    Ok(count)
}

fn read_all(root: &Path, files: &[&str]) -> Result<String> {
    let texts = files.iter().map(|file| fs::read_to_string(root.join(file)).at(&root.join(file)));
    Ok(texts.collect::<Result<Vec<_>>>()?.concat())
}

/// The words of a source.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Functions that a source names: words of a library's prefix and a capital, types left out.
fn called<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let is_function = |word: &&str| {
        let rest = word.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with(|c: char| c.is_ascii_uppercase())
            && !word.ends_with("_t")
            && !["nvrtcProgram", "nvrtcResult", "ncclUniqueId"].contains(word)
    };
    words(text).filter(is_function).collect()
}

/// Which of the names a library does not export.
fn absent_from<'a>(library: &Path, names: BTreeSet<&'a str>) -> Result<Vec<&'a str>> {
    let bytes = fs::read(library).at(library)?;
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(bytes.as_slice())
        .with_context(|| library.display().to_string())?;
    let exported: BTreeSet<&str> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    Ok(names.into_iter().filter(|name| !exported.contains(name)).collect())
}

/// cudarc's declarations of cuBLASLt.
fn bindings(root: &Path) -> Result<String> {
    let manifest = root.join("Cargo.toml");
    let mut command = cargo_metadata::MetadataCommand::new();
    let metadata = command.manifest_path(manifest).exec().context("cargo metadata")?;
    let cudarc = metadata.packages.iter().find(|package| package.name.as_str() == "cudarc");
    let folder = cudarc.context("cudarc is a dependency")?.manifest_path.parent();
    let file = folder.context("a manifest lies in a folder")?.join("src/cublaslt/sys/mod.rs");
    fs::read_to_string(&file).at(file.as_std_path())
}

/// The enumerators that the sources name, with the values that the declarations give them.
fn values(sources: &str, declarations: &str) -> Result<Vec<(String, String)>> {
    let is_enumerator = |word: &&str| {
        let families = ["CUBLASLT_", "CUDA_R_", "CUBLAS_COMPUTE_", "CUBLAS_STATUS_"];
        families.iter().any(|family| word.starts_with(family))
    };
    let names: BTreeSet<&str> = words(sources).filter(is_enumerator).collect();
    let mut values = Vec::new();
    for name in names {
        let line_starts = format!("{name} = ");
        let declared = declarations.lines().filter_map(|line| {
            line.trim().strip_prefix(&line_starts)?.strip_suffix(',').map(str::to_owned)
        });
        let declared: BTreeSet<String> = declared.collect();
        // One value in all versions of CUDA that cudarc knows.
        let [value] = declared.iter().collect::<Vec<_>>()[..] else {
            bail!("cudarc declares {name} as {declared:?}");
        };
        values.push((name.to_owned(), value.clone()));
    }
    Ok(values)
}

/// What `nccl-rs` declares of NCCL: numbers of types and operations, sizes, the magic number.
fn of_nccl(sys: &str, kinds: &str) -> Result<Vec<(String, String)>> {
    let after = |text: &str, what: &str| {
        let (_, rest) =
            text.split_once(what).with_context(|| format!("nccl-rs has no `{what}`"))?;
        let is_digit = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        anyhow::Ok(rest.chars().take_while(is_digit).filter(|c| *c != '_').collect::<String>())
    };
    let named = |name: &str, value: String| (name.to_owned(), value);
    Ok(vec![
        named("ncclUint8", after(kinds, "U8: Self = Self { number: ")?),
        named("ncclFloat32", after(kinds, "F32: Self = Self { number: ")?),
        named("ncclSum", after(kinds, "SUM: Self = Self(")?),
        named("ncclSuccess", after(sys, "SUCCESS: Code = Code(")?),
        named("ncclInProgress", after(sys, "IN_PROGRESS: Code = Code(")?),
        named("NCCL_API_MAGIC", after(sys, "MAGIC: c_uint = ")?),
        named("sizeof(ncclUniqueId)", after(sys, "UniqueId(pub(crate) [c_char; ")?),
        named("sizeof(ncclConfig_t)", after(sys, "size_of_version(23100), (23100, ")?),
    ])
}

/// Checks names and their values against a header of the wheels.
fn compile(target: &Path, header: &str, values: &[(String, String)]) -> Result<()> {
    let folder = target.join("libraries").join(header);
    process::fresh_folder(&folder)?;
    for header in EMPTY_HEADERS {
        let file = folder.join(header);
        fs::write(&file, "").at(&file)?;
    }
    let mut text = format!("#include <{header}>\n");
    for (name, value) in values {
        text += &format!("_Static_assert({name} == {value}, \"{name} is not {value}\");\n");
    }
    let source = folder.join("declared.c");
    fs::write(&source, text).at(&source)?;
    let mut command = Command::new("cc");
    command.arg("-fsyntax-only").arg("-I").arg(&folder);
    for wheel in [&CUBLAS, &NCCL, &RUNTIME, &CRT] {
        let include = match wheel.name {
            "nccl" => "nvidia/nccl/include",
            _ => "nvidia/cu13/include",
        };
        command.arg("-I").arg(target.join(wheel.name).join(include));
    }
    let output = command.arg(&source).output().context("starting cc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the headers declare something else:\n{said}");
    Ok(())
}

fn ask(answers: &str, libraries: &[PathBuf], values: &[String]) -> Result<()> {
    let mut command = Command::new("python3");
    command.args(["-c", answers]).args(libraries).args(values);
    let output = command.output().context("starting python3")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a library answers otherwise: {}", said.trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_from_types() {
        let text = "sys::cublasLtCreate(&mut h); handle: sys::cublasLtHandle_t; \
                    dropped_by!(Layout, cublasLtMatrixLayoutDestroy);";
        let names: Vec<&str> = called(text, "cublasLt").into_iter().collect();
        assert_eq!(names, ["cublasLtCreate", "cublasLtMatrixLayoutDestroy"]);
    }

    #[test]
    fn values_are_those_of_the_declarations() {
        let declared = "    CUDA_R_32F = 0,\n    CUDA_R_32F_X = 1,\n";
        let found = values("DataType::CUDA_R_32F", declared).unwrap();
        assert_eq!(found, [("CUDA_R_32F".to_owned(), "0".to_owned())]);
        assert!(values("CUDA_R_8", declared).is_err());
        assert!(values("CUDA_R_32F", "CUDA_R_32F = 0,\nCUDA_R_32F = 2,").is_err());
    }

    /// The declarations are found where the sources have them.
    #[test]
    fn what_nccl_rs_declares_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let read = |file| read_all(root, &[file]).unwrap();
        let declared = of_nccl(&read(NCCL_SOURCE), &read(NCCL_KINDS)).unwrap();
        assert_eq!(declared[1], ("ncclFloat32".to_owned(), "7".to_owned()));
        assert_eq!(declared[5].1, "0xcafebeef");
    }
}
