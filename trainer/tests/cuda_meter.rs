//! What kernels of whole steps ask of memory, as the software device's meter counts it
//! (device/softcuda/meter.h): on real rows and on Zipf-distributed ids they use the sectors that
//! they load, and they move the bytes that the planner's ledger says.
//!
//! `SOFTCUDA_METER=FILE headlong ...` shows the same for any run, by line of the source.

use crate::run_support::Run;
use headlong_device::cuda::testing::device;
use headlong_planner::ledger::{Ledger, Model};
use headlong_reader::formats::records::DCNV2_HOTNESS;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Part of the bytes of sectors that a request must use, over the requests of a kernel that touch
/// several sectors.
const EFFICIENCY: f64 = 0.9;
/// Kernels that use less of the sectors that a warp asks for, by the meter, and why.
const SHARED_SECTORS: [(&str, f64, &str); 1] = [(
    "update_chunks",
    0.83,
    "a warp's eight chunks lie apart; the other warps of its block read the rest of their sectors",
)];

/// What of `kernel`'s sectors has to be used.
fn least_used(kernel: &str) -> f64 {
    let exception = SHARED_SECTORS.iter().find(|exception| exception.0 == kernel);
    exception.map_or(EFFICIENCY, |exception| exception.1)
}

/// Wavefronts of an instruction on shared memory, in those that its width needs.
const WAYS: f64 = 2.0;

/// Kernels of the sparse and of the interaction's path: what a stage takes is theirs.
const WATCHED: [&str; 8] = [
    "lookup",
    "update_chunks",
    "update_longs",
    "tensor_forward",
    "tensor_backward",
    "route_keys",
    "sort_pass",
    "find_chunks",
];

/// Kernels whose instructions on shared memory fall short: ways on average, and why.
const CONFLICTS: [(&str, f64, &str); 3] = [
    ("find_chunks", 3.0, "where a bound goes is how many chunks began before it"),
    ("route_keys", 32.0, "a histogram by atomics: equal digits meet in one word"),
    ("sort_pass", 6.0, "where a key goes is what its digit says"),
];

/// The meter's lines, by kernel.
struct Metered(BTreeMap<String, Value>);

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or(0.0)
}

impl Metered {
    /// None where there is no software device.
    fn run(run: Run) -> Option<Self> {
        if !device().is_some_and(|device| device.is_software()) {
            eprintln!("skipped, because only the software device has a meter");
            return None;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        run.variable("SOFTCUDA_METER", file.path().to_str().unwrap()).succeeds();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let named = lines.map(|line| (line["kernel"].as_str().unwrap().to_owned(), line));
        Some(Self(named.collect()))
    }

    fn sites(&self, kernel: &str) -> &[Value] {
        let line = self.0.get(kernel).unwrap_or_else(|| panic!("{kernel} has not run"));
        line["sites"].as_array().unwrap()
    }

    fn sum(&self, kernel: &str, field: &str) -> f64 {
        self.sites(kernel).iter().map(|site| number(site, field)).sum()
    }

    fn check_sectors(&self) {
        for kernel in WATCHED {
            let [spread, all] =
                [["spread_used_bytes", "spread_sectors"], ["used_bytes", "sectors"]]
                    .map(|[used, of]| self.sum(kernel, used) / 32.0 / self.sum(kernel, of));
            println!(
                "{kernel:16} {:5.1} % of spread requests, {:5.1} % of all",
                100.0 * spread,
                100.0 * all
            );
            assert!(
                spread >= least_used(kernel),
                "{kernel} uses {spread:.3} of its sectors; by line: {:#?}",
                self.sites(kernel)
            );
        }
    }

    fn check_banks(&self) {
        for kernel in WATCHED {
            let exception = CONFLICTS.iter().find(|exception| exception.0 == kernel);
            let most = exception.map_or(WAYS, |exception| exception.1);
            for site in self.sites(kernel) {
                let (ways, least) = (number(site, "wavefronts"), number(site, "least_wavefronts"));
                assert!(ways <= most * least, "{kernel}: {:.1} ways: {site}", ways / least);
            }
        }
    }
}

#[test]
fn kernels_use_the_sectors_that_real_rows_make_them_load() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo/train.txt.gz");
    let data = PathBuf::from(data);
    if !data.exists() {
        return println!("skipped, because {} is absent", data.display());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new("train").with(&["--preset", "criteo-sample", "--steps", "1"]);
    for set in [
        "model.dim=128",
        "model.bottom=[32,128]",
        "model.top=[32,1]",
        "train.batch_size=1024",
        "tables.max_rows=2000",
    ] {
        run = run.with(&["--set", set]);
    }
    let run = run.with(&["--device", "cuda", "--schedule", "serial", "--precision", "bf16"]);
    let run = run.with(&["--optimizer", "sgd"]).path("--data", &data);
    let Some(metered) = Metered::run(run.path("--output-dir", folder.path())) else { return };
    metered.check_sectors();
    metered.check_banks();
    for kernel in ["lookup", "update_chunks"] {
        let whole = metered.sum(kernel, "used_bytes") / 32.0 / metered.sum(kernel, "sectors");
        assert!(whole >= least_used(kernel), "{kernel}, of all requests: {whole:.3}");
    }
}

/// Samples of a batch and most rows of a table in the step that is held against the ledger.
const SAMPLES: usize = 128;
const MOST_ROWS: u64 = 1000;
/// Differences that the ledger may have from what is counted, as part of it.
const TOLERANCE: f64 = 0.1;
/// Bytes of a launch that the formulas leave out: descriptions of tables.
const STRUCTURES: f64 = 4096.0;

/// Steps of a shape of the benches.
fn bench(shape: &str, samples: usize) -> Run {
    let (samples, rows) = (samples.to_string(), MOST_ROWS.to_string());
    let run = Run::new("bench").with(&["iteration", "--shape", shape, "--dtype", "bf16"]);
    let run = run.with(&["--batch-size", &samples, "--row-cap", &rows, "--seconds", "0"]);
    run.with(&["--device", "cuda", "--schedule", "serial"])
}

/// Of MLPerf's tables, capped.
fn rows() -> Vec<u64> {
    let all = headlong::config::preset::TERABYTE_40M_CARDINALITIES;
    all.iter().map(|&rows| rows.min(MOST_ROWS)).collect()
}

#[test]
fn kernels_move_the_bytes_that_the_ledger_says() {
    let Some(metered) = Metered::run(bench("C1", SAMPLES)) else { return };
    metered.check_sectors();
    metered.check_banks();
    compare(&metered, &Ledger::of(&Model::c1(SAMPLES, &rows())));
}

#[test]
fn the_ledger_has_the_ids_a_sample_of_the_reader() {
    assert_eq!(headlong_planner::ledger::DCNV2_HOTNESS, DCNV2_HOTNESS);
}

#[test]
#[ignore = "takes a minute: 16 M parameters, Adagrad"]
fn kernels_of_a_cross_network_move_the_bytes_that_the_ledger_says() {
    let Some(metered) = Metered::run(bench("C3", 32)) else { return };
    compare(&metered, &Ledger::of(&Model::c3(32, &rows(), &DCNV2_HOTNESS)));
}

fn compare(metered: &Metered, ledger: &Ledger) {
    // All steps of a run are alike; the first has a route more, and weights are rounded once.
    let steps = number(&metered.0["lookup"], "launches");
    let kernels: BTreeSet<&str> = ledger.rows.iter().map(|row| row.kernel).collect();
    // Copies and fills of the driver, and the tables' first values, are not the step's.
    let is_step = |name: &&String| !name.starts_with("cuMem") && *name != "initial_rows";
    for name in metered.0.keys().filter(is_step) {
        assert!(kernels.contains(name.as_str()), "{name} is not in the ledger");
    }
    let (mut expected_sum, mut counted_sum) = (0.0, 0.0);
    for kernel in kernels {
        let (launches, read, written) = ledger.of_kernel(kernel);
        let line = &metered.0[kernel];
        let counted_launches = (number(line, "launches") / steps).floor();
        assert_eq!(counted_launches, launches, "launches of {kernel} in a step");
        // Of an average launch: those of the route ahead are one more.
        let counted = |field| number(line, field) / number(line, "launches") * launches;
        let (counted, expected) =
            (counted("read_bytes") + counted("written_bytes"), read + written);
        println!(
            "{kernel:16} {launches:3} launches, {expected:12.0} bytes, counted {counted:12.0}"
        );
        if kernel == "copy_rounded" {
            continue;
        }
        expected_sum += expected;
        counted_sum += counted;
        let most = TOLERANCE * counted + STRUCTURES * launches;
        assert!(
            (expected - counted).abs() <= most,
            "{kernel}: {expected} bytes, counted {counted}"
        );
    }
    let off = (expected_sum - counted_sum).abs() / counted_sum;
    assert!(off <= TOLERANCE, "{expected_sum} bytes a step, counted {counted_sum}");
}
