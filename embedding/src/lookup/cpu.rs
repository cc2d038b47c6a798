//! Tiles of samples, each of one table; rows are prefetched across the batch.

use super::LookupArgs;
use super::simd::{Gather, gather};
use crate::error::Result;
use crate::ids::Bags;
use crate::rows::OpenRows;
use crate::table::{Pooling, Rows, TableSpec};
use headlong_device::pool::SharedMut;
use headlong_device::{DType, MatMut, MatRef, Stream, bf16, f16};
use std::sync::atomic::{AtomicBool, Ordering};

/// Samples of one tile: enough rows to hide the start, few enough to share out.
const TILE_SAMPLES: usize = 256;

/// Gathers from every table with plain rows. Returns whether all row indices were in range.
pub(super) fn lookup_plain(stream: &Stream, args: &LookupArgs) -> bool {
    let tiles = args.num_samples.div_ceil(TILE_SAMPLES);
    let stride = args.vectors.stride();
    let mut vectors = args.vectors.write::<f32>();
    let out = SharedMut::new(vectors.data_mut());
    let all_in_range = AtomicBool::new(true);
    stream.pool().run(args.tables.len() * tiles, &|task| {
        let (table, tile) = (task / tiles, task % tiles);
        let Some(plain) = &args.tables[table].plain else { return };
        let first = tile * TILE_SAMPLES;
        let last = args.num_samples.min(first + TILE_SAMPLES);
        let Bags { ids, weights: factors } = (args.ids)(table);
        let weights = OpenRows::new(&plain.weights);
        let bags = Gather {
            weights: weights.view(),
            values: ids.values,
            offsets: &ids.offsets[first..=last],
            factors,
            pooling: args.specs[table].pooling,
            out,
            out_first: first * stride + args.tables[table].first_column,
            out_stride: stride,
        };
        if bags.in_range() {
            gather(args.narrow, &bags);
        } else {
            all_in_range.store(false, Ordering::Relaxed);
        }
    });
    all_in_range.into_inner()
}

/// Tables without plain rows: their own lookup into a staging matrix, then pooling from there.
pub(super) fn lookup_staged(stream: &Stream, args: &LookupArgs) -> Result<()> {
    let mut vectors = args.vectors.write::<f32>();
    let mut vectors = vectors.view();
    for (table, slot) in args.tables.iter().enumerate() {
        let Some(staging) = &slot.staging else { continue };
        let bags = (args.ids)(table);
        let ids = bags.ids;
        let entries = staging.first_rows(ids.values.len());
        slot.lock().lookup(stream, Rows::new(ids.values), entries.write::<f32>().view())?;
        let spec = &args.specs[table];
        let out = vectors.columns_mut(slot.first_column, spec.dim);
        match args.narrow {
            None => {}
            Some(DType::F16) => f16::round_in_place(entries.write::<f32>().data_mut()),
            Some(_) => bf16::round_in_place(entries.write::<f32>().data_mut()),
        }
        pool_entries(spec, bags, entries.read::<f32>().view(), out);
    }
    Ok(())
}

fn pool_entries(spec: &TableSpec, bags: Bags, entries: MatRef, mut out: MatMut) {
    let ids = bags.ids;
    for sample in 0..ids.num_samples() {
        let (first, last) = (ids.offsets[sample] as usize, ids.offsets[sample + 1] as usize);
        let target = out.row_mut(sample);
        if first == last {
            target.fill(0.0);
            continue;
        }
        target.copy_from_slice(entries.row(first));
        if let Some(factors) = bags.weights.get(first..last) {
            target.iter_mut().for_each(|sum| *sum *= factors[0]);
            for (entry, &factor) in (first + 1..last).zip(&factors[1..]) {
                target
                    .iter_mut()
                    .zip(entries.row(entry))
                    .for_each(|(sum, value)| *sum += value * factor);
            }
            continue;
        }
        for entry in first + 1..last {
            target.iter_mut().zip(entries.row(entry)).for_each(|(sum, value)| *sum += value);
        }
        if spec.pooling == Pooling::Mean && last - first > 1 {
            let reciprocal = 1.0 / (last - first) as f32;
            target.iter_mut().for_each(|sum| *sum *= reciprocal);
        }
    }
}
