//! Pages of a column, of sizes that are looked at before memory is taken for them.
//!
//! A page says itself how long it is once it is decompressed, how many values it has, and how many
//! words and how long ones. The Parquet crate takes memory on these words; here they are bounded
//! first.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::bytes::Bytes;
use ::parquet::basic::{Compression, Encoding, Type as Physical};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::reader::{ChunkReader, Length};
use ::parquet::file::serialized_reader::SerializedPageReader;
use ::parquet::schema::types::ColumnDescPtr;

use super::contained::contained;
use super::delta;
use super::thrift::{self, Fault, PageHeader};

/// The longest page. Writers make pages of a megabyte or so.
const MOST_PAGE_BYTES: u64 = 256 << 20;
/// A page up to this size passes whatever the metadata says of its column: some writers have said
/// it wrong.
const TRUSTED_PAGE_BYTES: u64 = 16 << 20;
/// Most values in a page of lists, which may all belong to one sample, or in a page of
/// delta-encoded words.
const MOST_LIST_VALUES: u32 = 16 << 20;
const MOST_METADATA_BYTES: u64 = 256 << 20;
/// Most headers of pages are shorter.
const LIKELY_HEADER_BYTES: usize = 256;
/// Where a header is not looked at further: it may hold the least and the most of its page's words.
const MOST_HEADER_BYTES: usize = 16 << 20;
/// gzip makes at most this many bytes of one.
const GZIP_RATIO: u64 = 1032;
/// What frames of LZ4 begin with: those of today and the older ones.
const LZ4_FRAMES: [[u8; 4]; 2] = [[0x04, 0x22, 0x4d, 0x18], [0x02, 0x21, 0x4c, 0x18]];
/// LZ4 makes at most 255 bytes of one.
const MOST_LZ4_FRAME_BYTES: usize = MOST_PAGE_BYTES as usize / 255;

fn refuse(message: String) -> ParquetError {
    ParquetError::General(message)
}

/// The metadata of a file of `bytes` bytes: before the last eight, which are its length and a mark.
pub(super) fn metadata(file: &File, bytes: u64) -> Result<ParquetMetaData> {
    let mut tail = [0; 8];
    let tail_from = bytes.checked_sub(8).ok_or_else(|| refuse("it is too short".to_owned()))?;
    file.read_exact_at(&mut tail, tail_from)?;
    let [a, b, c, d, mark @ ..] = tail;
    if mark != *b"PAR1" {
        return Err(refuse("expected PAR1 at its end: it is truncated, or encrypted".to_owned()));
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let most = MOST_METADATA_BYTES.min(tail_from);
    if length > most {
        return Err(refuse(format!("expected metadata of at most {most} bytes, found {length}")));
    }
    let mut buffer = vec![0; length as usize];
    file.read_exact_at(&mut buffer, tail_from - length)?;
    thrift::check_metadata(&buffer).map_err(|fault| refuse(format!("its metadata: {fault}")))?;
    contained(|| ParquetMetaDataReader::decode_metadata(&buffer))
}

/// Bytes of a file, asked for by the reader of pages: first a header, then what the header speaks
/// of.
pub(super) struct Chunk {
    file: Arc<File>,
    bytes: u64,
    most_page_bytes: u64,
    compression: Compression,
    header: Arc<LastHeader>,
}

/// The header that was read last, and where its page begins; or what is wrong with it.
type Header = Option<std::result::Result<(u64, PageHeader), String>>;
type LastHeader = Mutex<Header>;

fn locked(header: &LastHeader) -> MutexGuard<'_, Header> {
    header.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chunk {
    /// Refuses the page at `start`, stored in `stored` bytes, if it would be too long.
    fn check_page(&self, start: u64, stored: &[u8]) -> Result<()> {
        let PageHeader { size, levels, .. } = match &*locked(&self.header) {
            Some(Ok((page, header))) if *page == start => *header,
            _ => return Err(refuse(format!("a page at byte {start} that no header speaks of"))),
        };
        let most = self.most_page_bytes;
        if size > most {
            return Err(refuse(format!("expected a page of at most {most} bytes, found {size}")));
        }
        let stored = stored.get(levels..).unwrap_or_default();
        // The other codecs stop at the size that the header says.
        let expanded = match self.compression {
            Compression::GZIP(_) if stored.len() as u64 * GZIP_RATIO > MOST_PAGE_BYTES => {
                count(flate2::read::MultiGzDecoder::new(stored), most)
            }
            Compression::BROTLI(_) => count(brotli::Decompressor::new(stored, 4096), most),
            // Of what this codec may be, only frames do not stop there.
            Compression::LZ4
                if stored.len() > MOST_LZ4_FRAME_BYTES
                    && LZ4_FRAMES.iter().any(|magic| stored.starts_with(magic)) =>
            {
                let found = stored.len();
                return Err(refuse(format!(
                    "expected a page of at most {MOST_LZ4_FRAME_BYTES} bytes in frames of LZ4, \
                     found {found}"
                )));
            }
            _ => return Ok(()),
        };
        // A stream that does not decode is reported when it is read.
        match expanded {
            Ok(found) if found > most => Err(refuse(format!(
                "expected a page of at most {most} bytes, found more, although its header says \
                 {size}"
            ))),
            _ => Ok(()),
        }
    }
}

/// Bytes of a stream, of which at most one more than `most` is read.
fn count(from: impl Read, most: u64) -> io::Result<u64> {
    io::copy(&mut from.take(most + 1), &mut io::sink())
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Chunk {
    type T = HeaderBytes;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let (file, header) = (Arc::clone(&self.file), Arc::clone(&self.header));
        Ok(HeaderBytes { file, at: start, header, bytes: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes from byte {start} on are beyond the end"
            )));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        self.check_page(start, &buffer)?;
        Ok(buffer.into())
    }
}

/// The header of a page and no byte more, read and checked when its first byte is asked for. The
/// crate makes one where the page itself begins, too, and then asks for nothing.
pub(super) struct HeaderBytes {
    file: Arc<File>,
    at: u64,
    header: Arc<LastHeader>,
    bytes: Option<Cursor<Vec<u8>>>,
}

impl HeaderBytes {
    fn load(&self) -> io::Result<Vec<u8>> {
        let mut window = vec![0; LIKELY_HEADER_BYTES];
        loop {
            let mut read = 0;
            while read < window.len() {
                match self.file.read_at(&mut window[read..], self.at + read as u64)? {
                    0 => break,
                    more => read += more,
                }
            }
            let found = thrift::page_header(&window[..read]);
            if matches!(found, Err(Fault::Short))
                && read == window.len()
                && read < MOST_HEADER_BYTES
            {
                window.resize(8 * read, 0);
                continue;
            }
            let found =
                found.map_err(|fault| format!("the header of a page at byte {}: {fault}", self.at));
            let length = found.as_ref().map_or(0, |found| found.length);
            *locked(&self.header) = Some(found.map(|found| (self.at + length as u64, found)));
            window.truncate(length);
            return Ok(window);
        }
    }
}

impl Read for HeaderBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_none() {
            self.bytes = Some(Cursor::new(self.load()?));
        }
        self.bytes.as_mut().map_or(Ok(0), |bytes| bytes.read(buffer))
    }
}

pub(super) fn of_column(
    file: &Arc<File>,
    bytes: u64,
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<Box<dyn PageReader>> {
    let said = u64::try_from(column.uncompressed_size()).unwrap_or(0);
    let most = said.clamp(TRUSTED_PAGE_BYTES, MOST_PAGE_BYTES);
    let header = Arc::new(LastHeader::default());
    let chunk = Chunk {
        file: Arc::clone(file),
        bytes,
        most_page_bytes: most,
        compression: column.compression(),
        header: Arc::clone(&header),
    };
    let pages = SerializedPageReader::new(Arc::new(chunk), column, rows, None)?;
    let list_values = u64::try_from(column.num_values()).unwrap_or(0);
    Ok(Box::new(CheckedPages { pages, header, column: column.column_descr_ptr(), list_values }))
}

struct CheckedPages {
    pages: SerializedPageReader<Chunk>,
    header: Arc<LastHeader>,
    column: ColumnDescPtr,
    /// Where the column has lists: how many values its pages may still have.
    list_values: u64,
}

impl CheckedPages {
    fn check(&mut self, page: &Page) -> Result<()> {
        let found = page.num_values();
        let (what, most) = match page {
            Page::DictionaryPage { buf, .. } => {
                ("dictionary", (buf.len() / stored_bytes(self.column.physical_type())) as u64)
            }
            _ if self.column.max_rep_level() > 0 => {
                ("page of lists", self.list_values.min(MOST_LIST_VALUES.into()))
            }
            _ => ("page", u64::MAX),
        };
        if u64::from(found) > most {
            return Err(refuse(format!("a {what}: expected at most {most} values, found {found}")));
        }
        if page.is_data_page() {
            self.list_values = self.list_values.saturating_sub(found.into());
        }
        match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY => {
                let most = found.min(MOST_LIST_VALUES) as usize;
                delta::check(self.values(page)?, page.encoding(), most, MOST_PAGE_BYTES)
                    .map_err(refuse)
            }
            _ => Ok(()),
        }
    }

    /// The values of a page, which come after its levels.
    fn values<'a>(&self, page: &'a Page) -> Result<&'a [u8]> {
        let levels = match page {
            Page::DataPage { buf, num_values, rep_level_encoding, def_level_encoding, .. } => {
                let levels =
                    |most, encoding, from| v1_levels(most, encoding, *num_values, buf.get(from..)?);
                let repeated = levels(self.column.max_rep_level(), *rep_level_encoding, 0);
                repeated.and_then(|from| {
                    Some(from + levels(self.column.max_def_level(), *def_level_encoding, from)?)
                })
            }
            Page::DataPageV2 { rep_levels_byte_len, def_levels_byte_len, .. } => {
                Some(*rep_levels_byte_len as usize + *def_levels_byte_len as usize)
            }
            Page::DictionaryPage { .. } => Some(0),
        };
        let values = levels.and_then(|levels| page.buffer().get(levels..));
        values.ok_or_else(|| refuse("the levels of a page are longer than it".to_owned()))
    }

    /// What is wrong: the header that was read last, or `error`.
    fn worse(&self, error: ParquetError) -> ParquetError {
        match &*locked(&self.header) {
            Some(Err(fault)) => refuse(fault.clone()),
            _ => error,
        }
    }
}

fn stored_bytes(physical: Physical) -> usize {
    match physical {
        Physical::INT64 | Physical::DOUBLE => 8,
        // A word has its length before it.
        Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
        _ => 1,
    }
}

/// The bytes of levels of at most `most` at the front of a page of the first version.
fn v1_levels(most: i16, encoding: Encoding, values: u32, page: &[u8]) -> Option<usize> {
    if most == 0 {
        return Some(0);
    }
    if encoding == Encoding::RLE {
        let length = u32::from_le_bytes(*page.first_chunk()?);
        return Some(4 + length as usize);
    }
    let bits = (i16::BITS - most.leading_zeros()) as usize;
    Some((values as usize * bits).div_ceil(8))
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page().map_err(|error| self.worse(error))?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page().map_err(|error| self.worse(error))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary().map_err(|error| self.worse(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a page whose header speaks of `size` bytes and whose body is `stored`,
    /// levels first.
    fn refused(compression: Compression, size: u32, levels: u8, stored: &[u8]) -> Option<String> {
        let mut bytes = vec![0x15, 0, 0x15];
        let mut zigzag = u64::from(size) << 1;
        while zigzag >= 0x80 {
            bytes.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        bytes.extend([zigzag as u8, 0x6c, 0x55, 2 * levels, 0, 0]);
        let header = bytes.len() as u64;
        bytes.extend_from_slice(stored);
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &bytes).unwrap();
        let (file, bytes) = (Arc::new(file), bytes.len() as u64);
        let chunk =
            Chunk { file, bytes, most_page_bytes: 1 << 20, compression, header: Arc::default() };
        assert_eq!(chunk.get_read(0).unwrap().read_to_end(&mut Vec::new()).unwrap() as u64, header);
        // As the crate does where it has looked at the header before.
        drop(chunk.get_read(header).unwrap());
        chunk.get_bytes(header, stored.len()).err().map(|error| error.to_string())
    }

    #[test]
    fn a_page_that_would_be_too_long_is_refused_before_it_is_decompressed() {
        use std::io::Write;
        let zeros = vec![0; 5 << 20];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        gzip.write_all(&zeros).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut packed = Vec::new();
        brotli::CompressorWriter::new(&mut packed, 4096, 5, 22).write_all(&zeros).unwrap();
        for (compression, stored) in [
            (Compression::GZIP(Default::default()), &gzip),
            (Compression::BROTLI(Default::default()), &packed),
        ] {
            let after_levels = [&[7; 9][..], stored].concat();
            for (levels, stored) in [(0, stored), (9, &after_levels)] {
                let words = refused(compression, 100, levels, stored).unwrap();
                assert!(words.contains("found more, although its header says 100"), "{words}");
            }
        }
        let words = refused(Compression::SNAPPY, 2 << 20, 0, b"x").unwrap();
        assert!(
            words.contains("expected a page of at most 1048576 bytes, found 2097152"),
            "{words}"
        );
        assert_eq!(refused(Compression::SNAPPY, 1 << 20, 0, b"x"), None);
        assert!(refused(Compression::UNCOMPRESSED, 5, 0, &[]).is_none());
    }

    #[test]
    fn long_pages_of_lz4_are_read_where_they_are_not_frames() {
        let mut stored = vec![0; 2 << 20];
        stored[..8].copy_from_slice(&[0, 0x10, 0, 0, 0, 0x1f, 0xff, 0xf8]);
        assert_eq!(refused(Compression::LZ4, 1 << 20, 0, &stored), None);
        for (levels, magic) in [(0, LZ4_FRAMES[0]), (3, LZ4_FRAMES[0]), (0, LZ4_FRAMES[1])] {
            stored[levels..levels + 4].copy_from_slice(&magic);
            let words = refused(Compression::LZ4, 1 << 20, levels as u8, &stored).unwrap();
            let found = stored.len() - levels;
            assert!(
                words.contains("expected a page of at most 1052688 bytes in frames of LZ4"),
                "{words}"
            );
            assert!(words.ends_with(&format!("found {found}")), "{words}");
        }
    }
}
