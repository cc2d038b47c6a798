use super::*;
use crate::arithmetic::Arithmetic;
use crate::preset::{self, preset};

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

fn plan_of(name: &str, available_bytes: u64, data_rows: Option<u64>) -> (Config, Plan) {
    let config = preset(name).unwrap();
    let rows = config.table_rows(None).unwrap();
    let facts = Facts {
        table_rows: &rows,
        data_rows,
        machine: &machine(available_bytes),
        split: None,
        registry: &Registry::default(),
    };
    let plan = Plan::new(&config, &facts);
    (config, plan)
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
    assert!((plan.memory.table_weight_bytes as f64 / GIB as f64 - 2.01).abs() < 0.005);
}

#[test]
fn published_numbers_of_mlperf_v1() {
    let (_, plan) = plan_of("criteo-terabyte-dlrm", 640 * GIB, None);
    assert_eq!(plan.dense_parameters, 2_368_897);
    assert_eq!(plan.top_input_width, 479);
    assert!((plan.memory.table_weight_bytes as f64 / GIB as f64 - 89.53).abs() < 0.01);
}

#[test]
fn published_numbers_of_mlperf_v2() {
    let (config, plan) = plan_of("criteo-terabyte-dcnv2", 640 * GIB, None);
    assert_eq!(plan.dense_parameters, 171_392 + 10_627_200 + 5_245_953);
    assert_eq!(plan.top_input_width, 27 * 128);
    assert_eq!(plan.embedding_parameters, 204_184_588 * 128);
    assert!((plan.memory.table_weight_bytes as f64 / GIB as f64 - 97.36).abs() < 0.01);
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
        let plan = Plan::new(
            &config,
            &Facts {
                table_rows: &rows,
                data_rows: None,
                machine: &machine(GIB),
                split: None,
                registry: &Registry::default(),
            },
        );
        assert_eq!(plan.memory.table_state_bytes, 26_000 * 4 * state, "{name}");
        assert_eq!(plan.tables[3].bytes, plan.tables[3].weight_bytes + plan.tables[3].state_bytes);
    }
}

#[test]
fn the_total_is_the_sum_of_its_parts() {
    let (_, plan) = plan_of("tiny", GIB, None);
    let tables: u64 = plan.tables.iter().map(|table| table.bytes).sum();
    assert_eq!(tables, plan.memory.table_weight_bytes + plan.memory.table_state_bytes);
    assert_eq!(plan.bytes_per_rank, plan.memory.total());
}

#[test]
fn multi_hot_draws_that_do_not_fit_are_refused_with_a_bound_that_fits() {
    let name = "criteo-terabyte-dcnv2";
    let (config, plan) = plan_of(name, 1024 * GIB, None);
    let available = plan.memory.total() - 10 * GIB;
    let (_, plan) = plan_of(name, available, None);
    let message = plan.check(&config, &Registry::default()).unwrap_err().to_string();
    let bound = message.split("multi_hot.memory_mib=").nth(1).and_then(|rest| rest.split(')').next());
    let mut bounded = config;
    bounded.multi_hot.memory_mib = bound.unwrap_or_else(|| panic!("{message}")).parse().unwrap();
    let rows = bounded.table_rows(None).unwrap();
    let machine = machine(available);
    let plan = Plan::new(
        &bounded,
        &Facts {
            table_rows: &rows,
            data_rows: None,
            machine: &machine,
            split: None,
            registry: &Registry::default(),
        },
    );
    plan.check(&bounded, &Registry::default()).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_with_a_cap_that_fits() {
    let (mut config, plan) = plan_of("criteo-terabyte-dlrm", 8 * GIB, None);
    assert!(!plan.fits);
    let error = plan.check(&config, &Registry::default()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    let cap = message.split("tables.max_rows=").nth(1).and_then(|rest| rest.strip_suffix(')')).unwrap();
    config.set_all(&[format!("tables.max_rows={cap}")]).unwrap();
    let rows = config.table_rows(None).unwrap();
    let machine = machine(8 * GIB);
    let plan = Plan::new(
        &config,
        &Facts {
            table_rows: &rows,
            data_rows: None,
            machine: &machine,
            split: None,
            registry: &Registry::default(),
        },
    );
    plan.check(&config, &Registry::default()).unwrap();
    // The cap is not needlessly small.
    assert!(plan.bytes_per_rank > 7 * GIB, "{message}");
}

#[test]
fn a_batch_that_does_not_fit_names_the_batch() {
    let (mut config, _) = plan_of("tiny", GIB, None);
    config.train.batch_size = 10_000_000;
    let facts = Facts {
        table_rows: &[2; 26],
        data_rows: None,
        machine: &machine(GIB),
        split: None,
        registry: &Registry::default(),
    };
    let message = Plan::new(&config, &facts).check(&config, &Registry::default()).unwrap_err().to_string();
    assert!(message.contains("train.batch_size"), "{message}");
}

#[test]
fn the_control_group_counts() {
    let (config, _) = plan_of("criteo-kaggle", 64 * GIB, None);
    let rows = config.table_rows(None).unwrap();
    let limited = Machine { cgroup_available_bytes: Some(GIB), ..machine(64 * GIB) };
    let plan = Plan::new(
        &config,
        &Facts {
            table_rows: &rows,
            data_rows: None,
            machine: &limited,
            split: None,
            registry: &Registry::default(),
        },
    );
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
    assert_eq!(top_input_width(&cat), 6);
}

#[test]
fn the_last_batch_and_the_nearest_divisor() {
    let (_, plan) = plan_of("criteo-kaggle", 64 * GIB, Some(1000));
    let division = plan.division.unwrap();
    assert_eq!((division.steps_per_epoch, division.last_step_samples), (8, 1000 - 7 * 128));
    assert_eq!((division.nearest_dividing_batch_size, division.samples_lost), (125, 0));
    assert_eq!(nearest_divisor(1024, 128), 128);
    assert_eq!(nearest_divisor(97, 50), 97);
    assert_eq!(nearest_divisor(97, 40), 1);
    assert_eq!(
        nearest_divisor(45_840_617, 2048) * (45_840_617 / nearest_divisor(45_840_617, 2048)),
        45_840_617
    );
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
fn two_figures() {
    assert_eq!([1, 99, 101, 123_456, 999].map(round_down), [2, 99, 100, 120_000, 990]);
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
    let facts =
        Facts { table_rows: &rows, data_rows: None, machine: &machine, split: None, registry: &registry };
    let plan = Plan::new(&config, &facts);
    let staged = 4 * 16 * samples_per_step(&config).max(config.eval.batch_size as u64);
    let table = &plan.tables[2];
    assert_eq!((table.rows, table.weight_bytes), (2_000_000_000, 40_000));
    assert_eq!((table.state_bytes, table.bytes), (20_000 + 5_536 + staged, 65_536 + staged));
    let others: u64 = rows.iter().sum::<u64>() - 2_000_000_000;
    assert_eq!(plan.embedding_parameters, others * 16 + 10_000);
    assert_eq!(plan.memory.table_weight_bytes, others * 64 + 40_000);
    assert!(plan.fits);
    plan.check(&config, &registry).unwrap();
    // Dense, it would not fit, and its rows are the ones to lower.
    config.table[0].kind = Some("dense".to_owned());
    let plan = Plan::new(&config, &facts);
    assert!(!plan.fits && plan.check(&config, &registry).is_err());
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
