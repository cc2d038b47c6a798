//! Columns to samples.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::names_of;
use crate::convert::Described;
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, invalid, refuse};
use crate::formats::named::{NamedColumns, Role};
use crate::formats::parquet::Column;
use crate::formats::{About, Parts, Ranges, SampleStream, Source, cut, starts_of};
use crate::frame::{Frame, FrameKind};
use crate::io::DataFile;
use crate::samples::{DataSchema, Hotness, Samples};

/// Most rows that are decoded at a time.
const ROWS_AT_A_TIME: u64 = 2048;

/// Frames of the same columns, one after another.
pub struct FrameSource {
    about: About,
    columns: Arc<NamedColumns>,
    frames: Arc<[OneFrame]>,
    starts: Arc<[u64]>,
}

struct OneFrame {
    name: PathBuf,
    frame: Arc<dyn Frame>,
    /// Columns that have a role.
    used: Vec<(usize, Role)>,
}

fn bad(name: PathBuf, message: String) -> ReaderError {
    ReaderError::Format { file: name, message }
}

impl FrameSource {
    /// Opens `files`, which all are frames. What their columns are is said by `described`, else by
    /// their names (`label`, `I1…`, `C1…`).
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for a file among them; [`ReaderError::Format`] for columns that do
    /// not fit.
    pub fn open(files: &[DataFile], described: &Described) -> Result<Self> {
        let frames = files.iter().map(|file| {
            let frame = file.frame().ok_or_else(|| {
                invalid!("{file}: expected a data frame, as the others are, found a file")
            })?;
            Ok((file.name(), Arc::clone(frame)))
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        let Some((_, first)) = frames.first() else { refuse!("no data frame was named") };
        let columns = described.columns.clone().unwrap_or_else(|| by_name(&**first, described));
        let open = |(name, frame): (PathBuf, Arc<dyn Frame>)| OneFrame::new(name, frame, &columns);
        let frames = frames.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let is_labelled =
            |frame: &OneFrame| frame.used.iter().any(|(_, role)| *role == Role::Label);
        let labelled = is_labelled(&frames[0]);
        if let Some(other) = frames.iter().find(|frame| is_labelled(frame) != labelled) {
            let first = frames[0].name.display();
            let message = format!("labels: expected as in {first}: {labelled}");
            return Err(bad(other.name.clone(), message));
        }
        let starts = starts_of(frames.iter().map(|one| one.frame.num_rows()));
        let bytes = frames.iter().map(|one| one.frame.bytes()).sum();
        let about = About::random(columns.schema(labelled), &starts, bytes);
        Ok(Self { about, columns: Arc::new(columns), frames: frames.into(), starts })
    }
}

fn by_name(frame: &dyn Frame, described: &Described) -> NamedColumns {
    let header = names_of(frame);
    let mut columns =
        NamedColumns::by_convention(&header, described.dense_reading, &described.hotness);
    columns.place_others(described.others, &header, |column| match frame.columns()[column].kind {
        FrameKind::Lists => Hotness::Varying,
        _ => Hotness::Fixed(1),
    });
    columns.dense_columns = described.dense_columns.clone();
    columns
}

impl OneFrame {
    fn new(name: PathBuf, frame: Arc<dyn Frame>, columns: &NamedColumns) -> Result<Self> {
        let roles = columns.roles(&names_of(&*frame), &name)?;
        for (column, role) in frame.columns().iter().zip(&roles) {
            let single = match role {
                Role::Ignored => continue,
                Role::Sparse(sparse) => columns.sparse[*sparse].hotness == Hotness::Fixed(1),
                Role::Label | Role::Weight | Role::Dense(_) | Role::Time(_) => true,
            };
            let (expected, found) = match (single, column.kind) {
                (true, FrameKind::Numbers | FrameKind::Words)
                | (false, FrameKind::Words | FrameKind::Lists) => continue,
                (true, FrameKind::Times) if matches!(role, Role::Time(_)) => continue,
                (_, FrameKind::Times) => (
                    "numbers, truth values or words",
                    "points in time; name their parts in a [[column]], or leave the column out"
                        .to_owned(),
                ),
                (_, FrameKind::Refused(found, help)) => (
                    "numbers, truth values or words",
                    format!("{found}; {help}, or leave the column out"),
                ),
                (true, FrameKind::Lists) => {
                    ("one value a row", "a list (name it in data.columns.lists)".to_owned())
                }
                (false, FrameKind::Numbers) => ("a list", "one value a row".to_owned()),
            };
            let message = format!("column `{}`: expected {expected}, found {found}", column.name);
            return Err(bad(name, message));
        }
        let roles = roles.into_iter().enumerate();
        let mut used: Vec<_> = roles.filter(|(_, role)| *role != Role::Ignored).collect();
        // Weights go to labels that are there.
        used.sort_by_key(|(_, role)| *role == Role::Weight);
        Ok(Self { name, frame, used })
    }
}

impl Source for FrameSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        Ok(Box::new(FrameStream {
            schema: self.about.schema.clone(),
            columns: Arc::clone(&self.columns),
            frames: Arc::clone(&self.frames),
            pieces: Box::new(cut(ranges, Arc::clone(&self.starts))),
            now: None,
        }))
    }
}

struct FrameStream {
    schema: DataSchema,
    columns: Arc<NamedColumns>,
    frames: Arc<[OneFrame]>,
    pieces: Parts,
    now: Option<(usize, Range<u64>)>,
}

impl FrameStream {
    fn decode(&self, one: &OneFrame, rows: Range<u64>, samples: &mut Samples) -> Result<()> {
        let count = (rows.end - rows.start) as usize;
        samples.make_room(&self.schema, count);
        for &(index, role) in &one.used {
            let column = Column::of_frame(one.frame.read(index, rows.clone()));
            column.put(role, &self.columns, samples, count).map_err(
                |(row, (expected, found))| {
                    let (name, row) = (&one.frame.columns()[index].name, rows.start + row as u64);
                    let message =
                        format!("row {row}, column `{name}`: expected {expected}, found {found}");
                    bad(one.name.clone(), message)
                },
            )?;
        }
        Ok(())
    }
}

impl SampleStream for FrameStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let Some((part, rows)) = self.now.take().or_else(|| self.pieces.next()) else {
            return Ok(false);
        };
        let end = rows.end.min(rows.start + ROWS_AT_A_TIME);
        if end < rows.end {
            self.now = Some((part, end..rows.end));
        }
        self.decode(&self.frames[part], rows.start..end, samples)?;
        Ok(true)
    }

    fn description(&self) -> String {
        "a data frame in memory".to_owned()
    }
}
