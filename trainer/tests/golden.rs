//! The debug run of the original DLRM, to the digit: losses, gradients, final weights, through the
//! worker that trains.
//!
//! It pins the order of the interaction, sum pooling, duplicates, squared error of the sigmoid and
//! SGD.

#[cfg(test)]
mod golden_data;
#[cfg(test)]
mod stepwise;

use golden_data::{Golden, GoldenStep};
use headlong::config::{Config, Loss, ModelConfig, TableRows};
use headlong_device::Stream;
use headlong_device::cuda::testing::stream as cuda_stream;
use headlong_reader::{Batch, Jagged};
use stepwise::{Rates, Trainer, interaction_output};

fn config(golden: &Golden) -> Config {
    let mut config = Config::default();
    let loss = Loss::MseOfSigmoid;
    config.model = ModelConfig {
        dim: 2,
        bottom: vec![3, 2],
        top: vec![4, 2, 1],
        loss,
        ..ModelConfig::default()
    };
    config.tables.rows = TableRows::List(golden.rows.clone());
    config.tables.max_ids_per_sample = 3;
    (config.data.num_dense, config.data.num_sparse) = (4, 3);
    (config.train.batch_size, config.eval.batch_size) = (2, 2);
    config.optimizer.set_both("sgd").expect("SGD exists");
    config.optimizer.resolve().expect("no setting is given");
    config
}

fn batch(step: &GoldenStep) -> Batch {
    let bags = |bags: &Vec<Vec<u64>>| {
        let mut offsets = vec![0];
        offsets.extend(bags.iter().scan(0, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        }));
        Jagged { values: bags.concat(), offsets: offsets.into() }
    };
    Batch {
        num_samples: 2,
        labels: step.targets.iter().map(|&x| x as f32).collect(),
        dense: step.dense.iter().map(|&x| x as f32).collect(),
        sparse: step.ids.iter().map(bags).collect(),
        ..Batch::default()
    }
}

fn assert_near(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(got) - expected).abs();
        assert!(off <= tolerance, "{what}[{index}]: got {got}, expected {expected}, {off:.2e} off");
    }
}

/// Trains the three steps where `stream` works; losses and the trainer afterwards.
fn train(golden: &Golden, stream: Stream) -> (Vec<f64>, Trainer) {
    let mut trainer = Trainer::on(stream, &config(golden), &golden.rows);
    for (name, values) in &golden.initial {
        trainer.write(name, values);
    }
    let rate = golden.learning_rate as f32;
    let losses = golden.steps.iter().map(|step| trainer.step(Rates::both(rate), batch(step)));
    let losses = losses.collect();
    (losses, trainer)
}

fn losses_and_final_weights(stream: Stream) {
    let golden = Golden::load();
    let (losses, trainer) = train(&golden, stream);
    for (step, (got, published)) in losses.iter().zip(&golden.published_losses).enumerate() {
        let off = (got - published).abs();
        assert!(
            off <= golden.losses_tolerance,
            "loss of step {}: {got}, not {published}",
            step + 1
        );
    }
    for (name, published) in &golden.published_final {
        assert_near(name, &trainer.read(name), published, golden.final_tolerance);
    }
}

#[test]
fn losses_and_final_weights_are_those_published() {
    [1, 2, 3].into_iter().for_each(|threads| losses_and_final_weights(Stream::cpu(threads)));
}

#[test]
fn cuda_losses_and_final_weights_are_those_published() {
    cuda_stream().into_iter().for_each(losses_and_final_weights);
}

/// The sigmoid is nearly saturated in the first two steps, so weights move little and a tolerance
/// of 1.5e-5 could hide a wrong gradient. The changes themselves are known in f64.
fn every_weight_changes(stream: Stream) {
    let golden = Golden::load();
    let (losses, trainer) = train(&golden, stream);
    for (got, exact) in losses.iter().zip(&golden.losses) {
        assert!((got - exact).abs() < 1e-6, "loss {got}, in f64 {exact}");
    }
    for (name, changes) in &golden.changes {
        let initial = &golden.initial[name];
        let exact: Vec<f64> = initial.iter().zip(changes).map(|(w, c)| w + c).collect();
        // Weights are below 1: storing one rounds by at most 2^-25, once at the start and once a
        // step; the gradients themselves carry a relative error below 1e-4, of changes below 4e-4.
        assert_near(name, &trainer.read(name), &exact, 4.0 * 2.0_f64.powi(-25) + 4e-8);
    }
}

#[test]
fn every_weight_changes_as_in_f64() {
    every_weight_changes(Stream::cpu(1));
}

#[test]
fn cuda_every_weight_changes_as_in_f64() {
    cuda_stream().into_iter().for_each(every_weight_changes);
}

fn every_gradient(stream: Stream) {
    let golden = Golden::load();
    let config = config(&golden);
    let mut trainer = Trainer::on(stream, &config, &golden.rows);
    for (name, values) in &golden.initial {
        trainer.write(name, values);
    }
    for (step, exact) in golden.steps.iter().zip(&golden.gradients) {
        let gradients = trainer.gradients(&config, &golden.rows, batch(step));
        assert_eq!(gradients.keys().collect::<Vec<_>>(), exact.keys().collect::<Vec<_>>());
        for (name, exact) in exact {
            let largest = exact.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            // The sigmoid's slope p(1-p) loses relative accuracy as 1 - p falls to 0.02: 2^-24 /
            // 0.02 = 3e-6, and the logit's own error of about 1e-6 enters too.
            assert_near(name, &gradients[name], exact, 2e-5 * largest);
        }
        trainer.step(Rates::both(golden.learning_rate as f32), batch(step));
    }
}

#[test]
fn every_gradient_is_that_of_f64() {
    every_gradient(Stream::cpu(1));
}

#[test]
fn cuda_every_gradient_is_that_of_f64() {
    cuda_stream().into_iter().for_each(every_gradient);
}

#[test]
fn the_top_input_has_the_published_order() {
    let golden = Golden::load();
    let w = |name: &str| golden.initial[name].iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let step = &golden.steps[0];
    let mut rows = Vec::new();
    for sample in 0..2 {
        let hidden =
            layer(&step.dense[sample * 4..][..4], &w("bot_l.0.weight"), &w("bot_l.0.bias"));
        let bottom = layer(&hidden, &w("bot_l.2.weight"), &w("bot_l.2.bias"));
        let pooled = (0..3).flat_map(|t| {
            let table = w(&format!("emb_l.{t}.weight"));
            let bag = &step.ids[t][sample];
            (0..2).map(move |d| bag.iter().map(|&row| table[row as usize * 2 + d]).sum::<f32>())
        });
        rows.push((bottom, pooled.collect::<Vec<f32>>()));
    }
    let got = interaction_output(&rows);
    assert_near("top input", &got, &golden.top_inputs_step_1, 2e-6);
}

/// A layer with ReLU, the slow way.
fn layer(x: &[f64], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let outputs = weight.chunks_exact(x.len()).zip(bias);
    outputs
        .map(|(row, &b)| {
            (row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>() + f64::from(b)).max(0.0)
        })
        .collect()
}
