//! Compressed files for tests.

use std::io::Write;
use std::path::Path;
use std::thread::JoinHandle;

use flate2::write::GzEncoder;

use super::DataFile;

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
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> DataFile {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.into()
}

/// A pipe with a name, and the thread that writes `bytes` into it once somebody reads.
pub fn pipe(folder: &Path, bytes: Vec<u8>) -> (DataFile, JoinHandle<()>) {
    let path = folder.join("pipe");
    let _ = std::fs::remove_file(&path);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let to = path.clone();
    // The reader may be content with the beginning.
    let writer = std::thread::spawn(move || drop(std::fs::write(to, bytes)));
    (path.into(), writer)
}
