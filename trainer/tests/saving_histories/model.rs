//! A small model whose rows lie with several processes, and how these exchange them: the slow,
//! obvious way.

use crate::checkpoint_support::Toy;
use headlong::state::checkpoint::{
    Cause, CheckpointSink, CheckpointSource, Layout, Peers, Portion, Processes, Section, TensorId,
};
use headlong_comm_simulated::{Communicator, Rank};

/// What a process has, and zeros in place of what others have.
pub struct Shared<'a> {
    pub toy: Toy,
    pub communicator: &'a Communicator,
}

impl<'a> Shared<'a> {
    /// What this process has of the model behind a step.
    pub fn behind(step: u64, communicator: &'a Communicator) -> Self {
        let mut shared = Self { toy: Toy::new(step as u32), communicator };
        for tensor in shared.toy.layout.tensors().unwrap() {
            let width = tensor.width as usize;
            for row in 0..tensor.rows {
                if !shared.has(tensor.id, row) {
                    let values = shared.toy.values.get_mut(&tensor.id).unwrap();
                    values[row as usize * width..][..width].fill(0.0);
                }
            }
        }
        shared
    }

    /// The process that has a row; none: all have it.
    fn holder(&self, tensor: TensorId, row: u64) -> Option<usize> {
        let count = self.count();
        match (tensor.section, tensor.index) {
            (Section::Dense, _) => None,
            // Divided row by row; whole with one process; whole with another.
            (Section::Tables, 0) => Some((row as usize * 7 + 1) % count),
            (Section::Tables, 1) => Some(1 % count),
            (Section::Tables, _) => Some(count - 1),
        }
    }

    fn has(&self, tensor: TensorId, row: u64) -> bool {
        self.holder(tensor, row).is_none_or(|holder| holder == self.own())
    }

    /// The rows of a portion whose holder is wanted.
    fn sent(&self, portion: &Portion, wants: impl Fn(Option<usize>) -> bool) -> Vec<u64> {
        let rows = portion.first_row..portion.first_row + portion.rows;
        rows.filter(|&row| wants(self.holder(portion.tensor, row))).collect()
    }

    /// All processes send each other numbers.
    fn exchange(&self, to_each: &[Vec<f32>], from_each: &[usize]) -> Result<Vec<Vec<f32>>, Cause> {
        let leaving: Vec<u32> = to_each.iter().flatten().map(|number| number.to_bits()).collect();
        let counts: Vec<usize> = to_each.iter().map(Vec::len).collect();
        let mut coming = vec![0_u32; from_each.iter().sum()];
        self.communicator.all_to_all_v(&leaving, &counts, &mut coming, from_each)?;
        let mut rest = coming.into_iter().map(f32::from_bits);
        Ok(from_each.iter().map(|&count| rest.by_ref().take(count).collect()).collect())
    }
}

impl CheckpointSource for Shared<'_> {
    fn layout(&self) -> Layout {
        self.toy.layout.clone()
    }

    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        self.toy.read(tensor, first_row, out)
    }

    fn processes(&self) -> Option<&dyn Processes> {
        Some(self)
    }
}

impl CheckpointSink for Shared<'_> {
    fn layout(&self) -> Layout {
        self.toy.layout.clone()
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        self.toy.write(tensor, first_row, values)
    }

    fn processes(&self) -> Option<&dyn Processes> {
        Some(self)
    }
}

/// The processes, as the part of the program sees them that is tried.
pub struct Together<'a>(pub &'a Communicator);

impl Peers for Together<'_> {
    fn count(&self) -> usize {
        self.0.num_ranks()
    }

    fn own(&self) -> usize {
        self.0.rank().0
    }

    fn machine_of(&self, process: usize) -> usize {
        self.0.topology().node_of(Rank(process))
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        let mut lengths = vec![0_u64; self.count()];
        self.0.all_gather(&[own.len() as u64], &mut lengths)?;
        let mut said = Vec::new();
        for (process, &length) in lengths.iter().enumerate() {
            let mut word =
                if process == self.own() { own.to_vec() } else { vec![0; length as usize] };
            self.0.broadcast(Rank(process), &mut word)?;
            said.push(word);
        }
        Ok(if self.own() == 0 { said } else { Vec::new() })
    }

    fn tell(&self, from: usize, word: &mut [u8]) -> Result<(), Cause> {
        Ok(self.0.broadcast(Rank(from), word)?)
    }

    fn all_say(&self, own: bool) -> Result<bool, Cause> {
        Ok(self.0.all_say(own)?)
    }
}

impl Peers for Shared<'_> {
    fn count(&self) -> usize {
        Together(self.communicator).count()
    }

    fn own(&self) -> usize {
        Together(self.communicator).own()
    }

    fn machine_of(&self, process: usize) -> usize {
        Together(self.communicator).machine_of(process)
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
        Together(self.communicator).gather(own)
    }

    fn tell(&self, from: usize, word: &mut [u8]) -> Result<(), Cause> {
        Together(self.communicator).tell(from, word)
    }

    fn all_say(&self, own: bool) -> Result<bool, Cause> {
        Together(self.communicator).all_say(own)
    }
}

impl Processes for Shared<'_> {
    fn holder_of(&self, table: usize) -> Option<usize> {
        let tensor = TensorId { section: Section::Tables, index: table, state: None };
        (table > 0).then(|| self.holder(tensor, 0)).flatten()
    }

    fn bring(&self, wanted: &[Option<Portion>], out: &mut Vec<f32>) -> Result<(), Cause> {
        let own = self.own();
        let mut to_each = vec![Vec::new(); self.count()];
        for (process, portion) in wanted.iter().enumerate().filter(|(process, _)| *process != own) {
            let Some(portion) = portion else { continue };
            for row in self.sent(portion, |holder| holder == Some(own)) {
                let mut values = vec![0.0; portion.width as usize];
                self.toy.read(portion.tensor, row, &mut values)?;
                to_each[process].extend(values);
            }
        }
        let from = |process: usize| match &wanted[own] {
            Some(portion) if process != own => {
                self.sent(portion, |holder| holder == Some(process)).len() * portion.width as usize
            }
            _ => 0,
        };
        let from_each: Vec<usize> = (0..self.count()).map(from).collect();
        let come = self.exchange(&to_each, &from_each)?;
        let Some(portion) = &wanted[own] else { return Ok(()) };
        out.resize(portion.len(), 0.0);
        self.toy.read(portion.tensor, portion.first_row, out)?;
        let width = portion.width as usize;
        for (process, values) in come.iter().enumerate().filter(|(process, _)| *process != own) {
            let rows = self.sent(portion, |holder| holder == Some(process));
            for (row, values) in rows.iter().zip(values.chunks(width)) {
                let at = (row - portion.first_row) as usize * width;
                out[at..at + width].copy_from_slice(values);
            }
        }
        Ok(())
    }

    fn takes_in_order(&self, table: usize) -> bool {
        table == 2
    }

    fn deliver(&self, read: &[Option<Portion>], own: &[f32]) -> Result<Vec<f32>, Cause> {
        let me = self.own();
        let goes_to = |process: usize| {
            move |holder: Option<usize>| holder.is_none_or(|holder| holder == process)
        };
        let mut to_each = vec![Vec::new(); self.count()];
        if let Some(portion) = &read[me] {
            let width = portion.width as usize;
            for (process, values) in to_each.iter_mut().enumerate() {
                for row in self.sent(portion, goes_to(process)) {
                    let at = (row - portion.first_row) as usize * width;
                    values.extend_from_slice(&own[at..at + width]);
                }
            }
        }
        let from = |portion: &Option<Portion>| match portion {
            Some(portion) => self.sent(portion, goes_to(me)).len() * portion.width as usize,
            None => 0,
        };
        let from_each: Vec<usize> = read.iter().map(from).collect();
        let come = self.exchange(&to_each, &from_each)?;
        let mut all = Vec::new();
        for (portion, values) in read.iter().zip(come) {
            let Some(portion) = portion else { continue };
            let (begin, width) = (all.len(), portion.width as usize);
            all.resize(begin + portion.len(), 0.0);
            let rows = self.sent(portion, goes_to(me));
            for (row, values) in rows.iter().zip(values.chunks(width)) {
                let at = begin + (row - portion.first_row) as usize * width;
                all[at..at + width].copy_from_slice(values);
            }
        }
        Ok(all)
    }
}
