//! Answers on standard output, and what is written to files.

use crate::error::{Error, Result};
use crate::report::lines;
use clap::Args;
use headlong_device::files::OutputFile;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where the machine-readable form of an answer goes.
#[derive(Debug, Clone, Default, Args)]
pub struct JsonOutput {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the JSON document to FILE, besides the text
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
}

/// Prints `text`, ending in one line break. A reader that has gone (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("write", "standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Says `text` on standard error, in lines that fit. That it cannot be said (a full disk, a closed
/// stream) changes nothing, and no exit code.
pub fn say(text: impl std::fmt::Display) {
    lines::to_stderr(&lines::fold(&text.to_string(), lines::width(std::io::stderr())));
}

/// Gives an answer as the user asked for it: `text`, or one JSON document instead (`--json`), and
/// the document in a file besides (`--json-file`).
pub fn answer(output: &JsonOutput, text: &str, document: &serde_json::Value) -> Result<()> {
    if let Some(file) = &output.json_file {
        write_file(file, &format!("{document:#}\n"))?;
    }
    if output.json {
        return print(&document.to_string());
    }
    print(&lines::fold(text, lines::width(std::io::stdout())))
}

/// As [`answer`] where standard output has data: the text goes to standard error, and no document
/// to the output.
pub fn answer_aside(output: &JsonOutput, text: &str, document: &serde_json::Value) -> Result<()> {
    if let Some(file) = &output.json_file {
        write_file(file, &format!("{document:#}\n"))?;
    }
    say(text);
    Ok(())
}

/// Writes a file, which appears under its name when it is complete.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    OutputFile::write(path, text.as_bytes()).map_err(Error::io("write", path))
}
