//! Which records are samples, where bad ones are skipped.

use super::OneFile;
use super::records::Records;
use crate::criteo::BadRowPolicy;
use crate::formats::named::{NamedColumns, push_fields};
use crate::samples::{DataSchema, Samples};
use crate::skipped::BadRow;

/// Tells bad records from others, by reading them.
pub(super) struct Judge {
    columns: NamedColumns,
    schema: DataSchema,
    scratch: Samples,
}

impl Judge {
    /// None where a bad record is an error. Files are `labelled` or not.
    pub fn new(policy: BadRowPolicy, columns: &NamedColumns, labelled: bool) -> Option<Self> {
        (policy == BadRowPolicy::Skip).then(|| Self {
            columns: columns.clone(),
            schema: columns.schema(labelled),
            scratch: Samples::default(),
        })
    }

    /// What is wrong with the record at hand.
    pub fn fault_of(&mut self, file: &OneFile, records: &Records) -> Option<BadRow> {
        let fault = file.wrong_length(records).or_else(|| {
            self.scratch.clear(&self.schema);
            let (columns, scratch) = (&self.columns, &mut self.scratch);
            let pushed = push_fields(records.fields(), &file.roles, columns, scratch);
            pushed.err().map(|fault| file.in_words(fault))
        })?;
        Some(BadRow { file: file.path.name(), line: records.place().line, fault })
    }
}
