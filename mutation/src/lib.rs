//! Mutation fuzzing: good inputs of each format are damaged in ways that a seed decides, and read.
//!
//! A mutant must be read or refused. A panic of any thread, an abort, a mutant that takes longer
//! than a limit, and memory above the format's bound are findings. Each is named by format and
//! seed: the same build makes the same bytes of them again.
//!
//! Mutation knows the formats: it corrects checksums, lengths and CRCs of what it has damaged, so
//! that most mutants get past them. `headlong-mutation --help` says how to run it.
//!
//! There is one list of formats, [`subjects::SUBJECTS`]. `fuzz/` tries the same with bytes that
//! libFuzzer makes up, guided by what they reach ([`guided`]).

pub mod allocator;
pub mod entries;
pub mod guided;
pub mod mutate;
pub mod random;
pub mod subjects;
pub mod watch;
pub mod worker;
