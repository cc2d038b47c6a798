//! Messages of protocol buffers, as far as they are written here: ONNX files, TensorBoard's events.
//! Weights are gaps: what lies there is written later, so that no table has to be in memory.

use std::ops::Range;

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

    /// A number of double precision.
    pub fn double(self, field: u32, value: f64) -> Self {
        self.fixed(u64::from(field) << 3 | 1, &value.to_le_bytes())
    }

    /// A number of single precision.
    pub fn float(self, field: u32, value: f32) -> Self {
        self.fixed(u64::from(field) << 3 | 5, &value.to_le_bytes())
    }

    fn fixed(mut self, tag: u64, value: &[u8]) -> Self {
        let mut bytes = Vec::new();
        varint(&mut bytes, tag);
        bytes.extend_from_slice(value);
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

    /// All of it as bytes; gaps are zeros.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len as usize);
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => all.extend_from_slice(bytes),
                Part::Gap(len) => all.resize(all.len() + *len as usize, 0),
            }
        }
        all
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
    #[test]
    fn numbers_with_fractions_have_their_own_widths() {
        let bytes = Message::default().double(1, 1.5).float(2, 1.5).gap(3, 1).to_bytes();
        let numbers = [0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x15, 0, 0, 0xc0, 0x3f];
        assert_eq!(bytes, [&numbers[..], &[0x1a, 1, 0]].concat());
    }
}
