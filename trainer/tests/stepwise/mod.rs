//! A trainer that tests drive step by step, with weights and gradients under the names of the
//! original DLRM.

#![allow(dead_code, reason = "each test binary uses its part")]

use headlong::config::Config;
use headlong::iteration::lanes::Lanes;
use headlong::iteration::model::Model;
use headlong::iteration::trace::Recorder;
use headlong::iteration::worker::{RankWorker, StepRates};
use headlong_device::{Arena, ArenaPlan, DType, Mat, Stream};
use headlong_mlp::interaction::dot;
use headlong_reader::Batch;
use std::collections::BTreeMap;

/// Learning rates of the dense network and of the tables.
#[derive(Clone, Copy)]
pub struct Rates {
    pub dense: f32,
    pub sparse: f32,
}

impl Rates {
    pub fn both(rate: f32) -> Self {
        Self { dense: rate, sparse: rate }
    }
}

/// Probes of row gradients use this learning rate. A power of two so large that the weight it is
/// added to is rounding: what the gradient loses is 2^-24 of itself and 2^-24 of 2^-40 of the
/// weight.
const PROBE_RATE: f32 = (1_u64 << 40) as f32;

/// The worker with doors to its weights.
pub struct Trainer {
    worker: RankWorker,
    stream: Stream,
    steps: u64,
}

impl Trainer {
    pub fn new(config: &Config, rows: &[u64], threads: usize) -> Self {
        Self::on(Stream::cpu(threads), config, rows)
    }

    /// A trainer whose model lies where `stream` works.
    pub fn on(stream: Stream, config: &Config, rows: &[u64]) -> Self {
        config.validate().unwrap();
        let model = Model::new(config, rows, &stream).unwrap();
        let worker =
            RankWorker::new(model, Lanes::serial(stream.clone()).unwrap(), Recorder::off());
        Self { worker, stream, steps: 0 }
    }

    /// Trains on one batch; the mean loss.
    pub fn step(&mut self, rates: Rates, batch: Batch) -> f64 {
        self.steps += 1;
        self.worker.prime(&batch).unwrap();
        let rates = StepRates { number: self.steps, dense: rates.dense, sparse: rates.sparse };
        self.worker.step(rates, None).unwrap()
    }

    /// Names of all weights.
    pub fn names(&self) -> Vec<String> {
        let model = self.worker.model();
        let tables = (0..model.tables.specs().len()).map(|t| format!("emb_l.{t}.weight"));
        tables.chain(model.weights.mats().map(|mat| original_name(mat.name()))).collect()
    }

    pub fn read(&self, name: &str) -> Vec<f32> {
        let model = self.worker.model();
        match table(name) {
            Some(table) => {
                let spec = &model.tables.specs()[table];
                let mut values = vec![0.0; spec.rows as usize * spec.dim];
                model.tables.export_rows(table, 0, 0, &mut values).unwrap();
                values
            }
            None => slot(&model.weights, name).to_vec().unwrap(),
        }
    }

    pub fn write(&mut self, name: &str, values: &[f64]) {
        let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        let model = self.worker.model();
        match table(name) {
            Some(table) => model.tables.import_rows(table, 0, 0, &values).unwrap(),
            None => slot(&model.weights, name).copy_from(&values).unwrap(),
        }
        model.refresh(&self.stream);
    }

    /// First optimiser state of a weight.
    pub fn state(&self, name: &str) -> Vec<f32> {
        let model = self.worker.model();
        match table(name) {
            Some(table) => {
                let tensor = &model.tables.tensors(table)[1];
                let mut values = vec![0.0; tensor.rows as usize * tensor.cols];
                model.tables.export_rows(table, 1, 0, &mut values).unwrap();
                values
            }
            None => slot(&model.dense_states[0], name).to_vec().unwrap(),
        }
    }

    /// Every gradient of a batch at the present weights, by name. Leaves this trainer alone: a
    /// second one with SGD takes a step that moves tables alone, so far that what they are
    /// afterwards is their gradient.
    pub fn gradients(
        &self,
        config: &Config,
        rows: &[u64],
        batch: Batch,
    ) -> BTreeMap<String, Vec<f32>> {
        let mut config = config.clone();
        config.optimizer.set_both("sgd").unwrap();
        config.optimizer.resolve().unwrap();
        let mut probe = Self::on(self.stream.clone(), &config, rows);
        let names = self.names();
        for name in &names {
            let values: Vec<f64> = self.read(name).iter().map(|&x| f64::from(x)).collect();
            probe.write(name, &values);
        }
        probe.step(Rates { dense: 0.0, sparse: PROBE_RATE }, batch);
        let gradient = |name: &String| {
            let values = match table(name) {
                Some(_) => {
                    let moved = |(before, after): (&f32, &f32)| (before - after) / PROBE_RATE;
                    self.read(name).iter().zip(&probe.read(name)).map(moved).collect()
                }
                None => slot(&probe.worker.model().gradients, name).to_vec().unwrap(),
            };
            (name.clone(), values)
        };
        names.iter().map(gradient).collect()
    }
}

/// `bottom.1.weight` is `bot_l.2.weight`: the original counts activations as layers. The cross
/// network has TorchRec's names.
fn original_name(name: &str) -> String {
    let parts = name.split('.').collect::<Vec<_>>();
    if let ["cross", layer, factor, kind] = parts[..] {
        let is_bias = kind == "bias";
        let kernels = format!("{}_kernels", factor.to_uppercase());
        return format!("crossnet.{}.{layer}", if is_bias { "bias" } else { &kernels });
    }
    let [network, layer, kind] = parts[..] else { panic!("{name}") };
    let network = if network == "bottom" { "bot_l" } else { "top_l" };
    format!("{network}.{}.{kind}", 2 * layer.parse::<usize>().unwrap())
}

/// The table of `emb_l.3.weight`.
fn table(name: &str) -> Option<usize> {
    name.strip_prefix("emb_l.")?.strip_suffix(".weight")?.parse().ok()
}

fn slot(arena: &Arena, name: &str) -> Mat {
    let found = arena.mats().find(|mat| original_name(mat.name()) == name);
    found.unwrap_or_else(|| panic!("the model has no `{name}`"))
}

/// Output of the dot interaction for samples of (bottom output, pooled vectors one after another).
pub fn interaction_output(samples: &[(Vec<f64>, Vec<f32>)]) -> Vec<f32> {
    let (dim, width) = (samples[0].0.len(), samples[0].1.len());
    let out_width = dot::output_width(width / dim, dim);
    let mut plan = ArenaPlan::new("interaction");
    let slots = [("bottom", dim), ("vectors", width), ("out", out_width)]
        .map(|(name, cols)| plan.matrix(name, DType::F32, samples.len(), cols));
    let arena = plan.freeze().unwrap();
    let [bottom, vectors, out] = slots.map(|slot| arena.mat(slot));
    for (row, (b, v)) in samples.iter().enumerate() {
        let b: Vec<f32> = b.iter().map(|&x| x as f32).collect();
        bottom.write::<f32>().row_mut(row).copy_from_slice(&b);
        vectors.write::<f32>().row_mut(row).copy_from_slice(v);
    }
    dot::forward(
        &Stream::cpu(1),
        &dot::ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out },
        None,
    );
    let rows: Vec<f32> =
        (0..samples.len()).flat_map(|row| out.read::<f32>().row(row).to_vec()).collect();
    rows
}
