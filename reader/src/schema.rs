//! Which columns a file of Criteo's format has, and what they are called in messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The most dense and the most sparse columns a schema may have: missing values are bits of a
/// `u64`.
pub const MAX_COLUMNS_OF_A_KIND: usize = 64;

/// The columns of a file: an optional label, then `num_dense` integers, then `num_sparse`
/// categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// Whether the first column is the label (0 or 1).
    pub labelled: bool,
    /// Integer columns, `I1…`.
    pub num_dense: usize,
    /// Categorical columns, `C1…`; one table each.
    pub num_sparse: usize,
}

impl Schema {
    /// Criteo's labelled files: label, 13 integers, 26 categories (40 columns).
    pub const fn criteo() -> Self {
        Self { labelled: true, num_dense: 13, num_sparse: 26 }
    }

    /// Criteo's unlabelled files: 13 integers, 26 categories (39 columns).
    pub const fn criteo_unlabelled() -> Self {
        Self { labelled: false, num_dense: 13, num_sparse: 26 }
    }

    /// The same columns with or without the label.
    pub const fn with_label(self, labelled: bool) -> Self {
        Self { labelled, ..self }
    }

    /// All columns of a line.
    pub const fn num_columns(&self) -> usize {
        self.labelled as usize + self.num_dense + self.num_sparse
    }

    /// What the column at `index` (from 0) is.
    ///
    /// # Panics
    /// If `index` is not below [`Schema::num_columns`].
    pub fn column(&self, index: usize) -> Column {
        assert!(index < self.num_columns(), "column {index} of {}", self.num_columns());
        if self.labelled && index == 0 {
            return Column::Label;
        }
        let index = index - self.labelled as usize;
        if index < self.num_dense {
            Column::Dense(index as u16)
        } else {
            Column::Sparse((index - self.num_dense) as u16)
        }
    }

    /// Refuses schemas that have no column, or more than `MAX_COLUMNS_OF_A_KIND` of a kind.
    ///
    /// # Errors
    /// The count.
    pub fn check(&self) -> Result<(), String> {
        let most = MAX_COLUMNS_OF_A_KIND;
        if self.num_dense > most || self.num_sparse > most {
            let message = format!(
                "a schema may have up to {most} dense and {most} sparse columns, found {} and {}",
                self.num_dense, self.num_sparse
            );
            return Err(message);
        }
        if self.num_dense + self.num_sparse == 0 {
            return Err("a schema needs at least one column".to_owned());
        }
        Ok(())
    }
}

/// One column, shown as Criteo's documentation names it: `label`, `I1…I13`, `C1…C26`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// The click label.
    Label,
    /// The integer column of this index, from 0.
    Dense(u16),
    /// The categorical column of this index, from 0.
    Sparse(u16),
}

impl fmt::Display for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Column::Label => write!(formatter, "label"),
            Column::Dense(index) => write!(formatter, "I{}", index + 1),
            Column::Sparse(index) => write!(formatter, "C{}", index + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_names_of_the_documentation() {
        let names = |schema: Schema| -> Vec<String> {
            (0..schema.num_columns()).map(|index| schema.column(index).to_string()).collect()
        };
        let labelled = names(Schema::criteo());
        assert_eq!((labelled.len(), &*labelled[0], &*labelled[1]), (40, "label", "I1"));
        assert_eq!((&*labelled[13], &*labelled[14], &*labelled[39]), ("I13", "C1", "C26"));
        assert_eq!(names(Schema::criteo_unlabelled()), labelled[1..]);
    }

    #[test]
    fn absurd_schemas_are_refused() {
        assert!(Schema::criteo().check().is_ok());
        assert!(Schema { labelled: true, num_dense: 0, num_sparse: 0 }.check().is_err());
        assert!(Schema { labelled: true, num_dense: 65, num_sparse: 1 }.check().is_err());
    }
}
