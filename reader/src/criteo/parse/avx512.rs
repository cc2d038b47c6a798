//! The AVX-512 body: separators by compare and compress, then eight fields at a time.
//!
//! A window of text is first scanned for tabs and newlines, 64 bytes at a time, into a list of
//! their offsets. Lines with the right number of separators are then converted column by column,
//! eight columns in the eight lanes of a vector: each lane loads the eight bytes that end where its
//! field ends and ignores those before the field. Whatever is not plainly good goes to
//! [`super::line`].

use std::arch::x86_64::*;

use memchr::memchr;

use super::line;
use super::{BadRowPolicy, MISSING_DENSE, RawBlock};
use crate::schema::{MAX_COLUMNS_OF_A_KIND, Schema};

/// Bytes of text scanned before their lines are converted: the text and its offsets stay in the
/// first-level cache.
const WINDOW_BYTES: usize = 16 << 10;

/// Whether this processor has what the body needs.
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("popcnt")
}

/// Offsets of the separators of a window; buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Separators {
    /// The offset before the first line, then those of all tabs and newlines; some slack at the
    /// end.
    offsets: Vec<u32>,
    /// Which of `offsets` are newlines.
    newlines: Vec<u32>,
}

/// Parses all lines of `text` and appends to `block`.
///
/// # Panics
/// If the processor lacks a feature it needs.
pub fn parse_lines(
    schema: &Schema,
    policy: BadRowPolicy,
    text: &[u8],
    separators: &mut Separators,
    block: &mut RawBlock,
) {
    assert!(is_available(), "the AVX-512 body was chosen on a processor without it");
    let mut start = 0;
    while start < text.len() {
        let window = &text[..text.len().min(start + WINDOW_BYTES)];
        // SAFETY: `is_available` has just said that every feature is there.
        unsafe { find_separators(window, start, separators) };
        let Some(&last) = separators.newlines.last() else {
            // No line ends in this window, so at most one line is converted the slow way.
            let end = memchr(b'\n', &text[start..]).map_or(text.len(), |length| start + length);
            let next = (end + 1).min(text.len());
            if !line::push_line(schema, policy, &text[start..end], next as u32, block) {
                return;
            }
            start = next;
            continue;
        };
        start = separators.offsets[last as usize] as usize + 1;
        // SAFETY: as above.
        if !unsafe { convert_window(schema, policy, text, separators, block) } {
            return;
        }
    }
}

/// Lists the separators of `window[start..]`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn find_separators(window: &[u8], start: usize, separators: &mut Separators) {
    let length = window.len() - start;
    // Every byte may be a separator, and a store writes 16 offsets wherever it begins.
    separators.offsets.resize(1 + length.next_multiple_of(64) + 16, 0);
    separators.offsets[0] = (start as u32).wrapping_sub(1);
    separators.newlines.clear();
    let mut count = 1;
    let bytes_0_to_63 = ascending_bytes();
    for begin in (start..window.len()).step_by(64) {
        let present = window.len() - begin;
        let mask = if present >= 64 { u64::MAX } else { (1 << present) - 1 };
        // SAFETY: `mask` selects only bytes below `present`, which lie in `window`.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, window.as_ptr().add(begin).cast()) };
        let newlines = _mm512_mask_cmpeq_epi8_mask(mask, bytes, _mm512_set1_epi8(b'\n' as i8));
        let tabs = _mm512_mask_cmpeq_epi8_mask(mask, bytes, _mm512_set1_epi8(b'\t' as i8));
        let found = tabs | newlines;
        let places = _mm512_maskz_compress_epi8(found, bytes_0_to_63);
        let num_found = found.count_ones() as usize;
        let base = _mm512_set1_epi32(begin as i32);
        let room = &mut separators.offsets[count..count + num_found.next_multiple_of(16).max(16)];
        for (part, room) in room.chunks_exact_mut(16).enumerate() {
            let places = match part {
                0 => _mm512_castsi512_si128(places),
                1 => _mm512_extracti32x4_epi32::<1>(places),
                2 => _mm512_extracti32x4_epi32::<2>(places),
                _ => _mm512_extracti32x4_epi32::<3>(places),
            };
            let offsets = _mm512_add_epi32(_mm512_cvtepu8_epi32(places), base);
            // SAFETY: `room` has 16 elements.
            unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), offsets) };
        }
        let mut rest = newlines;
        while rest != 0 {
            let before = rest ^ (rest - 1);
            // `before` has all bits up to and including the newline's.
            separators.newlines.push(count as u32 + (found & before).count_ones() - 1);
            rest &= rest - 1;
        }
        count += num_found;
    }
}

/// 0, 1, …, 63.
#[target_feature(enable = "avx512f,avx512bw")]
fn ascending_bytes() -> __m512i {
    let bytes: [u8; 64] = std::array::from_fn(|index| index as u8);
    // SAFETY: the array has 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Appends all lines that end in the window. Says whether to go on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn convert_window(
    schema: &Schema,
    policy: BadRowPolicy,
    text: &[u8],
    separators: &mut Separators,
    block: &mut RawBlock,
) -> bool {
    let mut fields =
        Fields { dense: [0; MAX_COLUMNS_OF_A_KIND], sparse: [0; MAX_COLUMNS_OF_A_KIND] };
    let mut first = 1;
    for &newline in &separators.newlines {
        let newline = newline as usize;
        let (start, end) =
            (separators.offsets[first - 1].wrapping_add(1), separators.offsets[newline]);
        let is_regular = newline + 1 - first == schema.num_columns() && start >= 8;
        // A carriage return ends the last field early; the newline's offset is put back below.
        let has_return = text[..end as usize].ends_with(b"\r");
        separators.offsets[newline] = end - has_return as u32;
        let ends = &separators.offsets[first - 1..=newline];
        let missing = if is_regular { convert_line(schema, text, ends, &mut fields) } else { None };
        separators.offsets[newline] = end;
        first = newline + 1;
        if let Some(missing) = missing {
            if schema.labelled {
                block.labels.push(text[start as usize] - b'0');
            }
            block.dense.extend_from_slice(&fields.dense[..schema.num_dense]);
            block.sparse.extend_from_slice(&fields.sparse[..schema.num_sparse]);
            block.sparse_missing.push(missing);
            block.line_ends.push(end + 1);
            block.num_samples += 1;
            block.num_lines += 1;
        } else {
            let line = &text[start as usize..end as usize];
            if !line::push_line(schema, policy, line, end + 1, block) {
                return false;
            }
        }
    }
    true
}

struct Fields {
    dense: [i32; MAX_COLUMNS_OF_A_KIND],
    sparse: [u32; MAX_COLUMNS_OF_A_KIND],
}

/// Converts a line whose columns end at `ends[1..]`, the first beginning after `ends[0]`, not
/// before byte 8 of the text. Gives the mask of missing categories, or `None` at a surprise.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn convert_line(schema: &Schema, text: &[u8], ends: &[u32], fields: &mut Fields) -> Option<u64> {
    let mut column = 0;
    if schema.labelled {
        let start = ends[0].wrapping_add(1);
        if ends[1] != start + 1 || text[start as usize] & !1 != b'0' {
            return None;
        }
        column = 1;
    }
    let mut is_good = true;
    for index in (0..schema.num_dense).step_by(8) {
        let lanes = lane_mask(schema.num_dense - index);
        let words = load_fields(text, &ends[column + index..], lanes);
        let (numbers, good) = integers(&words);
        is_good &= good;
        // SAFETY: `lanes` selects only elements below `num_dense`, for which `dense` has room.
        unsafe { _mm256_mask_storeu_epi32(fields.dense.as_mut_ptr().add(index), lanes, numbers) };
    }
    column += schema.num_dense;
    let mut missing = 0;
    for index in (0..schema.num_sparse).step_by(8) {
        let lanes = lane_mask(schema.num_sparse - index);
        let words = load_fields(text, &ends[column + index..], lanes);
        let (numbers, good) = categories(&words);
        is_good &= good;
        missing |= ((words.empty & lanes) as u64) << index;
        // SAFETY: as above, for `num_sparse` and `sparse`.
        unsafe {
            _mm256_mask_storeu_epi32(fields.sparse.as_mut_ptr().add(index).cast(), lanes, numbers)
        };
    }
    is_good.then_some(missing)
}

/// The first `count` of eight lanes.
#[inline(always)]
fn lane_mask(count: usize) -> u8 {
    if count >= 8 { 0xff } else { (1 << count) - 1 }
}

/// Up to eight fields, one in each 64-bit lane.
struct Words {
    /// The eight bytes of the text that end where the field ends.
    bytes: __m512i,
    kept: u64,
    /// Lanes whose field is empty, among them those not asked for.
    empty: u8,
    fits: bool,
}

/// Loads the fields that end at `ends[1..]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn load_fields(text: &[u8], ends: &[u32], lanes: u8) -> Words {
    assert!(ends.len() > lanes.count_ones() as usize, "a field needs an end");
    // SAFETY: `lanes` selects the first elements only, fewer than `ends` has.
    let before = unsafe { _mm256_maskz_loadu_epi32(lanes, ends.as_ptr().cast()) };
    // SAFETY: as above, one further on.
    let ends = unsafe { _mm256_maskz_loadu_epi32(lanes, ends.as_ptr().add(1).cast()) };
    // Where lanes are not asked for this is -1 or more than 8, but they are masked.
    let lengths = _mm256_sub_epi32(_mm256_sub_epi32(ends, before), _mm256_set1_epi32(1));
    let fits = _mm256_mask_cmpgt_epu32_mask(lanes, lengths, _mm256_set1_epi32(8)) == 0;
    let lengths = _mm512_maskz_cvtepu32_epi64(lanes, lengths);
    let offsets = _mm512_cvtepu32_epi64(_mm256_sub_epi32(ends, _mm256_set1_epi32(8)));
    // SAFETY: the caller's line begins at byte 8 or later and ends in `text`, so the eight bytes
    // before the end of a field lie in `text`; lanes not asked for are not loaded.
    let bytes = unsafe {
        _mm512_mask_i64gather_epi64::<1>(
            _mm512_setzero_si512(),
            lanes,
            offsets,
            text.as_ptr().cast(),
        )
    };
    // A shift by 64 or more gives 0, so an empty field keeps no byte.
    let shifts = _mm512_sub_epi64(_mm512_set1_epi64(64), _mm512_slli_epi64::<3>(lengths));
    let kept = _mm512_movepi8_mask(_mm512_sllv_epi64(_mm512_set1_epi64(-1), shifts));
    let empty = _mm512_testn_epi64_mask(lengths, lengths);
    Words { bytes, kept, empty, fits }
}

/// Integers of up to eight bytes, [`MISSING_DENSE`] where empty; and whether all fields are such.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn integers(words: &Words) -> (__m256i, bool) {
    // The first byte of each field: the lowest kept one of its lane.
    let first = words.kept & !(words.kept << 1 & 0xfefe_fefe_fefe_fefe);
    let minus = _mm512_mask_cmpeq_epi8_mask(first, words.bytes, _mm512_set1_epi8(b'-' as i8));
    let digits = words.kept & !minus;
    let values = _mm512_sub_epi8(words.bytes, _mm512_set1_epi8(b'0' as i8));
    let wrong = _mm512_mask_cmpgt_epu8_mask(digits, values, _mm512_set1_epi8(9));
    let digit_bytes = _mm512_movm_epi8(digits);
    let without_digits = _mm512_testn_epi64_mask(digit_bytes, digit_bytes);
    let is_good = words.fits && wrong == 0 && without_digits == words.empty;

    // Digits to pairs, to fours, to eights; the first byte of a lane is the most significant.
    let values = _mm512_maskz_mov_epi8(digits, values);
    let pairs = _mm512_maddubs_epi16(values, _mm512_set1_epi16(0x010a));
    let fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_0064));
    let high = _mm512_mul_epu32(fours, _mm512_set1_epi64(10_000));
    let magnitude = _mm512_add_epi64(high, _mm512_srli_epi64::<32>(fours));
    let minus_bytes = _mm512_movm_epi8(minus);
    let negative = _mm512_test_epi64_mask(minus_bytes, minus_bytes);
    let signed = _mm512_mask_sub_epi64(magnitude, negative, _mm512_setzero_si512(), magnitude);
    let numbers =
        _mm512_mask_mov_epi64(signed, words.empty, _mm512_set1_epi64(MISSING_DENSE as i64));
    (_mm512_cvtepi64_epi32(numbers), is_good)
}

/// Values of up to eight hexadecimal digits, 0 where empty; and whether all fields are such.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi1,popcnt")]
fn categories(words: &Words) -> (__m256i, bool) {
    let lower_case = _mm512_or_si512(words.bytes, _mm512_set1_epi8(0x20));
    let from_a = _mm512_sub_epi8(lower_case, _mm512_set1_epi8(b'a' as i8));
    let letters = _mm512_cmplt_epu8_mask(from_a, _mm512_set1_epi8(6));
    let from_0 = _mm512_sub_epi8(words.bytes, _mm512_set1_epi8(b'0' as i8));
    let digits = _mm512_cmplt_epu8_mask(from_0, _mm512_set1_epi8(10));
    let is_good = words.fits && words.kept & !(letters | digits) == 0;

    // The low nibble of a letter is its value less 9. Then nibbles to bytes, to halves, to the
    // whole.
    let nibbles = _mm512_and_si512(words.bytes, _mm512_set1_epi8(0x0f));
    let nibbles = _mm512_maskz_mov_epi8(words.kept, nibbles);
    let nibbles = _mm512_mask_add_epi8(nibbles, letters & words.kept, nibbles, _mm512_set1_epi8(9));
    let bytes = _mm512_maddubs_epi16(nibbles, _mm512_set1_epi16(0x0110));
    let halves = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x0001_0100));
    let whole = _mm512_or_si512(_mm512_slli_epi64::<16>(halves), _mm512_srli_epi64::<32>(halves));
    (_mm512_cvtepi64_epi32(whole), is_good)
}
