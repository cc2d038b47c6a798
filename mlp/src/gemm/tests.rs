use super::*;
use crate::rounding::Rounding;
use half::bf16;
use headlong_device::testing::{small_integers, uniform};
use headlong_device::vector::{Isa, force_isa};

/// The definition: one fused chain over the depth, of bf16 with the odd one of two steps first.
fn chain(
    numbers: Numbers,
    a: &dyn Fn(usize, usize) -> f32,
    b: &dyn Fn(usize, usize) -> f32,
    depth: usize,
    i: usize,
    j: usize,
    c: f32,
) -> f32 {
    let step = |c: f32, k: usize| a(i, k).mul_add(b(k, j), c);
    match numbers {
        Numbers::F32 => (0..depth).fold(c, step),
        Numbers::Bf16 => {
            let order = (0..depth).step_by(2).flat_map(|k| [k + 1, k]).filter(|&k| k < depth);
            order.fold(c, step)
        }
    }
}

struct Case {
    numbers: Numbers,
    m: usize,
    n: usize,
    depth: usize,
    columns: bool,
    accumulate: bool,
    finish: bool,
}

/// Runs one case on `threads` threads with strides wider than the shape and compares with the definition, bit for bit.
fn check(case: &Case, threads: usize) {
    let &Case { numbers, m, n, depth, columns, accumulate, finish } = case;
    let drawn = |seed, len| {
        let mut values = uniform(seed, len);
        if numbers == Numbers::Bf16 {
            Rounding::Bf16.round_all(&mut values);
        }
        values
    };
    let (a_rows, a_cols) = if columns { (depth, m) } else { (m, depth) };
    let a_data = drawn(1, a_rows * (a_cols + 3));
    let a_mat = MatRef::with_stride(&a_data, a_rows, a_cols, a_cols + 3);
    let b_data = drawn(2, depth * (n + 5));
    let b_mat = MatRef::with_stride(&b_data, depth, n, n + 5);
    let mut packed = vec![f32::NAN; panel_elements(numbers, depth, n)];
    if depth > 0 {
        packed
            .chunks_exact_mut(numbers.words(depth) * PANEL_COLS)
            .enumerate()
            .for_each(|(p, data)| pack_columns(numbers, b_mat, p, data));
    }
    let (bias, mask) = (uniform(3, n), uniform(4, m * n));
    let before = uniform(5, m * (n + 2));
    let mut c_data = before.clone();
    let a = |i: usize, k: usize| if columns { a_mat.row(k)[i] } else { a_mat.row(i)[k] };
    let b = |k: usize, j: usize| b_mat.row(k)[j];
    let round = finish && numbers == Numbers::Bf16;
    let product = Product {
        numbers,
        left: if columns { Left::Columns(a_mat) } else { Left::Rows(a_mat) },
        right: if !columns {
            Right::Panels(Panels { data: &packed, depth, cols: n })
        } else {
            Right::Rows(b_mat)
        },
        finish: match finish {
            true => Finish { bias: Some(&bias), relu: true, mask: Some(MatRef::new(&mask, m, n)), round },
            false => Finish::default(),
        },
        accumulate,
    };
    let (pool, c) = (Pool::new(threads), MatMut::with_stride(&mut c_data, m, n, n + 2));
    let mut sums = vec![0.5; m];
    match columns {
        true => run_with_row_sums(&pool, &product, c, &mut sums),
        false => run(&pool, &product, c),
    }
    for (i, sum) in sums.iter().enumerate().filter(|_| columns) {
        let start = if accumulate { 0.5 } else { 0.0 };
        assert_eq!(*sum, (0..depth).fold(start, |sum, k| sum + a(i, k)), "row sum {i}");
    }
    for i in 0..m {
        for j in 0..n {
            let start = if accumulate { before[i * (n + 2) + j] } else { 0.0 };
            let mut expected = chain(numbers, &a, &b, depth, i, j, start);
            if finish {
                expected = (expected + bias[j]).max(0.0);
                expected = if mask[i * n + j] > 0.0 { expected } else { 0.0 };
                expected = if round { bf16::from_f32(expected).to_f32() } else { expected };
            }
            let got = c_data[i * (n + 2) + j];
            assert_eq!(got, expected, "{numbers:?}: m {m} n {n} depth {depth} element {i},{j}");
        }
    }
    // What lies between the rows is nobody's to touch.
    assert!((0..m.saturating_sub(1)).all(|i| c_data[i * (n + 2) + n..(i + 1) * (n + 2)] == before[i * (n + 2) + n..(i + 1) * (n + 2)]));
}

#[test]
fn every_element_is_one_fused_chain_on_every_instruction_set() {
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
        if force_isa(isa) != isa {
            println!("skipped, because this processor has no {}", isa.name());
            continue;
        }
        for (m, n, depth) in [
            (1, 1, 1),
            (14, 32, 3),
            (15, 33, 17),
            (131, 47, 300),
            (29, 479, 13),
            (3, 16, 700),
            (40, 1, 50),
            (5, 13, 0),
            (300, 70, 20),
            (9, 40, 2301),
        ] {
            for bits in 0..16_u32 {
                let on = |bit: u32| bits >> bit & 1 == 1;
                let numbers = if on(3) { Numbers::Bf16 } else { Numbers::F32 };
                let (columns, accumulate, finish) = (on(0), on(1), on(2) && !on(0));
                let case = Case { numbers, m, n, depth, columns, accumulate, finish };
                check(&case, 1 + bits as usize % 2);
            }
        }
    }
    force_isa(Isa::Avx512);
}

#[test]
fn small_integers_are_exact() {
    let (m, n, depth) = (70, 90, 513);
    let (a, b) = (small_integers(1, m * depth), small_integers(2, depth * n));
    let mut c = vec![0.0; m * n];
    let transposed: Vec<f32> = (0..m * depth).map(|i| a[i % m * depth + i / m]).collect();
    let product = Product {
        numbers: Numbers::F32,
        left: Left::Columns(MatRef::new(&transposed, depth, m)),
        right: Right::Rows(MatRef::new(&b, depth, n)),
        finish: Finish::default(),
        accumulate: false,
    };
    run(&Pool::new(2), &product, MatMut::new(&mut c, m, n));
    for i in 0..m {
        for j in 0..n {
            let exact: i64 = (0..depth).map(|k| a[i * depth + k] as i64 * b[k * n + j] as i64).sum();
            assert_eq!(c[i * n + j] as i64, exact);
        }
    }
}

#[test]
fn packing_a_transpose_is_packing_the_transposed() {
    let (rows, cols) = (45, 1071);
    let data = uniform(9, rows * cols);
    let matrix = MatRef::new(&data, rows, cols);
    let transposed: Vec<f32> = (0..cols * rows).map(|i| data[i % rows * cols + i / rows]).collect();
    let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
    for numbers in [Numbers::F32, Numbers::Bf16] {
        for panel in 0..rows.div_ceil(PANEL_COLS) {
            let unset = vec![f32::NAN; numbers.words(cols) * PANEL_COLS];
            let (mut one, mut other) = (unset.clone(), unset);
            pack_transposed(numbers, matrix, panel, &mut one);
            pack_columns(numbers, MatRef::new(&transposed, cols, rows), panel, &mut other);
            assert_eq!(bits(&one), bits(&other));
        }
    }
}

/// Numbers at the ends of the range, infinities and NaN: every instruction set treats them as `vdpbf16ps` does.
#[test]
fn every_instruction_set_has_the_bits_of_bf16_instructions() {
    let of = |isa: Isa| {
        if force_isa(isa) != isa {
            println!("skipped, because this processor has no {}", isa.name());
            return None;
        }
        let (m, n, depth) = (17, 40, 31);
        // Every exponent, many near each other.
        let draw = |seed: u64, len: usize| -> Vec<f32> {
            let (exponents, signs) = (uniform(seed, len), uniform(seed + 1, len));
            let scale = |at: usize| match at % 7 {
                0 => 1.0,
                1 => exponents[at].abs() * 120.0,
                2 => -exponents[at].abs() * 126.0,
                3 => -133.0,
                _ => exponents[at] * 3.0,
            };
            let mut values: Vec<f32> = (0..len).map(|at| signs[at] * scale(at).exp2()).collect();
            Rounding::Bf16.round_all(&mut values);
            values
        };
        let (a, b) = (draw(11, m * depth), draw(13, depth * n));
        let mut c = vec![0.0; m * n];
        let mut packed = vec![0.0; panel_elements(Numbers::Bf16, depth, n)];
        let panel = Numbers::Bf16.words(depth) * PANEL_COLS;
        for (p, data) in packed.chunks_exact_mut(panel).enumerate() {
            pack_columns(Numbers::Bf16, MatRef::new(&b, depth, n), p, data);
        }
        let product = Product {
            numbers: Numbers::Bf16,
            left: Left::Rows(MatRef::new(&a, m, depth)),
            right: Right::Panels(Panels { data: &packed, depth, cols: n }),
            finish: Finish::default(),
            accumulate: false,
        };
        run(&Pool::new(1), &product, MatMut::new(&mut c, m, n));
        Some(
            c.into_iter()
                .map(|c| if c.is_nan() { f32::NAN.to_bits() } else { c.to_bits() })
                .collect::<Vec<_>>(),
        )
    };
    let all = [Isa::Avx512, Isa::Avx2, Isa::Portable].map(of);
    force_isa(Isa::Avx512);
    let mut bits = all.iter().flatten();
    let first = bits.next().expect("there is always a portable one");
    assert!(bits.all(|bits| bits == first));
}
