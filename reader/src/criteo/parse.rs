//! Lines of text to numbers: the fast line parser.
//!
//! A line holds an optional label, integers (`i32`; empty = missing) and categories of up to eight
//! hexadecimal digits (`u32`; empty = missing), separated by tabs and ended by `\n` or `\r\n`; the
//! last line may lack its end. The fast bodies handle lines that are plainly good and hand
//! everything else to [`mod@line`], which defines the format; so all agree to the bit, also on
//! rubbish.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "parse/no_avx512.rs"]
mod avx512;
pub mod fault;
pub mod line;
mod swar;

pub use fault::{BadLine, Excerpt, Fault, FaultKind};

use serde::{Deserialize, Serialize};

use crate::schema::Schema;

/// The mark of a missing integer in [`RawBlock::dense`]; as a value in a file it is out of range.
pub const MISSING_DENSE: i32 = i32::MIN;

/// Lines longer than this many bytes are bad. A good Criteo line is shorter than 400 bytes.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Of so many bad lines of a block it is known what is wrong; the others are counted. A block of a
/// mebibyte can be as many empty lines.
pub const MOST_FAULTS: usize = 100;

/// What to do with a line that is not a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadRowPolicy {
    /// Stop at the first one and name it.
    #[default]
    Error,
    /// Leave it out, count it and report it.
    Skip,
}

/// The samples of a block of lines, as they stand in the file. Buffers are reused from block to
/// block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawBlock {
    /// Good lines.
    pub num_samples: usize,
    /// 0 or 1 for each sample; empty without labels.
    pub labels: Vec<u8>,
    /// `num_samples × num_dense`, row-major; [`MISSING_DENSE`] where missing.
    pub dense: Vec<i32>,
    /// `num_samples × num_sparse`, row-major; 0 where missing.
    pub sparse: Vec<u32>,
    /// For each sample, bit `t` says that category `t` is missing.
    pub sparse_missing: Vec<u64>,
    /// For each sample, where its line ends: the offset of the byte after its `\n`.
    pub line_ends: Vec<u32>,
    /// Lines looked at, good and bad.
    pub num_lines: usize,
    /// The bad lines in order; under [`BadRowPolicy::Error`] parsing stops at the first.
    pub bad_lines: Vec<BadLine>,
    /// What is wrong with the first [`MOST_FAULTS`] of them.
    pub faults: Vec<Fault>,
}

impl RawBlock {
    /// Forgets the samples, keeps the buffers.
    pub fn clear(&mut self) {
        self.num_samples = 0;
        self.labels.clear();
        self.dense.clear();
        self.sparse.clear();
        self.sparse_missing.clear();
        self.line_ends.clear();
        self.num_lines = 0;
        self.bad_lines.clear();
        self.faults.clear();
    }

    /// Bytes that the samples take.
    pub fn bytes(&self) -> usize {
        let of_words = self.dense.len() + self.sparse.len() + self.line_ends.len();
        self.labels.len() + 4 * of_words + 8 * self.sparse_missing.len()
    }

    /// Frees what the buffers hold beyond the samples.
    pub fn shrink(&mut self) {
        self.labels.shrink_to_fit();
        self.dense.shrink_to_fit();
        self.sparse.shrink_to_fit();
        self.sparse_missing.shrink_to_fit();
        self.line_ends.shrink_to_fit();
        self.bad_lines.shrink_to_fit();
        self.faults.shrink_to_fit();
    }

    /// Lines of the block up to and including the line of sample `sample`, bad ones included.
    pub fn lines_through(&self, sample: usize) -> usize {
        sample + 1 + self.bad_through(sample)
    }

    /// Bad lines before the line of sample `sample`.
    pub fn bad_through(&self, sample: usize) -> usize {
        self.bad_lines.partition_point(|bad| bad.samples_before as usize <= sample)
    }
}

/// The bodies of the parser; all give the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The definition, field by field.
    Plain,
    /// Eight digits at a time in a word; everywhere.
    Portable,
    /// Eight fields at a time in a vector; on processors with AVX-512 VBMI2.
    Avx512,
}

impl Body {
    /// Those that run on this processor, the fastest last.
    pub fn available() -> Vec<Self> {
        let mut bodies = vec![Body::Plain, Body::Portable];
        bodies.extend(avx512::is_available().then_some(Body::Avx512));
        bodies
    }
}

/// Parses blocks of whole lines into [`RawBlock`]s.
#[derive(Clone, Debug)]
pub struct LineParser {
    schema: Schema,
    policy: BadRowPolicy,
    body: Body,
    separators: avx512::Separators,
}

impl LineParser {
    /// A parser of lines of `schema`, with the fastest body there is.
    ///
    /// # Panics
    /// If the schema is refused by [`Schema::check`].
    pub fn new(schema: Schema, policy: BadRowPolicy) -> Self {
        let body = if avx512::is_available() { Body::Avx512 } else { Body::Portable };
        Self::with_body(schema, policy, body)
    }

    /// A parser with a body of choice, for comparing them.
    ///
    /// # Panics
    /// If the schema is refused by [`Schema::check`], or the body is not among [`Body::available`].
    pub fn with_body(schema: Schema, policy: BadRowPolicy, body: Body) -> Self {
        assert!(schema.check().is_ok(), "the schema should have been checked: {schema:?}");
        assert!(Body::available().contains(&body), "{body:?} does not run on this processor");
        Self { schema, policy, body, separators: avx512::Separators::default() }
    }

    /// What it does with bad lines.
    pub fn policy(&self) -> BadRowPolicy {
        self.policy
    }

    /// Parses `text`, which begins at the start of a line, into `block`, which is cleared first.
    ///
    /// # Panics
    /// If `text` is 4 GiB or longer.
    pub fn parse(&mut self, text: &[u8], block: &mut RawBlock) {
        assert!(u32::try_from(text.len()).is_ok(), "a block should be shorter than 4 GiB");
        block.clear();
        match self.body {
            Body::Plain => line::parse_lines(&self.schema, self.policy, text, block),
            Body::Portable => swar::parse_lines(&self.schema, self.policy, text, block),
            Body::Avx512 => {
                avx512::parse_lines(&self.schema, self.policy, text, &mut self.separators, block);
            }
        }
    }
}

#[cfg(test)]
mod tests;
