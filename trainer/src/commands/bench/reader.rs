//! `headlong bench reader`: how fast files are read and decoded, without a model.
//!
//! Next to each figure stands the disk's own rate: the same bytes by plain direct reads in one
//! thread, in the same run.

use crate::commands::bench::sample::Block;
use crate::commands::data::require_files;
use crate::config::ranges::count;
use crate::error::{Error, Result};
use crate::plan::Count;
use crate::report::output::{self, JsonOutput};
use crate::report::{self, bytes};
use crate::system::machine::{Machine, peak_rss_bytes};
use clap::Args;
use headlong_reader::convert::{self, Described};
use headlong_reader::disk::{DiskBlocks, DiskOptions, IoChoice};
use headlong_reader::formats::Format;
use headlong_reader::io::{DataFile, TextFile};
use headlong_reader::samples::Samples;
use serde_json::json;
use std::io::Read as _;

/// Arguments of `headlong bench reader`.
#[derive(Debug, Args)]
pub struct ReaderArguments {
    /// Files of one format
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<DataFile>,
    /// Their format; told from the first file where it is not given
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Read the bytes and look at none
    #[arg(long)]
    pub no_decode: bool,
    /// Decompress text and look at none of it
    #[arg(long, conflicts_with = "no_decode")]
    pub decompress_only: bool,
    /// Reads in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(1 << 16))]
    pub depth: usize,
    /// Bytes of a read, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 1024, value_parser = count(1 << 20))]
    pub block_kib: usize,
    /// Who reads: auto, io_uring, threads
    #[arg(long, alias = "engine", value_name = "BACKEND", default_value = "auto")]
    pub backend: IoChoice,
    /// Read through the page cache
    #[arg(long)]
    pub buffered: bool,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// Refuses reads in flight that this machine has no memory for.
fn check_memory(options: &DiskOptions) -> Result<()> {
    let needed = Count::from(options.block_bytes) * options.depth;
    let help = || "lower `--depth` or `--block-kib`".to_owned();
    Ok(needed.must_fit(Machine::detect().usable_bytes(), help)?)
}

struct Pass {
    bytes: u64,
    samples: u64,
    seconds: f64,
    /// Cores kept busy by this process.
    cores: f64,
    description: String,
}

impl Pass {
    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Reads the files twice: plainly, for the disk's rate, and as asked.
pub fn run(arguments: &ReaderArguments) -> Result<()> {
    let failed = |error| Error::failed("the files cannot be read")(error);
    let options = DiskOptions {
        block_bytes: arguments.block_kib << 10,
        depth: arguments.depth,
        backend: arguments.backend,
        direct: !arguments.buffered,
    };
    require_files(&arguments.files)?;
    check_memory(&options)?;
    DataFile::refuse_pipes(&arguments.files, "its bytes are read twice, to compare")
        .map_err(failed)?;
    // One read at a time, as `dd iflag=direct bs=1M` does, and many: the better of both is what the
    // disk can.
    let one = DiskOptions {
        block_bytes: 1 << 20,
        depth: 1,
        backend: IoChoice::Threads,
        direct: options.direct,
    };
    let plain = undecoded(&arguments.files, &one).map_err(failed)?;
    let pass = match (arguments.no_decode, arguments.decompress_only) {
        (true, _) => undecoded(&arguments.files, &options).map_err(failed)?,
        (_, true) => decompressed(&arguments.files).map_err(failed)?,
        _ => decoded(arguments, &options).map_err(failed)?,
    };
    // Blocks in flight, and those that wait: all that is held of the files, before it is decoded.
    let (held_bytes, peak_rss_bytes) = (options.most_bytes(), peak_rss_bytes());
    let share = pass.bytes_per_second() / plain.bytes_per_second();
    let mut text = format!(
        "{} in {:.2} s: {}/s, {share:.2} × one plain direct read at a time ({}/s); {:.2} cores\n{}",
        bytes(pass.bytes),
        pass.seconds,
        bytes(pass.bytes_per_second() as u64),
        bytes(plain.bytes_per_second() as u64),
        pass.cores,
        pass.description
    );
    text += &format!(
        "\nmemory: {} at most for blocks, {} at the peak in all",
        bytes(held_bytes),
        bytes(peak_rss_bytes)
    );
    if pass.samples > 0 {
        let rate = pass.samples as f64 / pass.seconds;
        let per_core = pass.bytes_per_second() / pass.cores.max(f64::MIN_POSITIVE);
        text += &format!(
            "\n{} samples, {} a second; {}/s a core",
            report::count(pass.samples),
            report::count(rate as u64),
            bytes(per_core as u64)
        );
    }
    let document = json!({
        "bytes": pass.bytes,
        "samples": pass.samples,
        "seconds": pass.seconds,
        "bytes_per_s": pass.bytes_per_second(),
        "cores": pass.cores,
        "plain_bytes_per_s": plain.bytes_per_second(),
        "share_of_plain": share,
        "decoded": pass.samples > 0,
        "held_bytes": held_bytes,
        "peak_rss_bytes": peak_rss_bytes,
        "description": pass.description,
    });
    output::answer(&arguments.json, &text, &document)
}

fn undecoded(files: &[DataFile], options: &DiskOptions) -> headlong_reader::Result<Pass> {
    let clock = Block::start();
    let (mut bytes, mut description) = (0, String::new());
    for file in files {
        let mut blocks = DiskBlocks::open(file.system_path(), 0, options)?;
        while let Some(block) = blocks.next()? {
            bytes += block.bytes().len() as u64;
        }
        description = blocks.description().to_owned();
    }
    let sample = clock.stop(bytes as f64);
    Ok(Pass {
        bytes,
        samples: 0,
        seconds: sample.wall_s,
        cores: sample.cpu_s / sample.wall_s,
        description,
    })
}

/// The text of the files, decompressed as it is for its parser.
fn decompressed(files: &[DataFile]) -> headlong_reader::Result<Pass> {
    let clock = Block::start();
    let (mut stored, mut buffer) = (0, vec![0; 1 << 20]);
    for path in files {
        let mut file = TextFile::open(path)?;
        stored += file.stored_bytes();
        while file.read(&mut buffer).map_err(|source| file.name_error(source, 0, 0))? > 0 {}
    }
    let sample = clock.stop(stored as f64);
    let cores = sample.cpu_s / sample.wall_s;
    let description = "decompressed, in one thread".to_owned();
    Ok(Pass { bytes: stored, samples: 0, seconds: sample.wall_s, cores, description })
}

fn decoded(arguments: &ReaderArguments, options: &DiskOptions) -> headlong_reader::Result<Pass> {
    let format = match arguments.format {
        Some(format) => format,
        None => convert::detect(&arguments.files[0])?,
    };
    let source = convert::open(format, &arguments.files, &Described::default())?;
    let clock = Block::start();
    let end = source.num_samples().unwrap_or(u64::MAX);
    let mut stream = source.read(Box::new(std::iter::once(0..end)), options)?;
    let (mut samples, mut num_samples) = (Samples::default(), 0);
    while stream.next(&mut samples)? {
        num_samples += samples.num_samples as u64;
    }
    let bytes = source.about().stored_bytes;
    let sample = clock.stop(bytes as f64);
    let description = stream.description();
    Ok(Pass {
        bytes,
        samples: num_samples,
        seconds: sample.wall_s,
        cores: sample.cpu_s / sample.wall_s,
        description,
    })
}
