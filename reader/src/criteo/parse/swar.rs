//! The portable fast body: eight hexadecimal digits at once in a 64-bit word, everything else byte
//! by byte.
//!
//! It takes lines that are plainly good; at the first surprise it gives the line to
//! [`super::line`].

use memchr::memchr;

use super::line;
use super::{BadRowPolicy, MISSING_DENSE, RawBlock};
use crate::schema::Schema;

/// Parses all lines of `text` and appends to `block`.
pub fn parse_lines(schema: &Schema, policy: BadRowPolicy, text: &[u8], block: &mut RawBlock) {
    let mut start = 0;
    while start < text.len() {
        if let Some(next) = append_plain_line(schema, text, start, block) {
            block.line_ends.push(next as u32);
            block.num_samples += 1;
            block.num_lines += 1;
            start = next;
            continue;
        }
        line::drop_partial_sample(schema, block);
        let end = memchr(b'\n', &text[start..]).map_or(text.len(), |length| start + length);
        let next = (end + 1).min(text.len());
        if !line::push_line(schema, policy, &text[start..end], next as u32, block) {
            return;
        }
        start = next;
    }
}

/// Appends the fields of the line at `start` and says where the next one starts; `None` at a
/// surprise, which may leave some fields behind.
#[inline(always)]
fn append_plain_line(
    schema: &Schema,
    text: &[u8],
    start: usize,
    block: &mut RawBlock,
) -> Option<usize> {
    let mut at = start;
    if schema.labelled {
        let label = text.get(at)?.wrapping_sub(b'0');
        if label > 1 {
            return None;
        }
        block.labels.push(label);
        at = after_tab(text, at + 1)?;
    }
    let last_dense = schema.num_dense.wrapping_sub((schema.num_sparse == 0) as usize);
    for index in 0..schema.num_dense {
        let (value, end) = plain_integer(text, at)?;
        block.dense.push(value);
        at = if index == last_dense { after_line_end(text, end)? } else { after_tab(text, end)? };
    }
    let mut missing = 0_u64;
    for index in 0..schema.num_sparse {
        let (value, end) = plain_category(text, at)?;
        missing |= ((end == at) as u64) << index;
        block.sparse.push(value);
        let is_last = index + 1 == schema.num_sparse;
        at = if is_last { after_line_end(text, end)? } else { after_tab(text, end)? };
    }
    block.sparse_missing.push(missing);
    Some(at)
}

#[inline(always)]
fn after_tab(text: &[u8], at: usize) -> Option<usize> {
    (*text.get(at)? == b'\t').then_some(at + 1)
}

#[inline(always)]
fn after_line_end(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at..)? {
        [b'\n', ..] => Some(at + 1),
        [b'\r', b'\n', ..] => Some(at + 2),
        _ => None,
    }
}

/// An integer of up to nine digits, or nothing, and where it ends.
#[inline(always)]
fn plain_integer(text: &[u8], start: usize) -> Option<(i32, usize)> {
    let is_negative = *text.get(start)? == b'-';
    let first = start + is_negative as usize;
    let mut at = first;
    let mut magnitude = 0_i32;
    loop {
        let digit = text.get(at)?.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        if at - first == 9 {
            return None;
        }
        magnitude = magnitude * 10 + digit as i32;
        at += 1;
    }
    match (at > first, is_negative) {
        (true, false) => Some((magnitude, at)),
        (true, true) => Some((-magnitude, at)),
        (false, false) => Some((MISSING_DENSE, at)),
        (false, true) => None,
    }
}

/// A category of up to eight digits, or nothing, and where it ends.
#[inline(always)]
fn plain_category(text: &[u8], start: usize) -> Option<(u32, usize)> {
    if let Some(word) = text.get(start..start + 8)
        && let Ok(word) = <[u8; 8]>::try_from(word)
        && let Some(value) = eight_hex_digits(word)
    {
        return Some((value, start + 8));
    }
    let mut at = start;
    let mut value = 0_u32;
    loop {
        let Some(digit) = char::from(*text.get(at)?).to_digit(16) else {
            return Some((value, at));
        };
        if at - start == 8 {
            return None;
        }
        value = value << 4 | digit;
        at += 1;
    }
}

/// The value of eight digits of either case, the first the most significant; `None` if a byte is
/// none.
#[inline(always)]
fn eight_hex_digits(bytes: [u8; 8]) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let word = u64::from_be_bytes(bytes);
    // Without high bits, adding a constant below 0x80 to every byte sets its high bit where the
    // byte is large enough, and never carries into the next one.
    let low = word & !HIGH;
    let at_least = |bytes: u64, least: u8| bytes.wrapping_add((0x80 - least as u64) * ONES);
    let lower_case = low | (0x20 * ONES);
    let is_digit = at_least(low, b'0') & !at_least(low, b'9' + 1);
    let is_letter = at_least(lower_case, b'a') & !at_least(lower_case, b'f' + 1);
    if (is_digit | is_letter) & !word & HIGH != HIGH {
        return None;
    }
    // The low nibble of a letter is its value less 9.
    let nibbles = (low & (0x0f * ONES)) + (is_letter & HIGH) / 0x80 * 9;
    let bytes = (nibbles >> 4 | nibbles) & 0x00ff_00ff_00ff_00ff;
    let pairs = (bytes >> 8 | bytes) & 0x0000_ffff_0000_ffff;
    Some((pairs >> 16 | pairs) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_digits_are_read_at_once_and_no_other_byte() {
        for value in [0, 1, 0x0123_4567, 0x89ab_cdef, u32::MAX, 0x68fd_1e64] {
            let text = format!("{value:08x}");
            assert_eq!(eight_hex_digits(text.as_bytes().try_into().unwrap()), Some(value));
            let text = text.to_uppercase();
            assert_eq!(eight_hex_digits(text.as_bytes().try_into().unwrap()), Some(value));
        }
        for position in 0..8 {
            for byte in 0..=255_u8 {
                let mut bytes = *b"0fA3b9c1";
                bytes[position] = byte;
                let text = bytes.iter().map(|&byte| char::from(byte)).collect::<String>();
                let expected =
                    byte.is_ascii_hexdigit().then(|| u32::from_str_radix(&text, 16).unwrap());
                assert_eq!(eight_hex_digits(bytes), expected, "{text:?}");
            }
        }
    }
}
