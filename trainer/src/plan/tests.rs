use super::*;
use crate::config::DeviceChoice;
use crate::config::preset::{self, preset};
use crate::iteration::arithmetic::Arithmetic;
use crate::system::machine::DeviceFacts;
use std::sync::LazyLock;

const GIB: u64 = 1 << 30;

fn machine(available_bytes: u64) -> Machine {
    Machine {
        cores: 2,
        available_bytes,
        cgroup_available_bytes: None,
        core_flops: 1e11,
        memory_bytes_per_s: 1e10,
        device: None,
    }
}

/// Nothing is known of data and split, and no kind is registered.
fn facts<'a>(table_rows: &'a [u64], machine: &'a Machine) -> Facts<'a> {
    static KINDS: LazyLock<Registry> = LazyLock::new(Registry::default);
    Facts::new(table_rows, machine, &KINDS)
}

fn plan_of(name: &str, available_bytes: u64, data_rows: Option<u64>) -> (Config, Plan) {
    let config = preset(name).unwrap();
    let (rows, here) = (config.table_rows(None).unwrap(), machine(available_bytes));
    let facts = Facts { data_rows, ..facts(&rows, &here) };
    let plan = Plan::new(&config, &facts);
    (config, plan)
}

/// What is said to what does not fit.
fn refusal(config: &Config, rows: &[u64], available_bytes: u64) -> String {
    let machine = machine(available_bytes);
    let facts = facts(rows, &machine);
    let error = Plan::new(config, &facts).check(config, &facts).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn published_cardinalities() {
    let sum = |rows: &[u64]| rows.iter().sum::<u64>();
    assert_eq!(sum(&preset::KAGGLE_CARDINALITIES), 33_762_577);
    assert_eq!(sum(&preset::TERABYTE_40M_CARDINALITIES), 187_767_399);
    assert_eq!(sum(&preset::TERABYTE_CARDINALITIES), 882_774_559);
    let capped: Vec<u64> =
        preset::TERABYTE_CARDINALITIES.iter().map(|rows| (*rows).min(40_000_000)).collect();
    assert_eq!(sum(&capped), 204_184_588);
}

#[test]
fn published_numbers_of_kaggle() {
    let (_, plan) = plan_of("criteo-kaggle", 64 * GIB, None);
    assert_eq!(plan.dense_parameters, 475_985);
    assert_eq!(plan.embedding_parameters, 540_201_232);
    assert_eq!(plan.top_input_width, 367);
    assert_eq!(plan.memory.table_weight_bytes, 33_762_577 * 64);
    assert_eq!(plan.memory.table_state_bytes, 0);
    // Published: 2.01 GiB.
    assert!((plan.memory.table_weight_bytes.as_f64() / GIB as f64 - 2.01).abs() < 0.005);
}

#[test]
fn published_numbers_of_mlperf_v1() {
    let (_, plan) = plan_of("criteo-terabyte-dlrm", 640 * GIB, None);
    assert_eq!(plan.dense_parameters, 2_368_897);
    assert_eq!(plan.top_input_width, 479);
    assert!((plan.memory.table_weight_bytes.as_f64() / GIB as f64 - 89.53).abs() < 0.01);
}

#[test]
fn published_numbers_of_mlperf_v2() {
    let (config, plan) = plan_of("criteo-terabyte-dcnv2", 640 * GIB, None);
    assert_eq!(plan.dense_parameters, 171_392 + 10_627_200 + 5_245_953);
    assert_eq!(plan.top_input_width, 27 * 128);
    assert_eq!(plan.embedding_parameters, 204_184_588 * 128);
    assert!((plan.memory.table_weight_bytes.as_f64() / GIB as f64 - 97.36).abs() < 0.01);
    assert_eq!(plan.memory.table_state_bytes, plan.memory.table_weight_bytes);
    // About 96.2 MFLOP a sample.
    let flops = Arithmetic::of(&config).training_flop() as f64;
    assert!((flops / 96.2e6 - 1.0).abs() < 0.005, "{flops}");
}

#[test]
fn optimiser_state_is_counted() {
    let rows = vec![1000; 26];
    let mut config = preset("tiny").unwrap();
    for (name, state) in
        [("sgd", 0), ("adagrad", 16), ("rowwise_adagrad", 1), ("lazy_adam", 32), ("ftrl", 32)]
    {
        config.set_all(&[format!("optimizer.sparse.name={name}")]).unwrap();
        let plan = Plan::new(&config, &facts(&rows, &machine(GIB)));
        assert_eq!(plan.memory.table_state_bytes, 26_000 * 4 * state, "{name}");
        assert_eq!(plan.tables[3].bytes, plan.tables[3].weight_bytes + plan.tables[3].state_bytes);
    }
}

#[test]
fn the_total_is_the_sum_of_its_parts() {
    let (_, plan) = plan_of("tiny", GIB, None);
    let tables: Count = plan.tables.iter().map(|table| table.bytes).sum();
    assert_eq!(tables, plan.memory.table_weight_bytes + plan.memory.table_state_bytes);
    assert_eq!(plan.bytes_per_rank, plan.memory.total());
}

#[test]
fn multi_hot_draws_that_do_not_fit_are_refused_with_a_bound_that_fits() {
    let name = "criteo-terabyte-dcnv2";
    let (config, plan) = plan_of(name, 1024 * GIB, None);
    let available = (plan.memory.total() - 10 * GIB).get();
    let message = refusal(&config, &config.table_rows(None).unwrap(), available);
    let bound =
        message.split("multi_hot.memory_mib=").nth(1).and_then(|rest| rest.split(')').next());
    let mut bounded = config;
    bounded.multi_hot.memory_mib = bound.unwrap_or_else(|| panic!("{message}")).parse().unwrap();
    let rows = bounded.table_rows(None).unwrap();
    let machine = machine(available);
    let facts = facts(&rows, &machine);
    Plan::new(&bounded, &facts).check(&bounded, &facts).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_with_a_cap_that_fits() {
    let (mut config, plan) = plan_of("criteo-terabyte-dlrm", 8 * GIB, None);
    assert!(!plan.fits);
    let message = refusal(&config, &config.table_rows(None).unwrap(), 8 * GIB);
    let cap =
        message.split("tables.max_rows=").nth(1).and_then(|rest| rest.strip_suffix(')')).unwrap();
    config.set_all(&[format!("tables.max_rows={cap}")]).unwrap();
    let rows = config.table_rows(None).unwrap();
    let machine = machine(8 * GIB);
    let facts = facts(&rows, &machine);
    let plan = Plan::new(&config, &facts);
    plan.check(&config, &facts).unwrap();
    // The cap is not needlessly small.
    assert!(plan.bytes_per_rank > 7 * GIB, "{message}");
}

#[test]
fn a_batch_that_does_not_fit_names_the_batch() {
    let (mut config, _) = plan_of("tiny", GIB, None);
    config.train.batch_size = 10_000_000;
    let message = refusal(&config, &[2; 26], GIB);
    assert!(message.contains("train.batch_size"), "{message}");
}

#[test]
fn the_control_group_counts() {
    let (config, _) = plan_of("criteo-kaggle", 64 * GIB, None);
    let rows = config.table_rows(None).unwrap();
    let limited = Machine { cgroup_available_bytes: Some(GIB), ..machine(64 * GIB) };
    let plan = Plan::new(&config, &facts(&rows, &limited));
    assert_eq!((plan.available_bytes, plan.fits), (GIB, false));
}

#[test]
fn flops_by_hand() {
    // 3 dense inputs; bottom 3-2; two tables of dim 2, so three vectors and 3 products; top 5-1.
    let text = "[model]\ndim = 2\nbottom = [2]\ntop = [1]\n[data]\nnum_dense = 3\nnum_sparse = 2\n";
    let config = Config::from_toml(text, "test").unwrap();
    let (products, interaction, first) = (3 * 2 + 5, 3 * 2, 3 * 2);
    assert_eq!(Arithmetic::of(&config).training_flop(), 2 * (3 * (products + interaction) - first));
    assert_eq!(dense_parameters(&config), 3 * 2 + 2 + 5 + 1);
    let mut cat = config;
    cat.model.interaction = Interaction::Cat;
    assert_eq!(cat.top_input_width(), 6);
}

#[test]
fn json_has_the_promised_keys() {
    let (_, plan) = plan_of("tiny", GIB, Some(400_000));
    let json = serde_json::to_value(&plan).unwrap();
    for key in ["name", "rows", "dim", "frequent_rows", "covered_share", "bytes"] {
        assert!(json["tables"][0].get(key).is_some(), "{key}");
    }
    for key in ["bytes_per_rank", "predicted_step_us", "flops_per_step", "division"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    for distance in ["intra_node", "inter_node"] {
        for direction in ["forward", "backward"] {
            assert!(json["exchange_bytes_per_step"][distance][direction].is_u64());
        }
    }
}

#[test]
fn sizes_that_are_too_large_do_not_wrap() {
    for settings in [
        &["tables.rows=4294967296", "model.dim=2048", "model.bottom=[64,2048]"][..],
        &["train.batch_size=1073741824"],
        &["eval.batch_size=1073741824"],
        &["model.bottom=[1048576,1048576,16]"],
        &["data.prefetch_batches=65536", "train.batch_size=1048576"],
        &["tables.max_ids_per_sample=1048576", "train.batch_size=4095", "eval.batch_size=4095"],
        &["model.interaction=cross", "model.cross_layers=1000", "model.cross_rank=1048576"],
        &["data.order=samples", "data.order_window=1099511627776"],
    ] {
        let mut config = preset("tiny").unwrap();
        config.set_all(settings).unwrap();
        config.validate().unwrap();
        let message = refusal(&config, &config.table_rows(None).unwrap(), 64 * GIB);
        let key = settings[0].split_once('=').unwrap().0;
        assert!(message.contains("lower") || message.contains("would fit"), "{key}: {message}");
    }
    // More than 64 bits hold.
    let mut config = preset("tiny").unwrap();
    config.data.num_sparse = 4096;
    config.model.dim = 2048;
    let rows = vec![1 << 44; 4096];
    let here = machine(u64::MAX);
    let plan = Plan::new(&config, &facts(&rows, &here));
    assert!(!plan.fits && plan.bytes_per_rank == u64::MAX, "{:?}", plan.bytes_per_rank);
    assert!(refusal(&config, &rows, u64::MAX).contains("more than 2^64 bytes"));
}

#[test]
fn the_setting_that_takes_most_is_named() {
    for (settings, named) in [
        (&["run.threads=4096"][..], "`run.threads` = "),
        (&["eval.batch_size=16777216"], "`eval.batch_size` = "),
        (&["data.prefetch_batches=65536", "train.batch_size=512"], "`data.prefetch_batches` = "),
        (&["tables.rows=90000000"], "`tables.max_rows` = "),
        (&["train.accumulate=1000", "train.batch_size=65536"], "`train."),
        (&["model.interaction=cross", "model.cross_rank=1000000"], "`model.cross_rank` = "),
        (
            &["train.batch_size=8000000", "tables.rows=90000000"],
            "no single setting is enough: lower `tables.max_rows` and `train.",
        ),
    ] {
        let mut config = preset("tiny").unwrap();
        config.set_all(settings).unwrap();
        config.validate().unwrap();
        let message = refusal(&config, &config.table_rows(None).unwrap(), 3 * GIB);
        assert!(message.contains(named), "{settings:?}: {message}");
        let Some(set) = message.split("--set ").nth(1).and_then(|rest| rest.strip_suffix(')'))
        else {
            continue;
        };
        config.set_all(&[set]).unwrap();
        let (rows, here) = (config.table_rows(None).unwrap(), machine(3 * GIB));
        assert!(Plan::new(&config, &facts(&rows, &here)).fits, "{message}");
    }
}

#[test]
fn ranks_share_tables_and_batches() {
    let mut config = preset("criteo-kaggle").unwrap();
    let rows = config.table_rows(None).unwrap();
    let here = machine(64 * GIB);
    let alone = Plan::new(&config, &facts(&rows, &here));
    config.run.ranks = 8;
    let threads = Plan::new(&config, &facts(&rows, &here));
    let weights = |plan: &Plan| plan.memory.table_weight_bytes;
    assert_eq!(weights(&threads) * 8_u64, weights(&alone));
    assert_eq!(threads.memory.other_bytes * 8_u64, alone.memory.other_bytes);
    // A process shares nothing with others.
    let processes = Facts { separate: true, ..facts(&rows, &here) };
    let processes = Plan::new(&config, &processes);
    let network = processes.network.expect("there are several ranks").bytes_of_rank_0 as u64;
    assert_eq!(processes.memory.other_bytes, alone.memory.other_bytes + Count::from(network));
    // Of ranks on two machines each has half of the job.
    let small = machine((processes.bytes_per_rank * 4_u64).get());
    let halves = Facts { ranks_here: Some(4), separate: true, ..facts(&rows, &small) };
    assert!(Plan::new(&config, &halves).fits);
    assert!(!Plan::new(&config, &Facts { ranks_here: Some(8), ..halves }).fits);
}

/// Two thousand million rows in 64 KiB, as the kind says.
#[test]
fn a_kind_says_what_its_tables_take() {
    let mut registry = Registry::default();
    registry.register("small", SmallKind);
    let mut config = preset("tiny").unwrap();
    let text = "[[table]]\nname = \"C3\"\nkind = \"small\"\nrows = 2_000_000_000\n";
    config.table = Config::from_toml(text, "tables").unwrap().table;
    config.validate_with(&registry).unwrap();
    let rows = config.table_rows(None).unwrap();
    let machine = machine(GIB);
    let facts = Facts::new(&rows, &machine, &registry);
    let plan = Plan::new(&config, &facts);
    let staged = 4 * 16 * config.samples_per_step().get().max(config.eval.batch_size as u64);
    let table = &plan.tables[2];
    assert_eq!(table.rows, 2_000_000_000);
    assert_eq!(table.weight_bytes, 40_000);
    assert_eq!(table.state_bytes, 20_000 + 5_536 + staged);
    assert_eq!(table.bytes, 65_536 + staged);
    let others: u64 = rows.iter().sum::<u64>() - 2_000_000_000;
    assert_eq!(plan.embedding_parameters, others * 16 + 10_000);
    assert_eq!(plan.memory.table_weight_bytes, others * 64 + 40_000);
    assert!(plan.fits);
    plan.check(&config, &facts).unwrap();
    // Dense, it would not fit, and its rows are the ones to lower.
    config.table[0].kind = Some("dense".to_owned());
    let plan = Plan::new(&config, &facts);
    assert!(!plan.fits && plan.check(&config, &facts).is_err());
}

struct SmallKind;

impl headlong_embedding::TableKind for SmallKind {
    fn memory(&self, _: &TableSpec, _: &headlong_device::optimizer::Optimizer) -> MemoryNeeds {
        MemoryNeeds { weight_bytes: 40_000, state_bytes: 20_000, work_bytes: 5_536 }
    }

    fn build(
        &self,
        _: &TableSpec,
        _: &headlong_embedding::TableEnv,
    ) -> headlong_embedding::Result<Box<dyn headlong_embedding::EmbeddingTable>> {
        unreachable!("a plan builds nothing")
    }
}

#[test]
fn kept_data_that_does_not_fit_names_the_cache() {
    let config = preset("tiny").unwrap();
    let (rows, here) = (config.table_rows(None).unwrap(), machine(GIB));
    let facts = Facts { cached_bytes: 2 * GIB, ..facts(&rows, &here) };
    let plan = Plan::new(&config, &facts);
    assert!(plan.memory.reader_bytes > 2 * GIB);
    let message = plan.check(&config, &facts).unwrap_err().to_string();
    assert!(message.contains("--cache-data off"), "{message}");
}

/// Ranks that evaluate are threads of rank 0's process, however the ranks that train are divided.
#[test]
fn ranks_that_evaluate_are_counted_as_one_process() {
    let mut config = preset("criteo-kaggle").unwrap();
    let (rows, here) = (config.table_rows(None).unwrap(), machine(64 * GIB));
    config.run.ranks = 4;
    for (ranks_here, count) in [(4, 1), (1, 3)] {
        let of_job = Facts { ranks_here: Some(ranks_here), separate: true, ..facts(&rows, &here) };
        let mut evaluating = config.clone();
        evaluating.run.eval_ranks = Some(count);
        let plan = Plan::new(&evaluating, &of_job);
        let needed = plan.eval_ranks.unwrap().bytes.get();
        let model = rows.iter().sum::<u64>() * 64;
        assert!(
            (model..model * 5 / 4).contains(&needed),
            "{count} ranks: {needed} bytes for {model}"
        );
        let alone = Plan::new(&config, &of_job);
        assert_eq!((alone.bytes_per_rank, alone.eval_ranks), (plan.bytes_per_rank, None));
        let both = (plan.bytes_per_rank * ranks_here).get() + needed;
        let with = |available_bytes| {
            let judged = Plan { available_bytes, ..plan.clone() };
            judged.check(&evaluating, &of_job)
        };
        assert!(with(both).is_ok());
        let refusal = with(both - 1).unwrap_err().to_string();
        assert!(refusal.contains("drop --eval-ranks"), "{refusal}");
    }
}

#[test]
fn what_changes_nothing_is_not_named() {
    let mut config = preset("tiny").unwrap();
    config.train.batch_size = config.sum_blocks();
    config.eval.batch_size = 1;
    config.data.prefetch_batches = 1;
    config.run.threads = Some(1);
    let rows = vec![2; config.data.num_sparse];
    assert_eq!(
        refusal(&config, &rows, 1000).split("; ").nth(1),
        Some("no setting of this command makes it smaller: take a smaller model")
    );
}

fn machine_with_devices() -> Machine {
    let device = DeviceFacts { name: "a".to_owned(), free_bytes: GIB, count: 8 };
    Machine { device: Some(device), ..machine(GIB) }
}

#[test]
fn what_the_configuration_leaves_open_is_said_with_its_reason() {
    let choices = |settings: &[&str], on_device: bool, facts_of: fn(&mut Facts<'_>)| {
        let mut config = preset("tiny").unwrap();
        config.set_all(settings).unwrap();
        if on_device {
            config.run.device = DeviceChoice::Cuda;
        }
        let here = if on_device { machine_with_devices() } else { machine(GIB) };
        let rows = config.table_rows(None).unwrap();
        let mut facts = facts(&rows, &here);
        facts_of(&mut facts);
        let plan = Plan::new(&config, &facts);
        let choices = plan.choices.iter();
        choices.map(|choice| format!("{} {}", choice.what, choice.chosen)).collect::<Vec<_>>()
    };
    let none = |_: &mut Facts<'_>| {};
    assert!(choices(&[], false, none).is_empty());
    assert_eq!(choices(&[], true, none), ["schedule captured"]);
    let two = &["run.ranks=2", "train.precision=bf16"];
    assert_eq!(choices(two, false, none), ["schedule serial", "vectors bf16", "sums bf16"]);
    let two = &["run.ranks=2", "train.precision=f16"];
    let vectors = "vectors f16, their gradients bf16";
    assert_eq!(choices(two, false, none), ["schedule serial", vectors, "sums bf16"]);
    let (flat, nodes) = (&["run.ranks=8"], &["run.ranks=8", "comm.ranks_per_node=4"]);
    let shared = ["schedule captured", "vectors f32", "sums f32"];
    let of = |rest: [&'static str; 3]| [&shared[..], &rest].concat();
    let exact = "strips as long as what they carry";
    let flat_memory = of(["devices exchange flat", "carried by peer memory", exact]);
    assert_eq!(choices(flat, true, none), flat_memory);
    let processes = |facts: &mut Facts<'_>| {
        (facts.separate, facts.ranks_here) = (true, Some(4));
    };
    let carried = "carried by peer memory in nodes, NCCL between";
    let mixed =
        of(["devices exchange hierarchical", carried, "strips of lengths a sixteenth apart"]);
    assert_eq!(choices(flat, true, processes), mixed);
    assert_eq!(choices(nodes, true, none), mixed);
}

#[test]
fn strips_for_nics_lie_on_the_device_unless_the_host_is_asked_for() {
    let plan = |settings: &[&str]| {
        let mut config = preset("tiny").unwrap();
        config.set_all(&["run.ranks=8", "comm.ranks_per_node=4"]).unwrap();
        config.set_all(settings).unwrap();
        config.run.device = DeviceChoice::Cuda;
        let here = machine_with_devices();
        let rows = config.table_rows(None).unwrap();
        let two_machines = Facts { nodes: 2, ..facts(&rows, &here) };
        Plan::new(&config, &two_machines)
    };
    let exchange = |settings: &[&str]| plan(settings).memory.exchange_bytes.get();
    let nccl = exchange(&[]);
    let gpudirect = exchange(&["run.transport=verbs"]);
    let host = exchange(&["run.transport=verbs", "comm.verbs.gpudirect=off"]);
    assert!(nccl > host);
    assert_eq!(gpudirect - host, 3 * (nccl - host));
}

#[test]
fn queue_pairs_and_what_they_lock_are_counted_where_there_are_nodes() {
    let network = |settings: &[&str]| {
        let mut config = preset("tiny").unwrap();
        config.set_all(settings).unwrap();
        let here = machine(GIB);
        let rows = config.table_rows(None).unwrap();
        let plan = Plan::new(&config, &facts(&rows, &here));
        let network = plan.network.expect("several ranks");
        (network.queue_pairs, network.locked_bytes, plan.to_text())
    };
    let (pairs, _, text) = network(&["run.ranks=4"]);
    assert!(pairs == 0 && !text.contains("queue pairs"), "{text}");
    let (pairs, locked, text) = network(&["run.ranks=8", "comm.ranks_per_node=2"]);
    // Three slots each way, with headers.
    assert_eq!((pairs, locked), (6, 6 * (6 * ((256 << 10) + 64) + 384)));
    assert!(text.contains("up to 6 queue pairs, 9.00 MiB of locked memory"), "{text}");
    let large = network(&["run.ranks=128", "comm.ranks_per_node=8"]);
    assert_eq!(large.0, 15, "those of its rail");
    let odd = network(&["run.ranks=10", "comm.ranks_per_node=4"]);
    assert_eq!(odd.0, 8, "of the last node's two");
    let asked = network(&["run.ranks=4", "run.transport=verbs"]);
    assert!(asked.0 == 3 && asked.2.contains("locked for NICs 4.50 MiB"), "{}", asked.2);
}

#[test]
fn nothing_is_estimated_for_a_device() {
    let config = preset("tiny").unwrap();
    let rows = config.table_rows(None).unwrap();
    let plan = Plan::new(&config, &facts(&rows, &machine_with_devices()));
    assert!(plan.to_text().contains("no estimate for a device here"), "{}", plan.to_text());
    assert!(serde_json::to_value(&plan).unwrap().get("predicted_step_us").is_none());
}
