//! Text packed by gzip and zstd, then damaged, with checksums that fit what is inside.

use crate::mutate;
use crate::random::Random;
use flate2::Compression;
use std::io::{Read, Write};

/// Bytes of gzip's header without a name, and of its checksum with the length.
const GZIP_HEADER: usize = 10;
const GZIP_TRAILER: usize = 8;

/// A gzip member, or two; mostly damaged.
pub fn gzip(text: &[u8], random: &mut Random) -> Vec<u8> {
    let member = |text: &[u8], level: u32| {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), Compression::new(level));
        writer.write_all(text).and_then(|()| writer.finish()).expect("memory takes what is written")
    };
    let level = random.below(10) as u32;
    let cut = if random.once_in(4) { random.below(text.len() + 1) } else { text.len() };
    let mut all = member(&text[..cut], level);
    if random.once_in(4) {
        return all;
    }
    if random.once_in(2) && all.len() > GZIP_HEADER + GZIP_TRAILER {
        let end = all.len() - GZIP_TRAILER;
        mutate::part(&mut all, GZIP_HEADER..end, random);
        correct(&mut all);
    } else {
        mutate::bytes(&mut all, random);
    }
    if cut < text.len() {
        all.extend(member(&text[cut..], level));
    }
    all
}

/// Makes checksum and length those of what the damaged bytes unpack to, where they unpack.
pub fn correct(member: &mut [u8]) {
    let Some(end) = member.len().checked_sub(GZIP_TRAILER).filter(|end| *end > GZIP_HEADER) else {
        return;
    };
    let mut text = Vec::new();
    let inflated = flate2::read::DeflateDecoder::new(&member[GZIP_HEADER..end]).take(1 << 22);
    if { inflated }.read_to_end(&mut text).is_err() {
        return;
    }
    let mut crc = flate2::Crc::new();
    crc.update(&text);
    member[end..end + 4].copy_from_slice(&crc.sum().to_le_bytes());
    member[end + 4..].copy_from_slice(&(text.len() as u32).to_le_bytes());
}

/// A frame of zstd, or two, with and without a checksum and a length; mostly damaged.
pub fn zstd(text: &[u8], random: &mut Random) -> Vec<u8> {
    let frame = |text: &[u8], random: &mut Random| {
        let mut writer =
            zstd::Encoder::new(Vec::new(), 1 + random.below(3) as i32).expect("a level of zstd");
        writer.include_checksum(random.once_in(4)).expect("a setting of zstd");
        writer.include_contentsize(random.once_in(2)).expect("a setting of zstd");
        if random.once_in(2) {
            writer.set_pledged_src_size(Some(text.len() as u64)).expect("a setting of zstd");
        }
        writer.write_all(text).and_then(|()| writer.finish()).expect("memory takes what is written")
    };
    let cut = if random.once_in(4) { random.below(text.len() + 1) } else { text.len() };
    let mut all = frame(&text[..cut], random);
    match random.below(4) {
        0 => {}
        // The frame's header: window and length.
        1 => {
            let end = all.len().min(18);
            mutate::part(&mut all, 4.min(end)..end, random);
        }
        _ => mutate::bytes(&mut all, random),
    }
    if cut < text.len() {
        all.extend(frame(&text[cut..], random));
    }
    all
}
