//! The debug run of the original DLRM as data: `fixtures/golden_dlrm.json` and its f64
//! recomputation.

use serde_json::Value;
use std::collections::BTreeMap;

/// Numbers of a matrix or vector, row after row, in f64.
pub type Numbers = Vec<f64>;

/// One step's inputs.
pub struct GoldenStep {
    /// Samples × dense features.
    pub dense: Numbers,
    /// Per table, per sample, the rows looked up.
    pub ids: Vec<Vec<Vec<u64>>>,
    /// One per sample.
    pub targets: Numbers,
}

/// Everything that the run fixes.
pub struct Golden {
    pub learning_rate: f64,
    pub rows: Vec<u64>,
    pub initial: BTreeMap<String, Numbers>,
    pub steps: Vec<GoldenStep>,
    /// As printed in the README of facebookresearch/dlrm.
    pub published_losses: Numbers,
    pub losses_tolerance: f64,
    pub published_final: BTreeMap<String, Numbers>,
    pub final_tolerance: f64,
    pub top_inputs_step_1: Numbers,
    /// Recomputed in f64 from the printed initial values.
    pub losses: Numbers,
    pub changes: BTreeMap<String, Numbers>,
    pub gradients: Vec<BTreeMap<String, Numbers>>,
}

impl Golden {
    /// Reads both files.
    pub fn load() -> Self {
        let printed: Value =
            serde_json::from_str(include_str!("../fixtures/golden_dlrm.json")).unwrap();
        let computed: Value =
            serde_json::from_str(include_str!("../fixtures/golden_dlrm_f64.json")).unwrap();
        let published = &printed["published"];
        let number = |value: &Value| value.as_f64().unwrap();
        Self {
            learning_rate: number(&printed["model"]["learning_rate"]),
            rows: numbers(&printed["model"]["rows"]).iter().map(|&rows| rows as u64).collect(),
            initial: by_name(&printed["initial"]),
            steps: list(&printed["steps"]).iter().map(step).collect(),
            published_losses: numbers(&published["losses"]),
            losses_tolerance: number(&published["losses_tolerance"]),
            published_final: by_name(&published["final"]),
            final_tolerance: number(&published["final_tolerance"]),
            top_inputs_step_1: numbers(&printed["top_inputs_step_1"]),
            losses: numbers(&computed["losses"]),
            changes: by_name(&computed["change"]),
            gradients: list(&computed["gradients"]).iter().map(by_name).collect(),
        }
    }
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

/// All numbers of nested lists, in order.
fn numbers(value: &Value) -> Numbers {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn by_name(value: &Value) -> BTreeMap<String, Numbers> {
    value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), numbers(value))).collect()
}

fn step(value: &Value) -> GoldenStep {
    let bag = |bag: &Value| numbers(bag).iter().map(|&row| row as u64).collect();
    let ids =
        list(&value["ids"]).iter().map(|table| list(table).iter().map(bag).collect()).collect();
    GoldenStep { dense: numbers(&value["dense"]), ids, targets: numbers(&value["targets"]) }
}
