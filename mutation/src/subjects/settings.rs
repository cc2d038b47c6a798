//! Text that people write, and frames that peers send.

use super::read::{data, described, samples, take_files, write};
use super::{Files, Subject, damage_text, one, refused, texts};
use crate::entries::rendezvous_frame;
use crate::mutate;
use headlong::plan::cluster;
use headlong::plan::{Facts, Plan};
use headlong::system::machine::Machine;
use headlong::{Config, Registry};
use headlong_comm::tuning::Tuning;
use headlong_reader::DenseTransform;
use headlong_reader::formats::Format;
use headlong_reader::formats::split::SplitSink;
use headlong_reader::samples::{DenseKind, Hotness};

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

/// What unauthenticated hosts and peers send while a job comes together, in memory.
pub const FRAMES: Subject = Subject {
    name: "frames",
    bound_mib: 16,
    good: |_| {
        let all = [
            &include_bytes!("../../../fuzz/seeds/rendezvous_frame/claim")[..],
            include_bytes!("../../../fuzz/seeds/rendezvous_frame/control"),
            include_bytes!("../../../fuzz/seeds/rendezvous_frame/hello"),
            include_bytes!("../../../fuzz/seeds/rendezvous_frame/verdict"),
        ];
        Ok(all.map(|bytes| vec![("frame".to_owned(), bytes.to_vec())]).to_vec())
    },
    damage: |good, random| {
        let mut files = one(good, random);
        let bytes = &mut files[0].1;
        match random.below(3) {
            0 => mutate::text(bytes, &texts(good), random),
            _ => mutate::bytes(bytes, random),
        }
        files
    },
    on_disk: false,
    read: |_, files| {
        rendezvous_frame(&files[0].1);
        Ok(())
    },
};

fn text_of(files: &Files) -> Result<&str, String> {
    std::str::from_utf8(&files[0].1).map_err(refused)
}
