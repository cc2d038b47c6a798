//! Mistakes that the copy of `comm/src/` can be told to make, each of which some seed must show.

/// A mistake: in which file which words become which.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// How it is switched on.
    pub name: &'static str,
    /// Below `comm/src/`.
    pub file: &'static str,
    /// What is there, once.
    pub right: &'static str,
    /// What is there instead; `MADE` becomes whether the mistake is made.
    pub wrong: &'static str,
}

/// All of them.
pub const MISTAKES: &[Mistake] = &[];
