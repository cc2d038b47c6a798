//! How many blocks of a kernel a multiprocessor holds at a time.

/// What a multiprocessor has (CUDA C++ Programming Guide, compute capabilities).
struct Multiprocessor {
    registers: u32,
    warps: u32,
    blocks: u32,
    shared_bytes: u32,
}

/// What the system keeps of each block's shared memory, and in which pieces it is given out.
const RESERVED_BYTES: u32 = 1024;
const SHARED_PIECE: u32 = 128;
/// Registers are given to a warp in pieces of this many.
const REGISTER_PIECE: u32 = 256;

impl Multiprocessor {
    /// That of A100, of H100 and H200, or of B200.
    fn of(architecture: &str) -> Option<Self> {
        let shared_bytes = match architecture {
            "sm_80" => 164 << 10,
            "sm_90a" | "sm_100" => 228 << 10,
            _ => return None,
        };
        Some(Self { registers: 65_536, warps: 64, blocks: 32, shared_bytes })
    }
}

/// Blocks of `threads` threads that a multiprocessor holds; `None` for an unknown architecture.
pub fn blocks(architecture: &str, threads: u32, registers: u32, shared_bytes: u32) -> Option<u32> {
    let has = Multiprocessor::of(architecture)?;
    let warps = threads.div_ceil(32).max(1);
    let by_warps = has.warps / warps;
    let of_warp = (registers.max(1) * 32).next_multiple_of(REGISTER_PIECE);
    let by_registers = has.registers / of_warp / warps;
    let of_block = (shared_bytes + RESERVED_BYTES).next_multiple_of(SHARED_PIECE);
    let by_shared = has.shared_bytes / of_block;
    Some(by_warps.min(by_registers).min(by_shared).min(has.blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NVIDIA's occupancy calculator has it.
    #[test]
    fn the_scarcest_of_all_decides() {
        assert_eq!(blocks("sm_90a", 256, 32, 0), Some(8));
        assert_eq!(blocks("sm_90a", 256, 64, 0), Some(4));
        assert_eq!(blocks("sm_90a", 256, 65, 0), Some(3));
        assert_eq!(blocks("sm_80", 256, 40, 43_040), Some(3));
        assert_eq!(blocks("sm_90a", 256, 40, 43_040), Some(5));
        assert_eq!(blocks("sm_100", 32, 16, 0), Some(32));
        assert_eq!(blocks("sm_75", 32, 16, 0), None);
    }
}
