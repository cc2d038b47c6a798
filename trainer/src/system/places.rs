//! Which processors each rank runs on: an even split of those this process may use, by memory node
//! and core.
//!
//! A rank's memory follows its processors: the system gives a page from the node whose processor
//! first writes to it.

use headlong_comm::launcher_env::{self, Place};
use rustix::process::Pid;
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
    ranks: Vec<Vec<Processor>>,
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

/// Whether this process may use all processors of the machine that are online.
pub fn are_all() -> bool {
    let online = read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    sched_getaffinity(None).is_ok_and(|own| own.count() >= count(&online))
}

/// How many ranks of this machine may run where this one may, as its launcher says.
pub fn ranks_that_share() -> usize {
    let launch = launcher_env::read().ok().and_then(Place::launch);
    let ranks = launch.and_then(|launch| launch.local_size).unwrap_or(1);
    if is_bound() { 1 } else { ranks.max(1) }
}

/// Whether this process was given a part of the machine: other processors than its launcher has,
/// where that is ours, else not all.
pub fn is_bound() -> bool {
    let launcher = launcher_env::launcher_process().ok().flatten();
    match launcher.and_then(Pid::from_raw).map(|launcher| sched_getaffinity(Some(launcher))) {
        // Note: while it starts ranks, it is bound like one of them.
        Some(Ok(launchers)) => sched_getaffinity(None).is_ok_and(|own| own != launchers),
        _ => !are_all(),
    }
}

/// How many numbers a list such as `0-3,6` has.
fn count(list: &str) -> u32 {
    let number = |text: &str| text.parse::<u32>().ok();
    let length = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some((number(last)? + 1).saturating_sub(number(first)?)),
        None => number(part).map(|_| 1),
    };
    list.trim().split(',').filter_map(length).sum()
}

impl Places {
    /// Moves this thread to a rank's processors until the answer is dropped: a process started
    /// meanwhile stays there.
    pub fn bind(&self, rank: usize) -> Bound<'_> {
        let mut wanted = CpuSet::new();
        self.ranks[rank].iter().for_each(|one| wanted.set(one.number));
        // Where it is refused, the rank runs anywhere: slower, not wrong.
        let _ = sched_setaffinity(None, &wanted);
        Bound(&self.all)
    }

    /// The numbers of a rank's processors for its threads: one of each core before a second one.
    pub fn of_threads(&self, rank: usize) -> Vec<usize> {
        let cores = || self.ranks[rank].chunk_by(Processor::shares_core);
        let most = cores().map(<[_]>::len).max().unwrap_or(0);
        let nth = |nth: usize| cores().filter_map(move |core| core.get(nth));
        (0..most).flat_map(nth).map(|one| one.number).collect()
    }
}

impl Processor {
    fn shares_core(&self, other: &Self) -> bool {
        (self.node, self.package, self.core) == (other.node, other.package, other.core)
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
fn split(mut processors: Vec<Processor>, ranks: usize) -> Option<Vec<Vec<Processor>>> {
    processors.sort_unstable();
    let cores: Vec<&[Processor]> = processors.chunk_by(Processor::shares_core).collect();
    let units: Vec<&[Processor]> =
        if cores.len() >= ranks { cores } else { processors.chunks(1).collect() };
    if units.len() < ranks {
        return None;
    }
    let part = |rank: usize| &units[rank * units.len() / ranks..(rank + 1) * units.len() / ranks];
    Some((0..ranks).map(|rank| part(rank).concat()).collect())
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

    fn numbers(processors: Vec<Processor>, ranks: usize) -> Option<Vec<Vec<usize>>> {
        let numbers = |part: Vec<Processor>| part.iter().map(|one| one.number).collect();
        split(processors, ranks).map(|ranks| ranks.into_iter().map(numbers).collect())
    }

    #[test]
    fn siblings_and_nodes_stay_together() {
        assert_eq!(numbers(machine(), 2).unwrap(), [vec![0, 4, 1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(numbers(machine(), 4).unwrap(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(numbers(machine(), 8).unwrap().concat(), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(numbers(machine(), 3).unwrap(), [vec![0, 4], vec![1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(numbers(machine(), 9), None);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!([count("0\n"), count("0-3,6"), count("0-1,4-7"), count("")], [1, 5, 6, 0]);
    }

    #[test]
    fn threads_of_a_rank_take_whole_cores_first() {
        let places = Places { all: CpuSet::new(), ranks: split(machine(), 2).unwrap() };
        assert_eq!(places.of_threads(0), [0, 1, 4, 5]);
        assert_eq!(places.of_threads(1), [2, 3, 6, 7]);
    }

    #[test]
    fn an_existing_restriction_is_kept() {
        let allowed: Vec<Processor> =
            machine().into_iter().filter(|one| one.number != 0 && one.number != 4).collect();
        let parts = numbers(allowed, 3).unwrap();
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
