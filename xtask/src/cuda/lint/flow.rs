//! Loads in flight: how many reads of parts of rows a kernel has issued before it uses the first.
//!
//! Counted on every path: a register that a wide load fills is *outstanding* until an instruction
//! names it, and at a point of the code those are in flight that are outstanding on each path that
//! leads there. Two loads into one register, of which one runs (`@P0`, `@!P0`, or two
//! branches), are one.

use std::collections::BTreeMap;

use super::sass::{Instruction, Width};

/// A set of registers: a bit for each.
type Registers = [u64; 4];

/// Loads on their way, each by the first register that it fills.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Outstanding {
    first: Registers,
    /// Those that fill four registers, not two.
    four: Registers,
}

impl Outstanding {
    fn len(&self) -> u32 {
        self.first.iter().map(|word| word.count_ones()).sum()
    }

    fn add(&mut self, register: u8, is_four: bool) {
        let (word, bit) = (usize::from(register / 64), 1 << (register % 64));
        self.first[word] |= bit;
        self.four[word] &= !bit;
        self.four[word] |= if is_four { bit } else { 0 };
    }

    /// Takes out the load that fills `register`.
    fn wait_for(&mut self, register: u8) {
        for before in 0..=register.min(3) {
            let (word, bit) =
                (usize::from((register - before) / 64), 1 << ((register - before) % 64));
            let filled = if self.four[word] & bit != 0 { 4 } else { 2 };
            if before < filled {
                self.first[word] &= !bit;
            }
        }
    }

    /// What is outstanding on both of two paths.
    fn and(&self, other: &Self) -> Self {
        let word = |at: usize| (self.first[at] & other.first[at], self.four[at] | other.four[at]);
        Self {
            first: std::array::from_fn(|at| word(at).0),
            four: std::array::from_fn(|at| word(at).1),
        }
    }
}

/// The most wide loads in flight in each innermost loop that has some, and in all of the code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InFlight {
    pub most: u32,
    /// In the order of the code.
    pub loops: Vec<u32>,
}

impl InFlight {
    /// Of loads of this width or more.
    pub fn of(code: &[Instruction<'_>], width: Width) -> Self {
        if !code.iter().any(|instruction| instruction.is_wide_load(width)) {
            return Self::default();
        }
        let flow = Flow::new(code, width);
        let after = flow.outstanding_after();
        let most_in = |range: std::ops::RangeInclusive<usize>| {
            after[range].iter().flatten().map(Outstanding::len).max().unwrap_or(0)
        };
        let loops = flow.innermost().into_iter().map(|(from, to)| most_in(from..=to)).collect();
        Self { most: most_in(0..=code.len() - 1), loops }
    }
}

struct Flow<'a> {
    code: &'a [Instruction<'a>],
    width: Width,
    index_of: BTreeMap<u32, usize>,
}

impl<'a> Flow<'a> {
    fn new(code: &'a [Instruction<'a>], width: Width) -> Self {
        let index_of =
            code.iter().enumerate().map(|(index, instruction)| (instruction.at, index)).collect();
        Self { code, width, index_of }
    }

    /// What is outstanding after each instruction; `None` where no path leads.
    fn outstanding_after(&self) -> Vec<Option<Outstanding>> {
        let mut before: Vec<Option<Outstanding>> = vec![None; self.code.len()];
        let mut after = before.clone();
        before[0] = Some(Outstanding::default());
        let mut waiting = vec![0];
        while let Some(index) = waiting.pop() {
            let Some(set) = before[index] else { continue };
            let set = apply(&self.code[index], self.width, set);
            after[index] = Some(set);
            for next in self.successors(index) {
                let joined = match before[next] {
                    Some(known) => known.and(&set),
                    None => set,
                };
                // Sets of loads only become smaller, those of four larger: this ends.
                if before[next] != Some(joined) {
                    before[next] = Some(joined);
                    waiting.push(next);
                }
            }
        }
        after
    }

    fn successors(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let instruction = &self.code[index];
        let target = self.target(index);
        // A predicate among the operands makes a jump conditional, too.
        let is_conditional = instruction.predicate.is_some() || instruction.operands.contains(',');
        let falls_through = match instruction.base() {
            "EXIT" | "RET" | "KILL" => instruction.predicate.is_some(),
            "BRA" | "JMP" => target.is_none() || is_conditional,
            _ => true,
        };
        let next = (falls_through && index + 1 < self.code.len()).then_some(index + 1);
        target.into_iter().chain(next)
    }

    /// Where a jump of a whole warp goes. `BRA.DIV` goes to what a warp does whose lanes have come
    /// apart before a shuffle: not the common path, and it comes back.
    fn target(&self, index: usize) -> Option<usize> {
        let instruction = &self.code[index];
        if !matches!(instruction.base(), "BRA" | "JMP") || instruction.name.contains(".DIV") {
            return None;
        }
        self.index_of.get(&instruction.target()?).copied()
    }

    /// First and last instruction of each loop with wide loads and without such a loop in it.
    fn innermost(&self) -> Vec<(usize, usize)> {
        let ends = (0..self.code.len()).filter_map(|index| {
            let first = self.target(index).filter(|first| *first < index)?;
            let is_load = |instruction: &Instruction<'_>| instruction.is_wide_load(self.width);
            let has_loads = self.code[first..=index].iter().any(is_load);
            has_loads.then_some((first, index))
        });
        let all: Vec<(usize, usize)> = ends.collect();
        let is_inside = |inner: &(usize, usize), outer: &(usize, usize)| {
            inner != outer && outer.0 <= inner.0 && inner.1 <= outer.1
        };
        let has_inner = |outer: &(usize, usize)| all.iter().any(|inner| is_inside(inner, outer));
        all.iter().copied().filter(|outer| !has_inner(outer)).collect()
    }
}

/// What is outstanding after `instruction`.
fn apply(instruction: &Instruction<'_>, width: Width, mut set: Outstanding) -> Outstanding {
    if instruction.base() == "CALL" {
        // What is called may use anything.
        return Outstanding::default();
    }
    let mut registers = instruction.registers();
    let filled = instruction.is_wide_load(width).then(|| registers.next()).flatten();
    for register in filled.into_iter().chain(registers) {
        // A load into what an earlier load fills is its other branch, or waits for it.
        set.wait_for(register);
    }
    if let Some(first) = filled {
        set.add(first, !instruction.name.contains(".64"));
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(text: &str) -> InFlight {
        in_flight_of(Width::Sixteen, text)
    }

    fn in_flight_of(width: Width, text: &str) -> InFlight {
        let lines: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(index, line)| format!("/*{:04x}*/ {} ;", 16 * index, line.trim()))
            .collect();
        let code: Vec<Instruction> =
            lines.iter().filter_map(|line| Instruction::parse(line)).collect();
        InFlight::of(&code, width)
    }

    #[test]
    fn loads_before_the_first_use_are_in_flight() {
        let batched = "LDG.E.128 R8, desc[UR8][R2.64]
            LDG.E.128 R12, desc[UR8][R2.64+0x10]
            STG.E.128 desc[UR8][R4.64], R8
            STG.E.128 desc[UR8][R4.64], R12
            @!P0 BRA 0x0
            EXIT";
        assert_eq!(in_flight(batched), InFlight { most: 2, loops: vec![2] });
        let in_turn = "LDG.E.128 R8, desc[UR8][R2.64]
            STG.E.128 desc[UR8][R4.64], R8
            LDG.E.128 R12, desc[UR8][R2.64+0x10]
            FADD R13, R13, R14
            @!P0 BRA 0x0
            EXIT";
        assert_eq!(in_flight(in_turn), InFlight { most: 1, loops: vec![1] });
    }

    #[test]
    fn a_load_of_eight_bytes_fills_two_registers() {
        let text = "LDG.E.64 R12, desc[UR8][R2.64]
            LDG.E.64 R14, desc[UR8][R2.64+0x8]
            LDG.E.128 R16, desc[UR8][R4.64]
            PRMT R20, R13, 0x7732, RZ
            LDG.E.64 R24, desc[UR8][R2.64]
            EXIT";
        assert_eq!(in_flight_of(Width::Eight, text).most, 3);
        assert_eq!(in_flight(text).most, 1);
    }

    #[test]
    fn alternatives_are_one_load() {
        let text = "@P1 BRA 0x40
            @P0 LDG.E.128 R8, desc[UR8][R2.64]
            @!P0 LDG.E.128 R8, desc[UR8][R4.64]
            BRA 0x50
            LDG.E.128 R8, desc[UR8][R6.64]
            LDG.E.128 R12, desc[UR8][R2.64]
            FADD R16, R11, R15
            EXIT";
        assert_eq!(in_flight(text), InFlight { most: 2, loops: vec![] });
        let only_one_branch = "@P1 BRA 0x20
            LDG.E.128 R8, desc[UR8][R2.64]
            LDG.E.128 R12, desc[UR8][R2.64]
            EXIT";
        // On the path that jumps there is one.
        assert_eq!(in_flight(only_one_branch).most, 1);
    }

    #[test]
    fn a_loop_does_not_count_what_its_last_round_loaded() {
        let text = "LDG.E.128 R8, desc[UR8][R2.64]
            IADD3 R2, R2, 0x10, RZ
            @!P0 BRA 0x0
            FADD R3, R8, R9
            EXIT";
        assert_eq!(in_flight(text), InFlight { most: 1, loops: vec![1] });
        assert_eq!(in_flight("LDG.E R8, desc[UR8][R2.64]\nEXIT"), InFlight::default());
    }
}
