//! Lookup: one pooled vector per sample and table.
//!
//! `vectors[s, columns of t] = Σ weights_t[r]` over the row indices `r` of sample `s`'s bag, in the
//! order of the bag, times one over the bag's length for mean pooling; zeros for an empty bag. A
//! bag of one row is that row, bit for bit. In weighted bags the sum is `Σ w·weights_t[r]`, each
//! product rounded before it is added. Where ranks exchange 16 bits
//! ([`crate::SetOptions::narrow`]), the rows of bags of several ids and of weighted bags are
//! rounded to that before they are added; a bag of one row is left to what reads the vector, which
//! rounds it.
//!
//! Shapes: `vectors` is `samples × Σ dim`, f32, the tables side by side in the order of the set.
//! Enqueues one gather over tiles of all tables. Errors: row indices out of range, in which case
//! `vectors` is left unspecified. Source: EmbeddingBag of the original DLRM (Naumov et al., arXiv
//! 1906.00091, section 2.1).

mod cpu;
pub(crate) mod cuda;
pub(crate) mod simd;

use crate::error::Result;
use crate::ids::{IdsOf, check_range};
use crate::slot::TableSlot;
use crate::table::TableSpec;
use headlong_device::{DType, Mat, Stream};

/// What a lookup reads and writes.
pub(crate) struct LookupArgs<'a> {
    pub(crate) specs: &'a [TableSpec],
    pub(crate) tables: &'a [TableSlot],
    pub(crate) num_samples: usize,
    pub(crate) ids: &'a IdsOf<'a>,
    pub(crate) vectors: &'a Mat,
    /// What rows are rounded to before they are added, if anything: f16 or bf16.
    pub(crate) narrow: Option<DType>,
}

pub(crate) fn lookup(stream: &Stream, args: &LookupArgs) -> Result<()> {
    if !cpu::lookup_plain(stream, args) {
        return check_range(args.specs, args.ids);
    }
    if args.tables.iter().any(|table| table.plain.is_none()) {
        check_range(args.specs, args.ids)?;
        cpu::lookup_staged(stream, args)?;
    }
    Ok(())
}
