//! Damage to bytes and to text, whatever they mean.

use crate::random::Random;

/// A mutant is never longer.
const MOST_BYTES: usize = 256 << 10;

/// Sizes and counts at which programs err.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    4096,
    65_535,
    65_536,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// The same in text, with what is not a number.
const WORDS: [&str; 24] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "1.5",
    "-0.0",
    "1e308",
    "1e999",
    "nan",
    "inf",
    "4294967295",
    "4294967296",
    "4611686018427387904",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "",
    "\"x\"",
    "true",
    "null",
    "[]",
    "{}",
    "0x10",
];

/// A number at which programs err, or any.
pub fn number(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.number() >> random.below(64),
        1 => NUMBERS[random.below(NUMBERS.len())].wrapping_sub(random.below(3) as u64),
        _ => *random.pick(&NUMBERS),
    }
}

/// How many edits make a mutant: mostly one, so that what surrounds it is sound.
fn edits(random: &mut Random) -> usize {
    if random.once_in(2) { 1 } else { 1 + random.below(4) }
}

/// Damages `bytes` in one to four places.
pub fn bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..edits(random) {
        edit(bytes, random);
        bytes.truncate(MOST_BYTES);
    }
}

/// Damages a part of `all`, which then may have another length.
pub fn part(all: &mut Vec<u8>, range: std::ops::Range<usize>, random: &mut Random) {
    let mut part = all[range.clone()].to_vec();
    bytes(&mut part, random);
    all.splice(range, part);
}

/// A place and a length that lie in `length` bytes.
fn range(length: usize, random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(length + 1);
    let most = (length - start).min(1 << random.below(10));
    start..start + random.below(most + 1)
}

/// A count below a power of two: of a high one now and then, else of a low one.
fn many(high: usize, low: usize, random: &mut Random) -> usize {
    let power = if random.once_in(8) { high } else { low };
    1 << random.below(power)
}

fn edit(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(11) {
        0 | 1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.number() as u8),
        3 | 4 => {
            let number = number(random).to_le_bytes();
            let width = 1 << random.below(4);
            bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
        }
        5 => put_varint(bytes, at, random),
        6 => {
            let length = random.below(9);
            let new: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
            bytes.splice(at..at, new);
        }
        7 => {
            bytes.drain(range(bytes.len(), random));
        }
        8 => {
            let copied = bytes[range(bytes.len(), random)].to_vec();
            let end = bytes.len().min(at + if random.once_in(2) { copied.len() } else { 0 });
            bytes.splice(at..end, copied);
        }
        9 => {
            let byte = if random.once_in(2) { 0xff } else { bytes.get(at).copied().unwrap_or(0) };
            let count = many(16, 8, random);
            bytes.splice(at..at, vec![byte; count]);
        }
        _ => bytes.truncate(at),
    }
}

/// Overwrites with a number as Thrift and protocol buffers write it: seven bits a byte.
fn put_varint(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let mut rest = number(random);
    let mut varint = Vec::new();
    loop {
        let low = rest as u8 & 0x7f;
        rest >>= 7;
        varint.push(if rest > 0 { low | 0x80 } else { low });
        if rest == 0 {
            break;
        }
    }
    let end = bytes.len().min(at + if random.once_in(2) { varint.len() } else { 1 });
    bytes.splice(at..end, varint);
}

/// Damages `text` in one to four places: its numbers, lines and words; `others` are texts to take
/// lines from.
pub fn text(text: &mut Vec<u8>, others: &[&[u8]], random: &mut Random) {
    for _ in 0..edits(random) {
        match random.below(8) {
            0..3 => edit_number(text, random),
            3 => edit_lines(text, random),
            4 => take_line(text, others, random),
            5 => nest(text, random),
            6 => swap_words(text, random),
            _ => edit(text, random),
        }
        text.truncate(MOST_BYTES);
    }
}

fn edit_number(text: &mut Vec<u8>, random: &mut Random) {
    let from = random.below(text.len());
    let Some(skipped) = text[from..].iter().position(u8::is_ascii_digit) else { return };
    let start = from + skipped;
    let length = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let new = match random.below(4) {
        0 => number(random).to_string(),
        _ => (*random.pick(&WORDS)).to_owned(),
    };
    text.splice(start..start + length, new.into_bytes());
}

/// The range of a line, its end included.
fn line(text: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let at = random.below(text.len());
    let start = text[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let end =
        text[at..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| at + end + 1);
    start..end
}

fn edit_lines(text: &mut Vec<u8>, random: &mut Random) {
    let range = line(text, random);
    let at = line(text, random).start;
    let copy = text[range.clone()].to_vec();
    match random.below(3) {
        0 => drop(text.drain(range)),
        1 => drop(text.splice(at..at, copy)),
        _ => drop(text.splice(at..at, copy.repeat(1 << random.below(8)))),
    }
}

fn take_line(text: &mut Vec<u8>, others: &[&[u8]], random: &mut Random) {
    if others.is_empty() {
        return;
    }
    let other = *random.pick(others);
    let taken = other[line(other, random)].to_vec();
    let at = line(text, random);
    text.splice(if random.once_in(2) { at } else { at.start..at.start }, taken);
}

/// Puts opening marks in, a few or very many.
fn nest(text: &mut Vec<u8>, random: &mut Random) {
    let mark = *random.pick(&[
        "[", "{", "(", "\"", "'", "- ", "[[", ".", "{\"a\":", "&a ", "*a ", "\\", "#", "\t", ",",
    ]);
    let count = many(15, 4, random);
    let at = random.below(text.len() + 1);
    text.splice(at..at, mark.repeat(count).into_bytes());
}

fn swap_words(text: &mut Vec<u8>, random: &mut Random) {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut word = || {
        let from = random.below(text.len());
        let start = text[from..].iter().position(is_word).map_or(text.len(), |start| from + start);
        let length = text[start..].iter().take_while(|byte| is_word(byte)).count();
        start..start + length
    };
    let (from, to) = (word(), word());
    let copy = text[from].to_vec();
    text.splice(to, copy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_damage_again_and_seeds_differ() {
        let good: Vec<u8> = (0..=255).collect();
        let damaged = |seed| {
            let (mut binary, mut words) = (good.clone(), b"rows = 5\ndim = 16\n".to_vec());
            let mut random = Random::new("test", seed);
            bytes(&mut binary, &mut random);
            text(&mut words, &[b"other = 1\n"], &mut random);
            (binary, words)
        };
        let all: std::collections::HashSet<_> = (0..1000).map(damaged).collect();
        assert!(all.len() > 950, "{}", all.len());
        assert_eq!(damaged(7), damaged(7));
    }

    #[test]
    fn damage_to_nothing_is_no_panic_and_stays_within_its_bound() {
        for seed in 0..300 {
            let mut random = Random::new("empty", seed);
            let (mut none, mut one) = (Vec::new(), vec![b'7']);
            for _ in 0..20 {
                bytes(&mut none, &mut random);
                text(&mut one, &[b"", b"\n"], &mut random);
            }
            assert!(none.len() <= MOST_BYTES && one.len() <= MOST_BYTES);
        }
    }
}
