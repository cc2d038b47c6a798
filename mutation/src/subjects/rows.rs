//! Rows of text: Criteo's, plain and packed, and delimited.

use super::read::{SCHEMA, data, described};
use super::{Files, Outcome, Subject, as_it_is, damage_text, named, one, packed, refused, texts};
use crate::entries::criteo_line;
use crate::mutate;
use crate::random::Random;
use headlong_reader::formats::Format;
use headlong_reader::io::{DataFile, TextFile};
use std::io::Read as _;
use std::path::Path;

pub const CRITEO: Subject = Subject {
    name: "criteo",
    bound_mib: 16,
    good: |_| Ok(vec![files("rows.txt", rows(10)), files("rows.txt", rows(3))]),
    damage: damage_text,
    seal: as_it_is,
    on_disk: true,
    read: read_rows,
};

pub const GZIP: Subject = Subject {
    name: "gzip",
    bound_mib: 16,
    good: |_| Ok(vec![files("rows.txt.gz", rows(3)), files("rows.txt.gz", rows(40))]),
    damage: |good, random| damage_packed(good, random, packed::gzip),
    seal: packed::correct,
    on_disk: true,
    read: read_packed,
};

pub const ZSTD: Subject = Subject {
    name: "zstd",
    bound_mib: 16,
    good: |_| Ok(vec![files("rows.txt.zst", rows(3)), files("rows.txt.zst", rows(40))]),
    damage: |good, random| damage_packed(good, random, packed::zstd),
    seal: as_it_is,
    on_disk: true,
    read: read_packed,
};

pub const CSV: Subject = Subject {
    name: "csv",
    bound_mib: 16,
    good: |_| {
        let named = "label,I1,I2,C1,C2,C3\n1,0.5,2,7,\"a \"\"b\"\"\",x\n0,,1,9,\"two\nlines\",\n";
        let others = "\u{feff}label;I1;C1\n1;0.25;a|b\n0;1e3;\n";
        let many: String = (0..10).map(|row| format!("{},{row}.5,{row}\r\n", row % 2)).collect();
        Ok([named.to_owned(), others.to_owned(), format!("label,I1,C1\r\n{many}")]
            .map(|text| files("rows.csv", text.into_bytes()))
            .to_vec())
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: true,
    read: |folder, files| data(&folder.join(&files[0].0), Some(Format::Csv), &described(false)),
};

/// The bodies of the line parser against its definition, in memory.
pub const LINES: Subject = Subject {
    name: "lines",
    bound_mib: 16,
    good: |_| {
        let row =
            |row: usize| format!("1\t{row}\t-1{}{}\n", "\t".repeat(11), "\t0a1B2c3d".repeat(26));
        let wide: String = (0..3).map(row).collect();
        Ok(vec![
            files("lines", [&b"\0"[..], wide.as_bytes()].concat()),
            files("lines", [&[8], &rows(9)[..]].concat()),
        ])
    },
    damage: CRITEO.damage,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| match criteo_line(&files[0].1) {
        true => Ok(()),
        false => Err("no line is a row".to_owned()),
    },
};

fn files(name: &str, bytes: Vec<u8>) -> Files {
    vec![(name.to_owned(), bytes)]
}

/// Lines of Criteo's text with a few columns.
fn rows(count: usize) -> Vec<u8> {
    let row = |row: usize| {
        let dense = (0..SCHEMA.num_dense)
            .map(|column| format!("\t{}", row * 3 + column))
            .collect::<String>();
        let sparse = (0..SCHEMA.num_sparse).map(|column| format!("\t{:08x}", row * 77 + column));
        format!("{}{dense}{}\n", row % 2, sparse.collect::<String>())
    };
    (0..count).map(row).collect::<String>().into_bytes()
}

/// Damage before packing, so that everything unpacks; or after it.
fn damage_packed(
    good: &[Files],
    random: &mut Random,
    pack: fn(&[u8], &mut Random) -> Vec<u8>,
) -> Files {
    let mut files = one(good, random);
    let bytes = &mut files[0].1;
    if random.once_in(3) {
        mutate::text(bytes, &texts(good), random);
    }
    *bytes = pack(bytes, random);
    files
}

/// Unpacks, and reads one in eight as rows, which takes threads.
fn read_packed(folder: &Path, files: &Files) -> Outcome {
    let (name, bytes) = &files[0];
    let text = TextFile::open(&DataFile::from(folder.join(name)));
    let mut text = named(text, name).map_err(refused)?;
    let (mut piece, mut unpacked) = ([0; 16 << 10], 0_u64);
    loop {
        match text.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => unpacked += count as u64,
            Err(error) => {
                let error = text.name_error(error, 1, unpacked);
                return named(Err(error), name).map_err(refused);
            }
        }
    }
    let is_chosen = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) % 8 == 0;
    if is_chosen { read_rows(folder, files) } else { Ok(()) }
}

fn read_rows(folder: &Path, files: &Files) -> Outcome {
    let (name, bytes) = &files[0];
    data(&folder.join(name), None, &described(bytes.len() % 2 == 0))
}
