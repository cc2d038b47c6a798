//! Kernels of one sample.

use headlong_device::vectorized;

/// The rows of `F`: the bottom output, then the vectors one after the other.
#[derive(Clone, Copy)]
pub struct Features<'a> {
    /// D elements.
    pub bottom: &'a [f32],
    /// T · D elements.
    pub vectors: &'a [f32],
}

impl<'a> Features<'a> {
    #[inline(always)]
    fn count(&self) -> usize {
        1 + self.vectors.len() / self.bottom.len()
    }

    #[inline(always)]
    fn row(&self, index: usize) -> &'a [f32] {
        let dim = self.bottom.len();
        if index == 0 { self.bottom } else { &self.vectors[(index - 1) * dim..][..dim] }
    }
}

const LANES: usize = 16;

#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane = x.mul_add(*y, *lane);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

vectorized! {
    /// `products[i(i-1)/2 + j] = F_i · F_j` for `j < i`.
    pub fn products(features: &Features<'_>, products: &mut [f32]) {
        let mut rest = products;
        for i in 1..features.count() {
            let (row, tail) = rest.split_at_mut(i);
            for (j, product) in row.iter_mut().enumerate() {
                *product = dot(features.row(i), features.row(j));
            }
            rest = tail;
        }
    }

    /// `d_vectors = G·F` for the vectors, and `d_bottom += G₀·F`.
    pub fn gradients(features: &Features<'_>, gradient: &[f32], d_bottom: &mut [f32], d_vectors: &mut [f32]) {
        let dim = d_bottom.len();
        d_vectors.fill(0.0);
        for i in 0..features.count() {
            let target = if i == 0 { &mut *d_bottom } else { &mut d_vectors[(i - 1) * dim..][..dim] };
            for j in (0..features.count()).filter(|&j| j != i) {
                let (high, low) = (i.max(j), i.min(j));
                let factor = gradient[high * (high - 1) / 2 + low];
                for (sum, value) in target.iter_mut().zip(features.row(j)) {
                    *sum = factor.mul_add(*value, *sum);
                }
            }
        }
    }

    /// Zero where `output` is not above zero.
    pub fn mask(gradient: &mut [f32], output: &[f32]) {
        for (gradient, output) in gradient.iter_mut().zip(output) {
            *gradient = if *output > 0.0 { *gradient } else { 0.0 };
        }
    }
}
