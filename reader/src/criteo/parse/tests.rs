//! Tests of the line parser: the format, its faults, and that every body agrees with `line`.

use proptest::prelude::*;

use super::*;
use crate::criteo::testing::rows;

fn good_line() -> String {
    let mut fields = vec!["1".to_owned()];
    fields.extend(
        (0..13)
            .map(|index| if index == 3 { String::new() } else { (index * 1001 - 2).to_string() }),
    );
    fields.extend((0..26).map(|index| {
        if index == 20 {
            String::new()
        } else {
            format!("{:08x}", 0x9e37_79b9_u32.wrapping_mul(index + 1))
        }
    }));
    fields.join("\t")
}

/// Parses with every body, at the start of a text and further in, and sees that all agree.
fn parse(schema: Schema, policy: BadRowPolicy, text: &[u8]) -> RawBlock {
    let mut expected = RawBlock::default();
    LineParser::with_body(schema, policy, Body::Plain).parse(text, &mut expected);
    for body in Body::available() {
        let mut block = RawBlock::default();
        LineParser::with_body(schema, policy, body).parse(text, &mut block);
        assert!(block == expected, "{body:?} on {}", text.escape_ascii());
    }
    expected
}

fn fault_of(change: impl Fn(&mut Vec<String>)) -> String {
    let mut fields: Vec<String> = good_line().split('\t').map(str::to_owned).collect();
    change(&mut fields);
    let text = format!("{}\n{}\n{}\n", good_line(), fields.join("\t"), good_line());
    let block = parse(Schema::criteo(), BadRowPolicy::Error, text.as_bytes());
    assert_eq!((block.num_samples, block.bad_lines.len(), block.bad_lines[0].line), (1, 1, 1));
    let skipped = parse(Schema::criteo(), BadRowPolicy::Skip, text.as_bytes());
    assert_eq!((skipped.num_samples, skipped.num_lines), (2, 3));
    assert_eq!(skipped.bad_lines, block.bad_lines);
    assert_eq!((skipped.lines_through(0), skipped.lines_through(1)), (1, 3));
    block.faults[0].to_string()
}

#[test]
fn a_good_line_gives_its_numbers() {
    let block = parse(Schema::criteo(), BadRowPolicy::Error, good_line().as_bytes());
    assert_eq!(
        (block.num_samples, block.labels.as_slice(), block.bad_lines.len()),
        (1, &[1][..], 0)
    );
    assert_eq!(block.dense[..5], [-2, 999, 2000, MISSING_DENSE, 4002]);
    assert_eq!(
        (block.sparse[0], block.sparse[20], block.sparse_missing[0]),
        (0x9e37_79b9, 0, 1 << 20)
    );
    assert_eq!((block.dense.len(), block.sparse.len()), (13, 26));
}

#[test]
fn line_ends_of_every_kind_are_tolerated() {
    let line = good_line();
    let plain =
        parse(Schema::criteo(), BadRowPolicy::Error, format!("{line}\n{line}\n").as_bytes());
    assert_eq!(plain.num_samples, 2);
    for text in
        [format!("{line}\r\n{line}\r\n"), format!("{line}\n{line}"), format!("{line}\r\n{line}\r")]
    {
        let other = parse(Schema::criteo(), BadRowPolicy::Error, text.as_bytes());
        assert_eq!(other.bad_lines, []);
        assert_eq!(
            (&other.labels, &other.dense, &other.sparse, &other.sparse_missing),
            (&plain.labels, &plain.dense, &plain.sparse, &plain.sparse_missing)
        );
        assert_eq!(other.line_ends[1] as usize, text.len());
    }
}

#[test]
fn unlabelled_rows_have_39_columns() {
    let line = good_line();
    let text = line.split_once('\t').unwrap().1.as_bytes();
    let block = parse(Schema::criteo_unlabelled(), BadRowPolicy::Error, text);
    assert_eq!((block.num_samples, block.labels.len(), block.sparse[0]), (1, 0, 0x9e37_79b9));
    let wrong = parse(Schema::criteo_unlabelled(), BadRowPolicy::Error, line.as_bytes());
    assert!(wrong.faults[0].to_string().ends_with("(rows with a label?)"));
}

#[test]
fn a_wrong_column_count_is_named() {
    let message = fault_of(|fields| drop(fields.pop()));
    assert!(
        message.starts_with("expected 40 tab-separated columns, found 39 in \"1\\t-2\\t999"),
        "{message}"
    );
    let message = fault_of(|fields| fields.push("12".to_owned()));
    assert!(message.contains("found 41"), "{message}");
    let message = fault_of(|fields| *fields = vec![String::new()]);
    assert!(message.contains("found 1 in \"\""), "{message}");
}

#[test]
fn a_bad_category_is_named() {
    let message = fault_of(|fields| fields[16] = "12g4".to_owned());
    assert_eq!(
        message,
        "column C3: expected up to 8 hexadecimal digits or nothing, found \"12g4\""
    );
    let message = fault_of(|fields| fields[39] = "123456789".to_owned());
    assert_eq!(
        message,
        "column C26: expected up to 8 hexadecimal digits, found more in \"123456789\""
    );
}

#[test]
fn a_bad_integer_is_named() {
    for text in ["1.5", "abc", "-", "--1", "+1", " 1", "1-"] {
        let message = fault_of(|fields| fields[2] = text.to_owned());
        assert_eq!(message, format!("column I2: expected an integer or nothing, found \"{text}\""));
    }
    for text in ["2147483648", "-2147483648", "99999999999999999999"] {
        let message = fault_of(|fields| fields[13] = text.to_owned());
        assert!(
            message.starts_with("column I13: expected an integer from -2147483647 to"),
            "{message}"
        );
    }
}

#[test]
fn a_bad_label_is_named() {
    for text in ["2", "", "-1", "0.0", "01"] {
        let message = fault_of(|fields| fields[0] = text.to_owned());
        assert_eq!(message, format!("column label: expected 0 or 1, found \"{text}\""));
    }
}

#[test]
fn a_line_that_is_too_long_is_named() {
    let message = fault_of(|fields| fields[39] = "a".repeat(MAX_LINE_BYTES));
    assert!(message.starts_with("expected a row of at most 65536 bytes"), "{message}");
}

#[test]
fn extreme_integers_and_short_categories_are_read() {
    let mut fields: Vec<String> = good_line().split('\t').map(str::to_owned).collect();
    fields[1] = i32::MAX.to_string();
    fields[2] = (-i32::MAX).to_string();
    fields[3] = "-0".to_owned();
    fields[4] = "000000000000000007".to_owned();
    fields[14] = "A".to_owned();
    fields[15] = "fFfFfFfF".to_owned();
    let block = parse(Schema::criteo(), BadRowPolicy::Error, fields.join("\t").as_bytes());
    assert_eq!(block.dense[..4], [i32::MAX, -i32::MAX, 0, 7]);
    assert_eq!(block.sparse[..2], [10, u32::MAX]);
}

#[test]
fn schemas_of_any_width_are_read() {
    for labelled in [false, true] {
        for (num_dense, num_sparse) in [(0, 1), (1, 0), (3, 2), (8, 8), (9, 17), (16, 64), (64, 64)]
        {
            let schema = Schema { labelled, num_dense, num_sparse };
            let mut line = Vec::from_iter(labelled.then(|| "1".to_owned()));
            line.extend((0..num_dense).map(|index| (1 - index as i64).to_string()));
            line.extend((0..num_sparse).map(|index| format!("{:x}", 0xa << (index % 29))));
            let text = format!("{}\n", line.join("\t")).repeat(3);
            let block = parse(schema, BadRowPolicy::Error, text.as_bytes());
            assert_eq!((block.num_samples, block.bad_lines.len()), (3, 0), "{schema:?}");
            let dense: Vec<i32> = (0..num_dense as i32).map(|index| 1 - index).collect();
            assert_eq!(block.dense, dense.repeat(3));
        }
    }
}

/// Rows with a few bytes changed, inserted or removed.
fn damaged_rows() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(b'\t'),
        Just(b'\n'),
        Just(b'\r'),
        Just(b'-'),
        Just(b'g'),
        Just(b'9'),
        any::<u8>()
    ];
    let change = (any::<prop::sample::Index>(), 0..3_u8, byte);
    (any::<u64>(), 1..12_usize, prop::collection::vec(change, 0..6)).prop_map(
        |(seed, count, changes)| {
            let mut text = rows(count, seed);
            for (index, kind, byte) in changes {
                let index = index.index(text.len());
                match kind {
                    0 => text[index] = byte,
                    1 => text.insert(index, byte),
                    _ => drop(text.remove(index)),
                }
            }
            text
        },
    )
}

/// Bytes of which many are those that matter to the format.
fn rubbish() -> impl Strategy<Value = Vec<u8>> {
    let common = prop::sample::select(b"\t\t\t\t\t\t\t\n\r-019afAFgG \x00\xff".to_vec());
    prop::collection::vec(prop_oneof![8 => common, 1 => any::<u8>()], 0..3000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn all_bodies_agree_on_damaged_rows(text in damaged_rows(), labelled: bool) {
        parse(Schema::criteo().with_label(labelled), BadRowPolicy::Skip, &text);
        parse(Schema::criteo().with_label(labelled), BadRowPolicy::Error, &text);
    }

    #[test]
    fn all_bodies_agree_on_rubbish(
        text in rubbish(), num_dense in 0..4_usize, num_sparse in 1..4_usize,
    ) {
        parse(Schema { labelled: true, num_dense, num_sparse }, BadRowPolicy::Skip, &text);
        parse(Schema { labelled: false, num_dense, num_sparse }, BadRowPolicy::Skip, &text);
        parse(Schema::criteo(), BadRowPolicy::Skip, &text);
    }
}

#[test]
fn all_bodies_agree_on_many_rows() {
    // Longer than several windows of the vector body.
    let text = rows(2000, 3);
    let block = parse(Schema::criteo(), BadRowPolicy::Error, &text);
    assert_eq!((block.num_samples, block.bad_lines.len()), (2000, 0));
    let long = [b"9".repeat(40_000).as_slice(), b"\n", &text].concat();
    assert_eq!(parse(Schema::criteo(), BadRowPolicy::Skip, &long).num_samples, 2000);
}
