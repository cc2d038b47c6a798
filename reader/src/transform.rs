//! Dense transforms: integers to the numbers a model sees.
//!
//! Three logarithms are in use for the same data, and a model trained with one is quietly worse
//! when fed with another; so the name travels with data and checkpoints.

pub mod function;
pub mod name;

pub use function::DenseFunction;
pub use name::DenseTransform;

use crate::criteo::blocks::{BlockOptions, BlockStream, Event};
use crate::criteo::parse::MISSING_DENSE;
use crate::error::Result;
use crate::io::DataFile;

impl DenseTransform {
    /// The function, where it is the same for all files.
    pub fn function(self) -> Option<DenseFunction> {
        match self {
            DenseTransform::LnPlus1 => Some(DenseFunction::logarithm(0, 1)),
            DenseTransform::LnPlus3 => Some(DenseFunction::logarithm(-2, 3)),
            DenseTransform::Identity => Some(DenseFunction::Identity),
            DenseTransform::FileMinimum => None,
        }
    }

    /// The functions for `files`, one each. `file-minimum` reads every file once to find its
    /// minimum.
    pub fn functions(
        self,
        files: &[DataFile],
        options: &BlockOptions,
    ) -> Result<Vec<DenseFunction>> {
        let each = options.columns.clone().map(DenseFunction::Columns);
        if let Some(function) = each.or_else(|| self.function()) {
            return Ok(vec![function; files.len()]);
        }
        DataFile::refuse_pipes(files, "the dense transform file-minimum reads it twice")?;
        let minimum = |file: &DataFile| file_minimum(file.clone(), options);
        files.iter().map(|file| Ok(DenseFunction::of_file_minimum(minimum(file)?))).collect()
    }
}

/// The smallest integer of the file; a missing value counts as 0.
fn file_minimum(file: DataFile, options: &BlockOptions) -> Result<i32> {
    let mut stream = BlockStream::open(vec![file], options, &Default::default(), Some(1))?;
    let mut minimum = i32::MAX;
    while let Some(event) = stream.next()? {
        if let Event::Block(block) = event {
            let values =
                block.raw.dense.iter().map(|&value| if value == MISSING_DENSE { 0 } else { value });
            minimum = values.fold(minimum, i32::min);
            stream.recycle(block);
        }
    }
    Ok(if minimum == i32::MAX { 0 } else { minimum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::testing::write;

    fn applied(function: &DenseFunction, raw: &[i32]) -> Vec<f64> {
        let mut out = vec![0.0; raw.len()];
        function.apply(raw, &mut out);
        out.into_iter().map(|value| value.exp() as f64).collect()
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            // exp of an f32 logarithm below 22 is off by at most 22 half-ulps of f32, relatively.
            assert!((found - expected).abs() <= 22.0 * 6e-8 * expected, "{found} {expected}");
        }
    }

    #[test]
    fn the_transforms_do_what_their_names_say() {
        let folder = tempfile::tempdir().unwrap();
        let rest = "\t".repeat(37);
        let file = write(folder.path(), "a", format!("1\t-4\t7{rest}\n0\t\t-1{rest}\n").as_bytes());
        let options = BlockOptions::default();
        let raw = [MISSING_DENSE, -4, -1, 0, 1, 4094, 4095, 5000, i32::MAX];
        let function = |transform: DenseTransform| {
            transform.functions(std::slice::from_ref(&file), &options).unwrap().remove(0)
        };
        let most = i32::MAX as f64;
        let plus_one = applied(&function(DenseTransform::LnPlus1), &raw);
        close(&plus_one, &[1.0, 1.0, 1.0, 1.0, 2.0, 4095.0, 4096.0, 5001.0, most + 1.0]);
        let plus_three = applied(&function(DenseTransform::LnPlus3), &raw);
        close(&plus_three, &[3.0, 1.0, 2.0, 3.0, 4.0, 4097.0, 4098.0, 5003.0, most + 3.0]);
        let mut same = [0.0; 9];
        function(DenseTransform::Identity).apply(&raw, &mut same);
        assert_eq!(same, [0.0, -4.0, -1.0, 0.0, 1.0, 4094.0, 4095.0, 5000.0, most as f32]);
        // The minimum is -4, so x becomes ln(x + 6).
        let minimum = applied(&function(DenseTransform::FileMinimum), &raw);
        close(&minimum, &[6.0, 2.0, 5.0, 6.0, 7.0, 4100.0, 4101.0, 5006.0, most + 6.0]);
    }

    #[test]
    fn names_are_recorded_as_they_are_written() {
        for transform in DenseTransform::ALL.iter().copied() {
            assert_eq!(transform.name().parse::<DenseTransform>().unwrap(), transform);
            assert_eq!(serde_json::to_string(&transform).unwrap(), format!("\"{transform}\""));
        }
        let message = "log".parse::<DenseTransform>().unwrap_err().to_string();
        assert!(
            message.contains("expected one of ln(x+1), ln(x+3), file-minimum, none, found \"log\"")
        );
    }
}
