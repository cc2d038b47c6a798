//! What a step's exchange costs by a file of measurements: the same times that choose the fastest
//! way.

use headlong_comm::CommOptions;
use headlong_comm::tuning::{Measurement, Tuning};
use headlong_embedding::hybrid::cost::{Costs, LatencyTable, LinkCosts};

/// The costs of a transport, with what was measured over it in place of what is assumed. None:
/// nothing was.
///
/// Measured on one node, all-reduce and all-to-all say what the links inside a node do; on several
/// nodes with one rank each, what the links between nodes do. At each size the fastest algorithm
/// counts. Nodes of threads are nodes by name alone: their links are the same. What was measured on
/// a device counts for devices of its name.
pub fn costs(tuning: &Tuning, transport: &str, device: Option<&str>) -> Option<Costs> {
    let mut costs = Costs::of_transport(transport);
    let is_same =
        |known: &&Measurement| known.device.is_none() || known.device.as_deref() == device;
    let of_one_node = |known: &&Measurement| known.nodes == 1 && is_same(known);
    let of_one_rank_each =
        |known: &&Measurement| known.nodes > 1 && known.nodes == known.ranks && is_same(known);
    let inside = link(tuning, transport, &of_one_node, costs.intra.message_us);
    let between = link(tuning, transport, &of_one_rank_each, costs.inter.message_us);
    let ranks = tuning
        .measurements
        .iter()
        .filter(|known| known.ranks > 1)
        .map(|known| known.ranks)
        .max()?;
    match (transport, inside, between) {
        (_, None, None) => return None,
        ("local", Some(link), _) | ("local", None, Some(link)) => {
            (costs.intra, costs.inter) = (link.clone(), link);
        }
        (_, inside, between) => {
            costs.intra = inside.unwrap_or(costs.intra);
            costs.inter = between.unwrap_or(costs.inter);
        }
    }
    if device.is_none() {
        costs.direct_bytes = CommOptions::default().one_step_bytes_of(transport, ranks) as f64;
    }
    Some(costs)
}

fn link(
    tuning: &Tuning,
    transport: &str,
    fits: &dyn Fn(&&Measurement) -> bool,
    message_us: f64,
) -> Option<LinkCosts> {
    let known = |operation: &str| -> Vec<&Measurement> {
        let all = tuning.measurements.iter().filter(fits);
        let all = all.filter(|known| known.operation == operation);
        all.filter(|known| known.backend.split('+').any(|part| part == transport)).collect()
    };
    // Of its buffer each rank sends what it does not keep for itself; in an all-reduce twice.
    Some(LinkCosts {
        all_reduce: table(&known("all_reduce"), 2.0)?,
        all_to_all: table(&known("all_to_all"), 1.0)?,
        message_us,
    })
}

/// The fastest of the ways that were measured with the most ranks, by the bytes that a rank sends.
fn table(known: &[&Measurement], factor: f64) -> Option<LatencyTable> {
    let ranks = known.iter().map(|known| known.ranks).max().filter(|&ranks| ranks > 1)?;
    let sent = factor * (ranks - 1) as f64 / ranks as f64;
    let known: Vec<_> = known.iter().filter(|known| known.ranks == ranks).collect();
    // To a picosecond: at a point that was measured it is that point again.
    let exact = |us: f64| (us * 1e6).round() / 1e6;
    let fastest = |bytes: u64| {
        exact(known.iter().map(|known| known.micros(bytes)).fold(f64::INFINITY, f64::min))
    };
    let points =
        known[0].points.iter().map(|&(bytes, _)| ((bytes as f64 * sent).round(), fastest(bytes)));
    LatencyTable::new(points.collect()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(
        operation: &str,
        algorithm: &str,
        nodes: usize,
        points: [(u64, f64); 2],
    ) -> Measurement {
        Measurement {
            operation: operation.into(),
            backend: "tcp".into(),
            device: None,
            algorithm: algorithm.into(),
            nodes,
            ranks: 2,
            points: points.to_vec(),
        }
    }

    #[test]
    fn measured_links_take_the_place_of_assumed_ones() {
        let mut tuning = Tuning::new("a test");
        tuning.measurements = vec![
            known("all_reduce", "direct", 1, [(1024, 5.0), (4096, 30.0)]),
            known("all_reduce", "two_steps", 1, [(1024, 8.0), (4096, 9.0)]),
            known("all_to_all", "flat", 1, [(1024, 3.0), (4096, 4.0)]),
        ];
        let found = costs(&tuning, "tcp", None).expect("links inside a node");
        assert_eq!(
            found.intra.all_reduce.points(),
            [(1024.0, 5.0), (4096.0, 9.0)],
            "the fastest of each size"
        );
        assert_eq!(
            found.intra.all_to_all.points(),
            [(512.0, 3.0), (2048.0, 4.0)],
            "half of the buffer leaves"
        );
        assert_eq!(found.inter, Costs::tcp().inter);
        assert_eq!(costs(&tuning, "verbs", None), None, "nothing was measured over it");
        tuning.measurements.iter_mut().for_each(|known| known.nodes = 2);
        let found = costs(&tuning, "tcp", None).expect("links between nodes");
        assert_eq!((found.inter.all_reduce.us(1024.0), found.intra), (5.0, Costs::tcp().intra));
        tuning.measurements.iter_mut().for_each(|known| known.ranks = 4);
        assert_eq!(
            costs(&tuning, "tcp", None),
            None,
            "two kinds of links at once say nothing about either"
        );
    }

    #[test]
    fn what_was_measured_on_a_device_counts_for_its_like() {
        let mut tuning = Tuning::new("a test");
        let known = |operation| Measurement {
            backend: "peer".into(),
            device: Some("one".into()),
            ..known(operation, "direct", 1, [(1024, 5.0), (4096, 30.0)])
        };
        tuning.measurements = vec![known("all_reduce"), known("all_to_all")];
        let found = costs(&tuning, "peer", Some("one")).expect("links inside a node");
        assert_eq!(found.intra.all_to_all.points(), [(512.0, 5.0), (2048.0, 30.0)]);
        let assumed = Costs::gpus();
        assert_eq!((&found.inter, found.direct_bytes), (&assumed.inter, assumed.direct_bytes));
        assert_eq!(costs(&tuning, "peer", Some("another")), None);
        assert_eq!(costs(&tuning, "peer", None), None);
        assert_eq!(costs(&tuning, "nccl", Some("one")), None);
    }
}
