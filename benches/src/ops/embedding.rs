//! Tables: routing ids, looking rows up, updating them.

use crate::harness::{Floor, Harness, Rate};
use headlong::commands::bench::data::{default_batches, zipf_rows};
use headlong::commands::bench::shapes::Shape;
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{ArenaPlan, DType, JaggedRef, Stream};
use headlong_embedding::{EmbeddingSet, Route, SetOptions, TableSpec};
use std::collections::BTreeSet;

/// Runs `route`, `lookup` and `update` at both shapes.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    for shape in ["C1", "C2"] {
        let wanted =
            ["route", "lookup", "update"].iter().any(|op| harness.wants(&format!("{op}/{shape}")));
        if wanted {
            at_shape(harness, shape)?;
        }
    }
    Ok(())
}

fn at_shape(harness: &mut Harness, name: &str) -> anyhow::Result<()> {
    let row_cap = harness.settings().smoke.then_some(500);
    let shape = Shape::from_name(name, row_cap).map_err(anyhow::Error::msg)?;
    let (samples, dim) = (harness.size(2048, 32), shape.dim);
    let num_batches = harness.size(default_batches(&shape, samples), 2);
    let specs: Vec<_> = shape
        .rows
        .iter()
        .enumerate()
        .map(|(t, &rows)| TableSpec::new(&format!("t{t}"), rows, dim))
        .collect();
    let stream = harness.stream().clone();
    let max_ids = vec![samples; specs.len()];
    let (seed, sum_blocks, frozen) = (1, 1, false);
    let options = SetOptions {
        optimizer: Optimizer::Sgd,
        seed,
        max_samples: samples,
        max_ids: &max_ids,
        sum_blocks,
        frozen,
        narrow: None,
    };
    let set = EmbeddingSet::new(&stream, &specs, &options)?;
    let ids: Vec<Vec<u64>> = (0..)
        .zip(&shape.rows)
        .map(|(t, &rows)| zipf_rows(1, t, rows, num_batches * samples))
        .collect();
    let offsets: Vec<u32> = (0..=samples as u32).collect();
    let batches: Vec<Vec<JaggedRef>> = (0..num_batches)
        .map(|b| {
            ids.iter().map(|ids| JaggedRef::new(&ids[b * samples..][..samples], &offsets)).collect()
        })
        .collect();
    let mut plan = ArenaPlan::new("vectors");
    let slot = plan.matrix("vectors", DType::F32, samples, set.width());
    let vectors = plan.freeze()?.mat(slot);
    let lookups = (samples * specs.len()) as f64;
    let row_bytes = (dim * 4) as f64;
    let case = |op: &str| format!("{op}/{name} {samples}x{}x{dim}", specs.len());

    let mut turn = 0;
    let mut next = || {
        turn += 1;
        turn % num_batches
    };
    let mut route = set.new_route()?;
    let rate =
        Rate { name: &case("route"), unit: "M ids/s", work: lookups * 1e-6, floor: Floor::None };
    harness.measure(&rate, || expect(set.route(&stream, &batches[next()], &mut route)));

    let rate = Rate {
        name: &case("lookup"),
        unit: "GB/s",
        work: lookups * row_bytes * 1e-9,
        floor: Floor::Gather,
    };
    harness.measure(&rate, || expect(set.lookup(&stream, &batches[next()], &vectors)));

    // Every distinct row is read and written, every gradient read once.
    let distinct = distinct_rows(&batches) as f64 / num_batches as f64;
    let bytes = (lookups + 2.0 * distinct) * row_bytes;
    let routes = routes_of(&set, &stream, &batches)?;
    let step = Step { learning_rate: 1e-6, number: 1 };
    let rate =
        Rate { name: &case("update"), unit: "GB/s", work: bytes * 1e-9, floor: Floor::Gather };
    harness.measure(&rate, || expect(set.update(&stream, &routes[next()], &vectors, &step)));
    Ok(())
}

fn distinct_rows(batches: &[Vec<JaggedRef>]) -> usize {
    let bags = batches.iter().flatten();
    bags.map(|bags| bags.values.iter().collect::<BTreeSet<_>>().len()).sum()
}

fn routes_of(
    set: &EmbeddingSet,
    stream: &Stream,
    batches: &[Vec<JaggedRef>],
) -> headlong_embedding::Result<Vec<Route>> {
    let route = |batch| {
        let mut route = set.new_route()?;
        set.route(stream, batch, &mut route).map(|()| route)
    };
    batches.iter().map(route).collect()
}

/// Inputs were made for the set, so a refusal is a bug in the benchmark.
fn expect(result: headlong_embedding::Result<()>) {
    if let Err(error) = result {
        panic!("the set refuses its benchmark: {error}");
    }
}
