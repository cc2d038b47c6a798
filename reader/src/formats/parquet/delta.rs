//! Lengths of words as DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY store them, read before the
//! Parquet crate takes memory for as many words, and for words as long, as a page claims.

use ::parquet::basic::Encoding;

use super::thrift::{varint, zigzag};

/// Checks the words of a page: at most `most_values` of them, and of `most_bytes` bytes in all.
pub(super) fn check(
    values: &[u8],
    encoding: Encoding,
    most_values: usize,
    most_bytes: u64,
) -> Result<(), String> {
    let (mut rest, mut shared) = (values, None);
    if encoding == Encoding::DELTA_BYTE_ARRAY {
        shared = Some(lengths(&mut rest, most_values)?);
    }
    let own = lengths(&mut rest, most_values)?;
    let stored = sum(&own)?;
    if stored > rest.len() as u64 {
        return Err(format!("expected words of at most {} bytes, found {stored}", rest.len()));
    }
    let Some(shared) = shared else { return Ok(()) };
    if shared.len() != own.len() {
        return Err(format!("{} beginnings of words, and {} ends", shared.len(), own.len()));
    }
    match stored.saturating_add(sum(&shared)?) {
        found if found > most_bytes => {
            Err(format!("expected words of at most {most_bytes} bytes, found {found}"))
        }
        _ => Ok(()),
    }
}

fn sum(lengths: &[i32]) -> Result<u64, String> {
    let length =
        |length: &i32| u64::try_from(*length).map_err(|_| format!("a word of {length} bytes"));
    lengths.iter().map(length).sum()
}

/// Integers in DELTA_BINARY_PACKED, which are taken from the front of `rest`.
fn lengths(rest: &mut &[u8], most: usize) -> Result<Vec<i32>, String> {
    let short = || "the lengths of words end too early".to_owned();
    let mut header = || varint(rest).map_err(|_| short());
    let (block, minis, count, first) = (header()?, header()?, header()?, header()?);
    if count > most as u64 {
        return Err(format!("expected at most {most} words, found {count}"));
    }
    let per_mini = block.checked_div(minis).unwrap_or(0) as usize;
    if per_mini == 0
        || !per_mini.is_multiple_of(32)
        || !block.is_multiple_of(minis)
        || block > 1 << 31
    {
        return Err(format!("lengths of words in blocks of {block} in {minis} parts"));
    }
    let mut values = Vec::with_capacity(count as usize);
    let mut last = zigzag(first) as i32;
    if count > 0 {
        values.push(last);
    }
    while (values.len() as u64) < count {
        let least = zigzag(varint(rest).map_err(|_| short())?) as i32;
        let widths = take(rest, minis as usize).ok_or_else(short)?;
        for &width in widths {
            let left = (count as usize - values.len()).min(per_mini);
            if left == 0 {
                break;
            }
            if width > 32 {
                return Err(format!("a length of a word in {width} bits"));
            }
            let packed = take(rest, usize::from(width) * per_mini / 8).ok_or_else(short)?;
            for index in 0..left {
                last = last.wrapping_add(least).wrapping_add(bits(packed, index, width) as i32);
                values.push(last);
            }
        }
    }
    Ok(values)
}

/// Number `index` of those that take `width` bits each.
fn bits(packed: &[u8], index: usize, width: u8) -> u32 {
    let from = index * usize::from(width);
    let bytes = packed.iter().skip(from / 8).take(5).enumerate();
    let all = bytes.fold(0_u64, |all, (place, byte)| all | u64::from(*byte) << (8 * place));
    ((all >> (from % 8)) & ((1 << width) - 1)) as u32
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_that_were_stored() {
        // One block of 128 in 4 parts. Differences 2, -1, -2 are 4, 1, 0 above the least of -2, in
        // 3 bits each.
        let header = [128, 1, 4, 4, 6, 3, 3, 0, 0, 0];
        let stored = [&header[..], &[0b0000_1100], &[0; 11], b"drama"].concat();
        let mut rest = &stored[..];
        assert_eq!(lengths(&mut rest, 4).unwrap(), [3, 5, 4, 2]);
        assert_eq!(rest, b"drama");
    }

    #[test]
    fn more_words_or_bytes_than_there_can_be_are_refused() {
        let refused = |values: &[u8], encoding| check(values, encoding, 100, 1000).unwrap_err();
        // 2 billion lengths, all the same.
        let many = [128, 1, 4, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0];
        for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            assert_eq!(refused(&many, encoding), "expected at most 100 words, found 2147483647");
        }
        // One of 5 bytes, of which 2 are there.
        let one = [128, 1, 4, 1, 10];
        let words = refused(&[&one[..], b"ab"].concat(), Encoding::DELTA_LENGTH_BYTE_ARRAY);
        assert_eq!(words, "expected words of at most 2 bytes, found 5");
        let negative = refused(&[128, 1, 4, 1, 9], Encoding::DELTA_LENGTH_BYTE_ARRAY);
        assert_eq!(negative, "a word of -5 bytes");
        // 100 beginnings of 100 bytes.
        let long = [128, 1, 4, 100, 200, 1, 0, 0, 0, 0, 0];
        let none = [128, 1, 4, 100, 0, 0, 0, 0, 0, 0];
        let words = refused(&[&long[..], &none].concat(), Encoding::DELTA_BYTE_ARRAY);
        assert_eq!(words, "expected words of at most 1000 bytes, found 10000");
        assert!(
            refused(&[128, 1, 3, 1, 10], Encoding::DELTA_BYTE_ARRAY).contains("128 in 3 parts")
        );
        assert!(refused(&[128, 1, 4, 2], Encoding::DELTA_BYTE_ARRAY).contains("too early"));
    }
}
