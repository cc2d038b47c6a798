//! Which processors each rank runs on: an even split of those this process may use, by memory node
//! and core.
//!
//! A rank's memory follows its processors: the system gives a page from the node whose processor
//! first writes to it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::read_to_string;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Processor {
    node: usize,
    package: usize,
    core: usize,
    number: usize,
}

pub struct Places {
    all: CpuSet,
    ranks: Vec<Vec<usize>>,
}

/// Keeps this thread, and what it starts, on a rank's processors; gives it all of them back at the
/// end.
pub struct Bound<'a>(&'a CpuSet);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, self.0);
    }
}

/// An even split for `ranks` ranks.
pub fn places(ranks: usize) -> Result<Places, String> {
    let all = sched_getaffinity(None)
        .map_err(|error| format!("the processors are not known ({error})"))?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number));
    let processors: Vec<Processor> = numbers.map(describe).collect();
    let found = processors.len();
    let ranks =
        split(processors, ranks).ok_or_else(|| format!("{ranks} ranks, {found} processors"))?;
    Ok(Places { all, ranks })
}

impl Places {
    /// Moves this thread to a rank's processors until the answer is dropped: a process started
    /// meanwhile stays there.
    pub fn bind(&self, rank: usize) -> Bound<'_> {
        let mut wanted = CpuSet::new();
        self.ranks[rank].iter().for_each(|number| wanted.set(*number));
        // Where it is refused, the rank runs anywhere: slower, not wrong.
        let _ = sched_setaffinity(None, &wanted);
        Bound(&self.all)
    }
}

fn describe(number: usize) -> Processor {
    let folder = format!("/sys/devices/system/cpu/cpu{number}");
    let word =
        |file: &str| read_to_string(format!("{folder}/topology/{file}")).ok()?.trim().parse().ok();
    let node = std::fs::read_dir(&folder).ok().and_then(|entries| {
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
    });
    Processor {
        node: node.unwrap_or(0),
        package: word("physical_package_id").unwrap_or(0),
        core: word("core_id").unwrap_or(number),
        number,
    }
}

/// Whole cores where there are enough of them, neighbours together.
fn split(mut processors: Vec<Processor>, ranks: usize) -> Option<Vec<Vec<usize>>> {
    processors.sort_unstable();
    let same_core =
        |a: &Processor, b: &Processor| (a.node, a.package, a.core) == (b.node, b.package, b.core);
    let cores: Vec<&[Processor]> = processors.chunk_by(same_core).collect();
    let units: Vec<&[Processor]> =
        if cores.len() >= ranks { cores } else { processors.chunks(1).collect() };
    if units.len() < ranks {
        return None;
    }
    let part = |rank: usize| &units[rank * units.len() / ranks..(rank + 1) * units.len() / ranks];
    let numbers =
        |rank| part(rank).iter().flat_map(|unit| unit.iter().map(|one| one.number)).collect();
    Some((0..ranks).map(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two cores with two processors each, numbered as Linux does: siblings are 4
    /// apart.
    fn machine() -> Vec<Processor> {
        let place = |number: usize| (number % 4 / 2, number % 4);
        (0..8)
            .map(|number| Processor {
                node: place(number).0,
                package: 0,
                core: place(number).1,
                number,
            })
            .collect()
    }

    #[test]
    fn siblings_and_nodes_stay_together() {
        assert_eq!(split(machine(), 2).unwrap(), [vec![0, 4, 1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(split(machine(), 4).unwrap(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(split(machine(), 8).unwrap().concat(), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(split(machine(), 3).unwrap(), [vec![0, 4], vec![1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(split(machine(), 9), None);
    }

    #[test]
    fn an_existing_restriction_is_kept() {
        let allowed: Vec<Processor> =
            machine().into_iter().filter(|one| one.number != 0 && one.number != 4).collect();
        let parts = split(allowed, 3).unwrap();
        assert_eq!(parts, [[1, 5], [2, 6], [3, 7]]);
    }

    #[test]
    fn binding_ends_with_its_guard() {
        let before = sched_getaffinity(None).unwrap();
        let places = places(1).unwrap();
        let bound = places.bind(0);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        drop(bound);
        assert!(sched_getaffinity(None).unwrap() == before);
        let reason = super::places(5000).err().unwrap();
        assert_eq!(reason, format!("5000 ranks, {} processors", before.count()));
    }
}
