//! Several ranks' tables on one device, slots copied between them, against one rank on the CPU.

#[cfg(test)]
mod common;

#[cfg(test)]
mod cuda_tests {
    use super::common::cases::{batch, narrow, partition};
    use super::common::device::{Plan, SingleRank, assert_bits, assert_near};
    use super::common::device_ranks::{Rank, Ranks, Ways};
    use super::common::ranks::{Bags, Batch};
    use headlong_device::cuda::testing::stream;
    use headlong_device::optimizer::{Optimizer, Step};
    use headlong_device::testing::{small_integers, uniform};
    use headlong_device::{DType, Mat, Stream, bf16, f16};
    use headlong_embedding::hybrid::*;
    use headlong_embedding::testing::every_optimizer;
    use headlong_embedding::{Grain, Pooling, TableSpec};

    fn specs(dims: [usize; 5]) -> Vec<TableSpec> {
        let [a, b, c, d, e] = dims;
        vec![
            TableSpec::new("a", 3, a),
            TableSpec::new("b", 500, b),
            TableSpec { pooling: Pooling::Mean, ..TableSpec::new("c", 40, c) },
            TableSpec::new("d", 300, d),
            TableSpec::new("e", 1, e),
        ]
    }

    /// Three steps with several ranks and with one on the CPU. Sums of gradients differ only by
    /// rounding: at most 600 terms below 1 each, in another order.
    fn check(stream: &Stream, dims: [usize; 5], optimizer: Optimizer, ranks: usize, seed: u64) {
        let specs = specs(dims);
        let plan = Plan {
            specs: &specs,
            optimizer,
            max_samples: 150,
            max_ids: &[150, 150, 600, 600, 600],
            frozen: false,
        };
        let what = format!("{optimizer:?}, {ranks} ranks, seed {seed}");
        let mut single = SingleRank::new(&Stream::cpu(2), &plan);
        let mut several = Ranks::new(stream, &plan, partition(&specs, ranks, seed));
        for (number, samples) in [(1, 150), (2, 61), (3, 3)] {
            let bags = batch(&specs, number, samples);
            let (expected, got) = (single.forward(&bags), several.forward(&bags));
            assert_eq!(several.check_flags(), [""; 0], "{what}");
            assert_near(&got, &expected, 1e-4, 1e-4, &format!("{what}: vectors of step {number}"));
            if number == 1 {
                assert_bits(&got, &expected, &what);
            }
            let d_vectors = uniform(number, samples * single.set.width());
            let step = Step { learning_rate: 0.1, number };
            single.backward(&d_vectors, &step);
            several.backward(&d_vectors, &step);
        }
        assert!(several.num_asked_again > 0, "{what}: strips were too short once");
        for (tensor, (got, expected)) in several.tensors().iter().zip(&single.tensors()).enumerate()
        {
            assert_near(got, expected, 1e-4, 1e-4, &format!("{what}: tensor {tensor}"));
        }
    }

    #[test]
    fn several_ranks_step_as_one_does_on_the_cpu() {
        let Some(stream) = stream() else { return };
        for (index, optimizer) in (0..).zip(every_optimizer()) {
            check(&stream, [16; 5], optimizer, 2 + index % 3, index as u64);
        }
        check(&stream, [16, 20, 33, 5, 1], Optimizer::Sgd, 4, 3);
    }

    /// Without merging, a vector travels for each lookup of an infrequent row; sums are the same,
    /// of integers bit for bit.
    #[test]
    fn rows_that_are_not_merged_step_the_same_and_send_a_vector_a_lookup() {
        let Some(stream) = stream() else { return };
        let specs = specs([16; 5]);
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 300,
            max_ids: &[300, 300, 1200, 1200, 1200],
            frozen: false,
        };
        for (ranks, seed) in [(2, 1), (4, 3)] {
            let split = partition(&specs, ranks, seed);
            let bags = batch(&specs, 5, 300);
            let is_asked_for =
                |table: usize, row| matches!(split.classify(table, row), Place::Infrequent { .. });
            let lookups: usize = (0..specs.len())
                .map(|table| {
                    bags[table]
                        .bags
                        .iter()
                        .flatten()
                        .filter(|&&row| is_asked_for(table, row))
                        .count()
                })
                .sum();
            let run = |deduplicate| {
                let ways = Ways { deduplicate, ..Ways::default() };
                let mut several = Ranks::with(&ways, &stream, &plan, split.clone());
                let vectors = several.forward(&bags);
                let sent: usize =
                    several.ranks.iter().map(|rank| num_written(&rank.recv_rows.1)).sum();
                several.backward(
                    &small_integers(9, vectors.len()),
                    &Step { learning_rate: 1.0, number: 1 },
                );
                assert_eq!(several.check_flags(), [""; 0]);
                (vectors, several.tensors().concat(), sent / 16)
            };
            let (merged, single) = (run(Deduplicate::Rank), run(Deduplicate::Off));
            assert_bits(&single.0, &merged.0, "vectors");
            assert_near(&single.1, &merged.1, 1e-4, 1e-4, "tensors");
            assert_eq!(single.2, lookups, "{ranks} ranks: vectors sent");
            assert!(merged.2 < lookups, "{ranks} ranks: rows occur more than once");
        }
    }

    /// Nodes that merge requests: the same bits as ranks that ask for themselves, of vectors and of
    /// rows moved, in 32 and in 16 bits; and no more vectors between nodes than these have rows.
    #[test]
    fn nodes_that_merge_requests_have_the_same_bits() {
        let Some(stream) = stream() else { return };
        let adagrad = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
        for (dims, ranks, node_ranks, dtype, optimizer) in [
            ([16; 5], 4, 2, DType::F32, adagrad),
            ([16; 5], 8, 2, DType::Bf16, Optimizer::Sgd),
            ([16; 5], 8, 4, DType::F16, adagrad),
            ([16, 20, 33, 5, 1], 8, 4, DType::F32, Optimizer::Sgd),
            ([16; 5], 4, 4, DType::F32, Optimizer::Sgd),
            ([16; 5], 4, 1, DType::Bf16, Optimizer::Sgd),
        ] {
            let specs = specs(dims);
            let plan = Plan {
                specs: &specs,
                optimizer,
                max_samples: 300,
                max_ids: &[300, 300, 1200, 1200, 1200],
                frozen: false,
            };
            let what = format!("{ranks} ranks, {node_ranks} a node, {dtype:?}, {dims:?}");
            let split = partition(&specs, ranks, 7);
            let run = |deduplicate| {
                let slots = SlotOptions { dtype, ..SlotOptions::default() };
                let narrow = (dtype != DType::F32).then_some(dtype);
                let ways = Ways { deduplicate, slots, narrow, ..Ways::default() };
                let mut several = Ranks::with(&ways, &stream, &plan, split.clone());
                let (mut vectors, mut sent) = (Vec::new(), 0);
                for (number, samples) in [(1, 300), (2, 61), (3, 3), (4, 299)] {
                    let bags = batch(&specs, number, samples);
                    vectors = several.forward(&bags);
                    sent = match number {
                        1 => several.ranks.iter().map(vectors_between_owners).sum(),
                        _ => sent,
                    };
                    let d_vectors = uniform(number, vectors.len());
                    several.backward(&d_vectors, &Step { learning_rate: 0.1, number });
                    assert_eq!(several.check_flags(), [""; 0], "{what}");
                }
                assert!(several.num_asked_again > 1, "{what}: strips were too short");
                (vectors, several.tensors().concat(), sent)
            };
            let (by_rank, by_node) =
                (run(Deduplicate::Rank), run(Deduplicate::Node { ranks: node_ranks }));
            assert_bits(&by_node.0, &by_rank.0, &format!("{what}: vectors"));
            assert_bits(&by_node.1, &by_rank.1, &format!("{what}: tensors"));
            let is_less = node_ranks > 1 && dtype == DType::F32;
            assert_eq!(by_node.2 < by_rank.2, is_less, "{what}: equal rows are merged");
        }
    }

    /// Elements of vectors in f32 that have come to a rank, or its proxy, from owners.
    fn vectors_between_owners(rank: &Rank) -> usize {
        let from_owners = rank.by_node.as_ref().map_or(&rank.recv_rows.1, |[_, across]| &across.1);
        if from_owners.dtype() == DType::F32 { num_written(from_owners) } else { 0 }
    }

    /// Vectors that travel in 16 bits arrive as the processor rounds them, and so do gradients,
    /// those as bf16, so that small ones are not lost; what lies on the rank is not rounded.
    #[test]
    fn slots_in_16_bits_round_to_nearest_once_each_way() {
        let Some(stream) = stream() else { return };
        let types = [(DType::Bf16, bf16::nearest as fn(f32) -> f32), (DType::F16, f16::nearest)];
        let dims = [([16; 5], 1), ([16, 20, 33, 5, 1], 3)];
        let all = dims.into_iter().flat_map(|dims| types.map(|to| (dims, to)));
        for ((dims, seed), (dtype, nearest)) in all {
            let specs = specs(dims);
            let plan = Plan {
                specs: &specs,
                optimizer: Optimizer::Sgd,
                max_samples: 300,
                max_ids: &[300, 300, 1200, 1200, 1200],
                frozen: false,
            };
            let split = partition(&specs, 4, seed);
            let bags: Vec<Bags> = specs
                .iter()
                .map(|spec| Bags::plain(super::common::random_bags(5, 300, spec.rows, 0)))
                .collect();
            let slots = SlotOptions { dtype, ..SlotOptions::default() };
            let ways = Ways { slots, ..Ways::default() };
            let mut several = Ranks::with(&ways, &stream, &plan, split.clone());
            let mut single = SingleRank::new(&Stream::cpu(2), &plan);
            let (got, exact) = (several.forward(&bags), single.forward(&bags));
            let (width, mut column, mut num_rounded) = (single.set.width(), 0, 0);
            for (table, spec) in specs.iter().enumerate() {
                for (sample, row) in bags[table].bags.concat().iter().enumerate() {
                    let travels = matches!(split.classify(table, *row), Place::Infrequent { .. });
                    let at = sample * width + column;
                    for (got, exact) in got[at..at + spec.dim].iter().zip(&exact[at..]) {
                        let expected = if travels { nearest(*exact) } else { *exact };
                        assert_eq!(got.to_bits(), expected.to_bits(), "{}, row {row}", spec.name);
                        num_rounded += usize::from(travels && got != exact);
                    }
                }
                column += spec.dim;
            }
            assert!(num_rounded > 100, "{num_rounded}");
            let d_vectors: Vec<f32> = uniform(2, 300 * width).iter().map(|x| x * 1e-9).collect();
            let step = Step { learning_rate: 1e9, number: 1 };
            several.backward(&d_vectors, &step);
            single.backward(&d_vectors, &step);
            let (got, expected) = (several.tensors(), single.tensors());
            let mut differing = 0;
            for (got, expected) in got.iter().zip(&expected) {
                assert_near(got, expected, 1e-2, 1e-1, "tensors");
                differing += got.iter().zip(expected).filter(|(a, b)| a != b).count();
            }
            assert!(differing > 100, "gradients are rounded: {differing}");
        }
    }

    /// Elements that are not what the test has put there.
    fn num_written(slots: &Mat) -> usize {
        slots.to_vec::<f32>().unwrap().iter().filter(|element| !element.is_nan()).count()
    }

    /// Integers add up exactly, so every split gives the same bits.
    #[test]
    fn integers_come_out_the_same_for_any_split() {
        let Some(stream) = stream() else { return };
        check_integers(&stream, specs([16; 5]));
    }

    /// The same of rows in bf16, where the integers are too many bits: they are rounded alike
    /// wherever they lie.
    #[test]
    fn bf16_rows_are_rounded_the_same_for_any_split() {
        let Some(stream) = stream() else { return };
        check_integers(&stream, narrow(specs([16; 5]), u64::MAX));
    }

    fn check_integers(stream: &Stream, mut specs: Vec<TableSpec>) {
        specs[2].pooling = Pooling::Sum;
        specs.iter_mut().for_each(|spec| spec.init = headlong_embedding::Init::Zeros);
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 900,
            max_ids: &[900, 900, 3600, 3600, 3600],
            frozen: false,
        };
        let run = |several: Option<Partition>| {
            let mut bags = batch(&specs, 5, 900);
            bags.iter_mut().for_each(|bags| bags.weights = None);
            let mut single = SingleRank::new(&Stream::cpu(2), &plan);
            let mut ranks = several.map(|partition| Ranks::new(stream, &plan, partition));
            let mut vectors = Vec::new();
            for number in 1..=2 {
                let d_vectors = small_integers(number, 900 * single.set.width());
                let step = Step { learning_rate: 1.0, number };
                match &mut ranks {
                    Some(ranks) => {
                        vectors = ranks.forward(&bags);
                        ranks.backward(&d_vectors, &step);
                    }
                    None => {
                        vectors = single.forward(&bags);
                        single.backward(&d_vectors, &step);
                    }
                }
            }
            (vectors, ranks.map_or_else(|| single.tensors(), |ranks| ranks.tensors()))
        };
        let expected = run(None);
        for split in [
            Partition::row_wise(&specs, 2),
            Partition::all_frequent(&specs, 2),
            partition(&specs, 8, 1),
            partition(&specs, 3, 2),
        ] {
            let got = run(Some(split));
            assert_bits(&got.0, &expected.0, "vectors");
            for (tensor, (got, expected)) in got.1.iter().zip(&expected.1).enumerate() {
                assert_bits(got, expected, &format!("tensor {tensor}"));
            }
        }
    }

    /// Every id belongs to one of four owners: more than twice an even share, so its slot is too
    /// small where there is no memory for the worst case.
    #[test]
    fn a_slot_that_is_too_small_is_an_error_that_names_the_table() {
        let Some(stream) = stream() else { return };
        let specs = [TableSpec::new("ads", 100_000, 16), TableSpec::new("city", 500, 16)];
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 4000,
            max_ids: &[4000, 4000],
            frozen: false,
        };
        let split = || Partition::row_wise(&specs, 4);
        let slots = SlotOptions { most_bytes: 1, ..SlotOptions::default() };
        let ways = Ways { slots, ..Ways::default() };
        let mut ranks = Ranks::with(&ways, &stream, &plan, split());
        let ads = (0..16_000_u64).map(|sample| vec![sample * 4 % 100_000]).collect();
        let city = (0..16_000_u64).map(|sample| vec![sample % 500]).collect();
        let bags = [Bags::plain(ads), Bags::plain(city)];
        ranks.forward(&bags);
        let errors = ranks.check_flags();
        assert!(
            errors.iter().any(|error| error.contains("`ads`") && error.contains("of one owner")),
            "{errors:?}"
        );
        assert_eq!(ranks.check_flags(), [""; 0], "told once");
        let d_vectors = uniform(1, 16_000 * 32);
        ranks.backward(&d_vectors, &Step { learning_rate: 0.1, number: 1 });
        assert!(
            ranks.tensors().concat().iter().all(|x| x.is_finite()),
            "nothing foreign was added"
        );
        // As much as the worst case needs is not much here: the same batch is looked up.
        let mut ranks = Ranks::new(&stream, &plan, split());
        let vectors = ranks.forward(&bags);
        assert_eq!(ranks.check_flags(), [""; 0]);
        let whole = Plan { max_samples: 16_000, max_ids: &[16_000, 16_000], ..plan };
        let expected = SingleRank::new(&Stream::cpu(2), &whole).forward(&bags);
        assert_bits(&vectors, &expected, "vectors");
    }

    /// Where bags become vectors: one table on the rank, one whose owner has it whole.
    const POOL_AT: [PoolAt; 5] =
        [PoolAt::Rank, PoolAt::Owner, PoolAt::Owner, PoolAt::Owner, PoolAt::Rank];

    /// Hot rows of the first table, others by formula or with one owner, and replicas next to them.
    fn pooled_partition(specs: &[TableSpec], owners: usize) -> Partition {
        let hot = TablePlacement::RowWise { frequent: vec![1], placed: vec![(0, Owner(1))] };
        let placements = vec![
            hot,
            TablePlacement::by_formula(),
            TablePlacement::by_formula(),
            TablePlacement::TableWise(Owner(owners - 1)),
            TablePlacement::DataParallel,
        ];
        Partition::new(specs, owners, placements).unwrap()
    }

    /// Bags without weights, with empty ones and equal ids, some of more ids than a chunk holds.
    fn pooled_batch(specs: &[TableSpec], number: u64, samples: usize) -> Vec<Bags> {
        let longest = [0, 70, 4, 3, 2];
        let tables = specs.iter().zip(longest);
        let bags = tables.map(|(spec, longest)| {
            Bags::plain(super::common::random_bags(number, samples, spec.rows, longest))
        });
        bags.collect()
    }

    /// The vectors of bags that owners pool.
    fn pooled_columns(specs: &[TableSpec], vectors: &[f32]) -> Vec<f32> {
        let owned = |(spec, &at): (&TableSpec, &PoolAt)| vec![at == PoolAt::Owner; spec.dim];
        let columns: Vec<bool> = specs.iter().zip(&POOL_AT).flat_map(owned).collect();
        let kept = vectors.iter().zip(columns.iter().cycle()).filter(|(_, owned)| **owned);
        kept.map(|(number, _)| *number).collect()
    }

    /// Three steps of several ranks, whose tensors are one rank's, bit for bit, on the device; and
    /// its vectors, those of the processor, given the same rows.
    fn check_pooled(
        stream: &Stream,
        specs: &[TableSpec],
        (optimizer, deduplicate): (Optimizer, Deduplicate),
        (ranks, sum_blocks): (usize, usize),
    ) {
        let plan = Plan {
            specs,
            optimizer,
            max_samples: 90,
            max_ids: &[90, 6400, 600, 600, 600],
            frozen: false,
        };
        let what = format!("{optimizer:?}, {ranks} ranks, {sum_blocks} blocks");
        let ways = Ways { deduplicate, pool_at: &POOL_AT, sum_blocks, ..Ways::default() };
        let mut several = Ranks::with(&ways, stream, &plan, pooled_partition(specs, ranks));
        let blocks = (&POOL_AT[..], sum_blocks * ranks);
        let mut single = SingleRank::pooling(blocks, stream, &plan);
        let mut on_host = SingleRank::pooling(blocks, &Stream::cpu(2), &plan);
        let mut on_the_rank = SingleRank::new(stream, &plan);
        for (number, samples) in [(1, 90), (2, 61), (3, 3)] {
            let bags = pooled_batch(specs, number, samples);
            let (got, expected) = (several.forward(&bags), single.forward(&bags));
            assert_eq!(several.check_flags(), [""; 0], "{what}");
            let step = format!("{what}: vectors of step {number}");
            assert_near(&got, &expected, 1e-4, 1e-4, &step);
            // Rows of other tables are moved by what ranks have merged, in another order.
            assert_bits(&pooled_columns(specs, &got), &pooled_columns(specs, &expected), &step);
            if number == 1 {
                assert_bits(&got, &expected, &step);
                assert_bits(&got, &on_host.forward(&bags), &format!("{what}: the processor"));
                assert_ne!(got, on_the_rank.forward(&bags), "sums have another shape");
            }
            let d_vectors = uniform(number, got.len());
            let step = Step { learning_rate: 0.1, number };
            single.backward(&d_vectors, &step);
            several.backward(&d_vectors, &step);
        }
        assert!(several.num_asked_again > 0, "{what}: strips were too short once");
        let (got, expected) = (several.tensors(), single.tensors());
        let states = got.len() / specs.len();
        for (tensor, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let what = format!("{what}: tensor {tensor}");
            match POOL_AT[tensor / states] {
                PoolAt::Owner => assert_bits(got, expected, &what),
                PoolAt::Rank => assert_near(got, expected, 1e-4, 1e-4, &what),
            }
        }
    }

    #[test]
    fn owners_pool_bags_as_one_rank_and_the_processor_do() {
        let Some(stream) = stream() else { return };
        let (sgd, adagrad) = (every_optimizer()[0], every_optimizer()[2]);
        check_pooled(&stream, &specs([16; 5]), (sgd, Deduplicate::Rank), (2, 1));
        check_pooled(&stream, &specs([16; 5]), (adagrad, Deduplicate::Off), (8, 1));
        check_pooled(&stream, &specs([16, 20, 33, 5, 1]), (sgd, Deduplicate::Rank), (4, 4));
        check_pooled(&stream, &specs([16, 20, 33, 5, 1]), (adagrad, Deduplicate::Rank), (3, 2));
        let narrow = narrow(specs([128; 5]), u64::MAX);
        check_pooled(&stream, &narrow, (sgd, Deduplicate::Rank), (4, 2));
    }

    /// A vector and a gradient for each bag and owner travel, whatever rows the bag has.
    #[test]
    fn owners_that_pool_send_a_vector_a_bag() {
        let Some(stream) = stream() else { return };
        let specs = [TableSpec::new("many", 1000, 16)];
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 20,
            max_ids: &[800],
            frozen: false,
        };
        let bags = [Bags::plain(
            (0..80).map(|s| (0..40).map(|i| (s * 7 + i * 13) % 1000).collect()).collect(),
        )];
        let sent = |pool_at| {
            let ways = Ways { pool_at, ..Ways::default() };
            let mut ranks = Ranks::with(&ways, &stream, &plan, Partition::row_wise(&specs, 4));
            ranks.forward(&bags);
            assert_eq!(ranks.check_flags(), [""; 0]);
            ranks.ranks.iter().map(|rank| num_written(&rank.recv_rows.1)).sum::<usize>() / 16
        };
        assert_eq!(sent(&[PoolAt::Owner]), 80 * 4);
        assert!(sent(&[PoolAt::Rank]) > 80 * 8);
    }

    /// Where there is no memory for the worst case, a slot that is too small is an error, as of
    /// rows.
    #[test]
    fn what_a_slot_for_bags_has_no_room_for_is_an_error() {
        let Some(stream) = stream() else { return };
        let specs = [TableSpec::new("many", 100_000, 16)];
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 100,
            max_ids: &[3000],
            frozen: false,
        };
        let bags = (0..400).map(|s| (0..30).map(|i| (s * 31 + i) * 4).collect()).collect();
        let bags = [Bags::plain(bags)];
        let slots = SlotOptions { most_bytes: 1, ..SlotOptions::default() };
        for (slots, fits) in [(slots, false), (SlotOptions::default(), true)] {
            let ways = Ways { slots, pool_at: &[PoolAt::Owner], ..Ways::default() };
            let mut ranks = Ranks::with(&ways, &stream, &plan, Partition::row_wise(&specs, 4));
            ranks.forward(&bags);
            let errors = ranks.check_flags();
            assert_eq!(errors.is_empty(), fits, "{errors:?}");
            assert!(errors.iter().all(|error| error.contains("`many`")), "{errors:?}");
            let d_vectors = uniform(1, 400 * 16);
            ranks.backward(&d_vectors, &Step { learning_rate: 0.1, number: 1 });
            assert!(ranks.tensors().concat().iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn owners_refuse_weighted_bags_by_name() {
        let Some(stream) = stream() else { return };
        let specs = specs([16; 5]);
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 90,
            max_ids: &[600; 5],
            frozen: false,
        };
        let ways = Ways { pool_at: &POOL_AT, ..Ways::default() };
        let mut ranks = Ranks::with(&ways, &stream, &plan, pooled_partition(&specs, 2));
        let error = Batch::new(&batch(&specs, 1, 9))
            .with(|ids| ranks.ranks[0].route.stage(ids).unwrap_err().to_string());
        assert!(error.contains("`d`: weights") && error.contains("without weights"), "{error}");
    }

    /// What an owner has of a bag is rounded when it is sent, and so is the bag's gradient.
    #[test]
    fn sums_of_owners_travel_as_bf16_too() {
        let Some(stream) = stream() else { return };
        let specs = specs([16; 5]);
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Sgd,
            max_samples: 90,
            max_ids: &[90, 6400, 600, 600, 600],
            frozen: false,
        };
        let slots = SlotOptions { dtype: DType::Bf16, ..SlotOptions::default() };
        let ways = Ways { slots, pool_at: &POOL_AT, ..Ways::default() };
        let mut several = Ranks::with(&ways, &stream, &plan, pooled_partition(&specs, 4));
        let mut single = SingleRank::pooling((&POOL_AT, 4), &stream, &plan);
        let bags = pooled_batch(&specs, 1, 90);
        let (got, exact) = (several.forward(&bags), single.forward(&bags));
        assert_eq!(several.check_flags(), [""; 0]);
        assert_near(&got, &exact, 1e-2, 1e-2, "vectors");
        assert_ne!(pooled_columns(&specs, &got), pooled_columns(&specs, &exact));
        let d_vectors = uniform(2, got.len());
        let step = Step { learning_rate: 1.0, number: 1 };
        several.backward(&d_vectors, &step);
        single.backward(&d_vectors, &step);
        for (got, expected) in several.tensors().iter().zip(&single.tensors()) {
            assert_near(got, expected, 1e-2, 1e-1, "tensors");
        }
    }

    /// A table with a CUDA body of its own, between two others: on one rank, and on one of four.
    /// Its rows share storage, so its gradients reach it in the same order either way; integers
    /// make the sums before that exact.
    #[test]
    fn a_table_of_ones_own_steps_the_same_on_one_of_four_ranks() {
        let Some(stream) = stream() else { return };
        let own = TableSpec {
            kind: "quotient_remainder".to_owned(),
            grain: Grain::Whole,
            ..TableSpec::new("own", 90, 16)
        };
        let specs = [TableSpec::new("a", 50, 16), own, TableSpec::new("c", 70, 16)];
        let plan = Plan {
            specs: &specs,
            optimizer: Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.1 },
            max_samples: 100,
            max_ids: &[100, 300, 100],
            frozen: false,
        };
        let placements = vec![
            TablePlacement::DataParallel,
            TablePlacement::TableWise(Owner(2)),
            TablePlacement::by_formula(),
        ];
        let mut single = SingleRank::new(&stream, &plan);
        let mut several =
            Ranks::new(&stream, &plan, Partition::new(&specs, 4, placements).unwrap());
        let before = single.tensors();
        for number in 1..=3 {
            let longest = [0, 3, 0];
            let bags: Vec<_> = specs
                .iter()
                .zip(longest)
                .map(|(spec, longest)| {
                    Bags::plain(super::common::random_bags(number, 100, spec.rows, longest))
                })
                .collect();
            let (expected, got) = (single.forward(&bags), several.forward(&bags));
            assert_bits(&got, &expected, &format!("vectors of step {number}"));
            let d_vectors = small_integers(number, 100 * 48);
            let step = Step { learning_rate: 0.1, number };
            single.backward(&d_vectors, &step);
            several.backward(&d_vectors, &step);
        }
        let after = single.tensors();
        assert_ne!(after[2], before[2], "the quotient has moved");
        for (tensor, (got, expected)) in several.tensors().iter().zip(&after).enumerate() {
            assert_bits(got, expected, &format!("tensor {tensor}"));
        }
    }
}
