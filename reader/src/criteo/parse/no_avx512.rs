//! The twin of `avx512.rs` for other processors.

use super::{BadRowPolicy, RawBlock};
use crate::schema::Schema;

/// Never.
pub fn is_available() -> bool {
    false
}

/// Nothing to keep.
#[derive(Clone, Debug, Default)]
pub struct Separators;

/// Never called.
///
/// # Panics
/// Always.
pub fn parse_lines(_: &Schema, _: BadRowPolicy, _: &[u8], _: &mut Separators, _: &mut RawBlock) {
    panic!("the AVX-512 body was chosen on a processor without it");
}
