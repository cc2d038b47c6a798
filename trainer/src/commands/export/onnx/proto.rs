//! Protocol buffers as ONNX has them (`onnx/onnx.proto`), as far as they are written here.

use crate::protobuf::Message;
use std::ops::Range;

/// Type of a value, by ONNX's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elem {
    F32 = 1,
    I64 = 7,
    F64 = 11,
    U64 = 13,
}

/// `StringStringEntryProto`.
pub fn entry(key: &str, value: &str) -> Message {
    Message::default().text(1, key).text(2, value)
}

/// `ValueInfoProto`, with a name for the length of each axis.
pub fn value_info(name: &str, elem: Elem, axes: &[&str]) -> Message {
    let axis = |axis: &&str| Message::default().text(2, axis);
    let shape = Message::default().messages(1, axes.iter().map(axis));
    let tensor = Message::default().number(1, elem as u64).message(2, shape);
    Message::default().text(1, name).message(2, Message::default().message(1, tensor))
}

/// The beginning of a `TensorProto`, without its values.
pub fn tensor(name: &str, elem: Elem, shape: &[u64]) -> Message {
    let head = shape.iter().fold(Message::default(), |head, &len| head.number(1, len));
    head.number(2, elem as u64).text(8, name)
}

/// Values of a `TensorProto` in the file itself: field `raw_data`.
pub const RAW_DATA: u32 = 9;

/// Values of a `TensorProto` in another file, next to this one.
pub fn external(tensor: Message, file: &str, place: &Range<u64>) -> Message {
    let entries = [
        entry("location", file),
        entry("offset", &place.start.to_string()),
        entry("length", &(place.end - place.start).to_string()),
    ];
    tensor.messages(13, entries).number(14, 1)
}

/// `AttributeProto` of one integer.
pub fn integer(name: &str, value: i64) -> Message {
    Message::default().text(1, name).number(3, value as u64).number(20, 2)
}

/// `AttributeProto` of text.
pub fn string(name: &str, value: &str) -> Message {
    Message::default().text(1, name).text(4, value).number(20, 3)
}

/// `AttributeProto` of many integers.
pub fn integers(name: &str, values: &[i64]) -> Message {
    Message::default().text(1, name).numbers(8, values).number(20, 7)
}
