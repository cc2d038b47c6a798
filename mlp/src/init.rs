//! Initial values of dense parameters, as the original DLRM draws them.
//!
//! Weights ~ N(0, √(2 / (in + out))), biases ~ N(0, √(1 / out)): standard deviations (`create_mlp`
//! of facebookresearch/dlrm). Each parameter has a random stream of its own, named by the
//! parameter's name, so a value depends only on seed, name and position.

use headlong_device::rng::CounterRng;

/// Set in the random streams of dense parameters, so that they meet no stream numbered by table.
const DENSE_STREAMS: u64 = 1 << 63;

/// The random source of the parameter `name`.
pub fn source(seed: u64, name: &str) -> CounterRng {
    // FNV-1a: any fixed hash would do.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    CounterRng::new(seed, hash | DENSE_STREAMS)
}

/// Weights of a layer of `inputs` and `outputs`, row-major out × in.
pub fn fill_weight(source: &CounterRng, (outputs, inputs): (usize, usize), weight: &mut [f32]) {
    fill(source, (2.0 / (inputs + outputs) as f64).sqrt(), weight);
}

/// Biases of a layer of `outputs`.
pub fn fill_bias(source: &CounterRng, outputs: usize, bias: &mut [f32]) {
    fill(source, (1.0 / outputs as f64).sqrt(), bias);
}

fn fill(source: &CounterRng, deviation: f64, values: &mut [f32]) {
    for (index, value) in values.iter_mut().enumerate() {
        *value = (deviation * f64::from(source.normal(index as u64))) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_those_of_the_original() {
        let (outputs, inputs) = (200, 300);
        let mut weight = vec![0.0; outputs * inputs];
        fill_weight(&source(5, "top.0.weight"), (outputs, inputs), &mut weight);
        let mut bias = vec![0.0; 20_000];
        fill_bias(&source(5, "top.0.bias"), 20_000, &mut bias);
        for (values, variance) in [(&weight, 2.0 / 500.0), (&bias, 1.0 / 20_000.0)] {
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let second = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            // Five standard errors of the mean and of the variance.
            assert!(mean.abs() < 5.0 * (variance / n).sqrt());
            assert!((second / variance - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
        }
    }

    #[test]
    fn parameters_do_not_share_numbers() {
        let first = |seed, name| source(seed, name).bits(0);
        assert_ne!(first(1, "top.0.weight"), first(1, "top.1.weight"));
        assert_ne!(first(1, "top.0.weight"), first(2, "top.0.weight"));
        assert_eq!(first(1, "top.0.weight"), first(1, "top.0.weight"));
    }
}
