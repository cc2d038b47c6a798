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

fn flag<'a, T: Clone + 'a>(
    flag: &'static str,
    keys: &'static [&'static str],
    value: &Option<T>,
    put: impl FnOnce(&mut Config, T) + 'a,
) -> Setting<'a> {
    let put = value.clone().map(|value| -> Put<'a> {
        Box::new(move |config| {
            put(config, value);
            Ok(())
        })
    });
    Setting { flag, keys, put }
}

/// A flag that may be repeated.
fn list<'a, T: Clone + 'a>(
    name: &'static str,
    keys: &'static [&'static str],
    values: &[T],
    put: impl FnOnce(&mut Config, Vec<T>) + 'a,
) -> Setting<'a> {
    flag(name, keys, &(!values.is_empty()).then(|| values.to_vec()), put)
}

impl TrainArguments {
    /// Every flag that sets a key, given or not.
    pub(super) fn settings(&self) -> Vec<Setting<'_>> {
        let mut settings = self.settings_of_data();
        settings.extend(self.settings_of_training());
        settings.extend(self.settings_of_machine());
        settings
    }

    fn settings_of_data(&self) -> Vec<Setting<'_>> {
        vec![
            list("--data", &["data.train"], &self.data, |c, files| c.data.train = files),
            list("--valid", &["data.valid"], &self.valid, |c, files| c.data.valid = files),
            flag("--data-format", &["data.format"], &self.data_format, |c, format| {
                c.data.format = FormatChoice::Of(format);
            }),
            flag("--output-dir", &["run.output_dir"], &self.output_dir, |c, dir| {
                c.run.output_dir = dir
            }),
            flag("--on-bad-row", &["data.on_bad_row"], &self.on_bad_row, |c, what| {
                c.data.on_bad_row = what
            }),
            flag("--cache-data", &["data.cache"], &self.cache_data, |c, place| {
                c.data.cache = place
            }),
            flag("--checkpoint-dir", &["checkpoint.dir"], &self.checkpoint_dir, |c, dir| {
                c.checkpoint.dir = Some(dir);
            }),
            flag("--save-every", &["checkpoint.save_every"], &self.save_every, |c, steps| {
                c.checkpoint.save_every = steps;
            }),
            flag("--keep", &["checkpoint.keep"], &self.keep, |c, count| c.checkpoint.keep = count),
        ]
    }

    fn settings_of_training(&self) -> Vec<Setting<'_>> {
        let optimizer = self
            .optimizer
            .as_ref()
            .map(|name| -> Put<'_> { Box::new(|config| config.optimizer.set_both(name)) });
        vec![
            Setting {
                flag: "--optimizer",
                keys: &["optimizer.sparse.name", "optimizer.dense.name"],
                put: optimizer,
            },
            flag("--batch-size", &["train.batch_size"], &self.batch_size, |c, n| {
                c.train.batch_size = n
            }),
            flag("--grad-accumulation", &["train.accumulate"], &self.accumulate, |c, n| {
                c.train.accumulate = n
            }),
            flag("--epochs", &["train.epochs", "train.steps"], &self.epochs, |c, epochs| {
                (c.train.epochs, c.train.steps) = (epochs, None);
            }),
            flag("--steps", &["train.steps"], &self.steps, |c, steps| c.train.steps = Some(steps)),
            flag("--learning-rate", &["train.learning_rate"], &self.learning_rate, |c, rate| {
                c.train.learning_rate = rate;
            }),
            flag("--precision", &["train.precision"], &self.precision, |c, name| {
                c.train.precision = name
            }),
            flag("--seed", &["train.seed"], &self.seed, |c, seed| c.train.seed = seed),
            flag("--target-auc", &["eval.target_auc"], &self.target_auc, |c, auc| {
                c.eval.target_auc = Some(auc);
            }),
            flag("--eval-every", &["eval.every"], &self.eval_every, |c, every| {
                c.eval.every = every
            }),
            flag("--eval-batch-size", &["eval.batch_size"], &self.eval_batch_size, |c, n| {
                c.eval.batch_size = n;
            }),
        ]
    }

    fn settings_of_machine(&self) -> Vec<Setting<'_>> {
        vec![
            flag("--eval-ranks", &["run.eval_ranks"], &self.eval_ranks, |c, n| {
                c.run.eval_ranks = Some(n)
            }),
            flag("--device", &["run.device"], &self.device, |c, device| c.run.device = device),
            flag("--kernels", &["run.kernels"], &self.kernels, |c, dir| c.run.kernels = Some(dir)),
            flag("--threads", &["run.threads"], &self.threads, |c, n| c.run.threads = Some(n)),
            flag("--ranks", &["run.ranks"], &self.ranks, |c, n| c.run.ranks = n),
            flag("--hybrid", &["run.hybrid"], &self.hybrid, |c, hybrid| c.run.hybrid = hybrid),
            flag("--schedule", &["run.schedule"], &self.schedule, |c, name| c.run.schedule = name),
            flag("--transport", &["run.transport"], &self.transport, |c, name| {
                c.run.transport = name
            }),
            flag(
                "--insecure",
                &["comm.insecure"],
                &self.insecure.then_some(true),
                |c, insecure| {
                    c.comm.insecure = insecure;
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::cli::{Cli, Command};
    use crate::commands::train_arguments::TrainArguments;
    use clap::{CommandFactory as _, Parser as _};

    /// Flags that set no key: they say where the configuration comes from, or what a run does
    /// besides.
    const OTHERS: [&str; 11] = [
        "--config",
        "--preset",
        "--set",
        "--resume",
        "--data-changed",
        "--init-from",
        "--log-json",
        "--mllog",
        "--trace",
        "--time",
        "--dry-run",
    ];

    /// A value for every flag that takes one, and for each of its keys another one.
    const VALUES: [(&str, &str, &[&str]); 29] = [
        ("--data", "a.txt", &["data.train=[\"b.txt\"]"]),
        ("--valid", "a.txt", &["data.valid=[\"b.txt\"]"]),
        ("--data-format", "csv", &["data.format=parquet"]),
        ("--output-dir", "a", &["run.output_dir=b"]),
        ("--on-bad-row", "skip", &["data.on_bad_row=error"]),
        ("--cache-data", "host", &["data.cache=auto"]),
        ("--checkpoint-dir", "a", &["checkpoint.dir=b"]),
        ("--save-every", "5", &["checkpoint.save_every=6"]),
        ("--keep", "5", &["checkpoint.keep=6"]),
        ("--optimizer", "ftrl", &["optimizer.sparse.name=sgd", "optimizer.dense.name=sgd"]),
        ("--batch-size", "64", &["train.batch_size=32"]),
        ("--grad-accumulation", "5", &["train.accumulate=6"]),
        ("--epochs", "5", &["train.epochs=6.0", "train.steps=6"]),
        ("--steps", "5", &["train.steps=6"]),
        ("--learning-rate", "0.5", &["train.learning_rate=0.25"]),
        ("--precision", "bf16", &["train.precision=f16"]),
        ("--seed", "5", &["train.seed=6"]),
        ("--target-auc", "0.5", &["eval.target_auc=0.25"]),
        ("--eval-every", "5", &["eval.every=6"]),
        ("--eval-batch-size", "64", &["eval.batch_size=32"]),
        ("--eval-ranks", "5", &["run.eval_ranks=6"]),
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
