//! Machine code as `nvdisasm` prints it, one instruction a line:
//! `/*0190*/ @!P0 BRA 0xe0 ;`.

/// What a lane moves of a row by one access: 16 bytes, or 8 where the row's elements are 16 bits
/// wide and what it is made of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Eight,
    Sixteen,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// Its address in the image that was disassembled.
    pub at: u32,
    /// Under which it runs, where there is one: `!P0`.
    pub predicate: Option<&'a str>,
    /// With its modifiers: `LDG.E.128.CONSTANT`.
    pub name: &'a str,
    pub operands: &'a str,
}

impl<'a> Instruction<'a> {
    /// The instruction of a line; `None` of a line without one.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (at, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
        let at = u32::from_str_radix(at, 16).ok()?;
        let text = rest.split_once(';')?.0.trim();
        let (predicate, text) = match text.strip_prefix('@') {
            Some(text) => {
                let (predicate, text) = text.split_once(' ')?;
                (Some(predicate), text.trim_start())
            }
            None => (None, text),
        };
        let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
        Some(Self { at, predicate, name, operands: operands.trim() })
    }

    /// The name without modifiers.
    pub fn base(&self) -> &'a str {
        self.name.split('.').next().unwrap_or_default()
    }

    fn has(&self, modifier: &str) -> bool {
        self.name.split('.').any(|part| part == modifier)
    }

    /// Whether it moves this many bytes a lane, or more.
    fn moves(&self, width: Width) -> bool {
        let is_wide = self.has("128") || self.has("256");
        is_wide || (width == Width::Eight && self.has("64"))
    }

    /// Whether it reads global memory, also by an address that could be of other memory.
    fn is_load(&self) -> bool {
        matches!(self.base(), "LDG" | "LD" | "LDGSTS")
    }

    /// Whether it brings as much of global memory into registers, or more.
    pub fn is_wide_load(&self, width: Width) -> bool {
        self.is_load() && self.moves(width) && self.base() != "LDGSTS"
    }

    /// Numbers of the registers that it names, in order; `RZ` and uniform registers are none.
    pub fn registers(&self) -> impl Iterator<Item = u8> + use<'a> {
        let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = self.operands.split(move |c| !is_inside(c));
        words.filter_map(|word| word.strip_prefix('R')?.parse().ok())
    }

    /// The address it jumps to, where it says one.
    pub fn target(&self) -> Option<u32> {
        let (_, address) = self.operands.rsplit_once("0x")?;
        u32::from_str_radix(address.trim_end_matches([')', ' ']), 16).ok()
    }
}

/// Products by tensor cores: of Ampere, Hopper and Blackwell. `HFMA2.MMA` and `IMAD` are none.
const TENSOR: &[&str] = &[
    "HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTCHMMA",
    "UTCIMMA", "UTCQMMA", "UTCOMMA",
];

/// How many instructions of each kind a kernel has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of global memory, and those of 16 bytes a lane.
    pub loads: u32,
    pub wide_loads: u32,
    /// Writes to global memory, those of 16 bytes a lane, and those of 8 or more.
    pub stores: u32,
    pub wide_stores: u32,
    pub half_wide_stores: u32,
    /// Reads and writes of local memory: arrays that are no registers, and spills.
    pub local: u32,
    /// Products by tensor cores.
    pub tensor: u32,
}

impl Counts {
    pub fn of(code: &[Instruction<'_>]) -> Self {
        let mut counts = Self::default();
        for instruction in code {
            let wide = u32::from(instruction.moves(Width::Sixteen));
            match instruction.base() {
                "LDG" | "LD" | "LDGSTS" => {
                    counts.loads += 1;
                    counts.wide_loads += wide;
                }
                "STG" | "ST" => {
                    counts.stores += 1;
                    counts.wide_stores += wide;
                    counts.half_wide_stores += u32::from(instruction.moves(Width::Eight));
                }
                "LDL" | "STL" => counts.local += 1,
                base if TENSOR.contains(&base) => counts.tensor += 1,
                _ => {}
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCERPT: &str = "
	.headerflags	@\"EF_CUDA_64BIT_ADDRESS EF_CUDA_ACCELERATORS EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0030*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*07f0*/               @P2 LDG.E.128.CONSTANT R8, desc[UR8][R22.64+0x10] ;
        /*0860*/              @!P2 LDG.E R20, desc[UR8][R20.64] ;
        /*0870*/                   LD.E.64 R4, desc[UR8][R2.64] ;
        /*0880*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR8][R2.64] ;
        /*0890*/                   STG.E.128 desc[UR8][R10.64], R24 ;
        /*08a0*/                   STG.E desc[UR8][R10.64+0x4], R18 ;
        /*08b0*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*08c0*/                   STL.64 [R1+0x8], R4 ;
        /*08d0*/              @!P0 BRA P3, 0x1080 ;
        /*08e0*/                   BRA 0x8e0;
";

    #[test]
    fn instructions_are_read() {
        let code: Vec<Instruction> = EXCERPT.lines().filter_map(Instruction::parse).collect();
        assert_eq!(code.len(), 12);
        let load = &code[2];
        assert_eq!((load.at, load.predicate, load.base()), (0x7f0, Some("P2"), "LDG"));
        let is_wide = |index: usize| code[index].is_wide_load(Width::Sixteen);
        assert!(is_wide(2) && !is_wide(3) && !is_wide(4) && !is_wide(5));
        assert!(code[4].is_wide_load(Width::Eight) && !code[3].is_wide_load(Width::Eight));
        assert_eq!(load.registers().collect::<Vec<_>>(), [8, 22]);
        assert_eq!(code[1].registers().collect::<Vec<_>>(), [3]);
        assert_eq!((code[10].target(), code[11].target()), (Some(0x1080), Some(0x8e0)));
    }

    #[test]
    fn kinds_are_counted() {
        let code: Vec<Instruction> = EXCERPT.lines().filter_map(Instruction::parse).collect();
        let expected = Counts {
            loads: 4,
            wide_loads: 2,
            stores: 2,
            wide_stores: 1,
            half_wide_stores: 1,
            local: 1,
            tensor: 1,
        };
        assert_eq!(Counts::of(&code), expected);
    }
}
