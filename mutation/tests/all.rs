//! The watcher sees what is planted, and names it; the long run.

#![cfg(test)]

use headlong_mutation::allocator::{self, PeakAllocator};
use headlong_mutation::subjects::{SUBJECTS, find};
use headlong_mutation::worker::{good_inputs, write_files};
use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// What a run printed, and its exit code.
fn run(arguments: &[&str]) -> (String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_headlong-mutation"))
        .arg("run")
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code().unwrap())
}

#[test]
fn everything_that_goes_wrong_is_seen_named_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    let keep = folder.path().to_str().unwrap();
    for (format, what) in [
        ("planted-panic", "this was planted"),
        ("planted-thread", "this was planted"),
        ("planted-abort", "signal: 6"),
        ("planted-hang", "it was not read within 2 s"),
        ("planted-memory", "it took 20971520 bytes of memory, the bound is 16 MiB"),
        ("planted-ceiling", "memory allocation of 1099511627776 bytes failed"),
    ] {
        let (text, code) =
            run(&["--format", format, "--mutants", "6", "--limit-s", "2", "--keep", keep]);
        assert_eq!(code, 1, "{text}");
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{format}: seed 3: ")))
            .expect(&text);
        assert!(line.contains(what), "{line}");
        // The ones after it were read, too, and it is kept.
        assert!(text.contains("6 mutants of 1 formats, 1 findings"), "{text}");
        let kept = folder.path().join(format!("{format}-3/seed"));
        assert_eq!(std::fs::read_to_string(kept).unwrap(), "3");
    }
    let (text, code) = run(&["--format", "planted-good", "--mutants", "6", "--keep", keep]);
    assert!(
        code == 2 && text.contains("no mutant was read") && text.contains("this was planted"),
        "{text}"
    );
    let (text, code) = run(&["--format", "planted-sound", "--mutants", "6", "--keep", keep]);
    assert!(code == 0 && text.contains("6 mutants of 1 formats, 0 findings"), "{text}");
}

#[test]
fn what_is_not_damaged_is_read() {
    for subject in SUBJECTS {
        let folder = tempfile::tempdir().unwrap();
        for (index, files) in good_inputs(subject, folder.path()).unwrap().iter().enumerate() {
            let place = folder.path().join(index.to_string());
            write_files(files, &place).unwrap();
            (subject.read)(&place, files)
                .unwrap_or_else(|error| panic!("{}, {index}: {error}", subject.name));
        }
    }
}

#[test]
fn good_inputs_are_read_and_mutants_are_read_or_refused() {
    let (text, code) = run(&["--mutants", "300", "--jobs", "2"]);
    assert_eq!(code, 0, "{text}");
    for subject in SUBJECTS {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(subject.name))
            .expect(&text);
        let numbers: Vec<_> = line.split_whitespace().skip(1).take(3).collect();
        let [tried, read, refused] = numbers[..] else { panic!("{line}") };
        assert_eq!(tried, "300", "{line}");
        // Damage that nothing notices, or that nothing survives, would try nothing.
        let is_said = subject.name != "frames";
        assert!(read.parse::<u32>().unwrap() > 0, "{line}");
        assert!(refused.parse::<u32>().unwrap() > 0 || !is_said, "{line}");
    }
}

/// Mutants of Parquet that took gigabytes, or minutes, before metadata and headers of pages were
/// walked.
#[test]
fn what_was_found_stays_mended() {
    let subject = find("parquet").unwrap();
    let found = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found")).unwrap();
    for entry in found {
        let files = vec![("a.parquet".to_owned(), std::fs::read(entry.unwrap().path()).unwrap())];
        let folder = tempfile::tempdir().unwrap();
        write_files(&files, folder.path()).unwrap();
        let (held, started) = (allocator::watch(), Instant::now());
        let _ = (subject.read)(folder.path(), &files);
        let (taken, seconds) = (allocator::peak() - held, started.elapsed().as_secs());
        assert!(taken <= subject.bound_mib << 20 && seconds < 10, "{taken} bytes, {seconds} s");
    }
}

/// Numbers were read one unit in the last place from what was written, before serde_json was
/// asked to round: a search that is resumed would compare other scores than one that is not.
#[test]
fn results_of_trials_are_read_as_they_were_written() {
    let subject = find("trials").unwrap();
    let line = r#"{"trial":2,"scored":"final","epochs":2.1844674407370954,"settings":{},"#;
    let line =
        format!("{line}\"seconds\":0.11844674407370955,\"start_seconds\":0.046116860184273877}}\n");
    let files = vec![("trials.jsonl".to_owned(), line.into_bytes())];
    assert_eq!((subject.read)(std::path::Path::new(""), &files), Ok(()));
}

/// Text that unpacks to a thousand times its bytes and more, and frames that ask for a window.
#[test]
fn bombs_stay_within_their_bounds() {
    let zeros = vec![0; 64 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).unwrap();
    // A window of 256 MiB, and of 128 MiB, each with an empty last block.
    let frame = |exponent: u8| vec![0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, 1, 0, 0];
    for (format, bytes, is_refused) in [
        ("gzip", gzip.finish().unwrap(), false),
        ("zstd", zstd::encode_all(&zeros[..], 3).unwrap(), false),
        ("zstd", frame(18), true),
        ("zstd", frame(17), false),
    ] {
        let subject = find(format).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = vec![("rows.txt".to_owned(), bytes)];
        write_files(&files, folder.path()).unwrap();
        let held = allocator::watch();
        let read = (subject.read)(folder.path(), &files);
        let taken = allocator::peak() - held;
        assert!(taken <= subject.bound_mib << 20, "{taken} bytes");
        assert!(!is_refused || read.is_err(), "{read:?}");
    }
}

#[test]
fn a_share_of_time_ends_a_format_early() {
    let (text, code) =
        run(&["--format", "planted-sound", "--mutants", "1000000000", "--seconds", "0.3"]);
    let tried = text.lines().last().and_then(|line| line.split_whitespace().next()).expect(&text);
    assert!(code == 0 && (1..1_000_000_000).contains(&tried.parse::<u64>().unwrap()), "{text}");
}

/// Ten million mutants of each format: a day. `cargo xtask soak --only mutants` keeps what it says.
#[test]
#[ignore = "hours"]
fn soak_mutants() {
    let program = env!("CARGO_BIN_EXE_headlong-mutation");
    let status =
        Command::new(program).args(["run", "--mutants", "10000000", "--first", "1000000"]).status();
    assert!(status.unwrap().success());
}
