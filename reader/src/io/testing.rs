//! Compressed files for tests.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;

/// `text` as one gzip member.
pub fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// `text` as one zstd frame.
pub fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 1).unwrap()
}

/// Writes `bytes` to `folder/name`.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
