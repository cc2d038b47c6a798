//! Training on pipes: they are read once, so a run that reads its data again is refused before
//! anything is read.

use crate::config::{Config, EvalEvery, Ids};
use crate::error::{Error, Result};
use headlong_reader::io::DataFile;

/// What else decides whether the training data is read more than once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    /// The run resumes from a checkpoint, which brings its dictionary and its statistics.
    pub is_resumed: bool,
    /// A log of MLPerf's form names the number of rows before the first step.
    pub has_mllog: bool,
}

/// Refuses to train on a pipe where the data is needed more than once, naming what needs it.
pub fn check_pipes(config: &Config, reads: Reads) -> Result<()> {
    match second_reader(config, reads) {
        Some((key, reason)) => refuse(key, &config.data.train, &reason),
        None => Ok(()),
    }
}

/// Refuses a pipe that several processes would read.
pub fn refuse_shared_pipes(config: &Config) -> Result<()> {
    let reason = "every process would get another part of it";
    refuse("data.train", &config.data.train, reason)?;
    refuse("data.valid", &config.data.valid, reason)
}

fn refuse(key: &str, files: &[DataFile], reason: &str) -> Result<()> {
    let Some(pipe) = files.iter().find(|file| file.is_stream()) else { return Ok(()) };
    let message = format!(
        "{pipe} is a pipe, which can be read only once, and {reason}: write the data to a file \
         first"
    );
    Err(Error::config(key, message))
}

/// The key that has the training data read a second time, and how.
fn second_reader(config: &Config, reads: Reads) -> Option<(&'static str, String)> {
    let (train, data) = (&config.train, &config.data);
    if train.steps.is_none() && train.epochs != 1.0 {
        let epochs = train.epochs;
        return Some((
            "train.epochs",
            format!("{epochs} epochs read it, or count its rows, more than once"),
        ));
    }
    if matches!(config.eval.every, EvalEvery::EpochFraction(_)) && !data.valid.is_empty() {
        let reason = "a part of an epoch needs its rows counted (name a number of steps instead)";
        return Some(("eval.every", reason.to_owned()));
    }
    if reads.has_mllog {
        return Some(("--mllog", "that log begins with the number of its rows".to_owned()));
    }
    if reads.is_resumed {
        return None;
    }
    if data.ids == Ids::Dictionary && data.dictionary.is_none() {
        let reason = "the dictionary of its ids is made first (name one with data.dictionary)";
        return Some(("data.ids", reason.to_owned()));
    }
    (config.run.ranks > 1).then(|| {
        let ranks = config.run.ranks;
        ("run.ranks", format!("{ranks} ranks count the frequent rows of its first batches first"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DenseTransform;

    /// A change of the defaults, what else is read, and the words of the refusal.
    type Case = (fn(&mut Config), Reads, &'static str);

    #[test]
    fn whatever_reads_a_pipe_twice_is_named() {
        let refused = |change: fn(&mut Config), reads: Reads| {
            let mut config = Config::default();
            config.data.train = vec!["/dev/null".into()];
            change(&mut config);
            check_pipes(&config, reads).err().map(|error| error.to_string())
        };
        let none = Reads::default();
        assert_eq!(refused(|_| (), none), None);
        assert_eq!(refused(|config| config.train.steps = Some(5), none), None);
        let resumed = Reads { is_resumed: true, ..none };
        let dictionary = |config: &mut Config| config.data.ids = Ids::Dictionary;
        assert_eq!(refused(dictionary, resumed), None);
        let cases: [Case; 6] = [
            (|config| config.train.epochs = 2.0, none, "`train.epochs`: /dev/null is a pipe"),
            (|config| config.train.epochs = 0.5, none, "0.5 epochs read it, or count its rows"),
            (
                |config| {
                    config.eval.every = EvalEvery::EpochFraction(0.1);
                    config.data.valid = vec!["x".into()];
                },
                none,
                "`eval.every`",
            ),
            (dictionary, none, "`data.ids`"),
            (|config| config.run.ranks = 2, none, "`run.ranks`"),
            (|_| (), Reads { has_mllog: true, ..none }, "`--mllog`"),
        ];
        for (change, reads, words) in cases {
            let message = refused(change, reads).expect(words);
            assert!(
                message.contains(words) && message.contains("write the data to a file"),
                "{message}"
            );
        }
        // A transform that reads a file first says so itself.
        assert_eq!(
            refused(|config| config.data.dense_transform = DenseTransform::FileMinimum, none),
            None
        );
    }
}
