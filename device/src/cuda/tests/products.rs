//! Products and their epilogues on small integers, whose sums are exact in any order, against
//! loops.

use crate::cuda::blas::{
    Algorithms, Epilogue, Kept, Math, Matmul, MatmulArgs, MatmulSpec, Operand, aux_bytes,
    aux_stride_bits,
};
use crate::cuda::testing::{download, stream, upload};
use crate::cuda::{CudaStream, DeviceMemory};
use crate::dtype::Element;
use crate::testing::small_integers;
use crate::{DType, DeviceError};
use half::{bf16, f16};

/// `rows × cols` at a stride, after each row numbers that must not be read.
fn stored(values: &[f32], cols: usize, stride: usize) -> Vec<f32> {
    let mut out = vec![99.0; values.len() / cols * stride];
    for (row, from) in values.chunks(cols).enumerate() {
        out[row * stride..][..cols].copy_from_slice(from);
    }
    out
}

fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols;
    (0..values.len()).map(|i| values[i % rows * cols + i / rows]).collect()
}

fn product(a: &[f32], b: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let cell = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum::<f32>();
    (0..m * n).map(cell).collect()
}

trait Rounded: Element + Into<f32> {
    fn round(x: f32) -> Self;
}
impl Rounded for f32 {
    fn round(x: f32) -> Self {
        x
    }
}
impl Rounded for bf16 {
    fn round(x: f32) -> Self {
        bf16::from_f32(x)
    }
}
impl Rounded for f16 {
    fn round(x: f32) -> Self {
        f16::from_f32(x)
    }
}

fn memory<T: Rounded>(stream: &CudaStream, values: &[f32]) -> DeviceMemory {
    let values: Vec<T> = values.iter().map(|&x| T::round(x)).collect();
    upload(stream.device(), &values).unwrap()
}

fn spec(dtype: DType, (m, n, k): (usize, usize, usize), epilogue: Epilogue) -> MatmulSpec {
    MatmulSpec {
        m,
        n,
        k,
        a: Operand::plain(dtype, k),
        b: Operand::plain(dtype, n),
        d: Operand::plain(dtype, n),
        math: Math::Full,
        epilogue,
        bias_dtype: dtype,
    }
}

/// One product in every storage order, with `T` operands, a stride and `beta · C`.
fn check_orders<T: Rounded>(stream: &CudaStream, math: Math) {
    let (m, n, k) = (24, 16, 40);
    let (a, b, c) = (small_integers(1, m * k), small_integers(2, k * n), small_integers(3, m * n));
    let expected = product(&a, &b, (m, n, k));
    for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let operand = |is, rows: usize, cols: usize| {
            let stride = 8 + if is { rows } else { cols };
            Operand { dtype: T::DTYPE, stride, transposed: is }
        };
        let base = spec(T::DTYPE, (m, n, k), Epilogue::None);
        let (of_a, of_b) = (operand(a_transposed, m, k), operand(b_transposed, k, n));
        let spec =
            MatmulSpec { a: of_a, b: of_b, d: Operand::plain(T::DTYPE, n + 8), math, ..base };
        let keep = |values: &[f32], operand: &Operand, cols: usize| {
            let rows = values.len() / cols;
            let values =
                if operand.transposed { transposed(values, cols) } else { values.to_vec() };
            stored(&values, if operand.transposed { rows } else { cols }, operand.stride)
        };
        let (on_a, on_b) =
            (memory::<T>(stream, &keep(&a, &of_a, k)), memory::<T>(stream, &keep(&b, &of_b, n)));
        let d = memory::<T>(stream, &stored(&c, n, n + 8));
        let plan = Matmul::new(stream, spec).unwrap();
        let args = MatmulArgs { beta: 1.0, ..MatmulArgs::new(on_a.ptr(), on_b.ptr(), d.ptr()) };
        plan.run(stream, &args);
        stream.synchronize().unwrap();
        let got = download::<T>(&d).unwrap();
        // Of some algorithms on a GPU the product is rounded before C is added.
        let is_gpu = !stream.device().is_software();
        let sums = |product: fn(f32) -> f32| -> Vec<f32> {
            let with_c: Vec<f32> = expected.iter().zip(&c).map(|(x, c)| product(*x) + c).collect();
            stored(&with_c, n, n + 8)
        };
        let (exact, rounded) = (sums(|x| x), sums(|x| T::round(x).into()));
        let bits = |value: T| crate::cuda::testing::bytes_of(&[value]).to_vec();
        for (index, got) in got.into_iter().enumerate() {
            let is = |sums: &[f32]| bits(got) == bits(T::round(sums[index]));
            assert!(is(&exact) || is_gpu && is(&rounded), "{spec:?}, element {index}");
        }
    }
}

#[test]
fn every_order_and_type() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    check_orders::<f32>(stream, Math::Full);
    check_orders::<f32>(stream, Math::Tf32);
    check_orders::<f16>(stream, Math::Full);
    check_orders::<bf16>(stream, Math::Full);
}

#[test]
fn a_layer_and_its_mask_by_its_epilogues() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    // X is batch × inputs, W outputs × inputs, Y batch × outputs.
    let (batch, inputs, outputs) = (24, 32, 16);
    let (x, w) = (small_integers(1, batch * inputs), small_integers(2, outputs * inputs));
    let bias = small_integers(3, outputs);
    let on = |values: &[f32]| memory::<f32>(stream, values);
    let (on_x, on_w, on_bias) = (on(&x), on(&w), on(&bias));
    let empty = |len: usize| on(&vec![0.0; len]);

    let base = spec(DType::F32, (batch, outputs, inputs), Epilogue::ReluAuxBias);
    let forward = MatmulSpec { b: Operand::transposed(DType::F32, inputs), ..base };
    let aux = DeviceMemory::new(stream.device(), "mask", aux_bytes(batch, outputs)).unwrap();
    let y = empty(batch * outputs);
    let args = MatmulArgs::new(on_x.ptr(), on_w.ptr(), y.ptr());
    let args = MatmulArgs { bias: on_bias.ptr(), aux: aux.ptr(), ..args };
    Matmul::new(stream, forward).unwrap().run(stream, &args);
    stream.synchronize().unwrap();
    let sums = product(&x, &transposed(&w, inputs), (batch, outputs, inputs));
    let before: Vec<f32> =
        sums.iter().enumerate().map(|(i, sum)| sum + bias[i % outputs]).collect();
    let relu: Vec<f32> = before.iter().map(|x| x.max(0.0)).collect();
    assert_eq!(download::<f32>(&y).unwrap(), relu);
    let plain = MatmulSpec { epilogue: Epilogue::ReluBias, ..forward };
    let unmasked = empty(batch * outputs);
    let args = MatmulArgs {
        bias: on_bias.ptr(),
        ..MatmulArgs::new(on_x.ptr(), on_w.ptr(), unmasked.ptr())
    };
    Matmul::new(stream, plain).unwrap().run(stream, &args);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&unmasked).unwrap(), relu);
    let mut mask = vec![0; aux_bytes(batch, outputs)];
    aux.read(0, &mut mask).unwrap();
    for (index, before) in before.iter().enumerate() {
        let (row, column) = (index / outputs, index % outputs);
        let byte = mask[row * aux_stride_bits(outputs) / 8 + column / 8];
        assert_eq!(byte >> (column % 8) & 1 == 1, *before > 0.0, "mask of {row}, {column}");
    }
}

#[test]
fn true_f32_keeps_what_tf32_rounds_away() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = memory::<f32>(stream, &[1.0 + f32::EPSILON; 64]);
    let b = memory::<f32>(stream, &[1.0; 64]);
    for (math, expected) in [(Math::Full, 8.0 * (1.0 + f32::EPSILON)), (Math::Tf32, 8.0)] {
        let d = memory::<f32>(stream, &[0.0; 64]);
        let plan =
            Matmul::new(stream, MatmulSpec { math, ..spec(DType::F32, (8, 8, 8), Epilogue::None) });
        plan.unwrap().run(stream, &MatmulArgs::new(a.ptr(), b.ptr(), d.ptr()));
        stream.synchronize().unwrap();
        assert_eq!(download::<f32>(&d).unwrap(), [expected; 64], "{math:?}");
    }
}

#[test]
fn products_are_captured() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let a = memory::<f32>(stream, &[1.0; 64]);
    let d = memory::<f32>(stream, &[0.0; 64]);
    let plan = Matmul::new(stream, spec(DType::F32, (8, 8, 8), Epilogue::None)).unwrap();
    let args = MatmulArgs { beta: 1.0, ..MatmulArgs::new(a.ptr(), a.ptr(), d.ptr()) };
    let graph = stream.capture(|| {
        plan.run(stream, &args);
        Ok(())
    });
    let graph = graph.unwrap();
    (0..3).for_each(|_| graph.launch(stream));
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&d).unwrap(), [24.0; 64]);
}

#[test]
fn what_does_not_fit_is_refused_with_its_shape() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let overlapping = spec(DType::F32, (8, 8, 8), Epilogue::None);
    let overlapping = MatmulSpec { a: Operand::plain(DType::F32, 7), ..overlapping };
    assert!(matches!(Matmul::new(stream, overlapping), Err(DeviceError::Misuse { .. })));
    let a = memory::<f32>(stream, &[0.0; 128]);
    let plan = Matmul::new(stream, spec(DType::F32, (8, 8, 8), Epilogue::None)).unwrap();
    plan.run(stream, &MatmulArgs::new(a.ptr().offset(4), a.ptr(), a.ptr().offset(256)));
    let message = stream.check().unwrap_err().to_string();
    assert!(message.contains("multiples of 16 bytes"), "{message}");
}

#[test]
fn algorithms_are_kept_in_a_file() {
    let file = std::env::temp_dir().join(format!("headlong-algorithms-{}.txt", std::process::id()));
    let mut algorithms = Algorithms::read(&file).unwrap();
    assert_eq!(algorithms, Algorithms::default());
    let kept = Kept { words: [1, 2, 3, 4, 5, 6, 7, u64::MAX], nanoseconds: 9 };
    algorithms.insert("00ff".to_owned(), kept);
    algorithms.write(&file).unwrap();
    let read = Algorithms::read(&file).unwrap();
    assert_eq!(read, algorithms);
    assert_eq!(read.get("00ff"), Some(kept));
    // What is something else may be needed, and is not to be replaced.
    let text = std::fs::read_to_string(&file).unwrap();
    for other in ["key = 1\n", &format!("{text}not a line\n"), &format!("{text}ab 1 2\n")] {
        std::fs::write(&file, other).unwrap();
        let message = Algorithms::read(&file).unwrap_err().to_string();
        assert!(message.contains(&file.display().to_string()), "{message}");
        assert!(message.contains("name another file"), "{message}");
    }
    std::fs::remove_file(&file).unwrap();
    let message = Algorithms::read(&std::env::temp_dir()).unwrap_err().to_string();
    assert!(message.contains("cannot be read"), "{message}");
}
