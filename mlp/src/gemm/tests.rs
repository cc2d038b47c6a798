use super::*;
use headlong_device::testing::{small_integers, uniform};
use headlong_device::vector::{Isa, force_isa};

/// The definition: one fused chain over the depth.
fn chain(
    a: &dyn Fn(usize, usize) -> f32,
    b: &dyn Fn(usize, usize) -> f32,
    depth: usize,
    i: usize,
    j: usize,
    c: f32,
) -> f32 {
    (0..depth).fold(c, |c, k| a(i, k).mul_add(b(k, j), c))
}

struct Case {
    m: usize,
    n: usize,
    depth: usize,
    columns: bool,
    accumulate: bool,
    finish: bool,
}

/// Runs one case on `threads` threads with strides wider than the shape and compares with the definition, bit for bit.
fn check(case: &Case, threads: usize) {
    let &Case { m, n, depth, columns, accumulate, finish } = case;
    let (a_rows, a_cols) = if columns { (depth, m) } else { (m, depth) };
    let a_data = uniform(1, a_rows * (a_cols + 3));
    let a_mat = MatRef::with_stride(&a_data, a_rows, a_cols, a_cols + 3);
    let b_data = uniform(2, depth * (n + 5));
    let b_mat = MatRef::with_stride(&b_data, depth, n, n + 5);
    let mut packed = vec![f32::NAN; panel_elements(depth, n)];
    if depth > 0 {
        packed
            .chunks_exact_mut(depth * PANEL_COLS)
            .enumerate()
            .for_each(|(p, data)| pack_columns(b_mat, p, data));
    }
    let (bias, mask) = (uniform(3, n), uniform(4, m * n));
    let before = uniform(5, m * (n + 2));
    let mut c_data = before.clone();
    let a = |i: usize, k: usize| if columns { a_mat.row(k)[i] } else { a_mat.row(i)[k] };
    let b = |k: usize, j: usize| b_mat.row(k)[j];
    let product = Product {
        left: if columns { Left::Columns(a_mat) } else { Left::Rows(a_mat) },
        right: if !columns {
            Right::Panels(Panels { data: &packed, depth, cols: n })
        } else {
            Right::Rows(b_mat)
        },
        finish: match finish {
            true => Finish { bias: Some(&bias), relu: true, mask: Some(MatRef::new(&mask, m, n)) },
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
            let mut expected = chain(&a, &b, depth, i, j, start);
            if finish {
                expected = (expected + bias[j]).max(0.0);
                expected = if mask[i * n + j] > 0.0 { expected } else { 0.0 };
            }
            assert_eq!(c_data[i * (n + 2) + j], expected, "m {m} n {n} depth {depth} element {i},{j}");
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
        ] {
            for bits in 0..8_u32 {
                let on = |bit: u32| bits >> bit & 1 == 1;
                let case = Case { m, n, depth, columns: on(0), accumulate: on(1), finish: on(2) && !on(0) };
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
    let (rows, cols) = (45, 70);
    let data = uniform(9, rows * cols);
    let matrix = MatRef::new(&data, rows, cols);
    let transposed: Vec<f32> = (0..cols * rows).map(|i| data[i % rows * cols + i / rows]).collect();
    for panel in 0..rows.div_ceil(PANEL_COLS) {
        let (mut one, mut other) = (vec![f32::NAN; cols * PANEL_COLS], vec![f32::NAN; cols * PANEL_COLS]);
        pack_transposed(matrix, panel, &mut one);
        pack_columns(MatRef::new(&transposed, cols, rows), panel, &mut other);
        assert_eq!(one, other);
    }
}
