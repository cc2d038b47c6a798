//! Criteo text to numbers: lines in memory, and a whole file through the reader's threads.

use crate::harness::{Floor, Harness, Rate};
use headlong::commands::bench::data::{ZIPF_EXPONENT, Zipf};
use headlong::commands::bench::sample::Sample;
use headlong_device::rng::CounterRng;
use headlong_reader::criteo::{
    BadRowPolicy, BlockOptions, BlockStream, Event, LineParser, RawBlock,
};
use headlong_reader::{Position, Schema};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const BLOCK_BYTES: usize = 1 << 20;

/// Runs `parse/lines` and `parse/file`.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    if !harness.wants("parse/lines") && !harness.wants("parse/file") {
        return Ok(());
    }
    let given = harness.settings().file.clone();
    let text = match &given {
        Some(path) => std::fs::read(path)?,
        None => generate(harness.size(200_000, 300)).into_bytes(),
    };
    lines(harness, &text);
    let folder = tempfile::tempdir()?;
    let path = match given {
        Some(path) => path,
        None => {
            let path = folder.path().join("lines.tsv");
            std::fs::write(&path, &text)?;
            path
        }
    };
    file(harness, &path, text.len())
}

fn lines(harness: &mut Harness, text: &[u8]) {
    let blocks = cut(text);
    let stream = harness.stream().clone();
    let parsers: Vec<_> = blocks
        .iter()
        .map(|_| {
            let parser = LineParser::new(Schema::criteo(), BadRowPolicy::Error);
            std::sync::Mutex::new((parser, RawBlock::default()))
        })
        .collect();
    let rate = Rate {
        name: "parse/lines in memory",
        unit: "MB/s",
        work: text.len() as f64 * 1e-6,
        floor: Floor::None,
    };
    harness.measure(&rate, || {
        stream.pool().run(blocks.len(), &|index| {
            if let Ok(mut state) = parsers[index].lock() {
                let (parser, block) = &mut *state;
                parser.parse(blocks[index], block);
            }
        });
    });
}

/// A file through the threads that read, cut and parse: what training takes in.
fn file(harness: &mut Harness, path: &Path, text_bytes: usize) -> anyhow::Result<()> {
    let options =
        BlockOptions { num_threads: harness.settings().threads, ..BlockOptions::default() };
    let rate = Rate {
        name: "parse/file to arrays",
        unit: "MB/s",
        work: text_bytes as f64 * 1e-6,
        floor: Floor::None,
    };
    let mut failure = None;
    let samples = harness.measure(&rate, || {
        if let Err(error) = read_all(path.to_owned(), &options) {
            failure = Some(error);
        }
    });
    failure
        .map_or(Ok(()), |error: headlong_reader::ReaderError| Err(anyhow::Error::from(error)))?;
    // What is compared with other readers: all their threads count. Blocks too short for the clock
    // of CPU time are left out.
    let counted = samples.into_iter().filter(|sample| sample.cpu_s > 0.0);
    let by_cpu: Vec<_> = counted
        .map(|sample| Sample { rate: sample.rate * sample.wall_s / sample.cpu_s, ..sample })
        .collect();
    harness.report(&Rate { name: "parse/file to arrays, per CPU second", ..rate }, &by_cpu);
    Ok(())
}

fn read_all(path: PathBuf, options: &BlockOptions) -> headlong_reader::Result<u64> {
    let mut stream = BlockStream::open(vec![path.into()], options, &Position::default(), Some(1))?;
    let mut samples = 0;
    while let Some(event) = stream.next()? {
        if let Event::Block(block) = event {
            samples += block.raw.num_samples as u64;
            stream.recycle(block);
        }
    }
    Ok(samples)
}

fn cut(text: &[u8]) -> Vec<&[u8]> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while rest.len() > BLOCK_BYTES {
        let end = rest[BLOCK_BYTES..].iter().position(|&byte| byte == b'\n');
        let (block, after) = rest.split_at(end.map_or(rest.len(), |end| BLOCK_BYTES + end + 1));
        blocks.push(block);
        rest = after;
    }
    blocks.push(rest);
    blocks
}

/// Lines like Criteo's: log-normal integers, Zipf categories, a tenth to a third missing.
fn generate(num_lines: usize) -> String {
    let rng = CounterRng::new(5, 0);
    let zipf = Zipf::new(100_000, ZIPF_EXPONENT);
    let mut index = 0;
    let mut next = || {
        index += 1;
        f64::from(rng.uniform(index))
    };
    let mut text = String::new();
    for _ in 0..num_lines {
        text.push(if next() < 0.25 { '1' } else { '0' });
        for column in 0..13 {
            text.push('\t');
            if next() >= 0.2 {
                let value = (-3.0 * next().max(1e-9).ln()).powi(2 + column % 2) as i64;
                write!(text, "{value}").expect("writing to a string never fails");
            }
        }
        for column in 0..26_u64 {
            text.push('\t');
            if next() >= 0.12 {
                let word = (zipf.draw(&mut next) + column * 1_000_003)
                    .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                    >> 32;
                write!(text, "{word:08x}").expect("writing to a string never fails");
            }
        }
        text.push('\n');
    }
    text
}
