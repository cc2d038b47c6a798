//! How much a model computes: the multiplications and additions of its products, stage by stage.
//!
//! Counted are dense layers, dot products and cross layers, two FLOP a multiply-add; everything
//! else of an iteration moves bytes. The interaction counts the products of different features,
//! once each, whatever a kernel computes.

use crate::config::{Bf16Sums, Config, Interaction, Precision};
use crate::system::peak::{Factors, multiply_add_gflops};
use headlong_device::Stream;

/// FLOP of one training sample in the stages that have any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arithmetic {
    stages: Vec<(&'static str, u64)>,
}

/// What the times of stages are compared with in `--time`.
#[derive(Debug, Clone)]
pub struct Ceiling {
    arithmetic: Arithmetic,
    /// Samples of one step, over all ranks.
    samples: f64,
    ranks: usize,
    /// What the threads of this process can do at most, and how many of its ranks share that.
    peak_gflops: f64,
    ranks_here: usize,
}

impl Ceiling {
    /// Measures what `threads` threads, which `ranks_here` ranks share, do at most in the precision
    /// that `config` trains in, for about a tenth of a second.
    pub fn measure(config: &Config, threads: usize, ranks_here: usize) -> Self {
        let factors = match (config.train.precision, config.train.bf16_sums) {
            (Precision::Bf16, Bf16Sums::Tiles) => Factors::Bf16Tiles,
            (Precision::Bf16, _) => Factors::Bf16,
            _ => Factors::F32,
        };
        let (samples, ranks) = (config.samples_per_step().as_f64(), config.run.ranks);
        let peak_gflops = multiply_add_gflops(&Stream::cpu(threads), factors, 5, 20);
        Self { arithmetic: Arithmetic::of(config), samples, ranks, peak_gflops, ranks_here }
    }

    /// What a stage of one rank reached which took `seconds` in `steps` steps, GFLOP/s; none for
    /// one that computes no product.
    pub fn reached(&self, stage: &str, steps: u64, seconds: f64) -> Option<f64> {
        let flop = self.arithmetic.of_stage(stage) as f64 * self.samples / self.ranks as f64
            * steps as f64;
        (flop > 0.0 && seconds > 0.0).then(|| flop / seconds * 1e-9)
    }

    /// What all threads can do at most, GFLOP/s.
    pub fn peak_gflops(&self) -> f64 {
        self.peak_gflops
    }

    /// One rank's even share of that.
    pub fn gflops_of_rank(&self) -> f64 {
        self.peak_gflops / self.ranks_here as f64
    }
}

#[cfg(test)]
impl Ceiling {
    /// That of a model whose top network does 1 GFLOP a step, where `peak_gflops` were measured.
    pub fn for_test(peak_gflops: f64) -> Self {
        let arithmetic = Arithmetic { stages: vec![("top_forward", 1_000_000_000)] };
        Self { arithmetic, samples: 1.0, ranks: 1, peak_gflops, ranks_here: 1 }
    }
}

impl Arithmetic {
    /// Counts `config`'s model.
    pub fn of(config: &Config) -> Self {
        let model = &config.model;
        let features = config.data.num_sparse as u64 + 1;
        let width = config.top_input_width() as u64;
        let (dots, cross) = match model.interaction {
            Interaction::Dot => (features * (features - 1) / 2 * model.dim as u64, 0),
            Interaction::Cat => (0, 0),
            Interaction::Cross => (0, 2 * (model.cross_layers * model.cross_rank) as u64 * width),
        };
        let num_dense = config.data.num_dense as u64;
        let bottom_widths = if num_dense > 0 { &model.bottom[..] } else { &[] };
        let (bottom, top) =
            (multiply_adds(num_dense, bottom_widths), multiply_adds(width, &model.top));
        let first = num_dense * model.bottom.first().map_or(0, |&width| width as u64);
        // Backward, each product has two: for its input, and for its weights. No one asks for the
        // gradient of the first input.
        let counted = [
            ("bottom_forward", bottom),
            ("interaction_forward", dots),
            ("cross_forward", cross),
            ("top_forward", top),
            ("top_backward", 2 * top),
            ("cross_backward", 2 * cross),
            ("interaction_backward", 2 * dots),
            ("bottom_backward", (2 * bottom).saturating_sub(first)),
        ];
        let stages = counted.into_iter().filter(|&(_, products)| products > 0);
        Self { stages: stages.map(|(name, products)| (name, 2 * products)).collect() }
    }

    /// FLOP of a stage, 0 for one that computes no product.
    pub fn of_stage(&self, name: &str) -> u64 {
        self.stages.iter().find(|(stage, _)| *stage == name).map_or(0, |&(_, flop)| flop)
    }

    /// FLOP to train one sample.
    pub fn training_flop(&self) -> u64 {
        self.stages.iter().map(|(_, flop)| flop).sum()
    }
}

fn multiply_adds(input: u64, widths: &[usize]) -> u64 {
    let inputs = std::iter::once(input).chain(widths.iter().map(|&width| width as u64));
    inputs.zip(widths).map(|(a, &b)| a * b as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::iteration::configuration;
    use crate::commands::bench::shapes::Shape;

    fn of(name: &str) -> Arithmetic {
        let shape = Shape::from_name(name, Some(10)).unwrap();
        Arithmetic::of(&configuration(&shape, 64, 1, None).unwrap())
    }

    #[test]
    fn a_step_has_the_flop_that_the_peers_count() {
        // From benches/peers/common.py: training_flop.
        for (name, flop) in [("C1", 14_447_360), ("C2", 2_866_592), ("C3", 96_169_472)] {
            assert_eq!(of(name).training_flop(), flop, "{name}");
        }
    }

    #[test]
    fn backward_is_twice_forward_but_for_the_first_input() {
        let c1 = of("C1");
        assert_eq!(c1.of_stage("top_backward"), 2 * c1.of_stage("top_forward"));
        assert_eq!(
            c1.of_stage("bottom_backward"),
            2 * c1.of_stage("bottom_forward") - 2 * 13 * 512
        );
        assert_eq!((c1.of_stage("route"), c1.of_stage("cross_forward")), (0, 0));
        assert!(of("C3").of_stage("cross_forward") > 0);
    }

    #[test]
    fn a_share_is_work_over_time_over_the_peak() {
        let arithmetic = of("C1");
        let ceiling =
            Ceiling { arithmetic, samples: 1000.0, ranks: 1, peak_gflops: 100.0, ranks_here: 1 };
        let flop = 2.0 * ceiling.arithmetic.of_stage("top_forward") as f64 * 1000.0;
        let share = |ceiling: &Ceiling| {
            ceiling.reached("top_forward", 2, 0.5).map(|reached| reached / ceiling.gflops_of_rank())
        };
        let alone = share(&ceiling).unwrap();
        assert!((alone - flop / 0.5 / 1e11).abs() < 1e-9, "{alone}");
        assert_eq!(ceiling.reached("route", 2, 0.5), None);
        // Each of two ranks has half of the samples and half of the threads, or half of the samples
        // and all threads of its process.
        let two = |ranks_here| share(&Ceiling { ranks: 2, ranks_here, ..ceiling.clone() });
        assert_eq!((two(2), two(1)), (Some(alone), Some(alone / 2.0)));
    }
}
