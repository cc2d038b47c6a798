//! Our own files, whose checksums are corrected after damage: data, dictionaries, manifests.

use super::read::{data, described, samples, take_files, write};
use super::{Subject, as_it_is, damage_text, named, one, refused, seal_end};
use crate::entries::checkpoint_manifest;
use crate::mutate;
use crate::random::Random;
use headlong_reader::DenseTransform;
use headlong_reader::dictionary::{CountedFile, Dictionary, DictionaryColumn, DictionaryRule};
use headlong_reader::formats::headlong::{Header, HeadlongSink};
use headlong_reader::samples::{DenseKind, Hotness};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Blocks of data begin at a multiple of this.
const BLOCKS_FROM: usize = 4096;
/// Numbers after the index, and the last mark.
const TAIL_BYTES: usize = 40;

pub const HEADLONG: Subject = Subject {
    name: "headlong",
    bound_mib: 16,
    good: |folder| {
        let fixed = [Hotness::Fixed(1), Hotness::Fixed(2)];
        let varying = [Hotness::Varying, Hotness::Fixed(1)];
        let numbers = DenseKind::Transformed(DenseTransform::LnPlus1);
        let mut good = Vec::new();
        for (kind, hotness, count, per_block) in [
            (DenseKind::Integers, fixed, 30, 8),
            (numbers, varying, 30, 7),
            (numbers, fixed, 5, 4096),
        ] {
            let (schema, samples) = samples(kind, &hotness, count);
            let header = Header { samples_per_block: per_block, ..Header::new(schema, "raw") };
            write(Box::new(HeadlongSink::create(&folder.join("data.hld"), header)?), &samples)?;
            good.push(take_files(folder)?);
        }
        Ok(good)
    },
    damage: |good, random| {
        let mut files = one(good, random);
        let bytes = &mut files[0].1;
        if random.once_in(4) {
            mutate::bytes(bytes, random);
        } else {
            *bytes = damage_data(bytes, random);
        }
        files
    },
    seal: seal_data,
    on_disk: true,
    read: |folder, files| data(&folder.join(&files[0].0), None, &described(false)),
};

pub const DICTIONARY: Subject = Subject {
    name: "dictionary",
    bound_mib: 16,
    good: |folder| {
        let mut good = Vec::new();
        for columns in [1, 3] {
            let column = |index: u64| DictionaryColumn {
                ids: (0..20).map(|id| id * 7 + index).collect(),
                counts: (0..20).rev().collect(),
                distinct: 25,
                shared_count: 3,
            };
            let file = CountedFile {
                path: "a.txt".to_owned(),
                bytes: 1000,
                rows: 190,
                skipped: 1,
                identity: None,
            };
            let rule = DictionaryRule { min_count: 2, max_rows: Some(21) };
            let dictionary = Dictionary::new(rule, vec![file], (0..columns).map(column).collect());
            dictionary.save(&folder.join("dictionary.hld"))?;
            good.push(take_files(folder)?);
        }
        Ok(good)
    },
    damage: |good, random| {
        let mut files = one(good, random);
        let bytes = &mut files[0].1;
        if random.once_in(4) {
            mutate::bytes(bytes, random);
            return files;
        }
        let header = 16..16 + number_at(bytes, 8);
        if random.once_in(2) {
            let mut words = bytes[header.clone()].to_vec();
            mutate::text(&mut words, &[], random);
            bytes.splice(header, words.iter().copied());
            bytes[8..16].copy_from_slice(&(words.len() as u64).to_le_bytes());
        } else {
            let end = bytes.len() - 8;
            mutate::part(bytes, header.end..end, random);
        }
        seal_end(bytes);
        files
    },
    seal: seal_end,
    on_disk: false,
    read: |_, files| {
        let (name, bytes) = &files[0];
        let dictionary = named(Dictionary::from_bytes(Path::new(name), bytes), name);
        let dictionary = dictionary.map_err(refused)?;
        let again = Dictionary::from_bytes(Path::new("again"), &dictionary.to_bytes());
        let again = again.expect("a dictionary that was read is written and read again");
        assert_eq!(again.columns(), dictionary.columns());
        assert_eq!((again.rows(), again.rule()), (dictionary.rows(), dictionary.rule()));
        assert_eq!((again.files(), again.settings()), (dictionary.files(), dictionary.settings()));
        Ok(())
    },
};

pub const MANIFEST: Subject = Subject {
    name: "manifest",
    bound_mib: 16,
    good: |_| {
        let bodies = [
            &include_bytes!("../../../fuzz/seeds/checkpoint_manifest/one_shard.json")[..],
            include_bytes!("../../../fuzz/seeds/checkpoint_manifest/shards.json"),
        ];
        Ok(bodies.map(|body| vec![("manifest.json".to_owned(), body.to_vec())]).to_vec())
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| match checkpoint_manifest(&files[0].1) {
        true => Ok(()),
        false => Err("not a manifest".to_owned()),
    },
};

/// Makes the checksums of header, blocks and index fit, as far as the file says where they are.
fn seal_data(bytes: &mut [u8]) {
    let Some(tail) = bytes.len().checked_sub(TAIL_BYTES).filter(|tail| *tail >= BLOCKS_FROM) else {
        return;
    };
    let seal = |bytes: &mut [u8], from: usize, to: usize| {
        if from <= to && to + 8 <= bytes.len() {
            let checksum = xxh3_64(&bytes[from..to]).to_le_bytes();
            bytes[to..to + 8].copy_from_slice(&checksum);
        }
    };
    let first = number_at(bytes, 8).saturating_add(24).checked_next_multiple_of(BLOCKS_FROM);
    let Some(first) = first.filter(|first| *first <= tail) else { return };
    seal(bytes, 0, first - 8);
    let [num_blocks, index] = [8, 16].map(|at| number_at(bytes, tail + at));
    let mut start = first;
    for block in 0..num_blocks.min(64) {
        let place = index.saturating_add(8 * block);
        if place > tail - 8 {
            break;
        }
        let end = number_at(bytes, place);
        if let Some(checksum) = end.checked_sub(8).filter(|_| end <= tail) {
            seal(bytes, start, checksum);
        }
        start = end;
    }
    seal(bytes, index, tail + 24);
}

/// The little-endian number at a place of a good file.
fn number_at(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// Takes a file of data apart, damages some of its parts, and puts it together again with checksums
/// that fit.
fn damage_data(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let tail = bytes.len() - TAIL_BYTES;
    let [mut num_samples, num_blocks, index] = [0, 8, 16].map(|at| number_at(bytes, tail + at));
    let mut header = bytes[16..16 + number_at(bytes, 8)].to_vec();
    let mut blocks = Vec::new();
    let mut start = (16 + header.len() + 8).next_multiple_of(BLOCKS_FROM);
    for block in 0..num_blocks {
        let end = number_at(bytes, index + 8 * block);
        blocks.push(bytes[start..end - 8].to_vec());
        start = end;
    }
    for _ in 0..=random.below(2) {
        match random.below(6) {
            0 | 1 => mutate::text(&mut header, &[], random),
            2 | 3 => {
                let block = random.below(blocks.len());
                mutate::bytes(&mut blocks[block], random);
            }
            4 => num_samples = mutate::number(random) as usize,
            _ => {
                let block = random.pick(&blocks).clone();
                blocks.truncate(random.below(blocks.len() + 1));
                blocks.push(block);
            }
        }
    }
    assemble(num_samples as u64, &header, &blocks, random)
}

fn assemble(num_samples: u64, header: &[u8], blocks: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    // Files of version 1 have no checksum there.
    let is_old = random.once_in(8);
    let mut all = if is_old { b"HLDATA01".to_vec() } else { b"HLDATA02".to_vec() };
    all.extend((header.len() as u64).to_le_bytes());
    all.extend(header);
    let end = (all.len() + 8).next_multiple_of(BLOCKS_FROM) - 8;
    all.resize(end, 0);
    all.extend(xxh3_64(&all).to_le_bytes());
    let mut ends = Vec::new();
    for block in blocks {
        all.extend(block);
        all.extend(xxh3_64(block).to_le_bytes());
        ends.push(all.len() as u64);
    }
    let (start, num_blocks) = (all.len() as u64, ends.len() as u64);
    let mut index: Vec<u8> = ends
        .into_iter()
        .chain([num_samples, num_blocks, start])
        .flat_map(u64::to_le_bytes)
        .collect();
    if random.once_in(4) {
        mutate::bytes(&mut index, random);
    }
    all.extend(&index);
    all.extend(xxh3_64(&index).to_le_bytes());
    all.extend(b"HLDATEND");
    all
}
