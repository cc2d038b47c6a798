use super::*;
use headlong_device::rng::CounterRng;

/// Uniform numbers below `end`.
fn draws(seed: u64, count: usize, end: u64) -> Vec<u64> {
    let rng = CounterRng::new(seed, 11);
    (0..count).map(|index| (u64::from(rng.bits(index as u64)[0]) * end) >> 32).collect()
}

const CLUSTERS: [&[usize]; 7] = [&[1], &[4], &[1, 1], &[2, 2], &[4, 4], &[1, 3], &[3, 1, 2]];

#[test]
fn formulas_are_the_means_of_counts() {
    // 30 rows, 96 lookups a step: every row comes 3.2 times.
    let (rows, lookups, steps) = (30_u64, 96, 400);
    for sizes in CLUSTERS {
        let cluster = Cluster::new(sizes);
        let ranks = cluster.num_ranks();
        for merge in [Merge::Off, Merge::Rank, Merge::Node] {
            for exchange in [Exchange::Flat, Exchange::Hierarchical] {
                let mut counted = Hops::default();
                for step in 0..steps {
                    let batch = draws(step, lookups, rows);
                    let slices: Vec<_> = batch.chunks_exact(lookups / ranks).collect();
                    // Owners change from step to step, so that each rank owns each row equally
                    // often.
                    let owner = |row: u64| Some((row + step) as usize % ranks);
                    counted += count_vectors(&cluster, merge, exchange, &slices, &owner);
                }
                let rate = Rate::known(lookups as f64 / rows as f64);
                let expected = vectors(&cluster, merge, exchange, rate) * rows as f64;
                let mean = counted * (1.0 / steps as f64);
                // Counts are binomial, formulas Poisson: the chance to be absent differs by 2 %.
                for (mean, expected) in [(mean.intra, expected.intra), (mean.inter, expected.inter)]
                {
                    let close = (mean - expected).abs() <= 0.025 * expected;
                    assert!(
                        close,
                        "{sizes:?} {merge:?} {exchange:?}: counted {mean}, expected {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn formulas_of_the_table_hold_on_even_nodes() {
    let (nodes, each) = (4.0, 8.0);
    let ranks: f64 = nodes * each;
    let cluster = Cluster::even(4, 8);
    let rate = Rate::known(5.0);
    let q = |part: f64| 1.0 - (-5.0 * part).exp();
    let near = |hops: Hops, intra: f64, inter: f64| {
        assert!((hops.intra - intra).abs() < 1e-9 && (hops.inter - inter).abs() < 1e-9, "{hops:?}");
    };
    let crossing = (nodes - 1.0) / nodes;
    let flat = |merge| vectors(&cluster, merge, Exchange::Flat, rate);
    near(flat(Merge::Off), 5.0 * (each - 1.0) / ranks, 5.0 * crossing);
    near(flat(Merge::Rank), q(1.0 / ranks) * (each - 1.0), ranks * q(1.0 / ranks) * crossing);
    near(
        flat(Merge::Node),
        ranks * q(1.0 / ranks) * (1.0 - 1.0 / each),
        nodes * q(1.0 / nodes) * crossing,
    );
    let hierarchical = vectors(&cluster, Merge::Rank, Exchange::Hierarchical, rate);
    let crossed = ranks * q(1.0 / ranks) * crossing;
    near(hierarchical, q(1.0 / ranks) * (each - 1.0) + crossed * (1.0 - 1.0 / each), crossed);
    near(
        all_reduce(&cluster, AllReduce::Direct, 1.0),
        ranks * (each - 1.0),
        ranks * (ranks - each),
    );
    near(all_reduce(&cluster, AllReduce::TwoSteps, 1.0), 2.0 * (each - 1.0), 2.0 * (ranks - each));
    near(
        all_reduce(&cluster, AllReduce::Hierarchical, 1.0),
        2.0 * (ranks - nodes),
        2.0 * (nodes - 1.0),
    );
    near(
        all_reduce(&cluster, AllReduce::HierarchicalDirect, 1.0),
        2.0 * (ranks - nodes),
        nodes * (nodes - 1.0),
    );
}

#[test]
fn one_rank_sends_nothing() {
    let cluster = Cluster::even(1, 1);
    for merge in [Merge::Off, Merge::Rank, Merge::Node] {
        assert_eq!(
            vectors(&cluster, merge, Exchange::Hierarchical, Rate::known(9.0)),
            Hops::default()
        );
    }
    for how in [
        AllReduce::Direct,
        AllReduce::TwoSteps,
        AllReduce::Hierarchical,
        AllReduce::HierarchicalDirect,
    ] {
        assert_eq!(all_reduce(&cluster, how, 100.0), Hops::default());
    }
    let variant =
        Variant { merge: Merge::Rank, exchange: Exchange::Hierarchical, ids: IdSource::Exchange };
    assert_eq!(count_bytes(&cluster, variant, 26), Hops::default());
}

#[test]
fn counts_go_to_owners_or_along_rails() {
    let cluster = Cluster::even(2, 4);
    let counts = |merge, exchange, ids| count_bytes(&cluster, Variant { merge, exchange, ids }, 26);
    let (rank, node) = (Merge::Rank, Merge::Node);
    let flat = counts(rank, Exchange::Flat, IdSource::Exchange);
    // 8 ranks, 3 peers and 4 others each, 26 numbers of 4 bytes.
    assert_eq!(flat, Hops { intra: 8.0 * 3.0 * 104.0, inter: 8.0 * 4.0 * 104.0 });
    assert_eq!(counts(rank, Exchange::Flat, IdSource::Known), Hops::default());
    // To each peer for its two owners, then to the one other node's.
    let merged = counts(node, Exchange::Flat, IdSource::Exchange);
    assert_eq!(merged, Hops { intra: 8.0 * 3.0 * 208.0, inter: 8.0 * 104.0 });
    // Of what crosses, three in four parts are carried; each rank tells its three carriers about
    // three destinations, twice.
    let carried = counts(rank, Exchange::Hierarchical, IdSource::Known);
    assert_eq!(carried, Hops { intra: 8.0 * 3.0 * 8.0 * 2.0, inter: 0.0 });
}

#[test]
fn merging_sends_ever_less_and_the_optimum_lies_between() {
    for nodes in [2, 8, 14] {
        let cluster = Cluster::even(nodes, 8);
        for lambda in [1e-3, 0.5, 3.0, 14.0, 400.0] {
            let inter = |merge| vectors(&cluster, merge, Exchange::Flat, Rate::known(lambda)).inter;
            assert!(
                inter(Merge::Off) > inter(Merge::Rank) && inter(Merge::Rank) >= inter(Merge::Node)
            );
            let best = optimum(&cluster, std::iter::once((lambda, 1.0))) * nodes as f64;
            assert!(2.0 * inter(Merge::Node) <= best * (1.0 + 1e-12));
            let frequent = all_reduce(&cluster, AllReduce::Hierarchical, 1.0).inter;
            let least = frequent.min(2.0 * inter(Merge::Off));
            assert!((least / best - 1.0).abs() < 1e-12, "the optimum is one or the other");
        }
    }
}

#[test]
fn counts_leave_more_doubt_than_known_rates() {
    let counted = Rate { lambda: 0.5, evidence_steps: 2.0 };
    assert!(counted.chance_in(1.0) < Rate::known(0.5).chance_in(1.0));
    // Shape 1: an exponential prior; absent with chance 1 / (1 + 1/2).
    assert!((counted.chance_in(1.0) - (1.0 - 1.0 / 1.5)).abs() < 1e-12);
    let sure = Rate { lambda: 0.5, evidence_steps: 1e9 };
    assert!((sure.chance_in(0.3) - Rate::known(0.5).chance_in(0.3)).abs() < 1e-8);
}

#[test]
fn ranks_are_numbered_node_by_node() {
    let cluster = Cluster::new(&[2, 0, 3]);
    let places: Vec<_> =
        (0..5).map(|rank| (cluster.node_of(rank), cluster.local_index(rank))).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]);
    assert!(Cluster::even(14, 8).nodes_are_subtrees() && !cluster.nodes_are_subtrees());
    assert!(!Cluster::even(2, 3).nodes_are_subtrees() && !Cluster::even(8, 1).has_levels());
}
