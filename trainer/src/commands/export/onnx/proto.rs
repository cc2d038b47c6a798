//! Protocol buffers as ONNX has them (`onnx/onnx.proto`), as far as they are written here. Weights
//! are gaps: what lies there is written later, so that no table has to be in memory.

use std::ops::Range;

/// Type of a value, by ONNX's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elem {
    F32 = 1,
    I64 = 7,
    F64 = 11,
    U64 = 13,
}

/// A message: its fields, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Message {
    parts: Vec<Part>,
    len: u64,
}

#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>),
    Gap(u64),
}

/// What a written message consists of.
#[derive(Debug, Default)]
pub struct Written {
    /// Bytes, and where they lie.
    pub bytes: Vec<(u64, Vec<u8>)>,
    /// Gaps, in the order in which they were added.
    pub gaps: Vec<Range<u64>>,
}

impl Message {
    /// A number.
    pub fn number(mut self, field: u32, value: u64) -> Self {
        let mut bytes = Vec::new();
        varint(&mut bytes, u64::from(field) << 3);
        varint(&mut bytes, value);
        self.push(bytes);
        self
    }

    /// Text.
    pub fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Bytes.
    pub fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.begin(field, bytes.len() as u64);
        self.push(bytes.to_vec());
        self
    }

    /// Integers of any sign, packed.
    pub fn numbers(self, field: u32, values: &[i64]) -> Self {
        let mut bytes = Vec::new();
        values.iter().for_each(|&value| varint(&mut bytes, value as u64));
        self.bytes(field, &bytes)
    }

    /// Another message.
    pub fn message(mut self, field: u32, inner: Message) -> Self {
        self.begin(field, inner.len);
        inner.parts.into_iter().for_each(|part| match part {
            Part::Bytes(bytes) => self.push(bytes),
            Part::Gap(len) => self.push_gap(len),
        });
        self
    }

    /// The same field once for each message.
    pub fn messages(self, field: u32, inner: impl IntoIterator<Item = Message>) -> Self {
        inner.into_iter().fold(self, |whole, inner| whole.message(field, inner))
    }

    /// `len` bytes that are written later.
    pub fn gap(mut self, field: u32, len: u64) -> Self {
        self.begin(field, len);
        self.push_gap(len);
        self
    }

    /// All of it, from byte 0 of a file on.
    pub fn written(self) -> Written {
        let mut written = Written::default();
        let mut at = 0;
        for part in self.parts {
            at += match part {
                Part::Bytes(bytes) => {
                    let len = bytes.len() as u64;
                    written.bytes.push((at, bytes));
                    len
                }
                Part::Gap(len) => {
                    written.gaps.push(at..at + len);
                    len
                }
            };
        }
        written
    }

    fn begin(&mut self, field: u32, len: u64) {
        let mut bytes = Vec::new();
        varint(&mut bytes, u64::from(field) << 3 | 2);
        varint(&mut bytes, len);
        self.push(bytes);
    }

    fn push(&mut self, mut bytes: Vec<u8>) {
        self.len += bytes.len() as u64;
        match self.parts.last_mut() {
            Some(Part::Bytes(last)) => last.append(&mut bytes),
            _ => self.parts.push(Part::Bytes(bytes)),
        }
    }

    fn push_gap(&mut self, len: u64) {
        self.len += len;
        self.parts.push(Part::Gap(len));
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_as_protocol_buffers_say() {
        let inner = Message::default().number(1, 300).gap(9, 200).text(2, "ab");
        let whole = Message::default().message(7, inner).numbers(8, &[-1]).number(1, 5);
        let written = whole.written();
        let head = [0x3a, 0xd2, 0x01, 0x08, 0xac, 0x02, 0x4a, 0xc8, 0x01];
        let mut tail = vec![0x12, 0x02, b'a', b'b', 0x42, 0x0a];
        tail.extend([0xff; 9]);
        tail.extend([0x01, 0x08, 0x05]);
        assert_eq!(written.gaps, vec![9..209]);
        assert_eq!(written.bytes, [(0, head.to_vec()), (209, tail)]);
    }
}
