//! Data that is odd, hostile or merely large, through the command line: named errors, the right
//! exit code, bounded memory.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run, gzip};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a command with this much memory at most, in MiB of addresses.
fn within(mib: u64, run: &Run) -> Ended {
    let script = format!("ulimit -v {}; exec \"$0\" \"$@\"", mib << 10);
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_headlong")])
        .args(run.arguments())
        .stdin(Stdio::null());
    Ended::of(command.output().unwrap())
}

fn verify(file: &Path) -> Run {
    Run::new("data").with(&["verify", file.to_str().unwrap(), "--threads", "2"])
}

/// `text` as one gzip member, `times` times.
fn repeated(text: &str, times: usize) -> Vec<u8> {
    // One member after another is one text.
    gzip(&text.repeat(100)).repeat(times / 100)
}

#[test]
fn malformed_lines_without_end_take_neither_time_nor_memory() {
    let place = Place::new("rows.txt");
    let file = place.path("blank.txt.gz");
    std::fs::write(&file, repeated(&"\n".repeat(1000), 3000)).unwrap();
    let ended = within(500, &verify(&file));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().filter(|line| line.contains("expected 40")).count(), 100);
    assert!(
        ended.stdout.contains("2,999,900 more malformed lines are not listed"),
        "{}",
        ended.stdout
    );
    assert!(ended.stderr.contains("3,000,000 malformed lines"), "{}", ended.stderr);
}

#[test]
fn an_open_quote_does_not_read_a_whole_file_into_memory() {
    let place = Place::new("rows.txt");
    let file = place.path("bomb.csv.gz");
    let start = gzip("label,I1,C1\n1,1,\"");
    std::fs::write(&file, [start, repeated(&"x".repeat(10_000), 100_000)].concat()).unwrap();
    let ended = within(500, &verify(&file));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("bomb.csv.gz: line 2: the field that begins here is longer than 65536 bytes"),
        "{}",
        ended.stderr
    );
}

#[test]
fn ids_of_text_are_no_rows_and_the_key_says_so() {
    let place = Place::new("rows.txt");
    let words =
        ["`data.ids`", "\"rows\" says that the ids of the data are rows already", "\"hash\""];
    place.train().with(&["--set", "data.ids='rows'"]).fails(2, &words);
    place
        .train()
        .with(&["--set", "data.ids='rows'", "--set", "data.order=samples", "--cache-data", "host"])
        .fails(2, &words);
}

#[test]
fn what_cannot_be_said_does_not_change_the_exit_code() {
    let place = Place::new("rows.txt");
    let checkpoint = place.path("checkpoint");
    let predict = Run::new("predict").path("--checkpoint", &checkpoint);
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (run, code) in [
        (place.train().with(&["--set", "nope=1"]), 2),
        (verify(&place.path("none.txt")), 2),
        (place.train().path("--checkpoint-dir", &checkpoint), 0),
        (predict.path("--data", &place.valid).path("--output", &place.path("p.csv")), 0),
    ] {
        let status = run.command().stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{run:?}");
    }
}

#[test]
fn numbers_that_are_none_are_named_by_record_and_column() {
    let place = Place::new("rows.txt");
    let convert = |from: &Path, to: &str, output: &Path, more: &[&str]| {
        let run = Run::new("data")
            .with(&["convert", "--to", to])
            .path("--data", from)
            .path("--output", output);
        run.with(more)
    };
    let raw = place.path("a.raw");
    convert(&place.train, "raw", &raw, &["--dense-transform", "ln(x+1)"]).succeeds();
    let mut bytes = std::fs::read(&raw).unwrap();
    let at = 160 * 1234 + 4 + 4 * 2;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&raw, bytes).unwrap();
    let ones = &["1"; 26].join(",");
    let words = ["a.raw: record 1235, column I3: expected a finite number, found NaN"];
    verify(&raw).with(&["--from", "raw", "--hotness", ones]).fails(1, &words);
    let output = place.path("b.hld");
    convert(&raw, "headlong", &output, &["--from", "raw", "--hotness", ones]).fails(1, &words);
    assert!(!output.exists());
    let train = place.train_without_data().path("--data", &raw);
    train
        .with(&["--set", "data.format=raw", "--set", &format!("data.hotness=[{ones}]")])
        .fails(1, &words);
}

#[test]
fn strange_columns_of_records_are_noted_and_files_without_samples_refused() {
    let place = Place::new("rows.txt");
    let file = place.path("a.bin");
    let record = |label: i32| {
        let numbers = [label, -3].into_iter().chain(1..39);
        numbers.flat_map(i32::to_le_bytes).collect::<Vec<u8>>()
    };
    std::fs::write(&file, [record(1), record(1)].concat()).unwrap();
    let ended = verify(&file).with(&["--from", "mlperf"]).succeeds();
    for words in [
        "note: column label: it is 1 in all 2 rows",
        "note: column I1: 2 negative values (the least is -3), which ln(x+1) takes for 0",
        "note: column C26: it has the same value in all 2 rows",
    ] {
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
    }
    let wide = verify(&file).with(&["--from", "raw", "--num-dense", "18446744073709551615"]);
    wide.fails(2, &["--num-dense: expected at most 65536, found 18446744073709551615"]);
}

/// Runs a command that reads `file` through a pipe on its standard input.
fn piped(file: &Path, run: &Run) -> Ended {
    let mut cat = Command::new("cat").arg(file).stdout(Stdio::piped()).spawn().unwrap();
    let ended = Ended::of(run.command().stdin(cat.stdout.take().unwrap()).output().unwrap());
    let _ = cat.kill();
    cat.wait().unwrap();
    ended
}

/// The same, which must succeed.
fn piped_well(file: &Path, run: &Run) -> Ended {
    let ended = piped(file, run);
    assert_eq!(ended.code, Some(0), "{run:?}: {}", ended.stderr);
    ended
}

#[test]
fn what_another_program_has_left_of_standard_input_is_read() {
    let place = Place::new("rows.txt");
    let text = std::fs::read_to_string(&place.train).unwrap();
    let rows = text.lines().count();
    for (skipped, name) in [(0, "-"), (1, "-"), (3, "/dev/stdin")] {
        let mut file = File::open(&place.train).unwrap();
        let before: usize = text.split_inclusive('\n').take(skipped).map(str::len).sum();
        file.seek(SeekFrom::Start(before as u64)).unwrap();
        let inspect = Run::new("data").with(&["inspect", name]);
        let ended = Ended::of(inspect.command().stdin(file).output().unwrap());
        let expected = format!("\n{} rows, ", rows - skipped);
        assert!(
            ended.stdout.replace(',', "").contains(&expected.replace(',', "")),
            "{}",
            ended.stdout
        );
    }
}

#[test]
fn a_pipe_without_a_sample_is_refused_by_name() {
    let place = Place::new("rows.txt");
    let (header, output) = (place.path("header.csv"), place.path("out.hld"));
    std::fs::write(&header, "label,I1,C1\n").unwrap();
    for command in ["convert", "verify"] {
        let run = Run::new("data").with(&[command, "--from", "csv"]);
        let run = match command {
            "convert" => run.with(&["--data", "-", "--to", "headlong"]).path("--output", &output),
            _ => run.with(&["-"]),
        };
        let ended = piped(&header, &run);
        assert_ne!(ended.code, Some(0));
        let words = "standard input: expected at least one sample, found none";
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn a_pipe_is_read_as_the_file_would_be_by_every_command() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    let expected = place.train().path("--checkpoint-dir", &checkpoints).succeeds().digest();
    let text = std::fs::read_to_string(&place.train).unwrap();
    let (packed, squeezed) = (place.path("rows.gz"), place.path("rows.zst"));
    std::fs::write(&packed, gzip(&text)).unwrap();
    std::fs::write(&squeezed, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
    let applied = |command: &str| Run::new(command).path("--checkpoint", &checkpoints);
    let of_file = applied("eval").with(&["--json"]).path("--data", &place.train).succeeds().stdout;
    let loss =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["logloss"].clone();
    let (from_file, from_pipe) = (place.path("file.csv"), place.path("pipe.csv"));
    applied("predict").path("--data", &place.train).path("--output", &from_file).succeeds();
    for (file, name) in [(&place.train, "-"), (&packed, "/dev/stdin"), (&squeezed, "-")] {
        let train = place.train_without_data().with(&["--threads", "1", "--data", name]);
        assert_eq!(piped_well(file, &train).digest(), expected, "{name}");
        let eval = applied("eval").with(&["--json", "--data", name]);
        assert_eq!(loss(&piped_well(file, &eval).stdout), loss(&of_file));
        piped_well(file, &applied("predict").with(&["--data", name]).path("--output", &from_pipe));
        assert_eq!(std::fs::read(&from_pipe).unwrap(), std::fs::read(&from_file).unwrap());
        let verify = piped_well(file, &Run::new("data").with(&["verify", name]));
        assert!(verify.stdout.contains("1,500 rows, 0 malformed lines"), "{}", verify.stdout);
        let inspect = piped_well(file, &Run::new("data").with(&["inspect", name]));
        assert!(inspect.stdout.contains("1500 rows, 0 bad"), "{}", inspect.stdout);
        let output = place.path("again.txt");
        let convert = Run::new("data").with(&["convert", "--data", name, "--to", "criteo"]);
        piped_well(file, &convert.path("--output", &output));
        assert_eq!(std::fs::read_to_string(output).unwrap(), text);
    }
}

#[test]
fn named_pipes_and_process_substitution_are_read_and_training_data_that_is_read_twice_is_refused() {
    let place = Place::new("rows.txt");
    let dictionary = |data: &Path, name: &str| {
        let output = place.path(name);
        Run::new("data").with(&["make"]).path("--data", data).path("--output", &output).succeeds();
        let bytes = std::fs::read(output.join("dictionary.hld")).unwrap();
        // The header names the file, and the checksum covers it.
        let header = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        bytes[16 + header..bytes.len() - 8].to_vec()
    };
    let named = place.path("named");
    assert!(Command::new("mkfifo").arg(&named).status().unwrap().success());
    let writer = {
        let (from, to) = (place.train.clone(), named.clone());
        std::thread::spawn(move || std::fs::copy(from, to))
    };
    assert!(dictionary(&place.train, "one") == dictionary(&named, "two"));
    writer.join().unwrap().unwrap();

    let script = "exec \"$0\" data verify <(cat \"$1\")";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_headlong"), place.train.to_str().unwrap()]);
    let ended = Ended::of(bash.output().unwrap());
    assert!(
        ended.stdout.contains("1,500 rows, 0 malformed lines"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );

    let train = place.train_without_data().with(&["--data", "-"]);
    for (more, words) in [
        (
            &["--epochs", "2"][..],
            "`train.epochs`: standard input is a pipe, which can be read only once",
        ),
        (&["--set", "data.ids=dictionary"], "`data.ids`: standard input is a pipe"),
        (&["--ranks", "2"], "`run.ranks`: standard input is a pipe"),
    ] {
        let ended = piped(&place.train, &train.clone().with(more));
        assert!(ended.code == Some(2) && ended.stderr.contains(words), "{}", ended.stderr);
    }
    // More steps than it has: known when it ends.
    let ended = piped(&place.train, &train.with(&["--steps", "30"]));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("standard input is a pipe") && ended.stderr.contains("read already"),
        "{}",
        ended.stderr
    );
}

#[test]
fn formats_that_are_read_at_random_are_refused_from_a_pipe_and_delimited_text_is_not() {
    let place = Place::new("rows.txt");
    let convert = |to: &str, name: &str| {
        let output = place.path(name);
        let run = Run::new("data").with(&["convert", "--to", to]).path("--data", &place.train);
        run.path("--output", &output).succeeds();
        output
    };
    for (format, name) in [("headlong", "a.hld"), ("parquet", "a.parquet"), ("mlperf", "a.bin")] {
        let ended = piped(
            &convert(format, name),
            &Run::new("data").with(&["verify", "-", "--from", format]),
        );
        assert_eq!(ended.code, Some(1));
        let words = format!(
            "standard input is a pipe, which can be read only once: {format} is read in any order"
        );
        assert!(ended.stderr.contains(&words), "{}", ended.stderr);
    }
    let csv = convert("csv", "a.csv");
    let train = |data: &str| {
        let run = place.train_without_data().with(&[
            "--threads",
            "1",
            "--data",
            data,
            "--data-format",
            "csv",
        ]);
        run.with(&["--checkpoint-dir", place.path("checkpoints").to_str().unwrap()])
    };
    let expected = train(csv.to_str().unwrap()).succeeds().digest();
    let predict = |data: &str, output: &Path| {
        let run = Run::new("predict")
            .path("--checkpoint", &place.path("checkpoints"))
            .path("--output", output);
        run.with(&["--data", data])
    };
    let outputs = ["p.csv", "q.csv"].map(|name| place.path(name));
    predict(csv.to_str().unwrap(), &outputs[0]).succeeds();
    piped_well(&csv, &predict("-", &outputs[1]));
    assert_eq!(std::fs::read(&outputs[0]).unwrap(), std::fs::read(&outputs[1]).unwrap());
    std::fs::remove_dir_all(place.path("checkpoints")).unwrap();
    assert_eq!(piped_well(&csv, &train("-")).digest(), expected);
}

#[test]
fn a_model_predicts_on_files_of_every_format_and_of_more_columns() {
    let place = Place::new("rows.txt");
    let convert = |from: &Path, to: &str, name: &str, more: &[&str]| {
        let output = place.path(name);
        let run = Run::new("data").with(&["convert", "--to", to]).path("--data", from);
        run.path("--output", &output).with(more).succeeds();
        output
    };
    let checkpoints = place.path("checkpoints");
    let mlperf = convert(&place.train, "mlperf", "a.bin", &[]);
    // Records cannot say that an id is missing, so ids are rows by remainder, where a missing one
    // is 0.
    let train =
        place.train_without_data().path("--data", &mlperf).path("--checkpoint-dir", &checkpoints);
    train.with(&["--data-format", "mlperf", "--set", "data.ids=modulo"]).succeeds();
    let predict = |data: &Path, more: &[&str]| {
        let output = place.path("p.csv");
        let run = Run::new("predict").path("--checkpoint", &checkpoints).path("--data", data);
        run.path("--output", &output).with(more).succeeds();
        std::fs::read_to_string(output).unwrap()
    };
    let expected = predict(&mlperf, &[]);
    assert_eq!(expected.lines().count(), 1501);
    let logs = ["--dense-transform", "ln(x+1)"];
    let rows = [&logs[..], &["--rows", "1000"]].concat();
    for (file, more) in [
        (place.train.clone(), &[][..]),
        (convert(&place.train, "headlong", "a.hld", &[]), &[]),
        (convert(&place.train, "parquet", "a.parquet", &[]), &[]),
        (convert(&place.train, "csv", "a.csv", &[]), &[]),
        (convert(&place.train, "raw", "a.raw", &logs), &["--data-format", "raw"]),
        (convert(&place.train, "npy", "day_0", &rows), &[]),
    ] {
        assert!(predict(&file, more) == expected, "{}", file.display());
    }
    // An id of the row that training knew nothing of, before and after the columns of the model.
    let csv = std::fs::read_to_string(place.path("a.csv")).unwrap();
    let wider: String = csv
        .lines()
        .enumerate()
        .map(|(row, line)| format!("row{row},{line},\"x, {row}\"\n"))
        .collect();
    let file = place.path("wider.csv");
    std::fs::write(&file, wider).unwrap();
    assert!(predict(&file, &[]) == expected);
}

#[test]
fn every_format_is_inspected() {
    let place = Place::new("rows.txt");
    let inspect = |file: &Path, more: &[&str]| -> serde_json::Value {
        let run = Run::new("data").with(&["inspect", file.to_str().unwrap(), "--json"]).with(more);
        serde_json::from_str(&run.succeeds().stdout).unwrap()
    };
    let text = inspect(&place.train, &[]);
    for (to, name, more) in [
        ("headlong", "a.hld", &[][..]),
        ("parquet", "a.parquet", &[]),
        ("csv", "a.csv", &["--integers"]),
        ("mlperf", "a.bin", &["--from", "mlperf"]),
    ] {
        let output = place.path(name);
        let convert = Run::new("data").with(&["convert", "--to", to]).path("--data", &place.train);
        convert.path("--output", &output).succeeds();
        let found = inspect(&output, more);
        for key in ["rows", "clicks", "click_rate"] {
            assert_eq!(found[key], text[key], "{to}: {key}");
        }
        if to != "mlperf" {
            assert_eq!(found["dense"], text["dense"], "{to}");
            let columns =
                found["sparse"].as_array().unwrap().iter().zip(text["sparse"].as_array().unwrap());
            columns
                .for_each(|(found, text)| assert_eq!(found["distinct"], text["distinct"], "{to}"));
        }
    }
    // A table that no one has described yet: how many values does each column have?
    let file = place.path("films.csv");
    std::fs::write(&file, "film,watched,age\nx,1,7\ny,0,7.5\nx,1,\n").unwrap();
    let columns = inspect(&file, &[])["sparse"].clone();
    let distinct: Vec<_> =
        columns.as_array().unwrap().iter().map(|column| column["distinct"].clone()).collect();
    assert_eq!(distinct, [2, 2, 2]);
}

#[test]
fn a_table_of_ones_own_keeps_its_label_and_numbers_when_it_is_converted_to_text() {
    let place = Place::new("rows.txt");
    let [config, table, again] = ["a.toml", "a.csv", "b.csv"].map(|name| place.path(name));
    std::fs::write(&table, "clicked,price,page\ntrue,2.5,/a\nfalse,,/b\nFALSE,1e3,/a\n").unwrap();
    let columns =
        "[data.columns]\nlabel = \"clicked\"\ndense = [\"price\"]\ncategorical = [\"page\"]\n";
    std::fs::write(&config, columns).unwrap();
    let convert = |from: &Path, to: &Path| {
        let run = Run::new("data").with(&["convert", "--to", "csv"]).path("--config", &config);
        run.path("--data", from).path("--output", to).succeeds();
        std::fs::read_to_string(to).unwrap()
    };
    let text = convert(&table, &again);
    assert!(text.starts_with("clicked,price,page\n1,2.5,"), "{text}");
    assert_eq!(text.lines().nth(3).unwrap().split(',').nth(1), Some("1000"));
    assert_eq!(convert(&again, &place.path("c.csv")), text);
    let verify = verify(&place.path("c.csv")).path("--config", &config).succeeds();
    assert!(verify.stdout.contains("3 samples, click rate 0.333333"), "{}", verify.stdout);
    // Missing numbers are counted where they are.
    let verify = Run::new("data")
        .with(&["verify", table.to_str().unwrap()])
        .path("--config", &config)
        .succeeds();
    assert!(
        verify.stdout.lines().any(|line| line.starts_with("price") && line.ends_with("1 missing")),
        "{}",
        verify.stdout
    );
}

#[test]
fn marks_of_encodings_and_labels_of_one_class_are_told() {
    let place = Place::new("rows.txt");
    let expected = place.train().succeeds();
    assert!(!expected.stderr.contains("one class"), "{}", expected.stderr);
    let text = std::fs::read_to_string(&place.train).unwrap();
    std::fs::write(&place.train, format!("\u{feff}{text}")).unwrap();
    assert_eq!(place.train().succeeds().digest(), expected.digest());

    let utf_16: Vec<u8> =
        std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    std::fs::write(&place.train, utf_16).unwrap();
    place.train().fails(1, &["rows.txt: it is UTF-16", "iconv -f UTF-16 -t UTF-8"]);
    std::fs::write(&place.train, b"1\x00\t\x005").unwrap();
    place.train().fails(1, &["rows.txt: it has NUL bytes", "--data-format"]);

    let negative: String = text.lines().map(|line| format!("0{}\n", &line[1..])).collect();
    std::fs::write(&place.train, negative).unwrap();
    let ended = place.train().succeeds();
    assert!(
        ended.stderr.contains("all 1,500 training samples have the label 0"),
        "{}",
        ended.stderr
    );
}

#[test]
fn names_that_are_not_utf_8_are_shown() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new("rows.txt");
    let name = |bytes: &[u8]| place.path("x").with_file_name(std::ffi::OsStr::from_bytes(bytes));
    let run = |words: &[&str], file: &Path| {
        Ended::of(Run::new(words[0]).command().args(&words[1..]).arg(file).output().unwrap())
    };
    let ended = run(&["data", "verify"], &name(b"no\xff.txt"));
    assert!(ended.stderr.contains("no\u{fffd}.txt"), "{}", ended.stderr);
    let [label, rest] = [name(b"day\xff"), name(b"day\xff_labels.npy")];
    std::fs::write(&rest, "no array").unwrap();
    let ended = run(&["data", "verify"], &label);
    assert!(
        ended.stderr.contains("day\u{fffd}_labels.npy: expected a numpy array"),
        "{}",
        ended.stderr
    );
}

#[test]
fn files_of_settings_end_somewhere() {
    let place = Place::new("rows.txt");
    let words = ["/dev/zero", "expected at most 1048576 bytes, found more"];
    verify(&place.train).with(&["--md5", "/dev/zero"]).fails(1, &words);
}

#[test]
fn one_pipe_is_not_read_by_two() {
    let place = Place::new("rows.txt");
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let run = place.train_without_data().path("--data", &pipe).path("--valid", &pipe);
    run.fails(2, &["pipe is one pipe, named twice"]);
}
