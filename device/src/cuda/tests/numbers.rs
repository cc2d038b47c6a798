//! The prelude's numbers: conversions, vectors, random numbers, sums and products, against Rust.

use super::PRELUDE_TEST;
use crate::cuda::testing::{download, stream, upload};
use crate::cuda::{DeviceMemory, DevicePtr, Launch};
use crate::layout_test;
use crate::rng::CounterRng;
use crate::testing::small_integers;
use half::{bf16, f16};

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ConvertArgs {
    from: DevicePtr,
    bf16_bits: DevicePtr,
    f16_bits: DevicePtr,
    tf32_bits: DevicePtr,
    stochastic_bits: DevicePtr,
    n: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RandomArgs {
    seed: u64,
    stream: u64,
    first: u64,
    bits: DevicePtr,
    uniform: DevicePtr,
    n: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct VectorArgs {
    from: DevicePtr,
    f32: DevicePtr,
    b16: DevicePtr,
    h16: DevicePtr,
    back: DevicePtr,
    n: u64,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Three {
    a: DevicePtr,
    b: DevicePtr,
    c: DevicePtr,
}

#[test]
fn layouts() {
    layout_test!(
        ConvertArgs, &PRELUDE_TEST, &[]; from, bf16_bits, f16_bits, tf32_bits, stochastic_bits, n
    );
    layout_test!(RandomArgs, &PRELUDE_TEST, &[]; seed, stream, first, bits, uniform, n);
    layout_test!(VectorArgs, &PRELUDE_TEST, &[]; from, f32, b16, h16, back, n);
}

/// Equal, or both not a number.
fn same(bits: u16, expected: u16, is_nan: impl Fn(u16) -> bool) -> bool {
    bits == expected || is_nan(bits) && is_nan(expected)
}

#[test]
fn all_sixteen_bit_patterns_widen_as_in_rust() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let memory = || DeviceMemory::new(stream.device(), "wide", 4 << 16).unwrap();
    let (from_bf16, from_f16) = (memory(), memory());
    let args = [from_bf16.ptr(), from_f16.ptr()];
    stream.run(&PRELUDE_TEST, &[], "widen", Launch::new(4, 128), &args);
    stream.synchronize().unwrap();
    let (from_bf16, from_f16) =
        (download::<u32>(&from_bf16).unwrap(), download::<u32>(&from_f16).unwrap());
    for pattern in 0..=u16::MAX {
        let (got, expected) = (from_bf16[pattern as usize], bf16::from_bits(pattern).to_f32());
        assert_eq!(got, u32::from(pattern) << 16, "bf16 {pattern:#06x}: {expected}");
        let (got, expected) =
            (f32::from_bits(from_f16[pattern as usize]), f16::from_bits(pattern).to_f32());
        let equal = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(equal, "f16 {pattern:#06x}: {got} for {expected}");
    }
}

/// Every 16-bit number, the middle between it and its neighbour, and one bit to both sides of that;
/// and random patterns.
fn f32_samples() -> Vec<u32> {
    let mut samples: Vec<u32> = Vec::new();
    for pattern in 0..=u16::MAX {
        for exact in [bf16::from_bits(pattern).to_f32(), f16::from_bits(pattern).to_f32()] {
            let bits = exact.to_bits();
            // Half a unit of bf16, and of a normal f16.
            for half in [0, 1 << 15, 1 << 12] {
                let middle = bits.wrapping_add(half);
                samples.extend([middle.wrapping_sub(1), middle, middle.wrapping_add(1)]);
            }
        }
    }
    let rng = CounterRng::new(11, 0);
    samples.extend((0..10_000).flat_map(|i| rng.bits(i)));
    // Subnormal f16: odd multiples of half a unit, 2^-25, are ties.
    samples.extend((0..2048).map(|i| (i as f32 * 2.0_f32.powi(-25)).to_bits()));
    samples
}

#[test]
fn f32_narrows_as_in_rust() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let samples = f32_samples();
    let n = samples.len();
    let from = upload(stream.device(), &samples).unwrap();
    let out: Vec<DeviceMemory> =
        (0..4).map(|_| DeviceMemory::new(stream.device(), "narrow", 4 * n).unwrap()).collect();
    let [bf16_bits, f16_bits, tf32_bits, stochastic_bits] = [0, 1, 2, 3].map(|i| out[i].ptr());
    let args = ConvertArgs {
        from: from.ptr(),
        bf16_bits,
        f16_bits,
        tf32_bits,
        stochastic_bits,
        n: n as u64,
    };
    stream.run(&PRELUDE_TEST, &[], "narrow", Launch::new(4, 128), &args);
    stream.synchronize().unwrap();
    let out: Vec<Vec<u32>> = out.iter().map(|memory| download(memory).unwrap()).collect();
    for (i, &bits) in samples.iter().enumerate() {
        let x = f32::from_bits(bits);
        let got = out[0][i] as u16;
        let bf16_nan = |bits| bf16::from_bits(bits).is_nan();
        assert!(
            same(got, bf16::from_f32(x).to_bits(), bf16_nan),
            "bf16 of {x:e} ({bits:#x}): {got:#x}"
        );
        let got = out[1][i] as u16;
        let f16_nan = |bits| f16::from_bits(bits).is_nan();
        assert!(
            same(got, f16::from_f32(x).to_bits(), f16_nan),
            "f16 of {x:e} ({bits:#x}): {got:#x}"
        );
        if x.is_finite() {
            assert_eq!(out[2][i], bits.wrapping_add(0x1000) & 0xffff_e000, "tf32 of {x:e}");
            let random = (i as u32).wrapping_mul(2_654_435_761) >> 16;
            assert_eq!(out[3][i], bits.wrapping_add(random) >> 16, "stochastic bf16 of {x:e}");
        }
    }
}

#[test]
fn vectors_of_four_load_and_store_every_type() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.0) * 1.37).collect();
    let n = values.len();
    let from = upload(stream.device(), &values).unwrap();
    let memory = |bytes| DeviceMemory::new(stream.device(), "vector", bytes).unwrap();
    let (wide, b16, h16, back) = (memory(4 * n), memory(2 * n), memory(2 * n), memory(4 * n));
    let args = VectorArgs {
        from: from.ptr(),
        f32: wide.ptr(),
        b16: b16.ptr(),
        h16: h16.ptr(),
        back: back.ptr(),
        n: n as u64,
    };
    stream.run(&PRELUDE_TEST, &[], "vectors", Launch::new(2, 128), &args);
    stream.synchronize().unwrap();
    assert_eq!(download::<f32>(&wide).unwrap(), values);
    let expected: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
    assert_eq!(download::<bf16>(&b16).unwrap(), expected);
    let expected: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
    assert_eq!(download::<f16>(&h16).unwrap(), expected);
    let sum = |&x: &f32| x + bf16::from_f32(x).to_f32() + f16::from_f32(x).to_f32();
    assert_eq!(download::<f32>(&back).unwrap(), values.iter().map(sum).collect::<Vec<f32>>());
}

#[test]
fn philox_gives_the_numbers_of_the_cpu() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let n = 1000;
    let bits = DeviceMemory::new(stream.device(), "bits", 16 * n).unwrap();
    let uniform = DeviceMemory::new(stream.device(), "uniform", 4 * n).unwrap();
    for (seed, of, first) in [(7, 3, 0), (u64::MAX, 1 << 40, (1 << 34) - 500)] {
        let args = RandomArgs {
            seed,
            stream: of,
            first,
            bits: bits.ptr(),
            uniform: uniform.ptr(),
            n: n as u64,
        };
        stream.run(&PRELUDE_TEST, &[], "random_numbers", Launch::new(2, 128), &args);
        stream.synchronize().unwrap();
        let rng = CounterRng::new(seed, of);
        let expected: Vec<u32> = (0..n as u64).flat_map(|i| rng.bits(first + i)).collect();
        assert_eq!(download::<u32>(&bits).unwrap(), expected);
        let expected: Vec<f32> = (0..n as u64).map(|i| rng.uniform(first + i)).collect();
        assert_eq!(download::<f32>(&uniform).unwrap(), expected);
    }
}

#[test]
fn warps_and_blocks_add_up_and_scan() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    for threads in [32_usize, 96, 256] {
        let values: Vec<u32> = (0..threads as u32).map(|i| (i * 37 + 11) % 101 + 1).collect();
        let from = upload(stream.device(), &values).unwrap();
        let out = DeviceMemory::new(stream.device(), "out", 16 * threads).unwrap();
        stream.run(
            &PRELUDE_TEST,
            &[],
            "reduce",
            Launch::new(1, threads as u32),
            &[from.ptr(), out.ptr()],
        );
        stream.synchronize().unwrap();
        let out = download::<u32>(&out).unwrap();
        let total: u32 = values.iter().sum();
        for thread in 0..threads {
            let warp = &values[thread / 32 * 32..][..32];
            let expected = [
                warp.iter().sum(),
                *warp.iter().max().unwrap(),
                warp[..=thread % 32].iter().sum(),
                total,
            ];
            assert_eq!(out[4 * thread..][..4], expected, "thread {thread} of {threads}");
        }
    }
}

/// `c + a·b`, all row-major, in f32.
fn product(a: &[f32], b: &[f32], c: &[f32], k: usize) -> Vec<f32> {
    let cell = |i: usize| (0..k).map(|j| a[i / 8 * k + j] * b[j * 8 + i % 8]).sum::<f32>() + c[i];
    (0..128).map(cell).collect()
}

#[test]
fn tensor_core_products_put_every_element_in_its_place() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    // Small integers: every product and sum is exact.
    let (a, b, c) = (small_integers(1, 256), small_integers(2, 128), small_integers(3, 128));
    let run = |entry, shared, a: &DeviceMemory, b: &DeviceMemory| {
        let c = upload(stream.device(), &c).unwrap();
        let args = Three { a: a.ptr(), b: b.ptr(), c: c.ptr() };
        stream.run(&PRELUDE_TEST, &[], entry, Launch::new(1, 32).with_shared(shared), &args);
        stream.synchronize().unwrap();
        download::<f32>(&c).unwrap()
    };
    let of = |values: &[f32]| values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let (a16, b16) =
        (upload(stream.device(), &of(&a)).unwrap(), upload(stream.device(), &of(&b)).unwrap());
    assert_eq!(run("product_bf16", 1024, &a16, &b16), product(&a, &b, &c, 16));
    let of = |values: &[f32]| values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let (a16, b16) =
        (upload(stream.device(), &of(&a)).unwrap(), upload(stream.device(), &of(&b)).unwrap());
    assert_eq!(run("product_f16", 1024, &a16, &b16), product(&a, &b, &c, 16));
    let (a32, b32) =
        (upload(stream.device(), &a[..128]).unwrap(), upload(stream.device(), &b[..64]).unwrap());
    assert_eq!(run("product_tf32", 0, &a32, &b32), product(&a[..128], &b[..64], &c, 8));
}
