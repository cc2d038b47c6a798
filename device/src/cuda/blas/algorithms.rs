//! Which algorithm for which product: timed once, kept in a file.

use super::library::library_version;
use super::plan::{Matmul, check_spec};
use super::{MatmulArgs, MatmulSpec, Operand, aux_bytes};
use crate::cuda::cache::write_shared;
use crate::cuda::{CudaStream, DeviceMemory, Event};
use crate::error::Result;
use cudarc::cublaslt::sys;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// Runs of a proposal that are timed, after one that is not.
const TIMED_RUNS: usize = 8;

/// One search at a time per process: two would time each other.
static SEARCH: Mutex<()> = Mutex::new(());

/// Chosen algorithms by product, device and version of the library: one line each,
/// `key word word …`, all hexadecimal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Algorithms(BTreeMap<String, [u64; 8]>);

impl Algorithms {
    /// Reads a file; one that is not there is empty, and lines that are none are left out.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let key = words.next()?.to_owned();
            let words: Vec<u64> =
                words.map(|word| u64::from_str_radix(word, 16).ok()).collect::<Option<_>>()?;
            Some((key, words.try_into().ok()?))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Writes the file, which appears when it is complete.
    pub fn write(&self, file: &Path) -> Result<()> {
        let line = |(key, words): (&String, &[u64; 8])| {
            let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
            format!("{key} {}\n", words.join(" "))
        };
        let text: String = self.0.iter().map(line).collect();
        // Processes that measure at once replace each other's: each file is whole, and measured
        // again where it lacks a key.
        write_shared(file, text.as_bytes())
    }

    /// The algorithm kept for a key.
    pub fn get(&self, key: &str) -> Option<[u64; 8]> {
        self.0.get(key).copied()
    }

    /// Keeps an algorithm.
    pub fn insert(&mut self, key: String, words: [u64; 8]) {
        self.0.insert(key, words);
    }
}

/// Everything that decides which algorithm is fastest, and whether it exists.
fn key(stream: &CudaStream, spec: &MatmulSpec) -> Result<String> {
    let text = format!("{spec:?} {} {}", stream.device().name(), library_version()?);
    Ok(format!("{:032x}", xxh3_128(text.as_bytes())))
}

impl Matmul {
    /// Plans a product for the stream's device, and makes the stream's workspace if it has none
    /// yet.
    ///
    /// The algorithm is the one kept in the algorithm file, if one is set and has it; else, with a
    /// file, the fastest of the library's first proposals, timed now and kept; else its first
    /// proposal.
    pub fn new(stream: &CudaStream, spec: MatmulSpec) -> Result<Self> {
        check_spec(&spec)?;
        let proposals = Self::proposals(stream, &spec)?;
        let first = proposals[0];
        let mut plan = Self::with_algorithm(stream, spec, &first)?;
        if proposals.len() > 1 {
            let chosen = choose(stream, &mut plan, &proposals)?;
            plan.take(&chosen);
        }
        Ok(plan)
    }
}

/// The proposal that the file names, or the fastest, which the file then names; the first without a
/// file.
fn choose(
    stream: &CudaStream,
    plan: &mut Matmul,
    proposals: &[sys::cublasLtMatmulHeuristicResult_t],
) -> Result<sys::cublasLtMatmulHeuristicResult_t> {
    let file = &stream.device().files().algorithms;
    file.as_ref().map_or(Ok(proposals[0]), |file| choose_by(file, stream, plan, proposals))
}

fn choose_by(
    file: &Path,
    stream: &CudaStream,
    plan: &mut Matmul,
    proposals: &[sys::cublasLtMatmulHeuristicResult_t],
) -> Result<sys::cublasLtMatmulHeuristicResult_t> {
    let _turn = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
    let key = key(stream, plan.spec())?;
    let kept = Algorithms::read(file).get(&key);
    if let Some(found) = kept.and_then(|words| proposals.iter().find(|p| p.algo.data == words)) {
        return Ok(*found);
    }
    let chosen = fastest(stream, plan, proposals)?;
    // Read again: another process may have written meanwhile.
    let mut algorithms = Algorithms::read(file);
    algorithms.insert(key, chosen.algo.data);
    algorithms.write(file)?;
    Ok(chosen)
}

/// Times each proposal on matrices of zeros.
fn fastest(
    stream: &CudaStream,
    plan: &mut Matmul,
    proposals: &[sys::cublasLtMatmulHeuristicResult_t],
) -> Result<sys::cublasLtMatmulHeuristicResult_t> {
    let scratch = Scratch::new(stream, plan.spec())?;
    let args = scratch.args();
    let mut best = (f64::INFINITY, proposals[0]);
    for proposal in proposals {
        plan.take(proposal);
        plan.run(stream, &args);
        let start = Event::with_timing(stream.device())?;
        let end = Event::with_timing(stream.device())?;
        stream.record(&start);
        (0..TIMED_RUNS).for_each(|_| plan.run(stream, &args));
        stream.record(&end);
        stream.check()?;
        end.synchronize()?;
        let time = end.elapsed_us(&start)?;
        if time < best.0 {
            best = (time, *proposal);
        }
    }
    Ok(best.1)
}

/// Zeroed matrices of a product's shapes.
struct Scratch {
    a: DeviceMemory,
    b: DeviceMemory,
    d: DeviceMemory,
    bias: DeviceMemory,
    aux: DeviceMemory,
}

impl Scratch {
    fn new(stream: &CudaStream, spec: &MatmulSpec) -> Result<Self> {
        let take = |bytes| DeviceMemory::new(stream.device(), "search of an algorithm", bytes);
        let stored = |operand: &Operand, rows: usize, cols: usize| {
            operand.stride * operand.dtype.bytes() * if operand.transposed { cols } else { rows }
        };
        let aux = if spec.epilogue.has_aux() { aux_bytes(spec.m, spec.n) } else { 0 };
        let bias = if spec.epilogue.has_bias() { 4 * spec.m.max(spec.n) } else { 0 };
        Ok(Self {
            a: take(stored(&spec.a, spec.m, spec.k))?,
            b: take(stored(&spec.b, spec.k, spec.n))?,
            d: take(stored(&spec.d, spec.m, spec.n))?,
            bias: take(bias)?,
            aux: take(aux)?,
        })
    }

    fn args(&self) -> MatmulArgs {
        let (bias, aux) = (self.bias.ptr(), self.aux.ptr());
        MatmulArgs { bias, aux, ..MatmulArgs::new(self.a.ptr(), self.b.ptr(), self.d.ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Epilogue, Math};
    use super::*;
    use crate::DType;
    use crate::cuda::testing::stream;

    #[test]
    fn the_fastest_is_timed_once_and_then_read() {
        let Some(stream) = stream() else { return };
        let stream = stream.cuda_body();
        let plain = Operand::plain(DType::F32, 8);
        let spec = MatmulSpec {
            m: 16,
            n: 8,
            k: 8,
            a: plain,
            b: plain,
            d: plain,
            math: Math::Full,
            epilogue: Epilogue::ReluAuxBias,
            bias_dtype: DType::F32,
        };
        let file = std::env::temp_dir().join(format!("headlong-search-{}.txt", std::process::id()));
        let first = Matmul::proposals(stream, &spec).unwrap()[0];
        let mut second = first;
        second.wavesCount = 2.0;
        let mut plan = Matmul::new(stream, spec).unwrap();
        let chosen = choose_by(&file, stream, &mut plan, &[first, second]).unwrap();
        assert_eq!(chosen.algo.data, first.algo.data);
        let kept = Algorithms::read(&file);
        assert_eq!(kept.get(&key(stream, &spec).unwrap()), Some(first.algo.data));
        // What the file names is taken, wherever it is; what it names and cuBLASLt does not propose
        // is not.
        let mut other = first;
        other.algo.data[7] ^= 1;
        let again = choose_by(&file, stream, &mut plan, &[other, first]).unwrap();
        assert_eq!(again.algo.data, first.algo.data);
        std::fs::remove_file(&file).unwrap();
    }
}
