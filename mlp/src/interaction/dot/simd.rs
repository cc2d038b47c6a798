//! Kernels of one sample: for AVX-512 and AVX2 by hand, for everything else by the compiler, with
//! the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod long;
mod rounded;

pub use rounded::{MAX_ROUNDED, Rounded};

use headlong_device::simd::{Isa, isa};
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

    /// Where row `index` begins.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn start(&self, index: usize) -> *const f32 {
        match index {
            0 => self.bottom.as_ptr(),
            _ => self.vectors.as_ptr().wrapping_add((index - 1) * self.bottom.len()),
        }
    }

    #[inline(always)]
    fn row(&self, index: usize) -> &'a [f32] {
        let dim = self.bottom.len();
        if index == 0 { self.bottom } else { &self.vectors[(index - 1) * dim..][..dim] }
    }
}

/// Rows `first ..` of the lower triangle of `F·Fᵀ`, as the kernels by hand take them.
#[cfg(target_arch = "x86_64")]
struct Triangle<'a> {
    features: &'a Features<'a>,
    columns: *const f32,
    stride: usize,
    products: *mut f32,
    first: usize,
}

/// Most rows of `F` that the kernels by hand take: their square matrix, or their transpose, lies on
/// the stack.
#[cfg(target_arch = "x86_64")]
const MAX_FEATURES: usize = 64;

/// Longest rows whose products they chain: transposed, they lie on the stack.
#[cfg(target_arch = "x86_64")]
const MAX_DEPTH: usize = CHAINED;

/// `products[i(i-1)/2 + j] = F_i · F_j` for `j < i`.
///
/// `ahead` is what the next sample will read; asking for it early changes speed only.
pub fn products(features: &Features<'_>, products: &mut [f32], ahead: &[f32]) {
    let count = features.count();
    assert_eq!(products.len(), count * (count - 1) / 2, "one product per pair");
    let long = features.bottom.len() > CHAINED;
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX-512; the list is as long as asserted.
        Isa::Avx512 if long => unsafe { long::products(features, products, ahead) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, and rows are few and short enough.
        Isa::Avx512 if count <= MAX_FEATURES => unsafe {
            avx512::short_products(features, products, ahead)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX2 and FMA; the list is as long as asserted.
        Isa::Avx2 if long => unsafe { avx2::long_products(features, products) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, and rows are few and short enough.
        Isa::Avx2 if count <= MAX_FEATURES => unsafe { avx2::short_products(features, products) },
        _ if long => plain_long_products(features, products),
        _ => plain_short_products(features, products),
    }
}

/// `d_vectors = G·F` for the vectors, and `d_bottom += G₀·F`.
///
/// `passes_caches` says that what is written does not stay near until it is read; it changes speed
/// only.
///
/// `ahead` is what the next sample will read; asking for it early changes speed only.
pub fn gradients(
    features: &Features<'_>,
    gradient: &[f32],
    (d_bottom, d_vectors): (&mut [f32], &mut [f32]),
    ahead: &[f32],
    passes_caches: bool,
) {
    let count = features.count();
    assert_eq!(gradient.len(), count * (count - 1) / 2, "one gradient per pair");
    let lens = (d_bottom.len(), d_vectors.len());
    assert_eq!(lens, (features.bottom.len(), features.vectors.len()), "one gradient per feature");
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX-512; the lists are as long as asserted.
        Isa::Avx512 if count <= MAX_FEATURES => unsafe {
            avx512::gradients(features, gradient, (d_bottom, d_vectors), ahead, passes_caches)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX2 and FMA; the lists are as long as asserted.
        Isa::Avx2 if count <= MAX_FEATURES => unsafe {
            avx2::gradients(features, gradient, (d_bottom, d_vectors))
        },
        _ => plain_gradients(features, gradient, d_bottom, d_vectors),
    }
}

/// Longest vectors whose products are one chain each; those of longer ones are summed in lanes.
const CHAINED: usize = 64;

/// Rows whose products with another row are taken side by side.
const MAX_COLUMNS: usize = 64;

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
    fn plain_short_products(features: &Features<'_>, products: &mut [f32]) {
        products.fill(0.0);
        // Sixteen elements of all rows at a time, transposed, so that a row's products lie side by
        // side.
        let mut columns = [[0.0_f32; MAX_COLUMNS]; 16];
        let (count, dim) = (features.count(), features.bottom.len());
        for low in (0..count).step_by(MAX_COLUMNS) {
            let high = count.min(low + MAX_COLUMNS);
            for first in (0..dim).step_by(16) {
                let end = dim.min(first + 16);
                for j in low..high {
                    for (column, value) in columns.iter_mut().zip(&features.row(j)[first..end]) {
                        column[j - low] = *value;
                    }
                }
                for i in low + 1..count {
                    let row = &mut products[i * (i - 1) / 2..][low..high.min(i)];
                    for (column, x) in columns.iter().zip(&features.row(i)[first..end]) {
                        for (product, y) in row.iter_mut().zip(column) {
                            *product = x.mul_add(*y, *product);
                        }
                    }
                }
            }
        }
    }

    fn plain_long_products(features: &Features<'_>, products: &mut [f32]) {
        let mut rest = products;
        for i in 1..features.count() {
            let (row, tail) = rest.split_at_mut(i);
            for (j, product) in row.iter_mut().enumerate() {
                *product = dot(features.row(i), features.row(j));
            }
            rest = tail;
        }
    }

    fn plain_gradients(
        features: &Features<'_>, gradient: &[f32], d_bottom: &mut [f32], d_vectors: &mut [f32],
    ) {
        let dim = d_bottom.len();
        d_vectors.fill(0.0);
        for i in 0..features.count() {
            let target =
                if i == 0 { &mut *d_bottom } else { &mut d_vectors[(i - 1) * dim..][..dim] };
            for j in 0..features.count() {
                let (high, low) = (i.max(j), i.min(j));
                let factor = if i == j { 0.0 } else { gradient[high * (high - 1) / 2 + low] };
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
