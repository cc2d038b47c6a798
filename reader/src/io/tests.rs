//! Tests of opening, decompressing and cutting into lines.

use super::testing::{gzip, pipe, write, zstd};
use super::*;
use crate::criteo::parse::MAX_LINE_BYTES;

fn all_blocks(path: &DataFile, block_bytes: usize) -> Result<Vec<(u64, u64, Vec<u8>)>> {
    let mut blocks = LineBlocks::open(path, block_bytes)?;
    let mut block = TextBlock::default();
    let mut found = Vec::new();
    while blocks.next(&mut block)? {
        found.push((block.first_line, block.first_byte, block.text().to_vec()));
    }
    assert_eq!(blocks.file().stored_bytes_read(), blocks.file().stored_bytes());
    Ok(found)
}

fn sample_text() -> Vec<u8> {
    (0..500)
        .flat_map(|index| format!("{}{}\n", index, "x".repeat(index % 37)).into_bytes())
        .collect()
}

#[test]
fn every_compression_and_block_size_gives_the_same_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = sample_text();
    let members = [gzip(&text[..1000]), gzip(b""), gzip(&text[1000..])].concat();
    let frames = [zstd(&text[..1000]), zstd(&text[1000..])].concat();
    // The names lie, on purpose.
    let files = [
        ("a.gz", text.clone()),
        ("b", gzip(&text)),
        ("c.txt", members),
        ("d.gz", zstd(&text)),
        ("e", frames),
    ];
    for (name, bytes) in files {
        let path = write(folder.path(), name, &bytes);
        for block_bytes in [1, 7, 64, 1000, 1 << 20] {
            let blocks = all_blocks(&path, block_bytes).unwrap();
            let mut joined = Vec::new();
            for (first_line, first_byte, block) in &blocks {
                assert_eq!(*first_byte as usize, joined.len());
                assert_eq!(
                    *first_line as usize,
                    joined.iter().filter(|&&byte| byte == b'\n').count()
                );
                assert!(block.ends_with(b"\n"));
                joined.extend_from_slice(block);
            }
            assert!(joined == text, "{name} in blocks of {block_bytes}");
        }
    }
}

#[test]
fn the_last_line_may_lack_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a", b"one\ntwo");
    assert_eq!(all_blocks(&path, 5).unwrap(), [(0, 0, b"one\n".to_vec()), (1, 4, b"two".to_vec())]);
}

#[test]
fn skipping_continues_at_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = sample_text();
    for (name, bytes) in [("a", text.clone()), ("a.gz", gzip(&text)), ("a.zst", zstd(&text))] {
        let path = write(folder.path(), name, &bytes);
        let starts = memchr::memchr_iter(b'\n', &text).map(|newline| newline + 1);
        for (line, byte) in [0].into_iter().chain(starts).enumerate().step_by(41) {
            let mut blocks = LineBlocks::open(&path, 100).unwrap();
            blocks.skip_to(line as u64, byte as u64).unwrap();
            let mut block = TextBlock::default();
            assert!(blocks.next(&mut block).unwrap());
            assert_eq!((block.first_line, block.first_byte), (line as u64, byte as u64));
            assert!(text[byte..].starts_with(block.text()));
        }
        let mut blocks = LineBlocks::open(&path, 100).unwrap();
        let message = blocks.skip_to(3, 6).unwrap_err().to_string();
        assert!(
            message.contains("not the start of a line; a run continues only in files"),
            "{message}"
        );
        let mut blocks = LineBlocks::open(&path, 100).unwrap();
        let message = blocks.skip_to(999, 1 << 30).unwrap_err().to_string();
        assert!(
            message.contains(&format!("the text ends after {} bytes", text.len())),
            "{message}"
        );
    }
}

#[test]
fn truncated_files_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let text = sample_text();
    for (name, bytes, format) in [("a.gz", gzip(&text), "gzip"), ("a.zst", zstd(&text), "zstd")] {
        for kept in [5, bytes.len() / 2, bytes.len() - 1] {
            let path = write(folder.path(), name, &bytes[..kept]);
            let message = all_blocks(&path, 64).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("truncated"), "{message}");
            assert!(
                message.contains(&format!("the {format} stream ends early, after line")),
                "{message}"
            );
        }
    }
}

#[test]
fn corrupt_files_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = gzip(&sample_text());
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    let path = write(folder.path(), "a.gz", &bytes);
    let message = all_blocks(&path, 64).unwrap_err().to_string();
    assert!(message.contains("is corrupt: bad gzip data after line"), "{message}");

    let path = write(folder.path(), "b.gz", &[&gzip(&sample_text())[..], b"more"].concat());
    let message = all_blocks(&path, 64).unwrap_err().to_string();
    let expected = "bad gzip data after line 500 (";
    assert!(message.contains(expected) && message.contains("no gzip follow"), "{message}");
}

#[test]
fn a_compression_that_is_not_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, magic) in [("xz", b"\xfd7zXZ\0"), ("bzip2", b"BZh91A"), ("zip", b"PK\x03\x04\x14\0")]
    {
        let message = all_blocks(&write(folder.path(), "a", magic), 64).unwrap_err().to_string();
        assert!(message.contains(&format!("compressed by {name}, which is not")), "{message}");
    }
}

#[test]
fn files_that_are_none_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &DataFile| all_blocks(path, 64).unwrap_err().to_string();
    assert!(message(&folder.path().join("absent").into()).contains("cannot open"));
    assert!(message(&folder.path().into()).contains("is a directory, expected a file"));
    assert!(
        message(&write(folder.path(), "a", b"")).contains("is empty, expected at least one row")
    );
    assert!(message(&write(folder.path(), "a.gz", &gzip(b""))).contains("is empty"));
    assert!(message(&write(folder.path(), "b.gz", &gzip(b"\xef\xbb\xbf"))).contains("is empty"));
}

#[test]
fn a_line_without_end_does_not_fill_memory() {
    let folder = tempfile::tempdir().unwrap();
    let long = vec![b'a'; 5 * MAX_LINE_BYTES];
    let text = [b"one\n".as_slice(), &long, b"\nthree\n"].concat();
    for block_bytes in [10, 1 << 10, 1 << 20] {
        let path = write(folder.path(), "a", &text);
        let blocks = all_blocks(&path, block_bytes).unwrap();
        assert!(
            blocks.iter().all(|(_, _, block)| block.len() <= (2 * MAX_LINE_BYTES).max(block_bytes))
        );
        let (line, byte, last) = blocks.last().unwrap();
        if block_bytes <= 1 << 10 {
            assert_eq!(
                (*line, *byte as usize, last.as_slice()),
                (2, text.len() - 6, b"three\n".as_slice())
            );
        }
    }
}

#[test]
fn a_line_that_never_ends_is_refused_and_not_waited_for() {
    let mut blocks = LineBlocks::open(&"/dev/zero".into(), 1 << 20).unwrap();
    let message = blocks.next(&mut TextBlock::default()).unwrap_err().to_string();
    assert!(message.contains("/dev/zero: line 1: it is longer than 67108864 bytes"), "{message}");
}

#[test]
fn the_mark_of_utf_8_is_no_part_of_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"\xef\xbb\xbfone\ntwo\n";
    for (name, bytes) in [("a", text.to_vec()), ("a.gz", gzip(text))] {
        let file = write(folder.path(), name, &bytes);
        assert_eq!(all_blocks(&file, 1 << 20).unwrap(), [(0, 3, b"one\ntwo\n".to_vec())]);
        // Positions count it.
        let mut blocks = LineBlocks::open(&file, 100).unwrap();
        blocks.skip_to(1, 7).unwrap();
        let mut block = TextBlock::default();
        assert!(blocks.next(&mut block).unwrap());
        assert_eq!(block.text(), b"two\n");
    }
}

#[test]
fn looking_into_a_pipe_takes_nothing_out_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = sample_text();
    for bytes in [text.clone(), gzip(&text), zstd(&text)] {
        let (file, writer) = pipe(folder.path(), bytes);
        assert!(file.is_stream());
        for looks in 1..4 {
            let mut blocks = LineBlocks::of(TextFile::look(&file.clone()).unwrap(), 100 * looks);
            let mut block = TextBlock::default();
            assert!(blocks.next(&mut block).unwrap());
            assert!(text.starts_with(block.text()) && block.text().len() > 50);
        }
        let mut blocks = LineBlocks::open(&file, 1000).unwrap();
        let (mut block, mut found) = (TextBlock::default(), Vec::new());
        while blocks.next(&mut block).unwrap() {
            found.extend_from_slice(block.text());
        }
        assert!(found == text);
        writer.join().unwrap();
        let message = TextFile::open(&file).err().unwrap().to_string();
        assert!(
            message
                .contains("pipe is a pipe, which can be read only once: it has been read already"),
            "{message}"
        );
    }
}

#[test]
fn what_is_seen_of_a_pipe_is_bounded() {
    let mut look = TextFile::look(&"/dev/zero".into()).unwrap();
    let error = io::copy(&mut look, &mut io::sink()).unwrap_err();
    assert!(error.to_string().contains("its beginning holds no line"), "{error}");
}
