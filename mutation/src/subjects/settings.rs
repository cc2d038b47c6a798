//! Text that people write.

use super::read::{data, described, samples, take_files, write};
use super::{Files, Subject, as_it_is, damage_text, named, refused};
use headlong::commands::tune::space::Space;
use headlong::plan::cluster;
use headlong::plan::{Facts, Plan};
use headlong::system::machine::Machine;
use headlong::{Config, Registry};
use headlong_comm::tuning::Tuning;
use headlong_reader::DenseTransform;
use headlong_reader::formats::Format;
use headlong_reader::formats::split::{FeatureSpec, SplitSink};
use headlong_reader::samples::{DenseKind, Hotness};
use std::path::Path;

pub const SPECIFICATION: Subject = Subject {
    name: "specification",
    bound_mib: 16,
    good: |folder| {
        let hotness = [Hotness::Fixed(1), Hotness::Fixed(1)];
        let (schema, samples) =
            samples(DenseKind::Transformed(DenseTransform::LnPlus1), &hotness, 8);
        let sink = SplitSink::create(&folder.join("train"), &schema, &[100, 70_000])?;
        write(Box::new(sink), &samples)?;
        let mut files = take_files(folder)?;
        // What is damaged comes first.
        files.sort_by_key(|(name, _)| !name.ends_with(".yaml"));
        Ok(vec![files])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: true,
    read: |folder, _| data(&folder.join("train"), Some(Format::Split), &described(false)),
};

/// The machine of a plan: the same everywhere, with room for every preset.
const MACHINE: Machine = Machine {
    cores: 2,
    available_bytes: 1 << 40,
    cgroup_available_bytes: None,
    core_flops: 1e11,
    memory_bytes_per_s: 1e10,
    device: None,
};

pub const CONFIGURATION: Subject = Subject {
    name: "configuration",
    bound_mib: 64,
    good: |_| {
        let all = [
            include_str!("../../../configs/tiny.toml"),
            include_str!("../../../configs/criteo-sample.toml"),
            include_str!("../../../configs/criteo-hashed.toml"),
            include_str!("../../../configs/criteo-kaggle.toml"),
            include_str!("../../../configs/criteo-terabyte-dcnv2.toml"),
        ];
        Ok(all.map(|text| vec![("config.toml".to_owned(), text.as_bytes().to_vec())]).to_vec())
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let text = text_of(files)?;
        let registry = Registry::default();
        let mut config = Config::from_toml(text, "config.toml").map_err(refused)?;
        config.validate_with(&registry).map_err(refused)?;
        // What is believed is planned, where no dictionary decides.
        let Ok(rows) = config.table_rows(None) else { return Ok(()) };
        let facts = Facts::new(&rows, &MACHINE, &registry);
        let plan = Plan::new(&config, &facts);
        plan.to_text();
        plan.check(&config, &facts).map_err(refused)
    },
};

pub const CLUSTER: Subject = Subject {
    name: "cluster",
    // A key of dots takes the TOML reader a hundred times its bytes.
    bound_mib: 64,
    good: |_| {
        let all = [
            include_str!("../../../configs/clusters/dgx-h100.toml"),
            include_str!("../../../configs/clusters/gb200-nvl72.toml"),
            include_str!("../../../configs/clusters/laptop.toml"),
        ];
        Ok(all.map(|text| vec![("cluster.toml".to_owned(), text.as_bytes().to_vec())]).to_vec())
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: true,
    read: |folder, files| {
        let path = folder.join(&files[0].0);
        let cluster = cluster::find(path).map_err(refused)?;
        let _ = (cluster.memory_bytes(), cluster.costs());
        Ok(())
    },
};

pub const TUNING: Subject = Subject {
    name: "tuning",
    bound_mib: 16,
    good: |_| {
        let measured = |algorithm: &str, points: &str| {
            format!(
                "{{\"operation\": \"all_reduce\", \"backend\": \"shm\", \"algorithm\": \
                 \"{algorithm}\",\n\
                 \"nodes\": 1, \"ranks\": 4,\n\
                 \"points\": {points}}}"
            )
        };
        let text = format!(
            "{{\"format\": 1,\n\"about\": \"made up\",\n\"measurements\": [\n{},\n{}\n]}}\n",
            measured("direct", "[[1024, 4.0],\n[1048576, 900.0]]"),
            measured("two_steps", "[[1024, 8.0],\n[1048576, 400.0]]"),
        );
        Ok(vec![vec![("tuning.json".to_owned(), text.into_bytes())]])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let tuning = Tuning::read(text_of(files)?).map_err(refused)?;
        for bytes in [0, 1, 4096, u64::MAX] {
            tuning.fastest("all_reduce", bytes, 1, 4);
        }
        tuning.algorithms("all_reduce", "shm", 1, 3);
        Tuning::read(&tuning.write()).map(drop).map_err(refused)
    },
};

/// The text of a specification by itself, in memory.
pub const FEATURES: Subject = Subject {
    name: "features",
    bound_mib: 16,
    good: |_| {
        let text = include_bytes!("../../../fuzz/seeds/features/two.yaml");
        Ok(vec![vec![("feature_spec.yaml".to_owned(), text.to_vec())]])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let path = Path::new(&files[0].0);
        let spec = named(FeatureSpec::parse(path, text_of(files)?), &files[0].0);
        let spec = spec.map_err(refused)?;
        for path in spec.source_spec.values().flatten().flat_map(|chunk| &chunk.files) {
            assert!(!Path::new(path).is_absolute() && !path.split('/').any(|part| part == ".."));
        }
        Ok(())
    },
};

/// Configurations as they are read, without a plan, in memory.
pub const SETTINGS: Subject = Subject {
    name: "settings",
    bound_mib: 64,
    good: |_| {
        let all = [
            "[model]\ndim = 16\nbottom = [32, 16]\ntop = [64, 1]\n[data]\nnum_sparse = 3\n",
            "[train]\nbatch_size = 128\n[optimizer.dense]\nname = \"adagrad\"\n",
            include_str!("../../../configs/criteo-sample.toml"),
        ];
        Ok(all.map(|text| vec![("config.toml".to_owned(), text.as_bytes().to_vec())]).to_vec())
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let config = Config::from_toml(text_of(files)?, "config.toml").map_err(refused)?;
        config.validate().map_err(refused)?;
        let text = config.to_commented_toml();
        let again = Config::from_toml(&text, "again").map_err(refused);
        assert_eq!(again.map(|again| again.to_commented_toml()).as_ref(), Ok(&text));
        Ok(())
    },
};

/// What `headlong tune` may try, in memory.
pub const SPACE: Subject = Subject {
    name: "space",
    bound_mib: 64,
    good: |_| {
        let text = "[train]\nlearning_rate = { log_uniform = [0.001, 0.1] }\n\
                    batch_size = [128, 256]\n\
                    [model]\nbottom = [[16], [32, 16]]\ninteraction = [\"dot\", \"cat\"]\n";
        Ok(vec![vec![("space.toml".to_owned(), text.as_bytes().to_vec())]])
    },
    damage: damage_text,
    seal: as_it_is,
    on_disk: false,
    read: |_, files| {
        let read = |text: &str| Space::from_toml(text, "space.toml").map_err(refused);
        let text = read(text_of(files)?)?.to_toml();
        assert_eq!(read(&text).map(|again| again.to_toml()).as_ref(), Ok(&text));
        Ok(())
    },
};

fn text_of(files: &Files) -> Result<&str, String> {
    std::str::from_utf8(&files[0].1).map_err(refused)
}
