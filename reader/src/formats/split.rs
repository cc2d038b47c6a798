//! NVIDIA's split binary: in each folder `label.bin` (a byte each), `numerical.bin` (`f16` [N, D],
//! `ln(x+3)` taken already) and a file for each categorical column (the smallest of `i8`, `i16`,
//! `i32` that holds its ids), and next to the folders `feature_spec.yaml`, which says what they are
//! (DeepLearningExamples, DLRM).
//!
//! `DIR/train` is read by the source `train` of `DIR/feature_spec.yaml`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::records::{Element, Field, FieldFile, RecordSink, RecordSource, Shard, Target};
use super::{Samples, Sink};
use crate::error::{ReaderError, Result, invalid, refuse};
use crate::io::read_small_text;
use crate::output;
use crate::samples::{DataSchema, DenseKind, Hotness, SparseColumn};
use crate::transform::DenseTransform;

/// `feature_spec.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// The features of each channel: `label`, `numerical`, `categorical`.
    pub channel_spec: BTreeMap<String, Vec<String>>,
    /// What each feature is.
    pub feature_spec: BTreeMap<String, Feature>,
    /// Anything.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// The files of each folder.
    pub source_spec: BTreeMap<String, Vec<Chunk>>,
}

/// One feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// numpy's name of its type.
    pub dtype: String,
    /// Values of a categorical one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cardinality: Option<u64>,
}

/// Files with some features.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// `split_binary`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What they hold, in order.
    pub features: Vec<String>,
    /// Paths from the specification's folder.
    pub files: Vec<String>,
}

const SPECIFICATION: &str = "feature_spec.yaml";
const MOST_SPECIFICATION_BYTES: u64 = 4 << 20;
const MOST_DEPTH: usize = 32;

/// Whether the specification of `folder` lies next to it.
pub fn has_specification(folder: &Path) -> bool {
    folder.parent().unwrap_or(Path::new(".")).join(SPECIFICATION).exists()
}

/// The first line that nests deeper than any specification does: the YAML parser's time grows with
/// the square of the depth.
fn first_deep_line(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    text.lines().position(|line| {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > MOST_DEPTH {
                return true;
            }
        }
        let words = line.trim_start_matches(' ');
        let dashes = words.split(' ').take_while(|word| matches!(*word, "-" | "?" | ":")).count();
        dashes.max(line.len() - words.len()) > MOST_DEPTH
    })
}

impl FeatureSpec {
    /// Reads the one in `folder`.
    pub fn load(folder: &Path) -> Result<Self> {
        let file = folder.join(SPECIFICATION);
        let text = read_small_text(&file, MOST_SPECIFICATION_BYTES)
            .map_err(|source| ReaderError::Open { file: file.clone(), source })?;
        Self::parse(&file, &text)
    }

    /// Reads the text of a specification; `file` is for messages.
    ///
    /// # Errors
    /// [`ReaderError::Format`], which names `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        let bad = |message: String| ReaderError::Format { file: file.to_owned(), message };
        if let Some(line) = first_deep_line(text) {
            return Err(bad(format!("line {}: nested more than {MOST_DEPTH} deep", line + 1)));
        }
        let spec: Self = serde_norway::from_str(text).map_err(|error| bad(error.to_string()))?;
        let mut files = spec.source_spec.values().flatten().flat_map(|chunk| &chunk.files);
        let leaves = |path: &&String| {
            Path::new(path)
                .components()
                .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
        };
        match files.find(leaves) {
            Some(path) => {
                Err(bad(format!("files: expected a path inside its folder, found \"{path}\"")))
            }
            None => Ok(spec),
        }
    }

    fn channel(&self, name: &str) -> &[String] {
        self.channel_spec.get(name).map_or(&[], Vec::as_slice)
    }

    /// The features of the label, of the numerical channel and of the categorical one.
    fn channels(&self) -> [&[String]; 3] {
        ["label", "numerical", "categorical"].map(|channel| self.channel(channel))
    }

    /// The files of the folder `name` of `root`, in their order; or what is wrong with its entry.
    fn field_files(&self, root: &Path, name: &str) -> Result<Vec<FieldFile>, String> {
        let Some(chunks) = self.source_spec.get(name) else {
            let known: Vec<_> = self.source_spec.keys().cloned().collect();
            return Err(format!(
                "source_spec: expected \"{name}\" (the folder's name), found {}",
                known.join(", ")
            ));
        };
        let files: Vec<_> = chunks
            .iter()
            .map(|chunk| self.field_file(root, name, chunk))
            .collect::<Result<_, _>>()?;
        let [labels, dense, sparse] = self.channels();
        let expected =
            usize::from(!labels.is_empty()) + usize::from(!dense.is_empty()) + sparse.len();
        if files.len() != expected {
            let found = files.len();
            return Err(format!("source_spec {name}: expected {expected} files, found {found}"));
        }
        Ok(files)
    }

    /// The one file of `chunk`, and which numbers of a sample it holds.
    fn field_file(&self, root: &Path, name: &str, chunk: &Chunk) -> Result<FieldFile, String> {
        let features = &chunk.features;
        let Some(feature) = features.first().and_then(|name| self.feature_spec.get(name)) else {
            return Err(format!(
                "source_spec {name}: features {features:?} are not in feature_spec"
            ));
        };
        let element = Element::named(&feature.dtype)
            .filter(|element| !matches!(element, Element::U16 | Element::U32))
            .ok_or_else(|| format!("{}: unknown dtype \"{}\"", features[0], feature.dtype))?;
        let [labels, dense, sparse] = self.channels();
        let column = sparse.iter().position(|name| features == &[name.as_str()]);
        let target = match column {
            _ if features == labels => Target::Label,
            _ if features == dense => Target::Dense,
            Some(column) => Target::Column(column),
            None => {
                return Err(format!(
                    "source_spec {name}: features {features:?} are neither the label, all \
                     numerical ones in order, nor one categorical"
                ));
            }
        };
        let [path] = &chunk.files[..] else {
            return Err(format!("source_spec {name}: expected one file for {features:?}"));
        };
        let count = features.len();
        Ok(FieldFile {
            path: root.join(path),
            first_byte: 0,
            num_bytes: None,
            record_bytes: (count * element.bytes()) as u64,
            fields: vec![Field { at: 0, element, count, target }],
        })
    }

    /// The rows that each categorical column's table needs, in order; 0 where it is not said.
    pub fn cardinalities(&self) -> Vec<u64> {
        let columns = self.channel("categorical").iter();
        columns
            .map(|name| {
                self.feature_spec.get(name).and_then(|feature| feature.cardinality).unwrap_or(0)
            })
            .collect()
    }
}

/// Opens folders, each named in the specification next to it.
///
/// # Errors
/// Those of opening; [`ReaderError::Format`] where the specification and the files disagree.
pub fn open(folders: &[PathBuf], transform: DenseTransform) -> Result<RecordSource> {
    let opened =
        folders.iter().map(|folder| open_folder(folder, transform)).collect::<Result<Vec<_>>>()?;
    let Some((schema, _)) = opened.first().cloned() else {
        refuse!("no data folder was named");
    };
    for ((other, _), folder) in opened.iter().zip(folders) {
        schema.check_like(other, &folder.display().to_string())?;
    }
    RecordSource::open(schema, opened.into_iter().map(|(_, shard)| shard).collect())
}

fn open_folder(folder: &Path, transform: DenseTransform) -> Result<(DataSchema, Shard)> {
    let root =
        folder.parent().filter(|root| !root.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !has_specification(folder) {
        let message = format!(
            "a folder of data is described by the {SPECIFICATION} next to it, and there is none"
        );
        return Err(ReaderError::format(folder, message));
    }
    let spec = FeatureSpec::load(root)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files = spec
        .field_files(root, &name)
        .map_err(|message| ReaderError::Format { file: root.join(SPECIFICATION), message })?;
    let [labels, dense, sparse] = spec.channels();
    let schema = DataSchema {
        labelled: !labels.is_empty(),
        label: None,
        weight: None,
        dense: dense.to_vec(),
        dense_kind: DenseKind::Transformed(transform),
        sparse: sparse
            .iter()
            .map(|name| SparseColumn { name: name.clone(), hotness: Hotness::Fixed(1) })
            .collect(),
    };
    Ok((schema, Shard { name: folder.display().to_string(), files, num_samples: None }))
}

/// Writes one folder and its entry in the specification next to it.
pub struct SplitSink {
    sink: RecordSink,
    folder: PathBuf,
    schema: DataSchema,
    elements: Vec<Element>,
    rows: Vec<u64>,
}

impl SplitSink {
    /// Creates the files in `folder`; `rows[t]` is one more than the largest id of column `t`.
    ///
    /// # Errors
    /// [`ReaderError::Write`]; [`ReaderError::Invalid`] for columns that the format cannot hold.
    pub fn create(folder: &Path, schema: &DataSchema, rows: &[u64]) -> Result<Self> {
        let refuse = |message: &str| Err(invalid!("split: {message}"));
        if schema.dense_kind == DenseKind::Integers && !schema.dense.is_empty() {
            return refuse(
                "it holds transformed numbers: say how integers become numbers (--dense-transform \
                 \"ln(x+1)\")",
            );
        }
        if schema.sparse.iter().any(|column| column.hotness != Hotness::Fixed(1)) {
            return refuse("it has one id a sample in every column");
        }
        if rows.len() != schema.sparse.len() {
            return refuse("the rows of every column's table have to be known (--rows)");
        }
        std::fs::create_dir_all(folder)
            .map_err(|source| ReaderError::Write { file: folder.into(), source })?;
        let elements: Vec<_> = rows.iter().map(|&rows| smallest(rows)).collect();
        let mut files = Vec::new();
        let mut add = |name: String, element: Element, count: usize, target: Target| {
            let field = Field { at: 0, element, count, target };
            files.push((folder.join(name), Vec::new(), count * element.bytes(), vec![field]));
        };
        if schema.labelled {
            add("label.bin".to_owned(), Element::Bool, 1, Target::Label);
        }
        if !schema.dense.is_empty() {
            add("numerical.bin".to_owned(), Element::F16, schema.dense.len(), Target::Dense);
        }
        for (column, &element) in elements.iter().enumerate() {
            add(format!("cat_{column}.bin"), element, 1, Target::Column(column));
        }
        let sink = RecordSink::create(schema.clone(), files)?;
        Ok(Self {
            sink,
            folder: folder.to_owned(),
            schema: schema.clone(),
            elements,
            rows: rows.to_vec(),
        })
    }

    fn specification(&self, name: &str) -> FeatureSpec {
        let categorical: Vec<_> =
            (0..self.elements.len()).map(|column| format!("cat_{column}.bin")).collect();
        let mut spec = FeatureSpec::default();
        let mut chunks = Vec::new();
        let mut add = |channel: &str, features: Vec<String>, files: Vec<(Vec<String>, String)>| {
            spec.channel_spec.insert(channel.to_owned(), features);
            for (features, file) in files {
                let files = vec![format!("{name}/{file}")];
                chunks.push(Chunk { kind: "split_binary".to_owned(), features, files });
            }
        };
        let label = vec!["label".to_owned()];
        let dense: Vec<_> =
            (0..self.schema.dense.len()).map(|column| format!("num_{column}")).collect();
        if self.schema.labelled {
            add("label", label.clone(), vec![(label.clone(), "label.bin".to_owned())]);
            spec.feature_spec
                .insert(label[0].clone(), Feature { dtype: "bool".to_owned(), cardinality: None });
        }
        if !dense.is_empty() {
            add("numerical", dense.clone(), vec![(dense.clone(), "numerical.bin".to_owned())]);
        }
        let files =
            categorical.iter().map(|column| (vec![column.clone()], column.clone())).collect();
        add("categorical", categorical.clone(), files);
        for name in dense {
            spec.feature_spec
                .insert(name, Feature { dtype: "float16".to_owned(), cardinality: None });
        }
        for ((name, &element), &rows) in categorical.into_iter().zip(&self.elements).zip(&self.rows)
        {
            let feature = Feature { dtype: element.name().to_owned(), cardinality: Some(rows) };
            spec.feature_spec.insert(name, feature);
        }
        spec.source_spec.insert(name.to_owned(), chunks);
        spec
    }
}

fn smallest(rows: u64) -> Element {
    [(Element::I8, i8::MAX as u64), (Element::I16, i16::MAX as u64)]
        .into_iter()
        .find(|(_, most)| rows < *most)
        .map_or(Element::I32, |(element, _)| element)
}

impl Sink for SplitSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        self.sink.write(samples)
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        let root = self
            .folder
            .parent()
            .filter(|root| !root.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let spec = self.specification(&name);
        // What will not do is refused before anything has its name.
        spec.clone().joined_with(root, &name)?;
        let mut paths = output::commit_all(self.sink.complete(|_| None)?, &[])?;
        let path = root.join(SPECIFICATION);
        // Read while it is locked: another folder may be added by another process.
        let mut file = output::create_in_turn(&path)?;
        let spec = spec.joined_with(root, &name)?;
        let text = serde_norway::to_string(&spec)
            .map_err(|error| invalid!("{}: {error}", path.display()))?;
        file.write_all(text.as_bytes()).map_err(output::write_error(&path))?;
        output::commit(file)?;
        paths.push(path);
        Ok(paths)
    }
}

impl FeatureSpec {
    /// With the folders that the specification in `root` has besides `name`: of the same data, such
    /// as `test` next to `train`.
    fn joined_with(mut self, root: &Path, name: &str) -> Result<Self> {
        let file = root.join(SPECIFICATION);
        if !file.exists() {
            return Ok(self);
        }
        let old = Self::load(root)?;
        let same = old.channel_spec == self.channel_spec && old.feature_spec == self.feature_spec;
        if !same && old.source_spec.keys().any(|other| other != name) {
            let message = "it describes other columns than the ones being written".to_owned();
            return Err(ReaderError::Format { file, message });
        }
        for (other, chunks) in old.source_spec {
            self.source_spec.entry(other).or_insert(chunks);
        }
        Ok(self)
    }
}
