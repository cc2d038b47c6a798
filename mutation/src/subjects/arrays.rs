//! numpy's arrays, alone and in archives, and records of fixed size.

use super::read::{data, described, samples, take_files, write};
use super::{Files, Outcome, Subject, as_it_is, named, one, refused};
use crate::mutate;
use crate::random::Random;
use headlong_reader::DenseTransform;
use headlong_reader::formats::Format;
use headlong_reader::formats::npy::{NpySink, look_at_archive, look_at_array};
use headlong_reader::samples::{DenseKind, Hotness};
use std::io::{Cursor, Read, Write};
use std::path::Path;

const KIND: DenseKind = DenseKind::Transformed(DenseTransform::LnPlus1);
/// Before an array's header: magic, version, length.
const NPY_PREFIX: usize = 10;

pub const NPY: Subject = Subject {
    name: "npy",
    bound_mib: 32,
    good: |folder| Ok(vec![arrays(folder, &[1, 1, 1], 9)?, arrays(folder, &[1], 300)?]),
    damage: |good, random| {
        let mut files = one(good, random);
        let file = random.below(files.len());
        damage_array(&mut files[file].1, random);
        files
    },
    seal: as_it_is,
    on_disk: true,
    read: read_arrays,
};

pub const NPZ: Subject = Subject {
    name: "npz",
    bound_mib: 32,
    good: |folder| Ok(vec![arrays(folder, &[3, 1, 2], 9)?, arrays(folder, &[2], 200)?]),
    damage: |good, random| {
        let mut files = one(good, random);
        let Some((_, archive)) = files.iter_mut().find(|(name, _)| name.ends_with(".npz")) else {
            return files;
        };
        if random.once_in(3) {
            mutate::bytes(archive, random);
            return files;
        }
        let mut members = members(archive);
        match random.below(6) {
            0 => drop(members.pop()),
            1 => members.insert(0, random.pick(&members).clone()),
            _ => {
                let member = random.below(members.len());
                damage_array(&mut members[member].1, random);
            }
        }
        *archive = pack(&members, random);
        if random.once_in(3) {
            mutate::bytes(archive, random);
        }
        files
    },
    seal: as_it_is,
    on_disk: true,
    read: read_arrays,
};

/// The header of an array by itself, in memory.
pub const ARRAY: Subject = Subject {
    name: "array",
    bound_mib: 16,
    good: |folder| {
        let mut all = arrays(folder, &[1, 1, 1], 3)?;
        all.retain(|(name, _)| name.ends_with(".npy"));
        Ok(all.into_iter().map(|file| vec![file]).collect())
    },
    damage: |good, random| {
        let mut files = one(good, random);
        damage_array(&mut files[0].1, random);
        files
    },
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let (name, bytes) = &files[0];
        let array = named(look_at_array(Path::new(name), bytes), name).map_err(refused)?;
        let (records, each) = (array.num_bytes.unwrap_or(0), array.record_bytes);
        assert!(each > 0 && records.is_multiple_of(each) && array.first_byte <= bytes.len() as u64);
        Ok(())
    },
};

/// An archive's directory and the headers of its arrays, in memory.
pub const ARCHIVE: Subject = Subject {
    name: "archive",
    bound_mib: 16,
    good: |folder| {
        let mut all = arrays(folder, &[3, 1], 2)?;
        all.retain(|(name, _)| name.ends_with(".npz"));
        Ok(vec![all])
    },
    damage: NPZ.damage,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let (name, bytes) = &files[0];
        for array in named(look_at_archive(Path::new(name), bytes), name).map_err(refused)? {
            let end = array.first_byte.checked_add(array.num_bytes.unwrap_or(0));
            assert!(end.is_some() && array.record_bytes > 0, "{array:?}");
        }
        Ok(())
    },
};

pub const RECORDS: Subject = Subject {
    name: "records",
    bound_mib: 32,
    good: |_| {
        // Numbers of four bytes: a label, then dense ones and ids of the columns that `described`
        // says. All are 0, which is a number and an integer alike.
        let records =
            |name: &str, numbers: usize| vec![(name.to_owned(), [0; 4].repeat(20 * numbers))];
        Ok(vec![records("raw", 1 + 2 + 4), records("mlperf", 1 + 13 + 26)])
    },
    damage: |good, random| {
        let mut files = one(good, random);
        mutate::bytes(&mut files[0].1, random);
        files
    },
    seal: as_it_is,
    on_disk: true,
    read: |folder, files| {
        let name = &files[0].0;
        let format = if name.contains("raw") { Format::Raw } else { Format::Mlperf };
        data(&folder.join(name), Some(format), &described(false))
    },
};

fn arrays(folder: &Path, hotness: &[u32], count: usize) -> anyhow::Result<Files> {
    let hotness: Vec<_> = hotness.iter().copied().map(Hotness::Fixed).collect();
    let (schema, samples) = samples(KIND, &hotness, count);
    write(Box::new(NpySink::create(&folder.join("day"), &schema)?), &samples)?;
    take_files(folder)
}

fn read_arrays(folder: &Path, _: &Files) -> Outcome {
    data(&folder.join("day"), Some(Format::Npy), &described(false))
}

/// Damages an array: its header, whose length is then corrected, or any of it.
fn damage_array(array: &mut Vec<u8>, random: &mut Random) {
    let header = array
        .get(8..NPY_PREFIX)
        .map_or(0, |length| usize::from(length[0]) | usize::from(length[1]) << 8);
    let end = NPY_PREFIX + header;
    if end > array.len() || random.once_in(4) {
        return mutate::bytes(array, random);
    }
    let mut words = array[NPY_PREFIX..end].to_vec();
    let others: [&[u8]; 3] = [
        b"{'descr': '<f8', 'fortran_order': True, 'shape': (0,), }\n",
        b"(4611686018427387904, 4)",
        b"'|O'",
    ];
    match random.below(4) {
        0 => {
            // Another type of the same array.
            let types = [
                "<i4", "<f4", "<i8", "<f2", "|b1", "|u1", ">i4", "<u2", "<f8", "<c16", "|S1",
                "<M8[s]",
            ];
            replace(&mut words, b"'<", random.pick(&types).as_bytes());
        }
        _ => mutate::text(&mut words, &others, random),
    }
    words.truncate(usize::from(u16::MAX));
    let length = (words.len() as u16).to_le_bytes();
    array.splice(8..end, length.into_iter().chain(words));
    if random.once_in(4) {
        let cut = random.below(array.len() + 1);
        array.truncate(cut);
    }
}

/// Puts `new` after the quote of the first `mark`, over as many bytes as a type has.
fn replace(words: &mut Vec<u8>, mark: &[u8], new: &[u8]) {
    if let Some(at) = words.windows(mark.len()).position(|window| window == mark) {
        let end = words.len().min(at + 4);
        words.splice(at + 1..end, new.iter().copied());
    }
}

/// Names and bytes of an archive's members.
fn members(archive: &[u8]) -> Files {
    let mut archive =
        zip::ZipArchive::new(Cursor::new(archive)).expect("what was written just now");
    let mut members = Vec::new();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).expect("what was written just now");
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).expect("what was written just now");
        members.push((member.name().to_owned(), bytes));
    }
    members
}

/// An archive whose sums fit; the names of members may be others than numpy gives.
fn pack(members: &Files, random: &mut Random) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (index, (name, bytes)) in members.iter().enumerate() {
        let other = ["0.npy", "../0.npy", "18446744073709551615.npy", "", "-1.npy", "1", "a/0.npy"];
        let name = if random.once_in(16) { *random.pick(&other) } else { name };
        // A name that is there already is refused by the writer: then it gets another one.
        if writer.start_file(name, options).is_err() {
            writer.start_file(format!("again-{index}.npy"), options).expect("a name of its own");
        }
        writer.write_all(bytes).expect("memory takes what is written");
    }
    writer.finish().expect("memory takes what is written").into_inner()
}
