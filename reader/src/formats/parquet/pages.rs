//! Pages of a column, of sizes that are looked at before memory is taken for them.
//!
//! A page says itself how long it is once it is decompressed, and how many values it has. The Parquet crate takes memory on
//! these words; here they are bounded first.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use ::bytes::Bytes;
use ::parquet::basic::Compression;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::reader::{ChunkReader, Length};
use ::parquet::file::serialized_reader::SerializedPageReader;

/// The longest page. Writers make pages of a megabyte or so.
const MOST_PAGE_BYTES: u64 = 256 << 20;
/// A page up to this size passes whatever the metadata says of its column: some writers have said it wrong.
const TRUSTED_PAGE_BYTES: u64 = 16 << 20;
/// The most values of a page of lists: of one sample, it may be.
const MOST_LIST_VALUES: u32 = 16 << 20;
/// The longest metadata.
const MOST_METADATA_BYTES: u64 = 256 << 20;
/// gzip makes at most this many bytes of one.
const GZIP_RATIO: u64 = 1032;

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
    ParquetMetaDataReader::decode_metadata(&buffer)
}

/// Bytes of a file, asked for by the reader of pages: first a header, then what the header speaks of.
pub(super) struct Chunk {
    file: Arc<File>,
    bytes: u64,
    most_page_bytes: u64,
    compression: Compression,
    /// Where the last two reads of a header began, and what they say of the page's size. A page is asked for after its
    /// header, between which the reader may begin to read at the page itself.
    headers: Mutex<[Option<Header>; 2]>,
}

/// A place that a header was read at, and what it says of its page's size: nothing, where it is none.
#[derive(Clone, Copy)]
struct Header {
    at: u64,
    size: Option<u64>,
}

impl Chunk {
    /// Refuses the page at `start`, stored in `stored` bytes, if it would be too long.
    fn check_page(&self, start: u64, stored: &[u8]) -> Result<()> {
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        let size = headers.iter().flatten().find(|header| header.at < start).and_then(|header| header.size);
        let size = size.ok_or_else(|| refuse("a page header does not begin with its sizes".to_owned()))?;
        let most = self.most_page_bytes;
        if size > most {
            return Err(refuse(format!("expected a page of at most {most} bytes, found {size}")));
        }
        // The other codecs stop at the size that the header says.
        let expanded = match self.compression {
            Compression::GZIP(_) if stored.len() as u64 * GZIP_RATIO > MOST_PAGE_BYTES => {
                count(flate2::read::MultiGzDecoder::new(stored), most)
            }
            Compression::BROTLI(_) => count(brotli::Decompressor::new(stored, 4096), most),
            Compression::LZ4 if stored.len() as u64 * 255 > MOST_PAGE_BYTES => {
                return Err(refuse("a page of LZ4 is too long".to_owned()));
            }
            _ => return Ok(()),
        };
        // A stream that does not decode is found by whoever needs its bytes.
        match expanded {
            Ok(found) if found > most => Err(refuse(format!(
                "expected a page of at most {most} bytes, found more behind its header's {size}"
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
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut read = BufReader::new(At { file: Arc::clone(&self.file), at: start });
        let size = page_size(read.fill_buf()?);
        let mut headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        *headers = [Some(Header { at: start, size }), headers[0]];
        Ok(read)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on are beyond the end")));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        self.check_page(start, &buffer)?;
        Ok(buffer.into())
    }
}

/// A file from a place on, whose own place is not moved.
pub(super) struct At {
    file: Arc<File>,
    at: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The bytes of a page once it is decompressed: field 2 of its header, in Thrift's compact protocol. Writers put the type and
/// the sizes first; a header that does not is not understood.
fn page_size(header: &[u8]) -> Option<u64> {
    let mut bytes = header.iter();
    let mut number = || {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    };
    // Each of the two is a field header (one field further, an i32), and a number in zigzag.
    let is_field = |header: Option<u64>| header == Some(0x15);
    let (first, _, second) = (number(), number(), number());
    if !is_field(first) || !is_field(second) {
        return None;
    }
    let zigzag = number()?;
    u64::try_from((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)).ok()
}

/// The pages of a column chunk.
pub(super) fn of_column(
    file: &Arc<File>,
    bytes: u64,
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<Box<dyn PageReader>> {
    let said = u64::try_from(column.uncompressed_size()).unwrap_or(0);
    let most = said.clamp(TRUSTED_PAGE_BYTES, MOST_PAGE_BYTES);
    let chunk = Chunk {
        file: Arc::clone(file),
        bytes,
        most_page_bytes: most,
        compression: column.compression(),
        headers: Mutex::default(),
    };
    let pages = SerializedPageReader::new(Arc::new(chunk), column, rows, None)?;
    Ok(Box::new(CheckedPages { pages, has_lists: column.column_descr().max_rep_level() > 0 }))
}

/// Pages whose numbers of values fit their bytes.
struct CheckedPages {
    pages: SerializedPageReader<Chunk>,
    has_lists: bool,
}

impl CheckedPages {
    fn check(&self, page: Option<Page>) -> Result<Option<Page>> {
        let (what, most) = match &page {
            Some(Page::DictionaryPage { buf, .. }) => {
                ("dictionary", u32::try_from(buf.len()).unwrap_or(u32::MAX))
            }
            Some(_) if self.has_lists => ("page of lists", MOST_LIST_VALUES),
            _ => return Ok(page),
        };
        match page.as_ref().map_or(0, Page::num_values) {
            found if found > most => {
                Err(refuse(format!("a {what}: expected at most {most} values, found {found}")))
            }
            _ => Ok(page),
        }
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        self.check(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_page_is_read_from_its_header() {
        // Type 0, 300 bytes, 200 stored.
        assert_eq!(page_size(&[0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x90, 0x03]), Some(300));
        assert_eq!(page_size(&[0x15, 0x04, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f]), Some(i32::MAX as u64));
        assert_eq!(page_size(&[0x15, 0x00, 0x15, 0x01]), None, "a size below 0");
        assert_eq!(page_size(&[0x15, 0x00, 0x25, 0x02]), None, "another field");
        assert_eq!(page_size(&[0x15, 0x00, 0x15]), None);
        assert_eq!(page_size(&[0xff; 20]), None);
    }

    /// What is said of a page whose header speaks of `size` bytes and whose body is `stored`.
    fn refused(compression: Compression, size: u32, stored: &[u8]) -> Option<String> {
        let mut bytes = vec![0x15, 0, 0x15];
        let mut zigzag = u64::from(size) << 1;
        while zigzag >= 0x80 {
            bytes.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        bytes.push(zigzag as u8);
        let header = bytes.len() as u64;
        bytes.extend_from_slice(stored);
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &bytes).unwrap();
        let (file, bytes) = (Arc::new(file), bytes.len() as u64);
        let chunk = Chunk { file, bytes, most_page_bytes: 1 << 20, compression, headers: Mutex::default() };
        drop(chunk.get_read(0).unwrap());
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
            let words = refused(compression, 100, stored).unwrap();
            assert!(words.contains("found more behind its header's 100"), "{words}");
        }
        let words = refused(Compression::SNAPPY, 2 << 20, b"x").unwrap();
        assert!(words.contains("expected a page of at most 1048576 bytes, found 2097152"), "{words}");
        assert_eq!(refused(Compression::SNAPPY, 1 << 20, b"x"), None);
        assert!(refused(Compression::UNCOMPRESSED, 5, &[]).is_none());
    }
}
