//! Several ranks' tables on one device, slots copied between them, against one rank on the CPU.

#[cfg(test)]
mod common;

#[cfg(test)]
mod cuda_tests {
    use super::common::cases::{batch, narrow, partition};
    use super::common::device::{
        Plan, SingleRank, assert_bits, assert_near, matrix_on, registry, upload_step,
    };
    use super::common::ranks::{Bags, Batch};
    use headlong_device::cuda::testing::stream;
    use headlong_device::cuda::{DeviceMemory, DevicePtr};
    use headlong_device::optimizer::{Optimizer, Step};
    use headlong_device::testing::{small_integers, uniform};
    use headlong_device::{Arena, ArenaPlan, DType, Mat, Stream, bf16, f16};
    use headlong_embedding::hybrid::*;
    use headlong_embedding::testing::every_optimizer;
    use headlong_embedding::update::sum_block_len;
    use headlong_embedding::{Grain, Pooling, SetOptions, TableSpec};
    use std::sync::Arc;

    struct Rank {
        set: HybridSet,
        route: HybridRoute,
        send_rows: (Arena, Mat),
        recv_rows: (Arena, Mat),
        frequent: (Arena, Mat),
        samples: usize,
    }

    struct Ranks {
        ranks: Vec<Rank>,
        stream: Stream,
        optimizer: Optimizer,
        step: DeviceMemory,
        num_batches: usize,
        num_asked_again: usize,
    }

    impl Ranks {
        fn new(stream: &Stream, plan: &Plan, partition: Partition) -> Self {
            Self::with((Deduplicate::Rank, SlotOptions::default()), stream, plan, partition)
        }

        fn with(
            (deduplicate, slots): (Deduplicate, SlotOptions),
            stream: &Stream,
            plan: &Plan,
            partition: Partition,
        ) -> Self {
            let partition = Arc::new(partition);
            let device = stream.cuda_body().device();
            let bytes = size_of::<headlong_device::cuda::DeviceStep>();
            let step = DeviceMemory::new(device, "step", bytes).unwrap();
            let rank = |owner| {
                let options = HybridOptions {
                    set: SetOptions {
                        optimizer: plan.optimizer,
                        seed: 11,
                        max_samples: plan.max_samples,
                        max_ids: plan.max_ids,
                        sum_blocks: 1,
                        frozen: false,
                        narrow: None,
                    },
                    partition: Arc::clone(&partition),
                    owner: Owner(owner),
                    deduplicate,
                    pool_at: &[],
                    slots,
                };
                let set = HybridSet::new(&registry(), stream, plan.specs, &options).unwrap();
                set.set_device_step(step.ptr());
                let len = set.max_send_elements();
                assert_eq!(len, partition.num_owners() * set.slots().unwrap().elements);
                // What no one wrote must not be read: it would show.
                let slots = || slots_on(stream, slots.dtype, len);
                let frequent = set.frequent_len().max(1);
                let frequent = matrix_on(stream, 1, frequent, &vec![f32::NAN; frequent]);
                Rank {
                    route: set.new_route().unwrap(),
                    send_rows: slots(),
                    recv_rows: slots(),
                    frequent,
                    set,
                    samples: 0,
                }
            };
            let ranks = (0..partition.num_owners()).map(rank).collect();
            let (num_batches, num_asked_again) = (0, 0);
            let (stream, optimizer) = (stream.clone(), plan.optimizer);
            Self { ranks, stream, optimizer, step, num_batches, num_asked_again }
        }

        fn bounds(&self, samples: usize) -> Vec<usize> {
            let len = sum_block_len(samples, self.ranks.len());
            (0..=self.ranks.len()).map(|rank| (rank * len).min(samples)).collect()
        }

        /// Copies slot `to` of each rank `from` to slot `from` of rank `to`.
        fn exchange(
            &self,
            (stride, bytes): (usize, usize),
            slots: impl Fn(&Rank) -> (DevicePtr, DevicePtr),
        ) {
            for (from, sender) in self.ranks.iter().enumerate() {
                for (to, receiver) in self.ranks.iter().enumerate() {
                    let (source, target) = (slots(sender).0, slots(receiver).1);
                    let (source, target) =
                        (source.offset(to * stride), target.offset(from * stride));
                    self.stream.cuda_body().copy(target, source, bytes);
                }
            }
        }

        /// Bytes from one peer's slot of vectors to the next, and of a strip.
        fn vector_bytes(&self) -> (usize, usize) {
            let rank = &self.ranks[0];
            let of_element = rank.send_rows.1.dtype().bytes();
            let bytes = |strips: Option<StripSizes>| of_element * strips.unwrap().elements;
            (bytes(rank.set.slots()), bytes(rank.route.strips()))
        }

        /// Ranks ask owners for the rows of a batch.
        fn ask(&mut self, tables: &[Bags]) {
            let bounds = self.bounds(tables[0].bags.len());
            for (index, rank) in self.ranks.iter_mut().enumerate() {
                let slice: Vec<_> =
                    tables.iter().map(|t| t.slice(bounds[index], bounds[index + 1])).collect();
                rank.samples = bounds[index + 1] - bounds[index];
                Batch::new(&slice).with(|ids| {
                    rank.route.stage(ids).unwrap();
                    rank.route.copy(&self.stream);
                    rank.set.route(&self.stream, ids, 1, &mut rank.route).unwrap();
                });
            }
            let slots = self.ranks[0].route.id_slots();
            self.exchange((slots.stride, slots.bytes_per_peer), |rank| {
                (rank.route.id_slots().from, rank.route.id_slots().to)
            });
            for rank in &mut self.ranks {
                rank.set.receive_requests(&self.stream, &mut rank.route).unwrap();
            }
        }

        fn set_strips(&mut self, change: impl Fn(&mut StripSizes)) {
            for rank in &mut self.ranks {
                let mut strips = rank.route.strips().unwrap();
                change(&mut strips);
                rank.route.set_strips(strips);
            }
        }

        /// Asks with strips that are too short for requests, in every other batch, and then sends
        /// what the batch needs and no more.
        fn forward(&mut self, tables: &[Bags]) -> Vec<f32> {
            self.num_batches += 1;
            let short = 2 + tables.len() + 5;
            if self.num_batches % 2 == 1 {
                self.set_strips(|strips| strips.id_words = short);
            }
            self.ask(tables);
            self.stream.synchronize().unwrap();
            let needed: Vec<_> =
                self.ranks.iter().map(|rank| rank.route.needed_strips().unwrap()).collect();
            assert!(needed.iter().all(|other| other == &needed[0]), "{needed:?}");
            if needed[0].id_words > self.ranks[0].route.strips().unwrap().id_words {
                self.num_asked_again += 1;
                self.set_strips(|strips| strips.id_words = needed[0].id_words);
                self.ask(tables);
            }
            self.set_strips(|strips| strips.elements = needed[0].elements);
            for rank in &self.ranks {
                rank.set.owner_lookup(&self.stream, &rank.route, &rank.send_rows.1).unwrap();
            }
            self.exchange(self.vector_bytes(), |rank| {
                (rank.send_rows.1.device_ptr(), rank.recv_rows.1.device_ptr())
            });
            let mut all = Vec::new();
            for rank in &self.ranks {
                let width = rank.set.width();
                let (_arena, vectors) = matrix_on(
                    &self.stream,
                    rank.samples,
                    width,
                    &vec![f32::NAN; rank.samples * width],
                );
                let (set, stream, no_ids) = (&rank.set, &self.stream, Vec::new());
                set.lookup_replicated(stream, &no_ids, &rank.route, &vectors).unwrap();
                set.pool(stream, &no_ids, &rank.route, &rank.recv_rows.1, &vectors).unwrap();
                all.extend(vectors.to_vec::<f32>().unwrap());
            }
            self.stream.check().unwrap();
            all
        }

        fn check_flags(&self) -> Vec<String> {
            let errors = self.ranks.iter().filter_map(|rank| rank.set.check_flags().err());
            errors.map(|error| error.to_string()).collect()
        }

        fn backward(&self, d_vectors: &[f32], step: &Step) {
            upload_step(&self.step, step, &self.optimizer);
            let mut first = 0;
            let mut sums: Vec<f32> = Vec::new();
            for rank in &self.ranks {
                let len = rank.samples * rank.set.width();
                let (_arena, mat) = matrix_on(
                    &self.stream,
                    rank.samples,
                    rank.set.width(),
                    &d_vectors[first..first + len],
                );
                first += len;
                rank.set.reduce_rows(
                    &self.stream,
                    &rank.route,
                    &mat,
                    &rank.recv_rows.1,
                    &rank.frequent.1,
                );
                let block = rank.frequent.1.to_vec::<f32>().unwrap();
                sums.resize(block.len(), 0.0);
                sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
            }
            self.exchange(self.vector_bytes(), |rank| {
                (rank.recv_rows.1.device_ptr(), rank.send_rows.1.device_ptr())
            });
            for rank in &self.ranks {
                rank.frequent.1.copy_from(&sums).unwrap();
                let (set, send_rows) = (&rank.set, &rank.send_rows.1);
                set.update_owned(&self.stream, &rank.route, send_rows, send_rows, step).unwrap();
                set.update_replicated(&self.stream, &rank.frequent.1, step).unwrap();
            }
            self.stream.synchronize().unwrap();
        }

        /// All tensors of the whole model; replicas are equal.
        fn tensors(&self) -> Vec<Vec<f32>> {
            let partition = self.ranks[0].set.partition();
            let mut all = Vec::new();
            for table in 0..self.ranks[0].set.specs().len() {
                // Who holds a table knows its tensors.
                let holder = (0..self.ranks.len())
                    .find(|&rank| partition.local_rows(table, Owner(rank)) > 0);
                let tensors = self.ranks[holder.unwrap_or(0)].set.tensors(table);
                for (index, tensor) in tensors.iter().enumerate() {
                    let mut whole = vec![f32::NAN; tensor.rows as usize * tensor.cols];
                    for rank in &self.ranks {
                        let mut part = vec![f32::NAN; whole.len()];
                        rank.set.export_rows(table, index, 0, &mut part).unwrap();
                        for (whole, part) in
                            whole.iter_mut().zip(part).filter(|(_, part)| !part.is_nan())
                        {
                            assert!(
                                whole.is_nan() || whole.to_bits() == part.to_bits(),
                                "replicas differ"
                            );
                            *whole = part;
                        }
                    }
                    all.push(whole);
                }
            }
            all
        }
    }

    /// Slots of vectors that nothing has been written to.
    fn slots_on(stream: &Stream, dtype: DType, len: usize) -> (Arena, Mat) {
        let mut plan = ArenaPlan::new("test");
        let slot = plan.matrix("slots", dtype, 1, len);
        let arena = plan.freeze_on(stream).unwrap();
        let mat = arena.mat(slot);
        match dtype {
            DType::Bf16 => mat.copy_from(&vec![bf16::round(f32::NAN); len]).unwrap(),
            DType::F16 => mat.copy_from(&vec![half::f16::NAN; len]).unwrap(),
            _ => mat.copy_from(&vec![f32::NAN; len]).unwrap(),
        }
        (arena, mat)
    }

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
                let slots = SlotOptions::default();
                let mut several = Ranks::with((deduplicate, slots), &stream, &plan, split.clone());
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
            let options = (Deduplicate::Rank, SlotOptions { dtype, ..SlotOptions::default() });
            let mut several = Ranks::with(options, &stream, &plan, split.clone());
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
        let mut ranks = Ranks::with((Deduplicate::Rank, slots), &stream, &plan, split());
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
