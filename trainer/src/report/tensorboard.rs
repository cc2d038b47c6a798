//! `--tensorboard DIR`: scalars of a run as event files that TensorBoard reads.
//!
//! A file is a row of records, each an `Event` in protocol buffers (tensorboard/compat/proto:
//! `event.proto`, `summary.proto`), framed as TFRecord frames them:
//!
//! ```text
//! u64 length, little-endian
//! u32 masked CRC-32C of these 8 bytes
//! the event
//! u32 masked CRC-32C of the event
//! ```
//!
//! A run that resumes writes a new file next to the old ones. Its first event tells TensorBoard to
//! forget the steps that come again; that of a run from the beginning, to forget all.

use super::events::{At, Eval, Start, Step};
use crate::error::{Error, Result};
use crate::protobuf::Message;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What the names of event files begin with; seconds since 1970 follow, then what tells writers of
/// one second apart. TensorBoard reads the files of a folder in the order of their names.
const PREFIX: &str = "events.out.tfevents.";

/// Fields of `Event`.
const WALL_TIME: u32 = 1;
const STEP: u32 = 2;
const FILE_VERSION: u32 = 3;
const SUMMARY: u32 = 5;
const SESSION_LOG: u32 = 7;

/// An event file that grows with the run.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes the next event file in `folder`, which is made where it is not there. `resumed` is
    /// the step of the checkpoint that the run resumes from.
    ///
    /// # Errors
    /// Folder or file cannot be made or written.
    pub fn create(folder: &Path, resumed: Option<u64>) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let last = last_seconds(folder).map_err(Error::io("list", folder))?;
        let seconds = (now() as u64).max(last.map_or(0, |last| last + 1));
        let name = format!("{PREFIX}{seconds:010}.headlong.{}", std::process::id());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        let mut events = Self { file, path };
        events.write(&event(0).text(FILE_VERSION, "brain.Event:2"))?;
        // Steps from this one on come (again) from here: `SessionLog.START`.
        let start = Message::default().number(1, 1);
        let first = resumed.map_or(0, |step| step + 1);
        events.write(&event(first).message(SESSION_LOG, start))?;
        Ok(events)
    }

    /// Command and configuration, as text.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start(&mut self, start: &Start) -> Result<()> {
        let config = format!("```json\n{:#}\n```", start.config);
        let command = format!("```sh\n{}\n```", start.command);
        let values = [text("command", &command), text("config", &config)];
        self.write(&event(0).message(SUMMARY, Message::default().messages(1, values)))
    }

    /// Progress at `at`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn step(&mut self, at: At, step: &Step) -> Result<()> {
        self.scalars(
            at,
            &[
                ("train/loss", Some(step.loss)),
                ("train/learning_rate", Some(step.learning_rate)),
                ("train/samples_per_s", Some(step.samples_per_s)),
                ("train/data_wait_share", Some(step.data_wait_share)),
            ],
        )
    }

    /// An evaluation of the weights at `at`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn eval(&mut self, at: At, eval: &Eval) -> Result<()> {
        let metrics = &eval.metrics;
        self.scalars(
            at,
            &[
                ("eval/auc", metrics.auc),
                ("eval/logloss", metrics.logloss),
                ("eval/ne", metrics.ne),
                ("eval/accuracy", Some(metrics.accuracy)),
                ("eval/base_rate", Some(metrics.base_rate)),
                ("eval/mean_prediction", metrics.mean_prediction),
                ("eval/calibration", metrics.calibration),
                ("eval/calibration_error", metrics.calibration_error),
            ],
        )
    }

    /// What is undefined is left out: TensorBoard draws a gap.
    fn scalars(&mut self, at: At, scalars: &[(&str, Option<f64>)]) -> Result<()> {
        let known = scalars.iter().filter_map(|&(tag, value)| Some((tag, value?)));
        let values = known
            .map(|(tag, value)| Message::default().text(1, tag).float(2, value as f32))
            .collect::<Vec<_>>();
        self.write(&event(at.step).message(SUMMARY, Message::default().messages(1, values)))
    }

    /// Writes one event, whole or not at all as far as the system lets: TensorBoard waits for the
    /// rest of a record that is cut off.
    fn write(&mut self, event: &Message) -> Result<()> {
        let record = record(&event.to_bytes());
        self.file.write_all(&record).map_err(Error::io("write", &self.path))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The beginning of an event.
fn event(step: u64) -> Message {
    Message::default().double(WALL_TIME, now()).number(STEP, step)
}

/// A value of the text plugin: one string.
fn text(tag: &str, text: &str) -> Message {
    let plugin = Message::default().text(1, "text");
    let metadata = Message::default().message(1, plugin);
    let shape = Message::default().message(2, Message::default().number(1, 1));
    // `DT_STRING`.
    let tensor = Message::default().number(1, 7).message(2, shape).text(8, text);
    Message::default().text(1, tag).message(8, tensor).message(9, metadata)
}

/// The latest seconds of the event files in `folder`, so that the next one comes after them though
/// the clock was set back.
fn last_seconds(folder: &Path) -> std::io::Result<Option<u64>> {
    let mut last = None;
    for entry in std::fs::read_dir(folder)? {
        let name = match entry {
            Ok(entry) => entry.file_name(),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let seconds = rest.and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
        last = last.max(seconds.filter(|&seconds| seconds < u64::MAX));
    }
    Ok(last)
}

/// A record of TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(crc32c(&length)).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked(crc32c(data)).to_le_bytes());
    record
}

/// Rotated by 15 bits, plus a constant: a checksum of data that hold checksums stays one.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: events are short and rare.
fn crc32c(data: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let of_bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| of_bit(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{JsonLog, LogTarget, Reporter};
    use std::time::Instant;

    /// RFC 3720, B.4, and what TensorFlow itself writes at the head of its files.
    #[test]
    fn checksums_and_frames_are_those_of_known_bytes() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        // A record of 24 bytes: `18 00 00 00 00 00 00 00 a3 7f 4b 22`.
        let framed = record(&[7; 24]);
        assert_eq!(framed[..12], [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(framed.len(), 40);
        assert_eq!(framed[36..], masked(crc32c(&[7; 24])).to_le_bytes());
    }

    /// A full disk: said once, in the log, too, and the run continues.
    #[test]
    fn what_cannot_be_written_is_said_and_ends_no_run() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.json");
        let target = LogTarget::File(log.clone());
        let log_file = JsonLog::open(&target, false, Instant::now()).unwrap();
        let mut reporter = Reporter::quiet(Some(log_file));
        let path = PathBuf::from("/dev/full");
        let file = File::options().write(true).open(&path).unwrap();
        reporter.write_tensorboard(EventFile { file, path });
        let (learning_rate, samples_per_s, data_wait_share, eval_share) = (0.1, 1.0, 0.0, 0.0);
        let scaling = None;
        let step =
            Step { loss: 0.5, learning_rate, samples_per_s, data_wait_share, eval_share, scaling };
        for number in 1..=3 {
            reporter.step(At { step: number, samples: number }, &step).unwrap();
        }
        let text = std::fs::read_to_string(log).unwrap();
        let warnings: Vec<&str> =
            text.lines().filter(|line| line.contains("\"event\":\"warning\"")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("/dev/full"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("\"loss\":0.5")).count(), 3);
    }

    #[test]
    fn a_later_file_comes_after_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let late = path.join(format!("{PREFIX}9999999998.other.1"));
        drop(EventFile::create(&path, None).unwrap());
        std::fs::write(late, "").unwrap();
        let file = EventFile::create(&path, Some(3)).unwrap();
        let name = file.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{PREFIX}9999999999.headlong.")), "{name}");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 3);
    }
}
