//! What each product of a network costs with each epilogue: the table that decides which epilogues
//! are worth asking for. Not a test of anything but that it can be measured, hence left out of
//! usual runs:
//!
//! ```text
//! cargo test --release -p headlong-device --test cuda_products -- --ignored --nocapture
//! ```

use headlong_device::DType;
use headlong_device::cuda::blas::{Epilogue, Math, Matmul, MatmulSpec, Operand};
use headlong_device::cuda::{CudaStream, testing};

/// Inputs and outputs of the layers of C1 that have a ReLU.
const LAYERS: [(usize, usize); 7] =
    [(16, 512), (512, 256), (256, 128), (480, 1024), (1024, 1024), (1024, 512), (512, 256)];

fn spec((m, n, k): (usize, usize, usize), a: Operand, b: Operand, d: DType) -> MatmulSpec {
    let (d, math, epilogue) = (Operand::plain(d, n), Math::Full, Epilogue::None);
    MatmulSpec { m, n, k, a, b, d, math, epilogue, bias_dtype: DType::Bf16 }
}

fn print(stream: &CudaStream, name: &str, spec: MatmulSpec) {
    let MatmulSpec { m, n, k, epilogue, .. } = spec;
    match Matmul::new(stream, spec).map(|plan| plan.nanoseconds()) {
        Ok(nanoseconds) => {
            // The software device measures nothing.
            let us = nanoseconds.unwrap_or(0) as f64 * 1e-3;
            let tflops = if us > 0.0 { 2e-6 * (m * n * k) as f64 / us } else { 0.0 };
            println!(
                "{{\"product\":\"{name}\",\"m\":{m},\"n\":{n},\"k\":{k},\"epilogue\":\
                 \"{epilogue:?}\",\"us\":{us:.1},\"tflops\":{tflops:.0}}}"
            );
        }
        Err(error) => println!("{{\"product\":\"{name}\",\"refused\":\"{error}\"}}"),
    }
}

#[test]
#[ignore = "a measurement: run on a GPU by itself"]
fn products_of_c1() {
    let Some(device) = testing::device() else { return };
    let stream = CudaStream::new(&device).unwrap();
    println!("{{\"device\":\"{}\"}}", device.name());
    let (plain, transposed) =
        (|of| Operand::plain(DType::Bf16, of), |of| Operand::transposed(DType::Bf16, of));
    let batches: &[usize] = if device.is_software() { &[16] } else { &[65_536, 6912] };
    for &batch in batches {
        for (inputs, outputs) in LAYERS {
            let shape = (batch, outputs, inputs);
            for epilogue in [Epilogue::None, Epilogue::ReluBias, Epilogue::ReluAuxBias] {
                let spec = spec(shape, plain(inputs), transposed(inputs), DType::Bf16);
                print(&stream, "forward", MatmulSpec { epilogue, ..spec });
            }
            let shape = (batch, inputs, outputs);
            let data = spec(shape, plain(outputs), plain(inputs), DType::Bf16);
            print(&stream, "data gradient", data);
            let shape = (outputs, inputs, batch);
            let weights = spec(shape, transposed(outputs), plain(inputs), DType::F32);
            print(&stream, "weight gradient", weights);
        }
    }
}
