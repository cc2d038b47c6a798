//! The presets: what was published, and the files of `configs/` that say the same.

use headlong::config::Interaction;
use headlong_device::optimizer::Optimizer;
use std::path::Path;

#[test]
fn every_preset_has_its_file() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Of clusters, the planner's own tests read every one.
        if path.is_dir() {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let from_file = headlong::config::Config::from_file(&path).unwrap();
        assert_eq!(from_file, headlong::config::preset::preset(&name).unwrap(), "{name}");
        from_file.validate().unwrap();
        files += 1;
    }
    assert_eq!(files, headlong::config::preset::PRESETS.len());
}

#[test]
fn presets_say_what_was_published() {
    let preset = |name: &str| headlong::config::preset::preset(name).unwrap();
    let kaggle = preset("criteo-kaggle");
    assert_eq!((kaggle.model.dim, &kaggle.model.bottom[..]), (16, &[512, 256, 64, 16][..]));
    assert_eq!((&kaggle.model.top[..], kaggle.train.batch_size), (&[512, 256, 1][..], 128));
    assert_eq!((kaggle.train.learning_rate, kaggle.optimizer.sparse.name.as_str()), (0.1, "sgd"));
    let terabyte = preset("criteo-terabyte-dlrm");
    assert_eq!((terabyte.model.dim, &terabyte.model.bottom[..]), (128, &[512, 256, 128][..]));
    assert_eq!(terabyte.model.top, [1024, 1024, 512, 256, 1]);
    assert_eq!((terabyte.tables.max_rows, terabyte.train.batch_size), (Some(40_000_000), 55_296));
    let train = &terabyte.train;
    assert_eq!((train.learning_rate, train.warmup_steps, train.decay_power), (24.0, 2750, 2.0));
    assert_eq!((train.decay_start_step, train.decay_steps), (49_315, 27_772));
    let dcn = preset("criteo-terabyte-dcnv2");
    assert_eq!((dcn.model.interaction, dcn.model.cross_layers), (Interaction::Cross, 3));
    assert_eq!(
        (dcn.model.cross_rank, dcn.model.dim, &dcn.model.bottom),
        (512, 128, &terabyte.model.bottom)
    );
    assert_eq!((&dcn.model.top, dcn.tables.max_rows), (&terabyte.model.top, Some(40_000_000)));
    assert_eq!(
        (dcn.train.learning_rate, dcn.train.warmup_steps, dcn.train.decay_steps),
        (0.004, 0, 0)
    );
    let adagrad = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    assert_eq!(dcn.optimizer.sparse.optimizer(), adagrad);
    assert_eq!(dcn.optimizer.dense.optimizer(), adagrad);
    let sample = preset("criteo-sample");
    assert_eq!(
        (&sample.model.bottom[..], &sample.model.top[..]),
        (&[64, 32][..], &[64, 32, 1][..])
    );
    assert_eq!((sample.train.batch_size, sample.data.min_count, sample.train.epochs), (64, 3, 1.0));
    assert_eq!(
        (sample.train.learning_rate, sample.optimizer.dense.name.as_str()),
        (0.01, "adagrad")
    );
}
