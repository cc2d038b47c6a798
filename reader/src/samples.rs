//! Samples as a file has them: what every format is read into and written from.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::criteo::parse::MISSING_DENSE;
use crate::error::{ReaderError, Result, invalid, refuse};
use crate::hashing::MISSING_ID;
use crate::transform::name::DenseTransform;

/// The most dense and the most categorical columns that any format may have. Bounds what a damaged
/// header can ask for.
pub const MOST_COLUMNS: usize = 1 << 16;

/// How many ids a sample has in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hotness {
    /// As many in every sample.
    Fixed(u32),
    /// Any number, none included.
    Varying,
}

/// What the numbers of dense columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DenseKind {
    /// Integers as they were counted: the transform is still to come.
    Integers,
    /// Numbers, transformed already in the way that is named.
    Transformed(DenseTransform),
}

/// A categorical column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseColumn {
    /// Its name in messages.
    pub name: String,
    /// Ids a sample.
    pub hotness: Hotness,
}

/// The columns of some data, whatever format it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSchema {
    /// Whether samples have a label (0 or 1).
    pub labelled: bool,
    /// What the label's column is called, where that is not `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What the column of weights is called, where samples have some: labels bring them along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Names of the dense columns.
    pub dense: Vec<String>,
    /// What their numbers are.
    pub dense_kind: DenseKind,
    /// Categorical columns, one table each.
    pub sparse: Vec<SparseColumn>,
}

impl DataSchema {
    /// Columns named as Criteo's, `I1…` and `C1…`, with these ids a sample.
    pub fn numbered(
        labelled: bool,
        num_dense: usize,
        dense_kind: DenseKind,
        hotness: &[Hotness],
    ) -> Self {
        let sparse = hotness.iter().enumerate();
        Self {
            labelled,
            label: None,
            weight: None,
            dense: (1..=num_dense).map(|number| format!("I{number}")).collect(),
            dense_kind,
            sparse: sparse
                .map(|(index, &hotness)| SparseColumn { name: format!("C{}", index + 1), hotness })
                .collect(),
        }
    }

    /// What the label's column is called.
    pub fn label_name(&self) -> &str {
        self.label.as_deref().unwrap_or("label")
    }

    /// Refuses columns that no data can have: none at all, too many, or one of no ids a sample.
    /// What passes takes at least a byte a sample in every format.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] naming the count or the column.
    pub fn check(&self) -> Result<()> {
        let (dense, sparse) = (self.dense.len(), self.sparse.len());
        if dense + sparse == 0 {
            refuse!("expected at least one dense or categorical column, found none");
        }
        if dense.max(sparse) > MOST_COLUMNS {
            refuse!(
                "expected at most {MOST_COLUMNS} columns of a kind, found {dense} dense and \
                 {sparse} categorical"
            );
        }
        if self.weight.is_some() && !self.labelled {
            refuse!("expected labels where there are weights, found none");
        }
        match self.sparse.iter().find(|column| column.hotness == Hotness::Fixed(0)) {
            Some(column) => {
                Err(invalid!("column {}: expected at least one id a sample, found 0", column.name))
            }
            None => Ok(()),
        }
    }

    /// Ids a sample in each column.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] naming a column without a fixed number.
    pub fn fixed_hotness(&self) -> Result<Vec<u32>> {
        let fixed = |column: &SparseColumn| match column.hotness {
            Hotness::Fixed(count) => Ok(count),
            Hotness::Varying => {
                Err(invalid!("column {}: expected a fixed number of ids a sample", column.name))
            }
        };
        self.sparse.iter().map(fixed).collect()
    }

    /// Refuses to go on with samples that have other columns.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] with what differs; names may.
    pub fn check_like(&self, other: &Self, what: &str) -> Result<()> {
        let hotness =
            |schema: &Self| schema.sparse.iter().map(|column| column.hotness).collect::<Vec<_>>();
        let differences = [
            (self.labelled != other.labelled)
                .then(|| format!("labels: expected {}, found {}", self.labelled, other.labelled)),
            (self.weight.is_some() != other.weight.is_some()).then(|| {
                let shown = |weight: &Option<String>| weight.clone().unwrap_or("none".to_owned());
                format!("weights: expected {}, found {}", shown(&self.weight), shown(&other.weight))
            }),
            (self.dense.len() != other.dense.len()).then(|| {
                format!("dense columns: expected {}, found {}", self.dense.len(), other.dense.len())
            }),
            (self.dense_kind != other.dense_kind).then(|| {
                format!(
                    "dense numbers: expected {:?}, found {:?}",
                    self.dense_kind, other.dense_kind
                )
            }),
            (hotness(self) != hotness(other)).then(|| {
                format!("ids a sample: expected {:?}, found {:?}", hotness(self), hotness(other))
            }),
        ];
        match differences.into_iter().flatten().next() {
            None => Ok(()),
            Some(difference) => Err(invalid!("{what}: {difference}")),
        }
    }
}

/// The dense numbers of some samples, `num_samples × num_dense`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum DenseValues {
    /// [`MISSING_DENSE`] where there is none.
    Integers(Vec<i32>),
    /// Already transformed.
    Numbers(Vec<f32>),
}

impl Default for DenseValues {
    fn default() -> Self {
        DenseValues::Integers(Vec::new())
    }
}

impl DenseValues {
    /// No numbers, of a kind; the old buffer is kept where it can be.
    pub fn clear(&mut self, kind: DenseKind) {
        match (&mut *self, kind) {
            (DenseValues::Integers(values), DenseKind::Integers) => values.clear(),
            (DenseValues::Numbers(values), DenseKind::Transformed(_)) => values.clear(),
            (DenseValues::Integers(_), DenseKind::Transformed(_)) => {
                *self = DenseValues::Numbers(Vec::new())
            }
            (DenseValues::Numbers(_), DenseKind::Integers) => {
                *self = DenseValues::Integers(Vec::new())
            }
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            DenseValues::Integers(values) => values.len(),
            DenseValues::Numbers(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The ids of one column: sample `i` has `ids[offsets[i]..offsets[i + 1]]`, or, where the schema
/// says how many, `ids[i · n..][..n]` and no offsets. [`MISSING_ID`] is an id that is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdBags {
    /// Ids, sample after sample.
    pub ids: Vec<u64>,
    /// Of varying columns alone: `num_samples + 1` offsets from 0.
    pub offsets: Vec<u32>,
}

impl IdBags {
    /// Where the ids of samples `range` are.
    ///
    /// # Panics
    /// If there are no such samples.
    pub fn range(&self, range: Range<usize>, hotness: Hotness) -> Range<usize> {
        match hotness {
            Hotness::Fixed(count) => range.start * count as usize..range.end * count as usize,
            Hotness::Varying => {
                self.offsets[range.start] as usize..self.offsets[range.end] as usize
            }
        }
    }

    /// The ids of sample `index`.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn of(&self, index: usize, hotness: Hotness) -> &[u64] {
        &self.ids[self.range(index..index + 1, hotness)]
    }
}

/// Some consecutive samples. Buffers are reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// How many.
    pub num_samples: usize,
    /// 0 or 1 for each, or with a weight ([`headlong_device::label`]); empty without labels.
    pub labels: Vec<f32>,
    /// Dense numbers.
    pub dense: DenseValues,
    /// For each dense column, how many of these samples had no number where the numbers cannot say
    /// so: they are transformed, and what was missing counts as 0. Said by the reader of a file,
    /// not carried on.
    pub dense_missing: Vec<u64>,
    /// Ids of each categorical column.
    pub sparse: Vec<IdBags>,
}

impl Samples {
    /// No samples of `schema`; keeps the buffers.
    pub fn clear(&mut self, schema: &DataSchema) {
        self.num_samples = 0;
        self.labels.clear();
        self.dense.clear(schema.dense_kind);
        self.dense_missing.clear();
        self.dense_missing.resize(schema.dense.len(), 0);
        self.sparse.resize_with(schema.sparse.len(), IdBags::default);
        for (bags, column) in self.sparse.iter_mut().zip(&schema.sparse) {
            bags.ids.clear();
            bags.offsets.clear();
            if column.hotness == Hotness::Varying {
                bags.offsets.push(0);
            }
        }
    }

    /// `count` samples of `schema`, whose numbers are 0 and whose labels and ids are yet to come;
    /// keeps the buffers.
    pub(crate) fn make_room(&mut self, schema: &DataSchema, count: usize) {
        self.clear(schema);
        self.num_samples = count;
        let numbers = count * schema.dense.len();
        match &mut self.dense {
            DenseValues::Integers(values) => values.resize(numbers, 0),
            DenseValues::Numbers(values) => values.resize(numbers, 0.0),
        }
    }

    /// Adds samples `range` of `other`, both of `schema`.
    ///
    /// # Panics
    /// If there are no such samples, or one of both is of another schema.
    pub fn extend_from(&mut self, other: &Samples, range: Range<usize>, schema: &DataSchema) {
        self.num_samples += range.len();
        if schema.labelled {
            self.labels.extend_from_slice(&other.labels[range.clone()]);
        }
        let dense = range.start * schema.dense.len()..range.end * schema.dense.len();
        match (&mut self.dense, &other.dense) {
            (DenseValues::Integers(to), DenseValues::Integers(from)) => {
                to.extend_from_slice(&from[dense])
            }
            (DenseValues::Numbers(to), DenseValues::Numbers(from)) => {
                to.extend_from_slice(&from[dense])
            }
            _ => panic!("samples of one schema should have dense numbers of one kind"),
        }
        for ((to, from), column) in self.sparse.iter_mut().zip(&other.sparse).zip(&schema.sparse) {
            if column.hotness == Hotness::Varying {
                // Note: wraps where the samples lie further behind in `other`; the sum is right
                // again.
                let shift = (to.ids.len() as u32).wrapping_sub(from.offsets[range.start]);
                let ends = &from.offsets[range.start + 1..=range.end];
                to.offsets.extend(ends.iter().map(|end| end.wrapping_add(shift)));
            }
            to.ids.extend_from_slice(&from.ids[from.range(range.clone(), column.hotness)]);
        }
    }

    /// How many samples have label 1, whatever their weights; those of weight 0 have no label.
    pub fn num_clicks(&self) -> u64 {
        self.labels.iter().filter(|label| **label > 0.0).count() as u64
    }

    /// Bytes of its buffers' contents.
    pub fn bytes(&self) -> usize {
        let sparse = self.sparse.iter().map(|bags| bags.ids.len() * 8 + bags.offsets.len() * 4);
        self.labels.len() * 4 + self.dense.len() * 4 + sparse.sum::<usize>()
    }
}

/// A value that no sample may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueFault {
    /// The sample, of those at hand.
    pub sample: usize,
    /// The dense column; none: the label.
    pub column: Option<usize>,
    /// What was found.
    pub value: f32,
}

impl ValueFault {
    /// As an error with its place: `first` samples of the file come before those at hand.
    pub fn in_file(self, file: &Path, first: u64, schema: &DataSchema) -> ReaderError {
        let record = first + self.sample as u64 + 1;
        let message = match self.column {
            None => {
                let expected = match schema.weight {
                    None => "label: expected 0 or 1",
                    Some(_) => "label with its weight: expected a finite number",
                };
                format!("record {record}: {expected}, found {}", self.value)
            }
            Some(column) if self.value.is_subnormal() => {
                let (name, value, bits) =
                    (&schema.dense[column], self.value, self.value.to_bits() as i32);
                format!(
                    "record {record}, column {name}: expected a number, found {value:e}, probably \
                     the integer {bits} read as a float: if so, convert it with --integers \
                     --dense-transform"
                )
            }
            Some(column) => {
                let name = &schema.dense[column];
                format!(
                    "record {record}, column {name}: expected a finite number, found {}",
                    self.value
                )
            }
        };
        ReaderError::Format { file: file.to_owned(), message }
    }
}

impl Samples {
    /// The first sample whose label is neither 0 nor 1 (or whose weight is infinite or none), or
    /// that has a dense number that is infinite or none.
    pub fn first_fault(&self, schema: &DataSchema) -> Option<ValueFault> {
        let has_weights = schema.weight.is_some();
        let is_label = |label: f32| match has_weights {
            false => label == 0.0 || label == 1.0,
            true => label.is_finite(),
        };
        let label = self.labels.iter().position(|&label| !is_label(label));
        if let Some(sample) = label {
            return Some(ValueFault { sample, column: None, value: self.labels[sample] });
        }
        self.first_dense_fault(schema, |number| !number.is_finite())
    }

    /// The first dense number that is subnormal, as the bits of every small integer are, and hardly
    /// any number of real data.
    pub fn first_bits_of_an_integer(&self, schema: &DataSchema) -> Option<ValueFault> {
        self.first_dense_fault(schema, f32::is_subnormal)
    }

    fn first_dense_fault(
        &self,
        schema: &DataSchema,
        is_fault: impl Fn(f32) -> bool,
    ) -> Option<ValueFault> {
        let DenseValues::Numbers(numbers) = &self.dense else { return None };
        // Without an early end, which would be slower where there is none.
        if !numbers.iter().fold(false, |found, &number| found | is_fault(number)) {
            return None;
        }
        let at = numbers.iter().position(|&number| is_fault(number))?;
        let (sample, column) = (at / schema.dense.len(), at % schema.dense.len());
        Some(ValueFault { sample, column: Some(column), value: numbers[at] })
    }
}

/// An integer as it is written where nothing can be missing.
pub fn present(integer: i32) -> i32 {
    if integer == MISSING_DENSE { 0 } else { integer }
}

/// An id as it is written where nothing can be missing.
pub fn present_id(id: u64) -> u64 {
    if id == MISSING_ID { 0 } else { id }
}
