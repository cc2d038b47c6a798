//! Which flag of `headlong train` sets which keys of the configuration. A flag has no other way to
//! them, so that what is said of all of them here (a key is set by a flag or by `--set`, not by
//! both) holds for each.

use super::TrainArguments;
use crate::config::{Config, FormatChoice};
use crate::error::{Error, Result};

/// Puts a flag's value into a configuration.
type Put<'a> = Box<dyn FnOnce(&mut Config) -> Result<()> + 'a>;

/// A flag, the keys that it sets, and how.
pub(super) struct Setting<'a> {
    pub(super) flag: &'static str,
    pub(super) keys: &'static [&'static str],
    /// None where the flag is not given.
    put: Option<Put<'a>>,
}

impl Setting<'_> {
    pub(super) fn is_given(&self) -> bool {
        self.put.is_some()
    }

    pub(super) fn apply(self, config: &mut Config) -> Result<()> {
        self.put.map_or(Ok(()), |put| put(config))
    }

    /// Refuses `--set` of a key that this flag sets, too.
    pub(super) fn refuse_both(&self, set: &[&str]) -> Result<()> {
        match self.keys.iter().find(|key| self.is_given() && set.contains(key)) {
            Some(key) => Err(Error::contradiction(
                self.flag,
                format!("--set {key}"),
                "both set it; leave one out",
            )),
            None => Ok(()),
        }
    }
}

/// One line for each flag: its name, the field that holds what was given, the key that takes it,
/// and what wraps it there.
macro_rules! settings {
    ($self:ident: $($flag:literal $field:ident => $section:ident.$key:ident $($wrap:expr)?;)*) => {
        vec![$(Setting {
            flag: $flag,
            keys: &[concat!(stringify!($section), ".", stringify!($key))],
            put: given(&$self.$field).map(|value| -> Put<'_> {
                Box::new(move |config| {
                    config.$section.$key = settings!(@ value $($wrap)?);
                    Ok(())
                })
            }),
        }),*]
    };
    (@ $value:ident) => { $value };
    (@ $value:ident $wrap:expr) => { $wrap($value) };
}

/// What a flag may hold, and whether it was given.
trait Given: Clone {
    type Value;
    fn value(self) -> Option<Self::Value>;
}

impl<T: Clone> Given for Option<T> {
    type Value = T;
    fn value(self) -> Option<T> {
        self
    }
}

impl<T: Clone> Given for Vec<T> {
    type Value = Self;
    fn value(self) -> Option<Self> {
        (!self.is_empty()).then_some(self)
    }
}

impl Given for bool {
    type Value = Self;
    fn value(self) -> Option<Self> {
        self.then_some(true)
    }
}

fn given<T: Given>(field: &T) -> Option<T::Value> {
    field.clone().value()
}

impl TrainArguments {
    /// Every flag that sets a key, given or not.
    pub(super) fn settings(&self) -> Vec<Setting<'_>> {
        let mut settings = settings! { self:
            "--data" data => data.train;
            "--valid" valid => data.valid;
            "--holdout" holdout => data.holdout;
            "--data-format" data_format => data.format FormatChoice::Of;
            "--output-dir" output_dir => run.output_dir;
            "--on-bad-row" on_bad_row => data.on_bad_row;
            "--cache-data" cache_data => data.cache;
            "--checkpoint-dir" checkpoint_dir => checkpoint.dir Some;
            "--save-every" save_every => checkpoint.save_every;
            "--keep" keep => checkpoint.keep;
            "--snapshot-dir" snapshot_dir => checkpoint.snapshot_dir Some;
            "--snapshot-every" snapshot_every => checkpoint.snapshot_every;
            "--batch-size" batch_size => train.batch_size;
            "--grad-accumulation" accumulate => train.accumulate;
            "--steps" steps => train.steps Some;
            "--learning-rate" learning_rate => train.learning_rate;
            "--precision" precision => train.precision;
            "--seed" seed => train.seed;
            "--seeds" seeds => train.seeds;
            "--target-auc" target_auc => eval.target_auc Some;
            "--patience" patience => eval.patience Some;
            "--eval-every" eval_every => eval.every;
            "--eval-batch-size" eval_batch_size => eval.batch_size;
            "--eval-ranks" eval_ranks => run.eval_ranks Some;
            "--eval-processes" eval_processes => run.eval_processes Some;
            "--device" device => run.device;
            "--kernels" kernels => run.kernels Some;
            "--threads" threads => run.threads Some;
            "--ranks" ranks => run.ranks;
            "--hybrid" hybrid => run.hybrid;
            "--schedule" schedule => run.schedule;
            "--transport" transport => run.transport;
            "--insecure" insecure => comm.insecure;
        };
        let epochs = self.epochs.map(|epochs| -> Put<'_> {
            Box::new(move |config| {
                (config.train.epochs, config.train.steps) = (epochs, None);
                Ok(())
            })
        });
        let keys = &["train.epochs", "train.steps"];
        settings.push(Setting { flag: "--epochs", keys, put: epochs });
        let optimizer = self.optimizer.as_ref();
        let put =
            optimizer.map(|name| -> Put<'_> { Box::new(|config| config.optimizer.set_both(name)) });
        let keys = &["optimizer.sparse.name", "optimizer.dense.name"];
        settings.push(Setting { flag: "--optimizer", keys, put });
        settings
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::cli::{Cli, Command};
    use crate::commands::train_arguments::TrainArguments;
    use clap::{CommandFactory as _, Parser as _};

    /// Flags that set no key: they say where the configuration comes from, or what a run does
    /// besides.
    const OTHERS: [&str; 15] = [
        "--auto",
        "--config",
        "--label",
        "--weight",
        "--preset",
        "--set",
        "--resume",
        "--data-changed",
        "--init-from",
        "--log-json",
        "--mllog",
        "--trace",
        "--tensorboard",
        "--time",
        "--dry-run",
    ];

    /// A value for every flag that takes one, and for each of its keys another one.
    const VALUES: [(&str, &str, &[&str]); 35] = [
        ("--data", "a.txt", &["data.train=[\"b.txt\"]"]),
        ("--valid", "a.txt", &["data.valid=[\"b.txt\"]"]),
        ("--holdout", "0.5", &["data.holdout=0.25"]),
        ("--data-format", "csv", &["data.format=parquet"]),
        ("--output-dir", "a", &["run.output_dir=b"]),
        ("--on-bad-row", "skip", &["data.on_bad_row=error"]),
        ("--cache-data", "host", &["data.cache=auto"]),
        ("--checkpoint-dir", "a", &["checkpoint.dir=b"]),
        ("--save-every", "5", &["checkpoint.save_every=6"]),
        ("--keep", "5", &["checkpoint.keep=6"]),
        ("--snapshot-dir", "a", &["checkpoint.snapshot_dir=b"]),
        ("--snapshot-every", "5", &["checkpoint.snapshot_every=6"]),
        ("--optimizer", "ftrl", &["optimizer.sparse.name=sgd", "optimizer.dense.name=sgd"]),
        ("--batch-size", "64", &["train.batch_size=32"]),
        ("--grad-accumulation", "5", &["train.accumulate=6"]),
        ("--epochs", "5", &["train.epochs=6.0", "train.steps=6"]),
        ("--steps", "5", &["train.steps=6"]),
        ("--learning-rate", "0.5", &["train.learning_rate=0.25"]),
        ("--precision", "bf16", &["train.precision=f16"]),
        ("--seed", "5", &["train.seed=6"]),
        ("--seeds", "5", &["train.seeds=6"]),
        ("--target-auc", "0.5", &["eval.target_auc=0.25"]),
        ("--patience", "5", &["eval.patience=6"]),
        ("--eval-every", "5", &["eval.every=6"]),
        ("--eval-batch-size", "64", &["eval.batch_size=32"]),
        ("--eval-ranks", "5", &["run.eval_ranks=6"]),
        ("--eval-processes", "5", &["run.eval_processes=6"]),
        ("--device", "cuda", &["run.device=cpu"]),
        ("--kernels", "a", &["run.kernels=b"]),
        ("--threads", "5", &["run.threads=6"]),
        ("--ranks", "2", &["run.ranks=4"]),
        ("--hybrid", "rows=5", &["run.hybrid=rows=6"]),
        ("--schedule", "overlapped", &["run.schedule=captured"]),
        ("--transport", "tcp", &["run.transport=shm"]),
        ("--insecure", "", &["comm.insecure=false"]),
    ];

    fn parse(arguments: &[&str]) -> TrainArguments {
        let given = arguments.iter().copied().filter(|word| !word.is_empty());
        match Cli::parse_from(["headlong", "train"].into_iter().chain(given)).command {
            Some(Command::Train(arguments)) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_sets_its_keys_or_none() {
        let command = Cli::command();
        let train = command.find_subcommand("train").expect("there is a command `train`");
        let settings = parse(&[]);
        let settings = settings.settings();
        for argument in train.get_arguments().filter_map(|argument| argument.get_long()) {
            let flag = format!("--{argument}");
            let sets = settings.iter().any(|setting| setting.flag == flag);
            let known =
                OTHERS.contains(&flag.as_str()) || ["--help", "--version"].contains(&flag.as_str());
            assert!(sets != known, "{flag} sets a key, or is named among those that set none");
        }
        assert!(
            settings.iter().all(|setting| VALUES.iter().any(|(flag, ..)| *flag == setting.flag))
        );
    }

    #[test]
    fn a_key_is_set_by_its_flag_or_by_set() {
        for (flag, value, sets) in VALUES {
            let arguments = parse(&[flag, value]);
            let settings = arguments.settings();
            let setting = settings.into_iter().find(|setting| setting.flag == flag).expect(flag);
            let named: Vec<_> =
                sets.iter().map(|set| set.split_once('=').expect("a value").0).collect();
            assert_eq!(setting.keys, named, "{flag}");
            for set in sets {
                let arguments = parse(&["--data", "x", "--valid", "y", "--checkpoint-dir", "z"]);
                let error =
                    TrainArguments { set: vec![(*set).to_owned()], ..with(arguments, flag, value) };
                let error = error.resolve(&crate::Registry::default()).expect_err(flag);
                let message = error.to_string();
                let key = set.split_once('=').expect("a value").0;
                assert!(
                    message.contains(flag) && message.contains(&format!("--set {key}")),
                    "{message}"
                );
                assert_eq!(error.exit_code(), 2);
            }
            let mut changed = crate::config::Config::default();
            changed.optimizer.resolve().expect("the defaults are an optimizer");
            let before = changed.to_table();
            let arguments = parse(&[flag, value]);
            let settings = arguments.settings().into_iter();
            settings.for_each(|setting| setting.apply(&mut changed).expect(flag));
            assert_ne!(changed.to_table(), before, "{flag} {value} changes nothing");
        }
        let short = parse(&["--threads", "2", "--set", "threads=3"])
            .resolve(&crate::Registry::default())
            .expect_err("both are given");
        assert!(short.to_string().contains("--set run.threads"), "{short}");
    }

    #[test]
    fn what_is_set_of_an_optimizer_is_of_the_one_that_a_flag_names() {
        let of = |set: &str| {
            let set = vec![set.to_owned()];
            let arguments = TrainArguments { set, ..parse(&["--optimizer", "lamb"]) };
            arguments.resolve(&crate::Registry::default()).map(|(config, _)| config)
        };
        let config = of("optimizer.dense.weight_decay=0.5").unwrap();
        assert_eq!(config.optimizer.dense.settings.weight_decay, Some(0.5));
        let message = of("optimizer.sparse.weight_decay=0.5").unwrap_err().to_string();
        assert!(message.contains("lazy_adam") || message.contains("sparse"), "{message}");
    }

    /// `arguments` and one more flag, where it is not among them.
    fn with(arguments: TrainArguments, flag: &str, value: &str) -> TrainArguments {
        let given = parse(&[flag, value]);
        TrainArguments {
            data: if given.data.is_empty() { arguments.data } else { given.data.clone() },
            valid: if given.valid.is_empty() { arguments.valid } else { given.valid.clone() },
            checkpoint_dir: given.checkpoint_dir.clone().or(arguments.checkpoint_dir),
            ..given
        }
    }
}
