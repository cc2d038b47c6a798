//! What an algorithm of the library is worth: whether it is done at all, whether it comes to the
//! same bits each time, and how long it takes.

use super::plan::Matmul;
use super::{MatmulArgs, MatmulSpec, Operand, aux_bytes};
use crate::cuda::{Build, CudaDevice, CudaStream, DeviceMemory, DevicePtr, Event, Launch, Source};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_args;
use crate::rng::CounterRng;
use half::{bf16, f16};

static DIGEST: Source =
    Source { name: "device/digest", text: include_str!("../../../cuda/digest.cu") };
const BLOCK: u32 = 256;

/// Runs that are timed, after one that is not.
const TIMED_RUNS: usize = 8;

/// Bytes that push what a product reads out of the caches: more than a GPU's second level holds.
const FLUSHED_BYTES: usize = 128 << 20;
/// The software device has no caches.
const SOFTWARE_FLUSHED_BYTES: usize = 4096;

/// Numbers of an operand, again and again; not a power of two, so that rows differ.
const PERIOD: usize = 100_003;

kernel_args! {
    struct DigestArgs { words, digest: DevicePtr; count: u64; }
}

/// The kernel, for builds ahead of time.
pub fn kernels() -> Vec<Build> {
    vec![Build { source: &DIGEST, defines: Vec::new() }]
}

/// Matrices of a product's shapes, of random numbers.
pub(super) struct Trial<'a> {
    stream: &'a CudaStream,
    a: DeviceMemory,
    b: DeviceMemory,
    d: DeviceMemory,
    bias: DeviceMemory,
    aux: DeviceMemory,
    flushed: DeviceMemory,
    digest: DeviceMemory,
    start: Event,
    end: Event,
}

impl<'a> Trial<'a> {
    /// Takes memory for it.
    ///
    /// # Errors
    /// Where the device has none left.
    pub(super) fn new(stream: &'a CudaStream, spec: &MatmulSpec) -> Result<Self> {
        let device = stream.device();
        let take = |bytes| DeviceMemory::new(device, "trial of an algorithm", bytes);
        let stored = |operand: &Operand, rows: usize, cols: usize| {
            operand.stride * if operand.transposed { cols } else { rows }
        };
        let operand = |seed, operand: &Operand, rows, cols| {
            random(device, seed, operand.dtype, stored(operand, rows, cols))
        };
        let aux = if spec.epilogue.has_aux() { aux_bytes(spec.m, spec.n) } else { 0 };
        let bias = if spec.epilogue.has_bias() { spec.m.max(spec.n) } else { 0 };
        let flushed = if device.is_software() { SOFTWARE_FLUSHED_BYTES } else { FLUSHED_BYTES };
        Ok(Self {
            stream,
            a: operand(1, &spec.a, spec.m, spec.k)?,
            b: operand(2, &spec.b, spec.k, spec.n)?,
            d: operand(3, &spec.d, spec.m, spec.n)?,
            bias: random(device, 4, DType::F32, bias)?,
            aux: random(device, 5, DType::F32, aux / size_of::<f32>())?,
            flushed: take(flushed)?,
            digest: take(size_of::<u64>())?,
            start: Event::with_timing(device)?,
            end: Event::with_timing(device)?,
        })
    }

    /// Nanoseconds of a run of `plan`; none where the library refuses it, or two runs differ.
    pub(super) fn nanoseconds(&self, plan: &Matmul) -> Result<Option<u64>> {
        let args = self.args();
        if !plan.try_run(self.stream, &args) {
            return Ok(None);
        }
        let first = self.digest()?;
        let mut fastest = f64::INFINITY;
        for _ in 0..TIMED_RUNS {
            let us = self.timed(|stream| plan.run(stream, &args))?;
            fastest = fastest.min(us);
        }
        let is_repeatable = self.digest()? == first;
        Ok(is_repeatable.then_some((1000.0 * fastest) as u64))
    }

    /// Nanoseconds of a kernel that reads and writes so many bytes, both together: of a copy.
    pub(super) fn nanoseconds_of_pass(&self, bytes: usize) -> Result<u64> {
        let (to, from) = (&self.d, &self.a);
        let most = to.bytes().min(from.bytes());
        let us = self.timed(|stream| stream.copy(to.ptr(), from.ptr(), most))?;
        Ok((1000.0 * us * bytes as f64 / (2 * most) as f64) as u64)
    }

    fn timed(&self, run: impl Fn(&CudaStream)) -> Result<f64> {
        self.stream.fill_bytes(self.flushed.ptr(), 0, self.flushed.bytes());
        self.stream.record(&self.start);
        run(self.stream);
        self.stream.record(&self.end);
        self.stream.check()?;
        self.end.synchronize()?;
        self.end.elapsed_us(&self.start)
    }

    fn args(&self) -> MatmulArgs {
        let (bias, aux) = (self.bias.ptr(), self.aux.ptr());
        MatmulArgs { bias, aux, ..MatmulArgs::new(self.a.ptr(), self.b.ptr(), self.d.ptr()) }
    }

    /// A number for all that a run writes.
    fn digest(&self) -> Result<u64> {
        self.stream.fill_bytes(self.digest.ptr(), 0, self.digest.bytes());
        for memory in [&self.d, &self.bias, &self.aux] {
            let count = (memory.bytes() / size_of::<u32>()) as u64;
            let args = DigestArgs { words: memory.ptr(), digest: self.digest.ptr(), count };
            let blocks = self.stream.device().multiprocessors();
            self.stream.run(&DIGEST, &[], "digest", Launch::new(blocks, BLOCK), &args);
        }
        self.stream.synchronize()?;
        let mut digest = [0; size_of::<u64>()];
        self.digest.read(0, &mut digest)?;
        Ok(u64::from_ne_bytes(digest))
    }
}

/// So many numbers between -1 and 1.
fn random(device: &CudaDevice, seed: u64, dtype: DType, len: usize) -> Result<DeviceMemory> {
    let memory = DeviceMemory::new(device, "trial of an algorithm", len * dtype.bytes())?;
    let rng = CounterRng::new(seed, 0);
    let numbers = (0..PERIOD.min(len) as u64).map(|index| 2.0 * rng.uniform(index) - 1.0);
    let bytes: Vec<u8> = match dtype {
        DType::F16 => numbers.flat_map(|x| f16::from_f32(x).to_ne_bytes()).collect(),
        DType::Bf16 => numbers.flat_map(|x| bf16::from_f32(x).to_ne_bytes()).collect(),
        _ => numbers.flat_map(f32::to_ne_bytes).collect(),
    };
    for start in (0..memory.bytes()).step_by(bytes.len().max(1)) {
        let len = bytes.len().min(memory.bytes() - start);
        memory.write(start, &bytes[..len])?;
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::super::{Epilogue, Math};
    use super::*;
    use crate::cuda::testing::{layout_test, stream};

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(DigestArgs, &DIGEST, &[]);
    }

    /// Of one number in any of the places that a run writes.
    #[test]
    fn a_digest_sees_each_change() {
        let Some(stream) = stream() else { return };
        let stream = stream.cuda_body();
        let [a, b, d] = [Operand::plain(DType::F32, 8); 3];
        let (math, bias_dtype, epilogue) = (Math::Full, DType::F32, Epilogue::ReluAuxBias);
        let spec = MatmulSpec { m: 300, n: 8, k: 8, a, b, d, math, epilogue, bias_dtype };
        let trial = Trial::new(stream, &spec).unwrap();
        let before = trial.digest().unwrap();
        for memory in [&trial.d, &trial.bias, &trial.aux] {
            let at = memory.bytes() - 4;
            let mut word = [0; 4];
            memory.read(at, &mut word).unwrap();
            memory.write(at, &word.map(|byte| byte ^ 1)).unwrap();
            assert_ne!(trial.digest().unwrap(), before);
            memory.write(at, &word).unwrap();
            assert_eq!(trial.digest().unwrap(), before);
        }
    }
}
