//! Ten steps of a small DLRM and of a small DLRM-DCNv2 against PyTorch: losses, every gradient by
//! name, final weights and Adagrad's state, with SGD and with Adagrad, within bounds derived for
//! f32 (`fixtures/README.md`).

#[cfg(test)]
mod pytorch_data;
#[cfg(test)]
mod stepwise;

use headlong::config::{Config, Instructions, Interaction, ModelConfig, TableRows};
use headlong::system::machine::instruction_limit;
use headlong_device::Stream;
use headlong_device::cuda::testing::stream as cuda_stream;
use headlong_reader::{Batch, Jagged};
use pytorch_data::{BATCH, ROWS, STEPS, Tensors, load, within};
use stepwise::{Rates, Trainer};

/// A run of the fixtures.
#[derive(Debug, Clone, Copy)]
struct Case {
    model: &'static str,
    optimizer: &'static str,
    rate: f32,
    /// A rate whose mistake the bounds have to show.
    wrong_rate: f32,
}

const DLRM_SGD: Case = Case { model: "dlrm", optimizer: "sgd", rate: 0.1, wrong_rate: 0.1005 };
const DLRM_ADAGRAD: Case =
    Case { model: "dlrm", optimizer: "adagrad", rate: 0.003, wrong_rate: 0.003 * 1.005 };
const DCN_SGD: Case = Case { model: "dcn", optimizer: "sgd", rate: 0.02, wrong_rate: 0.02 * 1.005 };
const DCN_ADAGRAD: Case =
    Case { model: "dcn", optimizer: "adagrad", rate: 0.001, wrong_rate: 0.001 * 1.005 };
const CASES: [Case; 4] = [DLRM_SGD, DLRM_ADAGRAD, DCN_SGD, DCN_ADAGRAD];

fn config(case: Case) -> Config {
    let mut model =
        ModelConfig { dim: 8, bottom: vec![16, 8], top: vec![16, 8, 1], ..ModelConfig::default() };
    let is_crossed = case.model == "dcn";
    if is_crossed {
        (model.interaction, model.cross_layers, model.cross_rank) = (Interaction::Cross, 2, 6);
    }
    let mut config = Config { model, ..Config::default() };
    config.tables.rows = TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 4;
    (config.data.num_dense, config.data.num_sparse) = (5, ROWS.len());
    (config.train.batch_size, config.eval.batch_size) = (BATCH, BATCH);
    config.optimizer.set_both(case.optimizer).expect("it exists");
    if is_crossed && case.optimizer == "adagrad" {
        config.optimizer.sparse.settings.epsilon = Some(1e-8);
        config.optimizer.dense.settings.epsilon = Some(1e-8);
    }
    config.optimizer.resolve().expect("no setting is given");
    config
}

fn batch(inputs: &Tensors, step: usize) -> Batch {
    let narrow =
        |name: &str| inputs[&format!("step.{step}.{name}")].iter().map(|&x| x as f32).collect();
    let bags = |table: usize| Jagged {
        values: inputs[&format!("step.{step}.values.{table}")].iter().map(|&x| x as u64).collect(),
        offsets: inputs[&format!("step.{step}.offsets.{table}")]
            .iter()
            .map(|&x| x as u32)
            .collect(),
    };
    Batch {
        num_samples: BATCH,
        labels: narrow("labels"),
        dense: narrow("dense"),
        sparse: (0..ROWS.len()).map(bags).collect(),
        ..Batch::default()
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

/// Runs the ten steps at `rate` and holds everything to `exact` within `bounds`; the largest share
/// of a bound that was used.
fn follow(stream: Stream, case: Case, rate: f32) -> f64 {
    let Case { model, optimizer, .. } = case;
    let inputs = load(&format!("{model}_inputs.safetensors"));
    let exact = load(&format!("{model}_{optimizer}_f64.safetensors"));
    let bounds = load(&format!("{model}_{optimizer}_bounds.safetensors"));
    let config = config(case);
    let mut trainer = trainer(&inputs, &config, stream);
    let names = trainer.names();
    let mut most = 0.0_f64;
    let mut check = |what: String, got: &[f32]| {
        most = most.max(within(&what, got, &exact[&what], &bounds[&what]))
    };
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

fn follows(case: Case) {
    println!("largest share of a bound used: {:.3}", follow(Stream::cpu(2), case, case.rate));
}

#[test]
fn sgd_follows_pytorch() {
    follows(DLRM_SGD);
}

#[test]
fn adagrad_follows_pytorch() {
    follows(DLRM_ADAGRAD);
}

#[test]
fn sgd_follows_pytorch_through_a_cross_network() {
    follows(DCN_SGD);
}

#[test]
fn adagrad_follows_pytorch_through_a_cross_network() {
    follows(DCN_ADAGRAD);
}

/// Each within the same bounds, and with the same bits.
#[test]
fn every_instruction_set_follows_pytorch() {
    for case in CASES {
        let mut used = Vec::new();
        for path in [Instructions::Portable, Instructions::Avx2, Instructions::Avx512] {
            match instruction_limit(path) {
                Ok(limit) => used.push(limit.run(|| follow(Stream::cpu(2), case, case.rate))),
                Err(error) => println!("skipped, because {error}"),
            }
        }
        assert!(used.windows(2).all(|pair| pair[0] == pair[1]), "{case:?}: {used:?}");
    }
}

#[test]
fn cuda_follows_pytorch() {
    for case in CASES {
        let Some(stream) = cuda_stream() else { return };
        println!("{case:?}, largest share of a bound used: {:.3}", follow(stream, case, case.rate));
    }
}

/// PyTorch's own f32 run has to lie inside the same bounds, and the bounds must be too narrow for a
/// real mistake: half a percent of the learning rate, say.
#[test]
fn the_bounds_hold_pytorch_and_catch_a_wrong_learning_rate() {
    for case in CASES {
        let Case { model, optimizer, wrong_rate, .. } = case;
        let [exact, single, bounds] = ["f64", "f32", "bounds"]
            .map(|what| load(&format!("{model}_{optimizer}_{what}.safetensors")));
        for (name, values) in &single {
            let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            within(name, &values, &exact[name], &bounds[name]);
        }
        assert!(
            std::panic::catch_unwind(|| follow(Stream::cpu(2), case, wrong_rate)).is_err(),
            "{case:?} at {wrong_rate} was not noticed"
        );
    }
}

#[test]
fn threads_change_no_bit() {
    for case in [DLRM_ADAGRAD, DCN_ADAGRAD] {
        let inputs = load(&format!("{}_inputs.safetensors", case.model));
        let run = |threads| {
            let mut trainer = trainer(&inputs, &config(case), Stream::cpu(threads));
            (0..STEPS).for_each(|step| {
                trainer.step(Rates::both(case.rate), batch(&inputs, step));
            });
            let bits =
                |name: &String| trainer.read(name).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            trainer.names().iter().map(bits).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3), "{case:?}");
    }
}
