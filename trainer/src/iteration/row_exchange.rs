//! Rows on their way between the ranks that hold them and the processes that save or load them.

use crate::iteration::ranks::RankGroup;
use crate::state::checkpoint::{Cause, Peers, Portion, Processes, Section};
use headlong_comm::{Communicator, Rank};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A process has one rank where ranks live in several: their numbers are the same.
impl Peers for Communicator {
    fn count(&self) -> usize {
        self.num_ranks()
    }

    fn own(&self) -> usize {
        self.rank().0
    }

    fn machine_of(&self, process: usize) -> usize {
        self.topology().node_of(Rank(process))
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        let leads = self.rank().0 == 0;
        let mut lengths = vec![0_u64; self.num_ranks()];
        self.all_gather(&[own.len() as u64], &mut lengths)?;
        let mut leaving = vec![0; lengths.len()];
        leaving[0] = own.len();
        let length = |&length: &u64| if leads { length as usize } else { 0 };
        let coming: Vec<usize> = lengths.iter().map(length).collect();
        let mut said = vec![0; coming.iter().sum()];
        self.all_to_all_v(own, &leaving, &mut said, &coming)?;
        let parts = starts(&coming).into_iter().zip(&coming).filter(|_| leads);
        Ok(parts.map(|(start, &length)| said[start..][..length].to_vec()).collect())
    }

    fn tell(&self, from: usize, word: &mut [u8]) -> Result<(), Cause> {
        Ok(self.broadcast(Rank(from), word)?)
    }

    fn all_say(&self, own: bool) -> Result<bool, Cause> {
        Ok(self.all_say(own)?)
    }
}

impl Peers for RankGroup {
    fn count(&self) -> usize {
        self.communicator().count()
    }

    fn own(&self) -> usize {
        self.communicator().own()
    }

    fn machine_of(&self, process: usize) -> usize {
        self.communicator().machine_of(process)
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        self.communicator().gather(own)
    }

    fn tell(&self, from: usize, word: &mut [u8]) -> Result<(), Cause> {
        self.communicator().tell(from, word)
    }

    fn all_say(&self, own: bool) -> Result<bool, Cause> {
        Peers::all_say(&*self.communicator(), own)
    }
}

impl Processes for RankGroup {
    fn holder_of(&self, table: usize) -> Option<usize> {
        self.groups()[table].holder(self.first().model())
    }

    fn bring(&self, wanted: &[Option<Portion>], out: &mut Vec<f32>) -> Result<(), Cause> {
        let own = self.own();
        let (mut leaving, mut scratch) = (Vec::new(), Vec::new());
        let mut leaving_counts = vec![0; wanted.len()];
        for (process, portion) in wanted.iter().enumerate() {
            let Some(portion) =
                portion.filter(|portion| process != own && !self.is_with_all(portion.tensor))
            else {
                continue;
            };
            let begin = leaving.len();
            scratch.resize(portion.len(), 0.0);
            self.read_here(portion.tensor, portion.first_row, &mut scratch)?;
            self.each_run(&portion, &mut |holder, run| {
                if holder == Some(own) {
                    leaving.extend_from_slice(&scratch[run]);
                }
            });
            leaving_counts[process] = leaving.len() - begin;
        }
        let mut coming_counts = vec![0; wanted.len()];
        if let Some(portion) = &wanted[own] {
            out.resize(portion.len(), 0.0);
            self.read_here(portion.tensor, portion.first_row, out)?;
            self.each_run(portion, &mut |holder, run| {
                if let Some(holder) = holder.filter(|&holder| holder != own) {
                    coming_counts[holder] += run.len();
                }
            });
        }
        let mut coming = vec![0.0; coming_counts.iter().sum()];
        let communicator = self.communicator();
        exchange(&communicator, (&leaving, &leaving_counts), (&mut coming, &coming_counts))?;
        if let Some(portion) = &wanted[own] {
            let mut next = starts(&coming_counts);
            self.each_run(portion, &mut |holder, run| {
                if let Some(holder) = holder.filter(|&holder| holder != own) {
                    out[run.clone()].copy_from_slice(&coming[next[holder]..][..run.len()]);
                    next[holder] += run.len();
                }
            });
        }
        Ok(())
    }

    fn takes_in_order(&self, table: usize) -> bool {
        self.groups()[table].takes_in_order()
    }

    fn deliver(&self, read: &[Option<Portion>], own: &[f32]) -> Result<Vec<f32>, Cause> {
        let me = self.own();
        let (mut leaving, mut leaving_counts) = (Vec::new(), vec![0; read.len()]);
        if let Some(portion) = &read[me] {
            let each = |holder: Option<usize>, body: &mut dyn FnMut(usize)| match holder {
                Some(rank) => body(rank),
                None => (0..read.len()).for_each(body),
            };
            self.each_run(portion, &mut |holder, run| {
                each(holder, &mut |rank| leaving_counts[rank] += run.len());
            });
            leaving = vec![0.0; leaving_counts.iter().sum()];
            let mut next = starts(&leaving_counts);
            self.each_run(portion, &mut |holder, run| {
                each(holder, &mut |rank| {
                    leaving[next[rank]..][..run.len()].copy_from_slice(&own[run.clone()]);
                    next[rank] += run.len();
                });
            });
        }
        let is_mine = |holder: Option<usize>| holder.is_none_or(|holder| holder == me);
        let mut coming_counts = vec![0; read.len()];
        for (portion, count) in read.iter().zip(&mut coming_counts) {
            let Some(portion) = portion else { continue };
            self.each_run(portion, &mut |holder, run| {
                *count += if is_mine(holder) { run.len() } else { 0 };
            });
        }
        let mut coming = vec![0.0; coming_counts.iter().sum()];
        let parts = (&mut coming[..], &coming_counts[..]);
        exchange(&self.communicator(), (&leaving, &leaving_counts), parts)?;
        let mut all = vec![0.0; read.iter().flatten().map(Portion::len).sum()];
        let (mut next, mut begin) = (0, 0);
        for portion in read.iter().flatten() {
            self.each_run(portion, &mut |holder, run| {
                if is_mine(holder) {
                    let from = &coming[next..][..run.len()];
                    all[begin + run.start..][..run.len()].copy_from_slice(from);
                    next += run.len();
                }
            });
            begin += portion.len();
        }
        Ok(all)
    }
}

impl RankGroup {
    fn communicator(&self) -> Arc<Communicator> {
        Arc::clone(&self.first().model().communicator)
    }

    /// Calls `body` with each run of numbers of a portion and the rank that has it; none where all
    /// do.
    fn each_run(&self, portion: &Portion, body: &mut dyn FnMut(Option<usize>, Range<usize>)) {
        let first = self.first();
        let model = first.model();
        let Portion { tensor, first_row, rows, width } = *portion;
        match tensor.section {
            Section::Tables => {
                let width = width as usize;
                let group = &self.groups()[tensor.index];
                group.each_holder(model, (first_row, rows), |index, holder| {
                    body(holder, index * width..(index + 1) * width);
                });
            }
            Section::Dense if model.has_part_of(tensor) => {
                let offset = (first_row * width) as usize;
                let runs = model.runs_of_states(tensor.index, offset, portion.len());
                runs.for_each(|(rank, run)| body(Some(rank), run));
            }
            Section::Dense => body(None, 0..portion.len()),
        }
    }
}

/// Parts of any size, bit for bit: numbers are not narrowed on their way.
fn exchange(
    communicator: &Communicator,
    (leaving, leaving_counts): (&[f32], &[usize]),
    (coming, coming_counts): (&mut [f32], &[usize]),
) -> Result<(), Cause> {
    let bits = "a number and its bits have the same size";
    let leaving = <[u32]>::ref_from_bytes(leaving.as_bytes()).expect(bits);
    let coming = <[u32]>::mut_from_bytes(coming.as_mut_bytes()).expect(bits);
    Ok(communicator.all_to_all_v(leaving, leaving_counts, coming, coming_counts)?)
}

/// Where the part of each rank begins.
fn starts(counts: &[usize]) -> Vec<usize> {
    let mut end = 0;
    let start = |count: &usize| {
        end += count;
        end - count
    };
    counts.iter().map(start).collect()
}
