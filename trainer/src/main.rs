//! The program `headlong`, with the kinds of tables that it brings.

use std::process::ExitCode;

fn main() -> ExitCode {
    headlong::main_with(headlong::Registry::default())
}
