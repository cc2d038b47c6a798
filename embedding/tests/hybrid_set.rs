//! Errors, memory, saved rows and initial values of hybrid sets.

use crate::common::cases::{batch, specs};
use crate::common::custom::registry;
use crate::common::ranks::{Bags, Ranks, Shape, Traffic, Variant, WeightedIds, list};
use crate::common::{bits, matrix};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::pool::Pool;
use headlong_device::testing::uniform;
use headlong_device::{DType, JaggedRef, Stream};
use headlong_embedding::hybrid::*;
use headlong_embedding::oracle::OracleTable;
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::*;
use std::sync::Arc;

const ADAGRAD: Optimizer = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.1 };

fn options<'a>(
    partition: &Arc<Partition>,
    owner: usize,
    max_ids: &'a [usize],
) -> HybridOptions<'a> {
    HybridOptions {
        set: SetOptions {
            optimizer: ADAGRAD,
            seed: 11,
            max_samples: 8,
            max_ids,
            sum_blocks: 1,
            frozen: false,
            narrow: None,
        },
        partition: Arc::clone(partition),
        owner: Owner(owner),
        deduplicate: Deduplicate::Rank,
        pool_at: &[],
        slots: SlotOptions::default(),
    }
}

fn set(specs: &[TableSpec], partition: Partition, owner: usize) -> HybridSet {
    let max_ids = vec![8; specs.len()];
    let options = options(&Arc::new(partition), owner, &max_ids);
    HybridSet::new(&registry(), &Stream::cpu(1), specs, &options).expect("the set is built")
}

fn mixed(specs: &[TableSpec], owners: usize) -> Partition {
    let placements = specs.iter().enumerate().map(|(table, spec)| match table % 3 {
        0 => TablePlacement::DataParallel,
        _ if spec.rows == 1 => TablePlacement::by_formula(),
        1 => TablePlacement::RowWise {
            frequent: (0..spec.rows / 3).map(|row| row * 2).collect(),
            placed: vec![(1, Owner(owners - 1)), (spec.rows - 1, Owner(0))],
        },
        _ => TablePlacement::TableWise(Owner(1)),
    });
    Partition::new(specs, owners, placements.collect()).expect("the placements fit")
}

#[test]
fn initial_values_do_not_depend_on_placement() {
    let specs = specs();
    for partition in
        [Partition::row_wise(&specs, 3), Partition::all_frequent(&specs, 3), mixed(&specs, 3)]
    {
        let sets: Vec<_> = (0..3).map(|owner| set(&specs, partition.clone(), owner)).collect();
        for (table, spec) in specs.iter().enumerate() {
            let mut oracle = OracleTable::new(spec, ADAGRAD, 11, table as u64);
            for row in 0..spec.rows {
                let holders = match partition.classify(table, row) {
                    Place::Frequent(_) => vec![0, 1, 2],
                    Place::Infrequent { owner, .. } => vec![owner.0],
                };
                for holder in holders {
                    let mut weights = vec![f32::NAN; spec.dim];
                    sets[holder].export_rows(table, 0, row, &mut weights).unwrap();
                    assert_eq!(
                        bits(&weights),
                        bits(&oracle.row(row).weights),
                        "table {table}, row {row}"
                    );
                    let mut state = vec![f32::NAN; spec.dim];
                    sets[holder].export_rows(table, 1, row, &mut state).unwrap();
                    assert!(state.iter().all(|x| *x == 0.1), "table {table}, row {row}");
                }
            }
        }
    }
}

/// Trained with one partition, carried over to another with other ranks, trained on: as if nothing
/// had happened.
#[test]
fn rows_move_to_another_partition() {
    let hidden =
        specs().into_iter().map(|spec| TableSpec { kind: "hidden".to_owned(), ..spec }).collect();
    for (specs, optimizer) in [specs(), hidden]
        .into_iter()
        .flat_map(|specs| every_optimizer().map(|o| (specs.clone(), o)))
    {
        let shape = |num_blocks| Shape {
            specs: &specs,
            optimizer,
            pool_at: &[],
            num_blocks,
            max_samples: 150,
            max_ids: 600,
            threads: 1,
        };
        let step = |ranks: &mut Ranks, number: u64| {
            let mut traffic = Traffic::default();
            let vectors = ranks.forward(&batch(&specs, number, 100), &mut traffic);
            let step = Step { learning_rate: 0.1, number };
            ranks.backward(100, &uniform(number, vectors.len()), &step, &mut traffic);
            bits(&vectors)
        };
        let mut stays = Ranks::new(&registry(), &shape(4), mixed(&specs, 2), Variant::default());
        step(&mut stays, 1);
        let mut moved =
            Ranks::new(&registry(), &shape(4), Partition::row_wise(&specs, 4), Variant::default());
        for table in 0..specs.len() {
            for tensor in 0..stays.sets[0].tensors(table).len() {
                let rows = stays.tensor(table, tensor).expect("dense tables show their rows");
                let cols = stays.sets[0].tensors(table)[tensor].cols;
                // In two parts, as files come.
                let middle = rows.len() / cols / 2;
                for set in &moved.sets {
                    set.import_rows(table, tensor, 0, &rows[..middle * cols]).unwrap();
                    set.import_rows(table, tensor, middle as u64, &rows[middle * cols..]).unwrap();
                }
            }
        }
        assert!(stays.all_bits() == moved.all_bits());
        assert!(step(&mut stays, 2) == step(&mut moved, 2), "vectors with {}", optimizer.name());
        assert!(stays.all_bits() == moved.all_bits(), "rows and states with {}", optimizer.name());
    }
}

/// All weights of a table, whichever rank holds them.
fn weights_of(sets: &[HybridSet], table: usize) -> Vec<f32> {
    let spec = &sets[0].specs()[table];
    let mut weights = vec![f32::NAN; spec.rows as usize * spec.dim];
    sets.iter()
        .for_each(|set| set.export_rows(table, 0, 0, &mut weights).expect("the rows are shown"));
    weights
}

/// From ranks to others that hold the same tables otherwise, narrow tables included; what hides its
/// rows is left to others.
#[test]
fn weights_are_copied_to_other_ranks() {
    let narrow = |spec: TableSpec| TableSpec { dtype: DType::Bf16, ..spec };
    let big = TableSpec::new("big", 30_000, 8);
    let specs: Vec<_> = specs().into_iter().chain([big.clone(), narrow(big)]).collect();
    let partitions = |owners: usize| {
        let by_hand = (owners > 1).then(|| mixed(&specs, owners));
        [Partition::row_wise(&specs, owners), Partition::all_frequent(&specs, owners)]
            .into_iter()
            .chain(by_hand)
    };
    let sets = |partition: &Partition| -> Vec<_> {
        (0..partition.num_owners()).map(|owner| set(&specs, partition.clone(), owner)).collect()
    };
    let pool = Pool::new(2);
    for partition in [1, 3].into_iter().flat_map(partitions) {
        let from = sets(&partition);
        for (table, spec) in specs.iter().enumerate() {
            let values = uniform(table as u64, spec.rows as usize * spec.dim);
            from.iter().for_each(|set| set.import_rows(table, 0, 0, &values).unwrap());
        }
        for partition in [1, 2].into_iter().flat_map(partitions) {
            let to = sets(&partition);
            let copied = copy_weights(
                &pool,
                &from.iter().collect::<Vec<_>>(),
                &to.iter().collect::<Vec<_>>(),
            );
            for (table, spec) in specs.iter().enumerate() {
                assert!(copied[table], "table {}", spec.name);
                assert_eq!(
                    bits(&weights_of(&to, table)),
                    bits(&weights_of(&from, table)),
                    "table {}",
                    spec.name
                );
            }
        }
    }
    let hidden = [TableSpec { kind: "hidden".to_owned(), ..TableSpec::new("C1", 5, 4) }];
    let hidden = set(&hidden, Partition::row_wise(&hidden, 1), 0);
    assert_eq!(copy_weights(&pool, &[&hidden], &[&hidden]), [false]);
}

#[test]
fn ids_and_requests_out_of_range_are_named() {
    let specs = [TableSpec::new("C1", 5, 4), TableSpec::new("C2", 648, 4)];
    let set = set(&specs, Partition::row_wise(&specs, 2), 1);
    let stream = Stream::cpu(2);
    let mut route = set.new_route().unwrap();
    let good = [JaggedRef::new(&[4, 3], &[0, 1, 2]), JaggedRef::new(&[647, 7], &[0, 1, 2])];
    let bad = [good[0], JaggedRef::new(&[7, 648], &[0, 1, 2])];
    let expected = "table `C2`: row index 648 in sample 1 of the batch is out of range, the table \
                    has 648 rows";
    assert_eq!(set.route(&stream, &bad[..], 2, &mut route).unwrap_err().to_string(), expected);
    let slices: [&dyn Ids; 2] = [&good.to_vec(), &bad.to_vec()];
    assert_eq!(
        set.receive_known_requests(&stream, &mut route, &slices).unwrap_err().to_string(),
        expected
    );

    // Nothing of a batch with an error is worked on, nor of the one before.
    set.route(&stream, &good[..], 2, &mut route).unwrap();
    assert!(set.route(&stream, &bad[..], 2, &mut route).is_err());
    assert!(route.request_counts().iter().all(|&count| count == 0) && route.num_samples() == 0);
    let (_d_vectors, d_vectors) = matrix(0, 8, &[]);
    let [(_to_owners, to_owners), (_frequent, frequent)] = [list(&[]), list(&[])];
    set.reduce_rows(&stream, &route, &d_vectors, &to_owners, &frequent);

    set.route(&stream, &good[..], 2, &mut route).unwrap();
    // Owner 1 of two has local rows 0 and 1 of the first table (rows 1 and 3).
    assert_eq!(set.partition().local_rows(0, Owner(1)), 2);
    route.recv_counts_mut().copy_from_slice(&[0, 0, 1, 0]);
    route.id_exchange().unwrap().receive.copy_from_slice(&[2]);
    let error = set.receive_requests(&stream, &mut route).unwrap_err().to_string();
    assert_eq!(
        error,
        "table `C1`: source 1 asks for local row 2, this owner keeps 2 rows: ranks disagree on the \
         partition"
    );
    assert_eq!(route.num_merged_rows(0), 0, "nothing is left to be updated");
    route.recv_counts_mut().copy_from_slice(&[0, 0, 1, 0]);
    route.id_exchange().unwrap().receive.copy_from_slice(&[1]);
    set.receive_requests(&stream, &mut route).unwrap();
    // Counts of the next batch may arrive before this one is answered.
    route.recv_counts_mut().copy_from_slice(&[8, 8, 8, 8]);
    let (_arena, sent) = list(&[f32::NAN; 4]);
    set.owner_lookup(&stream, &route, &sent).unwrap();
    let mut row = [0.0; 4];
    set.export_rows(0, 0, 3, &mut row).unwrap();
    assert_eq!(sent.to_vec::<f32>().unwrap(), row);
    route.recv_counts_mut().copy_from_slice(&[0, 9, 1, 0]);
    let error = route.id_exchange().unwrap_err().to_string();
    assert_eq!(error, "table `C2`: 9 requested rows in one batch, planned for at most 8");
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("C1", 5, 4) };
    let sum = TableSpec::new("C1", 5, 4);
    let stream = Stream::cpu(1);
    let tables = [JaggedRef::new(&[4, 3], &[0, 1, 2])];
    let message = |spec: TableSpec, weights: &[f32]| {
        let specs = [spec];
        let ids = WeightedIds { tables: &tables, weights: &[Some(weights)] };
        let divided = set(&specs, Partition::row_wise(&specs, 2), 1);
        let message = divided
            .route(&stream, &ids, 2, &mut divided.new_route().unwrap())
            .unwrap_err()
            .to_string();
        let single = set(&specs, Partition::row_wise(&specs, 1), 0);
        let (_arena, vectors) = matrix(2, 4, &[0.0; 8]);
        let refused = single.pool(&stream, &ids, &single.new_route().unwrap(), &vectors, &vectors);
        assert_eq!(message, refused.unwrap_err().to_string());
        message
    };
    assert_eq!(
        message(mean, &[1.0, 2.0]),
        "table `C1`: weights of bags: only sums can be weighted, the table has pooling = mean"
    );
    assert_eq!(
        message(sum, &[1.0]),
        "table `C1`: weights of bags: 1 weights for 2 ids; there is one per id"
    );
}

#[test]
fn a_single_rank_has_all_rows() {
    let specs = specs();
    let set = set(&specs, mixed(&specs, 2), 0);
    assert!(!set.is_single_rank());
    let single = {
        let placements = vec![TablePlacement::RowWise { frequent: vec![0], placed: vec![] }; 5];
        self::set(&specs, Partition::new(&specs, 1, placements).unwrap(), 0)
    };
    assert!(single.is_single_rank());
    assert_eq!(
        (single.frequent_len(), single.max_recv_elements(), single.max_send_elements()),
        (0, 0, 0)
    );
    assert_eq!(single.width(), set.width());
    let stream = Stream::cpu(1);
    let ids: Vec<_> = specs.iter().map(|_| JaggedRef::new(&[0, 0], &[0, 1, 2])).collect();
    let mut route = single.new_route().unwrap();
    let (_arena, vectors) = matrix(2, single.width(), &vec![1.0; 2 * single.width()]);
    let (_nothing, nothing) = list(&[]);
    let step = Step { learning_rate: 0.1, number: 1 };
    single.route(&stream, &ids, 2, &mut route).unwrap();
    single.receive_requests(&stream, &mut route).unwrap();
    single.owner_lookup(&stream, &route, &nothing).unwrap();
    single.reduce_rows(&stream, &route, &vectors, &nothing, &nothing);
    single.update_owned(&stream, &route, &vectors, &nothing, &step).unwrap();
    single.update_replicated(&stream, &nothing, &step).unwrap();
    single.lookup_replicated(&stream, &ids, &route, &vectors).unwrap();
    single.pool(&stream, &ids, &route, &nothing, &vectors).unwrap();
    assert_eq!(route.num_samples(), 2);
    let mut row = [0.0; 16];
    single.export_rows(0, 0, 0, &mut row).unwrap();
    assert_eq!(vectors.read::<f32>().row(1)[..16], row);
}

#[test]
fn a_frozen_set_stays() {
    let specs = specs();
    let max_ids = vec![600; specs.len()];
    let partition = Arc::new(mixed(&specs, 2));
    let stream = Stream::cpu(1);
    let mut frozen = options(&partition, 1, &max_ids);
    frozen.set.frozen = true;
    let set = HybridSet::new(&registry(), &stream, &specs, &frozen).unwrap();
    let before = {
        let mut rows = vec![0.0; 20];
        set.export_rows(1, 0, 0, &mut rows).unwrap();
        rows
    };
    let (_arena, block) = list(&vec![1.0; set.frequent_len()]);
    let (_nothing, nothing) = list(&[]);
    let step = Step { learning_rate: 1.0, number: 1 };
    set.update_replicated(&stream, &block, &step).unwrap();
    set.update_owned(&stream, &set.new_route().unwrap(), &nothing, &nothing, &step).unwrap();
    let mut after = vec![0.0; 20];
    set.export_rows(1, 0, 0, &mut after).unwrap();
    assert_eq!(before, after);
    frozen.set.frozen = false;
    let thawed = HybridSet::new(&registry(), &stream, &specs, &frozen).unwrap();
    thawed.update_replicated(&stream, &block, &step).unwrap();
    thawed.export_rows(1, 0, 0, &mut after).unwrap();
    assert_ne!(before, after);
}

#[test]
#[should_panic(expected = "without deduplication a rank has one sum block")]
fn several_blocks_need_deduplication() {
    let specs = specs();
    let max_ids = vec![8; specs.len()];
    let mut options = options(&Arc::new(Partition::row_wise(&specs, 2)), 0, &max_ids);
    (options.deduplicate, options.set.sum_blocks) = (Deduplicate::Off, 2);
    let _ = HybridSet::new(&registry(), &Stream::cpu(1), &specs, &options);
}

#[test]
#[should_panic(expected = "the route was made by this set")]
fn a_route_of_another_set_is_refused() {
    let (small, large) = ([TableSpec::new("a", 10, 4)], [TableSpec::new("a", 1000, 4)]);
    let mut route = set(&large, Partition::row_wise(&large, 2), 0).new_route().unwrap();
    let ids = vec![JaggedRef::new(&[9], &[0, 1])];
    let _ =
        set(&small, Partition::row_wise(&small, 2), 0).route(&Stream::cpu(1), &ids, 1, &mut route);
}

/// A proxy finds a peer that asks for rows an owner does not keep.
#[test]
fn proxies_check_what_peers_ask_for() {
    let specs = [TableSpec::new("a", 10, 4)];
    let variant = Variant { deduplicate: Deduplicate::Node { ranks: 2 }, ..Variant::default() };
    let shape = Shape {
        specs: &specs,
        optimizer: ADAGRAD,
        pool_at: &[],
        num_blocks: 4,
        max_samples: 8,
        max_ids: 8,
        threads: 1,
    };
    let mut ranks = Ranks::new(&registry(), &shape, Partition::row_wise(&specs, 4), variant);
    ranks
        .forward(&[Bags::plain(vec![vec![1], vec![2], vec![3], vec![4]])], &mut Traffic::default());
    let (proxy, route) = (&mut ranks.proxies[0], &ranks.routes[0]);
    // Peer 1 asks for one row of owner 2, which keeps local rows 0 and 1.
    proxy.counts_inside(route).receive.copy_from_slice(&[0, 0, 0, 1]);
    proxy.ids_inside(route).unwrap().receive.copy_from_slice(&[2]);
    let error = proxy.merge(&ranks.stream).unwrap_err().to_string();
    assert!(error.contains("source 1 asks for local row 2, this owner keeps 2 rows"), "{error}");
}
