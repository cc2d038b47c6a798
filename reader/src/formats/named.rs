//! Files whose columns have names: which of them are label, dense, categorical, ignored, and what
//! their values mean.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use headlong_device::label::weighted;
use xxhash_rust::xxh3::xxh3_64;

use crate::columns::{DenseColumns, SharedColumns};
use crate::criteo::parse::MISSING_DENSE;
use crate::error::{ReaderError, Result};
use crate::hashing::MISSING_ID;
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, IdBags, Samples, SparseColumn};
use crate::times::{self, Moment, TimeColumn};
use crate::transform::DenseTransform;

/// What the numbers of dense columns are, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseReading {
    /// Integers of 32 bits, kept as they are.
    Integers,
    /// Numbers that have gone through this transform already.
    Transformed(DenseTransform),
    /// Numbers that go through it now.
    Raw(DenseTransform),
}

/// Which columns of a file are what.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedColumns {
    /// The column that holds 0 or 1. Samples of a file without it have no labels.
    pub label: Option<String>,
    /// The column that says how much each labelled sample counts, where there is one.
    pub weight: Option<String>,
    /// Dense columns, in order.
    pub dense: Vec<String>,
    /// What is in them.
    pub dense_reading: DenseReading,
    /// Where they are [`DenseReading::Raw`], what is said of single ones.
    pub dense_columns: SharedColumns,
    /// Categorical columns, in the order of their tables; those with other than one value are
    /// lists.
    pub sparse: Vec<SparseColumn>,
    /// Columns of points in time, the tables of whose parts come after those.
    pub times: Vec<TimeColumn>,
    /// What is between the fields of text; unset: what its header has.
    pub separator: Option<u8>,
    /// What is between the values of a list in text.
    pub list_separator: u8,
    /// Columns that are not used; `*`: all that have no other place.
    pub ignored: Vec<String>,
}

/// What becomes of columns that nothing has been said of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// They are an error: a name may have been mistyped.
    #[default]
    Refused,
    /// They are left out.
    Ignored,
    /// They are categorical: for a look at data that no one has described yet.
    Categorical,
}

/// What a column of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The label.
    Label,
    /// The weight of a labelled sample.
    Weight,
    /// The dense column of this index.
    Dense(usize),
    /// The categorical column of this index.
    Sparse(usize),
    /// The column of points in time of this index.
    Time(usize),
    /// Nothing that is used.
    Ignored,
}

impl NamedColumns {
    /// The columns of a file as [`DataSchema::numbered`] names them: `label`, `I1…`, `C1…`, or as
    /// split data does, `num_0…`, `cat_0.bin…`; other names are found to have no place.
    pub fn by_convention(
        header: &[String],
        dense_reading: DenseReading,
        hotness: &[Hotness],
    ) -> Self {
        let is_numbered = |name: &&String, prefixes: [&str; 2]| {
            let name = name.trim_end_matches(".bin");
            let number =
                prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        let named =
            |prefixes| header.iter().filter(move |name| is_numbered(name, prefixes)).cloned();
        let sparse = named(["C", "cat_"]).enumerate();
        Self {
            label: header.iter().find(|name| *name == "label").cloned(),
            weight: None,
            dense: named(["I", "num_"]).collect(),
            dense_reading,
            dense_columns: None,
            sparse: sparse
                .map(|(column, name)| SparseColumn {
                    name,
                    hotness: hotness.get(column).copied().unwrap_or(Hotness::Fixed(1)),
                })
                .collect(),
            times: Vec::new(),
            separator: None,
            list_separator: b'|',
            ignored: Vec::new(),
        }
    }

    /// Gives the columns of `header` that have no place the one that `others` says.
    pub fn place_others(
        &mut self,
        others: Others,
        header: &[String],
        hotness: impl Fn(usize) -> Hotness,
    ) {
        match others {
            Others::Refused => {}
            Others::Ignored => self.ignored.push("*".to_owned()),
            Others::Categorical => {
                for (index, name) in header.iter().enumerate() {
                    if !self.uses(name) {
                        self.sparse
                            .push(SparseColumn { name: name.clone(), hotness: hotness(index) });
                    }
                }
            }
        }
    }

    /// Whether a column is of any use.
    pub(crate) fn uses(&self, name: &String) -> bool {
        self.sparse.iter().any(|column| column.name == *name)
            || self.times.iter().any(|column| column.name == *name)
            || self.dense.contains(name)
            || [&self.label, &self.weight].contains(&&Some(name.clone()))
    }

    /// Adds the parts of a point in time of column `column`; none where it is missing.
    pub(crate) fn push_parts(&self, column: usize, moment: Option<Moment>, samples: &mut Samples) {
        let before: usize = self.times[..column].iter().map(|column| column.parts.len()).sum();
        let bags = &mut samples.sparse[self.sparse.len() + before..];
        for (part, bags) in self.times[column].parts.iter().zip(bags) {
            bags.ids.push(Moment::id(moment, *part));
        }
    }

    /// What is said of single dense columns, where their numbers are raw.
    pub(crate) fn each_dense(&self) -> Option<&DenseColumns> {
        self.dense_columns.as_deref().filter(|_| matches!(self.dense_reading, DenseReading::Raw(_)))
    }

    /// The samples' columns: after those that the file has, tables of parts of times, then of bins.
    pub fn schema(&self, labelled: bool) -> DataSchema {
        DataSchema {
            labelled,
            label: self.label.clone().filter(|name| labelled && name != "label"),
            weight: self.weight.clone().filter(|_| labelled),
            dense: self.dense.clone(),
            dense_kind: match self.dense_reading {
                DenseReading::Integers => DenseKind::Integers,
                DenseReading::Transformed(transform) | DenseReading::Raw(transform) => {
                    DenseKind::Transformed(transform)
                }
            },
            sparse: {
                let bins = self.each_dense().map(|each| each.sparse(&self.dense));
                let parts = self.times.iter().flat_map(TimeColumn::table_names);
                let parts = parts.map(|name| SparseColumn { name, hotness: Hotness::Fixed(1) });
                let of_file = self.sparse.iter().cloned().chain(parts);
                of_file.chain(bins.into_iter().flatten()).collect()
            },
        }
    }

    /// What the columns of `header` are.
    ///
    /// # Errors
    /// [`ReaderError::Format`] for a column that is missing, there twice, or has no place.
    pub fn roles(&self, header: &[String], file: &Path) -> Result<Vec<Role>> {
        let bad = |message: String| ReaderError::Format { file: file.into(), message };
        if self.dense_reading == DenseReading::Raw(DenseTransform::FileMinimum)
            && !self.dense.is_empty()
        {
            return Err(bad(
                "dense transform file-minimum: expected another one, this format has no minimum"
                    .to_owned(),
            ));
        }
        if let Some(Err(error)) = self.each_dense().map(|each| each.check(self.dense.len())) {
            return Err(bad(format!("header: {error}")));
        }
        let dense = self.dense.iter().enumerate().map(|(index, name)| (name, Role::Dense(index)));
        let sparse = self
            .sparse
            .iter()
            .enumerate()
            .map(|(index, column)| (&column.name, Role::Sparse(index)));
        let label = self.label.iter().map(|name| (name, Role::Label));
        let times = self.times.iter().enumerate();
        let times = times.map(|(index, column)| (&column.name, Role::Time(index)));
        // Without a label there is nothing to weigh.
        let labelled = self.label.as_ref().is_some_and(|name| header.contains(name));
        let weight_role = if labelled { Role::Weight } else { Role::Ignored };
        let weight = self.weight.iter().map(|name| (name, weight_role));
        let places: Vec<_> = label.chain(weight).chain(dense).chain(sparse).chain(times).collect();
        let mut counts: HashMap<&str, usize> = HashMap::new();
        header.iter().for_each(|name| *counts.entry(name.as_str()).or_default() += 1);
        for (name, role) in &places {
            match counts.get(name.as_str()).copied().unwrap_or(0) {
                1 => {}
                0 if matches!(role, Role::Label | Role::Ignored) => {}
                0 => {
                    let found = header.join("`, `");
                    return Err(bad(format!(
                        "header: expected a column `{name}`, found `{found}`"
                    )));
                }
                count => {
                    return Err(bad(format!("header: column `{name}` is there {count} times")));
                }
            }
        }
        // Of a name with two places the first counts.
        let place_of: HashMap<&String, Role> = places.iter().rev().copied().collect();
        let ignored: HashSet<&str> = self.ignored.iter().map(String::as_str).collect();
        let role = |name: &String| {
            let place = place_of.get(name).copied();
            let ignored = ignored.contains(name.as_str()) || ignored.contains("*");
            place.or(ignored.then_some(Role::Ignored)).ok_or_else(|| {
                bad(format!(
                    "header: column `{name}` has no place: name it as label, dense or categorical, \
                     or ignore it"
                ))
            })
        };
        header.iter().map(role).collect()
    }
}

/// The id that text stands for: a whole number below 2⁶⁴ without leading zeros is that number (but
/// 2³², which means a missing value), anything else its XXH3-64 with the highest bit set.
pub fn id_of_text(text: &[u8]) -> u64 {
    let is_number = !text.is_empty()
        && text.iter().all(u8::is_ascii_digit)
        && (text[0] != b'0' || text.len() == 1);
    let number =
        std::str::from_utf8(text).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
    number.filter(|id| *id != MISSING_ID).unwrap_or_else(|| xxh3_64(text) | 1 << 63)
}

/// A number as the model sees it.
pub fn transformed(number: f64, transform: DenseTransform) -> f32 {
    transform.of(number) as f32
}

/// What is wrong with a field: expected, found.
pub type Fault = (&'static str, String);

fn fault(expected: &'static str, found: &[u8]) -> Fault {
    let shown: String = String::from_utf8_lossy(found).chars().take(40).collect();
    (expected, shown)
}

/// A field of text as a label: 0 or 1, false or true, no or yes.
pub fn label(field: &[u8]) -> std::result::Result<f32, Fault> {
    match field {
        b"0" | b"0.0" | b"no" | b"No" | b"NO" => Ok(0.0),
        b"1" | b"1.0" | b"yes" | b"Yes" | b"YES" => Ok(1.0),
        _ => truth(field).ok_or_else(|| fault("0 or 1", field)),
    }
}

/// A field of text as a weight: a number that is 0 or more.
fn weight(field: &[u8]) -> std::result::Result<f32, Fault> {
    let number = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
    number.and_then(weight_of).ok_or_else(|| fault(WEIGHT, field))
}

/// What is expected of a weight.
pub(super) const WEIGHT: &str = "a finite number that is 0 or more";

/// A number as a weight, where it can be one.
pub(super) fn weight_of(number: f64) -> Option<f32> {
    let weight = number as f32;
    (weight.is_finite() && number >= 0.0).then_some(weight)
}

/// A truth value as Python, R, and most others write it, as a number.
fn truth(field: &[u8]) -> Option<f32> {
    match field {
        b"true" | b"True" | b"TRUE" => Some(1.0),
        b"false" | b"False" | b"FALSE" => Some(0.0),
        _ => None,
    }
}

/// A field of text as a number; an empty one is missing.
pub fn push_dense(
    field: &[u8],
    reading: DenseReading,
    to: &mut DenseValues,
) -> std::result::Result<(), Fault> {
    let text = std::str::from_utf8(field).unwrap_or("?");
    match (reading, to) {
        (DenseReading::Integers, DenseValues::Integers(to)) => {
            let parsed = || text.parse().ok().filter(|integer| *integer != MISSING_DENSE);
            let parsed = if field.is_empty() { Some(MISSING_DENSE) } else { parsed() };
            to.push(parsed.ok_or_else(|| fault("an integer of 32 bits", field))?);
        }
        (_, DenseValues::Numbers(to)) => {
            let text = match truth(field) {
                Some(0.0) => "0",
                Some(_) => "1",
                None if field.is_empty() => "0",
                None => text,
            };
            let number = match reading {
                DenseReading::Raw(transform) if transform != DenseTransform::Identity => {
                    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
                    number.map(|number| transformed(number, transform))
                }
                // Rounded once.
                _ => text.parse::<f32>().ok(),
            };
            let number = number.filter(|number| number.is_finite());
            to.push(number.ok_or_else(|| fault("a number", field))?);
        }
        (_, DenseValues::Integers(_)) => {
            unreachable!("samples are cleared by the schema of the reading")
        }
    }
    Ok(())
}

/// The same of a column that something has been said of: the number, and its bins.
fn push_of_column(
    (column, field): (usize, &[u8]),
    each: &DenseColumns,
    samples: &mut Samples,
) -> std::result::Result<(), Fault> {
    let number = match truth(field) {
        Some(truth) => Some(f64::from(truth)),
        None if field.is_empty() => None,
        None => {
            let number = std::str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
            let number = number.filter(|number| number.is_finite());
            Some(number.ok_or_else(|| fault("a number", field))?)
        }
    };
    let seen = each.functions[column].number(number);
    match &mut samples.dense {
        DenseValues::Numbers(to) if seen.is_finite() => to.push(seen),
        _ => return Err(fault("a number", field)),
    }
    each.push_bins(column, number, &mut samples.sparse);
    Ok(())
}

/// A field of text as the ids of a sample; an empty one is a missing value, or an empty list. An
/// empty value of a list is a missing one.
pub fn push_ids(
    field: &[u8],
    hotness: Hotness,
    separator: u8,
    to: &mut IdBags,
) -> std::result::Result<(), Fault> {
    let id = |value: &[u8]| if value.is_empty() { MISSING_ID } else { id_of_text(value) };
    if hotness == Hotness::Fixed(1) {
        to.ids.push(id(field));
        return Ok(());
    }
    let before = to.ids.len();
    if !field.is_empty() {
        to.ids.extend(field.split(|&byte| byte == separator).map(|value| id(value.trim_ascii())));
    }
    match hotness {
        Hotness::Varying => to.offsets.push(to.ids.len() as u32),
        Hotness::Fixed(count) if to.ids.len() - before == count as usize => {}
        Hotness::Fixed(_) => return Err(fault("as many values as in every sample", field)),
    }
    Ok(())
}

/// A field of text as the parts of a point in time; an empty one is missing.
fn push_time(
    field: &[u8],
    column: usize,
    columns: &NamedColumns,
    samples: &mut Samples,
) -> std::result::Result<(), Fault> {
    let moment = Moment::of_text(field);
    if moment.is_none() && !field.is_empty() {
        return Err(fault(times::EXPECTED, field));
    }
    columns.push_parts(column, moment, samples);
    Ok(())
}

/// Adds the fields of one sample; the error is the column and what is wrong there.
pub(super) fn push_fields<'a>(
    fields: impl Iterator<Item = &'a [u8]>,
    roles: &[Role],
    columns: &NamedColumns,
    samples: &mut Samples,
) -> std::result::Result<(), (usize, Fault)> {
    // Dense numbers have the model's order, which need not be the file's.
    let mut in_order: Vec<&[u8]> = vec![&[]; columns.dense.len()];
    let mut weight_here = None;
    for (index, (field, role)) in fields.zip(roles).enumerate() {
        let field = field.trim_ascii();
        let done = match *role {
            Role::Ignored => Ok(()),
            Role::Label => label(field).map(|label| samples.labels.push(label)),
            Role::Weight => weight(field).map(|weight| weight_here = Some(weight)),
            Role::Dense(column) => {
                in_order[column] = field;
                Ok(())
            }
            Role::Sparse(column) => {
                let hotness = columns.sparse[column].hotness;
                push_ids(field, hotness, columns.list_separator, &mut samples.sparse[column])
            }
            Role::Time(column) => push_time(field, column, columns, samples),
        };
        done.map_err(|fault| (index, fault))?;
    }
    for (column, field) in in_order.into_iter().enumerate() {
        samples.dense_missing[column] += u64::from(field.is_empty());
        let index = || roles.iter().position(|role| *role == Role::Dense(column)).unwrap_or(0);
        let pushed = match columns.each_dense() {
            Some(each) => push_of_column((column, field), each, samples),
            None => push_dense(field, columns.dense_reading, &mut samples.dense),
        };
        pushed.map_err(|fault| (index(), fault))?;
    }
    if let (Some(weight), Some(label)) = (weight_here, samples.labels.last_mut()) {
        *label = weighted(*label > 0.5, weight);
    }
    samples.num_samples += 1;
    Ok(())
}
