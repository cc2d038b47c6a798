//! A graph of ONNX, node by node.

use super::proto::{self, Elem};
use crate::protobuf::Message;
use std::ops::Range;

/// The operators' version: the first with `BitwiseXor`.
const OPSET: u64 = 18;
/// That of `ai.onnx.ml`, for its `LabelEncoder`.
const ML_OPSET: u64 = 3;
/// Version of the format.
const IR_VERSION: u64 = 8;
const ML: &str = "ai.onnx.ml";

/// What the axis of samples is called.
pub const SAMPLES: &str = "samples";

/// What has been added so far. Values are named by what gives them.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: Vec<Message>,
    constants: Vec<Message>,
    weights: Vec<Weights>,
    inputs: Vec<Message>,
    outputs: Vec<Message>,
}

/// A tensor whose numbers are written later.
#[derive(Debug)]
struct Weights {
    name: String,
    shape: Vec<u64>,
}

impl Weights {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * size_of::<f32>() as u64
    }
}

impl Graph {
    pub fn input(&mut self, name: &str, elem: Elem, axes: &[&str]) -> String {
        self.inputs.push(proto::value_info(name, elem, axes));
        name.to_owned()
    }

    pub fn output(&mut self, value: &str, name: &str, elem: Elem) {
        self.nodes.push(named("Identity", &[value], &[name]));
        self.outputs.push(proto::value_info(name, elem, &[SAMPLES]));
    }

    /// What an operator makes of its inputs.
    pub fn node(&mut self, operator: &str, inputs: &[&str]) -> String {
        self.node_with(operator, inputs, vec![])
    }

    pub fn node_with(&mut self, operator: &str, inputs: &[&str], with: Vec<Message>) -> String {
        self.add(operator, inputs, with, |node| node)
    }

    /// What a table of `keys` and `values` makes of integers; of others, 0.
    pub fn look_up(&mut self, ids: &str, keys: &[i64], values: &[i64]) -> String {
        let with = vec![
            proto::integers("keys_int64s", keys),
            proto::integers("values_int64s", values),
            proto::integer("default_int64", 0),
        ];
        self.add("LabelEncoder", &[ids], with, |node| node.text(7, ML))
    }

    fn add(
        &mut self,
        operator: &str,
        inputs: &[&str],
        with: Vec<Message>,
        more: impl FnOnce(Message) -> Message,
    ) -> String {
        let name = format!("headlong/{operator}.{}", self.nodes.len());
        self.nodes.push(more(named(operator, inputs, &[&name])).messages(5, with));
        name
    }

    pub fn cast(&mut self, value: &str, elem: Elem) -> String {
        self.node_with("Cast", &[value], vec![proto::integer("to", elem as i64)])
    }

    /// Values side by side, along axis 1.
    pub fn concat(&mut self, values: &[String]) -> String {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        self.node_with("Concat", &values, vec![proto::integer("axis", 1)])
    }

    /// Integers, in one row.
    pub fn integers(&mut self, values: &[i64]) -> String {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Elem::I64, &[values.len() as u64], &bytes)
    }

    /// One integer, without an axis.
    pub fn integer(&mut self, value: i64) -> String {
        self.constant(Elem::I64, &[], &value.to_le_bytes())
    }

    /// Numbers without a sign, to shift by.
    pub fn unsigned(&mut self, value: u64) -> String {
        self.constant(Elem::U64, &[], &value.to_le_bytes())
    }

    /// Numbers without a sign, in one row.
    pub fn all_unsigned(&mut self, values: &[u64]) -> String {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Elem::U64, &[values.len() as u64], &bytes)
    }

    /// One number of double precision.
    pub fn double(&mut self, value: f64) -> String {
        self.constant(Elem::F64, &[], &value.to_le_bytes())
    }

    /// Numbers of double precision, in one row.
    pub fn doubles(&mut self, values: &[f64]) -> String {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Elem::F64, &[values.len() as u64], &bytes)
    }

    /// One number of single precision.
    pub fn float(&mut self, value: f32) -> String {
        self.constant(Elem::F32, &[], &value.to_le_bytes())
    }

    fn constant(&mut self, elem: Elem, shape: &[u64], bytes: &[u8]) -> String {
        let name = format!("headlong/constant.{}", self.constants.len());
        let tensor = proto::tensor(&name, elem, shape).bytes(proto::RAW_DATA, bytes);
        self.constants.push(tensor);
        name
    }

    /// A tensor of f32 whose numbers are written later: in the order of these calls.
    pub fn weights(&mut self, name: &str, shape: &[u64]) -> String {
        let name = format!("headlong/{name}");
        self.weights.push(Weights { name: name.clone(), shape: shape.to_vec() });
        name
    }

    /// Bytes of all numbers that are written later.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(Weights::bytes).sum()
    }

    /// Where they lie in a file of their own.
    pub fn places_outside(&self) -> Vec<Range<u64>> {
        let mut end = 0;
        let place = |weights: &Weights| {
            let start = end;
            end += weights.bytes();
            start..end
        };
        self.weights.iter().map(place).collect()
    }

    /// The model, with gaps for the weights, or with `outside`, the file that they lie in.
    pub fn model(self, outside: Option<&str>, metadata: &[(&str, String)]) -> Message {
        let places = self.places_outside();
        let with_values = |(weights, place): (&Weights, &Range<u64>)| {
            let tensor = proto::tensor(&weights.name, Elem::F32, &weights.shape);
            match outside {
                Some(file) => proto::external(tensor, file, place),
                None => tensor.gap(proto::RAW_DATA, weights.bytes()),
            }
        };
        let weights: Vec<Message> = self.weights.iter().zip(&places).map(with_values).collect();
        let graph = Message::default()
            .messages(1, self.nodes)
            .text(2, "headlong")
            .messages(5, self.constants)
            .messages(5, weights)
            .messages(11, self.inputs)
            .messages(12, self.outputs);
        let of_domain = |domain, version| Message::default().text(1, domain).number(2, version);
        Message::default()
            .number(1, IR_VERSION)
            .text(2, "headlong")
            .text(3, env!("CARGO_PKG_VERSION"))
            .message(7, graph)
            .messages(8, [of_domain("", OPSET), of_domain(ML, ML_OPSET)])
            .messages(14, metadata.iter().map(|(key, value)| proto::entry(key, value)))
    }
}

/// `NodeProto`, named after what it gives.
fn named(operator: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let node = inputs.iter().fold(Message::default(), |node, input| node.text(1, input));
    let node = outputs.iter().fold(node, |node, output| node.text(2, output));
    node.text(3, outputs[0]).text(4, operator)
}
