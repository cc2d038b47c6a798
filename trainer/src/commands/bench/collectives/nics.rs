//! How the benches use the NICs of this machine.

use crate::config::Config;
use crate::error::{Error, Result};
use headlong_verbs::VerbsSettings;

/// The keys that `--set` takes here.
const KEYS: &str = "comm.verbs.";

/// What `--set comm.verbs.KEY=VALUE` arguments say, as for `train`.
pub fn settings(set: &[String]) -> Result<VerbsSettings> {
    if let Some(other) = set.iter().find(|argument| !argument.trim_start().starts_with(KEYS)) {
        return Err(Error::Usage(format!("--set {other}: this bench takes {KEYS}KEY=VALUE alone")));
    }
    let mut config = Config::default();
    config.set_all(set)?;
    config.comm.verbs.check().map_err(|(key, reason)| Error::config(key, reason))?;
    Ok(config.comm.verbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_nics_are_those_of_training_and_nothing_else_is_taken() {
        let set = |arguments: &[&str]| {
            let arguments: Vec<String> =
                arguments.iter().map(|&argument| argument.to_owned()).collect();
            settings(&arguments).map_err(|error| error.to_string())
        };
        assert_eq!(set(&[]), Ok(VerbsSettings::default()));
        let changed =
            VerbsSettings { timeout: 19, devices: vec!["rxa".into()], ..VerbsSettings::default() };
        assert_eq!(set(&["comm.verbs.timeout=19", "comm.verbs.devices=[\"rxa\"]"]), Ok(changed));
        assert!(set(&["train.seed=3"]).is_err_and(|text| text.contains("comm.verbs.KEY=VALUE")));
        assert!(
            set(&["comm.verbs.timeout=32"]).is_err_and(|text| text.contains("between 1 and 31"))
        );
        assert!(set(&["comm.verbs.timout=3"]).is_err_and(|text| text.contains("timeout")));
    }
}
