//! Tables of kind `hashed` as a graph: ids that have rows are looked up, and of the others the
//! initial values are made, by the rounds of Philox4x32 ([`headlong_device::rng`]).

use super::columns::shift_right;
use super::graph::Graph;
use super::proto::{self, Elem};
use crate::commands::export::hashed::HashedTable;
use headlong_device::rng::{KEY_STEPS, MULTIPLIERS, ROUNDS};

/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;
/// An axis of unknown length.
const ANY: i64 = -1;

/// Ids of one column.
pub(super) struct IdsOf<'a> {
    pub ids: &'a str,
    /// How many axes they have: one, or of lists two.
    pub axes: usize,
}

/// The vectors of ids, along one axis more. `held` are the ids that have a row, and which of
/// `entries` each is.
pub(super) fn vectors(
    graph: &mut Graph,
    (table, dim): (&HashedTable, usize),
    entries: &str,
    held: &[(u64, u64)],
    ids: &IdsOf<'_>,
) -> String {
    let initial = initial_values(graph, table, dim, ids);
    if held.is_empty() {
        return initial;
    }
    let keys: Vec<i64> = held.iter().map(|&(id, _)| id as i64).collect();
    // 0 is none.
    let values: Vec<i64> = held.iter().map(|&(_, entry)| entry as i64 + 1).collect();
    let found = graph.look_up(ids.ids, &keys, &values);
    let (zero, one) = (graph.integer(0), graph.integer(1));
    let is_held = graph.node("Greater", &[&found, &zero]);
    let entry = graph.node("Max", &[&found, &one]);
    let entry = graph.node("Sub", &[&entry, &one]);
    let rows = graph.node("Gather", &[entries, &entry]);
    let rows = part(graph, &rows, table.head..table.head + dim);
    let last = graph.integers(&[ANY]);
    let is_held = graph.node("Unsqueeze", &[&is_held, &last]);
    graph.node("Where", &[&is_held, &rows, &initial])
}

/// Elements of the last axis.
fn part(graph: &mut Graph, value: &str, elements: std::ops::Range<usize>) -> String {
    let [start, end, last] =
        [elements.start as i64, elements.end as i64, ANY].map(|number| graph.integers(&[number]));
    graph.node("Slice", &[value, &start, &end, &last])
}

/// Uniform numbers of a stream for each id, four of each counter.
fn initial_values(graph: &mut Graph, table: &HashedTable, dim: usize, ids: &IdsOf<'_>) -> String {
    let groups = dim.div_ceil(4);
    let last = graph.integers(&[ANY]);
    let stream = graph.node("Unsqueeze", &[ids.ids, &last]);
    let stream = graph.cast(&stream, Elem::U64);
    let (half, low) = (graph.unsigned(32), graph.unsigned(LOW));
    let counters: Vec<u64> = (0..groups as u64).collect();
    let mut words = [
        graph.all_unsigned(&counters),
        graph.unsigned(0),
        graph.node("BitwiseAnd", &[&stream, &low]),
        shift_right(graph, &stream, &half),
    ];
    let mut key = [table.seed as u32, (table.seed >> 32) as u32];
    for _ in 0..ROUNDS {
        let [upper_a, lower_a] = product(graph, &words[0], MULTIPLIERS[0], [&half, &low]);
        let [upper_b, lower_b] = product(graph, &words[2], MULTIPLIERS[1], [&half, &low]);
        let mut mixed = |upper: &str, word: &str, key: u32| {
            let key = graph.unsigned(u64::from(key));
            let mixed = graph.node("BitwiseXor", &[upper, word]);
            graph.node("BitwiseXor", &[&mixed, &key])
        };
        let first = mixed(&upper_b, &words[1], key[0]);
        let third = mixed(&upper_a, &words[3], key[1]);
        words = [first, lower_b, third, lower_a];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    let words = words.map(|word| graph.node("Unsqueeze", &[&word, &last]));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let bits = graph.node_with("Concat", &words, vec![proto::integer("axis", ANY)]);
    // 0: as long as it is.
    let shape: Vec<i64> = std::iter::repeat_n(0, ids.axes).chain([4 * groups as i64]).collect();
    let shape = graph.integers(&shape);
    let bits = graph.node("Reshape", &[&bits, &shape]);
    let bits = part(graph, &bits, 0..dim);
    let by_8 = graph.unsigned(8);
    let bits = shift_right(graph, &bits, &by_8);
    let unit = graph.cast(&bits, Elem::F32);
    // From [0, 1) to [-bound, bound), in the steps of the program.
    let [shrink, scale, bound] =
        [1.0 / (1 << 24) as f32, table.bound + table.bound, table.bound].map(|x| graph.float(x));
    let unit = graph.node("Mul", &[&unit, &shrink]);
    let scaled = graph.node("Mul", &[&unit, &scale]);
    graph.node("Sub", &[&scaled, &bound])
}

/// Both halves of the product of a word of 32 bits and a number.
fn product(graph: &mut Graph, word: &str, by: u32, [half, low]: [&str; 2]) -> [String; 2] {
    // Runtimes multiply only integers that have a sign: their products have the same bits.
    let word = graph.cast(word, Elem::I64);
    let by = graph.integer(i64::from(by));
    let product = graph.node("Mul", &[&word, &by]);
    let bits = graph.cast(&product, Elem::U64);
    [shift_right(graph, &bits, half), graph.node("BitwiseAnd", &[&bits, low])]
}
