//! Ten steps of a small DLRM beside PyTorch: losses, every gradient by name, final weights and Adagrad's state, with SGD and
//! with Adagrad, within bounds derived for f32 (`fixtures/README.md`).

#[cfg(test)]
mod pytorch_data;
#[cfg(test)]
mod stepwise;

use headlong::config::{Config, ModelConfig, TableRows};
use headlong_device::Stream;
use headlong_device::cuda::testing::stream as cuda_stream;
use headlong_reader::{Batch, Jagged, Position};
use pytorch_data::{BATCH, ROWS, STEPS, Tensors, load, within};
use stepwise::{Rates, Trainer};

fn config(optimizer: &str) -> Config {
    let model = ModelConfig { dim: 8, bottom: vec![16, 8], top: vec![16, 8, 1], ..ModelConfig::default() };
    let mut config = Config { model, ..Config::default() };
    config.tables.rows = TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 4;
    (config.data.num_dense, config.data.num_sparse) = (5, ROWS.len());
    (config.train.batch_size, config.eval.batch_size) = (BATCH, BATCH);
    config.optimizer.set_both(optimizer).expect("it exists");
    config.optimizer.resolve().expect("no setting is given");
    config
}

fn batch(inputs: &Tensors, step: usize) -> Batch {
    let narrow = |name: &str| inputs[&format!("step.{step}.{name}")].iter().map(|&x| x as f32).collect();
    let bags = |table: usize| Jagged {
        values: inputs[&format!("step.{step}.values.{table}")].iter().map(|&x| x as u64).collect(),
        offsets: inputs[&format!("step.{step}.offsets.{table}")].iter().map(|&x| x as u32).collect(),
    };
    Batch {
        num_samples: BATCH,
        labels: narrow("labels"),
        dense: narrow("dense"),
        sparse: (0..ROWS.len()).map(bags).collect(),
        position: Position::default(),
    }
}

fn trainer(inputs: &Tensors, config: &Config, stream: Stream) -> Trainer {
    let mut trainer = Trainer::on(stream, config, &ROWS);
    let mut names = trainer.names();
    names.sort();
    let stored: Vec<_> = inputs.keys().filter_map(|name| name.strip_prefix("weight.")).collect();
    assert_eq!(names, stored, "the model has the fixture's parameters");
    for name in &names {
        trainer.write(name, &inputs[&format!("weight.{name}")]);
    }
    trainer
}

/// Runs the ten steps and holds everything to `exact` within `bounds`; the largest share of a bound that was used.
fn follow(stream: Stream, optimizer: &str, rate: f32) -> f64 {
    let inputs = load("dlrm_inputs.safetensors");
    let exact = load(&format!("dlrm_{optimizer}_f64.safetensors"));
    let bounds = load(&format!("dlrm_{optimizer}_bounds.safetensors"));
    let config = config(optimizer);
    let mut trainer = trainer(&inputs, &config, stream);
    let names = trainer.names();
    let mut most = 0.0_f64;
    let mut check =
        |what: String, got: &[f32]| most = most.max(within(&what, got, &exact[&what], &bounds[&what]));
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let gradients = trainer.gradients(&config, &ROWS, batch(&inputs, step));
        names.iter().for_each(|name| check(format!("gradient.{step}.{name}"), &gradients[name]));
        losses.push(trainer.step(Rates::both(rate), batch(&inputs, step)) as f32);
    }
    check("losses".to_owned(), &losses);
    names.iter().for_each(|name| check(format!("final.{name}"), &trainer.read(name)));
    if optimizer == "adagrad" {
        names.iter().for_each(|name| check(format!("state.{name}"), &trainer.state(name)));
    }
    most
}

#[test]
fn sgd_follows_pytorch() {
    println!("largest share of a bound used: {:.3}", follow(Stream::cpu(2), "sgd", 0.1));
}

#[test]
fn adagrad_follows_pytorch() {
    println!("largest share of a bound used: {:.3}", follow(Stream::cpu(2), "adagrad", 0.003));
}

#[test]
fn cuda_follows_pytorch() {
    for (optimizer, rate) in [("sgd", 0.1), ("adagrad", 0.003)] {
        let Some(stream) = cuda_stream() else { return };
        println!("{optimizer}, largest share of a bound used: {:.3}", follow(stream, optimizer, rate));
    }
}

/// PyTorch's own f32 run has to lie inside the same bounds, and the bounds must be too narrow for a real mistake: half a
/// percent of the learning rate, say.
#[test]
fn the_bounds_hold_pytorch_and_catch_a_wrong_learning_rate() {
    for optimizer in ["sgd", "adagrad"] {
        let exact = load(&format!("dlrm_{optimizer}_f64.safetensors"));
        let single = load(&format!("dlrm_{optimizer}_f32.safetensors"));
        let bounds = load(&format!("dlrm_{optimizer}_bounds.safetensors"));
        for (name, values) in &single {
            let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            within(name, &values, &exact[name], &bounds[name]);
        }
    }
    for (optimizer, rate) in [("sgd", 0.1005), ("adagrad", 0.003 * 1.005)] {
        assert!(
            std::panic::catch_unwind(|| follow(Stream::cpu(2), optimizer, rate)).is_err(),
            "{optimizer} at {rate} was not noticed"
        );
    }
}

#[test]
fn threads_change_no_bit() {
    let inputs = load("dlrm_inputs.safetensors");
    let run = |threads| {
        let mut trainer = trainer(&inputs, &config("adagrad"), Stream::cpu(threads));
        (0..STEPS).for_each(|step| {
            trainer.step(Rates::both(0.003), batch(&inputs, step));
        });
        let bits = |name: &String| trainer.read(name).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        trainer.names().iter().map(bits).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(3));
}
