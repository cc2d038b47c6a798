//! `cargo xtask ledger`: keeps the ledger of kernels, and puts its sums on the page about speed.
//!
//! ```text
//! ledger FILE PAGE [--accept]     refuses bytes or launches that have risen, unless accepted
//! ```

use headlong_planner::ledger::{Kept, all, render, summary};
use std::path::Path;
use std::process::ExitCode;

const BEGIN: &str = "<!-- ledger: made by `cargo xtask ledger` -->\n";
const END: &str = "<!-- end of ledger -->\n";

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
    let kept = Kept::parse(&std::fs::read_to_string(file).unwrap_or_default());
    let risen = Kept::parse(&text).risen(&kept);
    if !risen.is_empty() && !accepts {
        let why =
            "bytes or launches have risen; `--accept` keeps them, with a reason in the commit";
        return Err(format!("{why}:\n{}", risen.join("\n")));
    }
    let of_page = std::fs::read_to_string(page).map_err(|error| error.to_string())?;
    let (before, rest) = of_page.split_once(BEGIN).ok_or("the page has no place for it")?;
    let (_, after) = rest.split_once(END).ok_or("the page's place for it has no end")?;
    let summary = summary(&ledgers);
    std::fs::write(file, text).map_err(|error| error.to_string())?;
    std::fs::write(page, format!("{before}{BEGIN}\n{summary}\n{END}{after}"))
        .map_err(|error| error.to_string())?;
    print!("{summary}");
    Ok(())
}
