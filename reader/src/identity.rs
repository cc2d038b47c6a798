//! Whether a file of data is the one that it was.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use headlong_device::files::open_regular;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use crate::error::{ReaderError, Result};

/// Blocks of a large file that are hashed: the first, the last, and others evenly between them.
const SAMPLES: u64 = 128;
const SAMPLE_BYTES: u64 = 64 << 10;
/// A file of up to so many bytes is hashed whole.
const WHOLE_BYTES: u64 = 64 << 20;

/// Enough of a file to notice that it is another one: of a large one, its content is looked at in
/// samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// Its size, as stored.
    pub bytes: u64,
    /// When it was written last, in nanoseconds since 1970, where the file system knows.
    pub modified_ns: Option<u64>,
    /// XXH3-64 of the samples, as 16 hexadecimal digits.
    pub sample_xxh3: String,
}

impl FileIdentity {
    /// Looks at a file, and reads up to 64 MiB of it. Nothing of a pipe: what is read of it is
    /// gone.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let failed = |source| ReaderError::Open { file: path.to_owned(), source };
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Ok(None);
        }
        let file = open_regular(path).map_err(failed)?;
        Self::of_open(&file).map(Some).map_err(failed)
    }

    fn of_open(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let bytes = metadata.len();
        let modified = metadata.modified().ok();
        let since_1970 = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let mut hasher = Xxh3Default::new();
        let mut buffer = vec![0; SAMPLE_BYTES as usize];
        for offset in offsets(bytes) {
            let block = &mut buffer[..(bytes - offset).min(SAMPLE_BYTES) as usize];
            file.read_exact_at(block, offset)?;
            hasher.update(block);
        }
        Ok(Self {
            bytes,
            modified_ns: since_1970.and_then(|time| u64::try_from(time.as_nanos()).ok()),
            sample_xxh3: format!("{:016x}", hasher.digest()),
        })
    }

    /// Whether the content is the same, as far as it was looked at; a copy has it, too.
    pub fn has_content_of(&self, other: &Self) -> bool {
        (self.bytes, &self.sample_xxh3) == (other.bytes, &other.sample_xxh3)
    }
}

/// Where the samples of a file of `bytes` begin.
fn offsets(bytes: u64) -> Vec<u64> {
    if bytes <= WHOLE_BYTES {
        return (0..bytes.div_ceil(SAMPLE_BYTES)).map(|index| index * SAMPLE_BYTES).collect();
    }
    let last = u128::from(bytes - SAMPLE_BYTES);
    (0..SAMPLES).map(|index| (last * u128::from(index) / u128::from(SAMPLES - 1)) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_cover_small_files_and_both_ends_of_large_ones() {
        assert!(offsets(0).is_empty());
        assert_eq!(offsets(1), [0]);
        assert_eq!(offsets(SAMPLE_BYTES + 1), [0, SAMPLE_BYTES]);
        let large = offsets(u64::MAX);
        assert_eq!((large.len(), large[0], large[127]), (128, 0, u64::MAX - SAMPLE_BYTES));
        assert!(large.windows(2).all(|pair| pair[0] + SAMPLE_BYTES < pair[1]));
    }

    #[test]
    fn another_content_length_or_time_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.txt");
        let identity = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            FileIdentity::of(&path).unwrap().unwrap()
        };
        let mut text = vec![b'a'; 3 << 20];
        let first = identity(&text);
        assert_eq!(FileIdentity::of(&path).unwrap().unwrap(), first);
        let copy = identity(&text);
        assert!(copy.has_content_of(&first) && copy.modified_ns != first.modified_ns);
        for byte in [0, 1_234_567, (3 << 20) - 1] {
            text[byte] = b'b';
            assert!(!identity(&text).has_content_of(&first), "byte {byte}");
            text[byte] = b'a';
        }
        text.push(b'a');
        assert!(!identity(&text).has_content_of(&first));
        assert!(identity(b"abc") != identity(b"abd"));
        assert_eq!(FileIdentity::of(Path::new("/dev/null")).unwrap(), None);
        assert!(FileIdentity::of(&folder.path().join("absent")).is_err());
    }
}
