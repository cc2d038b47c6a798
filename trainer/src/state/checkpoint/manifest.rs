//! The manifest: what a checkpoint holds, and the checksum of every byte of it, its own included.
//!
//! A manifest is a JSON document whose second line carries the checksum of everything behind that
//! line:
//!
//! ```text
//! {
//!   "manifest_xxh3_128": "0f4c…",
//!   "format": "headlong-checkpoint",
//!   "version": 1,
//!   …
//! }
//! ```
//!
//! so `jq` reads it, and a flipped byte anywhere in it is found before anything in it is believed.

use super::error::{CheckpointError, Result};
use super::layout::{Layout, TensorId};
use super::shard::{Content, file_bytes, pieces};
use crate::metrics::EvalMetrics;
use headlong_reader::FileIdentity;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Version of the format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 1;
/// Name of the manifest in a checkpoint's directory.
pub const MANIFEST_FILE: &str = "manifest.json";
const FORMAT: &str = "headlong-checkpoint";
const PREFIX: &str = "{\n  \"manifest_xxh3_128\": \"";
const AFTER_CHECKSUM: &str = "\",\n";

/// Everything that a checkpoint says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `headlong-checkpoint`.
    pub format: String,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Version of the program that wrote the checkpoint.
    pub program: String,
    /// What was saved besides the tensors.
    pub state: SavedState,
    pub layout: Layout,
    /// Digest of all weights and optimiser states ([`crate::state::digest`]): 32 hexadecimal
    /// digits.
    pub weights_digest: String,
    pub files: Vec<FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    pub file: String,
    pub bytes: u64,
    /// XXH3-128 of the whole file: 32 hexadecimal digits.
    pub xxh3_128: String,
    pub content: Content,
}

/// What is saved besides the tensors: where the run stands, and what model and data it is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    pub step: u64,
    pub samples: u64,
    /// Why the run ended (`epochs`, `target_auc` …); `None` while it could go on.
    pub finished: Option<String>,
    /// The model. Loading into another one is refused.
    pub model: ModelFingerprint,
    /// The optimisers. Resuming with others is refused; loading weights alone is not.
    pub optimizers: OptimizerFingerprint,
    /// How data becomes numbers. Using the weights on data prepared otherwise is refused.
    pub data: DataFingerprint,
    /// The training files, in their order. Going on with others is refused unless it is meant;
    /// manifests of earlier programs have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train_files: Vec<TrainedFile>,
    /// The reader's position, as the reader writes it: the next sample to train on.
    pub reader: Value,
    /// State of the random numbers, which are counted, not drawn: the seed and the step say all.
    pub random: RandomState,
    /// Where the loss scale stands, where the loss is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleState>,
    /// The evaluation of these very weights, where there was one.
    pub metrics: Option<EvalMetrics>,
    /// What the session wants back on resume (best AUC so far, totals for the log), as it writes
    /// it.
    pub session: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFingerprint {
    /// Family: `dlrm`.
    pub family: String,
    pub num_dense: u64,
    /// Widths of the bottom MLP's layers, the input left out.
    pub bottom: Vec<u64>,
    /// Widths of the top MLP's layers, the input left out.
    pub top: Vec<u64>,
    /// Interaction: `dot`, `cat` or `cross(layers=3, rank=512)`.
    pub interaction: String,
    /// Embedding tables in the order of the model.
    pub tables: Vec<TableFingerprint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFingerprint {
    pub name: String,
    /// Kind: `dense`, or the name of a registered kind.
    pub kind: String,
    /// Rows over all ranks.
    pub rows: u64,
    /// Numbers per row.
    pub dim: u64,
    /// Pooling: `sum`.
    pub pooling: String,
}

/// The optimisers whose states these are, each as `name(constants)`: `adagrad(epsilon=1e-8)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerFingerprint {
    pub dense: String,
    pub sparse: String,
}

/// How raw data becomes the numbers the model sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFingerprint {
    /// Transform of the dense features: `ln(x+1)`, `ln(x+3)`, `file-minimum`.
    pub dense_transform: String,
    /// How an id becomes a row: `hash`, `admit(k=10)`, `dictionary(threshold=3)`.
    pub id_policy: String,
    /// Name of the hash of the ids.
    pub hash: String,
    /// Checksum of the dictionary, where there is one.
    pub dictionary: Option<String>,
    /// What single dense columns have otherwise, and their bins: each `[[column]]` in a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
}

/// A training file, as it was when the run began or last went on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainedFile {
    pub path: String,
    /// What tells it from another; none of a pipe.
    pub identity: Option<FileIdentity>,
}

/// What an f16 run multiplies its loss by, and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScaleState {
    /// A power of two from 1 to 2²⁴.
    pub scale: f64,
    /// Steps since it has changed.
    pub good_steps: u32,
    /// Steps skipped since the run began.
    pub skipped_steps: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomState {
    pub seed: u64,
    /// Counter: the next step to draw for.
    pub step: u64,
}

impl Manifest {
    pub(crate) fn new(
        state: SavedState,
        layout: Layout,
        weights_digest: String,
        files: Vec<FileEntry>,
    ) -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let format = FORMAT.to_owned();
        Self { format, version: FORMAT_VERSION, program, state, layout, weights_digest, files }
    }

    /// The bytes of the manifest's file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = serde_json::to_string_pretty(self)
            .expect("a manifest has text keys only, and serialising to memory does not fail");
        let body =
            text.strip_prefix("{\n").expect("a pretty object starts with a brace and a line end");
        let checksum = checksum_text(xxh3_128(body.as_bytes()));
        [PREFIX, &checksum, AFTER_CHECKSUM, body, "\n"].concat().into_bytes()
    }

    /// Reads the bytes of a manifest and checks that they agree with themselves: the checksum, the
    /// version, that every tensor lies in exactly one place, and that each file has the size its
    /// tensors need. `file` is for messages.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self> {
        let refused =
            |message: String| CheckpointError::Manifest { file: file.to_owned(), message };
        let body = checked_body(file, bytes)?;
        let document = [b"{\n", body].concat();
        let head: Head = serde_json::from_slice(&document)
            .map_err(|error| refused(format!("not a manifest: {error}")))?;
        if head.format != FORMAT {
            return Err(refused(format!("the format is `{}`, expected `{FORMAT}`", head.format)));
        }
        if head.version != u64::from(FORMAT_VERSION) {
            let (found, supported) = (head.version, FORMAT_VERSION);
            return Err(CheckpointError::UnknownVersion {
                file: file.to_owned(),
                found,
                supported,
            });
        }
        let manifest: Self = serde_json::from_slice(&document).map_err(|error| {
            refused(format!("not a manifest of version {FORMAT_VERSION}: {error}"))
        })?;
        manifest.check().map_err(refused)?;
        Ok(manifest)
    }

    /// The entry of the file `name`.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.file == name)
    }

    /// Whether every tensor lies in exactly one place, and each file has the size that its tensors
    /// need.
    pub(super) fn check(&self) -> Result<(), String> {
        self.layout.tensors().map_err(|error| error.to_string())?;
        let mut names = HashSet::new();
        let mut rows: BTreeMap<TensorId, Vec<(u64, u64)>> = BTreeMap::new();
        for entry in &self.files {
            let name = &entry.file;
            check_name(name)?;
            if !names.insert(name) {
                return Err(format!("the file `{name}` is listed twice"));
            }
            let pieces =
                pieces(&self.layout, &entry.content).map_err(|error| format!("{name}: {error}"))?;
            if entry.content != Content::Blob && file_bytes(&pieces) != Some(entry.bytes) {
                let expected = file_bytes(&pieces)
                    .map_or("more than 2^64".to_owned(), |bytes| bytes.to_string());
                return Err(format!(
                    "{name}: {} bytes are listed, its tensors need {expected}",
                    entry.bytes
                ));
            }
            for piece in pieces {
                rows.entry(piece.id).or_default().push((piece.first_row, piece.rows));
            }
        }
        self.check_coverage(rows)
    }

    fn check_coverage(&self, mut rows: BTreeMap<TensorId, Vec<(u64, u64)>>) -> Result<(), String> {
        let tensors = self.layout.tensors().map_err(|error| error.to_string())?;
        for tensor in tensors {
            let mut ranges = rows.remove(&tensor.id).unwrap_or_default();
            ranges.sort_unstable();
            let mut next = 0;
            for (first_row, count) in ranges {
                if first_row != next {
                    return Err(format!("`{}`: row {next} is in no file, or in two", tensor.name));
                }
                next += count;
            }
            if next != tensor.rows {
                return Err(format!(
                    "`{}`: rows {next}..{} are in no file",
                    tensor.name, tensor.rows
                ));
            }
        }
        Ok(())
    }
}

/// What every version of the format has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

/// Everything behind the line of the checksum, once the checksum agrees.
fn checked_body<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let split = || {
        let (checksum, rest) = bytes.strip_prefix(PREFIX.as_bytes())?.split_at_checked(32)?;
        let checksum = std::str::from_utf8(checksum).ok()?;
        Some((checksum, rest.strip_prefix(AFTER_CHECKSUM.as_bytes())?))
    };
    let (expected, body) = split().ok_or_else(|| CheckpointError::Manifest {
        file: file.to_owned(),
        message: "it does not start as a manifest does".to_owned(),
    })?;
    // The last line end is not part of what is summed, but must be there.
    let summed = body.strip_suffix(b"\n").unwrap_or(body);
    let found = checksum_text(xxh3_128(summed));
    if found == expected && summed.len() == body.len() {
        let message = "its last line end is missing: it was cut off or edited".to_owned();
        return Err(CheckpointError::Manifest { file: file.to_owned(), message });
    }
    if found != expected {
        let (file, expected) = (file.to_owned(), expected.to_owned());
        return Err(CheckpointError::Corrupted { file, expected, found });
    }
    Ok(body)
}

/// File names are plain, so that a manifest cannot reach outside its directory.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let good =
        !name.is_empty() && name.len() <= 200 && name.bytes().all(plain) && !name.starts_with('.');
    if good && name != MANIFEST_FILE {
        Ok(())
    } else {
        Err(format!("`{}` cannot be the name of a file of a checkpoint", name.escape_debug()))
    }
}

/// A 128-bit checksum as 32 hexadecimal digits.
pub(crate) fn checksum_text(checksum: u128) -> String {
    format!("{checksum:032x}")
}

/// An optimiser as the configuration names it, from what the manifest holds:
/// `adagrad (epsilon 1e-10, initial_accumulator 0.0)`.
pub fn optimizer_text(stored: &str) -> String {
    let (name, settings) = stored.split_once(" { ").unwrap_or((stored, ""));
    let mut text = String::new();
    for letter in name.replace("RowWise", "Rowwise").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    match settings.trim_end_matches(" }") {
        "" => text,
        settings => format!("{text} ({})", settings.replace(": ", " ")),
    }
}
