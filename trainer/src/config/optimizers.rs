//! The two optimisers of a run, and which settings each has.

use super::Sharded;
use crate::error::{Error, Result};
use headlong_device::optimizer::Optimizer;
use serde::{Deserialize, Serialize};

/// The two optimisers: one for the tables, one for the dense network.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizersConfig {
    /// The optimiser of the embedding tables.
    pub sparse: OptimizerConfig,
    /// The optimiser of the dense network.
    pub dense: OptimizerConfig,
}

/// An optimiser: `sgd`, `adagrad`, `rowwise_adagrad`, `lazy_adam` or `ftrl` of the tables, `sgd`,
/// `adagrad`, `adam` or `lamb` of the dense network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerConfig {
    /// One of [`SPARSE_NAMES`], or of [`DENSE_NAMES`].
    pub name: String,
    /// Whether it is divided among ranks; unset for tables, whose rows lie divided anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharded: Option<Sharded>,
    /// Settings; those of other optimisers stay unset.
    #[serde(flatten)]
    pub settings: OptimizerSettings,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::named("adagrad")
    }
}

/// Settings of an optimiser. [`OptimizersConfig::resolve`] fills the unset ones that the named
/// optimiser has with its defaults and refuses the ones it lacks, so after loading a setting is
/// `Some` exactly where it has a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerSettings {
    /// Added to the root of the accumulator, outside the root. Default 1e-10 (Adagrad), 1e-8
    /// (Adam), 1e-6 (LAMB).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// First value of the accumulator. Default 0; FTRL 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_accumulator: Option<f64>,
    /// Adam, LAMB: decay of the first moment. Default 0.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// Adam, LAMB: decay of the second moment. Default 0.999.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,
    /// LAMB: what the direction has of the weights. Default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// FTRL: β of the paper. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// FTRL: strength of the L1 term. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda1: Option<f64>,
    /// FTRL: strength of the L2 term. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda2: Option<f64>,
}

/// Names of the sparse optimisers.
pub const SPARSE_NAMES: [&str; 5] = ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam", "ftrl"];

/// Names of the dense optimisers.
pub const DENSE_NAMES: [&str; 4] = ["sgd", "adagrad", "adam", "lamb"];

/// Settings of the optimiser called `name`, each with its default.
fn defaults_of(name: &str) -> OptimizerSettings {
    let none = OptimizerSettings::default();
    match name {
        "adagrad" | "rowwise_adagrad" => {
            OptimizerSettings { epsilon: Some(1e-10), initial_accumulator: Some(0.0), ..none }
        }
        "adam" | "lazy_adam" => {
            OptimizerSettings { epsilon: Some(1e-8), beta1: Some(0.9), beta2: Some(0.999), ..none }
        }
        "lamb" => OptimizerSettings {
            epsilon: Some(1e-6),
            weight_decay: Some(0.01),
            ..defaults_of("adam")
        },
        "ftrl" => OptimizerSettings {
            initial_accumulator: Some(0.1),
            beta: Some(0.0),
            lambda1: Some(0.0),
            lambda2: Some(0.0),
            ..none
        },
        _ => none,
    }
}

impl OptimizerSettings {
    /// Every setting by name.
    fn named(&mut self) -> [(&'static str, &mut Option<f64>); 8] {
        [
            ("epsilon", &mut self.epsilon),
            ("initial_accumulator", &mut self.initial_accumulator),
            ("beta1", &mut self.beta1),
            ("beta2", &mut self.beta2),
            ("weight_decay", &mut self.weight_decay),
            ("beta", &mut self.beta),
            ("lambda1", &mut self.lambda1),
            ("lambda2", &mut self.lambda2),
        ]
    }

    /// Fills unset settings of the optimiser `name` and refuses the ones it lacks.
    fn resolve(&mut self, section: &str, name: &str) -> Result<()> {
        let mut defaults = defaults_of(name);
        for ((key, value), (_, default)) in self.named().into_iter().zip(defaults.named()) {
            match (*value, *default) {
                (Some(_), None) => {
                    return Err(Error::config(
                        format!("{section}.{key}"),
                        format!("the optimizer `{name}` has no such setting; leave it out"),
                    ));
                }
                (Some(given), Some(_)) => {
                    if let Some(expected) = lacking(key, given) {
                        let message = format!("expected a number {expected}, found {given}");
                        return Err(Error::config(format!("{section}.{key}"), message));
                    }
                }
                (None, default) => *value = default,
            }
        }
        Ok(())
    }
}

/// What a number lacks to be the setting `key` of an optimiser.
fn lacking(key: &str, given: f64) -> Option<&'static str> {
    let is_decay = ["beta1", "beta2"].contains(&key);
    match given {
        _ if !given.is_finite() || given < 0.0 => Some("of at least 0"),
        1.0.. if is_decay => Some("of at least 0 and below 1"),
        _ if given > f64::from(f32::MAX) => Some("that f32 holds"),
        _ => None,
    }
}

impl OptimizerConfig {
    /// The optimiser called `name`, with no setting of its own.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), sharded: None, settings: OptimizerSettings::default() }
    }

    /// Another optimiser in its place: its settings are the other's own, how it is divided stays.
    pub(super) fn replace(&mut self, name: &str) {
        *self = Self { sharded: self.sharded, ..Self::named(name) };
    }

    /// The optimiser with its constants.
    ///
    /// # Panics
    /// If there is no optimiser of that name, which [`OptimizersConfig::resolve`] refuses.
    pub fn optimizer(&self) -> Optimizer {
        self.settings.optimizer(&self.name)
    }
}

impl OptimizerSettings {
    /// The optimiser called `name`; unset settings have their defaults.
    fn optimizer(&self, name: &str) -> Optimizer {
        let defaults = defaults_of(name);
        let or = |set: Option<f64>, default: Option<f64>| set.or(default).unwrap_or(0.0) as f32;
        let epsilon = or(self.epsilon, defaults.epsilon);
        let initial_accumulator = or(self.initial_accumulator, defaults.initial_accumulator);
        match name {
            "sgd" => Optimizer::Sgd,
            "adagrad" => Optimizer::Adagrad { epsilon, initial_accumulator },
            "rowwise_adagrad" => Optimizer::RowWiseAdagrad { epsilon, initial_accumulator },
            "adam" | "lazy_adam" => Optimizer::Adam {
                beta1: or(self.beta1, defaults.beta1),
                beta2: or(self.beta2, defaults.beta2),
                epsilon,
            },
            "lamb" => Optimizer::Lamb {
                beta1: or(self.beta1, defaults.beta1),
                beta2: or(self.beta2, defaults.beta2),
                epsilon,
                weight_decay: or(self.weight_decay, defaults.weight_decay),
            },
            "ftrl" => Optimizer::Ftrl {
                beta: or(self.beta, defaults.beta),
                l1: or(self.lambda1, defaults.lambda1),
                l2: or(self.lambda2, defaults.lambda2),
                initial_accumulator,
            },
            other => panic!("`{other}` is no optimizer; the configuration was not resolved"),
        }
    }
}

/// Refuses a name that is not in `names`, naming the nearest.
fn check_name(key: &str, name: &str, names: &[&str]) -> Result<()> {
    if names.contains(&name) {
        return Ok(());
    }
    let nearest = super::keys::nearest(name, names.iter().copied());
    let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean \"{nearest}\"?"));
    Err(Error::config(key, format!("expected one of {}, found \"{name}\"{hint}", names.join(", "))))
}

impl OptimizersConfig {
    /// Checks the names and settles the settings of both.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key: an unknown optimiser, or a setting it does not have.
    pub fn resolve(&mut self) -> Result<()> {
        check_name("optimizer.sparse.name", &self.sparse.name, &SPARSE_NAMES)?;
        check_name("optimizer.dense.name", &self.dense.name, &DENSE_NAMES)?;
        if self.sparse.sharded.is_some() {
            let message = "rows of tables and their states lie divided among ranks as the tables \
                           say; leave it out, or set optimizer.dense.sharded";
            return Err(Error::config("optimizer.sparse.sharded", message));
        }
        self.dense.sharded.get_or_insert_default();
        self.sparse.settings.resolve("optimizer.sparse", &self.sparse.name)?;
        self.dense.settings.resolve("optimizer.dense", &self.dense.name)
    }

    /// `--optimizer NAME`: sets both, where both have it. `rowwise_adagrad` and `ftrl` leave the
    /// dense network with `adagrad`; `adam` and `lazy_adam` mean lazy Adam for the tables and Adam
    /// for the dense network, `lamb` lazy Adam and LAMB. Settings return to the defaults of the new
    /// optimiser where the name changes.
    ///
    /// # Errors
    /// [`Error::Config`] where no optimiser has that name.
    pub fn set_both(&mut self, name: &str) -> Result<()> {
        let (sparse, dense) = match name {
            "adam" | "lazy_adam" => ("lazy_adam", "adam"),
            "lamb" => ("lazy_adam", "lamb"),
            "rowwise_adagrad" | "ftrl" => (name, "adagrad"),
            other => (other, other),
        };
        let of_dense = DENSE_NAMES.into_iter().filter(|name| !SPARSE_NAMES.contains(name));
        check_name(
            "--optimizer",
            name,
            &SPARSE_NAMES.into_iter().chain(of_dense).collect::<Vec<_>>(),
        )?;
        if self.sparse.name != sparse {
            self.sparse.replace(sparse);
        }
        if self.dense.name != dense {
            self.dense.replace(dense);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_lie_below_one_and_numbers_in_f32() {
        for (setting, said) in [
            ("optimizer.dense.beta1=1.0", "below 1, found 1"),
            ("optimizer.dense.beta2=2", "below 1, found 2"),
            ("optimizer.dense.epsilon=1e39", "that f32 holds"),
        ] {
            let mut config = crate::config::Config::default();
            let error = config.set_all(&["optimizer.dense.name=adam", setting]).unwrap_err();
            assert!(error.to_string().contains(said), "{setting}: {error}");
        }
    }

    #[test]
    fn a_setting_of_another_optimizer_is_refused() {
        let mut optimizers = OptimizersConfig::default();
        optimizers.sparse.name = "sgd".to_owned();
        optimizers.sparse.settings.beta1 = Some(0.9);
        let message = optimizers.resolve().unwrap_err().to_string();
        assert!(message.contains("optimizer.sparse.beta1") && message.contains("sgd"), "{message}");
    }

    #[test]
    fn one_flag_sets_both() {
        let mut optimizers = OptimizersConfig::default();
        optimizers.resolve().unwrap();
        for (flag, sparse, dense) in [
            ("sgd", "sgd", "sgd"),
            ("adam", "lazy_adam", "adam"),
            ("lazy_adam", "lazy_adam", "adam"),
            ("lamb", "lazy_adam", "lamb"),
            ("ftrl", "ftrl", "adagrad"),
            ("rowwise_adagrad", "rowwise_adagrad", "adagrad"),
            ("adagrad", "adagrad", "adagrad"),
        ] {
            optimizers.set_both(flag).unwrap();
            optimizers.resolve().unwrap();
            assert_eq!(
                (optimizers.sparse.name.as_str(), optimizers.dense.name.as_str()),
                (sparse, dense)
            );
        }
        assert!(
            optimizers
                .set_both("adagard")
                .unwrap_err()
                .to_string()
                .contains("did you mean \"adagrad\"")
        );
    }
}
