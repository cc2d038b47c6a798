//! Named configurations: the files of `configs/`, built in, and the published table sizes.

use crate::config::{Config, keys};
use crate::error::{Error, Result};

/// A configuration with a name. The text is the file of `configs/` itself, so the two cannot
/// differ.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// What `--preset` takes; the file is `configs/NAME.toml`.
    pub name: &'static str,
    /// One line: what it is for.
    pub summary: &'static str,
    /// The file's text.
    pub toml: &'static str,
}

/// The preset of a run that names neither a preset, nor a file, nor data.
pub const DEFAULT: &str = "tiny";

/// The preset of a run that names data but neither a preset nor a file.
pub const DEFAULT_FOR_DATA: &str = "criteo-hashed";

macro_rules! presets {
    ($($name:literal: $summary:literal;)*) => {
        [$(Preset {
            name: $name,
            summary: $summary,
            toml: include_str!(concat!("../../../configs/", $name, ".toml")),
        }),*]
    };
}

/// All presets.
pub const PRESETS: [Preset; 6] = presets! {
    "tiny": "synthetic data, seconds on two cores";
    "criteo-hashed":
        "any Criteo text in one pass, ids hashed; used where data is named and no preset";
    "criteo-sample": "a sample of Criteo of about 100,000 rows, with a dictionary";
    "criteo-kaggle":
        "the original DLRM's configuration for the Kaggle Display Advertising Challenge";
    "criteo-terabyte-dlrm": "MLPerf v1: Criteo 1 TB Click Logs, 40 M rows at most";
    "criteo-terabyte-dcnv2":
        "MLPerf v3: DLRM-DCNv2 on the Criteo 1 TB Click Logs, multi-hot";
};

/// The names of all presets, as `a, b or c`.
pub fn names() -> String {
    let names = PRESETS.map(|preset| preset.name);
    let (last, others) = names.split_last().expect("there are presets");
    format!("{} or {last}", others.join(", "))
}

/// Finds a preset by name.
///
/// # Errors
/// [`Error::Config`] listing the names, with the nearest.
pub fn preset(name: &str) -> Result<Config> {
    let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let hint = keys::nearest(name, names.iter().copied());
        let hint = hint.map_or(String::new(), |nearest| format!("; did you mean \"{nearest}\"?"));
        let message = format!("expected one of {}, found \"{name}\"{hint}", names.join(", "));
        return Err(Error::config("--preset", message));
    };
    Config::from_toml(preset.toml, &format!("preset {name}"))
}

/// Ids of each column of the whole Kaggle training file, C1 to C26 (facebookresearch/dlrm).
pub const KAGGLE_CARDINALITIES: [u64; 26] = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
];

/// Ids of each column of the 1 TB Click Logs, days 0 to 22, taken modulo 40 M before the dictionary
/// (MLPerf v1).
pub const TERABYTE_40M_CARDINALITIES: [u64; 26] = [
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
];

/// Ids of each column of the 1 TB Click Logs without any cap (MLPerf v2).
pub const TERABYTE_CARDINALITIES: [u64; 26] = [
    227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
];

/// A published list of table sizes by the name that `tables.rows` takes.
///
/// # Errors
/// [`Error::Config`] listing the names.
pub fn cardinalities(name: &str) -> Result<&'static [u64; 26]> {
    match name {
        "criteo-kaggle" => Ok(&KAGGLE_CARDINALITIES),
        "criteo-terabyte-40m" => Ok(&TERABYTE_40M_CARDINALITIES),
        "criteo-terabyte" => Ok(&TERABYTE_CARDINALITIES),
        _ => Err(Error::config(
            "tables.rows",
            format!(
                "expected a list, a number, or one of \"criteo-kaggle\", \"criteo-terabyte-40m\", \
                 \"criteo-terabyte\", \"dictionary\"; found \"{name}\""
            ),
        )),
    }
}
