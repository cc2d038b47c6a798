//! Tests of the reader: the same batches whatever the compression, threads and block size; exact
//! positions; every fault at its place.

use std::path::Path;

use super::*;
use crate::criteo::parse::BadRowPolicy;
use crate::criteo::testing::rows;
use crate::hashing::HashFunction;
use crate::ids::IdPolicy;
use crate::io::testing::{gzip, write, zstd};
use crate::resident::ResidentData;

const TABLE_ROWS: [u64; 26] = [50; 26];

fn hashed() -> IdMapper {
    IdMapper::new(IdPolicy::Hash { function: HashFunction::default() }, &TABLE_ROWS).unwrap()
}

fn admitted() -> IdMapper {
    IdMapper::new(IdPolicy::Admitted { min_count: 2 }, &TABLE_ROWS).unwrap()
}

fn options(batch_size: usize, num_threads: usize, block_bytes: usize) -> TextOptions {
    let blocks = BlockOptions { num_threads, block_bytes, ..BlockOptions::default() };
    TextOptions { blocks, batch_size, prefetch: 3, ..TextOptions::default() }
}

fn skipping(options: TextOptions) -> TextOptions {
    let blocks = BlockOptions { on_bad_row: BadRowPolicy::Skip, ..options.blocks };
    TextOptions { blocks, ..options }
}

fn read(files: &[DataFile], ids: IdMapper, options: &TextOptions) -> Vec<Batch> {
    read_from(files, ids, options, &Position::default())
}

fn read_from(
    files: &[DataFile],
    ids: IdMapper,
    options: &TextOptions,
    start: &Position,
) -> Vec<Batch> {
    let mut reader = CriteoTextReader::open(files, ids, options, start).unwrap();
    let mut batches = Vec::new();
    let mut batch = Batch::default();
    while reader.next(&mut batch).unwrap() {
        assert_eq!(reader.position(), batch.position);
        batches.push(batch.clone());
    }
    batches
}

/// Opens and reads until something is wrong: the batches before it, and the message.
fn read_to_error(file: &DataFile, options: &TextOptions) -> (usize, String) {
    let opened =
        CriteoTextReader::open(std::slice::from_ref(file), hashed(), options, &Position::default());
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(error) => return (0, error.to_string()),
    };
    let mut batch = Batch::default();
    for batches in 0.. {
        match reader.next(&mut batch) {
            Ok(true) => {}
            Ok(false) => panic!("no error in {} batches", batches),
            Err(error) => {
                assert!(!reader.next(&mut batch).unwrap(), "the stream has ended");
                if options.blocks.on_bad_row == BadRowPolicy::Error {
                    assert_eq!(reader.skip_report(), SkipReport::default());
                }
                return (batches, error.to_string());
            }
        }
    }
    unreachable!("the loop has no end");
}

#[test]
fn batches_hold_what_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let line = |label: u8, integer: &str, category: &str| {
        format!("{label}\t{integer}{}\t{category}{}\n", "\t".repeat(12), "\t".repeat(25))
    };
    let text = [line(1, "5", "0a"), line(0, "-3", ""), line(1, "", "ff")].concat();
    let file = write(folder.path(), "a", text.as_bytes());
    let modulo = IdMapper::new(IdPolicy::Modulo, &TABLE_ROWS).unwrap();
    let batches = read(&[file], modulo, &options(2, 1, 1 << 20));
    assert_eq!(batches.iter().map(|batch| batch.num_samples).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(batches[0].labels, [1.0, 0.0]);
    assert_eq!(
        (batches[0].dense[0], batches[0].dense[13], batches[0].dense.len()),
        (6_f32.ln(), 0.0, 26)
    );
    assert_eq!(
        (&*batches[0].sparse[0].values, &batches[0].sparse[0].offsets[..]),
        (&[10, 0][..], &[0, 1, 2][..])
    );
    assert_eq!(
        (&*batches[1].sparse[0].values, &batches[1].sparse[25].offsets[..]),
        (&[5][..], &[0, 1][..])
    );
    let first_two = line(1, "5", "0a").len() + line(0, "-3", "").len();
    let expected = Position { sample: 2, line: 2, byte: first_two as u64, ..Position::default() };
    assert_eq!(batches[0].position, expected);
    assert_eq!(batches[1].position, Position { epoch: 1, ..Position::default() });
}

#[test]
fn compression_threads_and_blocks_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(700, 1);
    let cut = text.len() / 3;
    let plain = write(folder.path(), "a", &text);
    let expected = read(std::slice::from_ref(&plain), admitted(), &options(64, 1, 1 << 20));
    assert_eq!(expected.len(), 11);
    let gz = write(folder.path(), "b", &gzip(&text));
    let members = write(folder.path(), "c", &[gzip(&text[..cut]), gzip(&text[cut..])].concat());
    let zst = write(folder.path(), "d", &zstd(&text));
    let crlf = String::from_utf8(text.clone()).unwrap().replace('\n', "\r\n");
    let crlf = write(folder.path(), "e", crlf.as_bytes());
    let unended = write(folder.path(), "f", &text[..text.len() - 1]);
    for (file, same_places) in
        [(plain, true), (gz, true), (members, true), (zst, true), (crlf, false), (unended, true)]
    {
        for (num_threads, block_bytes) in [(1, 300), (2, 1000), (3, 10_000), (4, 1 << 20)] {
            let mut found = read(
                std::slice::from_ref(&file),
                admitted(),
                &options(64, num_threads, block_bytes),
            );
            if !same_places {
                found
                    .iter_mut()
                    .zip(&expected)
                    .for_each(|(found, expected)| found.position = expected.position);
            }
            assert!(found == expected, "{} with {num_threads} threads", file);
        }
    }
}

/// Three files of three kinds, with bad lines at the start, in the middle and at the end of them.
fn files_with_bad_lines(folder: &Path) -> (Vec<DataFile>, u64) {
    let first = [b"rubbish\n".as_slice(), &rows(150, 2), b"\n", &rows(31, 3), b"more\trubbish\n\n"]
        .concat();
    let second = [rows(130, 4), b"7".to_vec(), rows(90, 5)].concat();
    let overlong = [b"a".repeat(200_000).as_slice(), b"\n"].concat();
    let third = [b"x\n".as_slice(), &rows(77, 6), &overlong, &rows(20, 7), b"end"].concat();
    let only_bad = b"nothing\nto\nsee\n";
    let files = vec![
        write(folder, "first.gz", &gzip(&first)),
        write(folder, "bad", only_bad),
        write(folder, "second", &second),
        write(folder, "third.zst", &zstd(&third)),
    ];
    (files, 4 + 3 + 1 + 3)
}

#[test]
fn a_resumed_stream_is_the_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let (files, bad_lines) = files_with_bad_lines(folder.path());
    for (batch_size, block_bytes) in [(32, 2000), (50, 500), (67, 1 << 20)] {
        let options =
            TextOptions { epochs: Some(2), ..skipping(options(batch_size, 2, block_bytes)) };
        let mut reader =
            CriteoTextReader::open(&files, admitted(), &options, &Position::default()).unwrap();
        let mut batches = Vec::new();
        let mut states = Vec::new();
        let mut batch = Batch::default();
        while reader.next(&mut batch).unwrap() {
            // However far the threads are ahead.
            let skipped = reader.skip_report();
            assert_eq!(skipped.total, batch.position.skipped);
            assert!(skipped.first.len() as u64 <= skipped.total, "{skipped:?}");
            let mapper = reader.mapper_at(&batch.position).unwrap();
            states.push(mapper.state_bytes());
            batches.push(batch.clone());
        }
        let last = batches.last().unwrap().position;
        assert_eq!(last, Position { epoch: 2, skipped: 2 * bad_lines, ..Position::default() });
        assert_eq!(reader.skip_report().total, 2 * bad_lines);
        let samples: usize = batches.iter().map(|batch| batch.num_samples).sum();
        assert_eq!(samples, 2 * (150 + 31 + 130 + 89 + 97));

        // The second line of file 2 is spoilt by the `7` put before it, so 89 of its 90 rows are
        // good.
        for resumed in (0..batches.len()).step_by(3) {
            let other = TextOptions {
                blocks: BlockOptions { num_threads: 1, block_bytes: 700, ..options.blocks.clone() },
                ..options.clone()
            };
            let mut mapper = admitted();
            mapper.restore_state(&states[resumed]).unwrap();
            let rest = read_from(&files, mapper, &other, &batches[resumed].position);
            assert!(rest == batches[resumed + 1..], "after batch {resumed} of {batch_size}");
        }
    }
}

#[test]
fn the_state_of_a_batch_does_not_depend_on_prefetching() {
    let folder = tempfile::tempdir().unwrap();
    let file = [write(folder.path(), "a", &rows(900, 7))];
    let states_of = |prefetch: usize| {
        let options = TextOptions { prefetch, ..options(40, 2, 3000) };
        let mut reader =
            CriteoTextReader::open(&file, admitted(), &options, &Position::default()).unwrap();
        let mut states = vec![reader.mapper_at(&Position::default()).unwrap().state_bytes()];
        let mut batch = Batch::default();
        let mut positions = Vec::new();
        while reader.next(&mut batch).unwrap() {
            // Let the pipeline run ahead as far as it can, so that there is something to undo.
            std::thread::sleep(Duration::from_millis(1));
            positions.push(batch.position);
            let two_before = positions[positions.len().saturating_sub(3)];
            states.push(reader.mapper_at(&batch.position).unwrap().state_bytes());
            states.push(reader.mapper_at(&two_before).unwrap().state_bytes());
        }
        let message = reader.mapper_at(&positions[0]).unwrap_err().to_string();
        assert!(
            message.contains("the id state at sample 40 of epoch 0 is not known any more"),
            "{message}"
        );
        states
    };
    let expected = states_of(0);
    for prefetch in [1, 7] {
        assert!(states_of(prefetch) == expected, "prefetch {prefetch}");
    }
}

#[test]
fn faults_come_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let good = rows(50, 8);
    let cases = [
        (
            "count",
            "1\t2\t3\n",
            "line 51: expected 40 tab-separated columns, found 3 in \"1\\t2\\t3\"",
        ),
        (
            "hex",
            &format!("0{}\tzz{}\n", "\t".repeat(13), "\t".repeat(25)),
            "line 51: column C1: expected up to 8 hex",
        ),
        (
            "integer",
            &format!("0\t1.5{}\n", "\t".repeat(38)),
            "line 51: column I1: expected an integer or nothing",
        ),
        (
            "label",
            &format!("2{}\n", "\t".repeat(39)),
            "line 51: column label: expected 0 or 1, found \"2\"",
        ),
    ];
    for (name, line, expected) in cases {
        for bytes in [1 << 20, 400] {
            let text = [&good, line.as_bytes(), &good].concat();
            let file = write(folder.path(), name, &gzip(&text));
            let (batches, message) = read_to_error(&file, &options(16, 2, bytes));
            assert_eq!(batches, 3, "{message}");
            assert!(message.starts_with(&format!("{}, {expected}", file)), "{message}");
            let skipped = read(&[file], hashed(), &skipping(options(16, 2, bytes)));
            assert_eq!(skipped.iter().map(|batch| batch.num_samples).sum::<usize>(), 100);
            assert_eq!(skipped.last().unwrap().position.skipped, 1);
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let message = |file: &DataFile| read_to_error(file, &options(16, 2, 4000)).1;
    assert!(message(&folder.path().join("absent").into()).contains("absent: No such file"));
    assert!(message(&folder.path().into()).contains("is a directory, expected a file of rows"));
    assert!(
        message(&write(folder.path(), "empty", b""))
            .contains("empty is empty, expected at least one row")
    );
    let packed = gzip(&rows(500, 9));
    let file = write(folder.path(), "cut.gz", &packed[..packed.len() / 2]);
    let (batches, text) = read_to_error(&file, &options(16, 2, 4000));
    assert!(
        batches > 2 && text.contains("cut.gz is truncated: the gzip stream ends early, after line"),
        "{text}"
    );
    let all_bad = write(folder.path(), "bad", b"a\nb\n");
    let (_, text) = read_to_error(&all_bad, &skipping(options(16, 1, 4000)));
    assert!(
        text.contains("2 bad lines were skipped, the first: ")
            && text.contains("bad, line 1: expected 40")
    );
    let changed = Position { sample: 5, line: 5, byte: 77, ..Position::default() };
    let good = [write(folder.path(), "good", &rows(9, 9))];
    let mut reader =
        CriteoTextReader::open(&good, hashed(), &options(16, 1, 4000), &changed).unwrap();
    let text = reader.next(&mut Batch::default()).unwrap_err().to_string();
    assert!(
        text.contains(
            "good at line 5 (byte 77): it is not the start of a line; a run continues only"
        ),
        "{text}"
    );
    let beyond = Position { file: 1, ..Position::default() };
    assert!(CriteoTextReader::open(&good, hashed(), &options(16, 1, 4000), &beyond).is_err());
    assert!(CriteoTextReader::open(&[], hashed(), &options(16, 1, 4000), &changed).is_err());
}

#[test]
fn dropping_a_reader_stops_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let files = [write(folder.path(), "a", &rows(500, 10))];
    for consumed in [0, 1, 5] {
        let endless = TextOptions { epochs: None, ..options(10, 3, 400) };
        let mut reader =
            CriteoTextReader::open(&files, hashed(), &endless, &Position::default()).unwrap();
        let mut batch = Batch::default();
        for _ in 0..consumed {
            assert!(reader.next(&mut batch).unwrap());
        }
        drop(reader);
    }
}

#[test]
fn progress_grows_to_the_end_and_counts_the_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(600, 11);
    let files = [write(folder.path(), "a", &text), write(folder.path(), "b.gz", &gzip(&text))];
    let options = TextOptions { epochs: Some(2), ..options(100, 2, 1000) };
    let mut reader =
        CriteoTextReader::open(&files, hashed(), &options, &Position::default()).unwrap();
    let mut batch = Batch::default();
    let mut before = 0;
    for index in 1..=12 {
        assert!(reader.next(&mut batch).unwrap());
        let progress = reader.progress();
        assert!(
            progress.stored_bytes_read >= before
                && progress.stored_bytes_read <= progress.stored_bytes
        );
        assert_eq!(progress.samples_per_epoch, (index == 12).then_some(1200));
        before = progress.stored_bytes_read;
    }
    assert_eq!(before, reader.progress().stored_bytes);
    assert!(reader.next(&mut batch).unwrap());
    assert!(reader.progress().stored_bytes_read < before);
}

#[test]
fn resident_data_gives_the_batches_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let (files, bad_lines) = files_with_bad_lines(folder.path());
    let options = skipping(options(64, 2, 3000));
    let mut expected = read(&files, hashed(), &options);
    let data =
        ResidentData::load(&files, &options.blocks, options.dense_transform, u64::MAX).unwrap();
    assert_eq!((data.num_samples(), data.skip_report().total), (497, bad_lines));
    let bounded = ResidentData::load(&files, &options.blocks, options.dense_transform, 10_000);
    assert!(bounded.unwrap_err().to_string().contains("takes more than 10000 bytes of memory"));
    let data = Arc::new(data);
    let ids = Arc::new(hashed());
    for _ in 0..2 {
        let mut reader = data.reader(Arc::clone(&ids), 64).unwrap();
        let mut batch = Batch::default();
        for expected in &mut expected {
            assert!(reader.next(&mut batch).unwrap());
            expected.position = batch.position;
            assert_eq!(batch, *expected);
        }
        assert!(!reader.next(&mut batch).unwrap());
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = [write(folder.path(), "a", &rows(3, 12))];
    let few = IdMapper::new(IdPolicy::Modulo, &[5]).unwrap();
    let open = |ids: IdMapper, batch_size: usize| {
        let opened =
            CriteoTextReader::open(&files, ids, &options(batch_size, 1, 100), &Position::default());
        opened.err().map(|error| error.to_string())
    };
    assert_eq!(open(few, 1).unwrap(), "the schema has 26 categories, the id policy 1 tables");
    assert!(open(hashed(), 0).unwrap().contains("batch_size"));
    let rows = IdMapper::new(IdPolicy::Rows, &[5; 26]).unwrap();
    assert!(
        open(rows.clone(), 1).unwrap().contains("ids = rows: the ids of Criteo's text are hashes")
    );
    let resident =
        ResidentData::load(&files, &BlockOptions::default(), DenseTransform::LnPlus1, u64::MAX)
            .unwrap();
    assert!(Arc::new(resident).reader(Arc::new(rows), 1).is_err());
}
