//! All instances of the kernels of tables: what `headlong kernels build` and the compile gate need.

use super::Instance;
use crate::hybrid::{EXCHANGE, exchange_defines, gradients_of};
use crate::init::cuda::{INIT, defines as init_defines};
use crate::lookup::cuda::{LOOKUP, defines as lookup_defines};
use crate::route::cuda::ROUTE;
use crate::update::cuda::{Into, UPDATE, defines as update_defines};
use headlong_device::DType;
use headlong_device::cuda::{Build, Define, Source};
use headlong_device::optimizer::Optimizer;

/// The kernels that sets of these tables launch: tables of `dims` whose rows are `rows`, vectors
/// and their gradients of these types, rows moved by `optimizer`; among several ranks also what
/// goes between them, vectors of type `slots`.
pub fn kernels(
    dims: &[usize],
    rows: DType,
    [vectors, gradients]: [DType; 2],
    optimizer: &Optimizer,
    slots: Option<DType>,
) -> Vec<Build> {
    let build =
        |source: &'static Source, defines: &[Define]| Build { source, defines: defines.to_vec() };
    let instance = Instance::new(dims.iter().copied(), rows);
    let initial = init_defines(rows);
    let mut builds = vec![
        build(&ROUTE, &[]),
        build(&LOOKUP, &lookup_defines(instance, vectors, None)),
        build(
            &UPDATE,
            &update_defines(instance, gradients, false, Into::Step(optimizer), DType::F32),
        ),
        build(&INIT, &initial),
    ];
    if rows != DType::F32 {
        // States of narrow rows are f32.
        builds.push(build(&INIT, &init_defines(DType::F32)));
    }
    if let Some(slots) = slots {
        builds.extend([
            build(&EXCHANGE, &exchange_defines(instance, slots)),
            build(&EXCHANGE, &exchange_defines(Instance::GENERIC, slots)),
            build(&LOOKUP, &lookup_defines(instance, vectors, Some(slots))),
        ]);
        let of_node = gradients_of(slots);
        let of_node = update_defines(instance, of_node, true, Into::Slots(of_node), DType::F32);
        builds.push(build(&UPDATE, &of_node));
        for frequent in [DType::F32, DType::Bf16] {
            let slots = gradients_of(slots);
            let of_sums = update_defines(instance, gradients, false, Into::Slots(slots), frequent);
            let of_rows = update_defines(instance, slots, true, Into::Step(optimizer), frequent);
            builds.extend([build(&UPDATE, &of_sums), build(&UPDATE, &of_rows)]);
        }
        builds.dedup_by(|a, b| std::ptr::eq(a.source, b.source) && a.defines == b.defines);
    }
    builds
}

/// Instances for every dim that models use, every element type and every optimiser.
pub fn all_kernels() -> Vec<Build> {
    let optimizers = crate::testing::every_optimizer();
    let mut all: Vec<Build> = Vec::new();
    // Dim 1 stands for all that have no instance of their own.
    for dim in [1, 16, 32, 64, 128] {
        for rows in [DType::F32, DType::F16, DType::Bf16] {
            let vectors =
                if rows == DType::F32 { vec![DType::F32] } else { vec![DType::F32, rows] };
            for (vectors, optimizer) in
                vectors.iter().flat_map(|&v| optimizers.iter().map(move |o| (v, o)))
            {
                for build in of_all_slots(dim, rows, vectors, optimizer) {
                    let is_it = |b: &Build| {
                        std::ptr::eq(b.source, build.source) && b.defines == build.defines
                    };
                    if !all.iter().any(is_it) {
                        all.push(build);
                    }
                }
            }
        }
    }
    all
}

fn of_all_slots(dim: usize, rows: DType, vectors: DType, optimizer: &Optimizer) -> Vec<Build> {
    let of = |slots| kernels(&[dim], rows, [vectors; 2], optimizer, Some(slots));
    [DType::F32, DType::Bf16, DType::F16].into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod cuda_tests {
    use super::*;

    #[test]
    fn instances_are_named_once() {
        let all = all_kernels();
        assert!(all.len() > 100, "{}", all.len());
        let few = kernels(&[16, 16], DType::F32, [DType::F32; 2], &Optimizer::Sgd, None);
        assert_eq!(few.len(), 4);
        assert_eq!(
            kernels(&[16, 20], DType::F32, [DType::F32; 2], &Optimizer::Sgd, None)[1].defines[0]
                .value,
            0
        );
    }
}
