//! The program `headlong` with one more kind of tables: `quotient_remainder`.
//!
//! ```text
//! cargo run --release -p headlong --example 05_own_program -- train --config FILE
//! ```

#[path = "03_custom_table/quotient_remainder.rs"]
mod quotient_remainder;

use quotient_remainder::QuotientRemainder;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut registry = headlong::Registry::default();
    registry.register("quotient_remainder", QuotientRemainder);
    headlong::main_with(registry)
}
