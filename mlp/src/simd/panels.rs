//! The packed copies of one matrix of weights, written band by band.

use super::for_each_chunk_of_three;
use crate::gemm::{FactorType, PANEL_COLS, pack_columns, pack_transposed, panel_elements};
use crate::rounding::Rounding;
use headlong_device::MatRef;
use headlong_device::pool::{Pool, SharedMut};

/// Rows of a band: one panel of the transpose, and an even number.
const BAND_ROWS: usize = PANEL_COLS;

/// The packed copies of weights, opened for writing.
#[derive(Debug)]
pub struct PanelsMut<'a> {
    /// Panels of the transpose.
    pub forward: &'a mut [f32],
    /// Panels of the weights.
    pub backward: &'a mut [f32],
    /// Of the weights, out × in.
    pub shape: (usize, usize),
    /// What the panels hold.
    pub dtype: FactorType,
    /// How f32 is rounded once it is packed, where it is.
    pub rounding: Option<Rounding>,
}

/// Packs `weights`.
pub fn pack_bands(pool: &Pool, weights: MatRef<'_>, panels: PanelsMut<'_>) {
    assert_eq!((weights.rows(), weights.cols()), panels.shape, "shape of the weights");
    let bands = Bands::new(panels);
    pool.run(weights.rows().div_ceil(BAND_ROWS), &|band| {
        let first = band * BAND_ROWS;
        let rows = weights.rows_range(first, BAND_ROWS.min(weights.rows() - first));
        // SAFETY: each band is handed out once, while the panels are borrowed.
        unsafe { bands.pack(band, rows) };
    });
}

/// Calls `body(first element, parts)` for each band of the weights and the two states of an
/// optimiser, `lists`, then packs the band while it is in the cache. The second and third list may
/// be empty, and then so are their parts.
pub fn change_bands(
    pool: &Pool,
    lists: [&mut [f32]; 3],
    panels: PanelsMut<'_>,
    body: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
) {
    let (outputs, inputs) = panels.shape;
    assert_eq!(lists[0].len(), outputs * inputs, "one number for each weight");
    let (bands, len) = (Bands::new(panels), BAND_ROWS * inputs);
    for_each_chunk_of_three(pool, lists, len.max(1), &|start, [weights, first, second]| {
        body(start, [&mut *weights, first, second]);
        let rows = MatRef::with_stride(weights, weights.len() / inputs, inputs, inputs);
        // SAFETY: each band is handed out once, while the panels are borrowed.
        unsafe { bands.pack(start / len, rows) };
    });
}

/// Panels of which several threads write different bands.
struct Bands {
    forward: SharedMut<f32>,
    backward: SharedMut<f32>,
    shape: (usize, usize),
    dtype: FactorType,
    rounding: Option<Rounding>,
}

impl Bands {
    fn new(panels: PanelsMut<'_>) -> Self {
        let PanelsMut { forward, backward, shape, dtype, rounding } = panels;
        let (outputs, inputs) = shape;
        assert_eq!(
            forward.len(),
            panel_elements(dtype, inputs, outputs),
            "panels of the transpose"
        );
        assert_eq!(backward.len(), panel_elements(dtype, outputs, inputs), "panels of the weights");
        Self {
            forward: SharedMut::new(forward),
            backward: SharedMut::new(backward),
            shape,
            dtype,
            rounding,
        }
    }

    /// Packs the weights of band `band` into its part of all panels.
    ///
    /// # Safety
    /// The panels are still borrowed, and no other task packs this band.
    unsafe fn pack(&self, band: usize, rows: MatRef<'_>) {
        let ((outputs, inputs), first) = (self.shape, band * BAND_ROWS);
        assert!(first < outputs && rows.cols() == inputs, "band {band} lies in the weights");
        assert_eq!(rows.rows(), BAND_ROWS.min(outputs - first), "rows of band {band}");
        let words = |k| self.dtype.words(k) * PANEL_COLS;
        // SAFETY: panel `band` of the transpose belongs only to this band; the rest is the
        // caller's promise.
        let panel = unsafe { self.forward.slice(band * words(inputs), words(inputs)) };
        pack_transposed(self.dtype, rows, 0, panel);
        self.round(panel);
        for column in 0..inputs.div_ceil(PANEL_COLS) {
            let start = column * words(outputs) + words(first);
            // SAFETY: of each panel the words of these rows belong only to this band: it starts at
            // an even row.
            let part = unsafe { self.backward.slice(start, words(rows.rows())) };
            pack_columns(self.dtype, rows, column, part);
            self.round(part);
        }
    }

    fn round(&self, packed: &mut [f32]) {
        // Words are rounded as they are packed.
        if let (Some(rounding), FactorType::F32) = (self.rounding, self.dtype) {
            rounding.round_all(packed);
        }
    }
}
