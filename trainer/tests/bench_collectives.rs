//! `headlong bench all_reduce` and its siblings, as a user calls them.

use crate::nccl_tests_output;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
    command.arg("bench").args(arguments).output().expect("the program was built with this test")
}

fn ends_with(code: i32, arguments: &[&str]) -> Output {
    let output = bench(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    output
}

fn succeeds(arguments: &[&str]) -> String {
    String::from_utf8(ends_with(0, arguments).stdout).expect("the program writes text")
}

fn document(arguments: &[&str]) -> Value {
    let text = succeeds(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("one JSON document")
}

fn rows(document: &Value) -> &[Value] {
    document["rows"].as_array().expect("rows")
}

const OPERATIONS: [&str; 8] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "alltoall",
    "alltoallv",
    "sendrecv",
    "barrier",
];

#[test]
fn every_collective_is_right_over_threads() {
    for operation in OPERATIONS {
        let common = [
            operation, "--ranks", "3", "-b", "1000", "-e", "300K", "-f", "16", "-n", "20", "-r",
            "2",
        ];
        let document = document(&common);
        assert_eq!(rows(&document).len(), if operation == "barrier" { 1 } else { 3 }, "{document}");
        for row in rows(&document) {
            assert_eq!(
                (row["op"].as_str(), row["wrong"].as_u64()),
                (Some(operation), Some(0)),
                "{row}"
            );
            assert_eq!((row["procs"].as_u64(), row["reps"].as_u64()), (Some(3), Some(20)), "{row}");
            let (p50, max) = (row["p50_us"].as_f64(), row["max_us"].as_f64());
            assert!(p50 > Some(0.0) && max >= p50, "{row}");
            assert!(row["p90_us"].is_null(), "twenty samples have no 90th percentile: {row}");
            assert!(
                row["rank0_p50_us"].as_f64() <= p50,
                "no rank takes longer than the slowest: {row}"
            );
            assert_eq!(row["in_place"].is_null(), operation == "barrier", "{row}");
            let wrong = |place: &str| row[place]["wrong"].as_u64().unwrap_or(0);
            assert_eq!((wrong("out_of_place"), wrong("in_place")), (0, 0), "{row}");
        }
    }
}

#[test]
fn every_element_type_is_right_and_every_call_can_be_looked_at() {
    let common = ["-d", "all", "-b", "4K", "-e", "4K", "-n", "3", "-c", "every", "--ranks", "2"];
    for operation in ["all_reduce", "alltoall"] {
        let document = document(&[&[operation][..], &common].concat());
        let types: Vec<_> =
            rows(&document).iter().map(|row| row["dtype"].as_str().unwrap_or("")).collect();
        assert_eq!(
            types,
            ["uint8", "int32", "uint32", "int64", "uint64", "half", "float", "bfloat16"]
        );
        assert!(
            rows(&document).iter().all(|row| row["wrong"] == 0 && row["bytes"] == 4096),
            "{document}"
        );
    }
}

#[test]
fn processes_are_started_and_leave() {
    let text = succeeds(&[
        "alltoallv",
        "--backend",
        "local,tcp,shm",
        "--ranks",
        "3",
        "-e",
        "16K",
        "-n",
        "20",
        "-N",
        "2",
        "--skew",
        "10",
    ]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let sizes: Vec<_> = rows.iter().map(|row| row[0]).collect();
    // Of 256 elements, three ranks give each other 6 shares of 42.
    assert_eq!(sizes, ["1008", "1008", "4080", "4080", "16368", "16368"].repeat(3), "{text}");
    let whole = |row: &Vec<&str>| row.len() == 18 && row[9] == "0" && row[17] == "40";
    assert!(
        rows.iter().all(whole),
        "eighteen columns, nothing wrong, the samples of both rounds: {text}"
    );
    for backend in
        ["local, 3 ranks (threads)", "tcp, 3 ranks (processes)", "shm, 3 ranks (processes)"]
    {
        assert!(text.contains(&format!("over {backend}")), "{text}");
    }
}

/// From a few bytes to several megabytes.
#[test]
fn ucx_carries_every_size() {
    let case = ["alltoall", "--backend", "ucx", "-b", "8", "-e", "4M", "-f", "32", "-n", "10"];
    if let Err(reason) = headlong_ucx::version() {
        println!("skipped, because {reason}");
        return;
    }
    let text = succeeds(&case);
    assert!(text.contains("over ucx, 2 ranks (processes)"), "{text}");
}

#[test]
fn two_and_four_ranks_print_the_table_over_every_way_of_one_machine() {
    for (operation, ranks) in
        [("all_reduce", 2), ("all_reduce", 4), ("alltoall", 2), ("alltoall", 4)]
    {
        let count = ranks.to_string();
        let case = [
            operation,
            "--backend",
            "local,shm,tcp",
            "--ranks",
            &count,
            "-b",
            "1K",
            "-e",
            "16K",
            "-f",
            "16",
        ];
        let text = succeeds(&[&case[..], &["-n", "20"]].concat());
        let parts: Vec<&str> = text.split(&format!("# {operation} over ")).skip(1).collect();
        assert_eq!(parts.len(), 3, "a table for each backend: {text}");
        for (part, backend) in parts.iter().zip(["local", "shm", "tcp"]) {
            assert!(part.starts_with(&format!("{backend}, {ranks} ranks (")), "{part}");
            let rows: Vec<Vec<&str>> = part
                .lines()
                .skip(1)
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.split_whitespace().collect())
                .collect();
            let named: Vec<_> = rows.iter().map(|row| (row[0], row[5], row[9])).collect();
            let expected = [
                ("1024", "in", "0"),
                ("1024", "out", "0"),
                ("16384", "in", "0"),
                ("16384", "out", "0"),
            ];
            let mut sorted = named.clone();
            sorted.sort_unstable_by_key(|&(bytes, place, _)| (bytes.len(), place));
            assert_eq!(sorted, expected, "sizes, places, wrong elements: {part}");
            let is_whole =
                |row: &[&str]| row.len() == 18 && row[10].parse().is_ok_and(|p50: f64| p50 > 0.0);
            assert!(rows.iter().all(|row| is_whole(row)));
        }
    }
}

#[test]
fn readers_of_nccl_tests_can_read_compat() {
    for (operation, root, reduction) in [("all_reduce", -1, "sum"), ("broadcast", 1, "none")] {
        let arguments = [operation, "--compat", "-b", "1K", "-e", "64K", "-n", "20", "-r", "1"];
        let parsed = nccl_tests_output::parse(&succeeds(&arguments)).expect("nccl-tests' format");
        assert_eq!(
            parsed.rows.iter().map(|row| row.size).collect::<Vec<_>>(),
            [1024, 4096, 16384, 65536]
        );
        for row in &parsed.rows {
            assert_eq!(
                (row.count, row.dtype.as_str(), row.redop.as_str()),
                (row.size / 4, "float", reduction)
            );
            assert_eq!(
                (row.root, row.out_of_place.wrong, row.in_place.wrong),
                (root, Some(0), Some(0))
            );
            for half in [&row.out_of_place, &row.in_place] {
                let bandwidth = row.size as f64 / half.time_us * 1e-3;
                // Times are printed to a hundredth of a microsecond.
                let rounded = 0.01 + bandwidth * (0.01 + 0.006 / half.time_us);
                assert!((half.algbw - bandwidth).abs() <= rounded, "{row:?}");
            }
        }
        assert_eq!((parsed.out_of_bounds, parsed.nranks), (0, 2));
    }
}

#[test]
fn percentiles_get_their_samples() {
    let tail = [
        "--seconds-per-size",
        "0.001",
        "--percentile",
        "99",
        "-b",
        "64",
        "-e",
        "64",
        "--place",
        "out",
    ];
    let document = document(&[&["barrier"][..], &tail].concat());
    let row = &rows(&document)[0];
    assert!(row["reps"].as_u64() >= Some(1000) && row["p99_us"].is_f64(), "{row}");
    assert!(row["p99_us"].as_f64() >= row["p90_us"].as_f64(), "{row}");
}

#[test]
fn a_slower_run_ends_with_4_and_a_strange_baseline_with_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path of text").to_owned();
    let (before, slow, plot) = (path("before.json"), path("slow.json"), path("plot.svg"));
    let case = ["all_reduce", "-b", "1K", "-e", "4K", "-n", "50"];
    succeeds(&[&case[..], &["--json-file", &before, "--plot", &plot]].concat());
    // Baselines as no one can miss it, however busy the machine is, and as no one can reach it.
    let text = std::fs::read_to_string(&before).expect("a file");
    let with_medians = |p50_us: f64, file: &str| {
        let mut document: Value = serde_json::from_str(&text).expect("JSON");
        for row in document["rows"].as_array_mut().expect("rows") {
            row["in_place"]["p50_us"] = p50_us.into();
            row["out_of_place"]["p50_us"] = p50_us.into();
        }
        std::fs::write(file, document.to_string()).expect("a file");
    };
    with_medians(1e9, &before);
    succeeds(&[&case[..], &["--baseline", &before]].concat());
    with_medians(1e-6, &slow);
    let output = ends_with(4, &[&case[..], &["--baseline", &slow]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("all_reduce of 1024 bytes over local (in_place): p50"), "{errors}");
    ends_with(2, &["alltoall", "-b", "1K", "-e", "1K", "-n", "5", "--baseline", &before]);
    let picture = std::fs::read_to_string(&plot).expect("a picture");
    assert!(
        picture.starts_with("<svg")
            && picture.contains("<polyline")
            && picture.ends_with("</svg>\n")
    );
}

#[test]
fn a_backend_that_is_not_there_is_skipped_with_its_reason() {
    // No one has a NIC of the kind, a hundred devices, or a library in an empty folder.
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
        command.env("HEADLONG_CUDA_LIBS", folder.path());
        command.arg("bench").args(arguments).output().expect("the program was built with this test")
    };
    let case = ["all_reduce", "-b", "1K", "-e", "1K", "-n", "5"];
    let alone = run(&[&case[..], &["--backend", "peer,nccl"]].concat());
    let errors = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.status.code(), Some(77), "{errors}");
    assert!(errors.contains("peer: ") && errors.contains("nccl: "), "{errors}");
    let both = run(&[&case[..], &["--backend", "peer,local"]].concat());
    assert_eq!(both.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&both.stdout).contains("# peer: skipped: "));
}

#[test]
fn a_command_that_takes_too_long_ends_with_124() {
    let begin = Instant::now();
    ends_with(124, &["barrier", "--backend", "tcp", "-n", "10000000", "-T", "1"]);
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn wrong_usage_is_refused() {
    let wrong: [&[&str]; 9] = [
        &["all_reduce", "-b", "4K", "-e", "1K"],
        &["all_reduce", "--ranks", "0"],
        &["all_reduce", "-o", "max"],
        &["all_reduce", "-i", "1K", "-f", "2"],
        &["broadcast", "-r", "2"],
        &["all_reduce", "--baseline", "/nowhere", "--max-regress", "much"],
        &["all_reduce", "-d", "double"],
        &["tune", "--ranks", "1"],
        &["barrier", "--backend", "tcp", "--worker", "tcp"],
    ];
    for arguments in wrong {
        let output = ends_with(2, arguments);
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn devices_exchange_over_their_memory_and_by_nccl() {
    // Devices of the software device are made as many as they are asked for; GPUs are not.
    if !headlong_device::cuda::testing::has_software_devices(1) {
        return;
    }
    for operation in ["all_reduce", "all_gather", "broadcast", "alltoall"] {
        for extra in [&["-n", "3"][..], &["-G", "2", "-m", "2"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
            command.env("SOFTCUDA_DEVICES", "8");
            command.args([
                "bench",
                operation,
                "--backend",
                "peer,nccl",
                "-b",
                "1K",
                "-e",
                "4K",
                "--json",
            ]);
            let output =
                command.args(extra).output().expect("the program was built with this test");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let document: Value =
                serde_json::from_slice(&output.stdout).expect("one JSON document");
            assert_eq!(rows(&document).len(), 4, "{document}");
            let right =
                |row: &Value| row["out_of_place"]["wrong"] == 0 && row["in_place"]["wrong"] == 0;
            assert!(rows(&document).iter().all(right), "{document}");
        }
    }
}

#[test]
fn tune_writes_the_fastest_ways_and_costs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path of text").to_owned();
    let case = ["tune", "-e", "16K", "--seconds-per-size", "0.002"];
    let costs = path("costs.toml");
    succeeds(&[&case[..], &["--output", &costs]].concat());
    let text = std::fs::read_to_string(&costs).expect("the file is there");
    let costs: headlong_embedding::hybrid::cost::Costs = toml::from_str(&text).expect("costs");
    let sizes: Vec<f64> = costs.intra.all_to_all.points().iter().map(|&(bytes, _)| bytes).collect();
    assert_eq!(sizes, [512.0, 2048.0, 8192.0], "half of a rank's buffer leaves it");

    let tuning = path("tuning.json");
    let summary = succeeds(
        &[&case[..], &["--backend", "local,tcp", "--output", &tuning, "-b", "16K"]].concat(),
    );
    let text = std::fs::read_to_string(&tuning).expect("the file is there");
    let tuning = headlong_comm::tuning::Tuning::read(&text).expect("a tuning file");
    let ways = |backend: &str| -> Vec<String> {
        let known = tuning.measurements.iter().filter(|known| known.backend == backend);
        known.map(|known| format!("{} {}", known.operation, known.algorithm)).collect()
    };
    let expected = [
        "all_reduce direct",
        "all_reduce two_steps",
        "all_to_all flat",
        "all_to_all_v flat",
        "all_gather direct",
        "reduce_scatter direct",
        "broadcast direct",
    ];
    assert_eq!(
        (ways("local"), ways("tcp")),
        (expected.map(String::from).into(), expected.map(String::from).into())
    );
    let fastest = tuning.fastest("all_to_all", 16 << 10, 1, 2).expect("it was measured");
    assert!(summary.contains(&format!("{} flat", fastest.backend)), "{summary}");
}

#[test]
fn the_exchange_of_a_plan_is_measured_with_its_own_sizes() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().to_str().expect("a path of text");
    let case = [
        "exchange",
        "--preset",
        "tiny",
        "--ranks",
        "2",
        "--hybrid",
        "rows=100",
        "--output-dir",
        output,
        "-n",
        "20",
        "--batches",
        "3",
    ];
    let document = document(&[&case[..], &["--backend", "local,tcp"]].concat());
    let steps = document["steps"].as_array().expect("steps");
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap_or("")).collect();
    assert_eq!(
        names[names.len() / 2..],
        names[..names.len() / 2],
        "the same over both: {document}"
    );
    assert!(
        names.contains(&"vectors") && names.contains(&"gradients") && names.contains(&"all_reduce")
    );
    for step in steps {
        assert_eq!((step["wrong"].as_u64(), step["reps"].as_u64()), (Some(0), Some(20)), "{step}");
        assert!(
            step["bytes_per_step"].as_f64() > Some(0.0) && step["p50_us"].as_f64() > Some(0.0),
            "{step}"
        );
        // How an all-reduce cuts its buffer is its algorithm's business.
        let largest = step["largest_message_bytes"].as_u64();
        assert_eq!(largest.is_some_and(|bytes| bytes > 0), step["step"] != "all_reduce", "{step}");
    }
    let of = |name: &str| {
        steps.iter().find(|step| step["step"] == name).map(|step| &step["bytes_per_step"])
    };
    assert_eq!(of("vectors"), of("gradients"), "what comes as a vector goes back as a gradient");
    let tables = document["tables"].as_array().expect("tables");
    let sum = |key: &str| tables.iter().filter_map(|table| table[key].as_f64()).sum::<f64>();
    assert!((sum("share") - 1.0).abs() < 1e-9);
    // What was counted is near what the plan expects of the same data.
    let (counted, planned) = (sum("bytes_per_step"), sum("planned_bytes_per_step"));
    assert!((counted / planned - 1.0).abs() < 0.2, "{counted} bytes counted, {planned} planned");
    assert!(
        std::fs::read_dir(output)
            .expect("the folder")
            .flatten()
            .all(|file| { !file.file_name().to_string_lossy().starts_with("bench-exchange") })
    );
    ends_with(2, &["exchange", "--preset", "tiny", "--ranks", "1"]);
    // What only training would need is not asked for.
    ends_with(0, &[&case[..], &["--set", "eval.batch_size=16777216"]].concat());
    plans_count_with_what_was_measured(folder.path(), &case);
}

/// A tuning file in which every exchange takes 12,345 µs: the plan of the same run expects that,
/// and says where it is from.
fn plans_count_with_what_was_measured(folder: &Path, case: &[&str]) {
    let mut tuning = headlong_comm::tuning::Tuning::new("a test");
    let operations = ["all_reduce", "all_to_all"];
    for (operation, backend) in operations.into_iter().flat_map(|of| [(of, "local"), (of, "peer")])
    {
        tuning.measurements.push(headlong_comm::tuning::Measurement {
            operation: operation.to_owned(),
            backend: backend.to_owned(),
            device: None,
            algorithm: "direct".to_owned(),
            nodes: 1,
            ranks: 2,
            points: vec![(1, 12_345.0), (1 << 30, 12_345.0)],
        });
    }
    let file = folder.join("tuning.json");
    std::fs::write(&file, tuning.write()).expect("a file");
    let setting = format!("comm.tuning={:?}", file.to_str().expect("a path of text"));
    let document = document(&[case, &["--set", &setting]].concat());
    let steps = document["steps"].as_array().expect("steps");
    let vectors = steps.iter().find(|step| step["step"] == "vectors").expect("vectors travel");
    let predicted = vectors["predicted_us"].as_f64().expect("a number");
    assert!((predicted - 12_345.0).abs() < 10.0, "{vectors}");
    let files =
        std::fs::read_dir(folder.join("synthetic-data")).expect("the data of the run").flatten();
    let mut files = files.map(|file| file.path().to_str().expect("a path of text").to_owned());
    let data = files.find(|file| file.contains("train")).expect("training data");
    let tuned: &[&str] = &["--set", &setting];
    let on_cuda: &[&str] = &["--device", "cuda"];
    for (arguments, expected) in [
        (tuned.to_vec(), "over local: measured, "),
        ([tuned, on_cuda].concat(), "over peer: measured, "),
        (
            [tuned, on_cuda, &["--transport", "nccl"]].concat(),
            "does not hold all-reduce and all-to",
        ),
        (on_cuda.to_vec(), "over peer: assumed, of GPUs"),
    ] {
        let mut plan = Command::new(env!("CARGO_BIN_EXE_headlong"));
        plan.args(["plan", "--preset", "tiny", "--ranks", "2", "--data", &data]).args(arguments);
        let output = plan
            .args(["--output-dir", folder.to_str().expect("a path of text")])
            .output()
            .expect("a plan");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("costs of exchanges") && text.contains(expected), "{text}");
    }
}

#[test]
fn verbs_go_back_and_forth_as_perftest_counts_them() {
    for (verb, meaning) in [
        ("write", "half"),
        ("write_imm", "half"),
        ("send", "half"),
        ("read", "whole"),
        ("atomic", "whole"),
    ] {
        let case = ["p2p", verb, "--nic", "fake", "-b", "8", "-e", "4K", "-f", "8", "-n", "100"];
        let document = document(&case);
        assert!(
            document["meaning"].as_str().is_some_and(|text| text.contains(meaning)),
            "{document}"
        );
        let sizes: Vec<_> = rows(&document).iter().map(|row| row["bytes"].as_u64()).collect();
        let expected: &[Option<u64>] =
            if verb == "atomic" { &[Some(8)] } else { &[Some(8), Some(64), Some(512), Some(4096)] };
        assert_eq!(sizes, expected, "{document}");
        for row in rows(&document) {
            assert!(
                row["reps"] == 100 && row["p50_us"].is_f64() && row["p99_us"].is_null(),
                "{row}"
            );
        }
        let text = succeeds(&case);
        assert!(text.contains("times mean nothing") && text.contains("t_typical(us)"), "{text}");
    }
    // Writes are of whole words: 2, 4 and 8 bytes are one size.
    let document = document(&["p2p", "write", "--nic", "fake", "-b", "2", "-e", "16", "-n", "10"]);
    let sizes: Vec<_> = rows(&document).iter().map(|row| row["bytes"].as_u64()).collect();
    assert_eq!(sizes, [Some(8), Some(16)], "{document}");
}
