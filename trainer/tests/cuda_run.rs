//! Whole runs of the built program on a CUDA device. What only a software device can show (its
//! memory limit, faults that it makes on request, calls that it counts) is skipped on a GPU, with a
//! line.

#![cfg(test)]

mod cuda_meter;
mod run_support;

use headlong_device::cuda::testing::{device, has_devices, has_software_devices};
use run_support::{Place, Run, events, last_event, steps};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn is_absent() -> bool {
    device().is_none()
}

fn on_cuda(run: Run, schedule: &str) -> Run {
    run.with(&["--device", "cuda", "--schedule", schedule])
}

fn losses(log: &Path) -> Vec<f64> {
    let steps = events(log).into_iter().filter(|event| event["event"] == "step");
    steps.map(|event| event["loss"].as_f64().unwrap()).collect()
}

/// With SGD, rounding has not grown yet after fifty steps, and a wrong gradient shows in the
/// second.
fn first_losses_are_those_of_the_processor(train: &Run) {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, run: fn(Run) -> Run| {
        let log = folder.path().join(name);
        let train = train.clone().with(&[
            "--optimizer",
            "sgd",
            "--steps",
            "50",
            "--set",
            "train.log_every=1",
        ]);
        run(train.path("--output-dir", folder.path()).path("--log-json", &log)).succeeds();
        losses(&log)
    };
    let cpu = of("cpu", |run| run.with(&["--device", "cpu"]));
    let cuda = of("cuda", |run| on_cuda(run, "captured"));
    assert_eq!((cpu.len(), cuda.len()), (50, 50));
    let off = cpu.iter().zip(&cuda).map(|(cpu, cuda)| (cpu - cuda).abs()).fold(0.0, f64::max);
    println!("largest difference of 50 losses: {off:.1e}");
    assert!(off <= 1e-5, "losses differ by up to {off:.1e}: {cpu:?} {cuda:?}");
}

#[test]
fn the_first_losses_of_real_rows_are_those_of_the_processor() {
    let data = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/criteo/train.txt.gz"
    ));
    if !data.exists() {
        println!("skipped, because {} is absent", data.display());
    } else if !is_absent() {
        let train = Run::new("train").with(&[
            "--preset",
            "criteo-sample",
            "--set",
            "tables.max_rows=20000",
        ]);
        first_losses_are_those_of_the_processor(&train.path("--data", &data));
    }
}

#[test]
fn the_first_losses_of_made_up_rows_are_those_of_the_processor() {
    if !is_absent() {
        let train =
            Run::new("train").with(&["--preset", "tiny", "--set", "synthetic.train_rows=7000"]);
        first_losses_are_those_of_the_processor(
            &train.with(&["--set", "synthetic.valid_rows=500"]),
        );
    }
}

#[test]
fn a_run_resumes_where_its_checkpoint_ended_and_is_applied_by_device_and_processor() {
    if is_absent() {
        return;
    }
    for (dtype, precision, optimizer) in
        [("f32", "f32", "adagrad"), ("bf16", "bf16", "adagrad"), ("f32", "bf16", "lamb")]
    {
        let place = Place::new("rows.txt");
        let dtype = format!("tables.dtype={dtype}");
        let train = on_cuda(place.train(), "captured").path("--valid", &place.valid);
        let train =
            train.with(&["--set", &dtype, "--precision", precision, "--optimizer", optimizer]);
        let whole = train.clone().with(&["--steps", "30"]).succeeds().digest();
        let checkpoints = place.path("checkpoints");
        let parts = train.path("--checkpoint-dir", &checkpoints);
        parts.clone().with(&["--steps", "13"]).succeeds();
        assert_eq!(steps(&checkpoints), [13]);
        let log = place.path("resumed.json");
        let resumed =
            parts.path("--log-json", &log).with(&["--steps", "30", "--resume"]).succeeds();
        assert_eq!(resumed.digest(), whole, "{dtype}: resumed is uninterrupted, bit for bit");

        let auc = last_event(&log, "eval")["auc"].as_f64().unwrap();
        let eval = Run::new("eval").path("--checkpoint", &checkpoints).path("--data", &place.valid);
        let applied = |device: &str| {
            let eval = eval.clone().with(&["--device", device, "--json", "--which", "newest"]);
            let answer = eval.succeeds().stdout;
            serde_json::from_str::<serde_json::Value>(&answer).unwrap()["auc"].as_f64().unwrap()
        };
        assert_eq!(applied("cuda"), auc, "{dtype}: what training's own evaluation found");
        assert!(
            (applied("cpu") - auc).abs() < 0.001,
            "{dtype}: {} on the processor, not {auc}",
            applied("cpu")
        );
        predictions_are_those_of_the_processor(
            &place,
            &checkpoints,
            if precision == "f32" { 1e-5 } else { 0.01 },
        );
    }
}

fn predictions_are_those_of_the_processor(place: &Place, checkpoints: &Path, within: f32) {
    let of = |device: &str| {
        let output = place.path(&format!("{device}.csv"));
        let predict =
            Run::new("predict").path("--checkpoint", checkpoints).path("--data", &place.valid);
        predict.path("--output", &output).with(&["--device", device]).succeeds();
        let text = std::fs::read_to_string(output).unwrap();
        let probability = |line: &str| line.split(',').nth(1).unwrap().parse::<f32>().unwrap();
        text.lines().skip(1).map(probability).collect::<Vec<_>>()
    };
    let (cpu, cuda) = (of("cpu"), of("cuda"));
    assert_eq!(cpu.len(), cuda.len());
    let off = cpu.iter().zip(&cuda).map(|(cpu, cuda)| (cpu - cuda).abs()).fold(0.0, f32::max);
    assert!(off <= within, "probabilities differ by {off}");
}

#[test]
fn what_does_not_fit_is_refused_before_training_with_the_plans_numbers() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    let run = on_cuda(place.train(), "serial").variable("SOFTCUDA_MEMORY_MIB", "256");
    let tables = ["--set", "tables.rows=200000", "--set", "data.num_sparse=26"];
    run.with(&tables).fails(2, &["the plan needs", "available", "tables.max_rows"]);
}

#[test]
fn a_failing_device_is_named_with_stage_and_step() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    for schedule in ["serial", "captured"] {
        let run = on_cuda(place.train(), schedule).with(&["--steps", "12"]);
        let ended = run
            .variable("SOFTCUDA_FAULT", "dot_backward:9")
            .fails(1, &["of step", "on the device"]);
        println!("{schedule}: {}", ended.stderr.lines().last().unwrap_or_default());
    }
}

/// The software device under another name stands for a GPU. (Under its own it is never taken
/// unasked, as all other tests of the program show.)
#[test]
fn a_gpu_is_taken_unasked_where_it_trains_as_the_processor_does() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    // In bf16, because a few steps in f32 come to the same bits on both.
    let train = |device: &str| {
        let run = place.train().with(&["--device", device, "--steps", "12"]);
        run.with(&["--precision", "bf16"]).variable("SOFTCUDA_NAME", "Pretended GPU")
    };
    let (cuda, cpu) = (train("cuda").succeeds().digest(), train("cpu").succeeds().digest());
    assert_ne!(cuda, cpu, "so that the digest tells where a run was");
    let taken = train("auto").succeeds();
    assert_eq!(taken.digest(), cuda);
    let said = "device: Pretended GPU, whose self-test agrees with the processor";
    assert!(taken.stderr.contains(said), "{}", taken.stderr);
    let refused = ["--set", "comm.ids=known"];
    for (run, reason) in [
        (train("auto").variable("SOFTCUDA_FAULT", "dot_backward:2"), "its self-test failed"),
        (train("auto").variable("SOFTCUDA_MEMORY_MIB", "1"), "the plan needs"),
        (train("auto").with(&["--ranks", "3"]), "each of 3 ranks needs one, and there are"),
        (train("auto").with(&refused), "comm.ids"),
    ] {
        let run = run.variable("SOFTCUDA_DEVICES", "2").succeeds();
        let said = "device: the processor, not Pretended GPU: ";
        assert!(run.stderr.contains(said) && run.stderr.contains(reason), "{}", run.stderr);
    }
}

/// Driver calls by name, of a run of so many steps.
fn calls(place: &Place, steps: u64) -> BTreeMap<String, i64> {
    let run = place.train().with(&["--device", "cuda", "--steps", &steps.to_string()]);
    let run = run.with(&["--set", "train.log_every=1000", "--set", "train.batch_size=50"]);
    run.driver_calls(&place.path("calls"))
}

/// A step more is a graph more, an event recorded and waited for, and nothing else: at default
/// settings.
#[test]
fn a_captured_step_makes_no_driver_call_but_its_launch() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    // 1,500 rows are 30 full batches of 50, so that no batch is short.
    let (few, many) = (calls(&place, 10), calls(&place, 25));
    let more: Vec<(&str, i64)> = many
        .iter()
        .map(|(name, count)| (name.as_str(), count - few.get(name).unwrap_or(&0)))
        .filter(|(_, more)| *more != 0)
        .collect();
    println!("15 steps more: {more:?}");
    let allowed = [
        "cuGraphLaunch",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuEventQuery",
        "cuEventRecordWithFlags",
    ];
    let count =
        |name: &str| more.iter().find(|(other, _)| *other == name).map_or(0, |(_, more)| *more);
    assert_eq!(count("cuGraphLaunch"), 15, "{more:?}");
    for (name, _) in &more {
        assert!(allowed.contains(name), "{name} is called in a captured step: {more:?}");
    }
}

/// Devices of one node use each other's memory, also between processes; NCCL joins nodes. With
/// short batches and evaluations, whose steps are not captured.
#[test]
fn processes_on_devices_of_their_own_end_as_threads_do() {
    if !has_devices(4) {
        return;
    }
    let place = Place::new("rows.txt");
    let in_memory = "carried by: peer memory, ";
    let by_node = "carried by: peer memory in nodes, NCCL between, ";
    let nodes = ["--set", "comm.ranks_per_node=2"];
    let merging = ["--set", "comm.deduplicate=node"];
    // Rows move to other ranks at once.
    let moving = [nodes, merging, ["--set", "hybrid.repartition_drift=1e-6"]].concat();
    for (settings, carried) in [(&[][..], in_memory), (&nodes, by_node), (&moving, by_node)] {
        let train = on_cuda(place.train(), "captured").path("--valid", &place.valid);
        let train = train.with(&["--steps", "16", "--hybrid", "rows=50", "--eval-every", "8"]);
        let train = train.with(settings);
        let threads = train.clone().with(&["--ranks", "4"]).succeeds().digest();
        let planned = train.clone().with(&["--dry-run"]).launched(4).succeeds().stdout;
        assert!(planned.contains(carried), "{settings:?}: {planned}");
        assert_eq!(train.launched(4).succeeds().digest(), threads, "{settings:?}");
    }
}

/// A short batch of an evaluation ends with the sample that has most ids: what makes it full has
/// none.
#[test]
fn a_captured_evaluation_of_bags_of_many_lengths_takes_a_short_batch() {
    if is_absent() {
        return;
    }
    let place = Place::new("rows.txt");
    let rows = |count: usize| {
        (0..count).fold("label,film,genres\n".to_owned(), |text, row| {
            let most = if row % 50 == 49 { 7 } else { 1 + row % 3 };
            let genres: Vec<String> = (0..most).map(|at| ((row + at) % 40).to_string()).collect();
            format!("{text}{},{},\"{}\"\n", row % 2, row % 30, genres.join("|"))
        })
    };
    let (data, valid) = (place.path("films.csv"), place.path("valid.csv"));
    std::fs::write(&data, rows(120)).unwrap();
    std::fs::write(&valid, rows(100)).unwrap();
    let train = place.train_without_data().path("--data", &data).path("--valid", &valid);
    let train = [
        "data.columns.label=\"label\"",
        "data.columns.categorical=[\"film\",\"genres\"]",
        "data.columns.lists=[\"genres\"]",
        "tables.max_ids_per_sample=3",
        "train.batch_size=60",
        "eval.batch_size=4096",
    ]
    .into_iter()
    .fold(train, |train, setting| train.with(&["--set", setting]));
    let train = train.with(&["--set", "train.epochs=2", "--set", "eval.every=2"]);
    let outcome = |schedule| {
        let log = place.path(schedule);
        let digest = on_cuda(train.clone(), schedule).path("--log-json", &log).succeeds().digest();
        let evaluation = last_event(&log, "eval");
        (digest, evaluation["auc"].clone(), evaluation["logloss"].clone())
    };
    let captured = outcome("captured");
    assert!(captured.2.is_number(), "{captured:?}");
    assert_eq!(captured, outcome("serial"));
}

/// The table of a captured step comes from events in the graph.
#[test]
fn a_captured_step_in_bf16_can_be_timed_drawn_and_evaluated() {
    if is_absent() {
        return;
    }
    let place = Place::new("rows.txt");
    let picture = place.path("step.svg");
    let run =
        on_cuda(place.train(), "captured").with(&["--steps", "8", "--time", "--precision", "bf16"]);
    let checkpoints = place.path("checkpoints");
    let ended = run.path("--trace", &picture).path("--checkpoint-dir", &checkpoints).succeeds();
    for stage in ["route", "top_backward", "dense_optimizer", "fetch_losses"] {
        assert!(
            ended.stdout.contains(stage) || ended.stderr.contains(stage),
            "{stage} is not in the table"
        );
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("<title>interaction_forward"), "{picture}");
    // What was trained in bf16 is f32 weights, which the processor applies.
    Run::new("eval").path("--checkpoint", &checkpoints).path("--data", &place.valid).succeeds();
}

/// What a process has opened is looked at in `cuda_no_allocation.rs`.
#[test]
fn the_program_does_not_name_the_cuda_runtime_library() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_headlong")).unwrap();
    let needle = b"libcudart.so";
    assert!(
        !program.windows(needle.len()).any(|window| window == needle),
        "the program names libcudart"
    );
}

#[test]
fn processes_whose_devices_exchange_by_nccl_train_as_threads_do() {
    // Two processes on one GPU are refused by NCCL; two software devices are two devices.
    if !has_software_devices(1) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trained = |name: &str, run: Run| {
        let run = run.variable("SOFTCUDA_DEVICES", "2");
        let run = on_cuda(
            run.with(&["--preset", "tiny", "--transport", "nccl", "--steps", "4"]),
            "captured",
        );
        let run =
            run.with(&["--hybrid", "rows=100", "--batch-size", "32", "--set", "eval.every=0"]);
        let run = run.with(&[
            "--set",
            "synthetic.train_rows=256",
            "--set",
            "synthetic.valid_rows=64",
            "--output-dir",
        ]);
        run.with(&[folder.path().join(name).to_str().unwrap()]).succeeds().digest()
    };
    let threads = trained("threads", Run::new("train").with(&["--ranks", "2"]));
    let processes = trained("processes", Run::new("launch").with(&["-n", "2", "--", "train"]));
    assert_eq!(threads, processes);
}

/// The metrics of an evaluation that training waits for, on devices of their own and on those of
/// ranks that train, which never notice.
#[test]
fn ranks_that_evaluate_on_devices_find_the_metrics_of_a_stopped_evaluation() {
    if is_absent() {
        return;
    }
    let place = Place::new("rows.txt");
    let train = on_cuda(place.train(), "captured").path("--valid", &place.valid);
    let train = train.with(&["--eval-every", "10", "--steps", "20"]);
    let outcome = |name: &str, run: Run| {
        let log = place.path(name);
        let digest = run.path("--log-json", &log).succeeds().digest();
        let evaluations = events(&log).into_iter().filter(|event| event["event"] == "eval");
        let metrics = evaluations.map(|event| (event["step"].clone(), event["auc"].clone()));
        (digest, metrics.collect::<Vec<_>>())
    };
    for (ranks, needed) in [("1", 1), ("2", 3)] {
        if !has_devices(needed) {
            continue;
        }
        let train = train
            .clone()
            .with(&["--ranks", ranks])
            .variable("SOFTCUDA_DEVICES", &needed.to_string());
        let stopped = train.clone().with(&["--set", "eval.asynchronous=false"]);
        let expected = outcome(&format!("stopped-{ranks}"), stopped);
        assert_eq!(expected.1.len(), 2, "{expected:?}");
        let on_ranks = train.with(&["--eval-ranks", "1"]);
        assert_eq!(outcome(&format!("on_ranks-{ranks}"), on_ranks), expected, "{ranks} ranks");
    }
}

/// Processes that evaluate have devices of their own behind those that train.
#[test]
fn processes_that_evaluate_find_the_metrics_of_a_stopped_evaluation() {
    if is_absent() {
        return;
    }
    let place = Place::new("rows.txt");
    let train = on_cuda(place.train(), "captured").path("--valid", &place.valid);
    let train = train.with(&["--steps", "24", "--eval-every", "12"]);
    let outcome = |name: String, run: Run, processes| {
        let log = place.path(&name);
        let digest = run.path("--log-json", &log).launched(processes).succeeds().digest();
        let evaluations = events(&log).into_iter().filter(|event| event["event"] == "eval");
        let metrics = evaluations.map(|event| (event["step"].clone(), event["auc"].clone()));
        (digest, metrics.collect::<Vec<_>>())
    };
    for (ranks, count) in [(1, 1), (2, 1), (1, 2)] {
        if !has_devices(ranks + count) {
            continue;
        }
        let stopped = train.clone().with(&["--set", "eval.asynchronous=false"]);
        let expected = outcome(format!("stopped-{ranks}-{count}"), stopped, ranks);
        assert_eq!(expected.1.len(), 2, "{expected:?}");
        let apart = train.clone().with(&["--eval-processes", &count.to_string()]);
        let found = outcome(format!("apart-{ranks}-{count}"), apart, ranks + count);
        assert_eq!(found, expected, "{count} evaluate for {ranks}");
    }
}

/// What is measured between devices is found again: by what carries, and on which device.
#[test]
fn costs_that_were_measured_between_devices_are_used() {
    if is_absent() || !has_devices(2) {
        return;
    }
    let place = Place::new("rows.txt");
    let file = place.path("tuning.json");
    let tune = Run::new("bench").with(&["tune", "--device", "cuda", "--seconds-per-size", "0.01"]);
    let tune = tune.with(&["-b", "1K", "-e", "4K"]);
    tune.clone().path("--output", &file).succeeds();
    let text = std::fs::read_to_string(&file).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    let name = device().unwrap().to_string();
    let all = written["measurements"].as_array().unwrap();
    assert!(all.iter().all(|known| name.contains(known["device"].as_str().unwrap())), "{text}");
    for (operation, backend) in
        ["all_reduce", "all_to_all"].into_iter().flat_map(|of| [(of, "peer"), (of, "nccl")])
    {
        let ways = all.iter().filter(|one| one["operation"] == operation);
        assert_eq!(ways.filter(|one| one["backend"] == backend).count(), 1, "{text}");
    }
    // What a run counts of its data is what its plan divides by costs.
    let settings = ["--device", "cuda", "--ranks", "2", "--set", "comm.tuning="];
    let plan = |file: &Path, transport: &str| {
        let mut settings = settings.map(str::to_owned);
        settings[5] += &format!("{:?}", file.to_str().unwrap());
        let plan = place.train().of_command("plan").with(&settings.each_ref().map(|word| &**word));
        plan.with(&["--transport", transport]).succeeds().stdout
    };
    for (transport, carrier) in [("auto", "peer"), ("nccl", "nccl")] {
        let said = plan(&file, transport);
        let expected = format!("costs of exchanges over {carrier}: measured, {}", file.display());
        assert!(said.contains(&expected), "{said}");
    }
    let other = place.path("other.json");
    let renamed = text.replace("\"device\": \"", "\"device\": \"not ");
    assert_ne!(renamed, text);
    std::fs::write(&other, renamed).unwrap();
    let said = plan(&other, "auto");
    assert!(said.contains("assumed, because") && said.contains("over peer on "), "{said}");
    tune.clone().with(&["--backend", "tcp"]).fails(2, &["--backend tcp with --device cuda"]);
    tune.with(&["--ranks-per-node", "1"]).fails(2, &["--ranks-per-node"]);
}

/// A device that cannot hold the model twice: said before any is built.
#[test]
fn ranks_that_evaluate_do_not_fit_where_the_model_fits_once() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    let run = on_cuda(place.train(), "serial").path("--valid", &place.valid);
    let run = run.with(&["--set", "tables.rows=60000", "--steps", "1"]);
    let run = run.variable("SOFTCUDA_MEMORY_MIB", "768");
    run.clone().with(&["--eval-ranks", "1"]).variable("SOFTCUDA_DEVICES", "2").succeeds();
    run.with(&["--eval-ranks", "1"]).variable("SOFTCUDA_DEVICES", "1").fails(2, &["--eval-ranks"]);
}

#[test]
fn tables_are_measured_on_the_device() {
    if is_absent() {
        return;
    }
    for optimizer in ["rowwise_adagrad", "lazy_adam"] {
        let tables = [
            "embedding",
            "--tables",
            "2",
            "--rows",
            "1000",
            "--dim",
            "16",
            "--ids",
            "64",
            "--bag",
            "2",
        ];
        let bench =
            Run::new("bench").with(&tables).with(&["--seconds", "0", "--optimizer", optimizer]);
        let said = bench.with(&["--device", "cuda", "--json"]).succeeds().stdout;
        let found: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(found["device"], "cuda", "{said}");
        assert!(found["step_us"].as_f64() > Some(0.0), "{said}");
    }
}
