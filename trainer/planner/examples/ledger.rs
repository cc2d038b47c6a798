//! The ledger of kernels, as `cargo xtask ledger` keeps it: prints it.

fn main() {
    print!("{}", headlong_planner::ledger::render(&headlong_planner::ledger::all()));
}
