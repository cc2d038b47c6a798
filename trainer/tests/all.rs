//! Every test of the program and its library that needs no program of its own. One program for all: each would hold the whole library once more.

#![cfg(test)]

mod bad_input;
mod bench_collectives;
mod bounded;
mod checkpoint_corruption;
mod checkpoint_export;
mod checkpoint_faults;
mod checkpoint_manifest;
mod checkpoint_roundtrip;
mod checkpoint_support;
mod command_line;
mod data_convert;
mod disk_full;
mod evaluation;
mod formats;
mod hybrid_bytes;
mod inputs;
mod kill;
mod launch;
mod launch_faults;
mod launcher_notes;
mod learning;
mod made_up;
mod mllog;
mod mllog_rules;
mod multi_hot;
mod narrow_tables;
mod nccl_tests_output;
mod own_program;
mod paths;
mod planted;
mod python_support;
mod ranks;
mod ranks_rounding;
mod ranks_run;
mod real_data;
mod resume;
mod run_support;
mod session_steps;
mod simulated;
mod simulation;
mod sixteen_bits;
mod slices;
mod tables;
mod your_data;
