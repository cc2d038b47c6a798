use super::*;

use std::io::Write;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn write(folder: &Path, contents: &[u8]) -> PathBuf {
    let path = folder.join("data.bin");
    std::fs::write(&path, contents).unwrap();
    path
}

fn read_all(mut blocks: DiskBlocks) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut expected = None;
    while let Some(block) = blocks.next()? {
        assert!(expected.is_none_or(|offset| offset == block.offset), "blocks come in order");
        expected = Some(block.offset + block.bytes().len() as u64);
        all.extend_from_slice(block.bytes());
    }
    Ok(all)
}

fn options(backend: IoChoice, direct: bool, depth: usize) -> DiskOptions {
    DiskOptions { block_bytes: 2 * ALIGNMENT, depth, backend, direct }
}

#[test]
fn every_backend_gives_the_bytes_of_the_file_from_any_start() {
    let folder = tempfile::tempdir().unwrap();
    for length in [1, ALIGNMENT - 1, ALIGNMENT, 2 * ALIGNMENT, 9 * ALIGNMENT + 17] {
        let contents = pattern(length);
        let path = write(folder.path(), &contents);
        for backend in [IoChoice::Auto, IoChoice::Threads] {
            for (direct, depth) in [(true, 1), (true, 5), (false, 3)] {
                for start in [0, 1, length / 2, length - 1, length] {
                    let options = options(backend, direct, depth);
                    let blocks = DiskBlocks::open(&path, start as u64, &options).unwrap();
                    let description = blocks.description().to_owned();
                    assert_eq!(
                        read_all(blocks).unwrap(),
                        contents[start..],
                        "{length} from {start}: {description}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_stream_that_is_dropped_early_ends_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &pattern(40 * ALIGNMENT));
    for backend in [IoChoice::Auto, IoChoice::Threads] {
        let mut blocks = DiskBlocks::open(&path, 0, &options(backend, true, 4)).unwrap();
        let held: Vec<Block> = (0..8).map(|_| blocks.next().unwrap().unwrap()).collect();
        drop(blocks);
        assert!(
            held.iter().all(|block| block.bytes().len() == 2 * ALIGNMENT),
            "blocks outlive their stream"
        );
    }
}

#[test]
fn a_file_that_shrinks_or_grows_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let contents = pattern(64 * ALIGNMENT);
    for backend in [IoChoice::Auto, IoChoice::Threads] {
        let path = write(folder.path(), &contents);
        let mut blocks = DiskBlocks::open(&path, 0, &options(backend, false, 1)).unwrap();
        drop(blocks.next().unwrap());
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(32 * ALIGNMENT as u64 + 5)
            .unwrap();
        let message = read_all(blocks).unwrap_err().to_string();
        assert!(
            message.contains(
                "data.bin has changed while it was read: 262144 bytes when it was opened, 131077 \
                 now"
            ),
            "{message}"
        );

        let path = write(folder.path(), &contents);
        let mut blocks = DiskBlocks::open(&path, 0, &options(backend, false, 1)).unwrap();
        drop(blocks.next().unwrap());
        File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        let message = read_all(blocks).unwrap_err().to_string();
        assert!(message.contains("262148 now"), "{message}");
    }
}

#[test]
fn an_error_of_the_disk_names_file_and_place() {
    // Reading a process's unmapped first page is an input/output error of a real descriptor.
    for backend in [IoChoice::Auto, IoChoice::Threads] {
        let file = File::open("/proc/self/mem").unwrap();
        let path = Path::new("day_7.bin");
        let options = options(backend, false, 2);
        let bytes = 8 * ALIGNMENT as u64;
        let segments = std::iter::once(Segment { file: 0, bytes: 0..bytes });
        let blocks = DiskFiles::over(file, path, bytes).read(segments, &options).unwrap();
        let message = read_all(blocks).unwrap_err().to_string();
        assert!(message.starts_with("cannot read day_7.bin at byte "), "{message}");
        assert!(message.contains("Input/output error"), "{message}");
    }
}

#[test]
fn senseless_options_and_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), b"x");
    let refused = |options: DiskOptions| {
        DiskBlocks::open(&path, 0, &options).err().map(|error| error.to_string())
    };
    assert!(refused(DiskOptions { depth: 0, ..DiskOptions::default() }).is_some());
    assert!(refused(DiskOptions { block_bytes: 1000, ..DiskOptions::default() }).is_some());
    assert!(matches!(
        DiskBlocks::open(folder.path(), 0, &DiskOptions::default()),
        Err(ReaderError::Directory { .. } | ReaderError::Open { .. })
    ));
    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(
        DiskBlocks::open(&empty, 0, &DiskOptions::default()),
        Err(ReaderError::Empty { .. })
    ));
}

#[test]
fn segments_of_several_files_come_in_the_order_they_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let contents = [pattern(9 * ALIGNMENT + 3), pattern(3 * ALIGNMENT).into_iter().rev().collect()];
    let paths = [folder.path().join("0"), folder.path().join("1")];
    paths
        .iter()
        .zip(&contents)
        .for_each(|(path, contents)| std::fs::write(path, contents).unwrap());
    let wanted = [
        (1, 5..17),
        (0, 4000..30_000),
        (0, 7..7),
        (0, 0..1),
        (1, 4096..12_288),
        (0, 36_866..36_867),
    ];
    for backend in [IoChoice::Auto, IoChoice::Threads] {
        let files = DiskFiles::open(&paths, true).unwrap();
        let segments = wanted.clone().into_iter().map(|(file, bytes)| Segment { file, bytes });
        let mut blocks = files.read(segments, &options(backend, true, 3)).unwrap();
        let mut found = Vec::new();
        while let Some(block) = blocks.next().unwrap() {
            let at = block.offset as usize;
            assert_eq!(block.bytes(), &contents[block.file][at..at + block.bytes().len()]);
            found.extend(
                (at as u64..(at + block.bytes().len()) as u64).map(|byte| (block.file, byte)),
            );
        }
        let expected: Vec<_> = wanted
            .iter()
            .flat_map(|(file, bytes)| bytes.clone().map(|byte| (*file, byte)))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn files_that_are_read_side_by_side_share_the_memory_of_one() {
    let one = DiskOptions::default();
    assert_eq!(one.shared_by(1).most_bytes(), one.most_bytes());
    for files in [2, 4, 28, 100] {
        let each = one.shared_by(files);
        each.check().unwrap();
        let held = each.most_bytes() * files as u64;
        assert!(held < one.most_bytes() * 11 / 10, "{files} files hold {held} bytes");
    }
}
