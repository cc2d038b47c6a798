//! `headlong bench machine`: what this machine can do at most, asked once: multiply-adds, bytes in
//! order and by rows, instructions; and how many samples a second that allows at each shape.

use super::data::zipf_rows;
use super::iteration::configuration;
use super::memory::{self, ARRAY_BYTES, ROW_BYTES, ROWS, RowTable, SmallPages};
use super::sample::Block;
use super::shapes::Shape;
use crate::config::{Instructions, Precision, ranges};
use crate::error::{Error, Result};
use crate::iteration::arithmetic::Arithmetic;
use crate::plan::Count;
use crate::report::output::{self, JsonOutput};
use crate::report::{bytes, count};
use crate::system::machine::{Machine, cores, instruction_limit};
use crate::system::peak::{Factors, multiply_add_gflops};
use crate::system::processor;
use clap::Args;
use headlong_device::Stream;
use headlong_device::simd::{Bf16Products, bf16_products, isa};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Arguments of `headlong bench machine`.
#[derive(Debug, Args)]
pub struct MachineArguments {
    /// Threads, next to one; one per core by default
    #[arg(long, value_name = "N", value_parser = ranges::threads)]
    pub threads: Option<usize>,
    /// Samples of a batch, in the bounds of the shapes
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = ranges::count(1 << 24))]
    pub batch_size: usize,
    /// Rows of 512 bytes to gather from and to update; 5,000,000 by default, where memory allows
    #[arg(long, value_name = "N", value_parser = ranges::count(1 << 32))]
    pub rows: Option<usize>,
    /// Seconds to measure each multiply-add peak
    #[arg(long, value_name = "S", default_value_t = 0.25, value_parser = ranges::time)]
    pub seconds: f64,
    /// Instructions that arithmetic may use
    #[arg(long, value_name = "auto|portable|avx2|avx512|avx512_bf16|amx", default_value = "auto")]
    pub instructions: Instructions,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Blocks that each rate is the best of.
const BLOCKS: usize = 5;
/// Part of the memory that the rows may take where their number is not given.
const SHARE_OF_MEMORY: u64 = 4;
const SHAPES: [&str; 3] = ["C1", "C2", "C3"];

pub fn run(arguments: &MachineArguments) -> Result<()> {
    instruction_limit(arguments.instructions)?.run(|| measure(arguments))
}

fn measure(arguments: &MachineArguments) -> Result<()> {
    let rows = num_rows(arguments)?;
    let most = arguments.threads.unwrap_or_else(cores).max(1);
    let block = Block::start();
    let mut rates = vec![Rates::measure(1, rows, arguments.seconds)];
    if most > 1 {
        rates.push(Rates::measure(most, rows, arguments.seconds));
    }
    let foreign = block.stop(1.0).foreign;
    let found = SHAPES.map(|name| Needs::of(name, arguments.batch_size));
    let shapes: Vec<Needs> = found.into_iter().collect::<Result<_>>()?;
    let document = document(&rates, &shapes, (rows, arguments.batch_size, foreign));
    output::answer(&arguments.json, &text(&document, &rates, &shapes), &document)
}

/// Rows that are asked for, or as many as the memory has room for.
fn num_rows(arguments: &MachineArguments) -> Result<usize> {
    let usable = Machine::detect().usable_bytes();
    let fitting = usable / SHARE_OF_MEMORY / ROW_BYTES as u64;
    let rows = arguments.rows.unwrap_or_else(|| ROWS.min(fitting.max(1) as usize));
    let needed = Count::from(rows) * ROW_BYTES + 2 * ARRAY_BYTES as u64;
    needed.must_fit(usable, || "lower --rows".to_owned())?;
    Ok(rows)
}

/// What some threads can do at most.
#[derive(Debug, Clone, Serialize)]
struct Rates {
    threads: usize,
    f32_gflops: f64,
    bf16_gflops: f64,
    read_gb_per_s: f64,
    copy_gb_per_s: f64,
    gather_gb_per_s: f64,
    update_gb_per_s: f64,
    /// None where the system cannot be asked for small pages.
    gather_small_pages_gb_per_s: Option<f64>,
    update_small_pages_gb_per_s: Option<f64>,
}

impl Rates {
    fn measure(threads: usize, rows: usize, seconds: f64) -> Self {
        let stream = Stream::cpu(threads);
        let blocks = if seconds > 0.0 { BLOCKS } else { 1 };
        let block_ms = (seconds * 1e3 / blocks as f64).max(1.0) as u64;
        let peak = |factors| multiply_add_gflops(&stream, factors, blocks, block_ms);
        let [gather_gb_per_s, update_gb_per_s] = of_rows(&stream, rows, blocks);
        let small = SmallPages::ask().map(|_small| of_rows(&stream, rows, blocks));
        Self {
            threads,
            f32_gflops: peak(Factors::F32),
            bf16_gflops: peak(match bf16_products() {
                Bf16Products::Tiles => Factors::Bf16Tiles,
                Bf16Products::Pairs | Bf16Products::None => Factors::Bf16,
            }),
            read_gb_per_s: memory::read_gb_per_s(&stream, ARRAY_BYTES, blocks),
            copy_gb_per_s: memory::copy_gb_per_s(&stream, ARRAY_BYTES, blocks),
            gather_gb_per_s,
            update_gb_per_s,
            gather_small_pages_gb_per_s: small.map(|[gather, _]| gather),
            update_small_pages_gb_per_s: small.map(|[_, update]| update),
        }
    }

    fn gflops(&self, precision: Precision) -> f64 {
        if precision == Precision::Bf16 { self.bf16_gflops } else { self.f32_gflops }
    }
}

/// GB a second of rows that are gathered, and updated.
fn of_rows(stream: &Stream, rows: usize, blocks: usize) -> [f64; 2] {
    RowTable::new(stream, rows).map_or([f64::NAN; 2], |table| {
        [table.gather_gb_per_s(stream, blocks), table.update_gb_per_s(stream, blocks)]
    })
}

/// What a sample of a shape asks for.
#[derive(Debug, Clone)]
struct Needs {
    name: &'static str,
    flop: u64,
    /// Bytes of rows that are looked up, one for each id.
    read_bytes: f64,
    /// Bytes of distinct rows of a batch and their optimiser's states, read and written.
    updated_bytes: f64,
}

impl Needs {
    fn of(name: &str, batch_size: usize) -> Result<Self> {
        let shape = Shape::from_name(name, None).map_err(Error::Usage)?;
        let config = configuration(&shape, batch_size, 1, None)?;
        let (mut ids, mut distinct) = (0, 0);
        for (table, (&rows, &hotness)) in (0..).zip(shape.rows.iter().zip(&shape.hotness)) {
            let drawn = zipf_rows(1, table, rows, batch_size * hotness as usize);
            ids += drawn.len();
            distinct += drawn.into_iter().collect::<HashSet<_>>().len();
        }
        let row = (shape.dim * 4) as f64;
        let states = config.optimizer.sparse.optimizer().state_bytes(1, shape.dim) as f64;
        Ok(Self {
            name: shape.name,
            flop: Arithmetic::of(&config).training_flop(),
            read_bytes: ids as f64 * row / batch_size as f64,
            updated_bytes: 2.0 * distinct as f64 * (row + states) / batch_size as f64,
        })
    }

    fn row_bytes(&self) -> f64 {
        self.read_bytes + self.updated_bytes
    }

    /// Samples a second at most, where products and rows overlap wholly, and which of them takes
    /// longer.
    fn bound(&self, rates: &Rates, precision: Precision) -> (f64, &'static str) {
        let products_s = self.flop as f64 / rates.gflops(precision) * 1e-9;
        let read_s = self.read_bytes / rates.gather_gb_per_s;
        let rows_s = (read_s + self.updated_bytes / rates.update_gb_per_s) * 1e-9;
        if rows_s > products_s { (1.0 / rows_s, "rows") } else { (1.0 / products_s, "products") }
    }

    /// The bounds of both precisions on each number of threads.
    fn bounds<'a>(
        &'a self,
        rates: &'a [Rates],
    ) -> impl Iterator<Item = (Precision, &'a Rates, f64, &'static str)> {
        [Precision::F32, Precision::Bf16].into_iter().flat_map(move |precision| {
            rates.iter().map(move |rates| {
                let (samples_per_s, by) = self.bound(rates, precision);
                (precision, rates, samples_per_s, by)
            })
        })
    }
}

fn document(
    rates: &[Rates],
    shapes: &[Needs],
    (rows, batch_size, foreign): (usize, usize, f64),
) -> Value {
    let shapes = shapes.iter().map(|shape| {
        let bounds = shape.bounds(rates).map(|(precision, rates, samples_per_s, by)| {
            json!({
                "dtype": precision, "threads": rates.threads, "samples_per_s": samples_per_s,
                "bound_by": by,
            })
        });
        json!({
            "shape": shape.name, "flop_per_sample": shape.flop,
            "row_bytes_per_sample": shape.row_bytes(), "bounds": bounds.collect::<Vec<_>>(),
        })
    });
    json!({
        "bench": "machine", "schema": 1, "processor": processor::name(), "cores": cores(),
        "caches": processor::caches(), "instructions": processor::instructions(),
        "isa": isa().name(), "bf16_products": bf16_products().name(),
        "huge_pages": processor::huge_pages(),
        "array_bytes": ARRAY_BYTES, "rows": rows, "row_bytes": ROW_BYTES, "rates": rates,
        "batch_size": batch_size,
        "shapes": shapes.collect::<Vec<_>>(), "foreign": foreign,
    })
}

fn text(document: &Value, rates: &[Rates], shapes: &[Needs]) -> String {
    let mut text = facts(document);
    let columns: String = rates.iter().map(|rates| format!("{:>12}", threads(rates))).collect();
    text += &format!("\n{:<44}{columns}\n", "at most");
    let row_bytes = format!("rows of {ROW_BYTES} bytes");
    type RateOf = fn(&Rates) -> Option<f64>;
    let lines: [(String, RateOf); 8] = [
        ("multiply-adds, f32, GFLOP/s".to_owned(), |rates| Some(rates.f32_gflops)),
        ("multiply-adds, bf16, GFLOP/s".to_owned(), |rates| Some(rates.bf16_gflops)),
        ("reading in order, GB/s".to_owned(), |rates| Some(rates.read_gb_per_s)),
        ("copying in order, GB/s".to_owned(), |rates| Some(rates.copy_gb_per_s)),
        (format!("gather of {row_bytes}, GB/s"), |rates| Some(rates.gather_gb_per_s)),
        ("  on small pages".to_owned(), |rates| rates.gather_small_pages_gb_per_s),
        (format!("update of {row_bytes}, GB/s"), |rates| Some(rates.update_gb_per_s)),
        ("  on small pages".to_owned(), |rates| rates.update_small_pages_gb_per_s),
    ];
    for (name, rate) in lines {
        let shown = |rates| rate(rates).map_or("–".to_owned(), |rate| format!("{rate:.1}"));
        let shown: String = rates.iter().map(|rates| format!("{:>12}", shown(rates))).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<44}{shown}");
    }
    text += &bounds_text(document, rates, shapes);
    if document["foreign"].as_f64() >= Some(0.1) {
        let foreign = document["foreign"].as_f64().unwrap_or_default();
        let _ =
            writeln!(text, "others used {foreign:.1} cores meanwhile: repeat on a quiet machine");
    }
    text
}

fn threads(rates: &Rates) -> String {
    if rates.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", rates.threads) }
}

/// What the system says of the machine.
fn facts(document: &Value) -> String {
    let caches = processor::caches().into_iter().map(|cache| {
        let kind = if cache.kind == "unified" { String::new() } else { format!(" {}", cache.kind) };
        format!("L{}{kind} {}", cache.level, bytes(cache.bytes))
    });
    let list = |words: Vec<String>| match words.is_empty() {
        true => "not known".to_owned(),
        false => words.join(", "),
    };
    let found = processor::instructions().into_iter().map(str::to_owned);
    format!(
        "{}, {} cores\ncaches: {}\ninstructions: {}\nused: {}\nhuge pages: {}\n",
        document["processor"].as_str().unwrap_or_default(),
        document["cores"],
        list(caches.collect()),
        list(found.collect()),
        processor::in_use(isa(), bf16_products()),
        processor::huge_pages().as_deref().unwrap_or("not known"),
    )
}

/// A line for each shape.
fn bounds_text(document: &Value, rates: &[Rates], shapes: &[Needs]) -> String {
    let mut text = format!(
        "\nsamples/s at most, batch {}, and what bounds them\n{:<6}{:>14}{:>12}",
        count(document["batch_size"].as_u64().unwrap_or_default()),
        "shape",
        "FLOP",
        "row bytes"
    );
    for (precision, rates, ..) in shapes.first().into_iter().flat_map(|shape| shape.bounds(rates)) {
        let name = if precision == Precision::Bf16 { "bf16" } else { "f32" };
        let _ = write!(text, "{:>20}", format!("{name}, {}", threads(rates)));
    }
    text.push('\n');
    for shape in shapes {
        let row_bytes = bytes(shape.row_bytes() as u64);
        let _ = write!(text, "{:<6}{:>14}{row_bytes:>12}", shape.name, count(shape.flop));
        for (_, _, samples_per_s, by) in shape.bounds(rates) {
            let _ = write!(text, "{:>20}", format!("{} {by}", count(samples_per_s as u64)));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(f32_gflops: f64, gb_per_s: f64) -> Rates {
        Rates {
            threads: 1,
            f32_gflops,
            bf16_gflops: 2.0 * f32_gflops,
            read_gb_per_s: gb_per_s,
            copy_gb_per_s: gb_per_s,
            gather_gb_per_s: gb_per_s,
            update_gb_per_s: gb_per_s,
            gather_small_pages_gb_per_s: None,
            update_small_pages_gb_per_s: None,
        }
    }

    #[test]
    fn a_sample_needs_what_the_documentation_says() {
        // From docs/performance.md: KiB of rows, and of C3 with Adagrad's states.
        for (name, flop, kib) in
            [("C1", 14_447_360, 21.0), ("C2", 2_866_592, 2.6), ("C3", 96_169_472, 225.0)]
        {
            let needs = Needs::of(name, 2048).unwrap();
            assert_eq!(needs.flop, flop, "{name}");
            let found = needs.row_bytes() / 1024.0;
            assert!((found / kib - 1.0).abs() < 0.03, "{name}: {found} KiB");
        }
    }

    #[test]
    fn the_slower_of_products_and_rows_is_the_bound() {
        let needs = Needs { name: "C1", flop: 1_000_000, read_bytes: 1e3, updated_bytes: 1e3 };
        for (rates, precision, expected, by) in [
            (rates(100.0, 100.0), Precision::F32, 1e5, "products"),
            (rates(100.0, 0.1), Precision::Bf16, 5e4, "rows"),
            (rates(100.0, 1.0), Precision::Bf16, 2e5, "products"),
        ] {
            let (samples_per_s, found) = needs.bound(&rates, precision);
            assert!(
                (samples_per_s - expected).abs() < 1.0 && found == by,
                "{samples_per_s} {found}"
            );
        }
    }
}
