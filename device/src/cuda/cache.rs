//! Compiled kernels on disk, so that a compiler runs once per machine, or never.
//!
//! Looked for in this order: the folder given by `--kernels`, as `headlong kernels build` made it;
//! the user's cache folder; then NVRTC compiles, and the result goes to the user's cache. A file
//! holds the code, the compiler's log and a checksum; it is written aside and renamed, so that
//! several processes may fill one folder at once.

use super::compile::{Compiled, compile, compiler_version, full_text, options};
use super::source::{Define, Source};
use crate::error::{DeviceError, Result};
use crate::files::OutputFile;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// First bytes of a file, its format's number among them.
const MAGIC: &[u8; 8] = b"HLKERN01";

/// The folders of compiled kernels.
#[derive(Debug, Clone)]
pub struct KernelCache {
    /// Made beforehand, only read.
    pub bundle: Option<PathBuf>,
    /// Filled as needed; `None` where no folder can be had.
    pub cache: Option<PathBuf>,
}

impl KernelCache {
    /// The folder that `headlong kernels build` has made, where one is given, and the user's cache
    /// folder.
    pub fn new(bundle: Option<PathBuf>) -> Self {
        Self { bundle, cache: user_cache() }
    }

    /// A source compiled for an architecture, from a folder or by the compiler.
    pub fn get(
        &self,
        source: &Source,
        defines: &[Define],
        arch: &str,
        is_software: bool,
    ) -> Result<Compiled> {
        let name = file_name(source, defines, arch);
        let bundled = self
            .bundle
            .as_ref()
            .and_then(|folder| read(&folder.join(arch_folder(arch, is_software)).join(&name)));
        if let Some(found) = bundled {
            return Ok(found);
        }
        let compiler = compiler_folder().map_err(|error| self.no_compiler(source, arch, error))?;
        let file = self.cache.as_ref().map(|folder| folder.join(arch).join(compiler).join(&name));
        let turn = file.as_deref().map(turn_at);
        let mut turn =
            turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(found) = turn.as_deref().and_then(Option::clone) {
            return Ok(found);
        }
        if let Some(found) = file.as_deref().and_then(read) {
            return Ok(found);
        }
        let compiled = compile(source, defines, arch)?;
        if let (Some(file), Some(turn)) = (file, &mut turn)
            && write(&file, &compiled).is_err()
        {
            // A full or read-only disk costs the next start a compilation, not this run.
            **turn = Some(compiled.clone());
        }
        Ok(compiled)
    }

    fn no_compiler(&self, source: &Source, arch: &str, error: DeviceError) -> DeviceError {
        let looked = self.bundle.as_ref().map_or_else(
            || "no folder of compiled kernels was given (`--kernels`)".to_owned(),
            |folder| format!("{} has none", folder.display()),
        );
        DeviceError::Unavailable {
            device: "cuda".to_owned(),
            reason: format!(
                "kernel source {} for {arch}: {looked}, and to compile it: {error}",
                source.name
            ),
        }
    }
}

/// What was compiled and could not be written, behind the turn to do so.
type Turn = Arc<Mutex<Option<Compiled>>>;

/// The devices of a process want the same kernels at the same time: one compiles each, the others
/// find it.
fn turn_at(file: &Path) -> Turn {
    static TURNS: Mutex<BTreeMap<PathBuf, Turn>> = Mutex::new(BTreeMap::new());
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(turns.entry(file.to_owned()).or_default())
}

/// Compiles an instance and writes it into a bundle at [`path_in_bundle`]; returns what was
/// compiled.
pub fn build_into(
    folder: &Path,
    source: &Source,
    defines: &[Define],
    arch: &str,
) -> Result<Compiled> {
    let compiled = compile(source, defines, arch)?;
    write(&folder.join(path_in_bundle(source, defines, arch)?), &compiled)?;
    Ok(compiled)
}

/// What a bundle holds of an instance, where it does.
pub fn read_from(
    folder: &Path,
    source: &Source,
    defines: &[Define],
    arch: &str,
) -> Result<Option<Compiled>> {
    Ok(read(&folder.join(path_in_bundle(source, defines, arch)?)))
}

/// Where a bundle of this compiler has an instance: `arch/crate-op-key.cubin`.
pub fn path_in_bundle(source: &Source, defines: &[Define], arch: &str) -> Result<PathBuf> {
    // The software device's compiler counts its minor versions from 1000.
    let arch_folder = arch_folder(arch, compiler_version()?.1 >= 1000);
    Ok(Path::new(&arch_folder).join(file_name(source, defines, arch)))
}

/// The file of an instance: everything that changes the code is in the key, the compiler's version
/// apart.
fn file_name(source: &Source, defines: &[Define], arch: &str) -> String {
    let key = format!("{}\0{}", full_text(source), options(defines, arch).join("\0"));
    format!("{}-{:032x}.cubin", source.name.replace('/', "-"), xxh3_128(key.as_bytes()))
}

/// The compiler's version. That of the software device has every change to it in its version.
fn compiler_folder() -> Result<String> {
    let (major, minor) = compiler_version()?;
    Ok(format!("nvrtc-{major}.{minor}"))
}

/// The folder of a bundle for an architecture. Code for the software device lies apart from code
/// for GPUs.
fn arch_folder(arch: &str, is_software: bool) -> String {
    if is_software { format!("{arch}-software") } else { arch.to_owned() }
}

/// The user's file of algorithms of products, where a folder for it can be had.
pub(super) fn algorithm_file() -> Option<PathBuf> {
    Some(user_cache()?.with_file_name("algorithms.txt"))
}

fn user_cache() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("headlong").join("kernels"))
}

/// A whole file whose sum is right, or nothing.
fn read(file: &Path) -> Option<Compiled> {
    let bytes = std::fs::read(file).ok()?;
    let (head, payload) = bytes.split_at_checked(32)?;
    let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let (sum, cubin_len, log_len) = (number(8)?, number(16)? as usize, number(24)? as usize);
    if head[..8] != *MAGIC
        || payload.len() != cubin_len.checked_add(log_len)?
        || xxh3_64(payload) != sum
    {
        return None;
    }
    let (cubin, log) = payload.split_at(cubin_len);
    Some(Compiled::new(cubin.to_vec(), String::from_utf8_lossy(log).into_owned()))
}

fn write(file: &Path, compiled: &Compiled) -> Result<()> {
    let payload = [compiled.cubin.as_slice(), compiled.log.as_bytes()].concat();
    let mut bytes = MAGIC.to_vec();
    for number in [xxh3_64(&payload), compiled.cubin.len() as u64, compiled.log.len() as u64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(payload);
    // Its name says what it is compiled of: all that write it write the same.
    write_shared(file, &bytes)
}

/// Writes a file, which appears when it is complete; several processes may write it at once.
pub(super) fn write_shared(file: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |source: std::io::Error| DeviceError::KernelCache {
        path: file.display().to_string(),
        source: source.into(),
    };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut output = OutputFile::create_shared(file).map_err(failed)?;
    output.write_all(bytes).and_then(|()| output.commit()).map_err(failed)
}
