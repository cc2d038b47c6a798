//! `cargo xtask ledger`: keeps the ledger of kernels, and puts its sums on the page about speed.
//!
//! ```text
//! ledger FILE PAGE [--accept]     refuses bytes or launches that have risen, rows that are new or
//!                                 gone, and a FILE that is no ledger, unless accepted
//! ```

use headlong_planner::ledger::{Kept, all, render, summary};
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

const BEGIN: &str = "<!-- ledger: made by `cargo xtask ledger` -->\n";
const END: &str = "<!-- end of ledger -->\n";
const NO_PLACE: &str = "the page has no place for the ledger";
const NO_END: &str = "the page's place for the ledger has no end";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(file), Some(page)) = (arguments.first(), arguments.get(1)) else {
        eprintln!("usage: ledger FILE PAGE [--accept]");
        return ExitCode::from(2);
    };
    let accepts = arguments.get(2).is_some_and(|word| word == "--accept");
    match keep(Path::new(file), Path::new(page), accepts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("ledger: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn keep(file: &Path, page: &Path, accepts: bool) -> Result<(), String> {
    let ledgers = all();
    let text = render(&ledgers);
    match std::fs::read_to_string(file) {
        Ok(kept) => compare(&Kept::parse(&text), &Kept::parse(&kept), file, accepts)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("{}: not there, made again", file.display());
        }
        Err(error) => return Err(format!("{}: {error}", file.display())),
    }
    let at_page = |fault: &dyn Display| format!("{}: {fault}", page.display());
    let of_page = std::fs::read_to_string(page).map_err(|error| at_page(&error))?;
    let (before, rest) = of_page.split_once(BEGIN).ok_or_else(|| at_page(&NO_PLACE))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| at_page(&NO_END))?;
    let summary = summary(&ledgers);
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    std::fs::write(page, format!("{before}{BEGIN}\n{summary}\n{END}{after}"))
        .map_err(|error| at_page(&error))?;
    print!("{summary}");
    Ok(())
}

/// Refuses what is not to be written over unasked, and names what is written over as it has fallen:
/// it may have been raised in the file.
fn compare(now: &Kept, kept: &Kept, file: &Path, accepts: bool) -> Result<(), String> {
    let file = file.display();
    let changed = [now.risen(kept), now.gone(kept)].concat();
    let why = match (accepts, kept.is_empty()) {
        (true, _) => None,
        (_, true) => Some("it is no ledger: restore it, or `--accept` writes it again"),
        _ if changed.is_empty() => None,
        _ => Some(
            "bytes or launches have risen, or rows are others; `--accept` keeps today's, with a \
             reason in the commit",
        ),
    };
    if let Some(why) = why {
        let rows =
            if kept.is_empty() { String::new() } else { format!(":\n{}", changed.join("\n")) };
        return Err(format!("{file}: {why}{rows}"));
    }
    for row in now.fallen(kept) {
        println!("{file}: fallen: {row}");
    }
    Ok(())
}
