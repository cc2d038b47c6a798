//! Whether a file's rows have a label, seen from its first line.

use memchr::memchr;

use crate::criteo::parse::{Excerpt, Fault, FaultKind};
use crate::error::{ReaderError, Result};
use crate::io::{DataFile, LineBlocks, TextBlock, TextFile};
use crate::schema::Schema;

/// Whether the first line of `file`, which a pipe keeps for its reader, has a column more than the
/// integers and categories of `schema`: a label.
///
/// # Errors
/// Those of opening and reading; [`ReaderError::BadLine`] if line 1 has neither number of columns.
pub fn has_label(file: &DataFile, schema: &Schema) -> Result<bool> {
    let mut blocks = LineBlocks::of(TextFile::look(file)?, 4 << 10);
    let mut block = TextBlock::default();
    blocks.next(&mut block)?;
    let text = block.text();
    let line = &text[..memchr(b'\n', text).unwrap_or(text.len())];
    let labelled = schema.with_label(true);
    let found = 1 + memchr::memchr_iter(b'\t', line).count();
    match labelled.num_columns().checked_sub(found) {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => {
            let kind = FaultKind::ColumnCount { schema: labelled, found: found as u32 };
            let fault = Fault { kind, found: Excerpt::of(line) };
            Err(ReaderError::BadLine { file: file.name(), line: 1, fault: fault.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criteo::testing::rows;
    use crate::io::testing::{gzip, write};

    #[test]
    fn the_first_line_tells() {
        let folder = tempfile::tempdir().unwrap();
        let text = rows(50, 1);
        let labelled = write(folder.path(), "a", &gzip(&text));
        let unlabelled = write(folder.path(), "b", &text[2..]);
        let neither = write(folder.path(), "c", b"1\t2\n");
        let schema = Schema::criteo_unlabelled();
        assert!(has_label(&labelled, &schema).unwrap());
        assert!(!has_label(&unlabelled, &schema).unwrap());
        let message = has_label(&neither, &schema).unwrap_err().to_string();
        assert!(
            message.ends_with("c, line 1: expected 40 tab-separated columns, found 2 in \"1\\t2\""),
            "{message}"
        );
    }
}
