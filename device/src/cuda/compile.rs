//! From CUDA C++ text to a cubin by NVRTC, on any machine that has the library: no GPU is needed.

use super::driver;
use super::libraries::Library;
use super::source::{Define, Source};
use crate::error::{DeviceError, Result};
use cudarc::nvrtc::sys;
use std::ffi::{CString, c_char};

/// What stands before every kernel's text.
pub const PRELUDE: &str = concat!(
    include_str!("../../cuda/prelude.cuh"),
    "\n#line 1 \"optimizer.cuh\"\n",
    include_str!("../../cuda/optimizer.cuh")
);

/// A compiled source.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// Code for one architecture.
    pub cubin: Vec<u8>,
    /// What the compiler said, empty lines left out.
    pub log: String,
    /// What each kernel uses, as the assembler reports it; empty from a compiler that reports
    /// nothing.
    pub kernels: Vec<KernelReport>,
}

/// What a kernel uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// The entry point.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread that did not fit into registers: stores and loads together.
    pub spill_bytes: u32,
    /// Static shared memory per block.
    pub shared_bytes: u32,
}

impl Compiled {
    /// Lines of the log that are warnings.
    pub fn warnings(&self) -> Vec<&str> {
        self.log.lines().filter(|line| line.contains("warning")).collect()
    }

    pub(crate) fn new(cubin: Vec<u8>, log: String) -> Self {
        let kernels = reports(&log);
        Self { cubin, log, kernels }
    }
}

/// The whole text a source is compiled from.
pub(crate) fn full_text(source: &Source) -> String {
    format!("#line 1 \"prelude.cuh\"\n{PRELUDE}\n#line 1 \"{}.cu\"\n{}", source.name, source.text)
}

/// The options a source is compiled with; they are part of the cache's key.
pub(crate) fn options(defines: &[Define], arch: &str) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++20".to_owned(),
        "--ptxas-options=-v".to_owned(),
        "--extra-device-vectorization".to_owned(),
    ];
    options.extend(defines.iter().map(|define| format!("-D{}={}", define.name, define.value)));
    options
}

/// NVRTC's version, (major, minor).
pub fn compiler_version() -> Result<(u32, u32)> {
    Library::Nvrtc.require()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    check(code, || "NVRTC's version".to_owned())?;
    Ok((major as u32, minor as u32))
}

/// Compiles a source for one architecture (`sm_90a`), without looking at any cache.
pub fn compile(source: &Source, defines: &[Define], arch: &str) -> Result<Compiled> {
    Library::Nvrtc.require()?;
    let program = Program::new(source)?;
    let options = options(defines, arch);
    let options: Vec<CString> =
        options.iter().map(|option| c_string(option)).collect::<Result<_>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: a living program, and as many C strings as said.
    let code =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    let log = program.log()?;
    if code != sys::nvrtcResult::NVRTC_SUCCESS {
        let log = if log.is_empty() { describe(code) } else { log };
        return Err(DeviceError::Compile {
            kernel: source.name.to_owned(),
            arch: arch.to_owned(),
            log,
        });
    }
    Ok(Compiled::new(program.cubin()?, log))
}

/// A program of the compiler, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Self> {
        let text = c_string(&full_text(source))?;
        let name = c_string(&format!("{}.cu", source.name))?;
        let mut program = std::ptr::null_mut();
        // SAFETY: two C strings, copied by the call; no headers.
        let code = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        check(code, || format!("reading kernel source {}", source.name))?;
        Ok(Self(program))
    }

    fn log(&self) -> Result<String> {
        let what = || "the compiler's log".to_owned();
        let mut len = 0;
        // SAFETY: a living program and a place for the answer.
        check(unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut len) }, what)?;
        let mut log = vec![0_u8; len];
        if len > 0 {
            // SAFETY: room for as many bytes as were asked for.
            check(unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) }, what)?;
        }
        let log = String::from_utf8_lossy(&log);
        let lines = log.trim_end_matches('\0').lines().filter(|line| !line.trim().is_empty());
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn cubin(&self) -> Result<Vec<u8>> {
        let what = || "the compiled code".to_owned();
        let mut len = 0;
        // SAFETY: a compiled program and a place for the answer.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &mut len) }, what)?;
        let mut cubin = vec![0_u8; len];
        // SAFETY: room for as many bytes as were asked for.
        check(unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) }, what)?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| DeviceError::Misuse {
        what: "giving text to the compiler".to_owned(),
        reason: error.to_string(),
    })
}

fn describe(code: sys::nvrtcResult) -> String {
    // SAFETY: returns a static C string for every code.
    driver::string(unsafe { sys::nvrtcGetErrorString(code) })
}

fn check(code: sys::nvrtcResult, what: impl FnOnce() -> String) -> Result<()> {
    if code == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Driver { what: what(), code: code as i32, text: describe(code) })
}

/// Reads the assembler's `-v` lines.
fn reports(log: &str) -> Vec<KernelReport> {
    let mut reports: Vec<KernelReport> = Vec::new();
    for line in log.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            let name = name.split('\'').next().unwrap_or_default().to_owned();
            reports.push(KernelReport { name, registers: 0, spill_bytes: 0, shared_bytes: 0 });
            continue;
        }
        let Some(report) = reports.last_mut() else { continue };
        if line.contains("spill stores") {
            report.spill_bytes +=
                before(line, " bytes spill stores") + before(line, " bytes spill loads");
        } else if line.contains("Used ") {
            report.registers = before(line, " registers");
            report.shared_bytes = before(line, " bytes smem");
        }
    }
    reports
}

/// The number that stands before `words`, or 0.
fn before(line: &str, words: &str) -> u32 {
    let Some(end) = line.find(words) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}
