use headlong_reader::criteo::parse::{Body, MISSING_DENSE, MOST_FAULTS};
use headlong_reader::criteo::{LineParser, RawBlock};
use headlong_reader::{BadRowPolicy, Schema};

/// The line parser on arbitrary bytes: every body gives what the definition gives, and what it
/// gives is whole.
///
/// The first byte chooses columns and policy, the rest is the text. True where some line is a row.
pub fn criteo_line(data: &[u8]) -> bool {
    let Some((&choice, text)) = data.split_first() else { return false };
    let labelled = choice & 1 == 0;
    let policy = if choice & 2 == 0 { BadRowPolicy::Skip } else { BadRowPolicy::Error };
    let (num_dense, num_sparse) = match choice >> 2 & 3 {
        0 | 1 => (13, 26),
        2 => (2, 3),
        _ => (9, 0),
    };
    let schema = Schema { labelled, num_dense, num_sparse };
    let parse = |body: Body| {
        let mut block = RawBlock::default();
        LineParser::with_body(schema, policy, body).parse(text, &mut block);
        block
    };
    let expected = parse(Body::Plain);
    check(&schema, policy, text, &expected);
    for body in Body::available() {
        assert!(parse(body) == expected, "{body:?}");
    }
    expected.num_samples > 0
}

/// What holds for every block.
fn check(schema: &Schema, policy: BadRowPolicy, text: &[u8], block: &RawBlock) {
    let num_samples = block.num_samples;
    assert_eq!(block.labels.len(), if schema.labelled { num_samples } else { 0 });
    assert_eq!(block.dense.len(), num_samples * schema.num_dense);
    assert_eq!(block.sparse.len(), num_samples * schema.num_sparse);
    assert_eq!((block.sparse_missing.len(), block.line_ends.len()), (num_samples, num_samples));
    assert!(block.labels.iter().all(|&label| label <= 1));
    assert!(
        block.dense.iter().all(|&value| value == MISSING_DENSE || value.checked_neg().is_some())
    );
    assert_eq!(block.num_lines, num_samples + block.bad_lines.len());
    if policy == BadRowPolicy::Skip || block.bad_lines.is_empty() {
        let unended = text.last().is_some_and(|&byte| byte != b'\n') as usize;
        assert_eq!(block.num_lines, text.iter().filter(|&&byte| byte == b'\n').count() + unended);
    }
    assert!(
        block.line_ends.is_sorted()
            && block.line_ends.last().is_none_or(|&end| end as usize <= text.len())
    );
    assert_eq!(block.faults.len(), block.bad_lines.len().min(MOST_FAULTS));
    assert!(block.faults.iter().all(|fault| !fault.to_string().is_empty()));
}
