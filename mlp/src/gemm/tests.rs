use super::*;
use crate::rounding::Rounding;
use half::bf16;
use headlong_device::simd::{Bf16Products, Isa, Limit, bf16_products, isa};
use headlong_device::testing::{small_integers, uniform};

/// The definition: one fused chain over the depth, of bf16 with the odd one of two steps first, or
/// two for each group.
fn chain(
    dtype: FactorType,
    a: &dyn Fn(usize, usize) -> f32,
    b: &dyn Fn(usize, usize) -> f32,
    depth: usize,
    i: usize,
    j: usize,
    c: f32,
) -> f32 {
    let step = |c: f32, k: usize| a(i, k).mul_add(b(k, j), c);
    match dtype {
        FactorType::F32 => (0..depth).fold(c, step),
        FactorType::Bf16 => {
            let order = (0..depth).step_by(2).flat_map(|k| [k + 1, k]).filter(|&k| k < depth);
            order.fold(c, step)
        }
        FactorType::Bf16Tiles => (0..depth).step_by(GROUP).fold(c, |c, first| {
            let end = depth.min(first + GROUP);
            let chain = |first: usize| (first..end).step_by(2).fold(0.0, step);
            c + (chain(first) + chain(first + 1))
        }),
    }
}

struct Case {
    dtype: FactorType,
    m: usize,
    n: usize,
    depth: usize,
    columns: bool,
    accumulate: bool,
    epilogue: bool,
}

/// Runs one case on `threads` threads with strides wider than the shape and compares with the
/// definition, bit for bit.
fn check(case: &Case, threads: usize) {
    let &Case { dtype, m, n, depth, columns, accumulate, epilogue } = case;
    let drawn = |seed, len| {
        let mut values = uniform(seed, len);
        if dtype.is_bf16() {
            Rounding::Bf16.round_all(&mut values);
        }
        values
    };
    let (a_rows, a_cols) = if columns { (depth, m) } else { (m, depth) };
    let a_data = drawn(1, a_rows * (a_cols + 3));
    let a_mat = MatRef::with_stride(&a_data, a_rows, a_cols, a_cols + 3);
    let b_data = drawn(2, depth * (n + 5));
    let b_mat = MatRef::with_stride(&b_data, depth, n, n + 5);
    let mut packed = vec![f32::NAN; panel_elements(dtype, depth, n)];
    if depth > 0 {
        packed
            .chunks_exact_mut(dtype.words(depth) * PANEL_COLS)
            .enumerate()
            .for_each(|(p, data)| pack_columns(dtype, b_mat, p, data));
    }
    let (bias, mask) = (uniform(3, n), uniform(4, m * n));
    let before = uniform(5, m * (n + 2));
    let mut c_data = before.clone();
    let a = |i: usize, k: usize| if columns { a_mat.row(k)[i] } else { a_mat.row(i)[k] };
    let b = |k: usize, j: usize| b_mat.row(k)[j];
    let round = epilogue && dtype.is_bf16();
    let product = Product {
        dtype,
        lhs: if columns { Lhs::Columns(Numbers::F32(a_mat)) } else { Lhs::Rows(a_mat) },
        rhs: if !columns {
            Rhs::Panels(Panels { data: &packed, k: depth, cols: n })
        } else {
            Rhs::Rows(Numbers::F32(b_mat))
        },
        epilogue: match epilogue {
            true => Epilogue {
                bias: Some(&bias),
                relu: true,
                mask: Some(MatRef::new(&mask, m, n)),
                round,
            },
            false => Epilogue::default(),
        },
        accumulate,
    };
    let (pool, c) = (Pool::new(threads), MatMut::with_stride(&mut c_data, m, n, n + 2));
    let mut sums = vec![0.5; m];
    if columns {
        run_with_row_sums(&pool, &product, c, &mut sums)
    } else {
        run(&pool, &product, c)
    }
    for (i, sum) in sums.iter().enumerate().filter(|_| columns) {
        let start = if accumulate { 0.5 } else { 0.0 };
        assert_eq!(*sum, (0..depth).fold(start, |sum, k| sum + a(i, k)), "row sum {i}");
    }
    for i in 0..m {
        for j in 0..n {
            let start = if accumulate { before[i * (n + 2) + j] } else { 0.0 };
            let mut expected = chain(dtype, &a, &b, depth, i, j, start);
            if epilogue {
                expected = (expected + bias[j]).max(0.0);
                expected = if mask[i * n + j] > 0.0 { expected } else { 0.0 };
                expected = if round { bf16::from_f32(expected).to_f32() } else { expected };
            }
            let got = c_data[i * (n + 2) + j];
            assert_eq!(got, expected, "{dtype:?}: m {m} n {n} depth {depth} element {i},{j}");
        }
    }
    // What lies between the rows must not be touched.
    assert!((0..m.saturating_sub(1)).all(|i| c_data[i * (n + 2) + n..(i + 1) * (n + 2)]
        == before[i * (n + 2) + n..(i + 1) * (n + 2)]));
}

/// The kernels there are, from the narrowest up.
const PATHS: [(Isa, Bf16Products); 5] = [
    (Isa::Portable, Bf16Products::None),
    (Isa::Avx2, Bf16Products::None),
    (Isa::Avx512, Bf16Products::None),
    (Isa::Avx512, Bf16Products::Pairs),
    (Isa::Avx512, Bf16Products::Tiles),
];

/// Calls `body` once for each path that this processor has.
fn on_every_path(body: &mut dyn FnMut(&str)) {
    for (allowed, bf16) in PATHS {
        let name = format!("{} with {bf16:?} of bf16", allowed.name());
        Limit::new(allowed, bf16).run(|| {
            if (isa(), bf16_products()) != (allowed, bf16) {
                println!("skipped, because this processor has no {name}");
                return;
            }
            body(&name);
        });
    }
}

#[test]
fn every_element_is_one_fused_chain_on_every_path() {
    on_every_path(&mut |_| {
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
            for bits in 0..24_u32 {
                let on = |bit: u32| bits >> bit & 1 == 1;
                let dtype =
                    [FactorType::F32, FactorType::Bf16, FactorType::Bf16Tiles][bits as usize / 8];
                let (columns, accumulate, epilogue) = (on(0), on(1), on(2) && !on(0));
                let case = Case { dtype, m, n, depth, columns, accumulate, epilogue };
                check(&case, 1 + bits as usize % 2);
            }
        }
    });
}

/// A copy in 16 bits, in rows of `cols` that start `stride` apart, zeros beyond the matrix.
fn narrow(matrix: MatRef<'_>, cols: usize, stride: usize) -> Vec<bf16> {
    let mut data = vec![bf16::NAN; matrix.rows() * stride];
    for (row, data) in data.chunks_exact_mut(stride).enumerate() {
        data[..cols].fill(bf16::ZERO);
        for (to, from) in data.iter_mut().zip(matrix.row(row)) {
            *to = bf16::from_f32(*from);
        }
    }
    data
}

/// Products of factors in 16 bits have the bits of those of f32 that hold the same numbers.
fn check_stored(dtype: FactorType, (m, n, depth): (usize, usize, usize), threads: usize) {
    let drawn = |seed, len| {
        let mut values = uniform(seed, len);
        Rounding::Bf16.round_all(&mut values);
        values
    };
    let pool = Pool::new(threads);
    let (a_data, b_data, bias) = (drawn(1, m * depth), drawn(2, depth * n), uniform(3, n));
    let (a, b) = (MatRef::new(&a_data, m, depth), MatRef::new(&b_data, depth, n));
    let mut packed = vec![f32::NAN; panel_elements(dtype, depth, n)];
    let panel = dtype.words(depth) * PANEL_COLS;
    let panels = packed.chunks_exact_mut(panel).enumerate();
    panels.for_each(|(p, data)| pack_columns(dtype, b, p, data));
    let mask_data = drawn(4, m * n);
    let mask = MatRef::new(&mask_data, m, n);
    let rhs = Rhs::Panels(Panels { data: &packed, k: depth, cols: n });
    let product =
        Product { dtype, lhs: Lhs::Rows(a), rhs, epilogue: Epilogue::default(), accumulate: false };
    let words = 2 * dtype.words(depth);
    let a_words = narrow(a, words, words + 4);
    let a_words = Lhs::Words(MatRef::with_stride(&a_words, m, words, words + 4));
    let mask_bf16 = narrow(mask, n, n + 3);
    let mask_bf16 = MatRef::with_stride(&mask_bf16, m, n, n + 3);
    for bits in 0..8_u32 {
        let (bias, relu) = ((bits & 1 == 1).then_some(&*bias), bits & 2 == 2);
        let has_mask = bits & 4 == 4;
        let epilogue = Epilogue { bias, relu, mask: has_mask.then_some(mask), round: true };
        let (mut c, mut of_words) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
        run(&pool, &Product { epilogue, ..product }, MatMut::new(&mut c, m, n));
        let by_words = Product { lhs: a_words, ..product };
        run(&pool, &Product { epilogue, ..by_words }, MatMut::new(&mut of_words, m, n));
        assert_eq!(of_words, c, "{dtype:?}: {m} {n} {depth}");
        let epilogue = Epilogue { bias, relu, mask: has_mask.then_some(mask_bf16), round: false };
        let mut narrow = vec![bf16::NAN; m * (n + 2)];
        let c_bf16 = MatMut::with_stride(&mut narrow, m, n, n + 2);
        run_into_bf16(&pool, &by_words, &epilogue, c_bf16);
        for (row, narrow) in narrow.chunks_exact(n + 2).enumerate() {
            let got: Vec<_> = narrow[..n].iter().map(|value| value.to_f32()).collect();
            assert_eq!(got, c[row * n..][..n], "{dtype:?}: {m} {n} {depth}, row {row}");
            assert!(narrow[n..].iter().all(|value| value.is_nan()), "what lies between rows stays");
        }
    }
    // Sums may start from what is there.
    let (mut c, mut in_bf16) = (mask_data.clone(), mask_bf16.data().to_vec());
    let epilogue = Epilogue { round: true, ..Epilogue::default() };
    run(&pool, &Product { epilogue, accumulate: true, ..product }, MatMut::new(&mut c, m, n));
    let by_words = Product { lhs: a_words, accumulate: true, ..product };
    let c_bf16 = MatMut::with_stride(&mut in_bf16, m, n, n + 3);
    run_into_bf16(&pool, &by_words, &Epilogue::default(), c_bf16);
    for (got, expected) in in_bf16.chunks(n + 3).zip(c.chunks(n)) {
        let got: Vec<_> = got[..n].iter().map(|value| value.to_f32()).collect();
        assert_eq!(got, expected, "{dtype:?}: {m} {n} {depth}, accumulated");
    }
    let transposed: Vec<f32> = (0..m * depth).map(|i| a_data[i % m * depth + i / m]).collect();
    let transposed = MatRef::new(&transposed, depth, m);
    let (a_bf16, b_bf16) = (narrow(transposed, m, m + 1), narrow(b, n, n + 5));
    let a_bf16 = Numbers::Bf16(MatRef::with_stride(&a_bf16, depth, m, m + 1));
    let b_bf16 = Numbers::Bf16(MatRef::with_stride(&b_bf16, depth, n, n + 5));
    let multiplied = |a, b| {
        let (mut c, mut sums) = (uniform(5, m * n), uniform(6, m));
        let product = Product { lhs: Lhs::Columns(a), rhs: Rhs::Rows(b), ..product };
        let product = Product { accumulate: true, ..product };
        run_with_row_sums(&pool, &product, MatMut::new(&mut c, m, n), &mut sums);
        (c, sums)
    };
    let expected = multiplied(Numbers::F32(transposed), Numbers::F32(b));
    for (a, b) in [(a_bf16, b_bf16), (Numbers::F32(transposed), b_bf16)] {
        assert_eq!(multiplied(a, b), expected, "{dtype:?}: {m} {n} {depth}, by columns");
    }
}

#[test]
fn factors_in_16_bits_give_the_same_bits() {
    // Rows of several bands, panels of several groups, stretches; on one thread tiles are largest.
    let shapes = [
        (1, 1, 1),
        (15, 33, 17),
        (131, 47, 300),
        (29, 479, 13),
        (3, 16, 1500),
        (300, 70, 20),
        (512, 150, 40),
        (600, 33, 40),
        (40, 600, 1100),
    ];
    on_every_path(&mut |_| {
        for shape in shapes {
            for dtype in [FactorType::Bf16, FactorType::Bf16Tiles] {
                [1, 2].into_iter().for_each(|threads| check_stored(dtype, shape, threads));
            }
        }
    });
}

#[test]
fn small_integers_are_exact() {
    let (m, n, depth) = (70, 90, 513);
    let (a, b) = (small_integers(1, m * depth), small_integers(2, depth * n));
    let mut c = vec![0.0; m * n];
    let transposed: Vec<f32> = (0..m * depth).map(|i| a[i % m * depth + i / m]).collect();
    let product = Product {
        dtype: FactorType::F32,
        lhs: Lhs::Columns(Numbers::F32(MatRef::new(&transposed, depth, m))),
        rhs: Rhs::Rows(Numbers::F32(MatRef::new(&b, depth, n))),
        epilogue: Epilogue::default(),
        accumulate: false,
    };
    run(&Pool::new(2), &product, MatMut::new(&mut c, m, n));
    for i in 0..m {
        for j in 0..n {
            let exact: i64 =
                (0..depth).map(|k| a[i * depth + k] as i64 * b[k * n + j] as i64).sum();
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
    for dtype in [FactorType::F32, FactorType::Bf16, FactorType::Bf16Tiles] {
        for panel in 0..rows.div_ceil(PANEL_COLS) {
            let unset = vec![f32::NAN; dtype.words(cols) * PANEL_COLS];
            let (mut one, mut other) = (unset.clone(), unset);
            pack_transposed(dtype, matrix, panel, &mut one);
            pack_columns(dtype, MatRef::new(&transposed, cols, rows), panel, &mut other);
            assert_eq!(bits(&one), bits(&other));
        }
    }
}

/// Numbers of bf16 whose products lie around the smallest normal number, among them zeros of both
/// signs, numbers below 2⁻¹²⁶ and large ones; at every `rare`th place an infinity or a NaN.
fn extreme(seed: u64, len: usize, rare: usize) -> Vec<f32> {
    let (signs, exponents) = (uniform(seed, len), uniform(seed + 1, len));
    let value = |at: usize| match at % 11 {
        0 => signs[at],
        1 => -0.0,
        2 => signs[at] * (-130.0_f32).exp2(),
        3 => signs[at] * (exponents[at].abs() * -126.0).exp2(),
        4 => signs[at] * (exponents[at].abs() * 120.0).exp2(),
        _ => signs[at] * (-62.0 + 6.0 * exponents[at]).round().exp2(),
    };
    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let at = |at: usize| if at % rare == rare - 1 { special[at / rare % 3] } else { value(at) };
    let mut values: Vec<f32> = (0..len).map(at).collect();
    Rounding::Bf16.round_all(&mut values);
    values
}

/// What `C` holds before products are added: numbers on both sides of 2⁻¹²⁶, zeros of both signs,
/// ordinary ones.
fn before(len: usize) -> Vec<f32> {
    let drawn = uniform(21, len);
    let value = |at: usize| match at % 5 {
        0 => -0.0,
        1 => drawn[at],
        2 => f32::from_bits(at as u32 * 37 % (1 << 23)).copysign(drawn[at]),
        _ => f32::MIN_POSITIVE * (1.0 + drawn[at].abs()).copysign(drawn[at]),
    };
    (0..len).map(value).collect()
}

/// A product of bf16 of extreme numbers, as bits; all NaN are one.
fn extreme_product(
    dtype: FactorType,
    (m, n, depth): (usize, usize, usize),
    columns: bool,
    accumulate: bool,
) -> Vec<u32> {
    let (a, b) = (extreme(11, m * depth, 997), extreme(13, depth * n, 1009));
    let mut c = before(m * n);
    let b = MatRef::new(&b, depth, n);
    let panel = dtype.words(depth) * PANEL_COLS;
    let mut packed = vec![0.0; panel_elements(dtype, depth, n)];
    for (p, data) in packed.chunks_exact_mut(panel).enumerate() {
        pack_columns(dtype, b, p, data);
    }
    let (lhs, rhs) = if columns {
        (Lhs::Columns(Numbers::F32(MatRef::new(&a, depth, m))), Rhs::Rows(Numbers::F32(b)))
    } else {
        let panels = Panels { data: &packed, k: depth, cols: n };
        (Lhs::Rows(MatRef::new(&a, m, depth)), Rhs::Panels(panels))
    };
    let product = Product { dtype, lhs, rhs, epilogue: Epilogue::default(), accumulate };
    run(&Pool::new(1), &product, MatMut::new(&mut c, m, n));
    c.into_iter().map(|c| if c.is_nan() { f32::NAN.to_bits() } else { c.to_bits() }).collect()
}

/// Every path has the bits of the plainest one, and so of `vdpbf16ps` and `tdpbf16ps` where the
/// processor has them: whatever the number of rows and columns of a microtile, the depth and the
/// blocks it is cut into.
#[test]
fn every_path_has_the_bits_of_bf16_instructions() {
    let rows = 1..=15;
    let shapes = rows.map(|m| (m, 37, 31)).chain([
        (33, 17, 32),
        (65, 49, 63),
        (29, 16, 30),
        (16, 33, 1),
        (17, 40, 2),
        (7, 5, 515),
        (31, 64, 1030),
    ]);
    for (number, shape) in shapes.enumerate() {
        for case in 0..8 {
            let dtype = [FactorType::Bf16, FactorType::Bf16Tiles][case / 4];
            let (columns, accumulate) = (case / 2 % 2 == 1, case % 2 == 1);
            let mut plain: Option<Vec<u32>> = None;
            on_every_path(&mut |path| {
                let bits = extreme_product(dtype, shape, columns, accumulate);
                let plain = plain.get_or_insert_with(|| bits.clone());
                let differing = bits.iter().zip(plain.iter()).position(|(a, b)| a != b);
                let form = format!("columns {columns}, accumulate {accumulate}");
                assert_eq!(differing, None, "{path}, {dtype:?}, shape {number} {shape:?}, {form}");
            });
        }
    }
}

/// `C` after one product of one number with one, or of two with two.
fn one_element(a: &[f32], b: &[f32], c: f32) -> f32 {
    let mut c = [c];
    let mut packed = [0.0; PANEL_COLS];
    pack_columns(FactorType::Bf16, MatRef::new(b, b.len(), 1), 0, &mut packed);
    let product = Product {
        dtype: FactorType::Bf16,
        lhs: Lhs::Rows(MatRef::new(a, 1, a.len())),
        rhs: Rhs::Panels(Panels { data: &packed, k: b.len(), cols: 1 }),
        epilogue: Epilogue::default(),
        accumulate: true,
    };
    run(&Pool::new(1), &product, MatMut::new(&mut c, 1, 1));
    c[0]
}

#[test]
fn small_numbers_are_zero_before_and_after_each_addition() {
    let power = |exponent: i32| 2.0_f32.powi(exponent);
    let (least, below) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    on_every_path(&mut |path| {
        let check = |a: &[f32], b: &[f32], c: f32, expected: f32| {
            let got = one_element(a, b, c);
            assert_eq!(got.to_bits(), expected.to_bits(), "{path}: {a:?} · {b:?} + {c} is {got}");
        };
        // A factor, a sum and a result below the smallest normal number; signs stay.
        check(&[power(-127)], &[power(10)], 0.0, 0.0);
        check(&[0.0], &[1.0], below, 0.0);
        check(&[0.0], &[-1.0], -below, 0.0);
        check(&[power(-64)], &[-power(-64)], 0.0, -0.0);
        // A zero stands for the odd number that is missing, and is added: -0 + 0.
        check(&[0.0], &[-1.0], -0.0, 0.0);
        check(&[0.0, 0.0], &[-1.0, -1.0], -0.0, -0.0);
        // The odd product is added first, and lost where it is small.
        check(&[power(-64), power(-64)], &[power(-62), power(-64)], 0.0, least);
        check(&[power(-64), power(-63)], &[power(-64), power(-63)], 0.0, 1.25 * least);
        // What rounds to 24 bits below 2⁻¹²⁶ is below it, even where f32 has nothing between.
        check(&[power(-75)], &[-power(-75)], least, 0.0);
        check(&[power(-75)], &[-power(-76)], least, least);
        check(&[-power(-75)], &[-power(-75)], -least, -0.0);
    });
}
