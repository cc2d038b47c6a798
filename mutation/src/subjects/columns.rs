//! Parquet: its footer, whose length is corrected, and its pages.

use super::read::{data, described, samples, take_files, write};
use super::{Subject, as_it_is, one};
use crate::mutate;
use crate::random::Random;
use headlong_reader::DenseTransform;
use headlong_reader::formats::Format;
use headlong_reader::formats::parquet::ParquetSink;
use headlong_reader::samples::{DenseKind, Hotness};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

/// The footer's length and the last mark.
const TRAILER: usize = 8;

pub const PARQUET: Subject = Subject {
    name: "parquet",
    bound_mib: 64,
    good: |folder| {
        let hotness = [Hotness::Fixed(1), Hotness::Fixed(2), Hotness::Varying];
        let mut good = Vec::new();
        for kind in [DenseKind::Integers, DenseKind::Transformed(DenseTransform::LnPlus1)] {
            let (schema, samples) = samples(kind, &hotness, 40);
            write(Box::new(ParquetSink::create(&folder.join("a.parquet"), &schema)?), &samples)?;
            good.push(take_files(folder)?);
        }
        let codecs = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(GzipLevel::default()),
            Compression::BROTLI(BrotliLevel::default()),
            Compression::LZ4,
            Compression::LZ4_RAW,
            Compression::ZSTD(ZstdLevel::default()),
        ];
        for codec in codecs {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                good.push(vec![("a.parquet".to_owned(), foreign(codec, version)?)]);
            }
        }
        Ok(good)
    },
    damage: |good, random| {
        let mut files = one(good, random);
        damage(&mut files[0].1, random);
        files
    },
    seal: as_it_is,
    on_disk: true,
    read: |folder, files| data(&folder.join(&files[0].0), Some(Format::Parquet), &described(false)),
};

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let end = bytes.len() - TRAILER;
    let length: [u8; 4] = std::array::from_fn(|index| bytes[end + index]);
    let footer = end - u32::from_le_bytes(length) as usize;
    match random.below(4) {
        0 => mutate::bytes(bytes, random),
        1 | 2 => {
            mutate::part(bytes, footer..end, random);
            let end = bytes.len() - TRAILER;
            let length = (end.saturating_sub(footer) as u32).to_le_bytes();
            bytes[end..end + 4].copy_from_slice(&length);
        }
        // Pages and their headers, none longer or shorter: the footer says where each is.
        _ => {
            let mut pages = bytes[4..footer].to_vec();
            let before = pages.len();
            mutate::bytes(&mut pages, random);
            pages.resize(before, 0);
            bytes.splice(4..footer, pages);
        }
    }
}

/// A file as other programs write it: truth values, numbers with gaps, words in a dictionary.
fn foreign(codec: Compression, version: WriterVersion) -> Result<Vec<u8>> {
    let message = "message table { required boolean label; optional double I1; optional int64 C1; \
                   optional binary C2 (UTF8); required boolean C3; }";
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_data_page_row_count_limit(16)
        .set_write_batch_size(8)
        .build();
    let schema = Arc::new(parse_message_type(message)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    for group in 0..2 {
        let count = 40 - 20 * group;
        let present: Vec<i16> = (0..count).map(|row| i16::from(row % 5 > 0)).collect();
        let here = present.iter().filter(|there| **there > 0).count();
        let words: Vec<_> =
            (0..here).map(|row| ByteArray::from(["drama", "war", ""][row % 3])).collect();
        let truths: Vec<_> = (0..count).map(|row| row % 3 == 0).collect();
        let mut group = writer.next_row_group()?;
        put::<BoolType>(&mut group, &truths, None)?;
        put::<DoubleType>(&mut group, &vec![0.5; here], Some(&present))?;
        put::<Int64Type>(
            &mut group,
            &(0..here as i64).map(|id| id - 5).collect::<Vec<_>>(),
            Some(&present),
        )?;
        put::<ByteArrayType>(&mut group, &words, Some(&present))?;
        put::<BoolType>(&mut group, &truths, None)?;
        group.close()?;
    }
    writer.into_inner()
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    present: Option<&[i16]>,
) -> Result<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, present, None)?;
        column.close()?;
    }
    Ok(())
}
